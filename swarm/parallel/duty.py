"""One machine's part in one generation, from its plan to its end: the rank is started and watched, what it says is told, its
checkpoints go to the mailbox.

The machine of rank 0 writes the end of a generation that halts or is done, once its last checkpoint is in the mailbox; any
machine ends one that is broken.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable
from pathlib import Path

from swarm.core.controls import Effect
from swarm.core.errors import CheckpointUnsaved, PayloadCorrupt, PayloadMissing
from swarm.core.events import JobStepped, RankPlaced, Trouble, WorkerEvent
from swarm.core.meeting import start_after
from swarm.core.rankjob import HALTED, RankPlan, RankReady, RankStepped, Replanned, Saved
from swarm.core.ranks import REASON, CheckpointAt, Ending, GenerationEnd, Plan, in_words
from swarm.parallel.beside import cancelled
from swarm.parallel.child import Child, Process
from swarm.parallel.gauges import Gauges
from swarm.parallel.keeper import Keeper
from swarm.parallel.meeting import Meeting, Placed
from swarm.parallel.register import Register, waiting
from swarm.parallel.site import Site
from swarm.parallel.store import Store
from swarm.parallel.telling import told
from swarm.runtime.patience import Patience
from swarm.tasks.lm.files import remove_checkpoints

LOOK_S = 0.2  # between two looks at the rank
TOLD_S = 1.0  # between two signs of its progress
LATE_S = 30.0  # for so long a share may not show what another machine wrote
SETTLED_BEATS = 10  # of training, before a generation ends for the sake of a machine that has come
CULPRIT_S = 2.0  # that the machine which knows best why ranks have ended has to say so, before the others do
STOPPED = "stopped"  # begins the reason of an end that people commanded
OF_THE_JOB = frozenset(
    {"CheckpointUnsaved", "LossNotFinite", "ReplicasDiffer", "SchemaMismatch", "StateMismatch", "UsageError"}
)
"""Errors of a rank that no other machine could do without; any other one is of the machine."""


def stopped_by(effect: Effect) -> str:
    return f"{STOPPED} by {effect.by}" if effect.by else STOPPED


class _Unjudged:
    """A rank that comes up, as the meeting sees it: why it ended is told by its last words, which only Duty reads."""

    def __init__(self, process: Process) -> None:
        self.pid, self.joined = process.pid, process.joined

    def died(self) -> str:
        return ""


class Duty:
    def __init__(
        self,
        site: Site,
        store: Store,
        gauges: Gauges,
        meeting: Meeting,
        placed: Placed,
        *,
        patience: Patience,
        effect: Callable[[], Effect],
        leaving: Callable[[], bool],
        held: Callable[[], str] = lambda: "",
        start: Callable[[Plan, RankPlan], Process] | None = None,
    ) -> None:
        """`effect`: what people command, `leaving`: whether this machine is to leave, `held`: why it is to hold still for its
        owner, '' if it is not; all asked again and again."""
        self.site, self.store, self.gauges, self.meeting = site, store, gauges, meeting
        self.plan, self.rank = placed.plan, placed.rank
        self.me = placed.seat.learner
        self.progressed = False
        """Whether its rank made a step."""
        self.died = False
        """Whether its rank ended by itself, for a reason of its own: not told to, and not since another one was lost."""
        self.failed = ""
        """Why this machine can have no other rank; "" if it can."""
        self._patience, self._effect, self._held = patience, effect, held
        self._asked_to_leave = leaving
        self._start = start or (lambda plan, rank_plan: Child(plan, rank_plan, site.home))
        self._keeper = Keeper(site, store, gauges, meeting, rank=self.rank, me=self.me, patience=patience)
        self._begun = False  # whether all ranks have started
        self._halted_for = ""
        self._next: Register | None = None  # of the generation that those who have come wait for
        self._told_s = self._observed_s = self._looked_s = self._ready_s = -1e9

    async def run(self) -> GenerationEnd | None:
        """How the generation ended. None: this machine has left it. Raises Superseded."""
        start = await self._brought()
        if isinstance(start, GenerationEnd):
            return start
        if self.plan.start is not None:
            remove_checkpoints(self.site.checkpoints, before=self.plan.start.generation)
        rank_plan = self.site.told(self.plan, self.rank, start=start)
        self.gauges.placed(self.plan, self.rank)
        self._emit(self._placed())
        process = self._start(self.plan, rank_plan)
        try:
            end = await self._started(process)
            return end or await self._watched(process)
        finally:
            process.end()
            self.gauges.unplaced()
            await self._keeper.stop()

    def _leaving(self) -> bool:
        """Whether this machine is to have no rank any more, for good or for a while."""
        return self._asked_to_leave() or bool(self._held())

    # The start

    async def _brought(self) -> Path | GenerationEnd | None:
        """What the rank here begins with. The others do not wait for it longer than the plan says."""
        fetching = asyncio.ensure_future(self._fetched())
        try:
            while not (await asyncio.wait({fetching}, timeout=max(LOOK_S, self.meeting.poll_s)))[0]:
                await self.meeting.observe()
                end = self.meeting.register.end or await self._given_up()
                if end is not None:
                    return end
            return fetching.result()
        finally:
            await cancelled(fetching)

    async def _given_up(self) -> GenerationEnd | None:
        """The end of a generation that has not begun to train, since it is not to any more; None: it is."""
        if self._effect().stopped:
            return await self.meeting.end("stopped", self._why(), checkpoint=self.plan.start)
        return await self.meeting.end("rendezvous", self._why()) if self._leaving() else None

    async def _fetched(self) -> Path | GenerationEnd | None:
        """The checkpoint that the rank here begins with; a GenerationEnd if it cannot be had."""
        at = self.plan.start
        if at is None or self.rank != 0:
            return None
        self.gauges.doing = f"fetching the checkpoint after step {at.step}"
        now = asyncio.get_running_loop().time
        until_s = now() + LATE_S
        while True:
            record = await self._patience.through(lambda: self.store.record(at))
            try:
                if record is not None:
                    path = self.site.checkpoint(at)
                    return await self._patience.through(functools.partial(self.store.fetch, at, record.state, path))
                words = "its record is not there"
            except (PayloadMissing, PayloadCorrupt) as error:
                words = str(error)
            except CheckpointUnsaved as error:
                self.failed = str(error)
                return await self.meeting.end("lost", f"{self.me} cannot keep the checkpoint: {error}")
            if now() >= until_s:
                break
            await asyncio.sleep(2.0)
        # Three tries and more: it will not become whole. Without its record, the next plan goes on from the one before.
        self._emit(Trouble(message=f"the checkpoint after step {at.step} is damaged, the one before is taken: {words}"))
        await self._patience.through(lambda: self.store.forget(at))
        return await self.meeting.end("rendezvous", f"the checkpoint after step {at.step} is damaged: {words}")

    def _placed(self) -> RankPlaced:
        plan = self.plan
        return RankPlaced(
            generation=plan.generation,
            rank=self.rank,
            size=len(plan.seats),
            backend=plan.backend,
            address=plan.seats[self.rank].address,
            machines=tuple(seat.learner for seat in plan.seats),
            refused=tuple(map(str, plan.refused)),
            step=0 if plan.start is None else plan.start.step,
        )

    async def _started(self, process: Process) -> GenerationEnd | None:
        """None: all ranks run."""
        self.gauges.phase = "wait"
        starting = asyncio.ensure_future(self.meeting.started(_Unjudged(process)))
        try:
            while not (await asyncio.wait({starting}, timeout=LOOK_S))[0]:
                over = process.over
                self._take(process)
                if over:
                    return await self._over(process)
                self.gauges.doing = self.meeting.reason
                if (end := await self._given_up()) is not None:
                    return end
            return starting.result()
        finally:
            await cancelled(starting)

    # Training

    async def _watched(self, process: Process) -> GenerationEnd | None:
        self._begun = True
        self.gauges.phase, self.gauges.doing = "train", ""
        looking: asyncio.Task[GenerationEnd | None] | None = None  # beside the rank: a share that is away must not hide it
        try:
            while True:
                over = process.over
                self._take(process)
                self._keeper.save_what_is_new()
                if over:
                    break
                if looking is not None and looking.done():
                    if (end := looking.result()) is not None:
                        return end
                    looking = None
                looking = looking or asyncio.create_task(self._look_around(process))
                await asyncio.sleep(LOOK_S)
        finally:
            await cancelled(looking)
        return await self._over(process)

    async def _look_around(self, process: Process) -> GenerationEnd | None:
        end = await self._observed()
        if end is None:
            await self._now_and_then(process)
        return end

    async def _observed(self) -> GenerationEnd | None:
        """Whether the others have ended the generation, or are to be lost. Between two beats there is little to see."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._observed_s < self.site.spec.beat_s / 2:
            return None
        self._observed_s = now_s
        await self.meeting.observe()
        if (end := self.meeting.register.end) is not None:
            return end
        if gone := self.meeting.gone():
            return await self.meeting.end("lost", f"{', '.join(gone)} left, or was not heard of for a lease")
        return None

    def _take(self, process: Process) -> None:
        for event in process.events():
            self.gauges.take(event)
            now_s = asyncio.get_running_loop().time()
            match event:
                case RankReady():
                    self._ready_s = now_s
                case RankStepped():
                    self.progressed = True
                case Replanned():
                    self.gauges.shares = event.shares
                case Saved():
                    self._keeper.to_save = event
                case _:
                    pass
            said = told(event, self.site.spec, self.gauges)
            if isinstance(said, JobStepped):
                if now_s - self._told_s < TOLD_S:
                    continue
                self._told_s = now_s
            if said is not None:
                self._emit(said)

    async def _now_and_then(self, process: Process) -> None:
        """What needs no look at every moment."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s < self.site.spec.beat_s:
            return
        self._looked_s = now_s
        self._keeper.log_what_is_new()
        if not process.halting:
            self._halted_for = self._why()
            settled = self.progressed and now_s - self._ready_s >= SETTLED_BEATS * self.site.spec.beat_s
            if not self._halted_for and self.rank == 0 and settled:
                self._halted_for = await self._joining()
            if self._halted_for:
                process.halt()
        self._keeper.mirror_what_is_new()

    def _why(self) -> str:
        """Why the ranks are to halt; "" if they are not."""
        effect = self._effect()
        if effect.stopped:
            return stopped_by(effect)
        if effect.paused:
            return f"paused by {effect.by}" if effect.by else "paused"
        if reason := self._held():
            return in_words(f"{self.me} holds still: {reason}")
        return f"{self.me} leaves" if self._leaving() else ""

    async def _joining(self) -> str:
        """Which machines have come that can take part; "" for none."""
        spec, seats = self.site.spec, {seat.learner for seat in self.plan.seats}
        room = spec.world_size_max is None or len(seats) < spec.world_size_max
        if not room or not await self._patience.through(self._newcomers) - seats:
            return ""
        register = self._next = self._next or Register(
            self.meeting.register.mailbox, self.meeting.register.keys, self.plan.generation + 1
        )
        await self._patience.through(register.look)
        facts = self.meeting.facts
        fit = {
            member.learner
            for (learner, incarnation), member in register.members.items()
            if learner not in seats and self.meeting.company.holds(learner, incarnation)
            if member.versions == facts.versions and member.hashes == facts.hashes
            if member.memory_bytes >= self.meeting.terms.memory_bytes and self.plan.backend in member.backends
            if member.addresses and member.ports  # as far as can be told without it: else all would meet again for nothing
        }
        return f"{', '.join(sorted(fit))} joins" if fit else ""

    async def _newcomers(self) -> frozenset[str]:
        register = self.meeting.register
        return await waiting(register.mailbox, register.keys, self.plan.generation + 1)

    # The end

    async def _over(self, process: Process) -> GenerationEnd | None:
        last, code = process.last, process.code
        if code in (0, HALTED):
            await self._keeper.finish()
            await self._keeper.log()
            if self.rank == 0:
                return await self._ended_by_rank_0(done=code == 0)
            return await self._awaited()
        ending: Ending = "lost" if self._begun else "rendezvous"
        if last is None:  # it had no time to say why
            self.died = code != -signal.SIGALRM  # else it only waited too long for the others
            return await self.meeting.end(ending, f"{self.me}: {process.died()}")
        if last.again:
            return await self._ended_by_another() or await self.meeting.end(ending, f"{self.me}: {last.reason}")
        self.died = True
        await self._keeper.finish()
        if last.error in OF_THE_JOB:
            # Most often all ranks end so. What is stored the machine of rank 0 knows best: it goes first.
            if self.rank != 0 and (end := await self._ended_by_another()) is not None:
                return end
            good = start_after(self.plan, await self._patience.through(lambda: self.store.steps(self.plan.generation)))
            kept = "no checkpoint yet" if good is None else f"the last good checkpoint is after step {good.step}"
            words = f"rank {self.rank}, {self.me}: {last.reason}"
            return await self.meeting.end("stopped", f"{words[: REASON - len(kept) - 2]}; {kept}", checkpoint=good)
        self.failed = last.reason
        return await self.meeting.end(ending, f"{self.me}: {last.reason}")

    async def _ended_by_another(self) -> GenerationEnd | None:
        """How one that knows more has ended the generation, if it does so soon."""
        until_s = asyncio.get_running_loop().time() + CULPRIT_S
        while asyncio.get_running_loop().time() < until_s:
            if (end := await self.meeting.ended()) is not None:
                return end
            await asyncio.sleep(LOOK_S)
        return None

    @property
    def _good(self) -> CheckpointAt | None:
        """The newest checkpoint that can be gone on from."""
        return self._keeper.saved or self.plan.start

    async def _ended_by_rank_0(self, *, done: bool) -> GenerationEnd:
        spec = self.site.spec
        if done:
            if self._keeper.saved is None or self._keeper.saved.step < spec.steps:
                words = "all steps are done, and their checkpoint cannot be stored"
                return await self.meeting.end("lost", words)
            return await self.meeting.end("finished", f"all {spec.iters} iterations are done", checkpoint=self._keeper.saved)
        reason = self._halted_for or self._why() or await self._why_of_others()
        effect = self._effect()
        ending: Ending = "stopped" if effect.stopped else "regroup"
        return await self.meeting.end(ending, reason, checkpoint=self._good if effect.stopped else None)

    async def _why_of_others(self) -> str:
        """Why another machine had the ranks halt: it leaves, or it has seen a command before this one did."""
        until_s = asyncio.get_running_loop().time() + 2 * self.site.spec.beat_s
        while asyncio.get_running_loop().time() < until_s:
            await self.meeting.observe()
            if gone := self.meeting.gone():
                return f"{', '.join(gone)} leaves"
            if why := self._why():
                return why
            await asyncio.sleep(LOOK_S)
        return "a machine leaves"

    async def _awaited(self) -> GenerationEnd | None:
        """The end, which the machine of rank 0 writes when its checkpoint is stored. None: this machine leaves before."""
        self.gauges.phase, self.gauges.doing = "wait", "waiting for the checkpoint to be stored"
        while not self._leaving():
            await self.meeting.observe()
            if (end := self.meeting.register.end) is not None:
                return end
            first = self.plan.seats[0]
            if first.learner in self.meeting.gone():
                return await self.meeting.end("lost", f"{first.learner} was lost before its checkpoint was stored")
            await asyncio.sleep(LOOK_S)
        return None

    def _emit(self, event: WorkerEvent) -> None:
        self.site.emit(event)
