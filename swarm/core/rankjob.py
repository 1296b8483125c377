"""What one rank of a data-parallel job is told (its plan, and commands later on), and what it tells: one JSON object a line."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from swarm.core.errors import UsageError
from swarm.core.finetune import MAX_RANKS, FineTune
from swarm.core.lines import UNREADABLE
from swarm.core.options import check_ranges
from swarm.core.ranks import Backend

HALTED = 76
"""Exit code of a rank that was told to halt, or learned that another was: nothing failed, and a new generation can go on."""


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of one generation. Addresses are in the environment, as the backend wants them (ring: MLX_HOSTFILE)."""

    rank: Annotated[int, Meta(ge=0)]
    size: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    generation: Annotated[int, Meta(ge=0, le=999_999)] = 0
    backend: Backend = "ring"
    spec: FineTune
    model: str  # folder of the base model
    data: str  # folder with train.jsonl
    adapter_path: str  # folder that rank 0 writes the adapter to
    checkpoints: str  # folder that rank 0 writes <generation>/<step> to
    start: str | None = None  # the checkpoint that rank 0 begins with; the others need not have it
    start_adapter: str | None = None  # or an adapter alone: MLX-LM's resume_adapter_file
    base: str = ""  # SHA-256 of the base model, which checkpoints remember
    names: dict[str, str] = {}  # what adapter_config.json says of model, data, adapter_path; by default the folders
    shares: tuple[int, ...] = ()  # of each rank in a batch's tokens, to begin with; by default equal
    replan: bool = True  # let the shares follow the measured speeds; with dropout, only fixed ones make the same run again
    microbatch_rows: Annotated[int, Meta(ge=1)] | None = None  # through the model at once on this machine; by default its part
    microbatch_tokens: Annotated[int, Meta(ge=1)] | None = None
    memory_bytes: Annotated[float, Meta(gt=0)] | None = None  # that this rank may take: it begins with what fits
    meet_s: Annotated[float, Meta(gt=0)] = 60.0  # for all ranks to be there
    prepare_s: Annotated[float, Meta(gt=0)] = 1800.0  # until the first step is done, on the slowest machine
    silence_s: Annotated[float, Meta(gt=0)] = 120.0  # without a sign of progress, after which this rank ends itself
    leash: bool = False  # heed commands on standard input, and end when it ends: nobody is left who would end this rank

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.rank >= self.size:
            raise ValueError(f"rank must be < size ({self.size}), got {self.rank}")
        if self.shares and (len(self.shares) != self.size or min(self.shares) < 0 or not any(self.shares)):
            raise ValueError(f"shares must be {self.size} numbers, not negative and not all zero, got {list(self.shares)}")
        if self.start is not None and self.start_adapter is not None:
            raise ValueError("a rank begins with a checkpoint or with an adapter, not with both")

    @property
    def divided(self) -> tuple[int, ...]:
        """The share of each rank."""
        return self.shares or (1,) * self.size


def decode_plan(text: str | bytes) -> RankPlan:
    """Raises UsageError."""
    try:
        return msgspec.json.decode(text, type=RankPlan)
    except UNREADABLE as error:
        raise UsageError(f"no plan of a rank: {error}") from error


class Halt(msgspec.Struct, frozen=True, kw_only=True, tag_field="command", tag="halt"):
    """Save and end, together with all other ranks, after the step in which they learn of it; before the first step, end at
    once. A validation that has begun is finished, one that is due is left out. To tell one rank is enough."""


RankCommand: TypeAlias = Halt


class _Named(msgspec.Struct):
    command: str


def encode_command(command: RankCommand) -> bytes:
    return msgspec.json.encode(command) + b"\n"


def decode_command(line: bytes) -> RankCommand:
    """Raises UsageError."""
    try:
        msgspec.json.decode(line, type=_Named)  # where only one class is possible, msgspec lets its tag be missing
        return msgspec.json.decode(line, type=RankCommand)
    except UNREADABLE as error:
        raise UsageError(f"no command of a rank: {error}") from error


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base: the tag is the class name."""


class Phase(_Event, frozen=True, kw_only=True, tag=True):
    """The rank begins something that takes a while."""

    what: Literal["meeting", "model", "rows", "weights", "memory", "training"]


class RankReady(_Event, frozen=True, kw_only=True, tag=True):
    """All ranks hold the same, and the first step begins."""

    step: int  # done before, as the checkpoint has it
    steps: int
    rank: int
    size: int
    generation: int
    rows: int
    valid_rows: int
    cut_rows: int  # longer than max_seq_length
    batches_per_epoch: int
    trainable: int  # parameters
    device: str


class RankStepped(_Event, frozen=True, kw_only=True, tag=True):
    """A step of this rank."""

    step: int  # done
    iteration: int
    tokens: int  # of all ranks, learned
    own_tokens: int
    positions: int  # computed here
    padding: int  # of them for nothing
    compute_s: float
    waiting_s: float  # for slower ranks
    exchange_s: float
    update_s: float
    microbatch_rows: int  # at most
    microbatch_tokens: int | None  # positions, at most
    memory_bytes: int  # peak
    share: float  # of the batch that this rank was to have
    loss: float | None  # None: an all-masked batch, with which nothing was updated


class Replanned(_Event, frozen=True, kw_only=True, tag=True):
    """From the next step on, batches are divided by other shares; from rank 0."""

    step: int  # done
    shares: tuple[int, ...]


class Reported(_Event, frozen=True, kw_only=True, tag=True):
    """MLX-LM's report every `steps_per_report` iterations; from rank 0."""

    iteration: int
    train_loss: float | None  # mean over all tokens since the last report
    learning_rate: float
    tokens_per_s: float
    trained_tokens: int
    epoch: float


class Validated(_Event, frozen=True, kw_only=True, tag=True):
    """The loss on validation or test rows, over their tokens; from rank 0."""

    part: Literal["valid", "test"]
    iteration: int
    loss: float | None
    tokens: int
    seconds_s: float
    sample: str = ""  # what the model wrote, for people


class Saved(_Event, frozen=True, kw_only=True, tag=True):
    """From rank 0."""

    step: int
    iteration: int
    checkpoint: str
    adapter: str


class Smaller(_Event, frozen=True, kw_only=True, tag=True):
    """A microbatch was too much for the memory; it goes on with at most so many positions at once, half of what it was."""

    microbatch_tokens: int


class RankEnded(_Event, frozen=True, kw_only=True, tag=True):
    """The last line: `done`, `halted`, or what went wrong, with what survives."""

    reason: str
    step: int
    checkpoint: str | None = None  # the last good one of this generation, or the one it began with
    error: str = ""  # class
    again: bool = False  # a new generation can go on


RankEvent: TypeAlias = Phase | RankReady | RankStepped | Replanned | Reported | Validated | Saved | Smaller | RankEnded


def encode_event(event: RankEvent) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def decode_event(line: bytes) -> RankEvent:
    """Raises UsageError."""
    try:
        return msgspec.json.decode(line, type=RankEvent)
    except UNREADABLE as error:
        raise UsageError(f"no event of a rank: {error}") from error
