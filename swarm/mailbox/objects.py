"""A mailbox in an object store: S3 and what speaks its language (Cloudflare R2, MinIO).

obstore's own coroutines are not used: they are ended by threads that it makes, which take Python's lock to say so, and a
process that ends just then is aborted. Its blocking calls return on our own threads, as those of a folder do.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from swarm.core.buckets import place_of
from swarm.mailbox.blocking import BlockingMailbox
from swarm.mailbox.objects_files import GUARD_S, ObjectFiles
from swarm.mailbox.threads import DaemonThreads


class ObjectMailbox(BlockingMailbox):
    """The mailbox at `url`, s3://bucket/prefix?endpoint=…&region=…; raises UsageError for what is none.

    `guard_s`: how often, at most, it is seen whether the mailbox is still there.
    """

    _files: ObjectFiles

    def __init__(
        self,
        url: str,
        *,
        threads: DaemonThreads | None = None,
        now: Callable[[], float] = time.monotonic,
        guard_s: float = GUARD_S,
    ) -> None:
        self._place, self._guard_s = place_of(url), guard_s
        super().__init__(self._place.url, threads=threads, now=now)

    def _made(self) -> ObjectFiles:
        return ObjectFiles(self._place, now=self._now, progressed=self._threads.progressed, guard_s=self._guard_s)

    @classmethod
    async def init(cls, url: str, *, threads: DaemonThreads | None = None) -> str:
        """Make the place at `url` a mailbox, if it is none yet; the mailbox's id. The bucket must be there.

        Raises UsageError if there is something else in it, or if the store cannot hold a mailbox.
        """
        mailbox = cls(url, threads=threads)
        return await mailbox._threads.run(mailbox._files.init)

    async def sweep(self, older_than_s: float) -> int:
        return await self._threads.run(self._files.sweep, older_than_s)
