"""What the feed tells the screens. Values only; a newer one replaces an older one that waits behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from textual.message import Message

from swarm.api import Sightings

if TYPE_CHECKING:
    from swarm.api import Home, Job, Joining, RunState, Settings
    from swarm.api.doctor import Examination
    from tui.asked import Question
    from tui.transitions import Note

Command = Literal[
    "join",
    "leave",
    "stop",
    "pause",
    "resume",
    "drop",
    "extend",
    "export",
    "mount",
    "add the peer",
    "check",
    "go on",
    "start",
    "save",
    "notify",
]
RUNNING_JOB = ("starting", "running")


class RunAt(NamedTuple):
    """Where a run is. `mailbox`: '' if the network alone tells of it."""

    mailbox: str
    run: str


@dataclass(frozen=True)
class HomeShown:
    home: Home
    now_s: float  # monotonic, when this was posted
    polled_at_s: float  # monotonic, when `home` was read
    faults: tuple[str, ...] = ()  # of the settings file
    notes: tuple[Note, ...] = ()  # this sitting's, oldest first, bounded
    sightings: Sightings = field(default_factory=Sightings)


@dataclass(frozen=True)
class LogLine:
    text: str  # harmless already
    tone: str = ""


@dataclass(frozen=True)
class RunShown:
    at: RunAt
    state: RunState
    now_s: float
    problem: str = ""  # why the last look failed: the run is gone, or of another format
    jobs: tuple[Job, ...] = ()  # this machine's in the run, newest first
    round_since_s: float | None = None  # monotonic, when the open round was seen to begin; None: before we looked
    quorum_since_s: float | None = None  # monotonic, when its quorum was seen; None: not yet
    poll_s: float | None = None  # what the last look at the share took; None: none has ended yet
    refused: tuple[tuple[str, str], ...] = ()  # machines that would train it and cannot, and why, harmless already
    heard: bool | None = None  # whether the network tells of other machines; None: nobody has listened
    sightings: Sightings = field(default_factory=Sightings)
    notes: tuple[Note, ...] = ()
    log: tuple[LogLine, ...] = ()

    @property
    def running(self) -> tuple[Job, ...]:
        """This machine's jobs in the run that have not ended."""
        return tuple(job for job in self.jobs if job.state in RUNNING_JOB)

    @property
    def job(self) -> Job | None:
        """The one to speak of: one that runs, else the newest."""
        return next(iter(self.running or self.jobs), None)


@dataclass(frozen=True)
class JoinShown:
    at: RunAt
    joining: Joining
    now_s: float
    job: Job | None = None  # that this machine began to join it with
    mounting: bool = False  # a mount is under way


@dataclass(frozen=True)
class Facts:
    """How the feed fares, for the page of debug facts."""

    home_polls: int = 0
    home_poll_s: float = 0.0  # what the last one took
    run_polls: int = 0
    run_poll_s: float = 0.0
    errors: tuple[str, ...] = ()  # the last unexpected ones


@dataclass(frozen=True)
class NetworkShown:
    """What the Network screen shows."""

    found: Examination
    sightings: Sightings  # newer than those of `found`, as a rule
    now_s: float  # monotonic, when this was posted
    report: str = ""  # a page for a bug report, once all is known


class SettingsRead(Message):
    """The settings as the file has them now. `faults`: what is wrong with it."""

    def __init__(self, settings: Settings, faults: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.settings, self.faults = settings, faults

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SettingsRead)


class Alarmed(Message):
    """A person who is not at the screen should hear of it. `news`: harmless already. `toast`: no screen tells it anyhow."""

    def __init__(self, run: str, news: str, *, toast: bool = True) -> None:
        super().__init__()
        self.run, self.news, self.toast = run, news, toast


class NetworkPolled(Message):
    def __init__(self, shown: NetworkShown) -> None:
        super().__init__()
        self.shown = shown

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, NetworkPolled)


class HomePolled(Message):
    def __init__(self, shown: HomeShown) -> None:
        super().__init__()
        self.shown = shown

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, HomePolled)


class RunPolled(Message):
    def __init__(self, shown: RunShown) -> None:
        super().__init__()
        self.shown = shown

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, RunPolled) and message.shown.at == self.shown.at


class JoinPolled(Message):
    def __init__(self, shown: JoinShown) -> None:
        super().__init__()
        self.shown = shown

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, JoinPolled) and message.shown.at == self.shown.at


class CommandEnded(Message):
    """A command that was handed to the feed: `problem` is '' if it went well."""

    def __init__(self, command: Command, what: str, problem: str = "") -> None:
        super().__init__()
        self.command, self.what, self.problem = command, what, problem


class Answered(Message):
    """What the feed found on a question (tui/asked.py): `problem` says why there is no `value`."""

    def __init__(self, question: Question, value: object = None, problem: str = "") -> None:
        super().__init__()
        self.question, self.value, self.problem = question, value, problem
