"""Merging what was accepted for a round, and the outer step: tensor by tensor, while it is read and written.

A closer holds the sums and the new parameters, which take each other's place; of contributions and of momenta no more than a
part at a time. Whether a contribution is what its hash says is known only once all of it was merged: if it is not, the sums
are worthless, and it is begun again without it. Nothing of that is seen by anybody: the record comes last.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from swarm.core.errors import (
    HeaderError,
    MailboxCorrupt,
    NotFinite,
    PayloadCorrupt,
    PayloadMissing,
    SchemaMismatch,
)
from swarm.core.records import PayloadRef, Rejected, RejectReason, RoundRecord, Snapshot
from swarm.core.rounds import weight
from swarm.exchange import Exchange
from swarm.runtime.handoff import Tensors
from swarm.tensors.codec import payload_specs
from swarm.tensors.commit import OuterStep, commit
from swarm.tensors.fold import Fold, is_embedding
from swarm.tensors.payload import check


@dataclass(frozen=True)
class Counted:
    """A contribution that counts."""

    snapshot: Snapshot
    norm: float  # L2, of its delta


@dataclass(frozen=True)
class Merged:
    theta: Tensors
    theta_ref: PayloadRef
    outer_ref: PayloadRef
    update_ref: PayloadRef | None
    counted: tuple[Counted, ...]


class Merger:
    """Merges contributions to `round` into the fragment's parameters `theta`, which stay as they are. `before`: the
    fragment's newest record, None at Θ⁰."""

    def __init__(self, exchange: Exchange, *, round: int, theta: Tensors, before: RoundRecord | None) -> None:
        self.exchange, self.round, self.theta, self.before = exchange, round, theta, before
        self.spec = exchange.manifest.algorithm
        self.fragment = exchange.schedule.fragment(round)
        self.specs = [exchange.schema[name] for name in exchange.plan[self.fragment]]
        self.rejected: list[Rejected] = []
        self._how = OuterStep.of(self.spec)

    async def merge(self, accepted: Sequence[Snapshot]) -> Merged | None:
        """The new parameters, momenta and update, written; None if nothing counts. `accepted`, sorted by unit. What turns out
        not to count is in `rejected`. Raises PayloadMissing, PayloadCorrupt, HeaderError and SchemaMismatch for a damaged
        momentum: nothing can be merged without it."""
        left = list(accepted)
        fold: Fold | None = None
        exact = self.spec.max_delta_norm is not None  # norms decide something
        await self.exchange.make_room(sum(4 * spec.size for spec in self.specs))
        while left:
            weights = [weight(self.spec, tokens=s.tokens, steps=s.steps) for s in left]
            if fold is None:
                fold = Fold(
                    self.specs,
                    weights,
                    merge=self.spec.merge,
                    dtype=self.spec.delta_dtype,
                    embeddings=frozenset(spec.name for spec in self.specs if is_embedding(spec)),
                    norms=exact,
                )
            else:
                fold.restart(weights, norms=exact)
            refused = await self._fold(fold, left)
            if refused:
                left = [snapshot for snapshot in left if snapshot not in refused]
                continue
            norms = fold.norms
            try:
                theta, outer_ref, update = await self._step(fold)
            except NotFinite:  # finite deltas, whose sum with Θ or m is not: without the largest it may be
                if not exact and len(left) > 1:
                    exact = True  # every closer must find the same one: once more
                    continue
                self._refuse(left.pop(norms.index(max(norms))), "norm")
                continue
            theta_ref = await self.exchange.store(self.round, theta)
            update_ref = await self.exchange.store(self.round, update) if update else None
            counted = tuple(Counted(snapshot, norm) for snapshot, norm in zip(left, norms, strict=True))
            return Merged(theta, theta_ref, outer_ref, update_ref, counted)
        return None

    async def _fold(self, fold: Fold, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
        """Add all of them up; those that must not count, after which the sums are worthless. The others are looked at all the
        same, so that many bad ones cost no more than one more pass."""
        refused: list[Snapshot] = []
        for k, snapshot in enumerate(snapshots):
            if refused:
                fold.restart([1.0])
            reason = await self._add(fold, 0 if refused else k, snapshot)
            if reason is not None:
                self._refuse(snapshot, reason)
                refused.append(snapshot)
        return refused

    async def _add(self, fold: Fold, k: int, snapshot: Snapshot) -> RejectReason | None:
        """Add the fold's `k`-th contribution; why it cannot count, None if it does."""
        exchange, limit = self.exchange, self.spec.max_delta_norm
        specs = {spec.name: spec for spec in self.specs}
        wanted = payload_specs(self.specs, snapshot.dtype)
        owner = {name: spec.name for spec in self.specs for name, _, _ in payload_specs([spec], snapshot.dtype)}

        def add(parameters: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
            for name, tensors in parameters.items():
                check(tensors, [specs[name]], snapshot.dtype)
                fold.add(name, tensors)

        try:
            stream = exchange.stream(exchange.delta_key(snapshot), snapshot.payload, wanted, owner)
            async with contextlib.aclosing(stream) as read:
                async for parameters in read:
                    await exchange.offload(functools.partial(add, parameters))
                    # Else a long merge would look stuck, and be overtaken.
                    exchange.progress_bytes += sum(specs[name].size_bytes for name in parameters)
        except PayloadMissing:
            return "missing"
        except (PayloadCorrupt, MailboxCorrupt):
            return "corrupt"
        except (HeaderError, SchemaMismatch):
            return "schema"
        except NotFinite:
            return "nonfinite"
        return "norm" if limit is not None and fold.norms[k] > limit else None

    def _refuse(self, snapshot: Snapshot, reason: RejectReason) -> None:
        self.rejected.append(Rejected(learner=snapshot.learner, unit=snapshot.unit, reason=reason, round=self.round))

    async def _step(self, fold: Fold) -> tuple[dict[str, NDArray[Any]], PayloadRef, dict[str, NDArray[Any]]]:
        """(new parameters, reference of the outer payload, update). Momenta are read, stepped and written one by one. Raises
        NotFinite for numbers that are not."""
        exchange = self.exchange
        specs = {spec.name: spec for spec in self.specs}
        theta: dict[str, NDArray[Any]] = {}
        update: dict[str, NDArray[Any]] = {}

        def step(name: str, kept: Mapping[str, NDArray[Any]] | None) -> Mapping[str, NDArray[Any]]:
            stepped = commit(specs[name], self._how, theta=self.theta[name], outer=kept, delta=fold.result(name), in_place=True)
            theta[name] = stepped.theta
            update.update(stepped.update)
            return stepped.outer

        async def outer() -> AsyncIterator[Mapping[str, NDArray[Any]]]:
            async with contextlib.aclosing(self._outer()) as read:
                async for name, kept in read:
                    come: Mapping[str, NDArray[Any]] = await exchange.offload(functools.partial(step, name, kept))
                    exchange.progress_bytes += theta[name].nbytes
                    yield come

        outer_ref = await exchange.store_growing(self.round, self._how.outer_specs(self.specs), outer)
        return theta, outer_ref, update

    async def _outer(self) -> AsyncGenerator[tuple[str, Mapping[str, NDArray[Any]] | None], None]:
        """(parameter, its momentum and master as they are) of every parameter; None at Θ⁰."""
        ref = None if self.before is None else self.before.outer
        if ref is None:
            for spec in self.specs:
                yield spec.name, None
            return
        key, wanted = self.exchange.key_of(self.fragment, ref), self._how.outer_specs(self.specs)
        owner = {name: spec.name for spec in self.specs for name, _, _ in self._how.outer_specs([spec])}
        async with contextlib.aclosing(self.exchange.stream(key, ref, wanted, owner, written=True)) as read:
            async for parameters in read:
                for name, kept in parameters.items():
                    yield name, kept
