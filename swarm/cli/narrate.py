"""Follows a worker in the foreground: what it does goes to stderr, as lines, and on a terminal as a progress line too."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from swarm import launcher
from swarm.cli import INTERRUPTS
from swarm.cli.common import put, say
from swarm.core import errors
from swarm.core.errors import INTERRUPTED
from swarm.core.events import (
    Created,
    Ended,
    Evaluated,
    Failed,
    Joined,
    Paused,
    Resumed,
    RoundClosed,
    Stepped,
    Training,
    Transfer,
    WorkerEvent,
)
from swarm.core.jobs import Learn
from swarm.core.sentences import number, plain, sentence, transferred
from swarm.host import settings
from swarm.host.children import ending
from swarm.host.notify import notify as run_notify

LOOK_S = 0.1
JOINING_S = 60.0  # a lease may have to run out before a learner id is free
_OF_THE_RUN = (RoundClosed, Evaluated, Paused, Resumed)


class Progress:
    """A line that is painted over, on a terminal only."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False
        self.clients: dict[str, str] = {}  # by learner: the client of FedAvg that it trains

    def show(self, text: str) -> None:
        if self._on:
            # One that wrapped could not be painted over.
            sys.stderr.write(f"\r\x1b[K{text[: _columns() - 1]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def _columns() -> int:
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def follow(orders: Sequence[Learn], *, as_json: bool = False, notify: Sequence[str] | None = None) -> int:
    """Run workers in the foreground until all have ended; the exit code. Ctrl-C lets them leave cleanly, a second ends them.
    `notify`: a command that is then told how it ended, unless Ctrl-C did that; None: that of the settings.

    The first makes the run if there is one to make, and the others start when it is there. One that fails ends no other.
    """
    first, *later = orders
    team = _Team(named=bool(later), as_json=as_json)
    with asked_to_leave(team.workers) as asked:
        team.asked = asked
        team.start(first)
        waits, told = first.create is not None, False
        while team.look() or later:
            if later and (asked() or not (team.running or team.created)):
                later = []  # nobody makes the run that they were to join
            elif later and (team.created or not waits):
                team.start(later.pop(0))
                continue
            if asked() and not told and team.running:
                told = True
                team.progress.clear()
                if sys.stderr.isatty():
                    say("")  # the terminal has written ^C
                say("leaving: a snapshot already begun is finished (Ctrl-C again: at once)")
        team.progress.clear()
        if not asked():
            command = settings.load()[0].notify if notify is None else notify
            if problem := run_notify(command, team.news(first.run_name)):
                say(f"could not notify: {problem}")
        return INTERRUPTED if asked() else team.code


class _Team:
    """The workers that a command runs in the foreground."""

    def __init__(self, *, named: bool, as_json: bool) -> None:
        """`named`: lines begin with the learner's name."""
        self.workers: list[launcher.Worker] = []
        self.progress = Progress()
        self.created = False
        self.asked: Callable[[], int] = lambda: 0  # how often they were asked to leave
        self._codes: list[tuple[int, bool]] = []  # of those that failed, and whether it was for coming too late
        self._named, self._as_json = named, as_json
        self._members: list[_Member] = []
        self._told: set[tuple[str, int]] = set()  # of the run itself: by kind and round

    def start(self, order: Learn) -> None:
        worker = launcher.start(order, foreground=True)
        self.workers.append(worker)
        if self.asked() and not worker.asked:  # while it was started, and nobody knew of it
            worker.interrupt()
        self._members.append(_Member(worker, order.learner))

    @property
    def code(self) -> int:
        """Of the first that failed. One that was not ready before the others had ended the run has not."""
        ended = any(member.last is not None and member.last.reason in ("done", "stopped") for member in self._members)
        return next((code for code, late in self._codes if not (late and ended)), 0)

    def news(self, run: str) -> str:
        """How it ended, for a person who is elsewhere."""
        name = plain(run, 64)
        failed = next((member.failed for member in self._members if member.failed is not None), None)
        if self.code:
            why = plain(failed.message, 150) if failed is not None else "its worker ended"
            return f"run {name} has lost this machine: {why}"
        reasons = [member.last.reason for member in self._members if member.last is not None]
        return f"run {name} {'was stopped' if 'stopped' in reasons else 'is done' if 'done' in reasons else 'was left'}"

    @property
    def running(self) -> bool:
        return any(not member.over for member in self._members)

    def look(self) -> bool:
        """Wait a moment, and tell what is new; whether any still runs."""
        for member in self._members:
            if not member.over:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    member.worker.process.wait(LOOK_S / len(self._members))
                self._look_at(member)
        return self.running

    def _look_at(self, member: _Member) -> None:
        over = member.worker.process.poll() is not None
        for event in member.worker.events.read():
            if isinstance(event, Joined):
                member.learner = event.learner
            if self._as_json:
                put({"learner": member.learner, **msgspec.to_builtins(event)} if self._named else event)
            if isinstance(event, Created):
                self.created = True
            if isinstance(event, Ended):
                member.last = event  # said last: the worker goes on to write what it evaluated
                continue
            if isinstance(event, Failed):
                member.failed = event
            self._tell(event, member)
        if not over:
            return
        member.over = True
        self.progress.clear()
        who = member.learner if self._named else ""
        if member.last is not None and member.failed is None:
            tell(member.last, self.progress, who)
        code = 0 if self.asked() else _ended(member.worker, member.failed, who)
        if code:
            self._codes.append((code, member.failed is not None and member.failed.error == errors.RunEnded.__name__))

    def _tell(self, event: WorkerEvent, member: _Member) -> None:
        """What is said of the run itself, and all would say, is told once."""
        if not self._named:
            tell(event, self.progress)
        elif isinstance(event, _OF_THE_RUN):
            kind = (type(event).__name__, event.round)
            if kind not in self._told:
                tell(event, self.progress)
            self._told.add(kind)
        else:
            tell(event, self.progress, member.learner)


class _Member:
    def __init__(self, worker: launcher.Worker, learner: str) -> None:
        self.worker, self.learner = worker, learner
        self.failed: Failed | None = None
        self.last: Ended | None = None
        self.over = False


@contextlib.contextmanager
def asked_to_leave(workers: list[launcher.Worker]) -> Iterator[Callable[[], int]]:
    """Meanwhile, whatever would end this process asks the workers to leave; a third time, they are killed. Gives how often."""
    times = 0

    def ask(*_: object) -> None:
        nonlocal times
        times += 1
        for worker in workers:
            if times <= 2:
                worker.interrupt()
            else:
                worker.process.kill()

    heard = [which for which in INTERRUPTS if signal.getsignal(which) == signal.default_int_handler]  # the others are ignored
    for which in heard:
        signal.signal(which, ask)
    try:
        yield lambda: times
    finally:
        for which in heard:
            signal.signal(which, signal.default_int_handler)


def detach(orders: Sequence[Learn], *, name: str, as_json: bool) -> int:
    """Start workers in the background and see each join, or fail: the exit code. Ctrl-C before that ends the one under way."""
    code = 0
    for order in orders:
        created, mine = _detach(order, name=name, as_json=as_json, who=order.learner if len(orders) > 1 else "")
        code = code or mine
        if mine and order.create is not None and not created:
            break  # there is no run that the others could join
    return code


def _detach(order: Learn, *, name: str, as_json: bool, who: str) -> tuple[bool, int]:
    """(whether it made the run, the exit code)."""
    worker = launcher.start(order, foreground=False)
    progress = Progress()
    created = joined = ended = False
    failed: Failed | None = None
    until_s = time.monotonic() + JOINING_S
    try:
        while not (joined or ended or time.monotonic() > until_s):
            ended = worker.process.poll() is not None
            for event in worker.events.read():
                if isinstance(event, Failed):
                    failed = event
                created = created or isinstance(event, Created)
                joined = joined or isinstance(event, Joined)
                tell(event, progress, who)
            if not ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(LOOK_S)
    except BaseException:
        worker.interrupt()
        raise
    finally:
        progress.clear()
    if ended and worker.process.returncode != 0:
        return created, _ended(worker, failed, who)
    how = "trains" if joined else "is not joined yet: it goes on trying"
    say(f"{plain(name)} {how} in the background: `swarm jobs`, `swarm logs {worker.job.name} -f`, `swarm leave`")
    if as_json:
        put({"job": worker.job.name, "run": order.run, "name": name})
    return created, 0


def _ended(worker: launcher.Worker, failed: Failed | None, who: str = "") -> int:
    """Say why a worker ended, unless its last words did; the exit code for it."""
    code: int = worker.process.returncode
    prefix = f"{who}: " if who else ""
    if code != 0 and failed is None:
        words = launcher.last_words(worker.job)
        say(f"{prefix}swarm: the worker {ending(code)}" + ("" if words == launcher.OUTSIDE else f": {plain(words, 300)}"))
    if code != 0 and not (failed is not None and hasattr(errors, failed.error)):  # nothing foreseen: the log says more
        say(f"{prefix}its log: {worker.job / 'log.txt'}")
    return 1 if code < 0 else code


def tell(event: WorkerEvent, progress: Progress, who: str = "") -> None:
    """One event, for people. `who` names the learner where several are followed."""
    prefix = f"{who}: " if who else ""
    line = sentence(event)
    if isinstance(event, Training):
        progress.clients[who] = event.unit
    if isinstance(event, Stepped):
        client = progress.clients.get(who)
        doing = f"round {event.round}  {f'{client}  ' if client else ''}step {event.step}/{event.steps_before}"
        loss = f"loss {number(event.loss)}  " if event.loss is not None else ""
        progress.show(f"{prefix}{doing}  {loss}{event.tokens_per_s:,.0f} {'samples' if client else 'tokens'}/s")
    elif isinstance(event, Transfer) and line is None:
        progress.show(f"{prefix}{transferred(event)}")
    elif line is not None:
        progress.clear()
        say(f"{prefix}{line}")


def until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Look until `done()`, at most `timeout_s`; whether it is."""
    started_s = time.monotonic()
    while not done():
        if time.monotonic() - started_s > timeout_s:
            return False
        time.sleep(LOOK_S)
    return True
