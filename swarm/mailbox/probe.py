"""Checks whether a folder will do as a mailbox: what `swarm doctor` says of the share."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from swarm.core.buckets import is_objects
from swarm.core.errors import MailboxCorrupt, MailboxFull, MailboxReadOnly, SwarmError
from swarm.core.lines import MARKER_LOST
from swarm.core.mounts import REFUSED, TOPIC, Mount, innermost, mount_ticks
from swarm.core.sentences import amount, plain
from swarm.core.ticks import Tick, checking, failed, ok, warning
from swarm.mailbox import disk
from swarm.mailbox.cloud import synchronised
from swarm.mailbox.errnos import mapped
from swarm.mailbox.folder import absolute
from swarm.mailbox.folder_init import others_in
from swarm.mailbox.folder_read import RUNS, TMP, TRASH
from swarm.mailbox.folder_write import FolderFiles
from swarm.mailbox.mounted import this_systems, told_more
from swarm.mailbox.threads import DaemonThreads
from swarm.mailbox.trial_place import HIDDEN

TIMEOUT_S = 10.0  # of one check
FREE_BYTES, NEARLY_FULL_BYTES = 1 << 30, 10 << 30
SLOW_S, TOO_SLOW_S = 0.5, 2.0  # for one of each call
TRIPS, TRIPS_S = 5, 3.0  # no more calls are timed after so long: a slow share is told soon, too

_NOT_WRITABLE_REMEDY = "mount it with the right to write, as a user who has it on the machine that serves it"
_FULL_REMEDY = "make room: a run keeps several copies of its model there; `swarm rm` deletes a run"


class CheckFailed(Exception):
    """What a check found, with what to do about it."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.detail, self.remedy = detail, remedy


async def probe(
    location: str | Path,
    *,
    timeout_s: float = TIMEOUT_S,
    total_s: float = math.inf,
    now: Callable[[], float] = time.monotonic,
    threads: DaemonThreads | None = None,
    mounts: Callable[[], Iterable[Mount]] | None = None,
) -> list[Tick]:
    """What each check found, in order. What depends on a check that failed is not tried. Leaves nothing in the folder.

    `timeout_s`: of one check. `total_s`: after which no other one begins. `mounts`: None: this system's, the later ones over
    the earlier ones.
    """
    if is_objects(str(location)):
        from swarm.mailbox.objects_probe import probe_objects

        return await probe_objects(str(location), timeout_s=timeout_s, total_s=total_s, now=now, threads=threads)
    root = absolute(location)
    checks = first_checks(root, now=now, mounts=mounts)
    return await looked_at(checks, where=root, timeout_s=timeout_s, total_s=total_s, threads=threads or DaemonThreads())


class Check(NamedTuple):
    """One thing to look at. `look`: what it says when all is well, or the ticks."""

    name: str
    look: Callable[[], str | Iterable[Tick]]
    needed: bool = False  # by those that come after it
    limit_s: float = math.inf  # inf: as the others have


def first_checks(
    root: str, *, now: Callable[[], float] = time.monotonic, mounts: Callable[[], Iterable[Mount]] | None = None
) -> list[Check]:
    """Those that take little time, and leave nothing."""
    return [
        Check("folder", lambda: _folder(root), needed=True),
        Check("file system", lambda: _file_system(root, mounts or this_systems), needed=True),
        Check("mailbox", lambda: _mailbox(root)),
        Check("writable", lambda: _writable(root), needed=True),
        Check("exclusive creation", lambda: _exclusive(root)),
        Check("free space", lambda: _free(root)),
        Check("timings", lambda: _timings(root, now)),
    ]


async def looked_at(
    checks: Iterable[Check],
    *,
    where: str,
    timeout_s: float,
    total_s: float,
    threads: DaemonThreads,
    told: Callable[[Sequence[Tick]], object] = lambda ticks: None,
    unreachable: str = "see that the machine that serves the share is on and reachable",
    remedy: Callable[[SwarmError], str] = lambda error: _remedy(error),
) -> list[Tick]:
    """What the checks of the share `where` found, one after the other. `told` is called with what is known before each.
    `unreachable`, `remedy`: what to do about no answer, and about an error of the mailbox."""
    found: list[Tick] = []
    clock = asyncio.get_running_loop().time
    began_s = clock()
    for name, check, needed, longest_s in checks:
        left_s = total_s - (clock() - began_s)
        if left_s <= 0:
            slow = "a share that answers so slowly holds up every round: see the machine that serves it, and the way to it"
            found.append(warning(name, f"not looked at: {total_s:g} s are over", slow, topic=TOPIC))
            break
        told([*found, checking(name, topic=TOPIC)])
        limit_s = min(timeout_s if longest_s == math.inf else longest_s, left_s)
        try:
            said = await asyncio.wait_for(threads.run(check), limit_s)
            ticks = [ok(name, said, topic=TOPIC)] if isinstance(said, str) else list(said)
        except TimeoutError:
            found.append(failed(name, f"{where}: no answer for {limit_s:.2g} s", unreachable, topic=TOPIC))
            break
        except CheckFailed as fault:
            ticks = [failed(name, fault.detail, fault.remedy, topic=TOPIC)]
        except OSError as error:
            ticks = [failed(name, f"{where}: {error.strerror or error}", remedy(mapped(error, where)), topic=TOPIC)]
        except SwarmError as error:
            ticks = [failed(name, plain(str(error), 400), remedy(error), topic=TOPIC)]
        found += ticks
        if needed and any(tick.verdict == "failed" for tick in ticks):
            break
    return found


def _remedy(error: SwarmError) -> str:
    match error:
        case MailboxFull():
            return _FULL_REMEDY
        case MailboxReadOnly():
            return _NOT_WRITABLE_REMEDY
        case _:
            return "see that the share is mounted and answers"


async def look(
    location: str | Path,
    *,
    timeout_s: float = TIMEOUT_S,
    threads: DaemonThreads | None = None,
    mounts: Callable[[], Iterable[Mount]] | None = None,
) -> tuple[list[Tick], bool]:
    """Whether a folder, which need not exist yet, would do as a mailbox, as far as it shows without writing anything: what was
    found, and whether it is one already. Arguments as of `probe`."""
    if is_objects(str(location)):
        from swarm.mailbox.objects_probe import look_at_objects

        return await look_at_objects(str(location), timeout_s=timeout_s, threads=threads)
    root = absolute(location)
    try:
        return await asyncio.wait_for((threads or DaemonThreads()).run(_look, root, mounts or this_systems), timeout_s)
    except TimeoutError:
        remedy = "see that the machine that serves the share is on and reachable"
        return [failed("folder", f"{root}: no answer for {timeout_s:.2g} s", remedy, topic=TOPIC)], False
    except CheckFailed as fault:
        return [failed("folder", fault.detail, fault.remedy, topic=TOPIC)], False
    except OSError as error:
        return [failed("folder", f"{root}: {error.strerror or error}", "see that the share is mounted", topic=TOPIC)], False


def _look(root: str, mounts: Callable[[], Iterable[Mount]]) -> tuple[list[Tick], bool]:
    there = os.path.isdir(root)
    if not there:
        if os.path.lexists(root):
            raise CheckFailed(f"{root} is not a folder", "give another one")
        above = os.path.dirname(root)
        if not os.path.isdir(above):
            raise CheckFailed(f"there is no folder {above}", "mount the share, or give a folder that can be made")
    found = list(_file_system(root, mounts))
    if not os.access(root if there else os.path.dirname(root), os.W_OK | os.X_OK):
        found.append(failed("writable", f"{root} cannot be written by this user", _NOT_WRITABLE_REMEDY, topic=TOPIC))
    if not there:
        return [ok("folder", "a new folder", topic=TOPIC), *found], False
    try:
        FolderFiles(root).open()
    except SwarmError:
        others = others_in(root)
        if others:
            words = f"{root} is not empty: {', '.join(others[:3])}{', …' * (len(others) > 3)}"
            return [failed("folder", plain(words, 200), "give an empty folder, or one that is to be made", topic=TOPIC)], False
        return [ok("folder", "an empty folder", topic=TOPIC), *found], False
    return [ok("folder", "a mailbox already", topic=TOPIC), *found], True


def _folder(root: str) -> str:
    if not os.path.isdir(root):
        what = "is not a folder" if os.path.lexists(root) else "is not there"
        raise CheckFailed(f"{root} {what}", "mount the share, or pass the folder where it is mounted (--mailbox)")
    return root


def _file_system(root: str, mounts: Callable[[], Iterable[Mount]]) -> tuple[Tick, ...]:
    real = os.path.realpath(root)
    if reason := synchronised(root):
        raise CheckFailed(reason, REFUSED)
    return mount_ticks(real, told_more(innermost(real, mounts())))


def _mailbox(root: str) -> str:
    try:
        id = FolderFiles(root).open()
    except MailboxCorrupt as error:
        raise CheckFailed(str(error).removesuffix(f": {MARKER_LOST}"), MARKER_LOST) from error
    except SwarmError as error:
        raise CheckFailed(str(error), f"swarm init {root}, on one machine, unless another share belongs there") from error
    for name in (TMP, TRASH, RUNS):
        if not os.path.isdir(f"{root}/{name}"):
            raise CheckFailed(f"{root}: its folder {name}/ is missing", f"make an empty folder {name} there")
    return f"id {id[:8]}…"


def _writable(root: str) -> str:
    with _place(root) as place:
        path = f"{place}/{uuid4().hex}"
        try:
            _write(path, b"probe")
            with open(path, "rb") as file:
                read = file.read()
        except OSError as error:
            raise _not_written(root, error) from error
        finally:
            with suppress(OSError):
                os.unlink(path)
    if read != b"probe":
        raise CheckFailed(f"{root}: what was written reads back differently", "do not use this share")
    return "yes"


def _not_written(root: str, error: OSError) -> CheckFailed:
    full = isinstance(mapped(error, root), MailboxFull)
    return CheckFailed(f"{root}: {error.strerror}", _FULL_REMEDY if full else _NOT_WRITABLE_REMEDY)


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
                raise CheckFailed(f"{root} lets two machines win the same record", REFUSED)
            with open(f"{names[2]}/record.json", "rb") as file:
                if file.read() != names[0].encode():
                    raise CheckFailed(f"{root} lets a record be replaced", REFUSED)
            with suppress(FileExistsError):
                os.mkdir(names[2])
                raise CheckFailed(f"{root} makes one folder twice", REFUSED)
        finally:
            for name in names:
                with suppress(OSError):
                    os.unlink(f"{name}/record.json")
                with suppress(OSError):
                    os.rmdir(name)
    return "a folder is renamed onto the record's name: of two, the second is refused"


def _free(root: str) -> tuple[Tick]:
    found = os.statvfs(root)
    free = found.f_bavail * found.f_frsize
    detail = f"{amount(free)} of {amount(found.f_blocks * found.f_frsize)} free"
    if free < FREE_BYTES:
        return (failed("free space", detail, _FULL_REMEDY, topic=TOPIC),)
    if free < NEARLY_FULL_BYTES:
        return (warning("free space", detail, _FULL_REMEDY, topic=TOPIC),)
    return (ok("free space", detail, topic=TOPIC),)


def _timings(root: str, now: Callable[[], float]) -> tuple[Tick]:
    """Of each call the median. What a mailbox does for it: a record is a folder that is renamed, an object a file; both are
    synced before they are published."""
    took_s: dict[str, list[float]] = {name: [] for name in ("create", "write", "list", "read", "delete")}
    began_s = now()
    with _place(root) as place:
        for n in range(TRIPS):
            if n and now() - began_s > TRIPS_S:
                break
            for name, seconds_s in zip(took_s, _trip(place, now), strict=True):
                took_s[name].append(seconds_s)
    medians_s = {name: statistics.median(each) for name, each in took_s.items()}
    detail = ", ".join(f"{name} {_ms(seconds_s)}" for name, seconds_s in medians_s.items())
    remedy = "use a wired connection, or a share on a nearer or less busy machine"
    whole_s = sum(medians_s.values())
    if whole_s > TOO_SLOW_S:
        return (failed("timings", f"{detail}: too slow to train over", remedy, topic=TOPIC),)
    if whole_s > SLOW_S:
        return (warning("timings", f"{detail}: slow", remedy, topic=TOPIC),)
    return (ok("timings", detail, topic=TOPIC),)


def _trip(place: str, now: Callable[[], float]) -> list[float]:
    """How long each call took, once: create, write, list, read, delete; in seconds."""
    names = [f"{place}/{uuid4().hex}" for _ in range(4)]
    staged, record, part, final = names

    def create() -> None:
        os.mkdir(staged)
        _write(f"{staged}/record.json", b"x" * 1000)
        os.rename(staged, record)

    def write() -> None:
        _write(part, b"x" * 1000)
        os.rename(part, final)

    def read() -> None:
        with open(final, "rb") as file:
            file.read()

    calls: list[Callable[[], object]] = [create, write, lambda: os.listdir(place), read, lambda: os.unlink(final)]
    times_s = [now()]
    try:
        for call in calls:
            call()
            times_s.append(now())
    finally:
        for name in names:
            for path in (f"{name}/record.json", name):
                with suppress(OSError):
                    os.unlink(path)
            with suppress(OSError):
                os.rmdir(name)
    return [later - earlier for earlier, later in itertools.pairwise(times_s)]


def _ms(seconds_s: float) -> str:
    return f"{1000 * seconds_s:.{0 if seconds_s >= 0.01 else 1}f} ms"


@contextmanager
def _place(root: str) -> Iterator[str]:
    """Where to try things: tmp/, from which a sweep takes what a killed probe leaves; else a hidden folder of its own."""
    if os.path.isdir(f"{root}/{TMP}"):
        yield f"{root}/{TMP}"
        return
    place = f"{root}/{HIDDEN}{uuid4().hex}"
    try:
        os.mkdir(place)
    except OSError as error:
        raise _not_written(root, error) from error
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
