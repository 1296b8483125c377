"""Home: the runs of the known mailboxes, and what this machine does."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.reactive import reactive

from swarm.api import Home, Job
from tui import view_home
from tui.commands import Place, bindings
from tui.messages import RUNNING_JOB, HomeShown, RunAt
from tui.screens.lists import ListScreen
from tui.view_run import joinable, stoppable
from tui.widgets.keybar import KeyBar
from tui.widgets.table import Table
from tui.widgets.toned import Words

if TYPE_CHECKING:
    from tui.app import SwarmApp


class HomeScreen(ListScreen):
    BINDINGS: ClassVar = [*bindings(Place.HOME), *bindings(Place.LISTS)]
    PLACES = (Place.HOME, Place.LISTS)
    PANES = ("#runs", "#jobs")
    app: SwarmApp

    shown: reactive[HomeShown | None] = reactive(None, repaint=False)

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        yield Words(id="banner")
        with Vertical(id="panes"):
            yield Words(id="empty")
            yield Table(view_home.RUN_COLUMNS, name="Runs", id="runs")
            yield Table(view_home.JOB_COLUMNS, name="Jobs on this machine", id="jobs")
            yield Words(id="detail")
        yield KeyBar(Place.HOME, Place.LISTS)

    def on_mount(self) -> None:
        self.query_one("#runs").focus()
        self._paint()

    def update(self) -> None:
        self.shown = self.app.home

    def watch_shown(self) -> None:
        if self.ready:
            self._paint()

    def _paint(self) -> None:
        shown, here = self.shown, self.app.home_folder
        self.query_one("#head", Words).show(view_home.headline(shown))
        empty = tuple(view_home.empty(shown, here))
        self.query_one("#empty", Words).show(*empty)
        self.query_one("#runs", Table).set_class(bool(empty) or shown is None, "-empty")
        if shown is None:
            return
        self.query_one("#banner", Words).show(*view_home.banner(shown, here))
        self.query_one("#runs", Table).show(view_home.run_rows(shown.home, here))
        jobs = self.query_one("#jobs", Table)
        jobs.set_class(not shown.home.jobs, "-empty")
        jobs.show(view_home.job_rows(shown.home.jobs, here))
        self._changed()

    @on(Table.Moved)
    def _changed(self) -> None:
        at = view_home.run_at(self.query_one("#runs", Table).cursor)
        run = view_home.find_run(self.shown.home, at) if at and self.shown else None
        here = self.app.home_folder
        self.query_one("#detail", Words).show(*view_home.run_detail(run), *view_home.job_detail(self._job, here))
        self.refresh_bindings()

    @property
    def _job(self) -> Job | None:
        """The job under the cursor."""
        key = self.query_one("#jobs", Table).cursor
        return next((job for job in self.shown.home.jobs if job.id == key), None) if self.shown else None

    @property
    def selected(self) -> RunAt | None:
        """The run under the cursor, or that of the job under it."""
        if self.table.id == "runs":
            return view_home.run_at(self.table.cursor)
        return RunAt(self._job.mailbox, self._job.run) if self._job else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        at, home = self.selected, self.shown.home if self.shown else Home()
        state = view_home.find_run(home, at) if at else None
        match action:
            case "open":
                return at is not None
            case "join":
                here = {job.run for job in home.jobs if job.state in RUNNING_JOB}
                return state is not None and joinable(state) and state.run not in here
            case "stop" | "pause":
                return state is not None and stoppable(state)
            case _:
                return True

    @on(Table.Opened)
    def action_open(self) -> None:
        if at := self.selected:
            self.app.open_run(at)

    def action_join(self) -> None:
        if (at := self.selected) and self.shown and (state := view_home.find_run(self.shown.home, at)):
            self.app.ask_join(at, state)

    def action_stop(self) -> None:
        if (at := self.selected) and self.shown and (state := view_home.find_run(self.shown.home, at)):
            self.app.ask_stop(at, state)

    def action_pause(self) -> None:
        if (at := self.selected) and self.shown and (state := view_home.find_run(self.shown.home, at)):
            self.app.ask_pause(at, state)

    def action_network(self) -> None:
        self.app.open_network()

    def action_rescan(self) -> None:
        self.app.feed.rescan()
