"""A mailbox in memory: for tests, and the plainest statement of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Mapping, Sequence
from uuid import uuid4

from swarm.core.errors import MailboxCorrupt
from swarm.core.keys import MARKER, check_prefix
from swarm.core.lines import encode
from swarm.core.manifest import Marker
from swarm.mailbox.contract import (
    MAX_READ_BYTES,
    KeyOf,
    Source,
    check_delete_key,
    check_object_key,
    check_put_key,
    check_record_key,
    one_by_one,
)
from swarm.mailbox.disk import as_bytes, writable


class MemoryStore:
    """What several MemoryMailbox share, on threads of their own if need be: objects by key."""

    def __init__(self, id: str | None = None) -> None:
        self.id = id or uuid4().hex
        self.objects: dict[str, bytes] = {MARKER: encode(Marker(id=self.id), nonce=uuid4().hex)}


class MemoryMailbox:
    """One machine's handle. Every call gives way to other tasks once before its effect and once after it.

    So tasks interleave as machines do, and a cancelled call may have had its effect.
    """

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.location = f"memory:{store.id[:8]}"

    async def open(self) -> str:
        await asyncio.sleep(0)
        return self.store.id

    async def create(self, key: str, record: bytes) -> bool:
        check_record_key(key)
        await asyncio.sleep(0)
        found = self.store.objects.setdefault(key, bytes(record))
        await asyncio.sleep(0)
        return found == record

    async def put(self, key: KeyOf, source: Source) -> str:
        if isinstance(key, str):
            check_put_key(key)
        await asyncio.sleep(0)
        if isinstance(source, AsyncIterable):
            chunks = [bytes(as_bytes(chunk)) async for chunk in source]
        else:
            chunks = [bytes(as_bytes(chunk)) for chunk in source]
        data = b"".join(chunks)
        name = key if isinstance(key, str) else check_put_key(key())
        self.store.objects[name] = data
        await asyncio.sleep(0)
        return name

    async def read(self, key: str) -> bytes | None:
        check_object_key(key)
        await asyncio.sleep(0)
        data = self.store.objects.get(key)
        if data is not None and len(data) > MAX_READ_BYTES:
            raise MailboxCorrupt(f"{self.location}/{key}: {len(data)} bytes, more than {MAX_READ_BYTES}")
        await asyncio.sleep(0)
        return data

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        check_object_key(key)
        view = writable(buffer, offset)
        await asyncio.sleep(0)
        data = self.store.objects.get(key)
        part = b"" if data is None else memoryview(data)[offset : offset + len(view)]
        if part:
            view[: len(part)] = part
        await asyncio.sleep(0)
        return None if data is None else len(part)

    async def list(self, prefix: str, after: str = "") -> list[str]:
        check_prefix(prefix)
        await asyncio.sleep(0)
        keys = sorted(key for key in tuple(self.store.objects) if key.startswith(prefix) and key > after)
        await asyncio.sleep(0)
        return keys

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        return await one_by_one(self.list, requests)

    async def names(self, prefix: str) -> Sequence[str]:
        check_prefix(prefix)
        await asyncio.sleep(0)
        found = {key[len(prefix) :].split("/", 1)[0] for key in tuple(self.store.objects) if key.startswith(prefix)}
        await asyncio.sleep(0)
        return sorted(found)

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        check_prefix(prefix)
        await asyncio.sleep(0)
        found = {key: len(data) for key, data in tuple(self.store.objects.items()) if key.startswith(prefix)}
        await asyncio.sleep(0)
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        keys = [check_delete_key(key) for key in keys]
        await asyncio.sleep(0)
        for key in keys:
            self.store.objects.pop(key, None)
        await asyncio.sleep(0)

    async def sweep(self, older_than_s: float) -> int:
        """Nothing is ever left over here."""
        await asyncio.sleep(0)
        return 0

    async def close(self) -> None:
        await asyncio.sleep(0)

    def outstanding_s(self) -> float:
        return 0.0
