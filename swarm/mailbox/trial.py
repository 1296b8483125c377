"""A share tried out thoroughly: what `swarm doctor --mailbox` does, with processes of its own, within some twenty seconds.

All of it happens in a mailbox of the trial's own (mailbox/trial_place.py), so that neither runs nor other trials see any of it.
What is said of the figures: core/fitness.py. The quick checks come first: mailbox/probe.py.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from swarm.core import fitness
from swarm.core.buckets import is_objects
from swarm.core.errors import FormatMismatch, MailboxAway, MailboxCorrupt, MailboxUnavailable, RecordError
from swarm.core.keys import RunKeys
from swarm.core.mounts import TOPIC, Mount
from swarm.core.sentences import plain
from swarm.core.ticks import Tick, checking, failed, warning
from swarm.mailbox import disk, probe, speed
from swarm.mailbox.errnos import foreign
from swarm.mailbox.folder import absolute
from swarm.mailbox.folder_init import others_in
from swarm.mailbox.folder_write import FolderFiles
from swarm.mailbox.probe import Check
from swarm.mailbox.threads import DaemonThreads
from swarm.mailbox.trial_place import Place

TIMEOUT_S, TOTAL_S = 10.0, 60.0  # of one check; after which no other one begins
BEGIN_S = 20.0  # within which this machine starts another process, however busy it is
REMOVE_S, HURRY_S = 25.0, 5.0  # that is waited for the removing of everything; where the share hangs, or somebody waits
TRIPS = 5
SYNC_BYTES = 64 << 10
SEEN_S, FIND_S = 5.0, 3.0  # within which another process, and this one, must see what was written
KEYS = RunKeys("trial")


class Extent(NamedTuple):
    """How much is tried. What takes longer than its time is told by what was done in it."""

    processes: int = 8
    records: int = 100
    race_s: float = 4.0
    names: int = 1000
    names_s: float = 4.0
    speed_s: float = speed.LIMIT_S


async def trial(
    location: str | Path,
    *,
    command: Sequence[str],
    owner: str = "",
    gone: Callable[[str], bool] = lambda owner: False,
    told: Callable[[Sequence[Tick]], object] = lambda ticks: None,
    extent: Extent = Extent(),  # noqa: B008  # it never changes
    timeout_s: float = TIMEOUT_S,
    total_s: float = TOTAL_S,
    threads: DaemonThreads | None = None,
    mounts: Callable[[], Iterable[Mount]] | None = None,
) -> list[Tick]:
    """What each check found, in order, and last the verdict. Leaves nothing in the folder, also if it is cancelled.

    `command`: runs swarm/mailbox/racing.py. `owner`: words that tell this process from others; `gone`: whether such words are
    of one that is no more. `told`: called with what is known so far. Other arguments as of `probe.probe`.
    """
    if is_objects(str(location)):  # whose own checks try all of it
        found = await probe.probe(location, timeout_s=timeout_s, total_s=total_s, threads=threads, mounts=mounts)
        return [*found, fitness.conclusion(found)]
    root = absolute(location)
    threads = threads or DaemonThreads()
    first = {check.name: check for check in probe.first_checks(root, mounts=mounts)}
    tried = _Trial(first["mailbox"], command=command, place=Place(root, owner), gone=gone, extent=extent)
    first["mailbox"] = Check("mailbox", tried.mailbox, needed=True)
    timings = first.pop("timings")
    checks = [
        *first.values(),
        Check("second process", tried.second_process, limit_s=BEGIN_S + timeout_s),
        Check("marker", partial(tried.apart, "marker", tried.marker), needed=True),
        Check("race", partial(tried.apart, "race", tried.race), needed=True, limit_s=2 * timeout_s + 3 * extent.race_s),
        Check("visibility", partial(tried.apart, "visibility", tried.visibility), limit_s=timeout_s + SEEN_S),
        Check("listing", tried.listing, limit_s=timeout_s + extent.names_s + FIND_S),
        Check("names", tried.names),
        timings,
        Check("syncing", tried.syncing),
        Check("speed", tried.speed),
        Check("clock", tried.clock),
    ]
    try:
        await threads.run(tried.second.start)  # it is there when it is needed
        checks = [tried.noted(check) for check in checks]
        found = await probe.looked_at(checks, where=root, timeout_s=timeout_s, total_s=total_s, threads=threads, told=told)
        told([*found, checking("verdict", "removing what was tried", topic=TOPIC)])
    finally:
        # What a share keeps that hangs now, the second process removes when it answers again; else the next trial does.
        ending = asyncio.ensure_future(threads.run(tried.end))
        await asyncio.wait({ending}, timeout=HURRY_S if tried.looking else REMOVE_S)
    left = not ending.done() or ending.exception() is not None or not ending.result()
    if left and tried.began:
        words = f"{tried.place.path} is not removed yet: a sweep, or the next `swarm doctor --mailbox`, does it"
        found.append(warning("leavings", words, "see that the share is mounted and answers", topic=TOPIC))
    return [*found, fitness.conclusion(found)]


class _Gone(Exception):
    """The second process ended before its time: that says nothing of the share."""


class Second:
    """The second process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with suppress(OSError):  # seen when it is asked
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,  # it ends with this process: it sees the end of its input
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is this process's to answer
            )

    def begins(self, limit_s: float) -> bool:
        """Whether it is there, in time."""
        if self._process is None or self._process.stdout is None:
            return False
        try:
            if not select.select([self._process.stdout], [], [], limit_s)[0]:
                return False
            self.answer()
        except _Gone:
            return False
        return True

    def ask(self, place: str, **request: Any) -> dict[str, Any]:
        """Its answer. Raises _Gone; MailboxUnavailable with what it says of the share instead."""
        stdin = self._running().stdin
        assert stdin is not None
        with suppress(OSError):
            stdin.write(msgspec.json.encode({"place": place} | request) + b"\n")
            stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        stdout = self._running().stdout
        assert stdout is not None
        line = stdout.readline()
        if not line.endswith(b"\n"):
            raise _Gone
        found = msgspec.json.decode(line, type=dict[str, Any])
        if "error" in found:
            raise MailboxUnavailable(str(found["error"]))
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise _Gone
        return self._process

    def end(self) -> None:
        """Have it remove what is there, and end: it does so, too, if this process is gone first."""
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def kill(self) -> None:
        """With its processes. Not waited for: the share may hold them."""
        if self._process is not None and self._process.poll() is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)


class _Trial:
    """The checks, each of which blocks."""

    def __init__(
        self, quick: Check, *, command: Sequence[str], place: Place, gone: Callable[[str], bool], extent: Extent
    ) -> None:
        self._quick, self._gone, self._extent = quick.look, gone, extent
        self._root, self.place = place.root, place
        self.second = Second(command)
        self.began = False  # whether there may be something on the share
        self.looking = 0  # checks that run
        self._seconded = False  # whether the second process can be asked

    def end(self) -> bool:
        """Whether nothing is left."""
        if self._seconded:
            self.second.end()
        else:
            self.second.kill()
        return not self.began or self.place.remove()

    def mailbox(self) -> str | Iterable[Tick]:
        """As the quick check has it; but a folder that is empty may become one."""
        try:
            FolderFiles(self._root).open()
        except MailboxAway:
            others = others_in(self._root)
            if others:
                words = f"{self._root} is no mailbox and not empty: {', '.join(others[:3])}{', …' * (len(others) > 3)}"
                remedy = "give an empty folder, or one that is to be made: nothing is tried among other files"
                return [failed("mailbox", plain(words, 300), remedy, topic=TOPIC)]
            return [warning("mailbox", "none yet: the folder is empty", f"swarm init {self._root} makes it one", topic=TOPIC)]
        except MailboxCorrupt:
            pass  # the quick check says what to do
        except (FormatMismatch, RecordError) as error:
            return [failed("mailbox", str(error), "give another folder, or use the version of swarm that made it", topic=TOPIC)]
        return self._quick()

    def noted(self, check: Check) -> Check:
        """The same, counted while it runs."""

        def look() -> str | Iterable[Tick]:
            self.looking += 1
            try:
                return check.look()
            finally:
                self.looking -= 1

        return check._replace(look=look)

    def second_process(self) -> list[Tick]:
        self._seconded = self.second.begins(BEGIN_S)
        if self._seconded:
            return []
        words = f"this machine did not start one within {BEGIN_S:.0f} s: whether the share keeps two apart is not tried"
        return [warning("second process", words, "look again when this machine is less busy", topic=TOPIC)]

    def apart(self, name: str, look: Callable[[], str | Iterable[Tick]]) -> str | Iterable[Tick]:
        """What `look`, which needs the second process, says."""
        try:
            return look()
        except _Gone:
            self._seconded = False
            words = "the second process was ended meanwhile"
            return [warning(name, words, "did somebody end it, or is memory scarce? Look again", topic=TOPIC)]

    def marker(self) -> str:
        self.began = True
        with foreign(self._root):
            self.place.make()
            self.place.remove_left(self._gone)
        id = self.place.files().open()
        if not self._seconded:
            return "made in a folder for trials, and read"
        if self._ask(do="open")["id"] != id:
            raise MailboxCorrupt(f"{self._root}: another process reads another marker")
        return "made in a folder for trials, and read by a second process"

    def race(self) -> list[Tick]:
        if not self._seconded:
            return []
        of = self._extent
        found = self._ask(do="race", processes=of.processes, records=of.records, limit_s=of.race_s)
        return [fitness.race_tick(msgspec.convert(found, fitness.Race))]

    def _ask(self, **request: Any) -> dict[str, Any]:
        return self.second.ask(self.place.path, **request)

    def visibility(self) -> list[Tick]:
        if not self._seconded:
            return []
        files, late_s = self.place.files(), list[float]()
        for n in range(TRIPS):
            key = KEYS.beat("trial", 1, n)
            self._ask(do="watch", key=key, limit_s=SEEN_S)
            files.put(key, [b"x" * 1000])
            wrote_s = time.monotonic()
            seen_s = self.second.answer()["seen_s"]
            if seen_s is None:
                return [fitness.invisible_tick(SEEN_S)]
            late_s.append(max(0.0, seen_s - wrote_s))
        return [fitness.visibility_tick(late_s)]

    def listing(self) -> list[Tick]:
        folder = f"{self.place.path}/names"
        wanted = [f"{n:06d}.json" for n in range(self._extent.names)]
        with foreign(self._root):
            os.mkdir(folder)
            began_s = time.monotonic()
            made = set()
            for name in wanted:
                os.close(os.open(f"{folder}/{name}", disk.CREATE, 0o666))
                made.add(name)
                if time.monotonic() - began_s > self._extent.names_s:
                    break
            took_s: list[float] = []
            began_s = time.monotonic()
            while True:
                before_s = time.monotonic()
                names = os.listdir(folder)
                took_s.append(time.monotonic() - before_s)
                missing = len(made - set(names))
                if len(took_s) >= TRIPS and (not missing or time.monotonic() - began_s > FIND_S):
                    break
        doubled = len(names) - len(set(names))
        return [fitness.listing_tick(made=len(made), wanted=len(wanted), took_s=took_s, missing=missing, doubled=doubled)]

    def names(self) -> list[Tick]:
        name = "a-" + "long-" * 23 + ".z0"  # as long as a component of a key may be
        with foreign(self._root):
            os.close(os.open(f"{self.place.path}/{name}", disk.CREATE, 0o666))
            if name not in os.listdir(self.place.path):
                raise MailboxCorrupt(f"{self._root}: a name of {len(name)} letters is changed, or gone")
            return [fitness.names_tick(folds=os.path.lexists(f"{self.place.path}/{name.upper()}"))]

    def syncing(self) -> list[Tick]:
        took_s = []
        with foreign(self._root):
            for _ in range(TRIPS):
                fd = os.open(f"{self.place.path}/{uuid4().hex}", disk.CREATE, 0o666)
                try:
                    disk.write_all(fd, b"x" * SYNC_BYTES)
                    before_s = time.monotonic()
                    disk.sync(fd)
                    took_s.append(time.monotonic() - before_s)
                finally:
                    os.close(fd)
            return [fitness.sync_tick(took_s, folders=_syncs_folders(self.place.path))]

    def speed(self) -> list[Tick]:
        found = os.statvfs(self.place.path)
        if found.f_bavail * found.f_frsize < speed.ROOM_BYTES:
            return []  # what is wrong is said already
        link = speed.measure(self.place.path, limit_s=self._extent.speed_s)
        return [fitness.speed_tick(write_bytes_per_s=link.write_bytes_per_s, read_bytes_per_s=link.read_bytes_per_s)]

    def clock(self) -> list[Tick]:
        """The only comparison with the wall clock, and but a remark."""
        path = f"{self.place.path}/{uuid4().hex}"
        with foreign(self._root):
            before_s = time.time()
            fd = os.open(path, disk.CREATE, 0o666)
            try:
                disk.write_all(fd, b"x")
                disk.sync(fd)
                theirs_s = os.fstat(fd).st_mtime
            finally:
                os.close(fd)
            after_s = time.time()
        off_s = theirs_s - min(max(theirs_s, before_s), after_s)
        return [fitness.clock_tick(off_s)]


def _syncs_folders(path: str) -> bool:
    fd = os.open(path, disk.READ | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in disk.NO_FOLDER_SYNC:
            raise
        return False
    finally:
        os.close(fd)
    return True
