"""What the screens have in common: no painting behind a dialog; and those with lists: moving, sorting, filtering, panes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import SystemCommand
from textual.screen import Screen

from tui.screens.dialogs import FilterBar
from tui.widgets.table import Table
from tui.widgets.toned import Toned

if TYPE_CHECKING:
    from tui.asked import Question
    from tui.commands import Place
    from tui.messages import Answered
    from tui.preferences import Preferring


class LiveScreen(Screen[None]):
    """Shows snapshots, and nothing behind a dialog."""

    PLACES: ClassVar[tuple[Place, ...]] = ()  # whose keys work here, beside those that work everywhere

    @property
    def ready(self) -> bool:
        """Whether its widgets are there: snapshots come before they are mounted, and while the app closes."""
        return self.is_mounted and self.is_attached and bool(self.children)

    def on_mount(self) -> None:
        cast("Preferring", self.app).rebind(self)

    def on_screen_resume(self) -> None:
        """Back in front: show what has come meanwhile."""
        self.update()

    def update(self) -> None:
        """Show the newest snapshot."""
        raise NotImplementedError

    def answered(self, message: Answered) -> None:
        """The feed has an answer, perhaps to another screen's question, and perhaps while this one is not in front: then
        nothing is painted."""

    def waits_for(self, question: Question) -> bool:
        """Whether this one asked it, has no answer yet, and tells what comes of it."""
        return False

    def commands(self) -> Iterable[SystemCommand]:
        """For the palette, beside its keys."""
        return ()


class ListScreen(LiveScreen):
    PANES: tuple[str, ...] = ()  # selectors, in the order of their keys; the first one is the main table

    @property
    def table(self) -> Table:
        """The table that has the focus, else the main one."""
        return self.focused if isinstance(self.focused, Table) else self.query_one(self.PANES[0], Table)

    @property
    def _list(self) -> Toned:
        return self.focused if isinstance(self.focused, Toned) else self.table

    def action_down(self) -> None:
        self._list.move(1)

    def action_up(self) -> None:
        self._list.move(-1)

    def action_first(self) -> None:
        self._list.first()

    def action_last(self) -> None:
        self._list.last()

    def action_page(self, pages: int) -> None:
        self._list.move(pages * self._list.page_rows)

    def action_sort(self) -> None:
        self.table.sort_by_next()

    def action_filter(self) -> None:
        table = self.table
        self.app.push_screen(FilterBar(table.filter, table.narrow))

    def action_pane(self, n: int) -> None:
        pane = self.query_one(self.PANES[n - 1])
        if pane.focusable:
            pane.focus()
