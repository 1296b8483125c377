"""A mailbox in a folder, the blocking side: writing and deleting. FORMAT.md, "Ordering".

What the file systems and protocols do, and what follows from it:

* The one operation that is exclusive everywhere is renaming a folder: none of them lets it replace a folder that has
  something in it. An empty one would be replaced, so no record's folder is ever emptied where it stands.
* A mount point whose share is gone is an empty folder that accepts writes. So everything is first written in tmp/, which only
  the making of a mailbox makes, and no folder is made but under an existing one below runs/.
* A rename over NFS or SMB can be reported as failed although the server did it, or does it later. So its error says nothing:
  look. And what was staged is taken back by a rename into trash/, which cannot touch what has been published meanwhile.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar
from uuid import uuid4

from swarm.core.errors import MailboxAway, MailboxCorrupt, MailboxFull, MailboxReadOnly
from swarm.core.keys import RECORD, is_key
from swarm.mailbox import disk
from swarm.mailbox.contract import Buffer, KeyOf, check_put_key
from swarm.mailbox.errnos import ABSENT, foreign
from swarm.mailbox.folder_read import PAUSES_S, RUNS, TMP, TRASH, FolderReader

T = TypeVar("T")
MAX_MADE = 512
NAMES_TRIED = 3  # in tmp/: that one is taken never happens by chance


class Staged:
    """Something in tmp/ on its way to its key."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.moved = False
        self.rename()

    def rename(self) -> None:
        """Before it is made."""
        self.name = uuid4().hex
        self.path = f"{self._root}/{TMP}/{self.name}"

    def move(self, to: str) -> None:
        os.rename(self.path, to)
        self.moved = True


class FolderFiles(FolderReader):
    """The folder at `root`, an absolute path. Safe to use from several threads."""

    def __init__(
        self, root: str, *, progressed: Callable[[], None] = lambda: None, pauses_s: Sequence[float] = PAUSES_S
    ) -> None:
        super().__init__(root, progressed=progressed, pauses_s=pauses_s)
        self._made: set[str] = set()  # folders known to exist, so that a write does not make them again
        self._unsynced: set[str] = set()  # folders that are being made, or were, without it being certain that they last
        self.staging: set[str] = set()  # names in tmp/ that this process is writing

    def create(self, key: str, record: bytes) -> bool:
        folder = key.removesuffix(f"/{RECORD}")
        with foreign(self.root):
            self.guard()
            with self._staged() as staged:
                self.stage_record(staged, record)
                self.guard()  # another share may have been mounted since: it is where this was staged
                won = self.patiently(partial(self._publish_record, staged, folder, record))
            self._names.written(folder)
            self._names.written(key)
            if won:
                self._sync_folder(os.path.dirname(folder))
        return won

    def put(self, key: KeyOf, source: Iterable[Buffer]) -> str:
        with foreign(self.root):
            self.guard()
        with self._staged() as staged:
            size = self._stage_object(staged, source)
            name = check_put_key(key() if callable(key) else key)
            with foreign(self.root):
                self.guard()  # as in create
                self.patiently(partial(self._publish_object, staged, name, size))
                self._names.written(name)
                self._sync_folder(os.path.dirname(name))
        return name

    def delete(self, keys: Sequence[str]) -> None:
        parents = set()
        with foreign(self.root):
            self.guard()
            for key in keys:
                folder, name = os.path.split(key)
                self._delete(key)
                if name == RECORD:
                    folder = os.path.dirname(folder)
                self._names.forget(folder)
                parents.add(folder)
            self.guard()  # else what is not there now would pass for deleted
        for folder in sorted(parents, reverse=True):
            self._prune(folder)

    def check_writable(self) -> None:
        """Raise MailboxReadOnly where nothing can be written. A full disk can."""
        with suppress(MailboxFull), foreign(self.root):
            self.guard()
            with self._staged() as staged:
                self._stage(staged, os.mkdir)

    @contextmanager
    def _staged(self) -> Iterator[Staged]:
        """The block makes it and moves it; it is taken back if it was not moved."""
        staged = Staged(self.root)
        self.staging.add(staged.name)
        try:
            yield staged
        finally:
            if not staged.moved:
                self.discard(f"{TMP}/{staged.name}")
            self.staging.discard(staged.name)

    def stage_record(self, staged: Staged, record: bytes) -> None:
        self._stage(staged, os.mkdir)
        self._open_up(staged.path)
        fd = os.open(f"{staged.path}/{RECORD}", disk.CREATE, 0o666)
        self.progressed()
        try:
            disk.write_all(fd, record)
            disk.sync(fd)
        finally:
            os.close(fd)
        self.progressed()
        disk.sync_folder(staged.path)
        self.progressed()

    def _stage_object(self, staged: Staged, source: Iterable[Buffer]) -> int:
        """The object's size in bytes."""
        with foreign(self.root):
            fd = self._stage(staged, lambda path: os.open(path, disk.CREATE, 0o666))
        size = 0
        try:
            for chunk in source:  # outside of `foreign`: the source's own errors are not the mailbox's
                with foreign(self.root):
                    size += disk.write_all(fd, chunk)
                self.progressed()
            with foreign(self.root):
                disk.sync(fd)
            self.progressed()
        finally:
            with foreign(self.root):
                os.close(fd)  # can be the first to say that the disk is full
        return size

    def _stage(self, staged: Staged, make: Callable[[str], T]) -> T:
        """What `make` gives, which makes the path that it is given; under a name that nobody has."""
        for _ in range(NAMES_TRIED):
            try:
                with self._first_write():
                    made = make(staged.path)
            except FileExistsError as error:
                taken = error
            else:
                self.progressed()
                return made
            # Somebody else's, which is not to be taken back with this one's; or made by a request that arrived twice.
            self.staging.discard(staged.name)
            staged.rename()
            self.staging.add(staged.name)
        raise taken

    @contextmanager
    def _first_write(self) -> Iterator[None]:
        """What an error means where a fresh name is made in tmp/: no other writer can be its cause."""
        try:
            yield
        except OSError as error:
            if error.errno in ABSENT:
                raise MailboxAway(f"{self.root}: no folder {TMP}/ there: is the share mounted?") from error
            if error.errno in (errno.EACCES, errno.EPERM):
                raise MailboxReadOnly(f"{self.root}: this user may not write there") from error
            raise

    def _publish_record(self, staged: Staged, folder: str, record: bytes) -> bool:
        try:
            self._make_folders(os.path.dirname(folder))
            staged.move(self.path(folder))
            self.progressed()
        except OSError as error:
            self.progressed()
            self._lost_folder(error)
            found = self._look(f"{folder}/{RECORD}")
            if found is not None and found != record:
                # An NFS client can show a deleted record once more in place of a new one, which may be this one.
                found = self._look(f"{folder}/{RECORD}")
            if found is not None:
                return found == record
            with suppress(OSError):
                # A server's crash can leave a published folder without its file, and SMB does not replace even an empty one.
                os.rmdir(self.path(folder))
            raise
        return True

    def _look(self, key: str) -> bytes | None:
        """The record that made a rename fail, if so. Without a listing, which may be late."""
        try:
            fd = os.open(self.path(key), disk.READ)
        except OSError as error:
            if error.errno in ABSENT:
                return None
            raise
        self.progressed()
        try:
            return disk.read_all(fd, os.fstat(fd).st_size, self.progressed)
        finally:
            os.close(fd)

    def _publish_object(self, staged: Staged, key: str, size: int) -> None:
        # What is there already is the same object: leave it. An SMB client would delete it first if somebody is reading it.
        if self._size(key) == size:
            return
        try:
            self._make_folders(os.path.dirname(key))
            staged.move(self.path(key))
            self.progressed()
        except OSError as error:
            self.progressed()
            self._lost_folder(error)
            if self._size(key) != size:
                raise

    def _size(self, key: str) -> int | None:
        """The object's size in bytes, by opening it: an NFS client then asks the server instead of its memory."""
        try:
            fd = os.open(self.path(key), disk.READ)
        except OSError as error:
            if error.errno in ABSENT or error.errno == errno.ESTALE:
                return None
            raise
        self.progressed()
        try:
            found = os.fstat(fd)
            self.progressed()
        finally:
            os.close(fd)
        if not stat.S_ISREG(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, f"{key} is no object")
        return found.st_size

    def _make_folders(self, folder: str) -> None:
        """Make `folder`, below runs/, one folder at a time under an existing one."""
        if folder in self._made or folder == RUNS:
            return
        parent = os.path.dirname(folder)
        self._make_folders(parent)
        made = folder in self._unsynced  # by an earlier try, which failed after that
        self._unsynced.add(folder)
        try:
            os.mkdir(self.path(folder))
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(self.path(folder)).st_mode):  # a link could lead out of the mailbox
                raise NotADirectoryError(errno.ENOTDIR, f"{folder} is no folder") from None
        else:
            made = True
            self.progressed()
            self._open_up(self.path(folder))
        self.progressed()
        if made:
            self._sync_folder(parent)
        self._unsynced.discard(folder)
        for known in (self._made, self._unsynced):
            if len(known) > MAX_MADE:
                known.clear()
        self._made.add(folder)

    def _sync_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError):  # pruned already: what was in it has been deleted
            disk.sync_folder(self.path(folder))
        self.progressed()

    def _open_up(self, path: str) -> None:
        """Let those write in a new folder who may write in the mailbox: another machine's user may have another number."""
        with suppress(OSError):
            wanted = stat.S_IMODE(os.stat(self.path(TMP)).st_mode) & 0o777
            mode = stat.S_IMODE(os.stat(path).st_mode)
            self.progressed()
            if wanted & ~mode:
                os.chmod(path, mode | wanted)

    def _lost_folder(self, error: OSError) -> None:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            self.guard()  # the share may be gone
            self._made.clear()  # else a folder was pruned by another machine: make it again

    def _delete(self, key: str) -> None:
        attempt = self._delete_record if key.endswith(f"/{RECORD}") else self._delete_object
        for pause_s in (*self._pauses_s, None):
            if self.patiently(partial(attempt, key)):
                return
            # Missing; or it has come back since this NFS client last looked. A listing tells, and mends the client's memory.
            self._names.forget_above(key)
            if not self.patiently(partial(self._present, key)) or pause_s is None or self._stop.wait(pause_s):
                return

    def _delete_record(self, key: str) -> bool:
        """False: there is no such record."""
        folder, trashed = os.path.dirname(key), f"{TRASH}/{uuid4().hex}"
        try:
            names = os.listdir(self.path(folder))
            self.progressed()
            if RECORD not in names:
                return False
            if any(is_key(name) for name in names if name != RECORD):
                raise MailboxCorrupt(f"{self.root}/{folder}: {RECORD} is not alone in its folder")
            os.rename(self.path(folder), self.path(trashed))
        except OSError as error:
            if error.errno not in ABSENT:
                raise
            if not os.path.isdir(self.path(TRASH)):
                raise MailboxAway(f"{self.root}: no folder {TRASH}/ there: is the share mounted?") from error
            return False
        self.progressed()
        self._names.forget(folder)
        self.remove(trashed)
        return True

    def _delete_object(self, key: str) -> bool:
        """False: there is no such object."""
        try:
            os.unlink(self.path(key))
        except OSError as error:
            if error.errno in ABSENT:
                return False
            if not os.path.isdir(self.path(key)):  # a folder of others is no object: nothing to delete
                raise
        self.progressed()
        return True

    def _prune(self, folder: str) -> None:
        """Take away folders that have become empty, upwards; a writer that loses one makes it again."""
        while folder not in ("", RUNS):
            try:
                os.rmdir(self.path(folder))
            except OSError:
                return
            self.progressed()
            self._made.discard(folder)
            self._names.forget(folder)
            folder = os.path.dirname(folder)
            self._names.forget(folder)

    def discard(self, path: str) -> bool:
        """Remove what lies in tmp/, unless it has been published; by way of trash/. False: it is still there."""
        trashed = f"{TRASH}/{uuid4().hex}"
        try:
            os.rename(self.path(path), self.path(trashed))
        except OSError:
            return False
        self.progressed()
        return self.remove(trashed)

    def remove(self, path: str) -> bool:
        """Remove a file, or a folder with what is in it, in trash/. False: some of it is still there."""
        full = self.path(path)
        try:
            is_folder = stat.S_ISDIR(os.lstat(full).st_mode)
            self.progressed()
            if not is_folder:
                os.unlink(full)
                return True
            for name in os.listdir(full):
                self.progressed()
                try:
                    os.unlink(f"{full}/{name}")
                except (IsADirectoryError, PermissionError):  # a folder, by macOS's word the latter
                    shutil.rmtree(f"{full}/{name}")  # of a trial of the share (mailbox/trial.py) that was killed
            os.rmdir(full)
            self.progressed()
        except OSError:
            return False
        return True
