"""What a machine that stands by keeps: who stands by, one log, and what is not to be joined any more."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import logging.handlers
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from swarm.core.errors import CannotStandBy, UsageError
from swarm.core.jobs import Process
from swarm.core.lines import UNREADABLE
from swarm.core.standby import Why
from swarm.host.identity import PROCESS, boot_id, machine_id, note_process, started
from swarm.host.paths import state_dir

LOG_BYTES = 1 << 20  # of one file; a few of them are kept
LOGS_KEPT = 3


def home() -> Path:
    """The folder with what a machine that stands by keeps."""
    return state_dir() / "standby"


def log_file() -> Path:
    return home() / "log.txt"


def other() -> int | None:
    """The pid of another process of this machine that stands by; None if there is none."""
    try:
        process = msgspec.json.decode((home() / PROCESS).read_bytes(), type=Process)
    except (OSError, *UNREADABLE):
        return None
    alive = process.boot == boot_id() and started(process.pid) == process.process
    return process.pid if alive and process.pid != os.getpid() else None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """This process stands by meanwhile, and no other one of this machine. Raises CannotStandBy if another one does, or if that
    cannot be noted."""
    with contextlib.ExitStack() as lock:
        try:
            home().mkdir(parents=True, exist_ok=True)
            # Of this machine alone: several may share a home folder. Left behind, for whoever deletes one takes another's.
            free = lock.enter_context(_locked(home() / f"lock-{machine_id()[:12]}"))
            pid = other()
            if pid is not None or not free:
                who = "" if pid is None else f"process {pid}, whose "  # it has not said so yet
                raise CannotStandBy(f"this machine stands by already: {who or 'the '}log is {log_file()}")
            note_process(home(), os.getpid())
        except UsageError as error:  # of the machine's id, which cannot be written
            raise CannotStandBy(str(error)) from error
        except OSError as error:
            raise CannotStandBy(
                f"{home()} cannot be written: {error.strerror} (SWARM_STATE_DIR names another folder)"
            ) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                (home() / PROCESS).unlink()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Meanwhile, or until this process ends. False: another one has it."""
    with path.open("ab") as file:
        free = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        except OSError:  # a file system without locks: what is noted has to do
            pass
        try:
            yield free
        finally:
            with contextlib.suppress(OSError):  # closed alone, it is held by a child of ours that has not come to its exec
                fcntl.flock(file, fcntl.LOCK_UN)


class Log:
    """One file for all of it, of bounded size: what came before is beside it, numbered."""

    def __init__(self) -> None:
        self._logger: logging.Logger | None = None

    def open(self) -> None:
        """Raises CannotStandBy if it cannot be written."""
        path = log_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(
                path, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT, encoding="utf-8", errors="replace"
            )
        except OSError as error:
            raise CannotStandBy(f"{path} cannot be written: {error.strerror} (SWARM_STATE_DIR names another folder)") from error
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        handler.handleError = lambda record: None  # type: ignore[method-assign]  # a full disk must end nothing
        self._logger = logging.Logger("swarm.standby")
        self._logger.addHandler(handler)

    def __call__(self, line: str) -> None:
        if self._logger is not None:
            self._logger.info("%s", line)


class Ledger:
    """The runs that are not to be joined any more, kept in a file: jobs are forgotten one day."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Why]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Why])
        except (OSError, *UNREADABLE):
            return {}

    def write(self, barred: Mapping[str, Why]) -> None:
        staged = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            staged.write_bytes(msgspec.json.format(msgspec.json.encode(barred)))
            staged.replace(self._path)
