"""Home: the runs of the known mailboxes and of the network, what this machine does, and the other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.reactive import reactive

from tui import questions, screens, view_home
from tui.commands import Place, bindings, pressed
from tui.messages import RUNNING_JOB, RunAt
from tui.screens.lists import ListScreen
from tui.view_run import stoppable
from tui.widgets.keybar import KeyBar
from tui.widgets.table import Table
from tui.widgets.toned import Words, bounded

if TYPE_CHECKING:
    from swarm.api import Job, RunState
    from tui.app import SwarmApp
    from tui.messages import HomeShown


class HomeScreen(ListScreen):
    BINDINGS: ClassVar = [*bindings(Place.HOME), *bindings(Place.LISTS)]
    PLACES = (Place.HOME, Place.LISTS)
    PANES = ("#runs", "#jobs", "#peers")
    app: SwarmApp

    shown: reactive[HomeShown | None] = reactive(None, repaint=False)
    _marked: RunAt | None = None  # to be compared with the next one

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        yield Words(id="banner")
        with Vertical(id="panes"):
            yield Words(id="empty")
            yield Table(view_home.RUN_COLUMNS, name="Runs", id="runs")
            yield Table(view_home.JOB_COLUMNS, name="Jobs on this machine", id="jobs")
            yield Table(view_home.PEER_COLUMNS, name="Machines", id="peers")
            yield Words(id="detail")
        yield KeyBar(Place.HOME, Place.LISTS)

    def on_mount(self) -> None:
        self.query_one("#runs").focus()
        self._paint()

    def update(self) -> None:
        self.shown = self.app.home

    def on_resize(self) -> None:
        if self.ready:
            self.call_after_refresh(self._paint)

    def watch_shown(self) -> None:
        if self.ready:
            self._paint()

    def _paint(self) -> None:
        shown, here = self.shown, self.app.home_folder
        self.query_one("#head", Words).show(view_home.headline(shown))
        empty = tuple(view_home.empty(shown, here, self.app.keys))
        self.query_one("#empty", Words).show(*empty)
        self.query_one("#runs", Table).set_class(bool(empty) or shown is None, "-empty")
        if shown is None:
            return
        most = max(4, self.size.height // 3)  # whatever is wrong, there is room for the runs
        keys, lines = self.app.keys, view_home.banner(shown, here, self.app.keys)
        self.query_one("#banner", Words).show(
            *bounded(lines, most, f"{pressed(keys, Place.HOME, 'network')} looks at everything")
        )
        rows = view_home.run_rows(shown, here)
        if self._marked is not None:
            from tui import view_compare  # which brings the plots: not before the first paint

            rows = view_compare.marked(rows, view_home.row_key(self._marked))
        self.query_one("#runs", Table).show(rows)
        jobs = self.query_one("#jobs", Table)
        jobs.set_class(not shown.home.jobs, "-empty")
        jobs.show(view_home.job_rows(shown.home.jobs, here))
        peers = self.query_one("#peers", Table)
        peers.set_class(not view_home.others(shown.sightings), "-empty")
        peers.show(view_home.peer_rows(shown))
        self._changed()

    @on(Table.Moved)
    def _changed(self) -> None:
        at, shown, here = view_home.run_at(self.query_one("#runs", Table).cursor), self.shown, self.app.home_folder
        entry = view_home.find_entry(shown, at) if at and shown else None
        state = entry.state if entry else None
        keys = self.app.keys
        lines = [
            *view_home.run_detail(state, keys),
            *view_home.heard_detail(entry, keys),
            *view_home.job_detail(self._job, here),
        ]
        if self.table.id == "peers" and shown:
            lines = list(view_home.peer_detail(shown, self.table.cursor))
        if self._marked is not None and shown is not None:
            one = view_home.find_entry(shown, self._marked)
            from tui import view_compare

            lines = [view_compare.mark_line(one.name if one else self._marked.run, keys), *lines]
        self.query_one("#detail", Words).show(*lines)
        self.refresh_bindings()

    @on(events.DescendantFocus)
    def _other_pane(self) -> None:
        if self.ready:
            self._changed()

    @property
    def _job(self) -> Job | None:
        """The job under the cursor."""
        key = self.query_one("#jobs", Table).cursor
        return next((job for job in self.shown.home.jobs if job.id == key), None) if self.shown else None

    @property
    def selected(self) -> RunAt | None:
        """The run under the cursor, or that of the job under it."""
        match self.table.id:
            case "runs":
                return view_home.run_at(self.table.cursor)
            case "jobs" if self._job:
                return RunAt(self._job.mailbox, self._job.run)
            case _:
                return None

    @property
    def _entry(self) -> view_home.Entry | None:
        at = self.selected
        return view_home.find_entry(self.shown, at) if at and self.shown else None

    @property
    def _state(self) -> RunState | None:
        entry = self._entry
        return entry.state if entry else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        at, entry, state = self.selected, self._entry, self._state
        match action:
            case "open":
                return at is not None
            case "watch" | "compare":
                return at is not None and bool(at.mailbox)
            case "join":
                return entry is not None and self._can_join(entry)
            case "stop" | "pause":
                return state is not None and stoppable(state)
            case "log":
                return self._job is not None
            case _:
                return True

    def _can_join(self, entry: view_home.Entry) -> bool:
        jobs = self.shown.home.jobs if self.shown else ()
        return entry.joinable and entry.at.run not in {job.run for job in jobs if job.state in RUNNING_JOB}

    @on(Table.Opened)
    def action_open(self) -> None:
        at, entry = self.selected, self._entry if self.table.id == "runs" else None
        if entry is not None and (not entry.at.mailbox or (self._can_join(entry) and not entry.program)):
            self.app.open_join(entry.at, entry.state, name=entry.name)
        elif at is not None:
            self.app.open_run(at)

    def action_watch(self) -> None:
        if (at := self.selected) and at.mailbox:
            self.app.open_run(at)

    def action_join(self) -> None:
        if entry := self._entry:
            self.app.open_join(entry.at, entry.state, name=entry.name)

    def action_new(self) -> None:
        self.app.open_new()

    def action_peer(self) -> None:
        questions.ask_peer(self.app)

    def action_stop(self) -> None:
        if (at := self.selected) and (state := self._state):
            questions.ask_stop(self.app, at, state)

    def action_pause(self) -> None:
        if (at := self.selected) and (state := self._state):
            questions.ask_pause(self.app, at, state)

    def action_compare(self) -> None:
        at, marked = self.selected, self._marked
        if at is None:
            return
        self._marked = at if marked is None else None
        self._paint()
        if marked is not None and marked != at:
            self.app.push_screen(screens.CompareScreen(marked, at))

    def action_log(self) -> None:
        if (job := self._job) is not None:
            self.app.push_screen(screens.LogScreen(RunAt(job.mailbox, job.run), job=job.id))

    def action_network(self) -> None:
        self.app.open_network()

    def action_rescan(self) -> None:
        self.app.feed.rescan()
