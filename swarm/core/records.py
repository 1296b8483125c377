"""Every JSON record of the mailbox, and the two lines in which it is written (FORMAT.md, "Records").

Line 1 is the body, line 2 the envelope: a nonce, the SHA-256 of line 1, and the place of a signature. Unknown fields are
ignored, so that a later version may add some.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeVar

import msgspec

from swarm.core.errors import RecordError
from swarm.core.specs import DiLoCo
from swarm.core.tensorspec import TensorSpec

FORMAT = 1
MAX_RECORD_BYTES = 64 << 20  # a schema of a hundred thousand tensors fits; nothing larger is read
INIT = -1  # the round of Θ⁰ in a PayloadRef

RejectReason = Literal["stale", "late", "zero_steps", "tokens", "schema", "corrupt", "missing", "nonfinite", "duplicate"]
LearnerPhase = Literal["join", "train", "upload", "wait", "merge", "pull", "evaluate", "paused", "left"]

T = TypeVar("T", bound=msgspec.Struct)


class Envelope(msgspec.Struct, frozen=True):
    nonce: str
    sha256: str  # of line 1
    signature: str | None = None  # reserved: HMAC over run id, key and body in a signed swarm


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """`mailbox/record.json`: this folder is a mailbox."""

    id: str
    format: int = FORMAT


class DataRef(msgspec.Struct, frozen=True, kw_only=True):
    """Data that a run trains on, by name and content."""

    name: str
    sha256: str
    size_bytes: int


class TaskRef(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    options: dict[str, int | float | str | bool] = {}
    data: tuple[DataRef, ...] = ()


class PayloadRef(msgspec.Struct, frozen=True, kw_only=True):
    """A payload of one fragment. Its key follows from these fields: no record ever holds a path."""

    round: int  # the round that wrote it; INIT for Θ⁰
    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        if len(self.sha256) != 64 or not set(self.sha256) <= set("0123456789abcdef"):
            raise ValueError(f"sha256 must be 64 lower-case hex digits, got {self.sha256!r}")
        if self.round < INIT or self.size_bytes < 0:
            raise ValueError(f"round must be >= {INIT} and size_bytes >= 0, got {self.round} and {self.size_bytes}")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A run, described once."""

    run: str
    name: str
    algorithm: DiLoCo
    task: TaskRef
    tensors: tuple[TensorSpec, ...]  # sorted by name
    schema_sha256: str
    init: tuple[PayloadRef, ...]  # Θ⁰, by fragment
    rounds: int | None = None  # how many the run has; None: until it is stopped
    seed: int = 0
    eval_every: int = 1  # rounds; 0: never
    created_by: str = ""  # machine name, for people
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise ValueError(f"rounds must be >= 1, got {self.rounds}")
        if len(self.init) > self.algorithm.fragments:
            raise ValueError(f"{len(self.init)} initial payloads for {self.algorithm.fragments} fragments")
        if self.eval_every < 0:
            raise ValueError(f"eval_every must be >= 0, got {self.eval_every}")


class LearnerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a learner id: who holds it, and how to tell that the holder is gone."""

    learner: str
    incarnation: int
    machine: str  # stable id of the machine
    machine_name: str
    boot: str  # id of the machine's current boot
    pid: int
    process: str  # identifies the process beside its pid: when it started
    version: str  # of swarm
    device: str = ""  # for people: framework and device


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """Lease and telemetry of one incarnation."""

    phase: LearnerPhase
    round: int = 0  # the round being worked on
    step: int = 0  # inner steps done in it
    steps: int = 0  # inner steps done by this incarnation
    tokens_per_s: float = 0.0
    loss: float | None = None
    rss_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    progress_bytes: int = 0  # of the phase under way: proof that a slow closer or fetch moves
    fetching: tuple[str, ...] = ()  # SHA-256 of payloads being fetched: these must not be deleted


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A published delta."""

    round: int
    fragment: int
    learner: str
    incarnation: int
    unit: str
    base_sha256: str  # of the theta payload it started from
    schema_sha256: str
    dtype: str | None  # of the deltas; None: each parameter's own
    payload: PayloadRef
    tokens: int
    steps: int
    train_loss: float | None
    seconds_s: float


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A bid to do something once: to close a round, or to evaluate it."""

    round: int
    learner: str
    incarnation: int


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    learner: str
    unit: str
    weight: float
    tokens: int
    steps: int
    train_loss: float | None
    seconds_s: float
    size_bytes: int


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    learner: str
    unit: str
    reason: RejectReason
    round: int  # for which it was published: an earlier one than the record's if it came late


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of a round: the only commit point."""

    round: int
    fragment: int
    step: int  # the schedule's inner step of this round
    version: int  # the fragment's last round that changed Θ; INIT if none has
    parent: str | None  # SHA-256 of the body of record round−1
    participants: tuple[Participant, ...]
    rejected: tuple[Rejected, ...]
    theta: PayloadRef
    outer: PayloadRef | None  # outer momentum; None while it is zero
    update: PayloadRef | None = None
    closer: str = ""
    control: int = 0  # control records 1 … n are in effect from here on
    waited_s: float = 0.0  # from the first snapshot seen to the decision to close
    quorum_waited_s: float = 0.0  # from the quorum to the last accepted snapshot: what the grace is estimated from
    close_s: float = 0.0  # reading, merging and writing


class EvalRecord(msgspec.Struct, frozen=True, kw_only=True):
    round: int
    learner: str
    loss: float
    metrics: dict[str, float] = {}
    sample: str = ""
    seconds_s: float = 0.0


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the run's append-only sequence of commands."""

    action: Literal["stop"]
    by: str = ""  # machine name, for people


def encode(body: msgspec.Struct, *, nonce: str) -> bytes:
    """The two lines. Non-finite floats become null, since JSON has none."""
    line = msgspec.json.encode(body)
    envelope = Envelope(nonce=nonce, sha256=hashlib.sha256(line).hexdigest())
    return b"%b\n%b\n" % (line, msgspec.json.encode(envelope))


def decode(data: bytes, type: type[T], *, where: str = "record") -> T:
    """The body. Raises RecordError if the lines, the hash or a field is wrong."""
    if len(data) > MAX_RECORD_BYTES:
        raise RecordError(f"{where}: {len(data)} bytes, more than {MAX_RECORD_BYTES}")
    lines = data.split(b"\n")
    if len(lines) != 3 or lines[2]:
        raise RecordError(f"{where}: not two lines")
    try:
        envelope = msgspec.json.decode(lines[1], type=Envelope)
        if hashlib.sha256(lines[0]).hexdigest() != envelope.sha256:
            raise RecordError(f"{where}: the body's SHA-256 is not the envelope's")
        return msgspec.json.decode(lines[0], type=type)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{where}: {error}") from error


def body_sha256(data: bytes) -> str:
    """SHA-256 of a record's first line: what the next round's `parent` names."""
    return hashlib.sha256(data.split(b"\n", 1)[0]).hexdigest()


def as_json(record: msgspec.Struct) -> dict[str, Any]:
    """A record as plain dicts and lists."""
    built: dict[str, Any] = msgspec.to_builtins(record)
    return built
