"""Screens with lists: moving, sorting, filtering, panes."""

from __future__ import annotations

from tui.screens.dialogs import FilterBar
from tui.screens.live import LiveScreen
from tui.widgets.table import Table
from tui.widgets.toned import Toned


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
