"""A share that fails as it is told: a FUSE file system that passes everything on to a folder, but for what a rule says.

    python faulty_folder.py ROOT MOUNTPOINT [NEGATIVE_S]     # in the foreground

It talks over its standard input and output, one line of JSON each way. It says {"mounted": true} once; then, for every list of
rules that it is given, how many operations the rules before have hit, and begins with the new ones. When its input ends it
goes, and takes the mount with it. NEGATIVE_S: for how long the kernel remembers that a name is missing, as an NFS client does.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import mfusepy

T = TypeVar("T")
JUNK = (".DS_Store", ".nfs000000000001", ".smbdelete1", "@eaDir", "notes.sync-conflict-20260101-000000-ABCDEFG")
STAT = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")
STATFS = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_namemax")


@dataclass
class Rule:
    """What goes wrong, and when: with operations among `ops` (none given: any) whose path below the share matches `path`; of a
    rename that is where it leads to. The first rule that hits an operation is the one that counts.

    errno    it fails so, without any effect; with `after`, when it has had its effect: the reply is lost
    kill     this process, which must be the one that asked, is killed before the effect, or with `after` behind it
    exit     the file system itself dies there
    unmount  it is unmounted, as by a person who does not look who is using it
    delay_s  it takes so long
    short    a read gives so many bytes at most
    flip     a read gives one flipped bit, in its first byte
    late     a listing lacks names that match this
    twice    a listing gives every name twice
    junk     a listing has names that no swarm wrote
    folds    names that differ by case only are one
    """

    ops: tuple[str, ...] = ()
    path: str = ""
    count: int | None = None  # operations that it hits; None: all
    skip: int = 0  # operations that it lets pass first
    after: bool = False
    errno: str = ""
    kill: int = 0
    exit: bool = False
    unmount: bool = False
    delay_s: float = 0.0
    short: int = 0
    flip: bool = False
    late: str = ""
    twice: bool = False
    junk: bool = False
    folds: bool = False

    def hits(self, op: str, path: str, pid: int) -> bool:
        """Whether it hits this operation, which it counts."""
        if self.count == 0 or (self.ops and op not in self.ops) or not re.search(self.path, path):
            return False
        if self.kill and self.kill != pid:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.count is not None:
            self.count -= 1
        return True


NONE = Rule()


class FaultyFolder(mfusepy.Operations):
    """`root`, mounted at `mountpoint`."""

    use_ns = True

    def __init__(self, root: str, mountpoint: str) -> None:
        self.root, self.mountpoint = root, mountpoint
        self.rules: list[Rule] = []
        self.hit = 0
        self._lock = threading.Lock()

    def obey(self, rules: list[Rule]) -> int:
        """Fail by `rules` from now on; how many operations were hit since the last time."""
        with self._lock:
            self.rules, hit, self.hit = rules, self.hit, 0
        return hit

    def init(self, path: str) -> None:
        say(mounted=True)

    def _real(self, path: str) -> str:
        if any(rule.folds for rule in self.rules):
            path = path.lower()
        return self.root + path

    def _do(self, op: str, path: str, action: Callable[[Rule], T]) -> T:
        """`action`, with what the first rule that hits it does to it."""
        pid = mfusepy.fuse_get_context()[2]
        with self._lock:
            rule = next((rule for rule in self.rules if rule.hits(op, path, pid)), NONE)
            self.hit += rule is not NONE
        time.sleep(rule.delay_s)
        if not rule.after:
            self._fail(rule)
        try:
            return action(rule)
        finally:
            if rule.after:
                self._fail(rule)

    def _fail(self, rule: Rule) -> None:
        if rule.exit:
            os._exit(9)
        if rule.unmount:
            unmount(self.mountpoint)
        if rule.kill:
            os.kill(rule.kill, signal.SIGKILL)
            raise mfusepy.FuseOSError(errno.EINTR)
        if rule.errno:
            raise mfusepy.FuseOSError(getattr(errno, rule.errno))

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        def stat(_: Rule) -> dict[str, int]:
            found = os.lstat(self._real(path)) if fh is None else os.fstat(fh)
            times = {f"st_{k}time": getattr(found, f"st_{k}time_ns") for k in "amc"}
            return {name: getattr(found, name) for name in STAT} | times

        return self._do("getattr", path, stat)

    def readdir(self, path: str, fh: int) -> list[str]:
        def names(rule: Rule) -> list[str]:
            found = [name for name in os.listdir(self._real(path)) if not (rule.late and re.search(rule.late, name))]
            if rule.junk:
                found += [*(f"._{name}" for name in found), *JUNK]
            return [".", "..", *found, *(found if rule.twice else ())]

        return self._do("readdir", path, names)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        def data(rule: Rule) -> bytes:
            found = os.pread(fh, rule.short or size, offset)
            return bytes([found[0] ^ 1]) + found[1:] if rule.flip and found else found

        return self._do("read", path, data)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return self._do("create", path, lambda _: os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode))

    def open(self, path: str, flags: int) -> int:
        return self._do("open", path, lambda _: os.open(self._real(path), flags & (os.O_ACCMODE | os.O_APPEND)))

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return self._do("write", path, lambda _: os.pwrite(fh, data, offset))

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        self._do("truncate", path, lambda _: os.truncate(self._real(path), length))

    def flush(self, path: str, fh: int) -> int:
        return self._do("flush", path, lambda _: 0)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        return self._do("fsync", path, lambda _: 0)

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        return self._do("fsyncdir", path, lambda _: 0)

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def unlink(self, path: str) -> None:
        self._do("unlink", path, lambda _: os.unlink(self._real(path)))

    def mkdir(self, path: str, mode: int) -> None:
        self._do("mkdir", path, lambda _: os.mkdir(self._real(path), mode))

    def rmdir(self, path: str) -> None:
        self._do("rmdir", path, lambda _: os.rmdir(self._real(path)))

    def rename(self, old: str, new: str, *flags: int) -> None:
        self._do("rename", new, lambda _: os.rename(self._real(old), self._real(new)))

    def chmod(self, path: str, mode: int, *_: Any) -> None:
        self._do("chmod", path, lambda _: os.chmod(self._real(path), mode))

    def utimens(self, path: str, times: tuple[int, int] | None = None, *_: Any) -> int:
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self.root)
        return {name: getattr(found, name) for name in STATFS}


def unmount(mountpoint: str) -> None:
    subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False, capture_output=True)


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def orders() -> Iterator[list[Rule]]:
    for line in sys.stdin:
        yield [Rule(**rule) for rule in json.loads(line)]


def main(root: str, mountpoint: str, negative_s: str = "0") -> None:
    folder = FaultyFolder(root, mountpoint)

    def listen() -> None:
        for rules in orders():
            say(hit=folder.obey(rules))
        unmount(mountpoint)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    # One thread: what is counted is counted in the order in which it happens.
    mfusepy.FUSE(
        folder,
        mountpoint,
        foreground=True,
        nothreads=True,
        direct_io=True,
        fsname="faulty",
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=float(negative_s),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
