"""A mailbox whose records are signed with the swarm's passphrase (FORMAT.md, "Signatures").

Whoever reads through it sees no record that somebody else wrote, or that was moved here from another run or place. Payloads
pass as they are: their hashes stand in records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterable, Mapping, Sequence

import msgspec

from swarm.core.errors import InvalidKey, MailboxCorrupt, RecordError, RecordForged
from swarm.core.lines import Envelope, put_together, taken_apart
from swarm.core.records import SMALL_BYTES
from swarm.core.trust import Forged, SwarmKey, is_signed_key, kind_of
from swarm.mailbox.contract import KeyOf, Mailbox, Source, check_put_key, check_record_key
from swarm.mailbox.disk import as_bytes, writable

_SMALL = frozenset({"beat", "snapshot", "claim", "control", "learner", "refusal"})  # kinds that hold SMALL_BYTES at most
MAX_REMEMBERED = 10_000  # records that were forged, or genuine, and runs; what is met again counts once


class SignedMailbox:
    """`inner`, whose records are signed when they are written and checked when they are read.

    What `create` and `put` are given, and `read` gives, are records as they are without a signature: what signs them is
    nobody else's business.
    """

    def __init__(self, inner: Mailbox, key: SwarmKey) -> None:
        self.inner, self.key = inner, key
        self.location = inner.location
        self._met: OrderedDict[str, None] = OrderedDict()  # keys of forged records
        self._genuine: OrderedDict[str, None] = OrderedDict()  # keys that were asked about, and are
        self._forged: OrderedDict[str, Forged] = OrderedDict()  # by run

    def forged(self, run: str) -> Forged:
        """The records of `run` that were refused so far."""
        return self._forged.get(run, Forged())

    async def is_genuine(self, key: str) -> bool:
        """Whether the record under `key`, of which nothing is wanted but that it is there, is the swarm's."""
        if key not in self._genuine:
            try:
                if await self.read(key) is None:
                    return False
            except RecordForged:
                return False
            _remember(self._genuine, key)
        return True

    async def open(self) -> str:
        return await self.inner.open()

    async def create(self, key: str, record: bytes) -> bool:
        return await self.inner.create(key, self._signed(check_record_key(key), record))

    async def put(self, key: KeyOf, source: Source) -> str:
        if not isinstance(key, str):
            return await self.inner.put(lambda: _unsigned_key(key()), source)
        if not is_signed_key(check_put_key(key)):
            return await self.inner.put(key, source)
        if isinstance(source, AsyncIterable):
            data = b"".join([bytes(as_bytes(chunk)) async for chunk in source])
        else:
            data = b"".join(bytes(as_bytes(chunk)) for chunk in source)
        return await self.inner.put(key, [self._signed(key, data)])

    async def read(self, key: str) -> bytes | None:
        if not is_signed_key(key):
            return await self.inner.read(key)
        try:
            # What was refused is looked at again with every poll: whether it still is too large is told by one byte.
            again = key in self._met and kind_of(key) in _SMALL
            too_large = again and await self.inner.read_part(key, SMALL_BYTES, bytearray(1))
            data = b"" if too_large else await self.inner.read(key)
        except MailboxCorrupt:  # too large to be a record, or a folder in its place: nobody here has written it so
            raise self._refused(key, unsigned=True) from None
        if data is None:
            return None
        try:
            line, envelope = taken_apart(data, where=key)
        except RecordError:
            raise self._refused(key, unsigned=True) from None
        if not self.key.verifies(envelope.signature, run=_run(key), key=key, body=line):
            raise self._refused(key, unsigned=envelope.signature is None)
        return put_together(line, msgspec.structs.replace(envelope, signature=None))

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        if not is_signed_key(key):
            return await self.inner.read_part(key, offset, buffer)
        view = writable(buffer, offset)
        data = await self.read(key)  # only the whole of it can be checked
        if data is None:
            return None
        part = memoryview(data)[offset : offset + len(view)]
        if part:
            view[: len(part)] = part
        return len(part)

    async def list(self, prefix: str, after: str = "") -> list[str]:
        return await self.inner.list(prefix, after)

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        return await self.inner.lists(requests)

    async def names(self, prefix: str) -> Sequence[str]:
        return await self.inner.names(prefix)

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        return await self.inner.sizes(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.inner.delete(keys)

    async def sweep(self, older_than_s: float) -> int:
        return await self.inner.sweep(older_than_s)

    def outstanding_s(self) -> float:
        return self.inner.outstanding_s()

    async def close(self) -> None:
        await self.inner.close()

    def _signed(self, key: str, record: bytes) -> bytes:
        """Raises RecordError for what is no record: nothing of it could be read again."""
        line, envelope = taken_apart(bytes(record), where=key)
        signature = self.key.signature(_run(key), key, line)
        return put_together(line, Envelope(nonce=envelope.nonce, sha256=envelope.sha256, signature=signature))

    def _refused(self, key: str, *, unsigned: bool) -> RecordForged:
        if key not in self._met:
            run = _run(key)
            self._forged[run] = self._forged.pop(run, Forged()).and_one(key)
            if len(self._forged) > MAX_REMEMBERED:
                self._forged.popitem(last=False)
            _remember(self._met, key)
        return RecordForged(key, unsigned=unsigned, fingerprint=self.key.fingerprint)


async def is_genuine(mailbox: Mailbox, key: str) -> bool:
    """Whether the record that was listed under `key` counts: in an open swarm each does, in a signed one what is signed."""
    return not isinstance(mailbox, SignedMailbox) or await mailbox.is_genuine(key)


async def anything_genuine(mailbox: Mailbox, prefix: str) -> bool:
    """Whether the folder that was listed at `prefix` counts: in a signed swarm one does in which a record is the swarm's."""
    if not isinstance(mailbox, SignedMailbox):
        return True
    for key in await mailbox.list(prefix):
        if await mailbox.is_genuine(key):
            return True
    return False


def _remember(memory: OrderedDict[str, None], key: str) -> None:
    memory[key] = None
    if len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)


def _unsigned_key(key: str) -> str:
    """`key`, which follows from what was written. Raises InvalidKey for a record's: it would have been written unsigned."""
    if is_signed_key(key):
        raise InvalidKey(f"{key!r} is a record's key: it must be known before what stands there is written")
    return key


def _run(key: str) -> str:
    return key.split("/")[1]
