"""Screens that are one text to read, over a run that is followed meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.app import ComposeResult

from tui.commands import pressed
from tui.screens.live import LiveScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.toned import Lines, Words, folded

if TYPE_CHECKING:
    from tui.app import SwarmApp
    from tui.commands import Place, Table
    from tui.messages import RunAt, RunShown
    from tui.widgets.toned import Line


def others(keys: Table, place: Place, before: str, after: str) -> str:
    """'← → others': what to press for them."""
    return f"{pressed(keys, place, before)} {pressed(keys, place, after)} others"


class ReadingScreen(LiveScreen):
    """A headline, and lines to scroll through."""

    FOLLOW = False  # the newest line stays in sight
    app: SwarmApp

    def __init__(self, at: RunAt) -> None:
        super().__init__()
        self.at = at

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        yield Words(id="banner")
        yield Lines(follow=self.FOLLOW, id="text")
        yield KeyBar(*self.PLACES)

    def on_mount(self) -> None:
        self.text.focus()
        self.update()

    @property
    def text(self) -> Lines:
        return self.query_one("#text", Lines)

    @property
    def newest(self) -> RunShown | None:
        """The newest of this run that the feed told."""
        shown = self.app.run_shown
        return shown if shown is not None and shown.at == self.at else None

    @property
    def width(self) -> int:
        """Cells of a line."""
        return max(10, self.text.scrollable_content_region.width or self.size.width - 4)

    def on_resize(self) -> None:
        if self.ready:
            self.call_after_refresh(self.update)

    def head(self, *pieces: Line) -> None:
        self.query_one("#head", Words).show(*pieces)

    def show(self, lines: Iterable[Line]) -> None:
        """Show these, folded where they are wider than the screen."""
        width = self.width
        self.text.show(tuple(part for line in lines for part in folded(line, width)))

    def action_scroll(self, rows: int) -> None:
        self.text.move(rows)

    def action_page(self, pages: int) -> None:
        self.text.move(pages * self.text.page_rows)

    def action_first(self) -> None:
        self.text.first()

    def action_last(self) -> None:
        self.text.last()

    def action_back(self) -> None:
        self.app.pop_screen()
