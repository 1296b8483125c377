"""What the training thread handed over is written into the mailbox: snapshots, evaluations; and what came of the snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from swarm.core.events import Evaluated, Published, WorkerEvent
from swarm.core.manifest import PayloadRef
from swarm.core.records import EvalRecord, LearnerRecord, Snapshot
from swarm.exchange import Exchange
from swarm.runtime.handoff import Handoff, Publication, Verdict, verdict
from swarm.tasks.contract import EvalResult


class Reports:
    def __init__(self, exchange: Exchange, handoff: Handoff, *, emit: Callable[[WorkerEvent], None]) -> None:
        self.exchange, self.handoff, self.emit = exchange, handoff, emit

    async def publish(self, me: LearnerRecord, publication: Publication) -> Snapshot:
        """A snapshot of the incarnation `me`, as it was written."""
        snapshot = await self.exchange.publish(self._snapshot(me, publication), publication.delta)
        self.emit(Published(round=publication.round, size_bytes=snapshot.payload.size_bytes))
        return snapshot

    def _snapshot(self, me: LearnerRecord, publication: Publication) -> Snapshot:
        return Snapshot(
            round=publication.round,
            fragment=publication.fragment,
            learner=me.learner,
            incarnation=me.incarnation,
            unit=publication.unit or me.learner,
            base_sha256=publication.base_sha256,
            schema_sha256=self.exchange.schema.digest,
            dtype=self.exchange.manifest.by_rounds.delta_dtype,
            payload=PayloadRef(round=publication.round, sha256="0" * 64, size_bytes=0),  # known once it is written
            tokens=publication.tokens,
            steps=publication.steps,
            train_loss=publication.train_loss,
            seconds_s=publication.seconds_s,
            finite=not publication.flaw,
            claim=publication.claim,
            metrics=dict(publication.metrics),
        )

    async def write_evals(self) -> None:
        while (record := self.handoff.take_evaluated()) is not None:
            try:
                await self.exchange.write_eval(record)
            except BaseException:
                self.handoff.untake_evaluated(record)
                raise
            self.emit(Evaluated(round=record.round, loss=record.loss, metrics=record.metrics, sample=record.sample))

    async def verdicts(self, learner: str, rounds: Iterable[int]) -> dict[int, Verdict]:
        """What the records of committed rounds say of the snapshots of `learner`."""
        found = {}
        for round in rounds:
            record = await self.exchange.round(round)
            # Of one that cannot be read: what it may have counted must not be counted again.
            said = Verdict(refused=True) if record is None else verdict(record, learner)
            if said is not None:
                found[round] = said
        return found


def eval_record(result: EvalResult, *, round: int, learner: str, seconds_s: float) -> EvalRecord:
    """What `learner` found the model of `round` to be worth."""
    return EvalRecord(
        round=round,
        learner=learner,
        loss=None if result.loss is None else float(result.loss),
        metrics=result.metrics,
        sample=result.sample,
        seconds_s=seconds_s,
        confusion=result.confusion,
    )
