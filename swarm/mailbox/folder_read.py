"""A mailbox in a folder, the blocking side: finding and reading. FORMAT.md, "Tree".

Every method runs on one thread from start to end and lets no OSError out. An NFS client that was asked for a name in vain
says "missing" for half a minute and more after it has appeared: so a name is opened only after a listing has shown it.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from swarm.core.errors import MailboxAway, MailboxCorrupt, MailboxError, MailboxMoved
from swarm.core.keys import MARKER, is_key
from swarm.core.lines import marker_in
from swarm.mailbox import disk
from swarm.mailbox.contract import MAX_READ_BYTES, STAGED, TRASHED
from swarm.mailbox.errnos import ABSENT, AGAIN, foreign
from swarm.mailbox.names import Names

T = TypeVar("T")
_is_key = functools.lru_cache(1 << 11)(is_key)  # the same names are listed again and again

TMP, TRASH, RUNS = STAGED.rstrip("/"), TRASHED.rstrip("/"), "runs"
OURS = re.compile(r"[0-9a-f]{32}")  # names in the first two
PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)  # between tries of what is often over within a second
MAX_DEPTH = 16  # folders below the mailbox that a listing enters


class FolderReader:
    """The folder at `root`, an absolute path. Safe to use from several threads.

    `progressed` is called whenever the share has answered, twice per call of the system's at the least: one that is slow is
    not one that hangs, and a record takes two dozen answers.
    """

    def __init__(
        self, root: str, *, progressed: Callable[[], None] = lambda: None, pauses_s: Sequence[float] = PAUSES_S
    ) -> None:
        self.root = root
        self.progressed = progressed
        self._pauses_s = tuple(pauses_s)
        self._stop = threading.Event()
        self._names = Names()
        self._id: str | None = None
        self._marker: tuple[int, int, int] | None = None  # what the marker's file was when it was last read

    def stop(self) -> None:
        """No more second tries: calls under way end with the error that they meet next."""
        self._stop.set()

    def open(self) -> str:
        with foreign(self.root):
            return self.patiently(self._read_marker)

    def read(self, key: str) -> bytes | None:
        def whole(fd: int, size: int) -> bytes:
            if size > MAX_READ_BYTES:
                raise MailboxCorrupt(f"{self.root}/{key}: {size} bytes, more than {MAX_READ_BYTES}")
            return disk.read_all(fd, size, self.progressed)

        return self._reading(key, whole)

    def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        view = disk.writable(buffer, offset)

        def part(fd: int, size: int) -> int:
            wanted = min(len(view), max(0, size - offset))
            disk.read_into(fd, view[:wanted], self.progressed, offset=offset)
            return wanted

        return self._reading(key, part)

    def list(self, prefix: str, after: str) -> list[str]:
        if prefix and not prefix.startswith((f"{RUNS}/", "mailbox/")):
            return []
        keys: set[str] = set()  # a folder that changes while it is listed can give a name twice
        with self._looking():
            if not _some_after(prefix, after) or not self.patiently(partial(self._present, prefix.rstrip("/"))):
                return []
            waiting = [prefix] if prefix else [f"{RUNS}/", "mailbox/"]
            while waiting:
                folder = waiting.pop()
                first = after[len(folder) :].partition("/")[0] if after.startswith(folder) else ""
                for name, is_folder in self.patiently(partial(self._scan, folder.rstrip("/"), first)).items():
                    key = folder + name
                    if not is_folder:
                        keys.add(key)
                    elif _some_after(f"{key}/", after) and key.count("/") < MAX_DEPTH:
                        waiting.append(f"{key}/")
        return sorted(key for key in keys if key > after and (key.startswith(f"{RUNS}/") or key == MARKER))

    def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        found: Sequence[Sequence[str]] = ()
        for prefix, after in requests:
            try:
                found = (*found, self.list(prefix, after))
            except MailboxError:
                if not found:
                    raise
                break
        return found

    def names(self, prefix: str) -> Sequence[str]:
        folder = prefix.rstrip("/")
        if folder and not prefix.startswith((f"{RUNS}/", "mailbox/")):
            return []
        with self._looking():
            if not self.patiently(partial(self._present, folder)):
                return []
            found = self.patiently(partial(self._scan, folder))
            return sorted(name for name in found if folder or name in (RUNS, "mailbox"))

    def sizes(self, prefix: str) -> Mapping[str, int]:
        if prefix in (STAGED, TRASHED):
            with foreign(self.root):
                self.guard()
                return self.patiently(partial(self._lying, prefix.rstrip("/")))
        found = {}
        with foreign(self.root):
            for key in self.list(prefix, ""):
                self.progressed()
                size = self.patiently(partial(self._file_bytes, self.path(key)))
                if size is not None:
                    found[key] = size
        return found

    def _lying(self, place: str) -> dict[str, int]:
        """What is staged, or trashed, with its bytes: files, and folders of a file."""
        found = {}
        try:
            names = os.listdir(self.path(place))
        except FileNotFoundError as error:
            raise MailboxAway(f"{self.root}: no folder {place}/ there: is the share mounted?") from error
        for name in filter(OURS.fullmatch, names):
            path = self.path(f"{place}/{name}")
            self.progressed()
            with suppress(FileNotFoundError):  # published, or removed, since it was listed
                inside = os.listdir(path) if stat.S_ISDIR(os.lstat(path).st_mode) else None
                files = [path] if inside is None else [f"{path}/{each}" for each in inside]
                found[f"{place}/{name}"] = sum(self._file_bytes(each) or 0 for each in files)
        return found

    def _file_bytes(self, path: str) -> int | None:
        """None: it is gone."""
        try:
            return os.lstat(path).st_size
        except OSError as error:
            if error.errno not in ABSENT:
                raise
            return None

    def guard(self) -> None:
        """Raise MailboxMoved unless the mailbox is still the one that was opened. Costs one stat."""

        def look() -> None:
            try:
                found = os.lstat(self.path(MARKER))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                raise MailboxAway(f"{self.root}: the mailbox is gone: is the share mounted?") from error
            self.progressed()
            if (found.st_dev, found.st_ino, found.st_mtime_ns) != self._marker:
                self._read_marker()

        if self._marker is None:
            self.open()
        self.patiently(look)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Around a look at the mailbox: what it found, or missed, counts only if this was the mailbox to the end. An unmounted
        share has nothing, and that would pass for an answer."""
        with foreign(self.root):
            if self._marker is None:
                self.open()
            try:
                yield
            except MailboxError:
                self.guard()
                raise
            self.guard()

    def path(self, relative: str) -> str:
        return f"{self.root}/{relative}" if relative else self.root

    def patiently(self, attempt: Callable[[], T]) -> T:
        """`attempt()`, tried again for as long as it meets errors that are often over within a second."""
        for pause_s in self._pauses_s:
            try:
                return attempt()
            except OSError as error:
                if error.errno not in AGAIN or self._stop.wait(pause_s):
                    raise
        return attempt()

    def _read_marker(self) -> str:
        self._names.forget("")
        self._names.forget("mailbox")
        fd = self._open(MARKER)
        if fd is None:
            raise MailboxAway(f"{self.root}: no mailbox there: is the share mounted?")
        try:
            found = os.fstat(fd)
            data = disk.read_all(fd, found.st_size, self.progressed)
        finally:
            os.close(fd)
        marker = marker_in(data, where=f"{self.root}/{MARKER}")
        if self._id not in (None, marker.id):
            raise MailboxMoved(f"{self.root}: another mailbox than before ({marker.id[:8]}, not {str(self._id)[:8]})")
        self._id = marker.id
        self._marker = (found.st_dev, found.st_ino, found.st_mtime_ns)
        return marker.id

    def _reading(self, key: str, whole: Callable[[int, int], T]) -> T | None:
        def attempt() -> T | None:
            fd = self._open(key)
            if fd is None:
                return None
            try:
                found = os.fstat(fd)
                return whole(fd, found.st_size) if stat.S_ISREG(found.st_mode) else None
            except OSError as error:
                if error.errno == errno.ESTALE:
                    # NFSv4 lets a client that holds a delegation open by itself what has been deleted meanwhile: list again.
                    self._names.forget_above(key)
                raise
            finally:
                os.close(fd)

        with self._looking():
            return self.patiently(attempt)

    def _open(self, key: str) -> int | None:
        """A file descriptor, or None if there is no such file."""
        for pause_s in (0.0, *self._pauses_s[:2]):
            if not self._present(key):
                return None
            try:
                fd = os.open(self.path(key), disk.READ)
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
            else:
                self.progressed()
                return fd
            # Deleted since it was listed, or an NFS client that remembers the time before: list again.
            self._names.forget_above(key)
            self._stop.wait(pause_s)
        return None

    def _present(self, path: str) -> bool:
        """Whether listings show `path`, a key or a folder: no name is asked for that may be missing.

        Costs nothing for what was listed before, else one listing for each folder on the way not known yet.
        """
        if path in ("", RUNS):
            return True
        parent, _, name = path.rpartition("/")
        if self._names.has(parent, name):
            return True
        return self._present(parent) and name in self._scan(parent)

    def _scan(self, folder: str, first: str = "") -> dict[str, bool]:
        """Names in `folder` ('': the mailbox) that could be ours; True: a folder. Nothing if there is no such folder.

        `first`: those before it that it does not begin with are left out, as cheaply as can be: of a long folder often only
        the end counts. Links are not followed: they could lead out of the mailbox.
        """
        for _ in range(2):  # an NFS client's memory of a folder that was deleted and made again is mended by the first error
            try:
                with os.scandir(self.path(folder)) as entries:
                    # In one loop: this is most of what a poll of a long run costs.
                    names = {}
                    for entry in entries:
                        name = entry.name
                        if (name >= first or first.startswith(name)) and _is_key(name):
                            is_folder = entry.is_dir(follow_symlinks=False)
                            if is_folder or entry.is_file(follow_symlinks=False):  # else no swarm made it
                                names[name] = is_folder
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                if folder == RUNS:
                    raise MailboxAway(f"{self.root}: no folder {RUNS}/ there: is the share mounted?") from error
            else:
                self._names.listed(folder, names, whole=not first)
                self.progressed()
                return names
        self._names.forget_above(f"{folder}/")
        return {}


def _some_after(folder: str, after: str) -> bool:
    """Whether a key that starts with `folder` ('' or 'a/b/') can come after `after`."""
    return folder > after or after.startswith(folder)
