"""A process all of whose mailbox calls hang, for test_mailbox_processes.py: says READY when they do."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile

from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.threads import DaemonThreads


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await FolderMailbox.init(f"{folder}/share")
        fifo = f"{folder}/fifo"  # opening it for reading blocks, as a dead share does
        os.mkfifo(fifo)
        threads = DaemonThreads(4)
        mailbox = FolderMailbox(f"{folder}/share", threads=threads)
        await mailbox.open()
        real, blocked = os.lstat, []

        def lstat(path: str, **kwargs: object) -> os.stat_result:
            if "/share" in str(path):
                blocked.append(path)
                os.close(os.open(fifo, os.O_RDONLY))
            return real(path, **kwargs)

        os.lstat = lstat
        calls = [mailbox.read("runs/r/x"), mailbox.list("runs/"), mailbox.put("runs/r/y", [b"y"]), mailbox.delete(["runs/r/z"])]
        tasks = [asyncio.create_task(call) for call in (*calls, mailbox.sweep(0))]  # more than there are threads
        while len(blocked) < 4:  # noqa: ASYNC110 — what is waited for happens in threads
            await asyncio.sleep(0.01)
        print("READY", flush=True)
        try:
            await asyncio.gather(*tasks)
        finally:
            os.lstat = real


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(130)
