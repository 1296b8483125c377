"""An NFS client's memory of what another machine has deleted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from swarm.mailbox import folder_read
from swarm.mailbox.folder_init import init_folder
from swarm.mailbox.folder_write import FolderFiles

KEY = "runs/r/blobs/1"


class Delegated:
    """Stands in for `os`: what was opened once is opened again though it is gone, and is then found to be stale."""

    def __init__(self, kept: Path) -> None:
        self.kept, self.stale = kept, 0

    def __getattr__(self, name: str):
        return getattr(os, name)

    def open(self, path: str, flags: int) -> int:
        return os.open(self.kept if path.endswith(KEY) else path, flags)

    def fstat(self, fd: int) -> os.stat_result:
        if os.path.samestat(os.fstat(fd), self.kept.stat()):
            self.stale += 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return os.fstat(fd)


@pytest.mark.parametrize("part", [False, True])
def test_what_opens_but_is_stale_is_looked_for_in_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: bool
) -> None:
    root = str(tmp_path / "share")
    init_folder(root)
    here, elsewhere = FolderFiles(root, pauses_s=(0.0, 0.0)), FolderFiles(root)
    here.put(KEY, [b"x"])
    assert here.read(KEY) == b"x"
    elsewhere.delete([KEY])
    kept = tmp_path / "kept"
    kept.write_bytes(b"x")
    delegated = Delegated(kept)
    monkeypatch.setattr(folder_read, "os", delegated)
    assert (here.read_part(KEY, 0, bytearray(4)) if part else here.read(KEY)) is None
    assert delegated.stale == 1
