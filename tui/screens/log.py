"""Log: what this machine's worker wrote, followed; without one, what this screen has seen happen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tui import view_log
from tui.asked import Question
from tui.background import in_thread
from tui.commands import Place, bindings
from tui.messages import RUNNING_JOB
from tui.screens.dialogs import FilterBar
from tui.screens.reading import ReadingScreen
from tui.widgets.toned import Words

if TYPE_CHECKING:
    from swarm.api import Job
    from tui.messages import Answered, RunAt
    from tui.sources import Api
    from tui.transitions import Note

KEPT = 2000  # lines
EVERY_S = 1.0


@dataclass(frozen=True)
class LogOf(Question):
    """The end of a job's log."""

    job: str
    lines: int

    async def answer(self, api: Api) -> tuple[str, ...]:
        return await in_thread(api.log_tail, self.job, self.lines)


class LogScreen(ReadingScreen):
    BINDINGS: ClassVar = bindings(Place.LOG)
    PLACES = (Place.LOG,)
    FOLLOW = True

    def __init__(self, at: RunAt, *, job: str = "") -> None:
        """`job`: whose log; '': that of this machine's worker in the run, if it has one."""
        super().__init__(at)
        self._chosen = job
        self._read: tuple[str, tuple[str, ...]] = ("", ())  # a job, and the end of its log
        self._problem = ""
        self._least = 0
        self._filter = ""
        self._waits = False  # for an answer
        self._view: tuple[object, ...] = ()  # what of it is shown

    def on_mount(self) -> None:
        self.set_interval(EVERY_S, self._look)
        self._look()

    def _look(self) -> None:
        """Ask for the log, unless the last question has no answer yet: a file system may hang, too."""
        if self.is_active and not self._waits and (job := self.job) is not None:
            self._waits = True
            self.app.feed.ask(LogOf(job.id, KEPT))

    @property
    def jobs(self) -> tuple[Job, ...]:
        """This machine's in the run, those that run first."""
        at_home = self.app.home.home.jobs if self.app.home is not None else ()
        known = self.newest.jobs if self.newest is not None else tuple(job for job in at_home if job.run == self.at.run)
        return tuple(sorted(known, key=lambda job: job.state not in RUNNING_JOB))

    @property
    def job(self) -> Job | None:
        return next((job for job in self.jobs if job.id == self._chosen), next(iter(self.jobs), None))

    @property
    def _notes(self) -> tuple[Note, ...]:
        if self.newest is not None:
            return self.newest.notes
        return self.app.home.notes if self.app.home is not None else ()

    def update(self) -> None:
        if not self.ready:
            return
        job, filter = self.job, self._filter
        banner = self.query_one("#banner", Words)
        if job is None:
            self.head((("swarm ▸ ", "dim"), ("what has happened since this run was opened here", "strong")))
            why = (("no worker of this machine is in the run: each machine has its own logs", "dim"),)
            banner.show(why)
            shown = view_log.note_lines(self._notes, least=self._least, filter=filter)
            empty = "nothing has happened yet" if not self._notes else "nothing that is shown here"
        else:
            told = self._read[1] if self._read[0] == job.id else ()
            self.head((("swarm ▸ ", "dim"), *view_log.heading(job, len(told))))
            problem = (((f"✗ {self._problem}", "bad"),),) if self._problem else ()
            banner.show(*view_log.banner(job, self.app.home_folder), *problem)
            shown = view_log.lines(told, least=self._least, filter=filter)
            empty = "nothing that is shown here" if told else "it is read …" if self._read[0] != job.id else "it is empty"
        marks = f"{view_log.LEVELS[self._least]}" + (f"  / {filter}" if filter else "")
        self.text.title(f"Log  {marks}", self.text.follows)
        view = (job.id if job is not None else "", self._least, filter, bool(shown))
        if self.text.following or view != self._view:  # else the end that is read would move under the reader's eyes
            self._view = view
            self.show(shown or (((empty, "dim"),),))
        self.refresh_bindings()

    def answered(self, message: Answered) -> None:
        question = message.question
        if isinstance(question, LogOf) and question.lines == KEPT:
            self._waits = False
            self._problem = message.problem
            if isinstance(message.value, tuple):
                self._read = (question.job, message.value)
            if self.is_active:
                self.update()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return len(self.jobs) > 1 if action == "other" else True

    def action_filter(self) -> None:
        self.app.push_screen(FilterBar(self._filter, self._narrow))

    def _narrow(self, filter: str) -> None:
        self._filter = filter[:80]
        self.update()

    def action_level(self) -> None:
        self._least = (self._least + 1) % len(view_log.LEVELS)
        self.update()

    def action_other(self, step: int) -> None:
        ids = [job.id for job in self.jobs]
        if ids and (job := self.job) is not None:
            self._chosen = ids[(ids.index(job.id) + step) % len(ids)]
            self.update()
            self._waits = False
            self._look()
