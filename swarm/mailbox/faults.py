"""A test tool: a mailbox that fails as planned. Nothing of the application imports it.

mailbox = FaultyMailbox(MemoryMailbox(store))
mailbox.plan += [Fault("lose", op="create", key="rounds/"), Fault("fail", error=MailboxFull, count=3)]
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from swarm.core.errors import MailboxError, MailboxUnavailable
from swarm.mailbox.contract import Buffer, KeyOf, Mailbox, Source, one_by_one

Kind = Literal["fail", "lose", "tear", "delay", "flip", "late", "double", "foreign"]
FOREIGN = ("notes.sync-conflict-20260101-000000", "desktop.ini", "record.json")


@dataclass
class Fault:
    """What goes wrong, and when: with calls of `op` ('' any) whose key or prefix matches the pattern `key`.

    fail     the call raises `error` without any effect
    lose     the call has its effect, then raises `error`: the reply is lost
    tear     a put fails when it has written `chunks` chunks; other calls fail
    delay    `wait()` is awaited before the effect
    flip     `read` and `read_part` give one flipped bit, in byte `at` of what they give; what is stored stays whole
    late     `list`, `names` and `sizes` show only what a `list` of this handle has shown before
    double   `list` and `names` give everything twice
    foreign  all three give names that no swarm wrote

    The key of a put that computes it is matched as ''.
    """

    kind: Kind
    op: str = ""
    key: str = ""
    count: int | None = 1  # calls that it hits; None: all
    skip: int = 0  # matching calls that it lets pass first
    chunks: int = 1
    at: int = 0
    error: type[MailboxError] = MailboxUnavailable
    wait: Callable[[], Awaitable[None]] | None = None

    def hits(self, op: str, key: str) -> bool:
        """Whether this call is hit; counts it."""
        if self.count == 0 or self.op not in ("", op) or not re.search(self.key, key):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.count is not None:
            self.count -= 1
        return True


class FaultyMailbox:
    """`inner` with the faults of `plan`: the first that hits a call applies. `calls` tells what was asked: (op, key)."""

    def __init__(self, inner: Mailbox, plan: Sequence[Fault] = ()) -> None:
        self.inner = inner
        self.location = inner.location
        self.plan = list(plan)
        self.calls: list[tuple[str, str]] = []
        self._shown: set[str] = set()

    async def _before(self, op: str, key: str = "") -> Fault | None:
        self.calls.append((op, key))
        fault = next((fault for fault in self.plan if fault.hits(op, key)), None)
        if fault is None:
            return None
        if fault.kind == "delay" and fault.wait is not None:
            await fault.wait()
        if fault.kind == "fail" or (fault.kind == "tear" and op != "put"):
            raise fault.error(f"{op} {key}: fails as planned")
        return fault

    @staticmethod
    def _after(fault: Fault | None) -> None:
        if fault is not None and fault.kind == "lose":
            raise fault.error("the reply is lost as planned")

    async def open(self) -> str:
        fault = await self._before("open")
        id = await self.inner.open()
        self._after(fault)
        return id

    async def create(self, key: str, record: bytes) -> bool:
        fault = await self._before("create", key)
        won = await self.inner.create(key, record)
        self._after(fault)
        return won

    async def put(self, key: KeyOf, source: Source) -> str:
        fault = await self._before("put", key if isinstance(key, str) else "")
        if fault is not None and fault.kind == "tear":
            source = _TornAsync(source, fault) if isinstance(source, AsyncIterable) else _Torn(source, fault)
        name = await self.inner.put(key, source)
        self._after(fault)
        return name

    async def read(self, key: str) -> bytes | None:
        fault = await self._before("read", key)
        data = await self.inner.read(key)
        self._after(fault)
        if data and fault is not None and fault.kind == "flip":
            flipped = bytearray(data)
            flipped[fault.at] ^= 0x80
            return bytes(flipped)
        return data

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        fault = await self._before("read_part", key)
        size = await self.inner.read_part(key, offset, buffer)
        self._after(fault)
        if size and fault is not None and fault.kind == "flip":
            memoryview(buffer).cast("B")[:size][fault.at] ^= 0x80
        return size

    async def list(self, prefix: str, after: str = "") -> list[str]:
        fault = await self._before("list", prefix)
        keys = await self.inner.list(prefix, after)
        self._after(fault)
        match fault and fault.kind:
            case "late":
                return [key for key in keys if key in self._shown]
            case "double":
                keys = [key for key in keys for _ in range(2)]
            case "foreign":
                return sorted({*keys, *(key for key in _strange(keys, prefix) if key > after)})
        self._shown.update(keys)
        return keys

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        return await one_by_one(self.list, requests)

    async def names(self, prefix: str) -> Sequence[str]:
        fault = await self._before("names", prefix)
        names = await self.inner.names(prefix)
        self._after(fault)
        match fault and fault.kind:
            case "late":
                shown = {key[len(prefix) :].partition("/")[0] for key in self._shown if key.startswith(prefix)}
                return [name for name in names if name in shown]
            case "double":
                return [name for name in names for _ in range(2)]
            case "foreign":
                return sorted({*names, *FOREIGN})
        return names

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        fault = await self._before("sizes", prefix)
        sizes = await self.inner.sizes(prefix)
        self._after(fault)
        match fault and fault.kind:
            case "late":
                return {key: size for key, size in sizes.items() if key in self._shown}
            case "foreign":
                return dict.fromkeys(_strange(sizes, prefix), 6148) | dict(sizes)
        return sizes

    async def delete(self, keys: Sequence[str]) -> None:
        fault = await self._before("delete", keys[0] if keys else "")
        await self.inner.delete(keys)
        self._after(fault)

    async def sweep(self, older_than_s: float) -> int:
        fault = await self._before("sweep")
        removed = await self.inner.sweep(older_than_s)
        self._after(fault)
        return removed

    def outstanding_s(self) -> float:
        return self.inner.outstanding_s()

    async def close(self) -> None:
        await self.inner.close()


def _strange(keys: Iterable[str], prefix: str) -> set[str]:
    """Keys that no swarm wrote, wherever there are some, and right below `prefix`."""
    folders = {f"{key.rpartition('/')[0]}/" for key in keys} | ({prefix} if prefix else set())
    return {folder + name for folder in folders for name in FOREIGN}


class _Torn:
    """A source that ends with an error midway; at the end, if it has too few chunks."""

    def __init__(self, source: Iterable[Buffer], fault: Fault) -> None:
        self._source, self._fault = source, fault

    def __iter__(self) -> Iterator[Buffer]:
        for n, chunk in enumerate(self._source):
            if n >= self._fault.chunks:
                break
            yield chunk
        raise self._fault.error("torn as planned")


class _TornAsync:
    def __init__(self, source: AsyncIterable[Buffer], fault: Fault) -> None:
        self._source, self._fault = source, fault

    async def __aiter__(self) -> AsyncIterator[Buffer]:
        n = 0
        async for chunk in self._source:
            if n >= self._fault.chunks:
                break
            yield chunk
            n += 1
        raise self._fault.error("torn as planned")
