"""A faulty folder, mounted once or several times, for a test to break."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.folder_init import init_folder
from swarm.mailbox.folder_write import FolderFiles
from swarm.mailbox.sweep import Sweeper

HERE = Path(__file__).parent
AT_ONCE = (0.0,) * 6  # as many tries as the mailbox makes, without pauses


class Mount:
    """One machine's view of the share: its folder `root`, served at `path` by a process of its own."""

    def __init__(self, root: Path, path: Path, *, negative_s: float = 0) -> None:
        self.root, self.path, self.negative_s = root, path, negative_s
        self.process: subprocess.Popen[str] | None = None

    def mount(self) -> None:
        command = [sys.executable, str(HERE / "faulty_folder.py"), str(self.root), str(self.path), str(self.negative_s)]
        pipe, env = subprocess.PIPE, {"FUSE_LIBRARY_PATH": "libfuse3.so.3"} | os.environ
        # A session of its own: a Ctrl-C is the tests', and no share goes away by it.
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            why = self.process.communicate()[1].strip().splitlines()[-1:]
            raise OSError(f"nothing can be mounted: {' '.join(why)}")

    def fails(self, *rules: dict[str, Any]) -> int:
        """Fail by these from now on (faulty_folder.py); how many operations those before have hit."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(rules)}\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline())["hit"])

    def unmount(self) -> None:
        """Whoever uses it is not asked."""
        command = ["fusermount3", "-u", "-z", str(self.path)]
        subprocess.run(command, check=False, capture_output=True, start_new_session=True)
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


class Share:
    """What a test has to break: the folder that is served, and what mounts it. Each test has a mailbox of its own there."""

    def __init__(self, root: Path, mounts: list[Mount]) -> None:
        self.root, self.mounts = root, mounts
        self.name = ""

    @property
    def mount(self) -> Mount:
        return self.mounts[0]

    @property
    def at(self) -> Path:
        """This machine's path of the mailbox."""
        return self.mount.path / self.name

    @property
    def below(self) -> Path:
        """The server's."""
        return self.root / self.name

    def fails(self, *rules: dict[str, Any]) -> int:
        return self.mount.fails(*rules)

    def new(self, name: str) -> str:
        """Another mailbox for the test to come; its id."""
        self.name = name
        return init_folder(str(self.below))

    def files(self, path: Path | None = None) -> FolderFiles:
        """The mailbox on this machine, opened; it tries again without pauses."""
        files = FolderFiles(str(path or self.at), pauses_s=AT_ONCE)
        files.open()
        return files

    def server(self) -> FolderFiles:
        """The mailbox on the machine that serves it, which has no faults."""
        return self.files(self.below)

    def left(self) -> list[str]:
        """What lies in tmp/ and trash/."""
        return sorted(f"{place}/{path.name}" for place in ("tmp", "trash") for path in (self.below / place).iterdir())

    def swept(self) -> list[str]:
        """What a sweep leaves there."""
        sweeper = Sweeper(self.server())
        sweeper.sweep(0, 0)
        return self.left()


class QuickMailbox(FolderMailbox):
    """The mailbox as everybody has it, but for the pauses between tries."""

    def _start(self) -> None:
        super()._start()
        self._files._pauses_s = AT_ONCE


def contents(files: FolderFiles) -> dict[str, bytes | None]:
    return {key: files.read(key) for key in files.list("runs/", "")}


@contextmanager
def mounted(folder: Path, *, mounts: int = 1, negative_s: float = 0) -> Iterator[Share]:
    """A share in `folder`. Skips where FUSE is not there."""
    if importlib.util.find_spec("mfusepy") is None or shutil.which("fusermount3") is None or not Path("/dev/fuse").exists():
        pytest.skip("no FUSE here (fuse3, mfusepy): no faulty share can be mounted")
    root = folder / "served"
    root.mkdir()
    made: list[Mount] = []
    try:
        for n in range(mounts):
            path = folder / f"mount-{n}"
            path.mkdir()
            made.append(Mount(root, path, negative_s=negative_s))
            try:
                made[-1].mount()
            except OSError as error:
                pytest.skip(f"no FUSE here: {error}")
        yield Share(root, made)
    finally:
        for mount in made:
            mount.unmount()
