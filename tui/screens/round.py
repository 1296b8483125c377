"""Round: one closed round, and from there any other; of a data-parallel job one generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from swarm.api import ClosedRound, held_round
from tui import text, view_ranks, view_round
from tui.asked import Question
from tui.commands import Place, bindings, pressed
from tui.screens.dialogs import Ask
from tui.screens.reading import ReadingScreen, others
from tui.view_run import name

if TYPE_CHECKING:
    from swarm.api import RunState
    from tui.messages import Answered, RunAt
    from tui.sources import Api
    from tui.widgets.toned import Line


@dataclass(frozen=True)
class RoundOf(Question):
    """A round whose record no screen holds."""

    at: RunAt
    round: int

    async def answer(self, api: Api) -> ClosedRound:
        return await api.read_round(self.at.mailbox, self.at.run, self.round)


class RoundScreen(ReadingScreen):
    BINDINGS: ClassVar = bindings(Place.ROUND)
    PLACES = (Place.ROUND,)

    def __init__(self, at: RunAt, number: int | None) -> None:
        """`number`: None: the newest one, whichever that is."""
        super().__init__(at)
        self._number = number
        self._asked: int | None = None  # read from the mailbox, or about to be
        self._read: ClosedRound | None = None
        self._problem = ""

    @property
    def _state(self) -> RunState | None:
        return self.newest.state if self.newest is not None else None

    @property
    def last(self) -> int:
        """Of the newest round that has closed, or the newest generation; -1: there is none."""
        state = self._state
        if state is None:
            return -1
        if view_ranks.parallel(state):
            return state.ranks.generations[-1].generation if state.ranks.generations else -1
        return state.open_round - 1

    @property
    def number(self) -> int:
        """Of the one on screen."""
        return self.last if self._number is None else self._number

    def update(self) -> None:
        state = self._state
        if not self.ready or state is None:
            return
        job = view_ranks.parallel(state)
        what = "generation" if job else "round"
        of = f" of 0 to {self.last}" if self.last > 0 else ""
        newest = "  the newest" if self.number == self.last else ""
        self.head((("swarm ▸ ", "dim"), (f"{name(state)} ▸ {what} {self.number}", "strong"), (f"{of}{newest}", "dim")))
        there = others(self.app.keys, Place.ROUND, "older", "newer")
        self.text.title(
            f"{what.capitalize()} {self.number}", f"{there}  {pressed(self.app.keys, Place.ROUND, 'number')} number"
        )
        self.show(self._lines(state, job=job))
        self.refresh_bindings()

    def _lines(self, state: RunState, *, job: bool) -> tuple[Line, ...]:
        if self.last < 0:
            return ((("none yet", "dim"),),)
        if job:
            return tuple(view_ranks.generation_details(state, self.number))
        found = held_round(state, self.number)
        if found is None and self._asked == self.number:
            found = self._read
        elif found is None:
            self._asked, self._read, self._problem = self.number, None, ""
            self.app.feed.ask(RoundOf(self.at, self.number))
        if found is None:
            return (((f"✗ {self._problem}", "bad") if self._problem else ("reading it …", "dim"),),)
        return tuple(view_round.round_lines(state, found, width=self.width))

    def answered(self, message: Answered) -> None:
        question = message.question
        if isinstance(question, RoundOf) and question.at == self.at and question.round == self._asked:
            self._read = message.value if isinstance(message.value, ClosedRound) else None
            self._problem = message.problem
            if self.is_active:
                self.update()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        match action:
            case "older" | "first":
                return self.number > 0
            case "newer":
                return self.number < self.last
            case "number":
                return self.last > 0
            case _:
                return True

    def go(self, number: int | None) -> None:
        """`number`: None: the newest one from now on."""
        self._number = None if number is None else max(0, min(number, self.last))
        self.text.first()
        self.update()

    def action_older(self) -> None:
        self.go(self.number - 1)

    def action_newer(self) -> None:
        self.go(self.number + 1)

    def action_first(self) -> None:
        self.go(0)

    def action_newest(self) -> None:
        self.go(None)

    def action_number(self) -> None:
        def answered(answer: str | None) -> None:
            if answer is None:
                return
            if answer.isdecimal() and len(answer) < 12 and int(answer) <= self.last:
                self.go(int(answer))
            else:
                self.app.toast(f"{text.plain(answer, 20)} is no number from 0 to {self.last}", "warning")

        self.app.push_screen(
            Ask("Go to", (((f"Which one, from 0 to {self.last}?", ""),),), placeholder=str(self.number)), answered
        )
