"""Checks whether a folder will do as a mailbox: what `swarm doctor` prints."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from swarm.core.errors import SwarmError
from swarm.core.sentences import amount
from swarm.mailbox import disk
from swarm.mailbox.folder import absolute
from swarm.mailbox.folder_read import RUNS, TMP, TRASH
from swarm.mailbox.folder_write import FolderFiles
from swarm.mailbox.threads import DaemonThreads

TIMEOUT_S = 10.0
FREE_BYTES = 1 << 30
ROUND_TRIP_S = 2.0
ROUND_TRIPS = 5

_CLOUD = {
    "dropbox": "Dropbox",
    "mobile documents": "iCloud Drive",
    "icloud drive": "iCloud Drive",
    "onedrive": "OneDrive",
    "google drive": "Google Drive",
    "googledrive": "Google Drive",
    "my drive": "Google Drive",
    "cloudstorage": "a cloud drive",
    "nextcloud": "Nextcloud",
    "owncloud": "ownCloud",
}
_CLOUD_MARKS = {".stfolder": "Syncthing", ".dropbox": "Dropbox", ".dropbox.cache": "Dropbox"}
_REFUSED_REMEDY = "use a folder that the machines mount by SMB or NFS: copies that are synchronised later let two machines win"

_NOT_WRITABLE_REMEDY = "mount it with the right to write, as a user who has it on the machine that serves it"


class Finding(NamedTuple):
    name: str
    ok: bool
    detail: str
    remedy: str = ""


class _Failed(Exception):
    """What a check found, with what to do about it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.detail, self.remedy = detail, remedy


async def probe(
    location: str | Path,
    *,
    timeout_s: float = TIMEOUT_S,
    now: Callable[[], float] = time.monotonic,
    threads: DaemonThreads | None = None,
    mounts: Callable[[], dict[str, tuple[str, str]]] | None = None,
) -> list[Finding]:
    """One finding per check, in order. What depends on a check that failed is not tried. Leaves nothing in the folder.

    `mounts`: mount point → (device, file system type); None: this system's.
    """
    root = absolute(location)
    threads = threads or DaemonThreads()
    checks: list[tuple[str, Callable[[], str], bool]] = [  # name, check, whether the next ones depend on it
        ("folder", lambda: _folder(root), True),
        ("file system", lambda: _file_system(root, mounts or _mounts), True),
        ("mailbox", lambda: _mailbox(root), False),
        ("writable", lambda: _writable(root), True),
        ("exclusive rename", lambda: _exclusive(root), False),
        ("free space", lambda: _free(root), False),
        ("round trip", lambda: _round_trip(root, now), False),
    ]
    found = []
    for name, check, needed in checks:
        try:
            found.append(Finding(name, True, await asyncio.wait_for(threads.run(check), timeout_s)))
            continue
        except TimeoutError:
            remedy = "see that the machine that serves the share is on and reachable"
            found.append(Finding(name, False, f"{root}: no answer for {timeout_s:g} s", remedy))
            break
        except _Failed as failed:
            found.append(Finding(name, False, failed.detail, failed.remedy))
        except OSError as error:
            found.append(
                Finding(name, False, f"{root}: {error.strerror or error}", "see that the share is mounted and answers")
            )
        if needed:
            break
    return found


def _folder(root: str) -> str:
    if not os.path.isdir(root):
        what = "is not a folder" if os.path.lexists(root) else "is not there"
        raise _Failed(f"{root} {what}", "mount the share, or pass the folder where it is mounted (--mailbox)")
    return root


def _file_system(root: str, mounts: Callable[[], dict[str, tuple[str, str]]]) -> str:
    real = os.path.realpath(root)
    for part in Path(real).parts:
        for name, cloud in _CLOUD.items():
            if part.lower() == name or part.lower().startswith((f"{name} - ", f"{name}-")):
                raise _Failed(f"{root} is in a folder of {cloud}", _REFUSED_REMEDY)
    for folder in (Path(real), *Path(real).parents):
        for mark, cloud in _CLOUD_MARKS.items():
            if (folder / mark).exists():
                raise _Failed(f"{folder} is kept by {cloud}", _REFUSED_REMEDY)
    point, (device, kind) = max(
        ((p, what) for p, what in mounts().items() if real == p or real.startswith(p.rstrip("/") + "/")),
        key=lambda item: len(item[0]),
        default=("/", ("", "unknown")),
    )
    if "rclone" in kind or "rclone" in device:
        raise _Failed(f"{point} is an rclone mount", _REFUSED_REMEDY)
    return f"{kind} at {point}" + (": other machines may see files up to 20 s late" if "sshfs" in kind else "")


def _mounts() -> dict[str, tuple[str, str]]:
    import psutil

    return {part.mountpoint: (part.device, part.fstype) for part in psutil.disk_partitions(all=True)}


def _mailbox(root: str) -> str:
    try:
        id = FolderFiles(root).open()
    except SwarmError as error:
        raise _Failed(str(error), f"swarm init {root}, on one machine, unless another share belongs there") from error
    for name in (TMP, TRASH, RUNS):
        if not os.path.isdir(f"{root}/{name}"):
            raise _Failed(f"{root}: its folder {name}/ is missing", f"make an empty folder {name} there")
    return f"id {id[:8]}…"


def _writable(root: str) -> str:
    with _place(root) as place:
        path = f"{place}/{uuid4().hex}"
        try:
            _write(path, b"probe")
            with open(path, "rb") as file:
                read = file.read()
        except OSError as error:
            raise _Failed(f"{root}: {error.strerror}", _NOT_WRITABLE_REMEDY) from error
        finally:
            with suppress(OSError):
                os.unlink(path)
    if read != b"probe":
        raise _Failed(f"{root}: what was written reads back differently", "do not use this share")
    return "yes"


def _exclusive(root: str) -> str:
    """Two folders renamed to one name: the second rename must be refused, and the first one's content stay."""
    with _place(root) as place:
        names = [f"{place}/{uuid4().hex}" for _ in range(3)]
        try:
            for name in names[:2]:
                os.mkdir(name)
                _write(f"{name}/record.json", name.encode())
            os.rename(names[0], names[2])
            with suppress(OSError):
                os.rename(names[1], names[2])
                raise _Failed(f"{root} lets two machines win the same record", _REFUSED_REMEDY)
            with open(f"{names[2]}/record.json", "rb") as file:
                if file.read() != names[0].encode():
                    raise _Failed(f"{root} lets a record be replaced", _REFUSED_REMEDY)
            with suppress(FileExistsError):
                os.mkdir(names[2])
                raise _Failed(f"{root} makes one folder twice", _REFUSED_REMEDY)
        finally:
            for name in names:
                with suppress(OSError):
                    os.unlink(f"{name}/record.json")
                with suppress(OSError):
                    os.rmdir(name)
    return "the second of two is refused"


def _free(root: str) -> str:
    found = os.statvfs(root)
    free = found.f_bavail * found.f_frsize
    detail = f"{amount(free)} free"
    if free < FREE_BYTES:
        raise _Failed(detail, "make room: a run keeps several copies of its model there; `swarm rm` deletes a run")
    return detail


def _round_trip(root: str, now: Callable[[], float]) -> str:
    took_s = []
    with _place(root) as place:
        for _ in range(ROUND_TRIPS):
            started_s = now()
            staged, final = f"{place}/{uuid4().hex}", f"{place}/{uuid4().hex}"
            try:
                _write(staged, b"x" * 1000)
                os.rename(staged, final)
                os.listdir(place)
                with open(final, "rb") as file:
                    file.read()
                os.unlink(final)
                took_s.append(now() - started_s)
            finally:
                for path in (staged, final):
                    with suppress(OSError):
                        os.unlink(path)
    detail = f"{1000 * statistics.median(took_s):.0f} ms to write, sync, rename, list, read and delete a small file"
    if statistics.median(took_s) > ROUND_TRIP_S:
        raise _Failed(detail, "use a wired connection, or a share on a nearer or less busy machine")
    return detail


@contextmanager
def _place(root: str) -> Iterator[str]:
    """Where to try things: tmp/, from which a sweep takes what a killed probe leaves; else a hidden folder of its own."""
    if os.path.isdir(f"{root}/{TMP}"):
        yield f"{root}/{TMP}"
        return
    place = f"{root}/.swarm-probe-{uuid4().hex}"
    try:
        os.mkdir(place)
    except OSError as error:
        raise _Failed(f"{root}: {error.strerror}", _NOT_WRITABLE_REMEDY) from error
    try:
        yield place
    finally:
        with suppress(OSError):
            os.rmdir(place)


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, disk.CREATE, 0o666)
    try:
        disk.write_all(fd, data)
        disk.sync(fd)
    finally:
        os.close(fd)
