"""A machine that stands by: it looks for runs in the mailboxes that it knows, and takes part in them, one at a time.

What to join, and when to try again, is decided in core/standby.py; here it is seen and done. Workers run in the foreground
of this process: whatever ends it, they leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.handlers
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from swarm import api, launcher
from swarm.core import standby
from swarm.core.errors import UsageError, WorkerFailed
from swarm.core.events import Ended, Failed, Freed, Held, Joined, WorkerEvent
from swarm.core.jobs import Process
from swarm.core.standby import Candidate, Outcome, Pace, Rules, Standing, Why
from swarm.core.standbywords import (
    Busy,
    GivesBack,
    HoldsStill,
    JoinedNoMore,
    Joins,
    MailboxBack,
    MailboxLost,
    NothingToDo,
    RunGivenUp,
    StandsBy,
    StandsDown,
    Told,
    WorkerLost,
)
from swarm.core.state import RunState
from swarm.host.children import ending
from swarm.host.identity import PROCESS, boot_id, note_process, started
from swarm.host.paths import state_dir
from swarm.watch import Home, HomeWatch

TICK_S = 0.2  # between two looks at a worker
ACTIVE = ("starting", "running")
LOG_BYTES = 1 << 20  # of one file; a few of them are kept
LOGS_KEPT = 3


def home() -> Path:
    """The folder with what a machine that stands by keeps."""
    return state_dir() / "standby"


def log_file() -> Path:
    return home() / "log.txt"


def other() -> int | None:
    """The pid of another process of this machine that stands by; None if there is none."""
    try:
        process = msgspec.json.decode((home() / PROCESS).read_bytes(), type=Process)
    except (OSError, msgspec.MsgspecError):
        return None
    alive = process.boot == boot_id() and started(process.pid) == process.process
    return process.pid if alive and process.pid != os.getpid() else None


def _note() -> None:
    """That this process stands by. Raises UsageError if that cannot be written."""
    try:
        home().mkdir(parents=True, exist_ok=True)
        note_process(home(), os.getpid())
    except OSError as error:
        raise UsageError(f"{home()} cannot be written: {error.strerror} (SWARM_STATE_DIR names another folder)") from error


class Log:
    """One file for all of it, of bounded size: what came before is beside it, numbered."""

    def __init__(self) -> None:
        self._logger: logging.Logger | None = None

    def open(self) -> None:
        """Raises UsageError if it cannot be written."""
        path = log_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(
                path, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT, encoding="utf-8", errors="replace"
            )
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror} (SWARM_STATE_DIR names another folder)") from error
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk must end nothing
        self._logger = logging.Logger("swarm.standby")
        self._logger.addHandler(handler)

    def __call__(self, line: str) -> None:
        if self._logger is not None:
            self._logger.info("%s", line)


class _Ledger:
    """The runs that are not to be joined any more, kept in a file: jobs are forgotten one day."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Why]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Why])
        except (OSError, msgspec.MsgspecError):
            return {}

    def write(self, barred: Mapping[str, Why]) -> None:
        staged = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            staged.write_bytes(msgspec.json.format(msgspec.json.encode(barred)))
            staged.replace(self._path)


class Standby:
    def __init__(
        self,
        rules: Rules,
        learner: Mapping[str, Any],
        *,
        mailbox: str | None,
        owner: str = "",
        held: Callable[[], str] | None = None,
        tell: Callable[[Told], None],
        heard: Callable[[str, WorkerEvent], None],
        pace: Pace | None = None,
    ) -> None:
        """`learner`: arguments of `api.learn_order`. `mailbox`: the only one to look at; None: all that are known, asked for
        again and again. `owner`: when this machine trains, in words; `held`: why it is to hold still now, '' if it is not;
        None: it never is. `tell` is called with what this does, `heard` with (run, event) for all that its worker tells."""
        self.workers: list[launcher.Worker] = []  # the one that runs, if any
        self._rules, self._learner, self._mailbox, self._owner = rules, dict(learner), mailbox, owner
        self._held = held
        self._tell, self._heard, self._pace = tell, heard, pace or Pace()
        self._standing = Standing()
        self._ledger = _Ledger(home() / "barred.json")
        self._lost: dict[str, str] = {}  # by mailbox: why it was last told to be away
        self._refused: tuple[str, ...] | None = None  # as was last told
        self._busy = ""  # the job that is waited for
        self._still = ""  # why nothing is joined for now, as was last told

    async def run(self, asked: Callable[[], int]) -> None:
        """Until `asked` says, more than 0 times, that this is to end. Raises UsageError if another one stands by here."""
        if (pid := other()) is not None:
            raise UsageError(f"this machine stands by already: process {pid}, whose log is {log_file()}")
        _note()
        self._standing = msgspec.structs.replace(self._standing, barred=self._ledger.read())
        watch = HomeWatch(None if self._mailbox is None else (self._mailbox,))
        places = api.known_mailboxes() if self._mailbox is None else (self._mailbox,)
        self._tell(StandsBy(mailboxes=places, rules=self._rules.words(), owner=self._owner, log=str(log_file())))
        try:
            while not asked():
                seen = await self._looked(watch, asked)
                if seen is None:
                    break
                chosen = self._chosen(seen)
                if chosen is None or await self._holds_still():
                    await self._pass(self._pace.look_s, asked)
                else:
                    await self._take_part(chosen, asked)
        finally:
            self._tell(StandsDown())
            with contextlib.suppress(OSError):
                (home() / PROCESS).unlink()

    # Looking

    async def _looked(self, watch: HomeWatch, asked: Callable[[], int]) -> Home | None:
        """The mailboxes now; None if this is to end meanwhile: a share that hangs is not waited for."""
        looking = asyncio.ensure_future(watch.poll())
        while not (await asyncio.wait({looking}, timeout=TICK_S))[0]:
            if asked():
                looking.cancel()
                return None
        return looking.result()

    def _chosen(self, seen: Home) -> Candidate | None:
        now_s = asyncio.get_running_loop().time()
        self._say_lost(seen)
        self._look_at_jobs(seen.jobs)
        busy = next((job for job in seen.jobs if job.state in ACTIVE), None)
        if busy is not None:
            if busy.id != self._busy:
                self._tell(Busy(job=busy.id, name=busy.run_name))
            self._busy, self._refused = busy.id, None
            return None
        self._busy = ""
        candidates = [
            candidate(view.location, state)
            for view in seen.mailboxes
            if not view.problem
            for state in view.runs
            if not state.lost
        ]
        chosen = standby.choose(candidates, self._rules, self._standing, now_s=now_s)
        if chosen is None:
            reasons = [(c.name, standby.refusal(c, self._rules, self._standing, now_s=now_s)) for c in candidates]
            refused = tuple(sorted(f"{name}: {why}" for name, why in reasons))
            if refused != self._refused and not any(why == standby.SOON for _, why in reasons):
                self._refused = refused
                self._tell(NothingToDo(refused=refused))
        else:
            self._refused = None
        return chosen

    def _say_lost(self, seen: Home) -> None:
        for view in seen.mailboxes:
            if view.problem and view.location not in self._lost:
                self._tell(MailboxLost(mailbox=view.location, reason=view.problem, remedy=view.remedy))
            elif not view.problem and view.location in self._lost:
                self._tell(MailboxBack(mailbox=view.location))
        self._lost = {view.location: view.problem for view in seen.mailboxes if view.problem}

    def _look_at_jobs(self, jobs: tuple[launcher.Job, ...]) -> None:
        """What became of this machine's jobs: newest first."""
        newest: dict[str, Why | None] = {}
        for job in jobs:
            if job.run not in newest:
                left = job.state == "left" and job.by_hand
                # One that was ended with this process says nothing of what a person wants.
                if job.state == "left" and not left:
                    continue
                newest[job.run] = "dropped" if job.state == "dropped" else "left" if left else None
        barred = standby.barred(self._standing.barred, newest)
        if barred != self._standing.barred:
            self._standing = msgspec.structs.replace(self._standing, barred=barred)
            self._ledger.write(barred)

    async def _holds_still(self) -> bool:
        """Whether this machine's owner comes first, so that no worker is started."""
        reason = "" if self._held is None else await asyncio.to_thread(self._held)
        if reason and reason != self._still:
            self._tell(HoldsStill(reason=reason))
        self._still = reason
        return bool(reason)

    async def _pass(self, wait_s: float, asked: Callable[[], int]) -> None:
        until_s = asyncio.get_running_loop().time() + wait_s
        while not asked() and asyncio.get_running_loop().time() < until_s:  # noqa: ASYNC110  # a signal handler tells it
            await asyncio.sleep(min(TICK_S, wait_s))

    # Taking part

    async def _take_part(self, chosen: Candidate, asked: Callable[[], int]) -> None:
        now = asyncio.get_running_loop().time
        order = api.learn_order(chosen.mailbox, chosen.run, run_name=chosen.name, **self._learner)
        try:
            worker = launcher.start(order, foreground=True)
        except WorkerFailed as error:
            self._after(chosen, standby.Crashed(str(error)), good=False, log="")
            return
        before = self._standing.tried.get(chosen.run)
        failures = 0 if before is None else before.failures
        self._tell(Joins(run=chosen.run, name=chosen.name, mailbox=chosen.mailbox, job=worker.job.name, failures=failures))
        told = _Told()
        self.workers.append(worker)
        try:
            await self._follow(chosen, worker, told)
        finally:
            self.workers.remove(worker)
            if worker.process.stdin is not None:
                worker.process.stdin.close()  # where this ends for another reason, the worker leaves
        if asked():
            return
        self._look_at_jobs(api.jobs())
        if (why := self._standing.barred.get(chosen.run)) is not None:
            self._tell(JoinedNoMore(run=chosen.run, name=chosen.name, why=why))
            return
        good = told.joined_at_s is not None and now() - told.joined_at_s >= self._pace.good_s
        self._after(chosen, told.outcome(worker), good=good, log=str(worker.job / "log.txt"))

    async def _follow(self, chosen: Candidate, worker: launcher.Worker, told: _Told) -> None:
        """Until the worker has ended."""
        now = asyncio.get_running_loop().time
        over = gives_back = False
        while not over:
            over = worker.process.poll() is not None  # before its events: what it said last is not missed
            for event in worker.events.read():
                told.take(event, now())
                self._heard(chosen.run, event)
            if not gives_back and told.held_at_s is not None and now() - told.held_at_s >= self._pace.held_s:
                gives_back = True
                self._tell(GivesBack(run=chosen.run, name=chosen.name, after_s=self._pace.held_s))
                worker.interrupt()
            if not over:
                await asyncio.sleep(TICK_S)

    def _after(self, chosen: Candidate, how: Outcome, *, good: bool, log: str) -> None:
        now_s = asyncio.get_running_loop().time()
        self._standing, verdict = standby.ended(
            self._standing, chosen.run, how, good=good, now_s=now_s, draw=random.random(), pace=self._pace
        )
        message = "" if isinstance(how, standby.Finished) else how.message
        match verdict:
            case standby.Again(after_s):
                self._tell(WorkerLost(run=chosen.run, name=chosen.name, message=message, log=log, again_s=after_s))
            case standby.GivenUp(failures, for_s):
                self._tell(
                    RunGivenUp(run=chosen.run, name=chosen.name, message=message, log=log, failures=failures, for_s=for_s)
                )
            case standby.Done():
                pass


class _Told:
    """What a worker has told of its life."""

    def __init__(self) -> None:
        self.joined_at_s: float | None = None
        self.held_at_s: float | None = None  # since when it holds still for this machine's owner
        self._failed: Failed | None = None
        self._ended = False

    def take(self, event: WorkerEvent, now_s: float) -> None:
        match event:
            case Joined():
                self.joined_at_s = now_s
            case Held() if self.held_at_s is None:
                self.held_at_s = now_s
            case Freed():
                self.held_at_s = None
            case Failed():
                self._failed = event
            case Ended():
                self._ended = True
            case _:
                pass

    def outcome(self, worker: launcher.Worker) -> Outcome:
        code = worker.process.returncode
        failed = self._failed
        if failed is not None:
            message = failed.message
        else:
            last = launcher.last_words(worker.job)
            message = f"the worker {ending(code)}" + ("" if last == launcher.OUTSIDE else f": {last}")
        return standby.outcome(code=code, error=failed.error if failed else "", message=message, ended=self._ended)


def candidate(location: str, state: RunState) -> Candidate:
    """A run as the rules judge it."""
    manifest = state.manifest
    return Candidate(
        mailbox=location,
        run=state.run,
        name=state.name,
        method="" if manifest is None else str(type(manifest.algorithm).__struct_config__.tag),
        phase=state.phase,
        memory_bytes=0 if manifest is None else standby.memory_needed(manifest),
        program=manifest is not None and bool(api.foreign_program(manifest)),
    )
