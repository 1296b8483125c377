"""Payloads: publish, fetch and commit over a mailbox. The order of writes lives here and only here: payload before record.

A process killed between any two writes leaves at most a payload that no record names.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from swarm.core import keys
from swarm.core.errors import HeaderError, PayloadCorrupt, PayloadMissing, SchemaMismatch
from swarm.core.lines import encode
from swarm.core.manifest import INIT, Manifest, PayloadRef
from swarm.core.records import Checkpoint, RoundRecord, Snapshot
from swarm.garbage import old_checkpoints, referred, superseded
from swarm.host.memory import LARGE_BYTES, give_back
from swarm.mailbox.contract import PART_BYTES, Buffer, Mailbox
from swarm.manifests import read_to_write
from swarm.tape import Tape, derived_nonce
from swarm.tape import nonce as fresh_nonce
from swarm.tensors.blocks import in_one_piece, piece
from swarm.tensors.codec import check_names, payload_specs
from swarm.tensors.commit import OuterStep, rebuild
from swarm.tensors.payload import MAX_HEADER_BYTES, Packed, check, header_size, parse_header, unpack
from swarm.tensors.precision import BUFFER_DTYPES
from swarm.tensors.schema import Schema
from swarm.tensors.stream import Gathering, Growing, Named, check_listed, spans_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[Any]]

Offload: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs work that takes long with a big model somewhere else than on the event loop, where the beats would wait for it."""
HEAD_BYTES = 64 << 10  # read at first of a payload that is read a part at a time: as a rule its header, and no more


async def inline(work: Callable[[], Any]) -> Any:
    """Do it here and now: where nobody waits for a beat, and for models so small that a thread costs more."""
    return work()


def check_payloads(manifest: Manifest) -> None:
    """Raises UsageError if what deltas, updates or outer payloads of such a run hold beside a parameter (a scale, a master
    copy, a second moment) would have another parameter's name."""
    spec, specs = manifest.by_rounds, manifest.tensors
    for dtype in (spec.delta_dtype, spec.commit_dtype):
        check_names(specs, dtype)
    OuterStep.of(spec).check_names(specs)


async def create_run(
    mailbox: Mailbox, manifest: Manifest, init: Sequence[Tensors], *, nonce: str | None = None
) -> tuple[Manifest, bool]:
    """Write Θ⁰, by fragment, then the manifest that refers to it. Returns the run's manifest, and whether it is this one.

    Of several that create a run of the same id at once one wins; the others get its manifest, and what they wrote is swept
    once the run trains. To repeat it after a lost reply is harmless; with the same `nonce` the answer is the same, too.
    Raises UsageError before anything is written if parameters have names that the run's payloads need (`check_payloads`).
    """
    check_payloads(manifest)
    place = keys.RunKeys(manifest.run)
    refs = []
    for fragment, tensors in enumerate(init):
        packed = Packed(tensors)
        await mailbox.put(_named(packed, functools.partial(place.init_blob, fragment)), packed)
        refs.append(PayloadRef(round=INIT, sha256=packed.sha256, size_bytes=packed.size_bytes))
    manifest = msgspec.structs.replace(manifest, init=tuple(refs))
    if await mailbox.create(place.manifest, encode(manifest, nonce=nonce or fresh_nonce())):
        return manifest, True
    return await read_to_write(mailbox, manifest.run), False


class Exchange(Tape):
    """One run's records and payloads."""

    def __init__(self, mailbox: Mailbox, manifest: Manifest, *, offload: Offload = inline) -> None:
        super().__init__(mailbox, manifest)
        self.offload = offload
        self.schema = Schema(manifest.tensors)
        self._referred: dict[int, frozenset[str]] = {}  # what the newest records that were seen refer to, by round
        self._swept_init = False
        self.sent_bytes = self.received_bytes = 0
        self.progress_bytes = 0  # grows while anything moves

    # Reading

    async def round(self, round: int) -> RoundRecord | None:
        record = await super().round(round)
        if record is not None:
            self._remember(record)
        return record

    async def commit(self, record: RoundRecord) -> bool:
        won = await super().commit(record)
        if won:
            self._remember(record)
        return won

    def _remember(self, record: RoundRecord) -> None:
        self._referred[record.round] = referred(record)
        while len(self._referred) > 2 * len(self.plan):
            del self._referred[min(self._referred)]

    def theta_ref(self, fragment: int, record: RoundRecord | None) -> PayloadRef:
        return self.manifest.init[fragment] if record is None else record.theta

    def key_of(self, fragment: int, ref: PayloadRef) -> str:
        """Where a theta, outer or update payload of `fragment` stands."""
        if ref.round == INIT:
            return self.keys.init_blob(fragment, ref.sha256)
        return self.keys.round_blob(ref.round, ref.sha256)

    def delta_key(self, snapshot: Snapshot) -> str:
        return self.keys.snapshot_blob(snapshot.round, snapshot.learner, snapshot.payload.sha256)

    def snapshot_key(self, snapshot: Snapshot) -> str:
        return self.keys.snapshot(
            snapshot.round,
            unit=snapshot.unit,
            learner=snapshot.learner,
            incarnation=snapshot.incarnation,
            claim=snapshot.claim,
        )

    async def fetch(self, fragment: int, ref: PayloadRef, *, dtype: str | None = None) -> Tensors:
        """A theta or outer payload of `fragment`, verified: read-only arrays by name. `dtype`: of all tensors (outer: F32);
        None: each parameter's own. Fetched again if it is not what its hash says: it may be damaged on its way only. Raises
        PayloadMissing, PayloadCorrupt; HeaderError, SchemaMismatch for a payload that no honest closer commits."""
        key = self.key_of(fragment, ref)
        try:
            tensors = await self._whole(key, ref)
        except PayloadCorrupt:
            tensors = await self._whole(key, ref)
        check(tensors, [self.schema[name] for name in self.plan[fragment]], dtype)
        return tensors

    async def fetch_theta(self, fragment: int, record: RoundRecord | None, held: tuple[str, Tensors] | None = None) -> Tensors:
        """The parameters of `fragment` after `record` (None: Θ⁰), verified, each in its own dtype. `held`: parameters that are
        here already, with the SHA-256 of their payload. If these are what the record's update starts from, and it is smaller,
        that is fetched instead. Raises as `fetch` does."""
        ref = self.theta_ref(fragment, record)
        if record is not None and record.update is not None and held is not None:
            tensors = await self._updated(fragment, record, held)
            if tensors is not None:
                return tensors
        return await self.fetch(fragment, ref)

    async def _updated(self, fragment: int, record: RoundRecord, held: tuple[str, Tensors]) -> Tensors | None:
        """`held` with the record's update, if that gives the bytes of its theta."""
        update, dtype = record.update, self.manifest.by_rounds.commit_dtype
        before = record.round - len(self.plan)
        if update is None or dtype is None or update.size_bytes >= record.theta.size_bytes:
            return None
        base = self.theta_ref(fragment, await self.round(before) if before >= 0 else None)
        if base.sha256 != held[0]:
            return None
        specs = {name: self.schema[name] for name in self.plan[fragment]}
        wanted = payload_specs(specs.values(), dtype)
        owner = {name: spec.name for spec in specs.values() for name, _, _ in payload_specs([spec], dtype)}
        theta = in_one_piece({name: (spec.shape, BUFFER_DTYPES[spec.dtype]) for name, spec in specs.items()})

        def apply(parameters: Mapping[str, Tensors]) -> None:
            for name, tensors in parameters.items():
                check(tensors, [specs[name]], dtype)
                rebuild(held[1][name], tensors, spec=specs[name], dtype=dtype, out=theta[name])
                theta[name].flags.writeable = False

        try:
            stream = self.stream(self.key_of(fragment, update), update, wanted, owner)
            async with contextlib.aclosing(stream) as read:
                async for parameters in read:
                    await self.offload(functools.partial(apply, parameters))
        except (PayloadMissing, PayloadCorrupt, HeaderError, SchemaMismatch):
            return None  # the theta is always there
        packed = Packed(theta)
        await self.offload(lambda: collections.deque(packed, maxlen=0))
        return theta if packed.sha256 == record.theta.sha256 else None

    async def _whole(self, key: str, ref: PayloadRef) -> Tensors:
        """All tensors of a payload, in one piece of memory."""
        self._check_size(key, ref)
        await self.make_room(ref.size_bytes)
        memory = piece if ref.size_bytes >= PART_BYTES else functools.partial(np.empty, dtype=np.uint8)
        buffer = memory(ref.size_bytes + 1).data  # one byte more: whether there is more than was promised
        sha = hashlib.sha256()
        for begin in range(0, ref.size_bytes, PART_BYTES):
            part = buffer[begin : min(begin + PART_BYTES, ref.size_bytes)]
            await self._read(key, ref, begin, buffer[begin : begin + len(part) + (begin + len(part) == ref.size_bytes)])
            await self.offload(functools.partial(sha.update, part))
        self._verify(key, ref, sha.hexdigest())
        tensors: Tensors = await self.offload(lambda: unpack(buffer[: ref.size_bytes]))
        return tensors

    async def stream(
        self,
        key: str,
        ref: PayloadRef,
        wanted: Sequence[Named],
        owner: Mapping[str, str],
        *,
        written: bool = False,
        canonical: bool = False,
        limit_bytes: int = PART_BYTES,
    ) -> AsyncGenerator[dict[str, dict[str, NDArray[Any]]], None]:
        """The payload's tensors as they are read, some at a time, put together by parameter: parameter → read-only arrays by
        name, good until the next turn. `wanted`: exactly what it must hold; `owner`: names of tensors → names of parameters.
        `written`: the arrays may be written to, and be given to a put that writes them on, as far as a Source may change.
        `canonical`: it must hold them in the order of their names, so that of several payloads that are read side by side each
        has the same ones in turn; then at most `limit_bytes` at once, but whole tensors.

        Whether the bytes are what was promised is known at the end only: until this raises PayloadCorrupt there, or does not,
        whatever is made of them must be kept from everybody's eyes. Raises PayloadMissing, HeaderError and SchemaMismatch too.
        """
        seen = [memoryview(b"")]
        stream = self._stream(key, ref, wanted, owner, seen, written=written, canonical=canonical, limit_bytes=limit_bytes)
        try:
            async with contextlib.aclosing(stream) as read:
                async for parameters in read:
                    yield parameters
        except (HeaderError, SchemaMismatch):
            if await self._is_damaged(key, ref, seen[0]):  # what its header says is worth no more than the rest
                raise PayloadCorrupt(key, ref.sha256, "0" * 64) from None
            raise

    async def _is_damaged(self, key: str, ref: PayloadRef, head: memoryview) -> bool:
        """Whether a payload that began with `head` is not what it should be, or was not when that was read."""
        sha, same = hashlib.sha256(), True
        buffer = np.empty(min(ref.size_bytes, PART_BYTES) + 1, np.uint8).data
        for begin in range(0, ref.size_bytes, PART_BYTES):
            size = min(PART_BYTES, ref.size_bytes - begin)
            await self._read(key, ref, begin, buffer[: size + (begin + size == ref.size_bytes)])
            await self.offload(functools.partial(sha.update, buffer[:size]))
            known = head[begin : begin + size]
            same = same and buffer[: len(known)] == known
        return not same or sha.hexdigest() != ref.sha256

    async def _stream(
        self,
        key: str,
        ref: PayloadRef,
        wanted: Sequence[Named],
        owner: Mapping[str, str],
        seen: list[memoryview],
        *,
        written: bool,
        canonical: bool,
        limit_bytes: int,
    ) -> AsyncGenerator[dict[str, dict[str, NDArray[Any]]], None]:
        """`seen`: gets what was read of its beginning."""
        self._check_size(key, ref)
        sha = hashlib.sha256()
        # Of a small payload all, and whether there is more of it than was promised.
        head = np.empty(min(HEAD_BYTES, ref.size_bytes + 1), np.uint8).data
        await self._read(key, ref, 0, head)
        seen[0] = head
        begin = header_size(head, ref.size_bytes)
        if begin > len(head):
            longer = np.empty(begin, np.uint8).data
            longer[: len(head)] = head
            await self._read(key, ref, len(head), longer[len(head) :])
            head = longer
        seen[0] = head
        entries = await self.offload(functools.partial(parse_header, head, ref.size_bytes))
        check_listed(entries, wanted)
        names = [entry.name for entry in entries]
        if canonical and names != sorted(names):
            raise SchemaMismatch(names, advice="the tensors do not stand in the order of their names")
        sha.update(head[:begin])
        spans = spans_of(entries, owner, limit_bytes=limit_bytes)
        largest = max((span.end - span.begin for span in spans), default=0) + 1
        # Of the large ones each has memory of its own, if need be: a few of these at once would be too much.
        ring = _Ring(4, min(largest, PART_BYTES + 1)) if written else _Ring(1, largest)
        gathering = Gathering(owner)
        for span in spans:
            size, last = span.end - span.begin, span is spans[-1]
            buffer = ring.next(size + 1)
            for at in range(0, size, PART_BYTES):
                part = buffer[at : min(at + PART_BYTES, size)]
                end = at + len(part) + (last and at + len(part) == size and len(head) <= ref.size_bytes)
                known = head[span.begin + at : span.begin + at + len(part)]
                buffer[at : at + len(known)] = known
                if at + len(known) < end:
                    await self._read(key, ref, span.begin + at + len(known), buffer[at + len(known) : end])
                await self.offload(functools.partial(sha.update, part))
            yield gathering.take(span, buffer[:size])
        self._verify(key, ref, sha.hexdigest())

    async def make_room(self, size_bytes: int) -> None:
        """Before so much memory is asked for."""
        if size_bytes >= LARGE_BYTES:
            await self.offload(give_back)

    def _check_size(self, key: str, ref: PayloadRef) -> None:
        limit = 8 + MAX_HEADER_BYTES + 3 * 4 * self.schema.size  # no honest payload of this run is larger
        if not 8 <= ref.size_bytes <= limit:
            raise PayloadCorrupt(key, ref.sha256, "0" * 64)

    async def _read(self, key: str, ref: PayloadRef, offset: int, view: memoryview) -> None:
        """Fill `view` from the payload. It may reach one byte beyond the promised end, which must then not be there."""
        size = await self.mailbox.read_part(key, offset, view)
        if size is None:
            raise PayloadMissing(key)
        if size != min(len(view), ref.size_bytes - offset):
            raise PayloadCorrupt(key, ref.sha256, "0" * 64)
        self.received_bytes += size
        self.progress_bytes += size

    def _verify(self, key: str, ref: PayloadRef, sha256: str) -> None:
        if sha256 != ref.sha256:
            raise PayloadCorrupt(key, ref.sha256, sha256)

    # Writing

    async def publish(self, snapshot: Snapshot, delta: Tensors) -> Snapshot:
        """Payload, then record. Returns the snapshot with its payload's reference. Harmless to repeat."""
        packed = Packed(delta)
        place = functools.partial(self.keys.snapshot_blob, snapshot.round, snapshot.learner)
        snapshot = msgspec.structs.replace(snapshot, payload=await self._put(packed, place, snapshot.round))
        await self.mailbox.put(self.snapshot_key(snapshot), [encode(snapshot, nonce=derived_nonce(snapshot))])
        return snapshot

    async def store(self, round: int, tensors: Tensors) -> PayloadRef:
        """Write a payload of `round`, which nothing refers to yet."""
        return await self._put(Packed(tensors), functools.partial(self.keys.round_blob, round), round)

    async def store_growing(
        self, round: int, named: Sequence[Named], tensors: Callable[[], AsyncIterator[Tensors]]
    ) -> PayloadRef:
        """The same, of tensors that come about while they are written. What `tensors` raises gets out as it is."""
        growing = Growing(named, tensors, offload=self.offload, progressed=self._moved)
        await self.mailbox.put(_named(growing, functools.partial(self.keys.round_blob, round)), growing)
        self.sent_bytes += growing.size_bytes
        return PayloadRef(round=round, sha256=growing.sha256, size_bytes=growing.size_bytes)

    async def _put(self, packed: Packed, key_of: Callable[[str], str], round: int) -> PayloadRef:
        await self.mailbox.put(_named(packed, key_of), _Counted(packed, self._moved))
        self.sent_bytes += packed.size_bytes
        return PayloadRef(round=round, sha256=packed.sha256, size_bytes=packed.size_bytes)

    def _moved(self, size_bytes: int) -> None:
        self.progress_bytes += size_bytes

    # Keeping

    async def keep_checkpoint(self, round: int, theta: Callable[[int], Awaitable[Tensors]]) -> None:
        """Keep the parameters after `round` beside those that training needs; of older ones all but the newest
        `checkpoints_kept` go. `theta` gives those of a fragment. Harmless to repeat. What `theta` raises gets out."""
        refs = []
        for fragment in range(len(self.plan)):
            place = functools.partial(self.keys.checkpoint_blob, round, fragment)
            refs.append(await self._put(Packed(await theta(fragment)), place, round))
        record = Checkpoint(round=round, theta=tuple(refs))
        await self.mailbox.create(self.keys.checkpoint(round), encode(record, nonce=derived_nonce(record)))
        for old in await old_checkpoints(self, round):
            await self.mailbox.delete(old)

    async def fetch_checkpoint(self, round: int) -> Tensors:
        """The parameters after `round`, of the whole model. Raises PayloadMissing if they are not kept, or no longer;
        MailboxCorrupt, PayloadCorrupt, HeaderError, SchemaMismatch."""
        record = await self.checkpoint(round)
        if record is None:
            raise PayloadMissing(self.keys.checkpoint(round))
        theta: dict[str, NDArray[Any]] = {}
        for fragment, ref in enumerate(record.theta):
            tensors = await self._whole(self.keys.checkpoint_blob(round, fragment, ref.sha256), ref)
            check(tensors, [self.schema[name] for name in self.plan[fragment]])
            theta |= tensors
        return theta

    async def sweep(self, newest: int, *, fetching: frozenset[str]) -> int:
        """Delete what no fragment's two newest records need: payloads, snapshots and claims of rounds at least two cycles
        back, and what creators wrote that came second. Payloads whose SHA-256 is in `fetching` stay. Returns how many objects
        went."""
        init = newest - 2 * len(self.plan) >= 0 and not self._swept_init
        found = await superseded(self, newest, fetching=fetching, known=self._referred, init=init)
        doomed = [key for each in found.values() for key in each]
        if doomed:
            await self.mailbox.delete(doomed)
        self._swept_init = self._swept_init or init
        return len(doomed)


class _Ring:
    """Buffers that are used in turn: memory that is asked for anew is slow at first."""

    def __init__(self, count: int, size: int) -> None:
        self._count, self._size = count, size
        self._buffers: collections.deque[memoryview] = collections.deque()

    def next(self, size: int) -> memoryview:
        """At least `size` bytes."""
        if size > self._size:
            return np.empty(size, np.uint8).data
        if len(self._buffers) == self._count:
            self._buffers.rotate(-1)
        else:
            self._buffers.append(np.empty(self._size, np.uint8).data)
        return self._buffers[-1]


class _Counted:
    """A source whose progress can be followed while it is written."""

    def __init__(self, packed: Packed, moved: Callable[[int], None]) -> None:
        self._packed, self._moved = packed, moved

    def __iter__(self) -> Iterator[Buffer]:
        for chunk in self._packed:
            yield chunk
            self._moved(len(chunk))


def _named(packed: Packed | Growing, key_of: Callable[[str], str]) -> Callable[[], str]:
    return lambda: key_of(packed.sha256)
