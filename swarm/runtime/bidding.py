"""Claiming FedAvg's clients: one at a time, for a training thread that waits for one."""

from __future__ import annotations

from swarm.core.records import Claim, LearnerRecord
from swarm.exchange import Exchange
from swarm.runtime.handoff import Assignment, Handoff
from swarm.runtime.watch import Watch


async def bid(exchange: Exchange, watch: Watch, handoff: Handoff, *, me: LearnerRecord, round: int) -> None:
    """Claim a client of `round` to train, if the training thread waits for one."""
    lost = set()
    try:
        while handoff.free and not handoff.held and (found := watch.bid(me.learner, me.incarnation)) is not None:
            unit, n, mine = found
            claim = Claim(round=round, learner=me.learner, incarnation=me.incarnation)
            won = mine or await exchange.claim_client(round, unit, n, claim)
            watch.open.tried.add(unit)
            if won:
                handoff.assign(Assignment(round=round, unit=unit, claim=n))
            else:
                lost.add(unit)
    finally:
        watch.open.tried -= lost  # whoever won one may die: it is looked at anew
