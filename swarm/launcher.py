"""Starts worker processes, finds them again, and tells them to leave. Imports nothing that a worker imports."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from swarm.core.errors import INTERRUPTED, Dropped, UsageError, WorkerFailed
from swarm.core.events import (
    Building,
    Ended,
    Failed,
    Freed,
    Held,
    JobStepped,
    Joined,
    Mended,
    ShareBack,
    ShareLost,
    Spent,
    Stepped,
    Transfer,
    Trouble,
    WorkerEvent,
)
from swarm.core.jobs import Learn, Order, Process
from swarm.core.lines import UNREADABLE
from swarm.core.sentences import transferred, without
from swarm.host.children import python
from swarm.host.identity import PROCESS, boot_id, note_process, started
from swarm.host.paths import jobs_dir, state_dir
from swarm.learners.devices import thread_environment

JOBS_KEPT = 50  # ended jobs whose logs are kept
OUTSIDE = "the process was ended from outside"
# Not SIGINT: a framework may call system(3), as MLX does before it compiles, and one that comes meanwhile is lost.
LEAVE = signal.SIGTERM
LEFT_BY_HAND = "left-by-hand"  # in a job's folder: a person had it leave its run
_TOLD = re.compile(r"\d\d:\d\d:\d\d ")  # how a line begins that a worker told
_EVENT = msgspec.json.Decoder(WorkerEvent)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine executes to take part in a run: one worker process, running or ended."""

    id: str
    mailbox: str
    run: str
    run_name: str
    learner: str
    state: str  # 'starting', 'running', 'done', 'stopped', 'left', 'dropped', 'failed'
    message: str = ""  # the last words of a failed one, who had a dropped one removed, and what a running one is held up by
    held: str = ""  # why a running one holds still, for this machine's owner comes first
    trouble: str = ""  # what keeps a running one from its mailbox, or from going on with what it finds there
    pid: int = 0
    device: str = ""
    doing: str = ""  # before it has joined: what it prepares, in words
    memory_bytes: int = 0  # that its device has; 0: not known
    spent: Spent = Spent()  # as of its last step that was told
    by_hand: bool = False  # of one that left: a person asked it to
    log: Path  # whole log of the worker


class Worker:
    """A worker process that this process started."""

    def __init__(self, job: Path, process: subprocess.Popen[bytes]) -> None:
        self.job, self.process = job, process
        self.asked = False  # to leave
        self.events = EventTail(job / "events.jsonl")

    def interrupt(self) -> None:
        """Ask it to leave; a second time, to end at once."""
        again, self.asked = self.asked, True
        if again and self.process.stdin is not None:
            self.process.stdin.close()  # it sees that, while a signal is lost that comes before it has dealt with the first
        else:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(LEAVE)


class EventTail:
    """Reads a worker's events as they are appended."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> Iterator[WorkerEvent]:
        """Events since the last call. Lines that are incomplete yet are left for the next."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(*UNREADABLE):  # of another version
                yield _EVENT.decode(line)


def start(order: Order, *, foreground: bool, stdout: int | None = None) -> Worker:
    """Start a worker in a job folder of its own.

    In the foreground it ends with this process, since its standard input does. `stdout`: a file descriptor for what
    it prints as data, instead of the log.
    """
    now_s = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    # Milliseconds before the random part: ids are sorted by age.
    job = jobs_dir() / f"{stamp}-{int(now_s % 1 * 1000):03d}{secrets.token_hex(2)}"
    try:
        job.mkdir(parents=True)
        (job / "order.json").write_bytes(msgspec.json.encode(order))
        return _started(job, order, foreground=foreground, stdout=stdout)
    except OSError as error:
        raise WorkerFailed(f"no worker can be started in {job}: {error.strerror} (SWARM_STATE_DIR moves it)") from error


def _started(job: Path, order: Order, *, foreground: bool, stdout: int | None) -> Worker:
    environment = dict(os.environ)
    environment.pop("SWARM_WORKER_PIPED", None)
    if foreground:
        environment["SWARM_WORKER_PIPED"] = "1"
    # PyTorch makes this folder when it is imported, in the system's temporary one unless told otherwise.
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(state_dir() / "torch"))
    threads = order.threads if isinstance(order, Learn) else None
    if threads is not None:
        environment.update(thread_environment(threads))
    with (job / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            python("swarm.worker", str(job)),
            stdin=subprocess.PIPE if foreground else subprocess.DEVNULL,
            stdout=log if stdout is None else stdout,
            stderr=log,
            start_new_session=True,
            env=environment,
        )
    note_process(job, process.pid)  # known from now on, however long the worker takes to come up
    _forget_old_jobs()
    return Worker(job, process)


def jobs() -> tuple[Job, ...]:
    """This machine's jobs that take part in a run, newest first. Asked again, only what is new is read."""
    found = []
    with _lock:
        folders = _folders()
        for folder in _known.keys() - set(folders):
            del _known[folder]
        for folder in folders:
            seen = _known.setdefault(folder, _Seen(folder))
            if (job := seen.look()) is not None:
                found.append(job)
    return tuple(found)


def job(text: str) -> Job:
    """By id or an unambiguous part of it. Raises UsageError."""
    every = jobs()
    fitting = [j for j in every if j.id == text] or [j for j in every if text in j.id]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise UsageError(f"no job {text!r} on this machine: `swarm jobs --all` lists them")
    raise UsageError(f"{text!r} fits several jobs: {', '.join(j.id for j in fitting[:5])}")


def interrupt(job: Job) -> bool:
    """Ask a running worker to leave, as a person wants it to; False if it runs no more."""
    folder = jobs_dir() / job.id
    pid = _running(folder)
    if pid is None:
        return False
    with contextlib.suppress(OSError):  # a full disk: it leaves all the same
        (folder / LEFT_BY_HAND).touch()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, LEAVE)
    return True


def log_tail(log: Path, lines: int) -> tuple[str, ...]:
    """The last lines of a log, read from its end: at most 256 bytes a line on average."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            size = file.tell()
            file.seek(max(0, size - 256 * lines))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(text.removesuffix("\n").split("\n")[-lines:]) if text else ()


def last_words(folder: Path) -> str:
    """Why a worker failed: its own words, or the end of its log."""
    for event in EventTail(folder / "events.jsonl").read():
        if isinstance(event, Failed):
            return event.message
    # What it printed, not what it told: a traceback, or a framework's last complaint.
    tail = [line for line in log_tail(folder / "log.txt", 20) if line.strip() and not _TOLD.match(line)]
    return tail[-1] if tail else OUTSIDE


class _Seen:
    """One job folder, and what of its events was read so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events = EventTail(folder / "events.jsonl")
        self._order: object = None
        self._joined: Joined | None = None
        self._doing = ""
        self._ended: Ended | None = None
        self._failed: Failed | None = None
        self._held = ""
        self._share = ""  # what keeps it from its mailbox
        self._stuck = ""  # what it cannot use of what it finds there
        self._spent = Spent()
        self._over: Job | None = None  # the job as it ended: it will not change any more

    def look(self) -> Job | None:
        """The job now; None if it does not take part in a run."""
        if self._over is not None:
            return self._over
        if self._order is None:
            self._order = _read(self._folder / "order.json", Order)
        if not isinstance(self._order, Learn) or not self._order.join:
            return None
        pid = _running(self._folder)  # before its events: what it said last is not missed
        self._read_events()
        job = self._job(self._order, pid)
        if pid is None and job.state != "starting":
            self._over = job
        return job

    def _read_events(self) -> None:
        for event in self._events.read():
            match event:
                case Joined():
                    self._joined = event
                case Building():
                    self._doing = f"building {event.what}"
                case Transfer():
                    self._doing = transferred(event)
                case Stepped() | JobStepped():
                    self._spent = event.spent
                case Ended():
                    self._ended = event
                case Failed():
                    self._failed = event
                case Held():
                    self._held = event.reason
                case Freed():
                    self._held = ""
                case ShareLost():
                    self._share = without(event)
                case ShareBack():
                    self._share = ""
                case Trouble(lasts=True):
                    self._stuck = event.message
                case Mended():
                    self._stuck = ""
                case _:
                    pass

    def _job(self, order: Learn, pid: int | None) -> Job:
        joined, failed, message = self._joined, self._failed, ""
        if pid is not None:
            state = "running" if joined else "starting"
            message = "; ".join(why for why in (self._held and f"paused here: {self._held}", self._share, self._stuck) if why)
        elif self._ended is not None:
            state = self._ended.reason
        elif (self._folder / LEFT_BY_HAND).exists() if failed is None else failed.exit_code == INTERRUPTED:
            state = "left"  # in the first case before it could say so
        elif failed is not None and failed.error == Dropped.__name__:
            state, message = "dropped", failed.message
        elif failed is None and not (self._folder / PROCESS).exists() and _age_s(self._folder) < 10:
            state = "starting"  # its folder was made this moment
        else:
            state, message = "failed", failed.message if failed else last_words(self._folder)
        return Job(
            id=self._folder.name,
            mailbox=order.mailbox,
            run=order.run,
            run_name=(joined.name if joined else order.run_name) or order.run,
            learner=joined.learner if joined else order.learner,
            state=state,
            message=message,
            held=self._held if pid is not None else "",
            trouble=(self._share or self._stuck) if pid is not None else "",
            pid=pid or 0,
            device=joined.device if joined else "",
            doing="" if joined else self._doing,
            memory_bytes=joined.memory_bytes if joined else 0,
            spent=self._spent,
            by_hand=state == "left" and (self._folder / LEFT_BY_HAND).exists(),
            log=self._folder / "log.txt",
        )


_known: dict[Path, _Seen] = {}
_lock = threading.Lock()


def _folders() -> list[Path]:
    try:
        return sorted((p for p in jobs_dir().iterdir() if p.is_dir()), reverse=True)
    except FileNotFoundError:
        return []


def _running(folder: Path) -> int | None:
    """The pid of the job's worker if that very process still runs."""
    process = _read(folder / PROCESS, Process)
    if not isinstance(process, Process) or process.boot != boot_id():
        return None
    return process.pid if started(process.pid) == process.process else None


def _read(path: Path, type: object) -> object:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, *UNREADABLE):
        return None


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime  # one machine's own clock on its own files
    except OSError:
        return float("inf")


def _forget_old_jobs() -> None:
    for folder in _folders()[JOBS_KEPT:]:
        if _running(folder) is None:
            shutil.rmtree(folder, ignore_errors=True)
