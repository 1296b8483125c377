"""A machine that stands by: it looks for runs in the mailboxes that it knows, and takes part in them, one at a time.

What to join, and when to try again, is decided in core/standby.py; here it is seen and done. Workers run in the foreground
of this process: whatever ends it, they leave.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from swarm import api, launcher
from swarm.core import standby
from swarm.core.errors import WorkerFailed
from swarm.core.events import Ended, Failed, Freed, Held, Joined, WorkerEvent
from swarm.core.needs import memory_needed
from swarm.core.records import Role
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
from swarm.standby.around import Around, Seen
from swarm.standby.keeping import Ledger, alone, home, log_file
from swarm.watch import Home

TICK_S = 0.2  # between two looks at a worker
ACTIVE = ("starting", "running")


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
        self._held, self._role = held, learner.get("role", "both")
        self._tell, self._heard, self._pace = tell, heard, pace or Pace()
        self._standing = Standing()
        self._around = Around(mailbox)
        self._ledger = Ledger(home() / "barred.json")
        self._lost: dict[str, str] = {}  # by mailbox: why it was last told to be away
        self._refused: tuple[str, ...] | None = None  # as was last told
        self._busy = ""  # the job that is waited for
        self._still = ""  # why nothing is joined for now, as was last told

    async def run(self, asked: Callable[[], int]) -> None:
        """Until `asked` says, more than 0 times, that this is to end. Raises CannotStandBy if another one does here."""
        with alone():
            await self._stand_by(asked)

    async def _stand_by(self, asked: Callable[[], int]) -> None:
        self._standing = msgspec.structs.replace(self._standing, barred=self._ledger.read())
        places = api.known_mailboxes() if self._mailbox is None else (self._mailbox,)
        self._tell(StandsBy(mailboxes=places, rules=self._rules.words(), owner=self._owner, log=str(log_file())))
        try:
            self._around.start()
            while not asked():
                seen = await self._looked(asked)
                if seen is None:
                    break
                chosen = self._chosen(seen)
                if chosen is None or await self._holds_still():
                    await self._pass(self._pace.look_s, asked)
                else:
                    await self._take_part(chosen, asked)
        finally:
            self._tell(StandsDown())
            self._around.close()

    # Looking

    async def _looked(self, asked: Callable[[], int]) -> Seen | None:
        """What there is now; None if this is to end meanwhile: a share that hangs is not waited for."""
        looking = asyncio.ensure_future(self._around.look())
        while not (await asyncio.wait({looking}, timeout=TICK_S))[0]:
            if asked():
                looking.cancel()
                return None
        return looking.result()

    def _chosen(self, seen: Seen) -> Candidate | None:
        now_s = asyncio.get_running_loop().time()
        self._say_lost(seen.home)
        self._look_at_jobs(seen.home.jobs)
        busy = next((job for job in seen.home.jobs if job.state in ACTIVE), None)
        if busy is not None:
            if busy.id != self._busy:
                self._tell(Busy(job=busy.id, name=busy.run_name))
            self._busy, self._refused = busy.id, None
            return None
        self._busy = ""
        there = [view for view in seen.home.mailboxes if not view.problem]
        candidates = [candidate(view.location, state, self._role) for view in there for state in view.runs if not state.lost]
        chosen = standby.choose(candidates, self._rules, self._standing, now_s=now_s)
        if chosen is None:
            reasons = [(c.name, standby.refusal(c, self._rules, self._standing, now_s=now_s)) for c in candidates]
            reasons += [(run.advert.name, _unmounted(run.advert.share)) for run in seen.elsewhere]
            refused = tuple(sorted({f"{name}: {why}" for name, why in reasons}))
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
        self._around.tell("paused" if reason else "waiting")
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
        self._around.tell("training")
        self.workers.append(worker)
        if asked() and not worker.asked:  # while it was started, and nobody knew of it
            worker.interrupt()
        try:
            await self._follow(chosen, worker, told)
        finally:
            self.workers.remove(worker)
            if worker.process.stdin is not None:
                worker.process.stdin.close()  # where this ends for another reason, the worker leaves
            self._around.tell("waiting")
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
                if isinstance(event, Held | Freed):
                    self._around.tell("paused" if isinstance(event, Held) else "training")
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


def _unmounted(share: str) -> str:
    return f"its mailbox is not mounted here{f' ({share})' if share else ''}"


def candidate(location: str, state: RunState, role: Role = "both") -> Candidate:
    """A run as the rules judge it, for a learner of this role."""
    manifest = state.manifest
    return Candidate(
        mailbox=location,
        run=state.run,
        name=state.name,
        method="" if manifest is None else str(type(manifest.algorithm).__struct_config__.tag),
        phase=state.phase,
        memory_bytes=0 if manifest is None else memory_needed(manifest, role),
        program=manifest is not None and bool(api.foreign_program(manifest)),
    )
