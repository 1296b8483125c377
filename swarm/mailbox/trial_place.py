"""Where a trial of a share is made: a mailbox of its own, out of everybody's sight, and away when the trial is over.

In a mailbox it lies in tmp/, from which a sweep takes what nobody has touched for long; in a folder that is none, it is hidden.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from swarm.mailbox import disk
from swarm.mailbox.folder_init import init_folder
from swarm.mailbox.folder_read import TMP
from swarm.mailbox.folder_write import FolderFiles

HIDDEN = ".swarm-probe-"  # of what is tried in a folder that is no mailbox
OWNER = ".owner"  # the file that says which process tries
LEFT_S = 3600.0  # after which what another machine left is nobody's any more
PAUSES_S = (0.0, 0.05, 0.2, 0.5, 1.0)  # SMB keeps what somebody has open

_HEX = re.compile(r"[0-9a-f]{32}")


class Place:
    """In the folder `root`, an absolute path. `owner`: words that tell this process from all others, on all machines."""

    def __init__(self, root: str, owner: str) -> None:
        self.root, self.owner = root, owner
        name = uuid4().hex
        self._in_tmp, self._hidden = f"{root}/{TMP}/{name}", f"{root}/{HIDDEN}{name}"
        self.path = self._in_tmp

    def make(self) -> None:
        """Make it a mailbox. Raises OSError, MailboxError."""
        self.path = self._in_tmp if os.path.isdir(f"{self.root}/{TMP}") else self._hidden
        os.mkdir(self.path)
        fd = os.open(f"{self.path}/{OWNER}", disk.CREATE, 0o666)
        try:
            disk.write_all(fd, self.owner.encode())
        finally:
            os.close(fd)
        init_folder(self.path)

    def files(self) -> FolderFiles:
        return FolderFiles(self.path)

    def remove(self) -> bool:
        """Whether nothing of it is left."""
        return remove_tree(self._in_tmp) and remove_tree(self._hidden)

    def remove_left(self, gone: Callable[[str], bool]) -> int:
        """Remove what other trials left; how many. `gone`: whether a process is provably none any more, by the words of its
        place; of others it counts how long they lie there, by what the share itself says of them and of this place."""
        now_s = os.stat(f"{self.path}/{OWNER}").st_mtime
        removed = 0
        for path in self._others():
            with suppress(OSError):
                try:
                    with open(f"{path}/{OWNER}", "rb") as file:
                        over = gone(file.read(1000).decode(errors="replace"))
                except FileNotFoundError:
                    if not os.path.basename(path).startswith(HIDDEN):
                        continue  # some writer's, and not a trial's
                    over = False
                if over or now_s - os.lstat(path).st_mtime > LEFT_S:
                    removed += remove_tree(path)
        return removed

    def _others(self) -> list[str]:
        found = [f"{self.root}/{name}" for name in os.listdir(self.root) if name.startswith(HIDDEN)]
        with suppress(FileNotFoundError):
            found += [f"{self.root}/{TMP}/{name}" for name in os.listdir(f"{self.root}/{TMP}") if _HEX.fullmatch(name)]
        return [path for path in found if path != self.path and os.path.isdir(path) and not os.path.islink(path)]


def remove_tree(path: str) -> bool:
    """Remove a folder with all that is in it, without following links out of it. Whether it is gone."""
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        shutil.rmtree(path, ignore_errors=True)
        try:
            os.lstat(path)
        except FileNotFoundError:
            return True
        except OSError:
            pass
    return False
