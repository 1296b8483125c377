"""Merging what was accepted for a round, and the outer step: tensor by tensor, while it is read and written.

A closer holds the sums and the new parameters, which take each other's place; of contributions and of the outer state no more
than a part at a time. Whether a contribution is what its hash says is known only once all of it was merged: if it is not, the
sums are worthless, and it is begun again without it. Nothing of that is seen by anybody: the record comes last.

For a mean contributions are read one after the other. For a median or a trimmed mean all of them are read side by side, and of
each no more than its part of PART_BYTES, or its largest tensor: K of these, that is, of K contributions.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from swarm.core.errors import (
    HeaderError,
    MailboxCorrupt,
    NotFinite,
    PayloadCorrupt,
    PayloadMissing,
    SchemaMismatch,
)
from swarm.core.manifest import PayloadRef
from swarm.core.records import Rejected, RejectReason, RoundRecord, Snapshot
from swarm.core.rounds import weight
from swarm.core.specs import FedAvg
from swarm.exchange import Exchange
from swarm.mailbox.contract import PART_BYTES
from swarm.runtime.handoff import Tensors
from swarm.tensors.codec import payload_specs
from swarm.tensors.commit import OuterStep, commit
from swarm.tensors.fold import Fold, is_embedding
from swarm.tensors.payload import check
from swarm.tensors.robust import Robust

Parameters: TypeAlias = Mapping[str, Mapping[str, NDArray[Any]]]
"""Parameter -> its arrays in a payload."""

_FLAWS: dict[type[Exception], RejectReason] = {
    PayloadMissing: "missing",
    PayloadCorrupt: "corrupt",
    MailboxCorrupt: "corrupt",
    HeaderError: "schema",
    SchemaMismatch: "schema",
    NotFinite: "nonfinite",
}
"""What is wrong with a contribution that raises one of these."""


@dataclass(frozen=True)
class Counted:
    """A contribution that counts."""

    snapshot: Snapshot
    norm: float  # L2, of its delta
    cosine: float | None = None  # of it with the merged one, roughly


@dataclass(frozen=True)
class Merged:
    theta: Tensors
    theta_ref: PayloadRef
    outer_ref: PayloadRef | None  # None if the outer optimizer keeps nothing
    update_ref: PayloadRef | None
    counted: tuple[Counted, ...]  # sorted by unit


class Merger:
    """Merges contributions to `round` into the fragment's parameters `theta`, which stay as they are. `before`: the
    fragment's newest record, None at Θ⁰."""

    def __init__(self, exchange: Exchange, *, round: int, theta: Tensors, before: RoundRecord | None) -> None:
        self.exchange, self.round, self.theta, self.before = exchange, round, theta, before
        self.spec = exchange.manifest.by_rounds
        self.fragment = exchange.schedule.fragment(round)
        self.specs = [exchange.schema[name] for name in exchange.plan[self.fragment]]
        self.rejected: list[Rejected] = []
        self._doubted: set[str] = set()  # units whose contribution was damaged on its way here; '' for the outer state
        self.weightless: list[Snapshot] = []
        """Accepted ones of a weight of zero, sorted by unit: they took part, add nothing, and are not read."""
        self._how = OuterStep.of(self.spec)

    async def merge(self, accepted: Sequence[Snapshot]) -> Merged | None:
        """The new parameters, outer state and update, written; None if nothing counts: there is nobody, or only `weightless`.
        `accepted`, sorted by unit. What turns out not to count is in `rejected`. Raises PayloadMissing, PayloadCorrupt,
        HeaderError and SchemaMismatch for a damaged outer state: nothing can be merged without it."""
        left = [snapshot for snapshot in accepted if self._weight(snapshot)]
        self.weightless = [snapshot for snapshot in accepted if not self._weight(snapshot)]
        sums: Fold | Robust | None = None
        exact = self.spec.max_delta_norm is not None or self.spec.merge in ("median", "trimmed")  # norms decide something
        await self.exchange.make_room(sum(4 * spec.size for spec in self.specs))
        while left:
            sums = self._begin(sums, left, exact=exact)
            if isinstance(sums, Robust):
                spoilt = await self._side_by_side(sums, left)
            else:
                spoilt = await self._fold(sums, left)
            for snapshot, reason in spoilt:
                if reason == "corrupt" and await self._is_whole(snapshot):
                    continue
                self._refuse(snapshot, reason)
                left.remove(snapshot)
            if spoilt:
                continue
            norms = sums.norms
            try:
                theta, outer_ref, update = await self._step(sums)
            except PayloadCorrupt:
                if "" in self._doubted:
                    raise
                self._doubted.add("")  # perhaps only on its way here
                continue
            except NotFinite:  # finite deltas, whose sum with Θ or m is not: without the largest it may be
                if not exact and len(left) > 1:
                    exact = True  # every closer must find the same one: once more
                    continue
                self._refuse(left.pop(norms.index(max(norms))), "norm")
                continue
            theta_ref = await self.exchange.store(self.round, theta)
            update_ref = await self.exchange.store(self.round, update) if update else None
            counted = tuple(map(Counted, left, norms, sums.cosines))
            return Merged(theta, theta_ref, outer_ref, update_ref, counted)
        return None

    def _weight(self, snapshot: Snapshot) -> float:
        return weight(self.spec, tokens=snapshot.tokens, steps=snapshot.steps)

    def _begin(self, sums: Fold | Robust | None, left: Sequence[Snapshot], *, exact: bool) -> Fold | Robust:
        """Sums for these contributions, in the memory of those before."""
        spec, weights = self.spec, [self._weight(snapshot) for snapshot in left]
        match sums:
            case Robust():
                sums.restart(len(left))
                return sums
            case Fold():
                sums.restart(weights, norms=exact)
                return sums
        if isinstance(spec, FedAvg) and spec.merge != "mean":
            trim = spec.trim if spec.merge == "trimmed" else None
            return Robust(self.specs, len(left), trim=trim, dtype=spec.delta_dtype)
        return Fold(
            self.specs,
            weights,
            merge="rda" if spec.merge == "rda" else "mean",
            dtype=spec.delta_dtype,
            embeddings=frozenset(spec.name for spec in self.specs if is_embedding(spec)),
            norms=exact,
        )

    async def _is_whole(self, snapshot: Snapshot) -> bool:
        """Whether a contribution that was not what its hash says is so now: it was damaged on its way here only. Once each."""
        if snapshot.unit in self._doubted:
            return False
        self._doubted.add(snapshot.unit)
        with contextlib.suppress(*_FLAWS):
            async with contextlib.aclosing(self._read(snapshot)) as read:
                async for parameters in read:
                    self._moved(parameters)
            return True
        return False

    async def _fold(self, fold: Fold, snapshots: Sequence[Snapshot]) -> list[tuple[Snapshot, RejectReason]]:
        """Add all of them up; those that must not count and why, after which the sums are worthless. The others are looked at
        all the same, so that many bad ones cost no more than one more pass."""
        spoilt: list[tuple[Snapshot, RejectReason]] = []
        for k, snapshot in enumerate(snapshots):
            if spoilt:
                fold.restart([1.0])
            reason = await self._add(fold, 0 if spoilt else k, snapshot)
            if reason is not None:
                spoilt.append((snapshot, reason))
        return spoilt

    async def _add(self, fold: Fold, k: int, snapshot: Snapshot) -> RejectReason | None:
        """Add the fold's `k`-th contribution; why it cannot count, None if it does."""

        def add(parameters: Parameters) -> None:
            for name, tensors in parameters.items():
                self._check(name, tensors)
                fold.add(name, tensors)

        try:
            async with contextlib.aclosing(self._read(snapshot)) as read:
                async for parameters in read:
                    await self.exchange.offload(functools.partial(add, parameters))
                    self._moved(parameters)
        except tuple(_FLAWS) as error:
            return _reason(error)
        return "norm" if self._too_long(fold.norms[k]) else None

    async def _side_by_side(self, robust: Robust, snapshots: Sequence[Snapshot]) -> list[tuple[Snapshot, RejectReason]]:
        """The same, a part of all of them at a time."""
        reasons: dict[int, RejectReason] = {}

        def look(k: int, parameters: Parameters) -> None:
            for name, tensors in parameters.items():
                self._check(name, tensors)
                robust.look(k, name, tensors)

        def add(parts: Sequence[Parameters]) -> None:
            for name in parts[0]:
                robust.add(name, [part[name] for part in parts])

        async with contextlib.AsyncExitStack() as stack:
            reads: dict[int, AsyncGenerator[Parameters, None]] = {}
            for k, snapshot in enumerate(snapshots):
                part_bytes = PART_BYTES // len(snapshots)
                reads[k] = await stack.enter_async_context(contextlib.aclosing(self._read(snapshot, part_bytes=part_bytes)))
            while reads:
                parts: list[Parameters] = []
                for k, read in list(reads.items()):
                    try:
                        parameters = await anext(read, None)
                        if parameters is None:  # all of it was read, and is what its hash says
                            del reads[k]
                            continue
                        await self.exchange.offload(functools.partial(look, k, parameters))
                    except tuple(_FLAWS) as error:
                        reasons[k] = _reason(error)
                        del reads[k]
                        continue
                    parts.append(parameters)
                    self._moved(parameters)
                if parts and not reasons:
                    await self.exchange.offload(functools.partial(add, parts))
        for k, norm in enumerate(robust.norms):
            if k not in reasons and self._too_long(norm):
                reasons[k] = "norm"
        return [(snapshots[k], reasons[k]) for k in sorted(reasons)]

    def _read(self, snapshot: Snapshot, *, part_bytes: int | None = None) -> AsyncGenerator[Parameters, None]:
        """A contribution's payload, as Exchange.stream gives it. `part_bytes`: it is read beside others."""
        wanted = payload_specs(self.specs, snapshot.dtype)
        owner = {name: spec.name for spec in self.specs for name, _, _ in payload_specs([spec], snapshot.dtype)}
        key = self.exchange.delta_key(snapshot)
        if part_bytes is None:
            return self.exchange.stream(key, snapshot.payload, wanted, owner)
        return self.exchange.stream(key, snapshot.payload, wanted, owner, canonical=True, limit_bytes=part_bytes)

    def _check(self, name: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        check(tensors, [self.exchange.schema[name]], self.spec.delta_dtype)

    def _too_long(self, norm: float) -> bool:
        return self.spec.max_delta_norm is not None and norm > self.spec.max_delta_norm

    def _moved(self, parameters: Parameters) -> None:
        """Else a long merge would look stuck, and be overtaken."""
        self.exchange.progress_bytes += sum(self.exchange.schema[name].size_bytes for name in parameters)

    def _refuse(self, snapshot: Snapshot, reason: RejectReason) -> None:
        self.rejected.append(Rejected(learner=snapshot.learner, unit=snapshot.unit, reason=reason, round=self.round))

    async def _step(self, sums: Fold | Robust) -> tuple[dict[str, NDArray[Any]], PayloadRef | None, dict[str, NDArray[Any]]]:
        """(new parameters, reference of the outer payload, update). The outer state is read, stepped and written tensor by
        tensor. Raises NotFinite for numbers that are not."""
        exchange = self.exchange
        specs = {spec.name: spec for spec in self.specs}
        theta: dict[str, NDArray[Any]] = {}
        update: dict[str, NDArray[Any]] = {}

        def step(name: str, kept: Mapping[str, NDArray[Any]] | None) -> Mapping[str, NDArray[Any]]:
            stepped = commit(specs[name], self._how, theta=self.theta[name], outer=kept, delta=sums.result(name), in_place=True)
            theta[name] = stepped.theta
            update.update(stepped.update)
            return stepped.outer

        async def outer() -> AsyncIterator[Mapping[str, NDArray[Any]]]:
            async with contextlib.aclosing(self._outer()) as read:
                async for name, kept in read:
                    come: Mapping[str, NDArray[Any]] = await exchange.offload(functools.partial(step, name, kept))
                    exchange.progress_bytes += theta[name].nbytes
                    yield come

        named = self._how.outer_specs(self.specs)
        if named:
            return theta, await exchange.store_growing(self.round, named, outer), update
        async for _ in outer():
            pass
        return theta, None, update

    async def _outer(self) -> AsyncGenerator[tuple[str, Mapping[str, NDArray[Any]] | None], None]:
        """(parameter, what is kept for it, as it was) of every parameter; None at Θ⁰, and for one for which nothing is."""
        wanted = self._how.outer_specs(self.specs)
        owner = {name: spec.name for spec in self.specs for name, _, _ in self._how.outer_specs([spec])}
        ref = None if self.before is None or not wanted else self.before.outer
        for spec in self.specs:
            if ref is None or spec.name not in owner.values():
                yield spec.name, None
        if ref is None:
            return
        key = self.exchange.key_of(self.fragment, ref)
        async with contextlib.aclosing(self.exchange.stream(key, ref, wanted, owner, written=True)) as read:
            async for parameters in read:
                for name, kept in parameters.items():
                    yield name, kept


def _reason(error: Exception) -> RejectReason:
    return next(reason for kind, reason in _FLAWS.items() if isinstance(error, kind))
