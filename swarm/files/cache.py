"""What this machine keeps of the files that runs brought along: by SHA-256, bounded, the oldest-used thrown away first.

    <cache>/files/<sha256>                    a whole file, verified
    <cache>/partial/<sha256>.<size>.<slot>    one that is being fetched, or was
    <cache>/folders/<sha256>/<name>           a base model: links to its files

Processes meet here, so each file has a lock (flock): shared while somebody uses it, exclusive while it is fetched or thrown
away. A process that ends, however it ends, gives its locks back. Locks only save work: what is in `files/` is verified
whenever it is asked for. A file has no suffix and is never executable.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from swarm.core.errors import CacheUnusable
from swarm.core.keys import is_sha256
from swarm.core.manifest import FileRef
from swarm.core.sentences import amount
from swarm.host.paths import cache_dir

LIMIT_BYTES = 20 << 30
SPARE_BYTES = 64 << 20  # what stays free on the disk
PART_BYTES = 1 << 20
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""What a file system says that has no locks."""


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class Cache:
    """The cache in the folder `root`. A context manager: what was found or fetched in it is not thrown away before its end.

    Its methods raise CacheUnusable. `now`: the wall clock of the file system's times, in seconds.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        limit_bytes: int = LIMIT_BYTES,
        free_bytes: Callable[[Path], int] = _free_bytes,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.root = root or cache_dir()
        self.limit_bytes = limit_bytes
        self._free_bytes, self._now = free_bytes, now
        self._files, self._partial, self._folders = (self.root / name for name in ("files", "partial", "folders"))
        self._held: list[int] = []

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._held:
            os.close(self._held.pop())

    def find(self, ref: FileRef) -> Path | None:
        """The file, if it is here and what it should be; from now on it is in use. One that is spoiled is removed."""
        path = self._files / ref.sha256
        with self._mapped():
            while (fd := _open(path, os.O_RDONLY)) is not None:
                _lock(fd, fcntl.LOCK_SH)
                if not _still(fd, path):  # thrown away before it was locked
                    os.close(fd)
                    continue
                if os.fstat(fd).st_size == ref.size_bytes and _sha256(fd) == ref.sha256:
                    os.utime(fd, (self._now(), self._now()))
                    self._held.append(fd)
                    return path
                os.unlink(path)
                os.close(fd)
        return None

    def begin(self, ref: FileRef, slot: int = 0) -> Partial | None:
        """What there is of the file so far, to be gone on with; None if another process is about it."""
        path = self._partial / f"{ref.sha256}.{ref.size_bytes}.{slot}"
        with self._mapped():
            for folder in (self._files, self._partial):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            while (fd := _open(path, os.O_RDWR | os.O_CREAT)) is not None:
                if not _lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    os.close(fd)
                    return None
                if _still(fd, path):
                    return Partial(self, ref, path, fd)
                os.close(fd)
        return None

    def partial_bytes(self, ref: FileRef, slot: int = 0) -> int:
        """How much of the file another process has fetched."""
        try:
            return (self._partial / f"{ref.sha256}.{ref.size_bytes}.{slot}").stat().st_size
        except OSError:
            return 0

    def make_room(self, ref: FileRef, own: Path, have_bytes: int) -> None:
        """For a file of which `have_bytes` are here, in `own`: throws away what was not used for longest, and is in no use.

        Raises CacheUnusable if that is not enough.
        """
        advice = f"free some, move the cache with SWARM_CACHE_DIR, or copy {ref.name!r} here and pass it with --data"
        with self._mapped():
            entries = sorted(_entries(self._files, self._partial))
            kept_bytes = sum(entry.size_bytes for entry in entries if entry.path != own) + ref.size_bytes
            wanted_bytes = ref.size_bytes - have_bytes + SPARE_BYTES
            for entry in entries:
                if kept_bytes <= self.limit_bytes and self._free_bytes(self.root) >= wanted_bytes:
                    break
                if ref.size_bytes <= self.limit_bytes and entry.path != own and _throw_away(entry.path):
                    kept_bytes -= entry.size_bytes
            _prune(self._folders)
            if kept_bytes > self.limit_bytes:
                raise CacheUnusable(
                    f"no room for {ref.name!r}, {amount(ref.size_bytes)}: the cache {self.root} holds at most"
                    f" {amount(self.limit_bytes)}, files in use included: {advice}"
                )
            if self._free_bytes(self.root) < wanted_bytes:
                free = amount(self._free_bytes(self.root))
                raise CacheUnusable(
                    f"no room for {ref.name!r}, {amount(ref.size_bytes)}: {free} are free in {self.root}: {advice}"
                )

    def folder(self, refs: tuple[FileRef, ...]) -> Path:
        """A folder in which the files, found or fetched before, have their names."""
        names = msgspec.json.encode(sorted((ref.name, ref.sha256) for ref in refs))
        path = self._folders / hashlib.sha256(names).hexdigest()
        staged = self._folders / f"{path.name}.{os.getpid()}"
        with self._mapped():
            if path.is_dir():
                return path
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(mode=0o700, parents=True)
            for ref in refs:
                (staged / ref.name).symlink_to(Path("..", "..", "files", ref.sha256))
            try:
                staged.rename(path)
            except OSError:
                shutil.rmtree(staged, ignore_errors=True)
                if not path.is_dir():  # else another process made the same
                    raise
        return path

    def finished(self, partial: Path, ref: FileRef, fd: int) -> Path:
        path = self._files / ref.sha256
        self._held.append(fd)
        with self._mapped():
            os.utime(fd, (self._now(), self._now()))
            os.replace(partial, path)
            _lock(fd, fcntl.LOCK_SH)
            if not _still(fd, path):  # a lock is not exchanged in one step
                raise FileNotFoundError(errno.ENOENT, f"{ref.name!r} was thrown away at once")
        return path

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise CacheUnusable(f"the cache {self.root} cannot be used: {reason} (SWARM_CACHE_DIR moves it)") from error


class Partial:
    """A file that is being fetched; locked until it is closed. What was written stays for the next time."""

    def __init__(self, cache: Cache, ref: FileRef, path: Path, fd: int) -> None:
        self.path = path
        self._cache, self._ref, self._fd = cache, ref, fd

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def read(self, begin: int, size: int) -> bytes:
        """`size` bytes from `begin`, fewer if there are fewer."""
        parts = []
        with self._cache._mapped():
            while size > 0 and (part := os.pread(self._fd, size, begin)):
                parts.append(part)
                begin, size = begin + len(part), size - len(part)
        return b"".join(parts)

    def write(self, begin: int, data: memoryview) -> None:
        with self._cache._mapped():
            while data:
                done = os.pwrite(self._fd, data, begin)
                begin, data = begin + done, data[done:]

    def cut(self, size: int) -> None:
        """Keep the first `size` bytes."""
        with self._cache._mapped():
            os.ftruncate(self._fd, size)

    def discard(self) -> None:
        """It will never be the file."""
        with suppress(OSError):
            os.unlink(self.path)

    def finish(self) -> Path:
        """It is the file: put it in its place, in use from now on."""
        fd, self._fd = self._fd, -1  # the cache's from now on
        return self._cache.finished(self.path, self._ref, fd)


class _Entry(NamedTuple):
    used_s: float
    size_bytes: int
    path: Path


def _entries(files: Path, partial: Path) -> Iterator[_Entry]:
    for folder in (files, partial):
        with os.scandir(folder) as found:
            for entry in found:
                name, _, promised = entry.name.partition(".")
                if not is_sha256(name):
                    continue  # not ours
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    # Of one that is being fetched counts what it will need: two at once stay within the bound together.
                    size = int(promised.partition(".")[0]) if promised.replace(".", "").isdecimal() else status.st_size
                    yield _Entry(status.st_mtime, size, Path(entry.path))


def _throw_away(path: Path) -> bool:
    """False: it is in use."""
    fd = _open(path, os.O_RDONLY)
    if fd is None:
        return True
    try:
        if not _lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
        if _still(fd, path):
            os.unlink(path)
        return True
    finally:
        os.close(fd)


def _prune(folders: Path) -> None:
    """Folders of models that have lost a file go."""
    with suppress(OSError):
        for folder in folders.iterdir():
            if not all(link.exists() for link in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)


def _open(path: Path, flags: int) -> int | None:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None


def _lock(fd: int, how: int) -> bool:
    """False: somebody else has it."""
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _still(fd: int, path: Path) -> bool:
    """Whether `path` is the file that was opened."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _sha256(fd: int) -> str:
    hashed, begin = hashlib.sha256(), 0
    while part := os.pread(fd, PART_BYTES, begin):
        hashed.update(part)
        begin += len(part)
    return hashed.hexdigest()
