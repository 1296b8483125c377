"""Network: the other machines, and what the doctor finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.reactive import reactive

from tui import view_network
from tui.commands import Place, bindings
from tui.screens.lists import ListScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.table import Table
from tui.widgets.toned import Lines, Words

if TYPE_CHECKING:
    from tui.app import SwarmApp
    from tui.messages import NetworkShown


class NetworkScreen(ListScreen):
    BINDINGS: ClassVar = [*bindings(Place.NETWORK), *bindings(Place.LISTS)]
    PLACES = (Place.NETWORK, Place.LISTS)
    PANES = ("#peers", "#checks")
    app: SwarmApp

    shown: reactive[NetworkShown | None] = reactive(None, repaint=False)

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        yield Words(id="alone")
        yield Table(view_network.PEER_COLUMNS, name="Peers", id="peers")
        yield Words(id="detail")
        yield Lines(id="checks")
        yield KeyBar(Place.NETWORK, Place.LISTS)

    def on_mount(self) -> None:
        self.query_one("#checks", Lines).title("Checks")
        self.query_one("#checks").focus()
        self._paint()

    def update(self) -> None:
        self.shown = self.app.network

    def watch_shown(self) -> None:
        if self.ready:
            self._paint()

    def on_resize(self) -> None:
        # The pane has its new width once the layout is done.
        self.call_after_refresh(self._paint)

    def _paint(self) -> None:
        if not self.ready:
            return
        shown = self.shown
        self.query_one("#head", Words).show(view_network.headline(shown))
        if shown is None:
            return
        self.query_one("#alone", Words).show(*view_network.no_peers(shown.sightings))
        peers = self.query_one("#peers", Table)
        peers.set_class(not shown.sightings.peers, "-empty")
        peers.show(view_network.peer_rows(shown.sightings, shown.now_s))
        checks = self.query_one("#checks", Lines)
        width = checks.scrollable_content_region.width
        checks.show(view_network.check_lines(shown.found, width, short=self.has_class("-low")))
        self._moved()

    @on(Table.Moved)
    def _moved(self) -> None:
        key = self.query_one("#peers", Table).cursor
        peers = self.shown.sightings.peers if self.shown else ()
        peer = next((p for p in peers if view_network.row_key(p) == key), None)
        self.query_one("#detail", Words).show(*view_network.peer_detail(peer))
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        done = self.shown is not None and self.shown.found.done
        if action in ("check", "copy"):
            return done
        if action in ("sort", "filter"):
            return bool(self.shown and self.shown.sightings.peers)
        return True

    def action_check(self) -> None:
        self.app.feed.examine()

    def action_copy(self) -> None:
        if self.shown is not None and self.shown.report:
            self.app.copy(self.shown.report)

    def action_back(self) -> None:
        self.app.pop_screen()
