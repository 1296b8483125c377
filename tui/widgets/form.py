"""A form: a column of fields, each a row, drawn line by line as the table is: ninety Input widgets take 1.5 s of CPU to come
up, this takes 0.04.

What is typed goes into the field under the cursor. Every other key is left to the screen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from tui import text
from tui.widgets.toned import Toned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tui.widgets.toned import Line, Piece

Kind = Literal["text", "choice", "heading", "fold", "button"]
MOST = 4096  # characters of a value
_LABEL, _NARROW = 24, 19  # cells of a label; in a narrow form
_VALUE = 8  # cells that a value has at least, before what is wrong with it


@dataclass(frozen=True)
class FormRow:
    key: str
    kind: Kind
    label: str
    value: str = ""  # what was typed or chosen; '': the default
    hint: str = ""  # what holds then
    choices: tuple[str, ...] = ()  # '' first, where the default may be taken back
    problem: str = ""  # what is wrong with it
    tone: str = ""  # of a button


class Form(Toned):
    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--cursor", "form--caret"}

    class Changed(Message):
        """Something else stands in a field: Form.take says what."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Pressed(Message):
        """A fold, or a button."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Moved(Message):
        """Another row has the cursor."""

    def __init__(self, *, id: str, steps: Mapping[str, int] = MappingProxyType({})) -> None:
        """`steps`: by how many rows a key moves. It does so here, and not when the key has come up to the screen: what is typed
        right after it would go into the field before."""
        super().__init__(id=id)
        self._steps = steps
        self._rows: tuple[FormRow, ...] = ()
        self._cursor = ""
        self._caret = 0  # in the value under the cursor, in characters
        self._untaken: dict[str, str] = {}  # values that were typed and that nobody has taken yet, by key

    # What it shows

    def show(self, rows: tuple[FormRow, ...]) -> None:
        # Painted between a key and its message, they do not know yet what was typed.
        rows = tuple(replace(row, value=self._untaken.get(row.key, row.value)) for row in rows) if self._untaken else rows
        if rows == self._rows:
            return
        before, self._rows = self._rows, rows
        keys = [row.key for row in self._stops]
        if self._cursor not in keys:
            self._cursor = keys[0] if keys else ""
            self._caret = len(self.row.value) if self.row else 0
            self.post_message(self.Moved())
        elif self.row is not None:
            self._caret = min(self._caret, len(self.row.value))
        self.virtual_size = Size(self._inner_width, len(rows))
        if [row.key for row in before] == [row.key for row in rows]:
            for n, (old, new) in enumerate(zip(before, rows, strict=True)):
                if old != new:
                    self._refresh_row(n)
        else:
            self._reveal()
            self.refresh()

    def take(self, key: str) -> str | None:
        """What was typed into a field since it was taken last; None: nothing."""
        return self._untaken.pop(key, None)

    @property
    def row(self) -> FormRow | None:
        """The one under the cursor."""
        return next((row for row in self._rows if row.key == self._cursor), None)

    @property
    def cursor(self) -> str:
        return self._cursor

    @property
    def _stops(self) -> list[FormRow]:
        return [row for row in self._rows if row.kind != "heading"]

    # Moving

    def move(self, rows: int) -> None:
        keys = [row.key for row in self._stops]
        if keys:
            at = keys.index(self._cursor) if self._cursor in keys else 0
            self.go(keys[max(0, min(at + rows, len(keys) - 1))])

    def go(self, key: str) -> None:
        """Put the cursor on this row."""
        if key == self._cursor or key not in [row.key for row in self._stops]:
            return
        old, self._cursor = self._at(), key
        self._caret = len(self.row.value) if self.row else 0
        self._reveal()
        self._refresh_row(old)
        self._refresh_row(self._at())
        self.post_message(self.Moved())

    def first(self) -> None:
        self.move(-len(self._rows))

    def last(self) -> None:
        self.move(len(self._rows))

    def _at(self) -> int:
        return next((n for n, row in enumerate(self._rows) if row.key == self._cursor), 0)

    def _reveal(self) -> None:
        n, visible, top = self._at(), self.scrollable_content_region.height, self.scroll_offset.y
        first = n - 1 if n and self._rows[n - 1].kind == "heading" else n
        if visible > 0 and not top <= first <= n < top + visible:
            y = first if first < top else n - visible + 1
            self.scroll_to(y=y, animate=False, force=True, immediate=True)

    # Typing

    def on_key(self, event: events.Key) -> None:
        row = self.row
        if event.key in self._steps and not event.is_printable:  # what can be typed is
            self.move(self._steps[event.key])
            event.stop()
            event.prevent_default()
            return
        taken = row is not None and (self._typed(event, row) if row.kind == "text" else self._chosen(event.key, row))
        if taken:
            event.stop()
            event.prevent_default()

    def _typed(self, event: events.Key, row: FormRow) -> bool:
        value, at = row.value, self._caret
        match event.key:
            case "left":
                self._set_caret(at - 1)
            case "right":
                self._set_caret(at + 1)
            case "home":
                self._set_caret(0)
            case "end":
                self._set_caret(len(value))
            case "backspace":
                self._write(row, value[: max(0, at - 1)] + value[at:], at - 1)
            case "delete":
                self._write(row, value[:at] + value[at + 1 :], at)
            case "ctrl+u":
                self._write(row, value[at:], 0)
            case "ctrl+w":
                kept = value[:at].rstrip().rpartition(" ")[0]
                self._write(row, kept + value[at:], len(kept))
            case "enter":
                self.move(1)
            case _:
                if not (event.character and event.is_printable):
                    return False
                self._write(row, value[:at] + event.character + value[at:], at + 1)
        return True

    def _chosen(self, key: str, row: FormRow) -> bool:
        if key in ("enter", "space") and row.kind != "choice":
            self.post_message(self.Pressed(row.key))
        elif row.kind == "choice" and row.choices and key in ("enter", "space", "right", "left"):
            step = -1 if key == "left" else 1
            at = row.choices.index(row.value) if row.value in row.choices else 0
            self._write(row, row.choices[(at + step) % len(row.choices)], 0)
        else:
            return False
        return True

    def on_paste(self, event: events.Paste) -> None:
        row = self.row
        if row is not None and row.kind == "text":
            pasted = text.plain(event.text, MOST)
            self._write(row, row.value[: self._caret] + pasted + row.value[self._caret :], self._caret + len(pasted))
            event.stop()

    def _write(self, row: FormRow, value: str, caret: int) -> None:
        if len(value) > MOST:
            return
        self._caret = max(0, min(caret, len(value)))
        if value != row.value:
            self._untaken[row.key] = value
            self.post_message(self.Changed(row.key))
        # The row is drawn anew when the screen shows it; several keys may come before that.
        changed = replace(row, value=value)
        self._rows = tuple(changed if each.key == row.key else each for each in self._rows)
        self._reveal()
        self._refresh_row(self._at())

    def _set_caret(self, caret: int) -> None:
        self._caret = max(0, min(caret, len(self.row.value) if self.row else 0))
        self._refresh_row(self._at())

    # The mouse

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        n = offset.y + self.scroll_offset.y
        if n >= len(self._rows) or self._rows[n].kind == "heading":
            return
        row, again = self._rows[n], self._rows[n].key == self._cursor
        self.go(row.key)
        if row.kind in ("fold", "button"):
            self.post_message(self.Pressed(row.key))
        elif row.kind == "choice" and again:
            self._chosen("right", row)
        elif row.kind == "text":
            first = self._first_shown(row)
            self._set_caret(first + max(0, offset.x - 2 - self._label_width - 1))

    # Drawing

    @property
    def _inner_width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def _label_width(self) -> int:
        return _NARROW if self._inner_width < 60 else _LABEL

    def on_resize(self) -> None:
        self.virtual_size = Size(self._inner_width, len(self._rows))
        self._reveal()

    def on_focus(self) -> None:
        self._refresh_row(self._at())

    def on_blur(self) -> None:
        self._refresh_row(self._at())

    def _refresh_row(self, n: int) -> None:
        y = n - self.scroll_offset.y
        if 0 <= y < self.scrollable_content_region.height:
            self.refresh(Region(0, y, self._inner_width, 1))

    def render_line(self, y: int) -> Strip:
        n, width = y + self.scroll_offset.y, self._inner_width
        if n >= len(self._rows):
            return self.strip((), width)
        row = self._rows[n]
        here = row.key == self._cursor and row.kind != "heading"
        style = self.get_component_rich_style("table--cursor", partial=True) if here and self.has_focus else None
        strip = self.strip(self._line(row, here), width, style)
        if here and self.has_focus and row.kind == "text":
            return self._with_caret(strip, row)
        return strip

    def _line(self, row: FormRow, here: bool) -> Line:
        mark: Piece = ("▸ " if here else "  ", "accent")
        match row.kind:
            case "heading":
                return ((row.label, "accent"),)
            case "fold":
                return (mark, (f"{row.value} {row.label}", "dim"))
            case "button":
                return (mark, (f"[ {row.label} ]", row.tone), (f"  {row.problem}" if row.problem else "", "warn"))
        label: Piece = (text.fit(row.label, self._label_width) + " ", "bad" if row.problem else "")
        return (mark, label, *self._value(row, here))

    def _value(self, row: FormRow, here: bool) -> tuple[Piece, ...]:
        room = max(1, self._inner_width - self._label_width - 3)
        wrong = f"  ✗ {row.problem}" if row.problem else ""
        value = row.value if row.kind == "text" else f"← {row.value or row.hint} →" if here else row.value or row.hint
        if row.kind == "text":
            first = self._first_shown(row) if here else 0
            value = value[first:]
        taken = min(max(cell_len(value or row.hint) + 1, _VALUE), room) if wrong else room
        tone = "strong" if row.value else "dim"
        return ((text.fit(value or row.hint, taken), tone), (wrong, "bad"))

    def _first_shown(self, row: FormRow) -> int:
        """Of a value that is longer than its room, the first character that is shown: the caret stays in sight."""
        room = max(2, self._inner_width - self._label_width - 4)
        return max(0, self._caret - room + 1) if row.key == self._cursor else 0

    def _with_caret(self, strip: Strip, row: FormRow) -> Strip:
        x = 2 + self._label_width + 1 + cell_len(row.value[self._first_shown(row) : self._caret])
        if x >= self._inner_width:
            return strip
        before, under, after = strip.divide([x, x + 1, self._inner_width])
        caret: Style = self.get_component_rich_style("form--caret", partial=True)
        return Strip.join([before, under.apply_style(caret), after])
