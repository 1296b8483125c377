"""One machine's part in a data-parallel job, from joining to the end: it comes to one generation after the other, and serves in
those that give it a rank (duty.py)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from swarm.core.controls import Effect, effect
from swarm.core.errors import WAITED_OUT, CheckpointUnsaved, Dropped, JobStopped, PayloadCorrupt, PayloadMissing, WorkerFailed
from swarm.core.events import Ended, Gathering, GenerationOver, Joined, Paused, Resumed, Trouble, WorkerEvent
from swarm.core.meeting import start_after, start_before
from swarm.core.preflight import Terms
from swarm.core.ranks import Backend, CheckpointAt, GenerationEnd, Plan
from swarm.core.records import Control, LearnerRecord
from swarm.exchange import Exchange
from swarm.host.energy import Draws, untold
from swarm.mailbox.contract import Mailbox
from swarm.parallel.beside import cancelled
from swarm.parallel.duty import LATE_S, STOPPED, Duty, stopped_by
from swarm.parallel.gauges import Gauges
from swarm.parallel.generations import come
from swarm.parallel.meeting import Facts, Meeting, Network, Placed
from swarm.parallel.register import newest_plan, read_plan
from swarm.parallel.site import Site
from swarm.parallel.store import Store
from swarm.runtime.membership import Pulse, take
from swarm.runtime.model_files import wanted_hashes
from swarm.runtime.patience import HANG_S, Patience

LEAVING_TRIES = 3
LOOK_S = 0.2
DEATHS = 5  # in a row of this machine's rank, without a step between them, after which it gives up
AGAIN_S = 1.0  # after a generation that made no step; twice as long after each more, up to two beats
AWAY_S = 15.0  # that a machine which is to leave waits for a share that is away
FETCH_BYTES_PER_S = 5e6  # that a checkpoint is fetched with, at least: a rendezvous waits for so long


class Agent:
    def __init__(
        self,
        mailbox: Mailbox,
        site: Site,
        me: LearnerRecord,
        *,
        gone: Callable[[LearnerRecord], bool],
        alive: Callable[[LearnerRecord], bool],
        may_rename: bool,
        network: Network,
        memory_bytes: Callable[[], int],
        versions: dict[str, str],
        backends: tuple[Backend, ...],
        emit: Callable[[WorkerEvent], None],
        rss_bytes: Callable[[], int] = lambda: 0,
        draws: Draws = untold,
        duty: Callable[..., Duty] = Duty,
    ) -> None:
        """`gone`, `alive`, `may_rename` as for membership.take. `memory_bytes`: that a rank may take now."""
        self.site, self.me, self.network = site, me, network
        self._exchange = Exchange(mailbox, site.manifest)
        self._mailbox, self._keys = mailbox, self._exchange.keys
        self._gone, self._alive, self._may_rename = gone, alive, may_rename
        self._memory_bytes, self._versions, self._backends = memory_bytes, versions, backends
        self._emit, self._duty = emit, duty
        self._patience = Patience(mailbox, emit)
        self._store = Store(mailbox, self._keys)
        self._gauges = Gauges(rss_bytes=rss_bytes, draws=draws)
        self._gauges.moved_bytes = lambda: self._store.moved_bytes
        self._leaving, self._left = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._controls: list[Control] = []
        self._effect = Effect(rounds=None)
        self._heeding: asyncio.Task[None] | None = None
        self._meeting: Meeting | None = None
        self._start_s = 120.0
        self._held = ""
        self._deaths = self._vain = 0  # generations in a row

    def leave(self) -> None:
        """Have the ranks save and end, release the lease, and return from `run`. May be called from any thread, and from a
        signal handler."""
        self._leaving.set()

    def hold(self, reason: str) -> None:
        """Have no rank here, for this machine's owner comes first, until called with '': the others go on as a new generation,
        and this machine joins them again. May be called from any thread."""
        self._held = reason

    @property
    def steps(self) -> int:
        """Made so far by ranks here. May be asked for on any thread."""
        return self._gauges.steps

    @property
    def resting(self) -> bool:
        """Whether the job is paused."""
        return self._effect.paused

    def run(self) -> None:
        """Take part until the job ends, or until told to leave. Raises Dropped, Superseded, LearnerIdTaken, JobStopped,
        WorkerFailed."""
        # A thread of its own: a share that hangs must not hold up whoever asks this one to leave.
        threading.Thread(target=self._live, name="swarm-agent", daemon=True).start()
        moved, since_s = -1, time.monotonic()
        while not self._left.wait(0.1):
            away = self._patience.away or self._mailbox.outstanding_s() >= HANG_S
            if not (self._leaving.is_set() and away) or self._store.moved_bytes != moved:
                moved, since_s = self._store.moved_bytes, time.monotonic()
            elif time.monotonic() - since_s >= AWAY_S:
                self._emit(Trouble(message="the mailbox does not answer: what is not stored in it yet stays undone"))
                self._emit(self._ended("left"))
                return
        if self._error is not None:
            raise self._error

    def _live(self) -> None:
        try:
            self._emit(asyncio.run(self.take_part()))
        except BaseException as error:
            self._error = error
        finally:
            self._left.set()

    async def take_part(self) -> Ended:
        self.me = await take(
            self._exchange, self.me, gone=self._gone, alive=self._alive, may_rename=self._may_rename, patience=self._patience
        )
        self._gauges.joined()
        me = self.me
        name = self.site.manifest.name
        run = self.site.manifest.run
        self._emit(
            Joined(
                run=run,
                name=name,
                learner=me.learner,
                incarnation=me.incarnation,
                round=0,
                device=me.device,
                memory_bytes=me.memory_bytes,
                role=me.role,
            )
        )
        pulse = Pulse(self._exchange, me, self._gauges.beat, patience=self._patience.beside())
        tasks = [asyncio.create_task(pulse.run()), asyncio.create_task(self._heed())]
        self._heeding = tasks[1]
        try:
            return await self._serve()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(*WAITED_OUT):
                await self._patience.through(functools.partial(pulse.beat, phase="left"), tries=LEAVING_TRIES)

    async def _serve(self) -> Ended:
        while True:
            self._check_heeding()
            self._check_dropped()
            if self._leaving.is_set():
                return self._ended("left")
            if self._effect.paused and not self._effect.stopped:
                await self._pause()
                continue
            if self._held and not self._effect.stopped:
                await self._hold_still()
                continue
            found = await self._come()
            if found is None:
                continue
            end = found if isinstance(found, GenerationEnd) else await self._on_duty(*found)
            if end is not None and not end.goes_on:
                return await self._over(end)

    def _check_heeding(self) -> None:
        """Raises what keeps this machine from hearing any command more."""
        if self._heeding is not None and self._heeding.done():
            self._heeding.result()

    async def _heed(self) -> None:
        """Keep in mind what people command."""
        while True:
            await self._look_at_controls()
            await asyncio.sleep(self.site.spec.beat_s)

    async def _look_at_controls(self) -> None:
        self._controls = await self._patience.through(lambda: self._exchange.controls(self._controls))
        self._effect = effect(self._controls, rounds=None, committed=0, named=len(self._controls))

    def _check_dropped(self) -> None:
        if self._dropped:
            raise Dropped(self.me.learner, self._effect.dropped[self.me.learner][1])

    @property
    def _dropped(self) -> bool:
        return self._effect.is_dropped(self.me.learner, self.me.incarnation)

    @property
    def _is_leaving(self) -> bool:
        return self._leaving.is_set() or self._dropped

    async def _pause(self) -> None:
        self._gauges.phase, self._gauges.doing = "paused", "paused"
        self._emit(Paused(round=0, by=self._effect.by))
        while self._effect.paused and not (self._effect.stopped or self._is_leaving):
            self._check_heeding()
            await asyncio.sleep(LOOK_S)
        if not self._is_leaving:
            self._emit(Resumed(round=0))

    async def _hold_still(self) -> None:
        gauges = self._gauges
        while self._held and not (self._effect.stopped or self._effect.paused or self._is_leaving):
            self._check_heeding()
            gauges.phase, gauges.doing, gauges.held = "paused", self._held, self._held
            await asyncio.sleep(LOOK_S)
        gauges.held = ""

    # Coming to a generation

    async def _come(self) -> tuple[Meeting, Placed] | GenerationEnd | None:
        """None: something was commanded meanwhile."""
        self._gauges.phase = "wait"
        self._start_s = await self._patience.through(self._time_to_start)
        told = ""
        coming = asyncio.create_task(
            come(
                self._mailbox,
                self._keys,
                learner=self.me.learner,
                incarnation=self.me.incarnation,
                meeting=self._meet,
                apart=self._apart,
                emit=self._emit,
            )
        )
        try:
            while not (await asyncio.wait({coming}, timeout=LOOK_S))[0]:
                meeting = self._meeting
                if meeting is not None and meeting.reason and meeting.reason != told:
                    told = self._gauges.doing = meeting.reason
                    self._emit(Gathering(generation=meeting.generation, reason=told))
                if self._is_leaving or self._effect.paused or (self._held and not self._effect.stopped):
                    return None
                if self._effect.stopped and meeting is not None and not self._is_of_others(meeting):
                    at = await self._patience.through(self._start)
                    await meeting.end("stopped", stopped_by(self._effect), checkpoint=at)
            return coming.result()
        finally:
            await cancelled(coming)

    def _is_of_others(self, meeting: Meeting) -> bool:
        """Whether those who have a rank, now or in the generation before, are to end it."""
        return meeting.register.under_way or meeting.register.plan is not None

    def _meet(self, generation: int) -> Meeting:
        spec, me, hashes = self.site.spec, self.me, self.site.files.hashes()
        wanted = wanted_hashes(self.site.manifest)
        changed = [name for name in wanted if hashes.get(name) != wanted[name]]
        if changed:
            words = "is not the run's any more, and as long as that is so this machine cannot take part"
            self._emit(Trouble(message=f"{', '.join(changed)} {words}"))
        facts = Facts(
            learner=me.learner,
            incarnation=me.incarnation,
            machine_name=me.machine_name,
            memory_bytes=self._memory_bytes(),
            versions=self._versions,
            hashes=hashes,
            backends=self._backends,
            tokens_per_s=self._gauges.tokens_per_s,
        )
        terms = Terms(
            world_size_min=spec.world_size_min,
            world_size_max=spec.world_size_max,
            memory_bytes=sum(ref.size_bytes for ref in self.site.model.files if ref.name.endswith(".safetensors")),
            seed=spec.seed,
            hashes=wanted,
            gather_s=5 * spec.beat_s,
            start_s=self._start_s,
        )
        self._meeting = Meeting(
            self._mailbox,
            self._keys,
            generation,
            facts,
            terms,
            self.network,
            beat_s=spec.beat_s,
            lease_s=spec.lease_s,
            start=self._start,
            emit=self._emit,
        )
        return self._meeting

    def _apart(self, reason: str) -> None:
        self._gauges.doing = reason
        self._emit(Trouble(message=f"no rank here in generation {self._meeting.generation if self._meeting else 0}: {reason}"))

    async def _start(self) -> CheckpointAt | None:
        """What the generation that is being planned goes on from."""
        newest = await newest_plan(self._mailbox, self._keys)
        at = None if newest is None else start_after(newest, await self._store.steps(newest.generation))
        # A plan may name one that proved to be damaged, and was forgotten.
        while at is not None and at.step not in (saved := await self._store.steps(at.generation)):
            plan = await read_plan(self._mailbox, self._keys, at.generation)
            at = start_before(at, plan if isinstance(plan, Plan) else None, saved)
        return at

    async def _time_to_start(self) -> float:
        """How long a rendezvous may take: rank 0 may have to fetch the checkpoint meanwhile."""
        at = await self._start()
        record = None if at is None else await self._store.record(at)
        return Terms().start_s + (0 if record is None else record.state.size_bytes / FETCH_BYTES_PER_S)

    async def _on_duty(self, meeting: Meeting, placed: Placed) -> GenerationEnd | None:
        duty = self._duty(
            self.site,
            self._store,
            self._gauges,
            meeting,
            placed,
            patience=self._patience,
            effect=lambda: self._effect,
            leaving=lambda: self._is_leaving,
            held=lambda: self._held,
        )
        try:
            end = await duty.run()
        finally:
            await meeting.close()
        if end is None:
            return None
        self._emit(GenerationOver(generation=end.generation, ending=end.ending, reason=end.reason))
        if duty.failed:
            raise WorkerFailed(f"no rank can run here: {duty.failed}")
        # What others died of is no fault of this machine, which goes on without them.
        self._deaths = 0 if duty.progressed else self._deaths + duty.died
        self._vain = 0 if duty.progressed else self._vain + 1
        if self._deaths >= DEATHS:
            raise WorkerFailed(f"the rank here died {DEATHS} times before its first step; the last time: {end.reason}")
        if self._vain and end.goes_on:
            self._gauges.phase, self._gauges.doing = "wait", f"after generation {end.generation}: {end.reason}"
            wait_s = min(AGAIN_S * 2 ** min(self._vain - 1, 10), 2 * self.site.spec.beat_s)
            until_s = asyncio.get_running_loop().time() + wait_s
            while asyncio.get_running_loop().time() < until_s and not self._is_leaving:  # noqa: ASYNC110
                await asyncio.sleep(min(LOOK_S, wait_s))
        return end

    # The end

    async def _over(self, end: GenerationEnd) -> Ended:
        """Raises JobStopped if the job cannot go on."""
        adapter = None
        if end.checkpoint is not None:
            self._gauges.phase, self._gauges.doing = "pull", "fetching the adapter"
            adapter = await self._adapter(end.checkpoint)
            self._gauges.step = end.checkpoint.step
        if end.ending == "stopped":
            await self._see_why(end)
            if not self._effect.stopped:
                raise JobStopped(f"the job has stopped: {end.reason}")
        chat = self.site.chat if adapter is not None else ""
        ended = self._ended("done" if end.ending == "finished" else "stopped")
        return msgspec.structs.replace(ended, adapter="" if adapter is None else str(adapter.parent), chat=chat)

    async def _see_why(self, end: GenerationEnd) -> None:
        """Another machine may have seen the command before this one does."""
        until_s = asyncio.get_running_loop().time() + LATE_S
        await self._look_at_controls()
        while end.reason.startswith(STOPPED) and not self._effect.stopped and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(self.site.spec.beat_s)
            await self._look_at_controls()

    async def _adapter(self, at: CheckpointAt) -> Path | None:
        """Where a person wants it on this machine; None if nobody does, or if it cannot be had."""
        now = asyncio.get_running_loop().time
        until_s = now() + LATE_S
        while True:
            try:
                path = await self._patience.through(functools.partial(self.site.deliver, self._store, at, numbered=False))
                if path is not None or self.site.adapter_path is None:
                    return path
                words = f"the record of the checkpoint after step {at.step} is not there"
            except (PayloadMissing, PayloadCorrupt) as error:
                words = str(error)
            except CheckpointUnsaved as error:
                words, until_s = str(error), now()
            if now() >= until_s or self._leaving.is_set():
                self._emit(Trouble(message=f"the adapter is not written: {words}"))
                return None
            await asyncio.sleep(2.0)

    def _ended(self, reason: str) -> Ended:
        return Ended(reason=reason, rounds=0, iterations=self.site.spec.iterations(self._gauges.step))
