"""Python imports this at its start when this folder is on its path: what a share can do to a worker.

SABOTAGE=hang:FILE    once FILE exists, every call of a folder mailbox blocks for ever
SABOTAGE=slow:FILE    writing a snapshot's payload makes FILE, and takes a second
SABOTAGE=owner:FILE   as long as FILE exists, somebody is at the keyboard; nobody else ever is
"""

import os
import threading
import time
from pathlib import Path

kind, _, flag = os.environ.get("SABOTAGE", "").partition(":")
if kind == "owner":
    from swarm.host import owner

    owner.idle_s = lambda now_s: 0.0 if Path(flag).exists() else 1e6
elif kind:
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
