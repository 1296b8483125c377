"""Join: what stands between this machine and a run, then one key."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.reactive import reactive

from tui import questions, view_join
from tui.commands import Place, bindings
from tui.messages import RunAt
from tui.screens.live import LiveScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.toned import Lines, Words

if TYPE_CHECKING:
    from tui.app import SwarmApp
    from tui.messages import JoinShown

_SOMETIMES = ("join", "mount", "watch")


class JoinScreen(LiveScreen):
    BINDINGS: ClassVar = bindings(Place.JOIN)
    PLACES = (Place.JOIN,)
    app: SwarmApp

    shown: reactive[JoinShown | None] = reactive(None, repaint=False)

    def __init__(self, at: RunAt, name: str) -> None:
        super().__init__()
        self.at = at
        self._name_first = name
        self._possible: tuple[bool, ...] = ()

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        yield Lines(id="ticks")
        yield Words(id="outlook")
        yield KeyBar(Place.JOIN)

    def on_mount(self) -> None:
        self.query_one("#ticks", Lines).title("Before this machine joins")
        self.query_one("#ticks").focus()
        self._paint()

    def update(self) -> None:
        newest = self.app.join_shown
        if newest is not None and newest.at == self.at:
            self.shown = newest

    def watch_shown(self) -> None:
        if self.ready:
            self._paint()

    def on_resize(self) -> None:
        if self.ready:
            self._paint()

    def _paint(self) -> None:
        shown = self.shown
        self.query_one("#head", Words).show(view_join.headline(self._name_first, shown))
        ticks = self.query_one("#ticks", Lines)
        lines = view_join.tick_lines(shown, width=max(20, self.size.width - 4))
        if len(lines) > ticks.scrollable_content_region.height > 0:  # a scrollbar stands beside them
            lines = view_join.tick_lines(shown, width=max(20, self.size.width - 5))
        ticks.show(lines)
        self.query_one("#outlook", Words).show(*view_join.outlook(shown, self.app.keys))
        possible = tuple(bool(self.check_action(action, ())) for action in _SOMETIMES)
        if possible != self._possible:
            self._possible = possible
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "join":
                return view_join.can_join(self.shown)
            case "mount":
                return view_join.can_mount(self.shown)
            case "watch":
                return self.shown is not None and self.shown.joining.location is not None
            case _:
                return True

    def action_join(self) -> None:
        if self.shown is not None and view_join.can_join(self.shown):
            self.app.begin_join(self.shown)

    def action_mount(self) -> None:
        if self.shown is not None and view_join.can_mount(self.shown):
            questions.ask_mount(self.app, self.shown)

    def action_watch(self) -> None:
        if self.shown is not None and self.shown.joining.location is not None:
            location = self.shown.joining.location
            self.app.close_join()
            self.app.open_run(RunAt(location, self.at.run))

    def action_again(self) -> None:
        self.app.feed.check(self.at, name=self._name_first)

    def action_scroll(self, lines: int) -> None:
        self.query_one("#ticks", Lines).move(lines)

    def action_back(self) -> None:
        self.app.close_join()
