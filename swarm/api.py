"""Read model and commands for every front end: command line, screens, user scripts.

Nothing here imports numpy or a framework: whatever touches tensors runs in a worker process.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarm import __version__
from swarm.core.errors import MailboxError, NothingToJoin, RunNotFound, SwarmError, UsageError
from swarm.core.records import Beat, EvalRecord, LearnerRecord, Manifest, Participant, Rejected, RoundRecord, Snapshot
from swarm.core.state import LearnerView, RunPhase, RunState, participants, rejections, train_loss

__all__ = [
    "Beat", "EvalRecord", "Home", "HomeWatch", "Job", "LearnerRecord", "LearnerView", "MailboxError", "MailboxView", "Manifest",
    "NothingToJoin", "Participant", "Rejected", "RoundRecord", "RunNotFound", "RunPhase", "RunState", "RunWatch", "Snapshot",
    "SwarmError", "UsageError", "__version__", "jobs", "leave", "log_tail", "participants", "rejections", "start_join", "stop_run",
    "train_loss",
]  # fmt: skip


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine executes to take part in a run: one worker process, running or ended."""

    id: str
    mailbox: str
    run: str
    run_name: str
    learner: str
    state: str  # 'starting', 'running', 'done', 'left', 'failed'
    message: str = ""  # the last words of a failed one
    pid: int = 0
    device: str = ""
    log: Path  # whole log of the worker


class MailboxView(msgspec.Struct, frozen=True, kw_only=True):
    location: str
    problem: str = ""  # why it cannot be used now; '' when it can
    remedy: str = ""  # what to do about it
    runs: tuple[RunState, ...] = ()  # newest first; `rounds` holds the newest record only


class Home(msgspec.Struct, frozen=True, kw_only=True):
    mailboxes: tuple[MailboxView, ...] = ()
    jobs: tuple[Job, ...] = ()


class HomeWatch:
    """Follows the known mailboxes and this machine's jobs."""

    def __init__(self, mailboxes: tuple[str, ...] | None = None) -> None:
        """`mailboxes`: locations to follow; None: those of the settings."""

    async def poll(self) -> Home:
        """What stands there now. Never raises for a mailbox that does not answer: its view says so."""
        raise NotImplementedError


class RunWatch:
    """Follows one run."""

    def __init__(self, mailbox: str, run: str) -> None:
        """`run`: id."""

    async def poll(self) -> RunState:
        """The run now. A share that does not answer is `state.lost`, never an exception."""
        raise NotImplementedError


def jobs() -> tuple[Job, ...]:
    """This machine's jobs, newest first."""
    raise NotImplementedError


def start_join(
    mailbox: str,
    run: str,
    *,
    learner_id: str | None = None,
    framework: str = "auto",
    device: str = "auto",
    data: str | None = None,
) -> Job:
    """Start a detached worker that joins `run` and return at once; the job's state tells how it goes on."""
    raise NotImplementedError


def leave(job: str) -> None:
    """Ask the worker of `job` to leave its run cleanly; returns at once."""
    raise NotImplementedError


async def stop_run(mailbox: str, run: str) -> None:
    """End the run for everybody, at its next round."""
    raise NotImplementedError


def log_tail(job: str, lines: int = 200) -> tuple[str, ...]:
    """The last lines of a job's log."""
    raise NotImplementedError
