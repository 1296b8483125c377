"""A mailbox whose work blocks: each call runs on a daemon thread, so that one that hangs keeps nobody."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from swarm.core.keys import check_prefix
from swarm.mailbox.contract import (
    Buffer,
    KeyOf,
    Source,
    check_delete_key,
    check_object_key,
    check_put_key,
    check_record_key,
)
from swarm.mailbox.pump import Pump
from swarm.mailbox.threads import DaemonThreads


class Files(Protocol):
    """What mailbox/contract.py promises, as calls that block. Keys and prefixes were checked. Safe on several threads."""

    def open(self) -> str: ...
    def create(self, key: str, record: bytes) -> bool: ...
    def put(self, key: KeyOf, source: Iterable[Buffer]) -> str: ...
    def read(self, key: str) -> bytes | None: ...
    def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None: ...
    def list(self, prefix: str, after: str) -> list[str]: ...
    def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]: ...
    def names(self, prefix: str) -> Sequence[str]: ...
    def sizes(self, prefix: str) -> Mapping[str, int]: ...
    def delete(self, keys: Sequence[str]) -> None: ...
    def stop(self) -> None:
        """Calls under way end as soon as they can."""


class BlockingMailbox:
    """`now`: a monotonic clock in seconds. The work runs on `threads`."""

    def __init__(
        self, location: str, *, threads: DaemonThreads | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.location, self._now = location, now
        self._threads = threads or DaemonThreads(now=now)
        self._files = self._made()

    def _made(self) -> Files:
        """Anew, as before `open`."""
        raise NotImplementedError

    def outstanding_s(self) -> float:
        """For how long the store has not answered the oldest call under way, in seconds; 0 if none is."""
        return self._threads.outstanding_s(self._now())

    async def open(self) -> str:
        return await self._threads.run(self._files.open)

    async def create(self, key: str, record: bytes) -> bool:
        return await self._threads.run(self._files.create, check_record_key(key), record)

    async def put(self, key: KeyOf, source: Source) -> str:
        key = check_put_key(key) if isinstance(key, str) else key
        if not isinstance(source, AsyncIterable):
            return await self._threads.run(self._files.put, key, source)
        pump = Pump(waiting=self._threads.progressed)
        return await pump.through(source, self._threads.run(self._files.put, key, pump))

    async def read(self, key: str) -> bytes | None:
        return await self._threads.run(self._files.read, check_object_key(key))

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        return await self._threads.run(self._files.read_part, check_object_key(key), offset, buffer)

    async def list(self, prefix: str, after: str = "") -> list[str]:
        return await self._threads.run(self._files.list, check_prefix(prefix), after)

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        return await self._threads.run(self._files.lists, [(check_prefix(prefix), after) for prefix, after in requests])

    async def names(self, prefix: str) -> Sequence[str]:
        return await self._threads.run(self._files.names, check_prefix(prefix))

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        return await self._threads.run(self._files.sizes, check_prefix(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._threads.run(self._files.delete, [check_delete_key(key) for key in keys])

    async def close(self) -> None:
        self._files.stop()
        self._files = self._made()
