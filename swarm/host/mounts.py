"""Where a mailbox is on this machine: looked for among known folders and among what is mounted.

A share whose server is gone hangs whoever asks it. So each place is looked at on a thread of its own, with a time limit; one
that hangs is named, and not asked again before it has answered.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from swarm.core.buckets import is_objects, place_of, scheme_of
from swarm.core.errors import SwarmError
from swarm.core.mounting import Desktop, Way
from swarm.core.mounts import is_share
from swarm.mailbox.folder import absolute
from swarm.mailbox.folder_read import FolderReader
from swarm.mailbox.mounted import this_systems
from swarm.mailbox.threads import DaemonThreads

LOOK_S = 4.0  # within which a place answers
FIRST_S = 0.3  # that an earlier place has to answer, once a later one holds the mailbox
FOLDERS = 200  # of one mount that are looked into
AGAIN_S = 20.0  # after which the folders of a mount are looked into again, while a mailbox is waited for
MOUNT_S = 120.0  # somebody may have to find a password

_HOSTS = ("vboxsf", "drvfs")  # of a virtual machine: folders of the machine that it runs on
_BESIDE = ("/mnt", "/media", "/run/media", "/Volumes")  # what is mounted below these counts whatever it is
_NO_FOLDERS = ("fusectl", "fuse.portal", "fuse.lxcfs", "fuse.snapfuse", "fuse.gvfsd-fuse", "autofs")

Mounts = Callable[[], dict[str, tuple[str, str]]]


@dataclass(frozen=True)
class Found:
    """What a look for one mailbox came to."""

    location: str | None  # its folder; None: nowhere that was looked at
    looked: int = 0  # places that answered
    hanging: tuple[str, ...] = ()  # places that did not


@dataclass
class _Place:
    """A folder that may be a mailbox, or hold one."""

    path: str
    deep: bool  # whether the folders in it are looked at, too
    threads: DaemonThreads = field(default_factory=lambda: DaemonThreads(1))
    looking: asyncio.Task[dict[str, str]] | None = None
    since_s: float = 0.0  # when that began
    mailboxes: dict[str, str] = field(default_factory=dict)  # location by id, as it was last seen
    looked_s: float | None = None  # when that was


class Finder:
    """Looks for mailboxes by their id. One search at a time.

    `mounts`: mount point → (device, kind); None: this system's. `mounted`: folders that hold mounts as folders in them, as
    GNOME has them; None: this session's.
    """

    def __init__(
        self,
        *,
        timeout_s: float = LOOK_S,
        again_s: float = AGAIN_S,
        mounts: Mounts | None = None,
        mounted: Sequence[str] | None = None,
    ) -> None:
        self._timeout_s, self._again_s = timeout_s, again_s
        self._mounts = mounts or mounts_here
        self._mounted = tuple(mounted) if mounted is not None else (f"/run/user/{os.getuid()}/gvfs",)
        self._places: dict[str, _Place] = {}
        self._homes = DaemonThreads(1)

    async def find(self, mailbox: str, known: Iterable[str] = (), *, below: str = "") -> Found:
        """Where the mailbox with id `mailbox` is: first among the folders and object stores `known`, then among
        what is mounted, at the top of each mount, one folder below, and in its folder `below`, if that is told ('a/b')."""
        wanted = {place if is_objects(place) else absolute(place): False for place in known if _looked_into(place)}
        for point in await self._points():
            wanted.setdefault(point, True)
            if below:
                wanted.setdefault(f"{point.rstrip('/')}/{below}", False)
        self._places = {path: self._place(path, deep=deep) for path, deep in wanted.items()}
        places = list(self._places.values())
        for place in places:
            if place.looking is None and self._due(place):
                place.since_s = _now_s()
                place.looking = asyncio.create_task(place.threads.run(mailboxes_in, place.path, deep=place.deep))
        tasks = {place.looking for place in places if place.looking is not None}
        waiting = set(tasks)
        until_s = max((place.since_s for place in places if place.looking is not None), default=0.0) + self._timeout_s
        while waiting and (left_s := until_s - _now_s()) > 0:
            _, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if self._answer(places, mailbox) is not None:
                if waiting:  # an earlier place may be about to answer, too
                    await asyncio.wait(waiting, timeout=FIRST_S)
                break
        location = self._answer(places, mailbox)
        hanging = () if location is not None else tuple(place.path for place in places if place.looking is not None)
        return Found(location, looked=sum(place.looking is None for place in places), hanging=hanging)

    def _answer(self, places: Sequence[_Place], mailbox: str) -> str | None:
        """Where the mailbox is, if a place that has answered holds it: the first in their order."""
        for place in places:
            if place.looking is not None and place.looking.done():
                failed = place.looking.cancelled() or place.looking.exception() is not None
                place.mailboxes = {} if failed else place.looking.result()
                place.looking, place.looked_s = None, _now_s()
        return next((p.mailboxes[mailbox] for p in places if p.looking is None and mailbox in p.mailboxes), None)

    def _due(self, place: _Place) -> bool:
        return not place.deep or place.looked_s is None or _now_s() - place.looked_s >= self._again_s

    def _place(self, path: str, *, deep: bool) -> _Place:
        known = self._places.get(path)
        return known if known is not None and known.deep == deep else _Place(path, deep)

    async def _points(self) -> list[str]:
        """Mount points that may hold a mailbox. The list itself comes from the kernel, without a question to any server;
        GNOME's own is a folder, which may hang."""
        found = [point for point, (_, kind) in self._mounts().items() if may_hold(point, kind)]
        for folder in self._mounted:
            try:
                names = await asyncio.wait_for(self._homes.run(_folders, folder), self._timeout_s)
            except (TimeoutError, OSError):
                continue
            found += [f"{folder}/{name}" for name in names]
        return found


def _looked_into(place: str) -> bool:
    return is_objects(place) or not scheme_of(place)


def mailboxes_in(path: str, *, deep: bool) -> dict[str, str]:
    """Mailboxes at `path` and, if `deep`, in the folders there: location by id. Blocks as long as the share does."""
    found: dict[str, str] = {}
    for place in _candidates(path, deep=deep):
        ident = _id_at(place)
        if ident is not None:
            found.setdefault(ident, place)
    return found


def _candidates(path: str, *, deep: bool) -> Iterator[str]:
    yield path
    if deep:
        try:
            names = _folders(path)
        except OSError:
            return
        yield from (f"{path.rstrip('/')}/{name}" for name in names)


def _folders(path: str) -> list[str]:
    """Folders there, links left out, hidden ones too."""
    with os.scandir(path) as entries:
        names = (entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False))
        return sorted(names)[:FOLDERS]


def _id_at(path: str) -> str | None:
    """The id of the mailbox there; None if there is none, or none that this version reads."""
    try:
        if is_objects(path):
            from swarm.mailbox.objects_files import ObjectFiles

            return ObjectFiles(place_of(path), now=time.monotonic).marker()
        return FolderReader(path, pauses_s=()).open()
    except (SwarmError, OSError):
        return None


def may_hold(point: str, kind: str) -> bool:
    """Whether a mount may be a share, or a disk that somebody added."""
    kind = kind.lower()
    if kind in _NO_FOLDERS or "/." in point:
        return False
    return (
        is_share(kind)
        or kind in _HOSTS
        or kind.startswith(("fuse.", "osxfuse", "macfuse"))
        or point.startswith(tuple(f"{p}/" for p in _BESIDE))
    )


def mounts_here() -> dict[str, tuple[str, str]]:
    """Mount point → (device, kind), from the kernel's table: no server is asked."""
    return {mount.point: (mount.device, mount.kind) for mount in this_systems()}


def desktop() -> Desktop:
    """What decides here how a share is mounted."""
    linux = sys.platform == "linux"
    session = "DBUS_SESSION_BUS_ADDRESS" in os.environ and os.path.isdir(f"/run/user/{os.getuid()}/gvfs")
    return Desktop(
        system=sys.platform,
        gio=linux and session and shutil.which("gio") is not None,
        user=_user(),
        uid=os.getuid(),
        taken=tuple(mounts_here()),
    )


def mount(way: Way, *, quiet: bool) -> str:
    """Run what mounts a share, to its end; what it said if it failed, else ''. Not quiet: it may ask in the terminal."""
    if way.argv is None:
        return "it needs an administrator"
    nobody = subprocess.DEVNULL if quiet else None
    try:
        done = subprocess.run(
            way.argv, stdin=nobody, stdout=nobody, stderr=subprocess.PIPE if quiet else None, timeout=MOUNT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{way.argv[0]}: {getattr(error, 'strerror', None) or f'no end after {MOUNT_S:.0f} s'}"
    said = (done.stderr or b"").decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else (said[-1] if said else f"{way.argv[0]} ended with {done.returncode}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _now_s() -> float:
    return asyncio.get_running_loop().time()
