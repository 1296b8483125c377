"""The communication side of a learner: joins, beats, publishes, follows the rounds and closes them when they are due.

One asyncio task, besides the beats; the event loop's clock is the only clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from swarm.core import rounds
from swarm.core.errors import WAITED_OUT, MailboxCorrupt, PayloadCorrupt, PayloadMissing, RunEnded, Superseded
from swarm.core.events import Evaluated as EvaluatedEvent
from swarm.core.events import Joined, Published, RoundClosed, Trouble, Waiting, WorkerEvent
from swarm.core.records import INIT, Beat, Claim, Control, LearnerRecord, PayloadRef, RoundRecord, Snapshot
from swarm.core.state import train_loss
from swarm.exchange import Exchange
from swarm.runtime.closing import Closer
from swarm.runtime.handoff import Aligned, Handoff, Publication, Tensors
from swarm.runtime.membership import Pulse, take
from swarm.runtime.patience import BACKOFF_S, Patience, jittered
from swarm.runtime.watch import Watch
from swarm.tensors.schema import Schema, check_equal

LEAVING_TRIES = 3  # of each last word to a share that fails


class Participant:
    def __init__(
        self,
        exchange: Exchange,
        me: LearnerRecord,
        handoff: Handoff,
        *,
        schema: Schema,
        gone: Callable[[LearnerRecord], bool],
        alive: Callable[[LearnerRecord], bool],
        may_rename: bool = False,
        emit: Callable[[WorkerEvent], None] = lambda event: None,
        rss_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`me`: the learner id wanted; its incarnation is found on joining. `gone`, `alive`: whether another holder's process
        provably ended, or provably runs."""
        self.exchange, self.me, self.handoff, self.schema = exchange, me, handoff, schema
        self.emit, self._rss_bytes = emit, rss_bytes
        self._gone, self._alive, self._may_rename = gone, alive, may_rename
        spec = exchange.manifest.algorithm
        self.poll_s = min(max(spec.beat_s / 10, 0.05), 1.0)
        self.newest = INIT
        self._records: list[RoundRecord | None] = []  # the newest, by fragment
        self._theta: dict[int, tuple[str, Tensors]] = {}  # the newest, by fragment
        self._watch = Watch(exchange)
        self._patience = Patience(exchange.mailbox, emit)
        self._controls: list[Control] = []
        self._said: tuple[int, str] | None = None
        self._phase: str | None = None  # overrides the training thread's while something is under way here
        self._fetching: tuple[str, ...] = ()
        self._pulse: Pulse | None = None
        self._beating: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    # Joining and leaving

    async def join(self) -> Aligned:
        """Become a learner of the run; returns what to start from. Waits for a share that is away. Raises SchemaMismatch
        before anything is written, RunEnded, LearnerIdTaken."""
        check_equal(self.schema, self.exchange.schema)
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody is left to wake
                loop.call_soon_threadsafe(self._wake.set)

        self.handoff.wake = wake
        await self._patience.through(self._begin)
        reason = self._end_reason()
        if reason is not None:
            name = self.exchange.manifest.name
            raise RunEnded(f"run {name} was stopped" if reason == "stopped" else f"run {name} has all its rounds")
        self.me = await take(
            self.exchange,
            self.me,
            gone=self._gone,
            alive=self._alive,
            may_rename=self._may_rename,
            patience=self._patience,
        )
        self._pulse = Pulse(self.exchange, self.me, self._beat)
        await self._patience.through(self._pulse.beat)
        self.emit(
            Joined(
                run=self.exchange.manifest.run,
                name=self.exchange.manifest.name,
                learner=self.me.learner,
                incarnation=self.me.incarnation,
                round=self.newest + 1,
                device=self.me.device,
            )
        )
        self._beating = asyncio.create_task(self._pulse.run())
        return Aligned(newest=self.newest, fragments=dict(self._theta))

    async def _begin(self) -> None:
        self._controls = await self.exchange.controls(())
        newest = await self.exchange.newest_round()
        while True:
            try:
                return await self._load(newest)
            except PayloadMissing:
                before, newest = newest, await self.exchange.newest_round()
                if newest == before:  # else rounds were committed meanwhile, and the payload was swept
                    raise

    async def leave(self) -> None:
        """Finish a snapshot that was begun, unless the run has ended; write what was evaluated; release the lease."""
        words = [self._write_evals] if self._end_reason() is not None else [self._publish, self._write_evals]
        try:
            if self._pulse is not None:
                for word in words:
                    with contextlib.suppress(*WAITED_OUT):
                        await self._patience.through(word, tries=LEAVING_TRIES)
        finally:
            if self._beating is not None:
                self._beating.cancel()
                await asyncio.gather(self._beating, return_exceptions=True)
            if self._pulse is not None:
                with contextlib.suppress(*WAITED_OUT):
                    await self._patience.through(functools.partial(self._pulse.beat, phase="left"), tries=LEAVING_TRIES)

    # Polling

    async def run(self) -> None:
        """Take part until the run ends for this learner. Whatever the share does, only a named error gets out."""
        backoff_s, trouble, since_s = BACKOFF_S[0], "", 0.0
        loop = asyncio.get_running_loop()
        spec = self.exchange.manifest.algorithm
        while True:
            if self._beating is not None and self._beating.done():
                self._beating.result()  # without beats this learner would soon be gone, in the eyes of the others
            try:
                ended = await self._patience.through(self.poll)
            except (PayloadMissing, PayloadCorrupt, MailboxCorrupt) as error:
                # Gone: a newer record will say where to go on. Damaged: perhaps only on the way here.
                if str(error) != trouble:
                    trouble, since_s = str(error), loop.time()
                    self.emit(Trouble(message=trouble))
                elif loop.time() - since_s > (spec.keep_s if isinstance(error, PayloadMissing) else 3 * spec.lease_s):
                    raise
                await asyncio.sleep(jittered(backoff_s))
                backoff_s = min(backoff_s * 2, BACKOFF_S[1])
                continue
            backoff_s, trouble = BACKOFF_S[0], ""
            if ended is not None:
                self.handoff.end(ended)
                return
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.poll_s):
                    await self._wake.wait()
            self._wake.clear()

    async def poll(self) -> str | None:
        """One turn; returns why the run is over for this learner, or None."""
        await self._publish()
        await self._write_evals()
        await self._follow(await self.exchange.rounds_after(self.newest))
        self._controls = await self.exchange.controls(self._controls)
        reason = self._end_reason()
        if reason is not None:
            return reason
        if self._stopping():
            self.handoff.ask_flush()
        await self._watch.observe(self.newest + 1)
        incarnation = self._watch.incarnation(self.me.learner)
        if incarnation > self.me.incarnation:
            raise Superseded(self.me.learner, incarnation)
        closed = await self._maybe_close()
        return self._end_reason() if closed else None

    def _end_reason(self) -> str | None:
        manifest = self.exchange.manifest
        if manifest.rounds is not None and self.newest + 1 >= manifest.rounds:
            return "done"
        stop = self._stop()
        record = self._record_of(self.newest)
        if stop is not None and (record.control if record else 0) >= stop:
            return "stopped"
        # With nobody there a stop takes effect at once; before joining, this learner is nobody yet.
        if stop is not None and self._pulse is None:
            return "stopped"
        return None

    def _stop(self) -> int | None:
        return next((n for n, control in enumerate(self._controls, 1) if control.action == "stop"), None)

    def _stopping(self) -> bool:
        return self._stop() is not None

    def _record_of(self, round: int) -> RoundRecord | None:
        return self._records[self.exchange.schedule.fragment(round)] if round >= 0 else None

    async def _publish(self) -> None:
        publication = self.handoff.outgoing()
        if publication is None:
            return
        if publication.round > self.newest:  # else the round closed without it
            with self._doing("upload"):
                snapshot = await self.exchange.publish(self._snapshot(publication), publication.delta)
            self.emit(Published(round=publication.round, size_bytes=snapshot.payload.size_bytes))
        self.handoff.published(publication)

    def _snapshot(self, publication: Publication) -> Snapshot:
        return Snapshot(
            round=publication.round,
            fragment=publication.fragment,
            learner=self.me.learner,
            incarnation=self.me.incarnation,
            unit=self.me.learner,
            base_sha256=publication.base_sha256,
            schema_sha256=self.exchange.schema.digest,
            dtype=self.exchange.manifest.algorithm.delta_dtype,
            payload=PayloadRef(round=publication.round, sha256="0" * 64, size_bytes=0),  # known once it is written
            tokens=publication.tokens,
            steps=publication.steps,
            train_loss=publication.train_loss,
            seconds_s=publication.seconds_s,
        )

    async def _write_evals(self) -> None:
        while (record := self.handoff.take_evaluated()) is not None:
            try:
                await self.exchange.write_eval(record)
            except BaseException:
                self.handoff.untake_evaluated(record)
                raise
            self.emit(EvaluatedEvent(round=record.round, loss=record.loss, metrics=record.metrics, sample=record.sample))

    async def _follow(self, newest: int) -> None:
        """Take over everything that was committed up to `newest`."""
        if newest <= self.newest:
            return
        if newest - self.newest > len(self._records):  # asleep for long: straight to the newest
            await self._load(newest)
            self.handoff.align(Aligned(newest=newest, fragments=dict(self._theta)), ended=self._end_reason())
            return
        for round in range(self.newest + 1, newest + 1):
            record = await self.exchange.round(round)
            if record is None:  # listed, and not there to be read yet
                return
            await self._take(record, theta=None)

    async def _take(self, record: RoundRecord, theta: Tensors | None) -> None:
        """Take over one committed round, the next one. `theta`: its parameters if they are here already."""
        fragment = record.fragment
        if record.theta.sha256 == self._theta[fragment][0]:
            theta = self._theta[fragment][1]
        elif theta is None:
            with self._pulling(record.theta):
                theta = await self.exchange.fetch(fragment, record.theta)
        evaluate = record.round if await self._evaluation_is_mine(record.round) else None
        # Nothing from here on can fail: what was committed is taken over as a whole or not at all.
        self._theta[fragment] = record.theta.sha256, theta
        self._records[fragment] = record
        self.newest = record.round
        self._watch.closed(record)
        self.emit(
            RoundClosed(
                round=record.round,
                rounds=self.exchange.manifest.rounds,
                participants=tuple(p.learner for p in record.participants),
                rejected=tuple(f"{r.learner}: {r.reason}" for r in record.rejected),
                train_loss=train_loss(record),
                closer=record.closer,
            )
        )
        aligned = Aligned(newest=record.round, fragments={fragment: self._theta[fragment]}, evaluate=evaluate)
        self.handoff.align(aligned, ended=self._end_reason())

    async def _evaluation_is_mine(self, round: int) -> bool:
        """Whether to evaluate after `round`: once per `eval_every` turns through all fragments, first come. One that is
        behind leaves it to the others, but for the last."""
        every = self.exchange.manifest.eval_every * len(self._records)
        last = self.exchange.manifest.rounds is not None and round + 1 == self.exchange.manifest.rounds
        if every == 0 or ((round + 1) % every and not last) or (self.handoff.behind and not last):
            return False
        claim = Claim(round=round, learner=self.me.learner, incarnation=self.me.incarnation)
        return await self.exchange.claim_eval(round, claim)

    async def _load(self, newest: int) -> None:
        """Start from the newest records, whatever came before."""
        records = await self.exchange.newest_records(newest)
        refs = [self.exchange.theta_ref(fragment, record) for fragment, record in enumerate(records)]
        theta = {k: held for k, held in self._theta.items() if held[0] == refs[k].sha256}
        with self._pulling(*(ref for k, ref in enumerate(refs) if k not in theta)):
            for fragment, ref in enumerate(refs):
                if fragment not in theta:
                    theta[fragment] = ref.sha256, await self.exchange.fetch(fragment, ref)
        self._records, self._theta, self.newest = records, theta, newest
        self._watch.closed()

    @contextlib.contextmanager
    def _pulling(self, *refs: PayloadRef) -> Iterator[None]:
        """The beats say so: what is being fetched must not be deleted."""
        with self._doing("pull"):
            self._fetching = tuple(ref.sha256 for ref in refs)
            try:
                yield
            finally:
                self._fetching = ()

    async def _maybe_close(self) -> bool:
        """Close the open round if that is due and up to this learner."""
        watch, round = self._watch, self.newest + 1
        fragment = self.exchange.schedule.fragment(round)
        base_sha256, _ = self._theta[fragment]
        decision = watch.decide(round, base_sha256=base_sha256, stopping=self._stopping())
        if isinstance(decision, rounds.Wait):
            if watch.hurries(self.me.learner):
                self.handoff.ask_hurry(round)
            if (round, decision.reason) != self._said:
                self._said = (round, decision.reason)
                self.emit(Waiting(round=round, reason=decision.reason))
            return False
        waited_s, quorum_waited_s = watch.waited_s, watch.quorum_waited_s
        close_s = max((record.close_s for record in self._records if record is not None), default=0.0)
        closer = Closer(self.exchange, self.me)
        if not await closer.claim(round, functools.partial(watch.works, close_s=close_s)):
            return False
        with self._doing("merge"):
            closed = await closer.close(
                round,
                watch.open.snapshots,
                before=self._records[fragment],
                theta_sha256=base_sha256,
                theta=self._theta[fragment][1],  # held nowhere else: it is the old one when the round is closed
                control=len(self._controls),
                waited_s=waited_s,
                quorum_waited_s=quorum_waited_s,
            )
        if closed is None:
            return False
        await self._take(closed.record, theta=closed.theta)
        if fragment == len(self._records) - 1:
            await self.exchange.sweep(closed.record.round, fetching=watch.fetching)
            await self.exchange.mailbox.sweep(self.exchange.manifest.algorithm.keep_s)
        return True

    # Telemetry

    @contextlib.contextmanager
    def _doing(self, phase: str) -> Iterator[None]:
        self._phase, before = phase, self._phase
        try:
            yield
        finally:
            self._phase = before

    def _beat(self) -> Beat:
        seen, exchange = self.handoff.telemetry, self.exchange
        phase: Any = self._phase or seen.phase
        return Beat(
            phase=phase,
            round=seen.round,
            step=seen.step,
            steps=seen.steps,
            tokens_per_s=round(seen.tokens_per_s, 3),
            loss=seen.loss,
            rss_bytes=self._rss_bytes(),
            sent_bytes=exchange.sent_bytes,
            received_bytes=exchange.received_bytes,
            progress_bytes=exchange.progress_bytes,
            fetching=self._fetching,
        )
