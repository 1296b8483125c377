"""A mailbox in a folder that the machines mount: SMB, NFS, or a plain folder on one machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from swarm.mailbox.blocking import BlockingMailbox
from swarm.mailbox.folder_init import init_folder
from swarm.mailbox.folder_write import FolderFiles
from swarm.mailbox.sweep import Sweeper
from swarm.mailbox.threads import DaemonThreads


class FolderMailbox(BlockingMailbox):
    """The mailbox in the folder `path`."""

    def __init__(
        self, path: str | Path, *, threads: DaemonThreads | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(absolute(path), threads=threads, now=now)

    def _made(self) -> FolderFiles:
        files = FolderFiles(self.location, progressed=self._threads.progressed)
        self._folder, self._sweeper = files, Sweeper(files)
        return files

    @classmethod
    async def init(cls, path: str | Path, *, threads: DaemonThreads | None = None) -> str:
        """Make the folder `path` a mailbox, if it is none yet; the mailbox's id.

        The folder is made if its parent exists. Raises UsageError if there is something else in it, or no parent.
        """
        return await (threads or DaemonThreads()).run(init_folder, absolute(path))

    async def check_writable(self) -> None:
        """Raises MailboxReadOnly where nothing can be written, and so nothing deleted; other errors as any call."""
        await self._threads.run(self._folder.check_writable)

    async def sweep(self, older_than_s: float) -> int:
        return await self._threads.run(self._sweeper.sweep, older_than_s, self._now())


def absolute(path: str | Path) -> str:
    return os.path.abspath(os.path.expanduser(path))
