"""Run: one run, live."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.reactive import reactive

from swarm.api import RunState
from tui import questions, view_clients, view_curves, view_energy, view_ranks, view_run, view_samples
from tui.asked import Question
from tui.background import in_thread
from tui.commands import Place, bindings
from tui.messages import RunShown
from tui.screens.compare import ask_other
from tui.screens.dialogs import Page
from tui.screens.learner import LearnerScreen
from tui.screens.log import LogScreen
from tui.screens.plots import PlotScreen
from tui.screens.round import RoundScreen
from tui.screens.samples import SamplesScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.plot import PlotPane
from tui.widgets.rounds import RoundsPane
from tui.widgets.table import Table
from tui.widgets.toned import Lines, Words

if TYPE_CHECKING:
    from tui.app import SwarmApp
    from tui.messages import Answered, RunAt
    from tui.sources import Api

# Actions that a run may not have.
_SOMETIMES = ("join", "leave", "stop", "pause", "drop", "extend", "export", "samples", "clients", "details", "overlay")
_QUIET = (("nothing has happened since this run was opened here", "dim"),)


@dataclass(frozen=True)
class IsThere(Question):
    """Whether something lies where an export would write."""

    file: str

    async def answer(self, api: Api) -> bool:
        return await in_thread(os.path.lexists, self.file)


class RunScreen(PlotScreen):
    BINDINGS: ClassVar = [*bindings(Place.RUN), *bindings(Place.PLOT), *bindings(Place.LISTS)]
    PLACES = (Place.RUN, Place.PLOT, Place.LISTS)
    PANES = ("#learners", "#loss", "#rounds", "#log")
    app: SwarmApp

    shown: reactive[RunShown | None] = reactive(None, repaint=False)
    frozen: reactive[bool] = reactive(False, repaint=False)

    def __init__(self, at: RunAt, name: str) -> None:
        super().__init__()
        self.at = at
        self._name_first = name  # until the manifest was read
        self._possible: tuple[bool, ...] = ()
        self._drawn: tuple[object, ...] = ()  # the records whose curves are drawn, and how they are looked at

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        yield Words(id="banner")
        yield Table(view_run.LEARNER_COLUMNS, name="Learners", id="learners")
        yield Table(view_clients.CLIENT_COLUMNS, name="Clients", id="clients")
        with Horizontal(id="middle"):
            yield PlotPane(id="loss")
            yield RoundsPane(id="rounds")
        yield Lines(follow=True, id="log")
        yield KeyBar(Place.RUN, Place.PLOT, Place.LISTS)

    def on_mount(self) -> None:
        self.query_one("#log", Lines).title("Log", "follow ●")
        self.query_one("#learners").focus()
        self._paint()

    def update(self) -> None:
        newest = self.app.run_shown
        if not self.frozen and newest is not None and newest.at == self.at:
            self.shown = newest

    def watch_shown(self) -> None:
        if self.ready:
            self._paint()

    def watch_frozen(self) -> None:
        if self.ready:
            self.update()
            self._paint()

    def on_resize(self) -> None:
        if self.ready:
            self._headline()

    @property
    def _newest_round(self) -> int | None:
        """Or generation."""
        if self.shown is None:
            return None
        state = self.shown.state
        if view_ranks.parallel(state):
            return state.ranks.generations[-1].generation if state.ranks.generations else None
        return state.open_round - 1

    def _paint(self) -> None:
        self._headline()
        shown = self.shown
        if shown is None:
            return
        self.query_one("#banner", Words).show(*view_run.banner(shown, self.app.keys))
        learners, job = self.query_one("#learners", Table), view_ranks.parallel(shown.state)
        if job:
            learners.head(view_ranks.RANK_COLUMNS, name="Ranks")
        learners.show(view_ranks.rank_rows(shown) if job else view_run.learner_rows(shown))
        if view_clients.federated(shown.state):
            self.add_class("-federated")
            learners.call("tok/s", view_run.work_rate(shown.state))
            self.query_one("#clients", Table).show(view_clients.client_rows(shown))
        self.replot()
        self.query_one("#rounds", RoundsPane).show_run(shown)
        log = tuple(((line.text, line.tone),) for line in shown.log)
        self.query_one("#log", Lines).show(log or (_QUIET,))
        possible = tuple(bool(self.check_action(action, ())) for action in _SOMETIMES)
        if possible != self._possible:
            self._possible = possible
            self.refresh_bindings()

    def plotted(self) -> tuple[view_curves.Metric, ...]:
        return view_curves.metrics(self.shown.state) if self.shown else ()

    @on(Table.Moved)
    def replot(self) -> None:
        """The curves, if there is anything new in them."""
        if self.shown is None:
            return
        state, view = self.shown.state, self.app.plot_view
        chosen = self.query_one("#learners", Table).cursor if view.each else ""
        ranks = state.ranks
        wanted = (state.manifest, state.series, state.rounds, state.evals, ranks.points, ranks.evals, view, chosen)
        if len(wanted) == len(self._drawn) and all(a is b for a, b in zip(wanted, self._drawn, strict=True)):
            return
        self._drawn = wanted
        self.query_one("#loss", PlotPane).show(view_curves.chart(state, view, selected=chosen))

    def _headline(self) -> None:
        shown = self.shown or RunShown(at=self.at, state=RunState(run=self._name_first), now_s=0.0)
        if shown.state.manifest is None:  # a share that does not answer, say: whoever opened the run knew its name
            shown = replace(shown, state=msgspec.structs.replace(shown.state, run=self._name_first))
        energy = view_energy.summary(shown.state, self.app.settings.price_per_kwh, self.app.settings.currency)
        line = view_run.headline(shown, width=self.size.width, frozen=self.frozen, energy=energy)
        self.query_one("#head", Words).show(line)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        shown = self.shown
        match action:
            case "join":
                return shown is not None and view_run.can_join(shown)
            case "leave":
                return shown is not None and bool(shown.running)
            case "extend":
                return shown is not None and view_run.extensible(shown.state)
            case "export":
                return shown is not None and view_run.exportable(shown.state)
            case "samples":
                return shown is not None and view_samples.written(shown.state)
            case "stop" | "pause":
                return shown is not None and view_run.stoppable(shown.state)
            case "drop":
                return shown is not None and view_run.stoppable(shown.state) and bool(view_run.droppable(shown.state))
            case "clients":
                return shown is not None and view_clients.federated(shown.state)
            case "details":
                return shown is not None and (view_clients.federated(shown.state) or view_ranks.parallel(shown.state))
            case "overlay":
                return shown is not None and view_curves.can_overlay(shown.state)
            case _:
                return True

    def action_clients(self) -> None:
        pane = self.query_one("#clients")
        if pane.display and pane.focusable:  # a tiny terminal shows none
            pane.focus()

    def action_details(self) -> None:
        if self.shown is None:
            return
        if view_ranks.parallel(self.shown.state):
            self.app.push_screen(Page("Plan and preflight", view_ranks.details(self.shown.state)))
        else:
            self.app.push_screen(Page("Last round", view_clients.details(self.shown.state)))

    def action_join(self) -> None:
        if self.shown:
            self.app.open_join(self.at, self.shown.state)

    def action_leave(self) -> None:
        if self.shown and self.shown.running:
            questions.ask_leave(self.app, self.shown.running)

    def action_stop(self) -> None:
        if self.shown:
            questions.ask_stop(self.app, self.at, self.shown.state)

    def action_pause(self) -> None:
        if self.shown:
            questions.ask_pause(self.app, self.at, self.shown.state)

    def action_drop(self) -> None:
        if not self.shown:
            return
        chosen = self.query_one("#learners", Table).cursor
        if chosen in view_run.droppable(self.shown.state):
            questions.ask_drop(self.app, self.at, self.shown.state, chosen)
        else:
            self.app.notify("put the cursor on a learner that takes part", markup=False)

    def action_freeze(self) -> None:
        self.frozen = not self.frozen

    def action_log(self) -> None:
        self.app.push_screen(LogScreen(self.at))

    def action_samples(self) -> None:
        self.app.push_screen(SamplesScreen(self.at))

    @on(RoundsPane.Opened)
    @on(Table.Opened, "#learners")
    def action_open(self) -> None:
        """What the pane that has the focus holds, in a screen of its own."""
        focused = self.focused
        if self.shown is None or focused is None:
            return
        if focused.id == "log":
            self.action_log()
        elif focused.id == "clients":
            self.action_details()
        elif isinstance(focused, RoundsPane):
            at = focused.at
            newest = self._newest_round
            if at is not None:
                self.app.push_screen(RoundScreen(self.at, None if at == newest else at))
        elif focused.id == "learners" and (learner := self.query_one("#learners", Table).cursor):
            self.app.push_screen(LearnerScreen(self.at, learner))

    def action_extend(self) -> None:
        if self.shown and view_run.extensible(self.shown.state):
            questions.ask_rounds(self.app, self.at, self.shown.state)

    def action_export(self) -> None:
        if self.shown and view_run.exportable(self.shown.state):
            questions.ask_file(self.app, self.shown.state, lambda file: self.app.feed.ask(IsThere(file)))

    def answered(self, message: Answered) -> None:
        question = message.question
        if not isinstance(question, IsThere):
            return
        if message.value:
            questions.ask_overwrite(self.app, self.at, question.file)
        else:
            questions.begin_export(self.app, self.at, question.file)

    def action_compare(self) -> None:
        ask_other(self.app, self.at)

    def action_back(self) -> None:
        self.app.close_run()
