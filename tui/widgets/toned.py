"""Lines drawn by hand, cell by cell: a fraction of the cost of a widget per row (a DataTable of 30 rows takes 85 ms)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from tui import text
from tui.commands import Place, pressed

if TYPE_CHECKING:
    from tui.preferences import Preferring

Piece = tuple[str, str]  # text, tone
Line = tuple[Piece, ...]
TONES = ("good", "warn", "bad", "dim", "accent", "strong")
_STYLES = {
    "good": "$text-success",
    "warn": "$text-warning",
    "bad": "$text-error",
    "dim": "$foreground-muted",
    "accent": "$text-primary",
    "strong": "bold",
}


def content(lines: Iterable[Line]) -> Content:
    """Lines for a Words widget. Nothing in them is parsed as markup."""
    return Content("\n").join(Content.assemble(*((t, _STYLES.get(tone, "")) for t, tone in line)) for line in lines)


class Words(Static):
    """One or a few lines of text; repaints only if they differ."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, classes="-empty")
        self._shown: tuple[Line, ...] = ()

    def show(self, *lines: Line) -> None:
        if lines == self._shown:
            return
        moved = [_length(line) for line in lines] != [_length(line) for line in self._shown]
        self._shown = lines
        self.update(content(lines), layout=moved and self.styles.is_auto_height)
        self.set_class(not lines, "-empty")


def folded(line: Line, width: int, *, indent: int = 9) -> tuple[Line, ...]:
    """`line` in lines of at most `width` cells, broken between words; those after the first begin with `indent` blanks."""
    if sum(cell_len(words) for words, _ in line) <= width or width <= indent:
        return (line,)
    lines: list[list[Piece]] = [[]]
    left = width
    for words, tone in line:
        for word in re.findall(r" *[^ ]+| +$", words):
            while cell_len(word) > left:
                fresh = left == width - indent and len(lines) > 1
                if not fresh and (word.startswith(" ") or cell_len(word) <= width - indent):
                    word = word.lstrip()
                else:  # longer than any line
                    head = set_cell_size(word, left)
                    lines[-1].append((head, tone))
                    word = word[len(head) :]
                lines.append([(" " * indent, "")])
                left = width - indent
            lines[-1].append((word, tone))
            left -= cell_len(word)
    return tuple(tuple(each) for each in lines)


def bounded(lines: Iterable[Line], most: int, where: str) -> tuple[Line, ...]:
    """At most `most` lines, the last of which says how many are left out, and where they stand."""
    lines = tuple(lines)
    if len(lines) <= most:
        return lines
    return (*lines[: most - 1], ((f"  and {len(lines) - most + 1} more: {where}", "dim"),))


def _length(line: Line) -> int:
    return sum(len(t) for t, _ in line)


class Toned(ScrollView, can_focus=True, inherit_bindings=False):
    """A base for line-drawn widgets: a tone is a name whose style stands in the style sheet. The screen binds the keys that
    move in it, so that all of them come from the one key table."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"toned--{tone}" for tone in TONES}
    ALLOW_SELECT = False
    _title: tuple[str, str] = ("", "")

    def tone(self, name: str) -> Style:
        return self.get_component_rich_style(f"toned--{name}") if name else self.rich_style

    def title(self, title: str, subtitle: str = "") -> None:
        """The words in the border."""
        if (title, subtitle) != self._title:
            self._title = (title, subtitle)
            self.border_title, self.border_subtitle = Content(title), Content(subtitle)

    def move(self, rows: int) -> None:
        self.scroll_relative(y=rows, animate=False, immediate=True)

    def first(self) -> None:
        self.scroll_home(animate=False, immediate=True)

    def last(self) -> None:
        self.scroll_end(animate=False, immediate=True)

    @property
    def page_rows(self) -> int:
        return max(1, self.scrollable_content_region.height - 2)

    def strip(self, line: Line, width: int, style: Style | None = None) -> Strip:
        """`line` in exactly `width` cells; `style` is laid over the tones."""
        segments: list[Segment] = []
        left = width
        for words, tone in line:
            words = text.fit(words, min(left, cell_len(words)))
            left -= cell_len(words)
            drawn = self.tone(tone)
            segments.append(Segment(words, drawn + style if style else drawn))
        if left > 0:
            segments.append(Segment(" " * left, self.rich_style + style if style else self.rich_style))
        return Strip(segments, width)


class Lines(Toned):
    """Lines to scroll through. `follow`: the last one stays in sight unless the reader has scrolled up."""

    app: Preferring

    def __init__(self, *, follow: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._follow, self._at_end, self._settling = follow, True, False
        self._lines: tuple[Line, ...] = ()

    @property
    def following(self) -> bool:
        return self._follow and self._at_end

    @property
    def follows(self) -> str:
        """Whether it does, in words; if not, with the key that has it do so."""
        return "follow ●" if self._at_end else f"follow ○: {pressed(self.app.keys, Place.LISTS, 'last')}"

    def show(self, lines: tuple[Line, ...]) -> None:
        if lines != self._lines:
            self._lines = lines
            self._settle()
            self.refresh()

    def on_resize(self) -> None:
        self._settle()

    def _settle(self) -> None:
        self._settling = True
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._lines))
        if self.following:
            self.scroll_end(animate=False, force=True, immediate=True)
            if self.scroll_y:  # a scrollbar that is about to be shown was not told
                self.vertical_scrollbar.position = self.scroll_y
        self._settling = False

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._follow and not self._settling and self.is_mounted:
            self._at_end = new_value >= self.max_scroll_y
            self.title(self._title[0], self.follows)

    def render_line(self, y: int) -> Strip:
        row = y + self.scroll_offset.y
        return self.strip(self._lines[row] if row < len(self._lines) else (), self.scrollable_content_region.width)
