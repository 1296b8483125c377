"""Learner: one participant of a run, its machine, its work and how its snapshots fared."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult

from tui import questions, view_learner, view_log
from tui.commands import Place, bindings
from tui.screens.log import LogOf, LogScreen
from tui.screens.reading import ReadingScreen, others
from tui.view_run import droppable, stoppable
from tui.widgets.keybar import KeyBar
from tui.widgets.toned import Lines, Words

if TYPE_CHECKING:
    from swarm.api import Job
    from tui.messages import Answered, RunAt

_TAIL = 200  # lines of its log


class LearnerScreen(ReadingScreen):
    BINDINGS: ClassVar = bindings(Place.LEARNER)
    PLACES = (Place.LEARNER,)

    def __init__(self, at: RunAt, learner: str) -> None:
        super().__init__(at)
        self.learner = learner
        self._told: tuple[str, tuple[str, ...]] = ("", ())  # a job, and the end of its log
        self._waits = ""  # for the log of this job: a question that is asked again and again gets no answer

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        yield Words(id="banner")
        yield Lines(id="text")
        yield Lines(follow=True, id="log")
        yield KeyBar(*self.PLACES)

    @property
    def _job(self) -> Job | None:
        return view_learner.job_of(self.newest, self.learner) if self.newest is not None else None

    def update(self) -> None:
        shown = self.newest
        if not self.ready or shown is None:
            return
        self.head(view_learner.heading(shown, self.learner))
        chosen = self.app.settings
        lines = view_learner.learner_lines(
            shown, self.learner, width=self.width, price_per_kwh=chosen.price_per_kwh, currency=chosen.currency
        )
        self.text.title(f"Learner {self.learner}", others(self.app.keys, Place.LEARNER, "other(-1)", "other(1)"))
        self.show(lines)
        log, job = self.query_one("#log", Lines), self._job
        if job is None:
            log.title("Log")
            log.show((((view_learner.log_words(shown, self.learner), "dim"),),))
        else:
            if self._waits != job.id:
                self._waits = job.id
                self.app.feed.ask(LogOf(job.id, _TAIL))
            told = self._told[1] if self._told[0] == job.id else ()
            log.title("Log", "follow ●" if log.following else "follow ○")
            log.show(view_log.lines(told) or ((("its log is read …", "dim"),),))
        self.refresh_bindings()

    def on_screen_resume(self) -> None:
        self._waits = ""  # its log, opened from here, has taken the question's place

    def answered(self, message: Answered) -> None:
        question = message.question
        if not isinstance(question, LogOf) or question.lines != _TAIL or question.job != self._waits:
            return
        self._waits = ""
        if isinstance(message.value, tuple):
            self._told = (question.job, message.value)
        if self.is_active and (job := self._job) is not None and job.id == question.job:
            words = ((f"✗ {message.problem}", "bad"),) if message.problem else (("it is empty", "dim"),)
            self.query_one("#log", Lines).show(view_log.lines(self._told[1]) or (words,))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        shown = self.newest
        match action:
            case "log":
                return self._job is not None
            case "drop":
                return shown is not None and stoppable(shown.state) and self.learner in droppable(shown.state)
            case "other":
                return shown is not None and len(view_learner.everybody(shown.state)) > 1
            case _:
                return True

    def action_other(self, step: int) -> None:
        names = view_learner.everybody(self.newest.state) if self.newest is not None else ()
        if names:
            at = names.index(self.learner) if self.learner in names else 0
            self.learner = names[(at + step) % len(names)]
            self.text.first()
            self.update()

    def action_log(self) -> None:
        if (job := self._job) is not None:
            self.app.push_screen(LogScreen(self.at, job=job.id))

    def action_drop(self) -> None:
        if self.newest is not None:
            questions.ask_drop(self.app, self.at, self.newest.state, self.learner)
