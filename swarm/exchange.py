"""Payloads: publish, fetch and commit over a mailbox. The order of writes lives here and only here: payload before record.

A process killed between any two writes leaves at most a payload that no record names.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from swarm.core import keys
from swarm.core.errors import MailboxCorrupt, PayloadCorrupt, PayloadMissing
from swarm.core.records import INIT, Manifest, PayloadRef, RoundRecord, Snapshot, encode
from swarm.mailbox.contract import Buffer, Mailbox
from swarm.tape import Tape, derived_nonce, nonce
from swarm.tensors.payload import MAX_HEADER_BYTES, Packed, check, unpack, verify
from swarm.tensors.schema import Schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[Any]]

Offload: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs work that takes long with a big model somewhere else than on the event loop, where the beats would wait for it."""


async def inline(work: Callable[[], Any]) -> Any:
    """Do it here and now: where nobody waits for a beat, and for models so small that a thread costs more."""
    return work()


async def create_run(mailbox: Mailbox, manifest: Manifest, init: Sequence[Tensors]) -> Manifest:
    """Write Θ⁰, by fragment, then the manifest that refers to it. Returns the manifest with its references."""
    place = keys.RunKeys(manifest.run)
    refs = []
    for fragment, tensors in enumerate(init):
        packed = Packed(tensors)
        await mailbox.put(_named(packed, functools.partial(place.init_blob, fragment)), packed)
        refs.append(PayloadRef(round=INIT, sha256=packed.sha256, size_bytes=packed.size_bytes))
    manifest = msgspec.structs.replace(manifest, init=tuple(refs))
    if not await mailbox.create(place.manifest, encode(manifest, nonce=nonce())):
        raise MailboxCorrupt(f"{place.manifest} exists already")
    return manifest


class Exchange(Tape):
    """One run's records and payloads."""

    def __init__(self, mailbox: Mailbox, manifest: Manifest, *, offload: Offload = inline) -> None:
        super().__init__(mailbox, manifest)
        self.offload = offload
        self.schema = Schema(manifest.tensors)
        self.sent_bytes = self.received_bytes = 0
        self.progress_bytes = 0  # grows while anything moves

    def theta_ref(self, fragment: int, record: RoundRecord | None) -> PayloadRef:
        return self.manifest.init[fragment] if record is None else record.theta

    async def fetch(self, fragment: int, ref: PayloadRef, *, dtype: str | None = None) -> Tensors:
        """A theta or outer payload of `fragment`, verified: read-only arrays by name. `dtype`: of all tensors (outer: F32);
        None: each parameter's own. Raises PayloadMissing, PayloadCorrupt; HeaderError, SchemaMismatch for a payload that no
        honest closer commits."""
        key = self.keys.init_blob(fragment, ref.sha256) if ref.round == INIT else self.keys.round_blob(ref.round, ref.sha256)
        tensors = await self._payload(key, ref)
        check(tensors, [self.schema[name] for name in self.plan[fragment]], dtype)
        return tensors

    async def fetch_delta(self, snapshot: Snapshot) -> Tensors:
        """A snapshot's delta, verified. Raises PayloadMissing, PayloadCorrupt, HeaderError."""
        key = self.keys.snapshot_blob(snapshot.round, snapshot.learner, snapshot.payload.sha256)
        return await self._payload(key, snapshot.payload)

    async def _payload(self, key: str, ref: PayloadRef) -> Tensors:
        limit = 8 + MAX_HEADER_BYTES + 4 * self.schema.size  # no honest payload of this run is larger
        if ref.size_bytes > limit:
            raise PayloadCorrupt(key, ref.sha256, "0" * 64)
        buffer = np.empty(ref.size_bytes, np.uint8).data  # a bytearray would be zeroed, here on the event loop
        size = await self.mailbox.read_into(key, buffer)
        if size is None:
            raise PayloadMissing(key)
        if size != len(buffer):
            raise PayloadCorrupt(key, ref.sha256, "0" * 64)
        tensors: Tensors = await self.offload(functools.partial(_verified, key, buffer, ref.sha256))
        self.received_bytes += size
        self.progress_bytes += size
        return tensors

    async def publish(self, snapshot: Snapshot, delta: Tensors) -> Snapshot:
        """Payload, then record. Returns the snapshot with its payload's reference. Harmless to repeat."""
        packed = Packed(delta)
        place = functools.partial(self.keys.snapshot_blob, snapshot.round, snapshot.learner)
        await self._put(packed, place)
        ref = PayloadRef(round=snapshot.round, sha256=packed.sha256, size_bytes=packed.size_bytes)
        snapshot = msgspec.structs.replace(snapshot, payload=ref)
        key = self.keys.snapshot(snapshot.round, unit=snapshot.unit, learner=snapshot.learner, incarnation=snapshot.incarnation)
        await self.mailbox.put(key, [encode(snapshot, nonce=derived_nonce(snapshot))])
        return snapshot

    async def store(self, round: int, tensors: Tensors) -> PayloadRef:
        """Write a payload of `round`, which nothing refers to yet."""
        packed = Packed(tensors)
        await self._put(packed, functools.partial(self.keys.round_blob, round))
        return PayloadRef(round=round, sha256=packed.sha256, size_bytes=packed.size_bytes)

    async def sweep(self, newest: int, *, fetching: frozenset[str]) -> int:
        """Delete what no fragment's two newest records need: payloads, snapshots and claims of rounds at least two cycles
        back. Payloads whose SHA-256 is in `fetching` stay. Returns how many objects went."""
        last = newest - 2 * len(self.plan)
        kept = set(fetching)
        for round in range(max(0, last + 1), newest + 1):
            record = await self.round(round)
            if record is not None:
                kept |= {ref.sha256 for ref in (record.theta, record.outer, record.update) if ref is not None}
        doomed: list[str] = []
        for kind in ("blobs/rounds/", "blobs/snapshots/", "snapshots/", "claims/"):
            prefix = f"{self.keys.root}/{kind}"
            for name in await self.mailbox.names(prefix):
                if name.isdecimal() and int(name) <= last:
                    doomed += await self.mailbox.list(f"{prefix}{name}/")
        doomed = [key for key in doomed if key.rsplit("/", 1)[1].split(".")[0] not in kept]
        if doomed:
            await self.mailbox.delete(doomed)
        return len(doomed)

    async def _put(self, packed: Packed, key_of: Callable[[str], str]) -> None:
        await self.mailbox.put(_named(packed, key_of), _Counted(packed, self))
        self.sent_bytes += packed.size_bytes


class _Counted:
    """A source whose progress can be followed while it is written."""

    def __init__(self, packed: Packed, exchange: Exchange) -> None:
        self._packed, self._exchange = packed, exchange

    def __iter__(self) -> Iterator[Buffer]:
        for chunk in self._packed:
            yield chunk
            self._exchange.progress_bytes += len(chunk)


def _verified(key: str, buffer: memoryview, sha256: str) -> Tensors:
    verify(key, buffer, sha256)
    return unpack(buffer)


def _named(packed: Packed, key_of: Callable[[str], str]) -> Callable[[], str]:
    return lambda: key_of(packed.sha256)
