"""Starts worker processes, finds them again, and tells them to leave. Imports nothing that a worker imports."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from swarm.core.errors import UsageError
from swarm.core.events import Created, Ended, Failed, Joined, WorkerEvent
from swarm.core.jobs import Learn, Order, Process
from swarm.host.identity import boot_id, started
from swarm.host.paths import jobs_dir

JOBS_KEPT = 50  # ended jobs whose logs are kept
_EVENT = msgspec.json.Decoder(WorkerEvent)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine executes to take part in a run: one worker process, running or ended."""

    id: str
    mailbox: str
    run: str
    run_name: str
    learner: str
    state: str  # 'starting', 'running', 'done', 'stopped', 'left', 'failed'
    message: str = ""  # the last words of a failed one
    pid: int = 0
    device: str = ""
    log: Path  # whole log of the worker


class Worker:
    """A worker process that this process started."""

    def __init__(self, job: Path, process: subprocess.Popen[bytes]) -> None:
        self.job, self.process = job, process
        self.events = EventTail(job / "events.jsonl")

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)


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
            with contextlib.suppress(msgspec.MsgspecError):  # of another version
                yield _EVENT.decode(line)


def start(order: Order, *, foreground: bool, stdout: int | None = None) -> Worker:
    """Start a worker in a job folder of its own.

    In the foreground it ends with this process, since its standard input does. `stdout`: a file descriptor for what
    it prints as data, instead of the log.
    """
    job = jobs_dir() / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    job.mkdir(parents=True)
    (job / "order.json").write_bytes(msgspec.json.encode(order))
    environment = dict(os.environ)
    environment.pop("SWARM_WORKER_PIPED", None)
    if foreground:
        environment["SWARM_WORKER_PIPED"] = "1"
    threads = order.threads if isinstance(order, Learn) else None
    if threads is not None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
            environment[name] = str(threads)
    with (job / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "swarm.worker", str(job)],
            stdin=subprocess.PIPE if foreground else subprocess.DEVNULL,
            stdout=log if stdout is None else stdout,
            stderr=log if stdout is None else subprocess.STDOUT if stdout == subprocess.PIPE else log,
            start_new_session=True,
            env=environment,
        )
    _forget_old_jobs()
    return Worker(job, process)


def jobs() -> tuple[Job, ...]:
    """This machine's jobs that take part in a run, newest first."""
    found = []
    for folder in _folders():
        order = _read(folder / "order.json", Order)
        if isinstance(order, Learn) and order.join:
            found.append(_job(folder, order))
    return tuple(found)


def job(text: str) -> Job:
    """By id or an unambiguous part of it. Raises UsageError."""
    fitting = [j for j in jobs() if text in j.id]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise UsageError(f"no job {text!r} on this machine: `swarm jobs` lists them")
    raise UsageError(f"{text!r} fits several jobs: {', '.join(j.id for j in fitting[:5])}")


def interrupt(job: Job) -> bool:
    """Ask a running worker to leave; False if it runs no more."""
    folder = jobs_dir() / job.id
    pid = _running(folder)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
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
    return tuple(text.splitlines()[-lines:])


def last_words(folder: Path) -> str:
    """Why a worker failed: its own words, or the end of its log."""
    for event in EventTail(folder / "events.jsonl").read():
        if isinstance(event, Failed):
            return event.message
    tail = [line for line in log_tail(folder / "log.txt", 20) if line.strip()]
    return tail[-1] if tail else "the process was ended from outside"


def _job(folder: Path, order: Learn) -> Job:
    joined: Joined | None = None
    ended: Ended | None = None
    failed: Failed | None = None
    name = order.run_name
    for event in EventTail(folder / "events.jsonl").read():
        match event:
            case Created():
                name = event.name
            case Joined():
                joined, name = event, event.name
            case Ended():
                ended = event
            case Failed():
                failed = event
            case _:
                pass
    pid = _running(folder)
    if pid is not None:
        state = "running" if joined else "starting"
    elif ended is not None:
        state = ended.reason
    elif failed is None and not (folder / "process.json").exists() and _age_s(folder) < 10:
        state = "starting"
    else:
        state = "failed"
    message = ""
    if state == "failed":
        message = failed.message if failed else last_words(folder)
    return Job(
        id=folder.name,
        mailbox=order.mailbox,
        run=order.run,
        run_name=name or order.run,
        learner=joined.learner if joined else order.learner,
        state=state,
        message=message,
        pid=pid or 0,
        device=joined.device if joined else "",
        log=folder / "log.txt",
    )


def _folders() -> list[Path]:
    try:
        return sorted((p for p in jobs_dir().iterdir() if p.is_dir()), reverse=True)
    except FileNotFoundError:
        return []


def _running(folder: Path) -> int | None:
    """The pid of the job's worker if that very process still runs."""
    process = _read(folder / "process.json", Process)
    if not isinstance(process, Process) or process.boot != boot_id():
        return None
    return process.pid if started(process.pid) == process.process else None


def _read(path: Path, type: object) -> object:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except (OSError, msgspec.MsgspecError, json.JSONDecodeError):
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
