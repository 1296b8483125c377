"""Closing a round: claim it, merge what was accepted, take the outer step, commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarm.core.acceptance import late
from swarm.core.errors import RecordGone
from swarm.core.manifest import INIT
from swarm.core.records import Claim, LearnerRecord, Participant, Rejected, RoundRecord, Snapshot
from swarm.core.rounds import ClaimView, my_claim, next_claim, weight
from swarm.core.specs import ByRounds
from swarm.exchange import Exchange
from swarm.mailbox.signed import is_genuine
from swarm.runtime.handoff import Tensors
from swarm.runtime.merging import Counted, Merged, Merger


@dataclass(frozen=True)
class Closed:
    record: RoundRecord
    theta: Tensors | None  # None if the round changed nothing


class Closer:
    """Closes rounds of one run on behalf of one incarnation."""

    def __init__(self, exchange: Exchange, me: LearnerRecord) -> None:
        self.exchange, self.me = exchange, me

    async def claim(self, round: int, works: Callable[[int, Claim], bool]) -> bool:
        """Whether closing `round` is up to me: the newest claim is mine, or its holder is gone or stuck and I outbid it.
        `works`: whether the holder of a claim, given with its number, is live and gets on."""
        claims = await self.exchange.claims(round)
        views = [
            ClaimView(n=n, learner=c.learner, incarnation=c.incarnation, holder_live=works(n, c)) for n, c in claims.items()
        ]
        me = self.me
        if my_claim(views, learner=me.learner, incarnation=me.incarnation):
            return True
        n = next_claim(views, learner=me.learner, incarnation=me.incarnation)
        if n is None:
            return False
        return await self.exchange.claim(round, n, Claim(round=round, learner=me.learner, incarnation=me.incarnation))

    async def close(
        self,
        round: int,
        sorted_out: tuple[Sequence[Snapshot], Sequence[Rejected]],
        *,
        before: RoundRecord | None,
        theta: Tensors,
        control: int,
        waited_s: float,
        quorum_waited_s: float,
        reason: str,
        clients: tuple[str, ...] = (),
    ) -> Closed | None:
        """Merge and commit; None if another syncer committed first. `sorted_out`: the snapshots that may count, sorted by unit,
        and the others. `before`: the fragment's newest record, None at Θ⁰. `theta`: its parameters, which stay as they are.
        `reason`: why it closes now. `clients`: private ones of FedAvg, for the next round. Raises RecordGone, before anything
        is written, if the round before is not there as this exchange knows it."""
        exchange, spec = self.exchange, self.exchange.manifest.by_rounds
        started_s = asyncio.get_running_loop().time()
        fragment = exchange.schedule.fragment(round)
        came_late: list[Rejected] = []
        if round > 0:
            previous = await exchange.round(round - 1)
            if previous is None:
                raise RecordGone(f"{exchange.keys.round(round - 1)}: gone: a round cannot follow it")
            listed = await exchange.mailbox.list(exchange.keys.snapshots(round - 1))
            came_late = late([key for key in listed if await is_genuine(exchange.mailbox, key)], previous)
        parent = await exchange.parent_of(round)
        accepted, rejected = sorted_out
        merger = Merger(exchange, round=round, theta=theta, before=before)
        merged = await merger.merge(accepted)
        # Payloads come before the record: whoever sees that one can fetch them.
        if merged is None:
            theta_ref, outer_ref, update_ref = exchange.theta_ref(fragment, before), before.outer if before else None, None
        else:
            theta_ref, outer_ref, update_ref = merged.theta_ref, merged.outer_ref, merged.update_ref
        record = RoundRecord(
            round=round,
            fragment=fragment,
            step=exchange.schedule.step(round),
            version=round if merged else (INIT if before is None else before.version),
            parent=parent,
            participants=_participants(merged, merger, spec),
            rejected=(*rejected, *merger.rejected, *came_late),
            theta=theta_ref,
            outer=outer_ref,
            update=update_ref,
            closer=self.me.learner,
            control=control,
            waited_s=waited_s,
            quorum_waited_s=quorum_waited_s,
            reason=reason if merged or not merger.weightless else f"{reason}, without any samples",
            clients=clients,
            close_s=asyncio.get_running_loop().time() - started_s,
        )
        if not await exchange.commit(record):
            return None
        return Closed(record=record, theta=merged.theta if merged else None)


def _participants(merged: Merged | None, merger: Merger, spec: ByRounds) -> tuple[Participant, ...]:
    counted = [*(merged.counted if merged else ()), *(Counted(snapshot, 0.0) for snapshot in merger.weightless)]
    return tuple(_participant(each, spec) for each in sorted(counted, key=lambda each: each.snapshot.unit))


def _participant(counted: Counted, spec: ByRounds) -> Participant:
    snapshot = counted.snapshot
    return Participant(
        learner=snapshot.learner,
        unit=snapshot.unit,
        weight=weight(spec, tokens=snapshot.tokens, steps=snapshot.steps),
        tokens=snapshot.tokens,
        steps=snapshot.steps,
        train_loss=snapshot.train_loss,
        seconds_s=snapshot.seconds_s,
        size_bytes=snapshot.payload.size_bytes,
        delta_norm=counted.norm,
        cosine=counted.cosine,
        claim=snapshot.claim,
        metrics=snapshot.metrics,
    )
