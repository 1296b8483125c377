"""One run, checked from end to end: each record, what follows from what, each payload.

A run may go on meanwhile. What it deletes under our eyes is no fault: so whatever seems to be missing is looked at again when
all else is done, beside what the run says then.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from swarm.audit.faults import Fault, Report, Wrong, remedy_of
from swarm.audit.hashing import AT_ONCE, Reader, Whole
from swarm.audit.records import AGAIN_S, Read, read_record
from swarm.core.catalog import SWEPT, Place, place_of
from swarm.core.errors import HeaderError, MailboxCorrupt, MailboxUnavailable
from swarm.core.header import ALL_BYTES, WIRE_BYTES, parse_header
from swarm.core.keys import RunKeys
from swarm.core.manifest import FileRef, Manifest
from swarm.core.tensorspec import TensorSpec
from swarm.mailbox.contract import Mailbox

T = TypeVar("T")
Still = Callable[[], Awaitable[bool]]
RECORDS_AT_ONCE = 8


@dataclass(frozen=True)
class Referred:
    """What some record says of an object."""

    size_bytes: int
    needed: bool
    """Whether it must be there; else it may have been deleted by now."""
    still: Still
    """Whether it must be there even now."""
    specs: tuple[TensorSpec, ...] | None = None
    """Exactly what it holds; None: that is not checked."""
    sha256: str = ""
    """Where the key does not tell it: of a chunk, and of hashes."""


@dataclass
class Missing:
    fault: Fault
    still: Still


@dataclass
class Check:
    """What was found out of one run so far. `mailbox` shows the records that count, `plain` all of them."""

    mailbox: Mailbox
    plain: Mailbox
    run: str
    manifest: Manifest | None
    sizes: Mapping[str, int]
    reader: Reader
    report: Report
    emit: Callable[[Fault], None]
    read_bytes: Callable[[int], None]
    places: dict[str, Place] = field(default_factory=dict)
    referred: dict[str, Referred] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    attached: dict[str, tuple[FileRef, bytes]] = field(default_factory=dict)
    """By SHA-256: the manifest's files, and the hashes of their chunks, b"" if these cannot be told."""

    def __post_init__(self) -> None:
        self.keys = RunKeys(self.run)
        for key in self.sizes:
            place = place_of(key)
            if place is None:
                self.report.unknown.setdefault(self.run, key)
                self.report.unknown_count += 1
            else:
                self.places[key] = place

    # What others find

    def fault(self, wrong: Wrong, key: str, what: str, *, needed: bool = True) -> None:
        self.report.faults += 1
        self.emit(self._fault(wrong, key, what, needed=needed))

    def lacks(self, wrong: Wrong, key: str, what: str, still: Still | None = None) -> None:
        """What seems to be missing, or out of order; a fault if it `still` is when all else is done, by default if it is not
        there then."""
        self.missing.append(Missing(self._fault(wrong, key, what, needed=True), still or (lambda: self.absent(key))))

    async def absent(self, key: str) -> bool:
        return await self.plain.read_part(key, 0, bytearray(1)) is None

    def _fault(self, wrong: Wrong, key: str, what: str, *, needed: bool) -> Fault:
        return Fault(fault=wrong, run=self.run, key=key, what=what, remedy=remedy_of(place_of(key), needed=needed))

    # Records

    async def records(self, take: Callable[[Place, Read], None]) -> None:
        """Read all; `take` gets each that is what it should be."""

        async def read(place: Place) -> None:
            found = await read_record(self.mailbox, self.plain, place)
            self.report.objects += 1
            self.report.bytes += found.size_bytes
            self.read_bytes(self.sizes[place.key])
            if found.fault is not None:
                self.report.faults += 1
                self.emit(found.fault)
            elif found.record is not None:
                take(place, found)
            elif place.kind not in SWEPT:
                self.lacks("missing", place.key, "it was listed, and is not there")

        await spread(read, [place for place in self.places.values() if place.record is not None], RECORDS_AT_ONCE)

    # Payloads

    async def payloads(self, *, unneeded: Callable[[Place], bool]) -> None:
        """Hash whatever is there or should be. `unneeded`: whether one that nobody refers to is certainly nobody's."""
        there = [key for key, place in self.places.items() if place.record is None]
        hidden = [key for key, ref in self.referred.items() if ref.needed and key not in self.places]
        for key in there:
            if self._said(self.places[key]) is None and unneeded(self.places[key]):
                self.report.unneeded += 1
        await spread(self._payload, [*there, *hidden], AT_ONCE)

    async def _payload(self, key: str) -> None:
        place = self.places.get(key) or place_of(key)
        assert place is not None
        ref = self._said(place)
        size = self.sizes.get(key, ref.size_bytes if ref is not None else 0)
        head = place.kind not in ("hashes", "chunk")
        try:
            whole = await self.reader.whole(key, size_bytes=size, head=head)
            if whole is not None and self._flaw(whole, place, ref):
                await asyncio.sleep(AGAIN_S)  # the way here may have done it
                whole = await self.reader.whole(key, size_bytes=size, head=head)
        except MailboxCorrupt as error:
            self.fault("damaged", key, str(error), needed=ref is not None and ref.needed)
            return
        except MailboxUnavailable as error:
            await self.plain.open()  # else it is the whole share
            self.fault("unreadable", key, str(error), needed=ref is not None and ref.needed)
            return
        if whole is None:
            if ref is not None and ref.needed:
                self.lacks("missing", key, f"{_noun(place)} that a record refers to", ref.still)
            return
        self.report.objects += 1
        self.report.bytes += whole.size_bytes
        flaw = self._flaw(whole, place, ref)
        if flaw:
            self.fault("damaged", key, flaw, needed=ref is not None and ref.needed)

    def _flaw(self, whole: Whole, place: Place, ref: Referred | None) -> str:
        """What is wrong with it, in words; '' if nothing is."""
        noun = _noun(place)
        wanted = place.sha256 if place.kind not in ("hashes", "chunk") else ref.sha256 if ref is not None else ""
        if ref is not None and whole.size_bytes != ref.size_bytes:
            return f"{noun} of {whole.size_bytes} bytes, where its record says {ref.size_bytes}"
        if wanted and whole.sha256 != wanted:
            return f"{noun} whose SHA-256 is {whole.sha256[:12]}…, not {wanted[:12]}…"
        if place.kind in ("hashes", "chunk"):
            return ""
        try:
            known = ALL_BYTES if place.kind == "job-file" else WIRE_BYTES
            entries = parse_header(whole.head, whole.size_bytes, known)
        except HeaderError as error:
            return f"{noun} that is no Safetensors file: {error}"
        if ref is not None and ref.specs is not None:
            held = {(entry.name, entry.dtype, entry.shape) for entry in entries}
            if held != {(spec.name, spec.dtype, spec.shape) for spec in ref.specs}:
                return f"{noun} that holds other tensors than those of its fragment"
        return ""

    # Files

    async def files(self, refs: Iterable[FileRef]) -> None:
        """Note what the attached files' objects must be."""
        chunks: dict[str, list[int]] = {}
        for place in self.places.values():
            if place.kind == "chunk":
                chunks.setdefault(place.sha256, []).append(place.number)
        for ref in refs:
            key = self.keys.file_hashes(ref.sha256)
            self.referred[key] = Referred(32 * ref.chunks, True, _absence(self, key), sha256=ref.hashes_sha256)
            try:
                hashes = await self.plain.read(key)
            except (MailboxCorrupt, MailboxUnavailable):
                hashes = None  # which is told when it is read as any other object
            if hashes is None or hashlib.sha256(hashes).hexdigest() != ref.hashes_sha256:
                hashes = b""  # told once is enough: the chunks may be what they should
            self.attached[ref.sha256] = (ref, hashes)
            for first, last in gaps(chunks.get(ref.sha256, ()), end=ref.chunks):
                many = "a chunk" if first == last else f"{last - first + 1} chunks"
                self.lacks("missing", self.keys.file_chunk(ref.sha256, first), f"{many} of the attached file {ref.name}")

    def _said(self, place: Place) -> Referred | None:
        """What is said of an object that is no record."""
        if place.kind != "chunk":
            return self.referred.get(place.key)
        ref, hashes = self.attached.get(place.sha256, (None, b""))
        if ref is None or place.number >= ref.chunks:
            return None
        n = place.number
        size = min(ref.chunk_bytes, ref.size_bytes - n * ref.chunk_bytes)
        return Referred(size, True, _absence(self, place.key), sha256=hashes[32 * n : 32 * n + 32].hex())

    # The end

    async def settle(self) -> bool:
        """Look again at what seemed to be missing. False: the run itself is gone."""
        if self.manifest is not None and await self.absent(self.keys.manifest):
            return False
        for each in self.missing:
            if await each.still():
                self.report.faults += 1
                self.emit(each.fault)
        return True


def _absence(check: Check, key: str) -> Still:
    return lambda: check.absent(key)


def _noun(place: Place) -> str:
    return {
        "init": "a payload of Θ⁰",
        "round-blob": "a payload of a round",
        "delta": "a delta",
        "checkpoint-blob": "a payload of a checkpoint",
        "job-file": "a file of a checkpoint",
        "hashes": "the hashes of a file",
        "chunk": "a chunk of a file",
    }[place.kind]


def gaps(numbers: Iterable[int], *, first: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    """(first, last) of each stretch from `first` to before `end` that lacks in `numbers`, by default to the largest of them. No
    dearer for a number that is absurd."""
    at = first
    for number in sorted({n for n in numbers if n >= first and (end is None or n < end)}):
        if number > at:
            yield at, number - 1
        at = number + 1
    if end is not None and at < end:
        yield at, end - 1


async def spread(work: Callable[[T], Awaitable[None]], items: Sequence[T], at_once: int) -> None:
    """`work` on each of `items`, so many at once. What one of them raises ends all."""
    waiting = iter(items)

    async def serve() -> None:
        for item in waiting:
            await work(item)

    tasks = [asyncio.ensure_future(serve()) for _ in range(min(at_once, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
