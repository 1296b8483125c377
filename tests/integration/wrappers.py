"""Mailboxes around a mailbox: one that kills, one that counts, one that checks what is written."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from swarm.core import keys
from swarm.core.lines import decode
from swarm.core.records import RoundRecord, Snapshot
from swarm.mailbox.contract import Buffer, KeyOf, Mailbox, Source, one_by_one
from swarm.mailbox.memory import MemoryMailbox, MemoryStore


class Wrapped:
    """`inner`, with `around` about every call."""

    def __init__(self, inner: Mailbox) -> None:
        self.inner, self.location = inner, inner.location

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    async def open(self) -> str:
        return await self.around("open", "", self.inner.open)

    async def create(self, key: str, record: bytes) -> bool:
        return await self.around("create", key, lambda: self.inner.create(key, record))

    async def put(self, key: KeyOf, source: Source) -> str:
        return await self.around("put", key if isinstance(key, str) else "", lambda: self.inner.put(key, source))

    async def read(self, key: str) -> bytes | None:
        return await self.around("read", key, lambda: self.inner.read(key))

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        return await self.around("read_part", key, lambda: self.inner.read_part(key, offset, buffer))

    async def list(self, prefix: str, after: str = "") -> list[str]:
        return await self.around("list", prefix, lambda: self.inner.list(prefix, after))

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        return await one_by_one(self.list, requests)

    async def names(self, prefix: str) -> Sequence[str]:
        return await self.around("names", prefix, lambda: self.inner.names(prefix))

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        return await self.around("sizes", prefix, lambda: self.inner.sizes(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        await self.around("delete", keys[0] if keys else "", lambda: self.inner.delete(keys))

    async def sweep(self, older_than_s: float) -> int:
        return await self.around("sweep", "", lambda: self.inner.sweep(older_than_s))

    async def close(self) -> None:
        await self.inner.close()

    def outstanding_s(self) -> float:
        return self.inner.outstanding_s()


class Mortal(Wrapped):
    """Kills the learner whose task `victim` is, before or after the effect of its `at`-th call. The dead call no more."""

    def __init__(self, inner: Mailbox, *, at: int, when: Literal["before", "after"]) -> None:
        super().__init__(inner)
        self.at, self.when, self.calls, self.dead = at, when, 0, False
        self.last = ("", "")
        self.victim: asyncio.Task[str]

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.dead:
            await asyncio.Event().wait()
        self.calls += 1
        fatal = self.calls == self.at
        if fatal:
            self.last = (op, key)
        if fatal and self.when == "before":
            await self._die()
        result = await call()
        if fatal or self.dead:  # killed by another task while this call was under way
            await self._die()
        return result

    async def _die(self) -> None:
        self.dead = True
        self.victim.cancel()
        await asyncio.Event().wait()


class Stopped(Wrapped):
    """A process that can be stopped: its calls, and so all that it does, wait until it goes on."""

    def __init__(self, inner: Mailbox) -> None:
        super().__init__(inner)
        self.runs = asyncio.Event()
        self.runs.set()

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        await self.runs.wait()
        result = await call()
        await self.runs.wait()  # it may have been stopped between the effect and the reply
        return result


class Counting(Wrapped):
    def __init__(self, inner: Mailbox) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []
        self.trips = 0  # calls, those of several lists counted once

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        trips = self.trips
        found = await super().lists(requests)
        self.trips = trips + 1
        return found

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append((op, key))
        self.trips += 1
        return await call()

    def ops(self) -> Counter[str]:
        return Counter(op for op, _ in self.calls)


class Witness(Wrapped):
    """Keeps `wrongs`: objects that were written twice with different bytes, records that came before their payload."""

    def __init__(self, store: MemoryStore, wrongs: list[str]) -> None:
        super().__init__(MemoryMailbox(store))
        self.store, self.wrongs = store, wrongs

    async def create(self, key: str, record: bytes) -> bool:
        if keys.parse_round(key) is not None:
            committed = decode(record, RoundRecord)
            for ref in (committed.theta, committed.outer):
                if ref is not None and not any(ref.sha256 in name for name in self.store.objects):
                    self.wrongs.append(f"{key}: before its payload")
        return await super().create(key, record)

    async def put(self, key: KeyOf, source: Source) -> str:
        chunks: list[Buffer]
        if isinstance(source, AsyncIterable):
            chunks = [bytes(chunk) async for chunk in source]
        else:
            chunks = [bytes(chunk) for chunk in source]
        data, name = b"".join(chunks), key if isinstance(key, str) else key()
        if self.store.objects.get(name, data) != data:
            self.wrongs.append(f"{name}: written twice")
        if keys.parse_snapshot(name) is not None:
            snapshot = decode(data, Snapshot)
            if not any(snapshot.payload.sha256 in other for other in self.store.objects):
                self.wrongs.append(f"{name}: before its payload")
        return await super().put(name, chunks)
