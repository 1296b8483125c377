"""The communication side of a learner or a syncer: joins, beats, publishes, follows the rounds and closes them when due.

One asyncio task, besides the beats; the event loop's clock is the only clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Iterable

from swarm.core import rounds
from swarm.core.controls import Effect, effect
from swarm.core.errors import (
    WAITED_OUT,
    Dropped,
    MailboxCorrupt,
    PayloadCorrupt,
    PayloadMissing,
    RecordGone,
    RunEnded,
    RunNotFound,
    Superseded,
)
from swarm.core.events import Joined, Mended, Paused, Resumed, Trouble, Waiting, WorkerEvent, round_closed
from swarm.core.records import Claim, Control, LearnerRecord, RoundRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.host.energy import Draws, untold
from swarm.runtime.activity import Activity
from swarm.runtime.bidding import bid
from swarm.runtime.closing import Closer
from swarm.runtime.committed import Committed
from swarm.runtime.handoff import Aligned, Handoff, Tensors, Verdict, verdict
from swarm.runtime.inner import rests_between
from swarm.runtime.membership import Pulse, take
from swarm.runtime.parameters import advised
from swarm.runtime.patience import BACKOFF_S, Patience, jittered
from swarm.runtime.reports import Reports
from swarm.runtime.upkeep import Upkeep
from swarm.runtime.watch import Watch
from swarm.tape import NO_LOOK
from swarm.tensors.schema import Schema, check_equal

LEAVING_TRIES = 3  # of each last word to a share that fails
LOOKS = 4  # for a run that seems to be deleted


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
        draws: Draws = untold,
    ) -> None:
        """`me`: the learner id wanted, and the role; its incarnation is found on joining. `gone`, `alive`: whether another
        holder's process provably ended, or provably runs. `draws`: see host/energy.py.
        A syncer has nothing to hand over: its `handoff` only ends."""
        self.exchange, self.me, self.handoff, self.schema = exchange, me, handoff, schema
        self.emit = emit
        self._gone, self._alive, self._may_rename = gone, alive, may_rename
        spec = exchange.manifest.algorithm
        self.poll_s = min(max(spec.beat_s / 10, 0.05), 1.0)
        self._trains = me.role != "syncer"
        self.gives_away = me.role == "learner" and isinstance(spec, DiLoCo) and rests_between(spec)
        """Whether what is handed over is nobody else's: one that never closes has no use for it here."""
        self._activity = Activity(exchange, handoff, role=me.role, rss_bytes=rss_bytes, draws=draws)
        pulling = self._activity.pulling
        self._committed = Committed(exchange, holds=self._trains, gives_away=self.gives_away, pulling=pulling)
        self._watch = Watch(exchange)
        self._upkeep = Upkeep(exchange, self._committed, self._watch, emit=emit)
        self._reports = Reports(exchange, handoff, emit=emit)
        # Well within the lease for which the others wait for one that comes back.
        self._patience = Patience(exchange.mailbox, emit, longest_s=min(BACKOFF_S[1], spec.lease_s / 4))
        self._controls: list[Control] = []
        self._deleted = False
        self._present = 0  # controls that were there before this learner
        self._said: tuple[int, str] | None = None
        self._pulse: Pulse | None = None
        self._beating: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()

    @property
    def newest(self) -> int:
        """The newest committed round, as far as it was followed."""
        return self._committed.newest

    # Joining and leaving

    async def join(self) -> Aligned:
        """Become a participant of the run; returns what to start from. Waits for a share that is away. Raises SchemaMismatch
        before anything is written, RunEnded, LearnerIdTaken.

        Beats begin before the parameters are fetched, so that these are kept meanwhile; nobody waits for one that joins.
        """
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
        self._pulse = Pulse(
            self.exchange,
            self.me,
            lambda: self._activity.beat(loop.time(), paused=self._watch.effect.paused),
            patience=self._patience.beside(),
        )
        self._activity.phase = "join"
        await self._patience.through(self._pulse.beat)
        self._beating = asyncio.create_task(self._pulse.run(at_once=False))
        try:
            await self._patience.through(self._committed.load)
        except (PayloadMissing, PayloadCorrupt) as error:
            await self._patience.through(self._check_not_deleted)
            raise await advised(self.exchange, error) from None
        self._activity.phase = None
        await self._patience.through(self._pulse.beat)  # from now on it is waited for
        self.emit(
            Joined(
                run=self.exchange.manifest.run,
                name=self.exchange.manifest.name,
                learner=self.me.learner,
                incarnation=self.me.incarnation,
                round=self.newest + 1,
                device=self.me.device,
                memory_bytes=self.me.memory_bytes,
                role=self.me.role,
            )
        )
        self._heed()
        return Aligned(newest=self.newest, fragments=self._committed.handed_over(*self._committed.theta))

    async def _begin(self) -> None:
        self._controls = await self.exchange.controls(())
        self._present = len(self._controls)
        await self._committed.look()

    async def _check_not_deleted(self) -> None:
        """Raises RunNotFound if the run is no more: what it lacks will not come back, and nothing is to be written any more.
        Missing at one look may be a listing that is behind: it stays missing for half a lease."""
        for _ in range(LOOKS):
            if await self.exchange.mailbox.read(self.exchange.keys.manifest) is not None:
                return
            await asyncio.sleep(self.exchange.manifest.algorithm.lease_s / (2 * LOOKS))
        self._deleted = True
        raise RunNotFound(f"run {self.exchange.manifest.name} was deleted")

    async def leave(self) -> None:
        """Finish a snapshot that was begun, or if the run has ended what its last round asks for; write what was evaluated;
        release the lease."""
        evals = self._reports.write_evals
        words = [self._publish, evals] if self._end_reason() is None else [evals, self._upkeep.settle]
        try:
            if self._pulse is not None and not self._deleted:
                for word in words:
                    with contextlib.suppress(*WAITED_OUT):
                        await self._patience.through(word, tries=LEAVING_TRIES)
        finally:
            if self._beating is not None:
                self._beating.cancel()
                await asyncio.gather(self._beating, return_exceptions=True)
            if self._pulse is not None and not self._deleted:
                with contextlib.suppress(*WAITED_OUT):
                    await self._patience.through(functools.partial(self._pulse.beat, phase="left"), tries=LEAVING_TRIES)

    # Polling

    async def run(self) -> None:
        """Take part until the run ends for this learner. Whatever the share does, only a named error gets out."""
        backoff_s, trouble, since_s, first_s = BACKOFF_S[0], "", 0.0, 0.0
        loop = asyncio.get_running_loop()
        while True:
            if self._beating is not None and self._beating.done():
                self._beating.result()  # without beats this learner would soon be gone, in the eyes of the others
            try:
                ended = await self._patience.through(self.poll)
            except (PayloadMissing, PayloadCorrupt, MailboxCorrupt, RecordGone) as error:
                # Gone: a newer record will say where to go on. Damaged, or seemingly forged: perhaps only on the way here.
                if isinstance(error, PayloadMissing | RecordGone):
                    await self._patience.through(self._check_not_deleted)
                others = await self._patience.through(self._others_go_on)
                # Of a payload its key: what comes instead of its bytes may be something else each time.
                what = error.key if isinstance(error, PayloadMissing | PayloadCorrupt) else str(error)
                if what != trouble:
                    first_s = first_s if trouble else loop.time()
                    trouble, since_s = what, loop.time()
                    self.emit(Trouble(message=str(error), lasts=True))
                elif loop.time() - since_s > self._bears_s(error, others=others):
                    raise await advised(self.exchange, error) from None
                else:
                    self._activity.phase = "join"  # nobody is to wait for one that cannot go on
                await asyncio.sleep(jittered(backoff_s))
                backoff_s = min(backoff_s * 2, self._patience.longest_s)
                continue
            if trouble:
                self._activity.phase = None
                self.emit(Mended(what=f"goes on with round {self.newest + 1}", after_s=loop.time() - first_s))
            backoff_s, trouble = BACKOFF_S[0], ""
            if ended is not None:
                self.handoff.end(ended)
                return
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.poll_s):
                    await self._wake.wait()
            self._wake.clear()

    def _bears_s(self, error: Exception, *, others: bool) -> float:
        """For how long it tries again. `others`: whether others go on."""
        spec = self.exchange.manifest.algorithm
        if isinstance(error, RecordGone):  # whoever goes on does so with an older copy
            return spec.lease_s
        return math.inf if others else spec.keep_s if isinstance(error, PayloadMissing) else 3 * spec.lease_s

    async def _others_go_on(self) -> bool:
        """Whether somebody else trains, and somebody else closes rounds: then what is the newest now will not stay so."""
        with contextlib.suppress(MailboxCorrupt):  # that may be the very trouble; who beats is known by then
            await self._watch.observe(self.newest + 1, self._committed.newest_record)
        going = [beat for k, beat in self._watch.present.items() if k != self.me.learner and beat.phase != "join"]
        return any(beat.role != "syncer" for beat in going) and any(beat.role != "learner" for beat in going)

    async def poll(self) -> str | None:
        """One turn; returns why the run is over for this learner, or None."""
        await self._publish()
        await self._reports.write_evals()
        await self._upkeep.settle()
        newest = self.newest
        look = await self.exchange.look(newest, self._controls)
        await self._follow(await self.exchange.rounds_after(newest, look))
        if self.newest != newest:
            look = NO_LOOK  # following may have taken long, and another round is open now
        self._controls = await self.exchange.controls(self._controls, look)
        self._heed()
        self._activity.look(asyncio.get_running_loop().time(), paused=self._watch.effect.paused)
        reason = self._end_reason()
        if reason is not None:
            return reason
        await self._watch.observe(self.newest + 1, self._committed.newest_record, look)
        incarnation = self._watch.incarnation(self.me.learner)
        if incarnation > self.me.incarnation:
            raise Superseded(self.me.learner, incarnation)
        if self._watch.effect.ending and not self._somebody_closes:
            self._present = len(self._controls)  # no round record will ever name them
            self._heed()
        self._heed_owner()
        closed = await self._maybe_close()
        if not closed:
            await bid(self.exchange, self._watch, self.handoff, me=self.me, round=self.newest + 1)
        return self._end_reason() if closed else None

    @property
    def _effect(self) -> Effect:
        """What is in effect. Controls that were there before this learner are: it is nobody yet whom they had to wait for."""
        named, committed = max(self._committed.control, self._present), self.newest + 1
        return effect(self._controls, rounds=self.exchange.manifest.rounds, committed=committed, named=named)

    def _heed(self) -> None:
        """Do what the controls ask for. Raises Dropped."""
        before, now = self._watch.effect, self._effect
        self._watch.effect = now
        if now.is_dropped(self.me.learner, self.me.incarnation):
            raise Dropped(self.me.learner, now.dropped[self.me.learner][1])
        self.handoff.ask_flush(now.ending)
        self.handoff.pause(now.paused)
        if now.paused != before.paused:
            self._watch.anew()  # while it is paused, no deadline comes nearer
            self._said = None
            self.emit(Paused(round=self.newest + 1, by=now.by) if now.paused else Resumed(round=self.newest + 1))

    def _heed_owner(self) -> None:
        """While this machine holds still for its owner, the others do not wait for it: it reports what it has. Alone it keeps
        that, for no round closes without it."""
        if self.handoff.held and self._watch.trainers - {self.me.learner}:
            self.handoff.ask_hurry(self.newest + 1)

    @property
    def _closes_elsewhere(self) -> bool:
        """Whether this machine holds still for its owner, and another one does not and closes rounds."""
        return bool(self.handoff.held) and any(role != "learner" for role in self._watch.others(self.me.learner, held=False))

    def _end_reason(self) -> str | None:
        now = self._effect
        if now.stopped:
            return "stopped"
        return "done" if now.rounds is not None and self.newest + 1 >= now.rounds else None

    async def _publish(self) -> None:
        while (publication := self.handoff.outgoing()) is not None:
            if publication.round > self.newest:  # else the round closed without it
                with self._activity.doing("upload"):
                    self._watch.reported(await self._reports.publish(self.me, publication))
            self.handoff.published(publication)

    async def verdicts(self, rounds: Iterable[int]) -> dict[int, Verdict]:
        """What the records of committed rounds say of this learner's snapshots. Waits for a share that is away."""
        return await self._patience.through(functools.partial(self._reports.verdicts, self.me.learner, tuple(rounds)))

    async def parameters(self, fragments: Iterable[int]) -> dict[int, Tensors]:
        """The newest committed ones of `fragments`. Waits for a share that is away."""
        find = self._committed.parameters
        return {k: await self._patience.through(functools.partial(find, k)) for k in fragments}

    async def _follow(self, newest: int) -> None:
        """Take over everything that was committed up to `newest`."""
        if newest <= self.newest:
            return
        await self._hear_of_more(newest)
        if newest - self.newest > len(self._committed.records):  # asleep for long: straight to the newest
            verdicts = await self._reports.verdicts(self.me.learner, (r for r in self.handoff.awaited if r <= newest))
            await self._committed.load(newest)
            self._watch.closed()
            theta = self._committed.handed_over(*self._committed.theta)
            aligned = Aligned(newest=self.newest, fragments=theta, verdicts=verdicts)
            self._hand_over(aligned)
            return
        for round in range(self.newest + 1, newest + 1):
            record = await self.exchange.round(round)
            if record is None:  # listed, and not there to be read yet
                return
            await self._take(record, await self._committed.of(record))

    async def _take(self, record: RoundRecord, theta: Tensors | None) -> None:
        """Take over one committed round, the next one, with its parameters unless they are not held here."""
        evaluate = record.round if await self._evaluation_is_mine(record.round) else None
        # What was committed is taken over as a whole or not at all.
        self._committed.take(record, theta)
        self._watch.closed(record)
        self.emit(round_closed(record, self.exchange.manifest.algorithm, rounds=self._effect.rounds))
        for unit in sorted({r.unit for r in record.rejected if r.differs}):
            self.emit(Trouble(message=f"{unit}: two learners trained it to different bytes: replay is not exact"))
        said = verdict(record, self.me.learner)
        aligned = Aligned(
            newest=record.round,
            fragments=self._committed.handed_over(record.fragment) if self._trains else {},
            evaluate=evaluate,
            verdicts={} if said is None else {record.round: said},
        )
        self._hand_over(aligned)

    async def _hear_of_more(self, round: int) -> None:
        """Before the run ends with `round`: perhaps it was extended meanwhile."""
        total = self._effect.rounds
        if total is not None and round + 1 >= total:
            self._controls = await self.exchange.controls(self._controls)

    def _hand_over(self, aligned: Aligned) -> None:
        self._heed()  # first: whoever is to pause must not begin with the next round
        if self._trains:
            self.handoff.align(aligned, ended=self._end_reason())

    async def _evaluation_is_mine(self, round: int) -> bool:
        """Whether to evaluate after `round`: once per `eval_every` turns through all fragments, first come. One that is
        behind leaves it to the others, but for the last."""
        if not self.handoff.evaluates or self.handoff.held:
            return False
        every, total = self.exchange.manifest.eval_every * len(self._committed.records), self._effect.rounds
        last = total is not None and round + 1 == total
        if not self._trains or every == 0 or ((round + 1) % every and not last) or (self.handoff.behind and not last):
            return False
        claim = Claim(round=round, learner=self.me.learner, incarnation=self.me.incarnation)
        return await self.exchange.claim_eval(round, claim)

    async def _maybe_close(self) -> bool:
        """Close the open round if that is due and up to this one."""
        watch, round = self._watch, self.newest + 1
        if watch.effect.paused:
            return False
        fragment = self.exchange.schedule.fragment(round)
        base_sha256 = self._committed.ref(fragment).sha256
        decision = watch.decide(round, base_sha256=base_sha256)
        others = watch.others(self.me.learner)
        if not self._somebody_closes:
            await self._check_not_deleted()  # nobody will come
            self._say(round, "waiting for a syncer")
            return False
        if isinstance(decision, rounds.Wait):
            if watch.hurries(self.me.learner):
                self.handoff.ask_hurry(round)
            self._say(round, decision.reason)
            return False
        if not rounds.closes(self.me.role, others, overdue=watch.overdue) or (self._closes_elsewhere and not watch.overdue):
            return False
        waited_s, quorum_waited_s = watch.waited_s, watch.quorum_waited_s
        close_s = max((record.close_s for record in self._committed.records if record is not None), default=0.0)
        await self._check_not_deleted()  # else its first round would be written again, which needs no payload of before
        closer = Closer(self.exchange, self.me)
        if not await closer.claim(round, functools.partial(watch.works, close_s=close_s)):
            return False
        with self._activity.doing("merge"):
            closed = await closer.close(
                round,
                watch.sort_out(round, base_sha256=base_sha256),
                before=self._committed.records[fragment],
                theta=await self._committed.parameters(fragment),
                control=len(self._controls),
                waited_s=waited_s,
                quorum_waited_s=quorum_waited_s,
                reason=decision.reason,
                clients=watch.next_clients(round + 1),
            )
        if closed is None:
            return False
        self._upkeep.owe(round)
        await self._hear_of_more(round)
        await self._take(closed.record, closed.theta or await self._committed.of(closed.record))
        await self._upkeep.settle()
        return True

    @property
    def _somebody_closes(self) -> bool:
        """Whether anybody is live who closes rounds, this one included."""
        return any(role != "learner" for role in (self.me.role, *self._watch.others(self.me.learner)))

    def _say(self, round: int, reason: str) -> None:
        if (round, reason) != self._said:
            self._said = (round, reason)
            self.emit(Waiting(round=round, reason=reason))
