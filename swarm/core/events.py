"""What a worker tells this machine's screens, commands and logs: one JSON object a line (the job's events.jsonl)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from swarm.core.participation import mean_metrics
from swarm.core.records import Rejected, Role, RoundRecord
from swarm.core.specs import Algorithm, FedAvg
from swarm.core.state import train_loss


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base: the tag is the class name."""


class Building(_Event, frozen=True, kw_only=True, tag=True):
    """The worker prepares its model."""

    what: str


class Created(_Event, frozen=True, kw_only=True, tag=True):
    """The worker made the run."""

    run: str
    name: str


class Transfer(_Event, frozen=True, kw_only=True, tag=True):
    """A file that is attached to the run goes to the mailbox, or comes from it: when it begins, now and then, and when it is
    there, verified."""

    file: str
    how: Literal["attach", "fetch", "have"]  # have: it is on this machine already
    done_bytes: int
    size_bytes: int
    line: bool = True  # worth a line of its own; False: only the progress line


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What an incarnation has taken so far, as a Beat tells it."""

    alive_s: float = 0.0
    trained_s: float = 0.0
    power_w: float | None = None
    energy_wh: float | None = None


class Joined(_Event, frozen=True, kw_only=True, tag=True):
    run: str
    name: str
    learner: str
    incarnation: int
    round: int  # the round it works on
    device: str = ""
    memory_bytes: int = 0  # that the device has; 0: not known
    role: Role = "both"


class Restored(_Event, frozen=True, kw_only=True, tag=True):
    """A restarted learner goes on from its local checkpoint."""

    round: int  # the round it works on
    step: int  # inner steps done in it
    what: str  # was taken up


class Waiting(_Event, frozen=True, kw_only=True, tag=True):
    """The open round does not close yet."""

    round: int
    reason: str


class Paused(_Event, frozen=True, kw_only=True, tag=True):
    """From here on nobody trains, until the run is resumed."""

    round: int  # the open one
    by: str = ""  # machine, for people


class Resumed(_Event, frozen=True, kw_only=True, tag=True):
    round: int


class OwnerFirst(_Event, frozen=True, kw_only=True, tag=True):
    """How this machine treats its owner while it takes part."""

    words: str


class Held(_Event, frozen=True, kw_only=True, tag=True):
    """This machine holds still for its owner; nobody waits for it."""

    reason: str


class Freed(_Event, frozen=True, kw_only=True, tag=True):
    """It trains again."""


class Stepped(_Event, frozen=True, kw_only=True, tag=True):
    """Progress within a round, at most once a second."""

    round: int
    step: int
    steps_before: int  # inner steps that the round takes
    loss: float | None
    tokens_per_s: float
    spent: Spent = Spent()


class Training(_Event, frozen=True, kw_only=True, tag=True):
    """The worker begins with a client."""

    round: int
    unit: str
    claim: int  # above 0: somebody else had begun with it
    samples: int


class Trained(_Event, frozen=True, kw_only=True, tag=True):
    """The worker is done with a client."""

    round: int
    unit: str
    claim: int
    samples: int
    steps: int  # made on it
    train_loss: float | None  # mean over its samples; None: not told
    seconds_s: float
    given_up: bool = False  # its round closed, or the worker leaves: nothing of it counts
    flaw: str = ""  # the parameter that is not finite: nothing of it counts


class Published(_Event, frozen=True, kw_only=True, tag=True):
    round: int
    size_bytes: int


class TrainedClient(msgspec.Struct, frozen=True):
    client: str
    samples: int
    learner: str


class RoundClosed(_Event, frozen=True, kw_only=True, tag=True):
    round: int
    rounds: int | None  # of the run
    participants: tuple[str, ...]  # units: learners, or clients. None: nothing counted, the parameters are as they were
    rejected: tuple[str, ...]  # "unit: reason"; of a client "client of learner: reason"
    train_loss: float | None
    closer: str
    reason: str = ""  # why it closed when it did
    clients: tuple[TrainedClient, ...] = ()  # of FedAvg: those of `participants`, with who trained them
    metrics: dict[str, float] = {}  # of the clients, by samples


class Evaluated(_Event, frozen=True, kw_only=True, tag=True):
    round: int
    loss: float | None  # None: not a number
    metrics: dict[str, float] = {}
    sample: str = ""


class Gathering(_Event, frozen=True, kw_only=True, tag=True):
    """The ranks of a data-parallel job do not start yet."""

    generation: int
    reason: str


class RankPlaced(_Event, frozen=True, kw_only=True, tag=True):
    """A rank of a data-parallel job starts here."""

    generation: int
    rank: int
    size: int
    backend: str
    address: str  # the only one that it binds to
    machines: tuple[str, ...]  # learners, by rank
    refused: tuple[str, ...] = ()  # "learner: reason"
    step: int = 0  # that the job goes on after


class JobStepped(_Event, frozen=True, kw_only=True, tag=True):
    """Progress of a data-parallel job, at most once a second."""

    step: int
    steps: int
    iteration: int
    loss: float | None
    tokens_per_s: float  # of all ranks
    spent: Spent = Spent()


class JobReported(_Event, frozen=True, kw_only=True, tag=True):
    """What MLX-LM reports every `steps_per_report` iterations; on the machine of rank 0."""

    iteration: int
    iters: int
    train_loss: float | None
    learning_rate: float
    tokens_per_s: float
    trained_tokens: int
    memory_bytes: int


class JobValidated(_Event, frozen=True, kw_only=True, tag=True):
    """On the machine of rank 0."""

    part: Literal["valid", "test"]
    iteration: int
    loss: float | None
    seconds_s: float


class JobSaved(_Event, frozen=True, kw_only=True, tag=True):
    """A checkpoint is in the mailbox, from this machine; or an adapter was written here (`adapter`)."""

    iteration: int
    size_bytes: int
    adapter: str = ""  # path


class GenerationOver(_Event, frozen=True, kw_only=True, tag=True):
    """The ranks of a generation have ended, and another one follows."""

    generation: int
    ending: str
    reason: str


Loss: TypeAlias = Literal["silent", "full", "read-only", "gone"]
"""What is wrong with a mailbox: it does not answer, takes nothing more, takes nothing at all, or is not there."""


class ShareLost(_Event, frozen=True, kw_only=True, tag=True):
    """The mailbox cannot be used, or nothing can be written into it; it is tried again."""

    reason: str
    how: Loss = "silent"


class ShareBack(_Event, frozen=True, kw_only=True, tag=True):
    after_s: float


class Trouble(_Event, frozen=True, kw_only=True, tag=True):
    """Something is wrong, and the worker goes on."""

    message: str
    lasts: bool = False  # until Mended


class Mended(_Event, frozen=True, kw_only=True, tag=True):
    """What was wrong and lasted is over."""

    what: str  # in a few words
    after_s: float


class Ended(_Event, frozen=True, kw_only=True, tag=True):
    """The worker left its run."""

    reason: str  # 'done', 'stopped', 'left'
    rounds: int  # committed ones
    params_sha256: str = ""  # of the model's parameters, as bytes
    iterations: int | None = None  # of a data-parallel job: done
    adapter: str = ""  # path of what it learned, on this machine
    chat: str = ""  # the command that tries it out


class Failed(_Event, frozen=True, kw_only=True, tag=True):
    """The worker's last words."""

    error: str  # class name
    message: str
    exit_code: int = 1


WorkerEvent: TypeAlias = (
    Building
    | Created
    | Transfer
    | Joined
    | Restored
    | Waiting
    | Paused
    | Resumed
    | OwnerFirst
    | Held
    | Freed
    | Stepped
    | Training
    | Trained
    | Published
    | RoundClosed
    | Evaluated
    | Gathering
    | RankPlaced
    | JobStepped
    | JobReported
    | JobValidated
    | JobSaved
    | GenerationOver
    | ShareLost
    | ShareBack
    | Trouble
    | Mended
    | Ended
    | Failed
)


ORDINARY = ("", "every client has reported", "every live learner has reported")
"""Reasons for which a round closes that need no word."""


Level: TypeAlias = Literal["INFO", "WARN", "ERROR"]


def level(event: WorkerEvent) -> Level:
    """How much the event matters to somebody who reads a log: a warning is what may need a person."""
    match event:
        case Failed():
            return "ERROR"
        case Trouble() | ShareLost():
            return "WARN"
        case RoundClosed() if event.rejected or not event.participants or event.reason not in ORDINARY:
            return "WARN"
        case GenerationOver() if event.ending != "regroup":
            return "WARN"
        case Training() if event.claim:  # whoever had begun with it is gone
            return "WARN"
        case _:
            return "INFO"


def round_closed(record: RoundRecord, algorithm: Algorithm, *, rounds: int | None) -> RoundClosed:
    """The event for a record that was committed. `rounds`: how many the run has."""
    federated = isinstance(algorithm, FedAvg)
    private = isinstance(algorithm, FedAvg) and algorithm.private  # of their data nothing is told but how much there is
    parts = record.participants
    return RoundClosed(
        round=record.round,
        rounds=rounds,
        participants=tuple(p.unit for p in parts),
        rejected=tuple(_rejected(r) for r in record.rejected),
        train_loss=None if private else train_loss(record),
        closer=record.closer,
        reason=record.reason,
        clients=tuple(TrainedClient(p.unit, p.tokens, p.learner) for p in parts) if federated else (),
        metrics=mean_metrics(parts) if federated and not private else {},
    )


def _rejected(r: Rejected) -> str:
    return f"{r.learner if r.unit == r.learner else f'{r.unit} of {r.learner}'}: {r.reason}"
