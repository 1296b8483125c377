"""Compare: two runs in one plot, with what differs beneath. Each may lie in a mailbox of its own, and may still be running."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.reactive import reactive
from textual.timer import Timer

from swarm.api import SwarmError
from tui import text, view_compare
from tui.asked import Question
from tui.commands import Place, bindings, pressed
from tui.messages import RunAt
from tui.screens.dialogs import CANCEL, Choice, Option
from tui.screens.plots import PlotScreen
from tui.view_compare import Side
from tui.widgets.keybar import KeyBar
from tui.widgets.plot import PlotPane
from tui.widgets.table import Table
from tui.widgets.toned import Words

if TYPE_CHECKING:
    from swarm.api import RunState
    from tui.app import SwarmApp
    from tui.messages import Answered
    from tui.sources import Api, RunSource
    from tui.view_curves import Metric
    from tui.widgets.toned import Line

AGAIN_S = 2.0  # between two looks at runs that go on
_KEPT = 256  # records of each run that stay whole
_OFFERED = 30  # runs to choose from


@dataclass(frozen=True)
class BothRuns(Question):
    """Two runs as they are now, with their whole history: tuple[Side, Side]. `watches` keep what was read; nobody but `answer`
    uses them, on the feed's thread."""

    runs: tuple[RunAt, RunAt]
    watches: dict[RunAt, RunSource] = field(default_factory=dict, compare=False, repr=False)

    async def answer(self, api: Api) -> tuple[Side, Side]:
        one, other = await asyncio.gather(*(self._side(api, at) for at in self.runs))
        return one, other

    async def _side(self, api: Api, at: RunAt) -> Side:
        try:
            watch = self.watches.get(at) or api.RunWatch(at.mailbox, at.run, keep=_KEPT)
            self.watches[at] = watch
            state = await watch.poll()
        except SwarmError as error:
            known = self.watches.get(at)
            return Side(at, known.state if known is not None and known.state.manifest else None, problem=str(error))
        return Side(at, state, behind=watch.behind)


class CompareScreen(PlotScreen):
    BINDINGS: ClassVar = [*bindings(Place.COMPARE), *bindings(Place.PLOT), *bindings(Place.LISTS)]
    PLACES = (Place.COMPARE, Place.PLOT, Place.LISTS)
    PANES = ("#both", "#plot")
    app: SwarmApp

    shown: reactive[tuple[Side, Side] | None] = reactive(None, repaint=False)

    def __init__(self, one: RunAt, other: RunAt) -> None:
        super().__init__()
        self._question = BothRuns((one, other))
        self._problem = ""
        self._timer: Timer | None = None

    @property
    def sides(self) -> tuple[Side, Side]:
        one, other = self._question.runs
        return self.shown or (Side(one), Side(other))

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        yield Words(id="banner")
        yield PlotPane(id="plot")
        yield Table(view_compare.columns(self.sides), name="Side by side", id="both")
        yield KeyBar(*self.PLACES)

    def on_mount(self) -> None:
        self.query_one("#both").focus()
        self._paint()

    def update(self) -> None:
        """In front, perhaps again: an answer that came while a dialog was there is not painted."""
        self._ask()

    def _ask(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.app.feed.ask(self._question)

    def answered(self, message: Answered) -> None:
        if message.question is not self._question:
            return
        self._problem = message.problem
        if not message.problem:
            self.shown = message.value  # type: ignore[assignment]
        if not self.is_active:  # it asks anew when it is in front again
            return
        if self.ready:
            self._paint()
        if any(side.read_on for side in self.sides):
            self._ask()
        elif self._problem or any(side.goes_on for side in self.sides):
            self._timer = self.set_timer(AGAIN_S, self._ask)

    def _paint(self) -> None:
        sides = self.sides
        self._headline()
        self.query_one("#banner", Words).show(*view_compare.banner(sides, self._problem))
        both = self.query_one("#both", Table)
        both.head(view_compare.columns(sides), name="Side by side")
        both.show(view_compare.rows(sides))
        self.replot()

    def _headline(self) -> None:
        self.query_one("#head", Words).show(view_compare.headline(self.sides, width=self.size.width))

    def on_resize(self) -> None:
        if self.ready:
            self._headline()

    def plotted(self) -> tuple[Metric, ...]:
        return view_compare.every(self.sides)

    def replot(self) -> None:
        self.query_one("#plot", PlotPane).show(view_compare.chart(self.sides, self.app.plot_view))

    def action_back(self) -> None:
        self.app.pop_screen()


def ask_other(app: SwarmApp, at: RunAt) -> None:
    """Compare a run with one that is chosen from a list."""
    views = app.home.home.mailboxes if app.home is not None else ()
    found = [(RunAt(v.location, s.run), s) for v in views for s in v.runs if RunAt(v.location, s.run) != at]
    if not found:
        app.toast("there is no other run to compare with")
        return
    mine = next((s for v in views for s in v.runs if RunAt(v.location, s.run) == at), None)
    found.sort(key=lambda pair: (not _alike(pair[1], mine), pair[1].name))
    several = len({other.mailbox for other, _ in found} | {at.mailbox}) > 1
    options = []
    for n, (other, state) in enumerate(found[:_OFFERED]):
        where = f"  {text.short_path(text.plain(other.mailbox, 40), app.home_folder)}" if several else ""
        options.append(Option(f"run-{n}", f"{text.plain(state.name, 40)}  {state.phase}{where}"))
    words: tuple[Line, ...] = (((f"Draw {text.plain(mine.name if mine else at.run, 40)} with which run?", "strong"),),)
    if len(found) > _OFFERED:
        words += (
            ((f"{len(found) - _OFFERED} more: mark them on Home with {pressed(app.keys, Place.HOME, 'compare')}", "dim"),),
        )

    def answered(answer: str | None) -> None:
        if answer is not None and answer != CANCEL.value:
            app.push_screen(CompareScreen(at, found[int(answer.removeprefix("run-"))][0]))

    app.push_screen(Choice("Compare", words, (*options, CANCEL), focus="run-0"), answered)


def _alike(state: RunState, mine: RunState | None) -> bool:
    """Whether two runs train the same task, by the same method: those are compared most."""
    one, other = state.manifest, mine.manifest if mine is not None else None
    return (
        one is not None
        and other is not None
        and (type(one.algorithm), one.task.name) == (type(other.algorithm), other.task.name)
    )
