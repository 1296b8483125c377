"""A folder mailbox that counts what is asked of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from swarm.mailbox.contract import KeyOf, Source
from swarm.mailbox.folder import FolderMailbox


class CountingMailbox(FolderMailbox):
    """`calls`: by operation, and `trips` for those that go to the store; several lists in one trip are as many lists. A payload
    that is read in parts is one `read_part`."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.calls: Counter[str] = Counter()
        self.polls = 0  # trips of several lists
        self.beats = 0  # of the calls, those that wrote, read or removed beats
        self._part_of = ""

    @property
    def operations(self) -> int:
        """All calls, but beats and the lists of polls."""
        return self.calls["trips"] - self.polls - self.beats

    def _count(self, op: str, key: str = "") -> None:
        self._part_of = key if op == "read_part" else ""
        self.calls[op] += 1
        self.calls["trips"] += 1
        self.beats += "/beats/" in key and op != "list"

    async def create(self, key: str, record: bytes) -> bool:
        self._count("create", key)
        return await super().create(key, record)

    async def put(self, key: KeyOf, source: Source) -> str:
        self._count("put", key if isinstance(key, str) else "")
        return await super().put(key, source)

    async def read(self, key: str) -> bytes | None:
        self._count("read", key)
        return await super().read(key)

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        if key != self._part_of:
            self._count("read_part", key)
        return await super().read_part(key, offset, buffer)

    async def list(self, prefix: str, after: str = "") -> list[str]:
        self._count("list", prefix)
        return await super().list(prefix, after)

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        self.calls["list"] += len(requests)
        self.calls["trips"] += 1
        self.polls += 1
        return await super().lists(requests)

    async def names(self, prefix: str) -> Sequence[str]:
        self._count("names", prefix)
        return await super().names(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        self._count("delete", keys[0] if keys else "")
        await super().delete(keys)

    async def sweep(self, older_than_s: float) -> int:
        self._count("sweep")
        return await super().sweep(older_than_s)
