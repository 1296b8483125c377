"""The feed: reads the mailboxes on a thread of its own (tui/background.py), and posts frozen snapshots to the app.

The screens ask nothing back: they hand over a command and get a message when it has ended.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from swarm.api import RunState, Sightings
from swarm.api import doctor as doctors
from tui import text, view_log, view_refused, view_rounds
from tui.alarms import Watched, alarms
from tui.background import in_thread
from tui.keeping import Keeping
from tui.messages import (
    RUNNING_JOB,
    Alarmed,
    Answered,
    CommandEnded,
    HomePolled,
    HomeShown,
    JoinPolled,
    JoinShown,
    LogLine,
    NetworkPolled,
    NetworkShown,
    RunPolled,
    RunShown,
)
from tui.transitions import home_notes, mailbox_notes, run_notes

if TYPE_CHECKING:
    from swarm.api import Home, Job, Way
    from tui.asked import Question
    from tui.messages import (
        RunAt,
    )
    from tui.sources import Api, Doctor, HomeSource, RunSource
    from tui.transitions import Note

HOME_S = 2.0  # between two looks at all mailboxes
LOOK_S = 2.0  # between two looks at a run, at most: with longer gaps nobody could be told to be silent
KEPT = 300  # log lines and notes kept
ROUNDS_KEPT = 256  # round records and evaluations that stay whole; of all others there are curves
_LINE = 400  # characters of a log line
_TONES = {"information": "", "warning": "warn", "error": "bad"}
_LEVELS = {"information": "", "warning": "WARN ", "error": "ERROR "}


class Feed(Keeping):
    """`mailboxes`: locations to follow; None: those of the settings. `peers`, `interfaces`: addresses to ask, beside those of
    the settings, and where to look, in their place. `notify`: a command that is told the news, in place of theirs. `home_s`,
    `run_s`: seconds between two looks; None: as the settings' `interval_s` has it. `clock` is monotonic, `wall` the local time
    of day."""

    def __init__(
        self,
        api: Api,
        mailboxes: tuple[str, ...] | None = None,
        *,
        peers: Sequence[str] = (),
        interfaces: Sequence[str] = (),
        notify: Sequence[str] = (),
        home_s: float = HOME_S,
        run_s: float | None = None,
        doctor: Doctor = doctors,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        super().__init__(api, peers=peers, interfaces=interfaces, notify=notify, wall=wall)
        self._mailboxes, self._doctor = mailboxes, doctor
        self._home_s, self._given_run_s = home_s, run_s
        self._clock = clock
        self._watched = Watched()
        self._rescan = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self._asked: dict[type[Question], asyncio.Task[None]] = {}
        self._mounting = False
        self._examining: asyncio.Task[None] | None = None
        self._network: NetworkShown | None = None
        self._home: Home | None = None
        self._sightings = Sightings()
        self._noted = 0

    # Called by the app, on its thread.

    def show(self, at: RunAt | None) -> None:
        """Follow this run beside the mailboxes, and no other."""
        self._call(self._show, at)

    def check(self, at: RunAt | None, *, name: str = "") -> None:
        """Follow what stands between this machine and a run, and no other one."""
        self._call(self._check, at, name)

    def rescan(self) -> None:
        self._call(self._rescan.set)

    def examine(self) -> None:
        """Look at this machine, its network and the mailboxes, unless that is under way."""
        self._call(self._examine)

    def ask(self, question: Question) -> None:
        """Find the answer, which comes as a message; an older question of the same class is dropped."""
        self._call(self._ask, question)

    def join(self, at: RunAt) -> None:
        """`at` must name the mailbox's folder, which is remembered."""

        def work() -> None:
            self._api.start_join(at.mailbox, at.run)
            self._api.remember(at.mailbox)

        self._command("join", at.run, lambda: in_thread(work))

    def mount(self, at: RunAt, way: Way) -> None:
        """Mount a run's share, in this way: the next look may say another, which nobody has seen."""
        self._command("mount", at.run, lambda: self._mount(way))

    def add_peer(self, address: str) -> None:
        self._command("add the peer", address, lambda: self._add(address))

    def leave(self, job: str) -> None:
        self._command("leave", job, lambda: in_thread(self._api.leave, job))

    def stop(self, at: RunAt) -> None:
        self._command("stop", at.run, lambda: self._api.stop_run(at.mailbox, at.run))

    def pause(self, at: RunAt) -> None:
        self._command("pause", at.run, lambda: self._api.pause_run(at.mailbox, at.run))

    def resume(self, at: RunAt) -> None:
        self._command("resume", at.run, lambda: self._api.resume_run(at.mailbox, at.run))

    def drop(self, at: RunAt, learner: str) -> None:
        self._command("drop", at.run, lambda: self._api.drop_learner(at.mailbox, at.run, learner))

    def extend(self, at: RunAt, rounds: int | None) -> None:
        self._command("extend", at.run, lambda: self._api.extend_run(at.mailbox, at.run, rounds))

    def export(self, at: RunAt, file: str) -> None:
        self._command("export", file, lambda: in_thread(self._api.export_run, at.mailbox, at.run, file))

    # On the feed's own thread from here on.

    def _begin(self) -> None:
        self._spawn(self._follow_home())

    def _commanded(self) -> None:
        self._rescan.set()

    def _ask(self, question: Question) -> None:
        if (older := self._asked.get(type(question))) is not None:
            older.cancel()
        self._asked[type(question)] = self._spawn(self._answer(question))

    async def _answer(self, question: Question) -> None:
        value, problem = None, ""
        try:
            value = await question.answer(self._api)
        except Exception as error:  # whoever asked must read it
            problem = text.plain(str(error) or type(error).__name__, 500)
        self._post(Answered(question, value, problem))

    def _show(self, at: RunAt | None) -> None:
        if self._following is not None:
            self._following.cancel()
        self._following = None if at is None else self._spawn(self._follow_run(at))

    def _check(self, at: RunAt | None, name: str) -> None:
        if self._checking is not None:
            self._checking.cancel()
        self._checking = None if at is None else self._spawn(self._follow_join(at, name))

    async def _mount(self, way: Way) -> None:
        if self._mounting:
            return
        self._mounting = True
        try:
            problem = await in_thread(lambda: self._api.mount(way, quiet=True))
        finally:
            self._mounting = False
        if problem:
            raise RuntimeError(problem)

    async def _add(self, address: str) -> None:
        if self._near is not None:
            self._near.add(address)
            await in_thread(self._api.remember_peer, address)

    async def _follow_home(self) -> None:
        watch = self._api.HomeWatch(self._mailboxes)
        await self._read_settings()
        try:
            await self._listen()
            await self._look(watch)
        finally:
            if (near := self._near) is not None:
                near.close()

    @property
    def _run_s(self) -> float:
        """Between two looks at a run."""
        looks = math.ceil(self._interval_s / LOOK_S)  # between two paintings
        return self._interval_s / looks if self._given_run_s is None else self._given_run_s

    def _due(self, posted_s: float | None) -> bool:
        """Whether what is on screen may be painted anew."""
        interval_s = self._interval_s if self._given_run_s is None else 0.0
        return posted_s is None or self._clock() - posted_s > interval_s - 0.1

    def _alarm(self, home: Home, now_s: float) -> None:
        self._watched, raised = alarms(self._watched, home, now_s)
        for alarm in raised:
            self._post(Alarmed(alarm.run, alarm.text, toast=alarm.kind != "lost"))
            self._spawn(self._notify(alarm.text))

    async def _look(self, watch: HomeSource) -> None:
        home: Home | None = None
        posted_s: float | None = None
        notes: deque[Note] = deque(maxlen=KEPT)
        while True:
            began_s = self._clock()
            await self._read_settings()
            polled = await self._tried(watch.poll())
            now_s = self._clock()
            self._facts = replace(self._facts, home_polls=self._facts.home_polls + 1, home_poll_s=now_s - began_s)
            if polled is not None:
                notes.extend(self._numbered([*home_notes(home, polled), *mailbox_notes(home, polled)]))
                self._home = home = polled
                self._alarm(home, now_s)
                if self._hears and self._near is not None:
                    self._sightings = await self._tried(in_thread(self._near.poll, home)) or self._sightings
                if self._due(posted_s):
                    posted_s = now_s
                    shown = HomeShown(
                        home=home,
                        now_s=now_s,
                        polled_at_s=now_s,
                        faults=self._faults,
                        notes=tuple(notes),
                        sightings=self._sightings,
                    )
                    self._post(HomePolled(shown))
            self._tell_network()
            # Not wait_for: it may swallow a cancellation that comes with the event (Python 3.11).
            asked = asyncio.get_running_loop().create_task(self._rescan.wait())
            try:
                if (await asyncio.wait({asked}, timeout=self._home_s))[0]:
                    posted_s = None  # somebody waits for it
            finally:
                asked.cancel()
            self._rescan.clear()

    def _examine(self) -> None:
        if self._examining is None or self._examining.done():
            self._examining = self._spawn(self._follow_examination())

    async def _follow_examination(self) -> None:
        def told(found: doctors.Examination) -> None:
            self._tell_network(found)

        async def sight() -> Sightings:
            return self._sightings

        locations = [view.location for view in self._home.mailboxes] if self._home is not None else self._mailboxes
        found = await self._tried(self._doctor.examine(locations, sight=sight, told=told))
        if found is None:
            self._post(CommandEnded("check", "network", self._problem))
            return
        report = await self._tried(in_thread(self._doctor.report, found)) or ""
        self._tell_network(found, report=report)

    def _tell_network(self, found: doctors.Examination | None = None, *, report: str = "") -> None:
        """Post what is known: of an examination, if there was one yet, and who is seen just now."""
        if found is not None:
            self._network = NetworkShown(found, Sightings(), 0.0, report)
        if self._network is not None:
            now_s, seen = self._clock(), self._sightings
            whole = doctors.refreshed(self._network.found, seen, now_s)
            now = replace(self._network, found=whole, sightings=seen, now_s=now_s)
            self._network = now
            self._post(NetworkPolled(now))

    async def _follow_run(self, at: RunAt) -> None:
        watch = self._api.RunWatch(at.mailbox, at.run, keep=ROUNDS_KEPT)
        shown = RunShown(at=at, state=RunState(run=at.run), now_s=self._clock())
        seen: RunState | None = None
        tail: tuple[str, ...] = ()
        log: deque[LogLine] = deque(maxlen=KEPT)
        notes: deque[Note] = deque(maxlen=KEPT)
        polling: asyncio.Task[RunState | None] | None = None
        posted_s: float | None = None
        try:
            while True:
                began_s = self._clock()
                if polling is None:
                    asked_s = began_s
                    polling = asyncio.get_running_loop().create_task(self._polled(watch))
                await asyncio.wait({polling}, timeout=self._run_s)
                now_s = self._clock()
                if polling.done():
                    shown = replace(shown, poll_s=now_s - asked_s)
                    state, polling = polling.result(), None
                    self._facts = replace(self._facts, run_polls=self._facts.run_polls + 1, run_poll_s=now_s - began_s)
                    shown = replace(shown, problem=self._problem if state is None else "", heard=self._heard)
                    if state is not None:
                        fresh = self._numbered(run_notes(seen, state))
                        notes.extend(fresh)
                        # A worker of this machine tells its rounds itself.
                        told = [n for n in fresh if n.toast or not shown.running]
                        log.extend(LogLine(f"{n.at} {_LEVELS[n.severity]}{n.text}", _TONES[n.severity]) for n in told)
                        if seen is not None and state.open_round != shown.state.open_round:
                            shown = replace(shown, round_since_s=now_s)
                        seen = state
                        since_s = shown.quorum_since_s if state.open_round == shown.state.open_round else None
                        since_s = (since_s if since_s is not None else now_s) if view_rounds.has_quorum(state) else None
                        kept_out = view_refused.refused(state, self._sightings, self._mailbox_id(at.mailbox))
                        shown = replace(shown, state=state, quorum_since_s=since_s, refused=kept_out)
                was, shown = shown.job, replace(shown, jobs=await self._jobs(at))
                if (job := shown.job) is not None:
                    if was is None or was.id != job.id:
                        tail = ()
                    lines = await self._tried(in_thread(self._api.log_tail, job.id)) or ()
                    log.extend(LogLine(text.plain(line, _LINE), view_log.tone(line)) for line in fresh_lines(tail, lines))
                    tail = lines
                shown = replace(shown, now_s=now_s, sightings=self._sightings, notes=tuple(notes), log=tuple(log))
                if self._due(posted_s):
                    posted_s = now_s
                    self._post(RunPolled(shown))
                await asyncio.sleep(max(0.0, self._run_s - (self._clock() - began_s)))
        finally:
            if polling is not None:
                polling.cancel()

    async def _polled(self, watch: RunSource) -> RunState | None:
        """The run now; of a long history as much as can be read until the next snapshot is due."""
        until_s = self._clock() + self._run_s
        while True:
            state = await self._tried(watch.poll())
            if state is None or state.lost or not watch.behind or self._clock() >= until_s:
                return state

    async def _follow_join(self, at: RunAt, name: str) -> None:
        watch = self._api.JoinWatch(at.run, name=name, location=at.mailbox or None)
        before: frozenset[str] | None = None
        while True:
            began_s = self._clock()
            joining = await self._tried(watch.poll(self._sightings))
            jobs = await self._jobs(at)
            if before is None:  # what ended before somebody came here is no answer to a key that is pressed here
                before = frozenset(job.id for job in jobs if job.state not in RUNNING_JOB)
            if joining is not None:
                job = next((job for job in jobs if job.id not in before), None)
                shown = JoinShown(at=at, joining=joining, now_s=self._clock(), job=job, mounting=self._mounting)
                self._post(JoinPolled(shown))
            await asyncio.sleep(max(0.1, min(1.0, self._run_s) - (self._clock() - began_s)))

    def _mailbox_id(self, location: str) -> str:
        views = self._home.mailboxes if self._home is not None else ()
        return next((view.id for view in views if view.location == location), "")

    @property
    def _heard(self) -> bool | None:
        return None if self._near is None else heard(self._sightings)

    async def _jobs(self, at: RunAt) -> tuple[Job, ...]:
        jobs = await self._tried(in_thread(self._api.jobs)) or ()
        return tuple(job for job in jobs if job.run == at.run)

    def _numbered(self, notes: Iterable[Note]) -> list[Note]:
        numbered = []
        for note in notes:
            self._noted += 1
            numbered.append(replace(note, n=self._noted, at=self._wall()))
        return numbered


def heard(sightings: Sightings) -> bool:
    """Whether the network, by itself, tells of any other machine or of a run."""
    others = (peer for peer in sightings.peers if not peer.itself)
    return any("network" in run.how for run in sightings.runs) or any("network" in peer.how for peer in others)


def fresh_lines(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of `after` that come behind those of `before`, both being ends of one growing log."""
    for known in range(min(len(before), len(after)), 0, -1):
        if before[-known:] == after[:known]:
            return after[known:]
    return after
