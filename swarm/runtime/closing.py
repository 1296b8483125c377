"""Closing a round: claim it, merge what was accepted, take the outer step, commit."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swarm.core.acceptance import late, sort_out
from swarm.core.errors import HeaderError, MailboxCorrupt, MailboxMoved, PayloadCorrupt, PayloadMissing, SchemaMismatch
from swarm.core.records import INIT, Claim, LearnerRecord, Participant, Rejected, RejectReason, RoundRecord, Snapshot
from swarm.core.rounds import ClaimView, my_claim, next_claim, weight
from swarm.exchange import Exchange
from swarm.runtime.handoff import Tensors
from swarm.tensors.merge import all_finite
from swarm.tensors.outer import merge_and_step
from swarm.tensors.payload import check


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
        snapshots: Mapping[str, Snapshot | None],
        *,
        before: RoundRecord | None,
        theta_sha256: str,
        theta: Tensors,
        control: int,
        waited_s: float,
        quorum_waited_s: float,
    ) -> Closed | None:
        """Merge and commit; None if another syncer committed first. `before`: the fragment's newest record, None at Θ⁰.
        `theta`: its parameters, which stay as they are. Raises MailboxMoved, before anything is written, if the round before
        is not there as this exchange knows it."""
        exchange, spec = self.exchange, self.exchange.manifest.algorithm
        started_s = asyncio.get_running_loop().time()
        fragment = exchange.schedule.fragment(round)
        came_late: list[Rejected] = []
        if round > 0:
            previous = await exchange.round(round - 1)
            if previous is None:
                raise MailboxMoved(f"{exchange.keys.round(round - 1)}: gone: a round cannot follow it")
            came_late = late(await exchange.mailbox.list(exchange.keys.snapshots(round - 1)), previous)
        parent = await exchange.parent_of(round)
        accepted, rejected = sort_out(
            snapshots,
            round=round,
            fragment=fragment,
            base_sha256=theta_sha256,
            schema_sha256=exchange.schema.digest,
            dtype=spec.delta_dtype,
        )
        deltas: list[Tensors] = []
        counted: list[Snapshot] = []
        for snapshot in accepted:
            reason, delta = await self._delta(snapshot, fragment)
            if delta is None or reason is not None:
                refused = Rejected(learner=snapshot.learner, unit=snapshot.unit, reason=reason or "missing", round=round)
                rejected.append(refused)
            else:
                deltas.append(delta)
                counted.append(snapshot)
        theta_ref, outer_ref = exchange.theta_ref(fragment, before), None if before is None else before.outer
        momentum = await exchange.fetch(fragment, outer_ref, dtype="F32") if counted and outer_ref is not None else None
        new_theta: dict[str, Any] | None = None
        while counted and new_theta is None:
            weights = [weight(tokens=s.tokens, steps=s.steps) for s in counted]
            stepped = await exchange.offload(
                functools.partial(self._step, exchange.plan[fragment], theta, momentum, list(deltas), weights)
            )
            if stepped is None:  # finite deltas, whose sum with Θ or m is not: without the largest it may be
                largest = await exchange.offload(functools.partial(_largest, list(deltas)))
                snapshot = counted.pop(largest)
                del deltas[largest]
                rejected.append(Rejected(learner=snapshot.learner, unit=snapshot.unit, reason="norm", round=round))
                continue
            new_theta, new_momentum = stepped
            # Both before the record: whoever sees the record can fetch them.
            theta_ref = await exchange.store(round, new_theta)
            outer_ref = await exchange.store(round, new_momentum)
        record = RoundRecord(
            round=round,
            fragment=fragment,
            step=exchange.schedule.step(round),
            version=round if counted else (INIT if before is None else before.version),
            parent=parent,
            participants=tuple(_participant(s) for s in counted),
            rejected=(*rejected, *came_late),
            theta=theta_ref,
            outer=outer_ref,
            closer=self.me.learner,
            control=control,
            waited_s=waited_s,
            quorum_waited_s=quorum_waited_s,
            close_s=asyncio.get_running_loop().time() - started_s,
        )
        if not await exchange.commit(record):
            return None
        return Closed(record=record, theta=new_theta)

    async def _delta(self, snapshot: Snapshot, fragment: int) -> tuple[RejectReason | None, Tensors | None]:
        """(why it cannot count, its tensors)."""
        exchange = self.exchange
        try:
            delta = await exchange.fetch_delta(snapshot)
            specs = [exchange.schema[name] for name in exchange.plan[fragment]]
            check(delta, specs, snapshot.dtype)
        except PayloadMissing:
            return "missing", None
        except (PayloadCorrupt, MailboxCorrupt):
            return "corrupt", None
        except (HeaderError, SchemaMismatch):
            return "schema", None
        if not await exchange.offload(lambda: all(all_finite(array) for array in delta.values())):
            return "nonfinite", None
        return None, delta

    def _step(
        self,
        names: Sequence[str],
        theta: Tensors,
        momentum: Tensors | None,
        deltas: Sequence[Tensors],
        weights: Sequence[float],
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The new (Θ, m) of a fragment; None if a number of theirs is not finite."""
        spec = self.exchange.manifest.algorithm
        new_theta, new_momentum = {}, {}
        for name in names:
            t = np.array(theta[name])
            m = np.zeros(t.shape, np.float32) if momentum is None else np.array(momentum[name])
            merge_and_step(t, m, [delta[name] for delta in deltas], weights, lr=spec.outer_lr, beta=spec.outer_momentum)
            if not (all_finite(t) and all_finite(m)):
                return None
            new_theta[name], new_momentum[name] = t, m
            self.exchange.progress_bytes += t.nbytes  # else a long merge would look stuck, and be overtaken
        return new_theta, new_momentum


def _largest(deltas: Sequence[Tensors]) -> int:
    """The first delta that holds the number of the largest size. Comparisons alone: every machine finds the same."""
    sizes = [max((float(np.abs(a).max()) for a in delta.values() if a.size), default=0.0) for delta in deltas]
    return sizes.index(max(sizes))


def _participant(snapshot: Snapshot) -> Participant:
    return Participant(
        learner=snapshot.learner,
        unit=snapshot.unit,
        weight=weight(tokens=snapshot.tokens, steps=snapshot.steps),
        tokens=snapshot.tokens,
        steps=snapshot.steps,
        train_loss=snapshot.train_loss,
        seconds_s=snapshot.seconds_s,
        size_bytes=snapshot.payload.size_bytes,
    )
