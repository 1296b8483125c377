"""A mailbox in a folder that the machines mount: SMB, NFS, or a plain folder on one machine."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from pathlib import Path

from swarm.core.keys import check_prefix
from swarm.mailbox.contract import KeyOf, Source, check_delete_key, check_object_key, check_put_key, check_record_key
from swarm.mailbox.folder_init import init_folder
from swarm.mailbox.folder_write import FolderFiles
from swarm.mailbox.pump import Pump
from swarm.mailbox.sweep import Sweeper
from swarm.mailbox.threads import DaemonThreads


class FolderMailbox:
    """The mailbox in the folder `path`. `now`: a monotonic clock in seconds. Blocking work runs on `threads`."""

    def __init__(
        self, path: str | Path, *, threads: DaemonThreads | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.location = absolute(path)
        self._now = now
        self._threads = threads or DaemonThreads(now=now)
        self._start()

    def _start(self) -> None:
        self._files = FolderFiles(self.location, progressed=self._threads.progressed)
        self._sweeper = Sweeper(self._files)

    @classmethod
    async def init(cls, path: str | Path, *, threads: DaemonThreads | None = None) -> str:
        """Make the folder `path` a mailbox, if it is none yet; the mailbox's id.

        The folder is made if its parent exists. Raises UsageError if there is something else in it, or no parent.
        """
        return await (threads or DaemonThreads()).run(init_folder, absolute(path))

    def outstanding_s(self) -> float:
        """For how long the share has not answered the oldest call under way, in seconds; 0 if none is."""
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

    async def sweep(self, older_than_s: float) -> int:
        return await self._threads.run(self._sweeper.sweep, older_than_s, self._now())

    async def close(self) -> None:
        self._files.stop()
        self._start()


def absolute(path: str | Path) -> str:
    return os.path.abspath(os.path.expanduser(path))
