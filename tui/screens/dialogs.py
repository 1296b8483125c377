"""Dialogs: each returns a value, None when it was left with esc."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from tui.widgets.toned import content, folded

if TYPE_CHECKING:
    from tui.widgets.toned import Line


@dataclass(frozen=True)
class Option:
    """A button: what the dialog returns, and its words."""

    value: str
    label: str


CANCEL = Option("cancel", "Cancel")


class Choice(ModalScreen[str | None]):
    """A question with a column of buttons; the one named by `focus` answers enter."""

    BINDINGS: ClassVar = [
        Binding("escape", "dismiss(None)", "cancel"),
        Binding("down,j,right,tab", "app.focus_next", "next", show=False),
        Binding("up,k,left,shift+tab", "app.focus_previous", "previous", show=False),
    ]

    def __init__(self, title: str, words: Iterable[Line], options: tuple[Option, ...], *, focus: str) -> None:
        super().__init__()
        self._title, self._words, self._options, self._first = title, tuple(words), options, focus

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(content(self._words), id="words")
            for option in self._options:
                yield Button(Content(option.label), id=option.value, compact=True)

    def on_mount(self) -> None:
        self.query_one("#dialog").border_title = Content(self._title)
        self.query_one(f"#{self._first}").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id)


class Folding(Static):
    """Lines that go on below themselves: behind their first column if they have one, else a bit further in than they begin."""

    def __init__(self, lines: tuple[Line, ...], *, id: str) -> None:
        super().__init__(content(lines), id=id)
        self._lines = lines

    def on_resize(self) -> None:
        width = self.size.width
        self.update(content(part for line in self._lines for part in folded(line, width, indent=_hang(line, width))))


def _hang(line: Line, width: int) -> int:
    first = line[0][0] if line else ""
    if len(line) > 1 and first.endswith("  ") and 2 * cell_len(first) <= width:
        return cell_len(first)
    return len(first) - len(first.lstrip()) + 2


class Page(ModalScreen[None]):
    """A page of text to read. `copy`: its plain text can be taken along with `c`."""

    BINDINGS: ClassVar = [
        Binding("escape,q,enter", "dismiss(None)", "back"),
        Binding("c", "copy", "copy"),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("pagedown,space", "scroll(10)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
    ]

    def __init__(self, title: str, lines: Iterable[Line], *, copy: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._title, self._lines, self._copy = title, tuple(lines), copy

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Folding(self._lines, id="text")

    def on_mount(self) -> None:
        page = self.query_one("#page")
        page.border_title = Content(self._title)
        page.border_subtitle = Content("esc back" + ("  c copy" if self._copy else ""))
        page.focus()

    @property
    def text(self) -> str:
        return content(self._lines).plain

    def action_scroll(self, rows: int) -> None:
        self.query_one("#page").scroll_relative(y=rows, animate=False)

    def action_copy(self) -> None:
        if self._copy is not None:
            self._copy(self.text)


class Ask(ModalScreen[str | None]):
    """A question that is answered with one line; esc leaves it. `value`: what stands there to begin with. `empty`: whether
    nothing, too, is an answer."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "cancel")]

    def __init__(
        self, title: str, words: Iterable[Line], *, placeholder: str = "", value: str = "", empty: bool = False
    ) -> None:
        super().__init__()
        self._title, self._words, self._placeholder = title, tuple(words), placeholder
        self._value, self._empty = value, empty

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(content(self._words), id="words")
            yield Input(self._value, placeholder=self._placeholder, id="answer", compact=True, select_on_focus=False)

    def on_mount(self) -> None:
        dialog = self.query_one("#dialog")
        dialog.border_title, dialog.border_subtitle = Content(self._title), Content("enter takes it  esc leaves")
        self.query_one("#answer").focus()

    @on(Input.Submitted)
    def _answered(self, event: Input.Submitted) -> None:
        answer = event.value.strip()
        self.dismiss(answer if answer or self._empty else None)


class FilterBar(ModalScreen[None]):
    """One line at the bottom; the table behind it follows each letter."""

    BINDINGS: ClassVar = [Binding("escape", "clear", "show all")]

    def __init__(self, text: str, narrow: Callable[[str], None]) -> None:
        super().__init__()
        self._text, self._narrow = text, narrow

    def compose(self) -> ComposeResult:
        with Horizontal(id="line"):
            yield Static("/ ")
            yield Input(self._text, placeholder="rows that contain …", id="filter", compact=True)
            yield Static("enter keeps  esc shows all")

    @on(Input.Changed)
    def _follow(self, event: Input.Changed) -> None:
        self._narrow(event.value)

    @on(Input.Submitted)
    def _keep(self) -> None:
        self.dismiss(None)

    def action_clear(self) -> None:
        self._narrow("")
        self.dismiss(None)
