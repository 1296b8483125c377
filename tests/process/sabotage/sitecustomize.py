"""Python imports this at its start when this folder is on its path: what a share can do to a worker.

SABOTAGE=hang:FILE    once FILE exists, every call of a folder mailbox blocks for ever
SABOTAGE=slow:FILE    writing a snapshot's payload makes FILE, and takes a second
"""

import os
import threading
import time
from pathlib import Path

kind, _, flag = os.environ.get("SABOTAGE", "").partition(":")
if kind:
    from swarm.mailbox.folder_write import FolderFiles

    def hanging(real):
        def call(*arguments):
            if Path(flag).exists():
                threading.Event().wait()
            return real(*arguments)

        return call

    def slow(self, key, source, real=FolderFiles.put):
        name = key if isinstance(key, str) else ""
        if not name:  # computed once the source is exhausted
            chunks = [bytes(chunk) for chunk in source]
            name, source = key(), chunks
        if "/blobs/snapshots/" in name:
            Path(flag).touch()
            time.sleep(1.0)
        return real(self, name, source)

    if kind == "hang":
        for name in ("open", "create", "put", "read", "read_part", "list", "names", "delete"):
            setattr(FolderFiles, name, hanging(getattr(FolderFiles, name)))
    elif kind == "slow":
        FolderFiles.put = slow
