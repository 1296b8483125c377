"""Learners that are real processes, each with a mount of its own of one share, to which things happen."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swarm.core.events import Joined, RoundClosed, ShareBack, ShareLost, WorkerEvent
from swarm.core.jobs import CreateRun
from swarm.mailbox.folder_init import init_folder
from tests.process.faults.share import Mount
from tests.process.machines import Machine, start
from tests.soak.faults import RULES, Injection

CLOCK = Path(__file__).parent / "clock"
MAILBOX = "mailbox"


@dataclass
class Told:
    """An event, and when it was read here."""

    at_s: float
    event: WorkerEvent


class Seat:
    """A learner that is started again when it was killed."""

    def __init__(self, name: str, framework: str, mount: Mount, *, clock_s: float = 0.0) -> None:
        """`clock_s`: by how much its clock is off."""
        self.name, self.framework, self.mount, self.clock_s = name, framework, mount, clock_s
        self.machine: Machine | None = None
        self.told: list[Told] = []
        self.starts, self.closed = 0, -1
        self.stray: list[str] = []  # what was found at the mount point while nothing was mounted there
        self._read = 0

    @property
    def mailbox(self) -> str:
        return str(self.mount.path / MAILBOX)

    @property
    def pid(self) -> int:
        assert self.machine is not None
        return self.machine.worker.process.pid

    def start(self, run: CreateRun, *, create: bool = False) -> None:
        path = os.pathsep.join(filter(None, (str(CLOCK), os.environ.get("PYTHONPATH", ""))))
        with environment(SWARM_TEST_CLOCK_S=str(self.clock_s), PYTHONPATH=path):
            self.machine = start(self.mailbox, run, self.name, self.framework, create=create)
        self._read, self.starts = 0, self.starts + 1

    def look(self) -> None:
        """Read what it has told since."""
        if self.machine is None:
            return
        events = self.machine.look()
        now_s = time.monotonic()
        for event in events[self._read :]:
            self.told.append(Told(now_s, event))
            if isinstance(event, RoundClosed):
                self.closed = max(self.closed, event.round)
        self._read = len(events)

    @property
    def joined(self) -> bool:
        return self.machine is not None and any(isinstance(e, Joined) for e in self.machine.look())

    @property
    def rounds(self) -> Iterator[RoundClosed]:
        """As they were told to it."""
        return (told.event for told in self.told if isinstance(told.event, RoundClosed))

    @property
    def died(self) -> bool:
        """Whether it ended though nobody killed it."""
        return self.machine is not None and self.machine.worker.process.poll() is not None

    @property
    def ready(self) -> bool:
        """Whether it takes part, as far as it told."""
        return self.joined and not self.away

    def kill(self) -> None:
        self.look()
        if self.machine is not None:
            self.machine.kill()
            self.look()
        self.machine = None

    def first(self, kind: type[WorkerEvent], since_s: float) -> float | None:
        """When it first told of such a thing since then."""
        return next((told.at_s for told in self.told if told.at_s >= since_s and isinstance(told.event, kind)), None)

    @property
    def away(self) -> bool:
        """Whether it takes the share for lost, by what it told last."""
        share = [told.event for told in self.told if isinstance(told.event, ShareLost | ShareBack | Joined)]
        return bool(share) and isinstance(share[-1], ShareLost)


class Stage:
    """Four learners, say, and what is done to them. `look` is to be called often; nothing here waits."""

    def __init__(self, folder: Path, seats: list[Seat], run: CreateRun) -> None:
        self.folder, self.run = folder, run
        self.seats = {seat.name: seat for seat in seats}
        self.wrongs: list[str] = []

    @property
    def mailbox(self) -> Path:
        """As the machine has it that serves the share."""
        return self.folder / "served" / MAILBOX

    def look(self) -> None:
        for seat in self.seats.values():
            seat.look()
            if seat.died:
                assert seat.machine is not None
                code = seat.machine.worker.process.returncode
                self.wrongs.append(f"{seat.name} ended by itself, with code {code}: {seat.machine.words()}")
                seat.machine = None

    def begin(self, injection: Injection) -> None:
        for seat in (self.seats[name] for name in injection.who):
            match injection.kind:
                case "kill":
                    seat.kill()
                case "stop":
                    if seat.machine is not None:
                        os.kill(seat.pid, signal.SIGSTOP)
                case "dead":
                    assert seat.mount.process is not None
                    seat.mount.process.kill()
                case "hang":
                    assert seat.mount.process is not None
                    seat.mount.process.send_signal(signal.SIGSTOP)
                case "unmount":
                    seat.mount.unmount()
                case kind:
                    seat.mount.fails(*RULES[kind])

    def end(self, injection: Injection) -> None:
        for seat in (self.seats[name] for name in injection.who):
            match injection.kind:
                case "kill":
                    seat.start(self.run)
                case "stop":
                    if seat.machine is not None:
                        os.kill(seat.pid, signal.SIGCONT)
                case "dead":
                    seat.mount.unmount()
                    seat.mount.mount()
                case "hang":
                    assert seat.mount.process is not None
                    seat.mount.process.send_signal(signal.SIGCONT)
                case "unmount":
                    seat.stray += [str(path) for path in seat.mount.path.rglob("*")]
                    seat.mount.mount()
                case _:
                    seat.mount.fails()

    def close(self) -> None:
        for seat in self.seats.values():
            if seat.mount.process is not None:
                seat.mount.process.send_signal(signal.SIGCONT)  # else a process that waits for it could not be killed
            if seat.machine is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(seat.pid, signal.SIGCONT)
                with contextlib.suppress(Exception):
                    seat.kill()
            seat.mount.unmount()


@contextlib.contextmanager
def staged(folder: Path, run: CreateRun, cast: dict[str, tuple[str, float]]) -> Iterator[Stage]:
    """`cast`: by learner, its framework and by how many seconds its clock is off. Raises OSError."""
    served = folder / "served"
    served.mkdir(parents=True)
    init_folder(str(served / MAILBOX))
    seats = []
    for name, (framework, clock_s) in cast.items():
        path = folder / "mounts" / name
        path.mkdir(parents=True)
        seats.append(Seat(name, framework, Mount(served, path), clock_s=clock_s))
    stage = Stage(folder, seats, run)
    try:
        for seat in seats:
            seat.mount.mount()
        yield stage
    finally:
        stage.close()


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
