"""The operating system under a folder mailbox, for tests: what fails there, and where; and the calls that meet it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from swarm.mailbox.folder_init import init_folder
from swarm.mailbox.folder_write import FolderFiles

OPERATIONS = (
    *("mkdir", "rmdir", "rename", "unlink", "open", "write", "fsync"),
    *("read", "readv", "lstat", "listdir", "scandir", "fstat"),
)
RECORD = "runs/r/rounds/0/1/record.json"
OTHER = "runs/r/rounds/0/0/record.json"
BLOB = "runs/r/blobs/1/x"


class Died(BaseException):
    """The process was killed."""


class Faults:
    """Stands in for `os` in the modules under test: call number `at` fails, or the process dies there."""

    def __init__(self) -> None:
        self.calls = 0
        self.at = -1
        self.error: int | type[Died] = errno.EIO
        self.after = False
        self.dead = False
        self.hit = ""
        self.each: Callable[[], None] = lambda: None  # called before every operation

    def __getattr__(self, name: str):
        real = getattr(os, name)
        if name not in (*OPERATIONS, "close"):
            return real

        def operation(*args, **kwargs):
            if self.dead:
                if name == "close":  # the system closes a dead process's files
                    return real(*args, **kwargs)
                raise Died
            if name == "close":
                return real(*args, **kwargs)
            self.each()
            self.calls += 1
            mine = self.calls - 1 == self.at
            if mine:
                self.hit = name
            if mine and not self.after:
                self.fail()
            result = real(*args, **kwargs)
            if mine:
                self.fail()
            return result

        return operation

    def fail(self) -> None:
        if isinstance(self.error, int):
            raise OSError(self.error, os.strerror(self.error))
        self.dead = True
        raise Died

    def plan(self, at: int, error: int | type[Died], after: bool) -> None:
        self.calls, self.at, self.error, self.after, self.hit = 0, at, error, after, ""


def make(folder: Path) -> str:
    root = str(folder / uuid4().hex)
    init_folder(root)
    return root


def files(root: str) -> FolderFiles:
    files = FolderFiles(root, pauses_s=(0.0, 0.0))
    files.open()
    return files


def blob(text: bytes = b"whole") -> list[bytes]:
    return [text[:2], text[2:]]


Calls = dict[str, tuple[Callable[[FolderFiles], object], Callable[[FolderFiles], object], object]]
CALLS: Calls = {
    # name: what stands there before, the call, its answer
    "create": (lambda f: None, lambda f: f.create(RECORD, b"mine"), True),
    "create, beside another": (lambda f: f.create(OTHER, b"other"), lambda f: f.create(RECORD, b"mine"), True),
    "create, lost": (lambda f: f.create(RECORD, b"theirs"), lambda f: f.create(RECORD, b"mine"), False),
    "create, again": (lambda f: f.create(RECORD, b"mine"), lambda f: f.create(RECORD, b"mine"), True),
    "put": (lambda f: None, lambda f: f.put(BLOB, blob()), BLOB),
    "put, again": (lambda f: f.put(BLOB, blob()), lambda f: f.put(BLOB, blob()), BLOB),
    "put, computed": (lambda f: None, lambda f: f.put(lambda: BLOB, blob()), BLOB),
    "read": (lambda f: f.create(RECORD, b"mine"), lambda f: f.read(RECORD), b"mine"),
    "read, missing": (lambda f: f.put(BLOB, blob()), lambda f: f.read(RECORD), None),
    "read_part": (lambda f: f.put(BLOB, blob()), lambda f: f.read_part(BLOB, 0, bytearray(9)), 5),
    "read_part, further on": (lambda f: f.put(BLOB, blob()), lambda f: f.read_part(BLOB, 2, bytearray(2)), 2),
    "read_part, missing": (lambda f: f.create(RECORD, b"mine"), lambda f: f.read_part(BLOB, 2, bytearray(2)), None),
    "list": (lambda f: (f.put(BLOB, blob()), f.create(RECORD, b"mine")), lambda f: f.list("runs/", ""), [BLOB, RECORD]),
    "delete": (lambda f: (f.put(BLOB, blob()), f.create(RECORD, b"mine")), lambda f: f.delete([BLOB, RECORD]), None),
    "delete, missing": (lambda f: None, lambda f: f.delete([BLOB, RECORD]), None),
    "open": (lambda f: None, lambda f: len(f.open()), 32),
}


def contents(files: FolderFiles) -> dict[str, bytes | None]:
    return {key: files.read(key) for key in files.list("runs/", "")}
