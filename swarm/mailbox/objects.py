"""A mailbox in an object store: S3 and what speaks its language (Cloudflare R2, MinIO).

obstore's own coroutines are not used: they are ended by threads that it makes, which take Python's lock to say so, and a
process that ends just then is aborted. Its blocking calls return on our own threads, as those of a folder do.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Mapping, Sequence

from swarm.core.buckets import place_of
from swarm.core.keys import check_prefix
from swarm.mailbox.contract import (
    STAGED,
    TRASHED,
    KeyOf,
    Source,
    check_delete_key,
    check_object_key,
    check_put_key,
    check_record_key,
)
from swarm.mailbox.objects_files import GUARD_S, ObjectFiles
from swarm.mailbox.pump import Pump
from swarm.mailbox.threads import DaemonThreads


class ObjectMailbox:
    """The mailbox at `url`, s3://bucket/prefix?endpoint=…&region=…; raises UsageError for what is none.

    `now`: a monotonic clock in seconds. `guard_s`: how often, at most, it is seen whether the mailbox is still there.
    """

    def __init__(
        self,
        url: str,
        *,
        threads: DaemonThreads | None = None,
        now: Callable[[], float] = time.monotonic,
        guard_s: float = GUARD_S,
    ) -> None:
        self._place = place_of(url)
        self.location = self._place.url
        self._now, self._guard_s = now, guard_s
        self._threads = threads or DaemonThreads(now=now)
        self._start()

    def _start(self) -> None:
        self._files = ObjectFiles(self._place, now=self._now, progressed=self._threads.progressed, guard_s=self._guard_s)

    @classmethod
    async def init(cls, url: str, *, threads: DaemonThreads | None = None) -> str:
        """Make the place at `url` a mailbox, if it is none yet; the mailbox's id. The bucket must be there.

        Raises UsageError if there is something else in it, or if the store cannot hold a mailbox.
        """
        mailbox = cls(url, threads=threads)
        return await mailbox._threads.run(mailbox._files.init)

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

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        return await self._threads.run(self._files.sizes, prefix if prefix in (STAGED, TRASHED) else check_prefix(prefix))

    async def names(self, prefix: str) -> Sequence[str]:
        return await self._threads.run(self._files.names, check_prefix(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._threads.run(self._files.delete, [check_delete_key(key) for key in keys])

    async def sweep(self, older_than_s: float) -> int:
        return await self._threads.run(self._files.sweep, older_than_s)

    async def close(self) -> None:
        self._files.stop()
        self._start()
