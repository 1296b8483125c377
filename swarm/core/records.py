"""Every JSON record of a run in rounds (FORMAT.md, "Records"); core/lines.py writes and reads them. The manifest is in
core/manifest.py, the records of a data-parallel job in core/ranks.py.

Unknown fields are ignored, so that a later version may add some. Values are checked whenever a record is made, decoded ones
included: whoever holds a record can calculate with it, and build keys from it.
"""

from __future__ import annotations

import itertools
import math
from typing import ClassVar, Literal

import msgspec

from swarm.core.checks import MAX_COUNT, MAX_ROUND, check_fields, check_texts
from swarm.core.ids import is_learner_id
from swarm.core.keys import is_sha256
from swarm.core.manifest import INIT, PayloadRef

MAX_METRICS = 100
MAX_METRIC_NAME = 200  # characters
MAX_SAMPLE = 100_000  # characters of what a model wrote, for people
MAX_FETCHING = 10_000  # payloads at a time
MAX_CLASSES = 1000  # of a confusion matrix
MAX_UNITS = 10_000  # that train in one round
MAX_REASON = 300  # characters of why a machine cannot take part
SMALL_BYTES = 1 << 20  # no record that a learner writes of itself is larger

RejectReason = Literal[
    "stale", "late", "zero_steps", "tokens", "schema", "corrupt", "missing", "nonfinite", "norm", "duplicate", "unsampled"
]
Role = Literal["both", "learner", "syncer", "either"]
"""What an incarnation does: train and close rounds; train; close; train, and close while no syncer is live."""
LearnerPhase = Literal["join", "train", "upload", "wait", "merge", "pull", "evaluate", "paused", "left"]


def _check_metrics(record: Snapshot | Participant | EvalRecord) -> None:
    """A metric that is not finite is left out, since JSON has no word for it, and so is one with an endless name. Raises
    ValueError for very many."""
    if len(record.metrics) > MAX_METRICS:
        raise ValueError(f"metrics must be at most {MAX_METRICS}, got {len(record.metrics)}")
    kept = {k: float(v) for k, v in record.metrics.items() if math.isfinite(v) and len(k) <= MAX_METRIC_NAME}
    msgspec.structs.force_setattr(record, "metrics", kept)


class LearnerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a learner id: who holds it, and how to tell that the holder is gone."""

    MAX_BYTES: ClassVar[int] = SMALL_BYTES

    learner: str
    incarnation: int
    machine: str  # stable id of the machine
    machine_name: str
    boot: str  # id of the machine's current boot
    pid: int
    process: str  # identifies the process beside its pid: when it started
    version: str  # of swarm
    device: str = ""  # for people: framework and device
    memory_bytes: int = 0  # that its device has: a card's own, else the machine's; 0: not known
    role: Role = "both"

    def __post_init__(self) -> None:
        check_fields(self, ids=("learner",), counts=("incarnation", "pid", "memory_bytes"))
        check_texts(self, "machine", "machine_name", "boot", "process", "version", "device")


class JoinRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a machine that would take part cannot, in its own words. Nothing but what people see hangs on it."""

    MAX_BYTES: ClassVar[int] = SMALL_BYTES

    machine: str  # stable id of the machine
    machine_name: str
    version: str  # of swarm
    reason: str
    device: str = ""  # framework and device that it would train with, as far as a person chose them
    role: Role = "both"

    def __post_init__(self) -> None:
        check_fields(self, ids=("machine",))
        check_texts(self, "machine_name", "version", "device")
        if not 1 <= len(self.reason) <= MAX_REASON:
            raise ValueError(f"reason must be 1 to {MAX_REASON} characters, got {len(self.reason)}")


class RankBeat(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank of a data-parallel job did since the beat before."""

    generation: int
    rank: int
    size: int  # ranks of the generation
    share: int = 1  # of a batch, in proportion to the others'
    compute_s: float = 0.0  # of its steps: forward and backward passes here,
    waiting_s: float = 0.0  # waiting for slower ranks,
    exchange_s: float = 0.0  # summing gradients
    update_s: float = 0.0  # and the optimizer's step
    microbatch_rows: int = 0  # that go through the model at once
    memory_bytes: int = 0  # of the framework, at most so far

    def __post_init__(self) -> None:
        amounts = ("generation", "rank", "size", "share", "microbatch_rows", "memory_bytes")
        check_fields(self, counts=amounts, reals=("compute_s", "waiting_s", "exchange_s", "update_s"))
        if self.rank >= max(1, self.size):
            raise ValueError(f"rank must be below size, {self.size}, got {self.rank}")


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """Lease and telemetry of one incarnation."""

    MAX_BYTES: ClassVar[int] = SMALL_BYTES

    phase: LearnerPhase
    role: Role = "both"
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
    rank: RankBeat | None = None  # of a data-parallel job, while a rank runs here
    doing: str = ""  # of a data-parallel job: what the phase is about, for people
    held: str = ""  # why its machine holds still for its owner, in words: nobody waits for it then
    alive_s: float = 0.0  # since this incarnation joined, pauses left out,
    trained_s: float = 0.0  # and what of it went into inner steps: goodput is their ratio
    power_w: float | None = None  # that its machine draws for it now; None: nothing here tells
    energy_wh: float | None = None  # drawn by this incarnation so far

    def __post_init__(self) -> None:
        amounts = ("step", "steps", "rss_bytes", "sent_bytes", "received_bytes", "progress_bytes")
        reals = ("tokens_per_s", "alive_s", "trained_s")
        measured = tuple(name for name in ("power_w", "energy_wh") if getattr(self, name) is not None)
        check_fields(self, rounds=("round",), counts=amounts, reals=(*reals, *measured), losses=("loss",))
        for field, words in (("doing", self.doing), ("held", self.held)):
            if len(words) > 200:
                raise ValueError(f"{field} must be at most 200 characters, got {len(words)}")
        if len(self.fetching) > MAX_FETCHING or not all(map(is_sha256, self.fetching)):
            raise ValueError(f"fetching must hold SHA-256 in lower-case hex, at most {MAX_FETCHING}")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A published delta."""

    MAX_BYTES: ClassVar[int] = SMALL_BYTES

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
    finite: bool = True  # False: the delta is not, and the payload is empty
    claim: int = 0  # number of the claim on the unit, for a client of FedAvg
    metrics: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_fields(
            self,
            ids=("learner", "unit"),
            hashes=("base_sha256", "schema_sha256"),
            rounds=("round",),
            counts=("fragment", "incarnation", "tokens", "steps", "claim"),
            reals=("seconds_s",),
            losses=("train_loss",),
        )
        _check_metrics(self)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A bid to do something once: to close a round, to evaluate it, or to train a client for it."""

    MAX_BYTES: ClassVar[int] = SMALL_BYTES

    round: int
    learner: str  # "": nobody, whom the next claim may overtake at once
    incarnation: int

    def __post_init__(self) -> None:
        check_fields(self, ids=("learner",) if self.learner else (), rounds=("round",), counts=("incarnation",))


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    learner: str
    unit: str
    weight: float
    tokens: int  # in the run's weight_unit
    steps: int
    train_loss: float | None
    seconds_s: float
    size_bytes: int
    delta_norm: float | None = None  # L2, of the fragment's delta; for people
    cosine: float | None = None  # between this delta and the merged one, -1 to 1; for people
    claim: int = 0
    metrics: dict[str, float] = {}

    def __post_init__(self) -> None:
        amounts, reals = ("tokens", "steps", "size_bytes", "claim"), ("weight", "seconds_s")
        check_fields(self, ids=("learner", "unit"), counts=amounts, reals=reals, losses=("train_loss", "delta_norm", "cosine"))
        _check_metrics(self)


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    learner: str
    unit: str
    reason: RejectReason
    round: int  # for which it was published: an earlier one than the record's if it came late
    differs: bool = False  # a duplicate, of a client whose training is replayable, with other bytes than the one that counts

    def __post_init__(self) -> None:
        check_fields(self, ids=("learner", "unit"), rounds=("round",))


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
    reason: str = ""  # why it closed when it did, for people
    clients: tuple[str, ...] = ()  # private clients of FedAvg: those that train in the next round

    def __post_init__(self) -> None:
        check_fields(
            self,
            ids=("closer",) if self.closer else (),
            hashes=() if self.parent is None else ("parent",),
            rounds=("round",),
            counts=("fragment", "step", "control"),
            reals=("waited_s", "quorum_waited_s", "close_s"),
        )
        _check_units("clients", self.clients)
        if len(self.participants) > MAX_UNITS or len(self.rejected) > 10 * MAX_UNITS:
            raise ValueError(f"participants must be at most {MAX_UNITS}, rejected ten times as many")
        if len(self.reason) > 200:
            raise ValueError(f"reason must be at most 200 characters, got {len(self.reason)}")
        if not INIT <= self.version <= self.round:
            raise ValueError(f"version must be {INIT} to {self.round}, the round, got {self.version}")
        if any(ref is not None and ref.round > self.round for ref in (self.theta, self.outer, self.update)):
            raise ValueError(f"theta, outer and update must not be of a round after {self.round}")


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The private clients that train in a round which no round record names them for: round 0, as a rule."""

    round: int
    clients: tuple[str, ...]

    def __post_init__(self) -> None:
        check_fields(self, rounds=("round",))
        _check_units("clients", self.clients)
        if not self.clients:  # they would be waited for, for ever
            raise ValueError("clients must be one, at least")


def _check_units(field: str, units: tuple[str, ...]) -> None:
    """Raises ValueError unless they are ids, sorted, each once, and not too many."""
    if len(units) > MAX_UNITS or not all(map(is_learner_id, units)) or any(a >= b for a, b in itertools.pairwise(units)):
        raise ValueError(f"{field} must be ids, sorted, each once, got {units!r:.100}")


class EvalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the model of a round is worth. A metric that is not finite is left out: JSON has no word for it."""

    round: int
    learner: str
    loss: float | None  # None: not finite, the model has diverged
    metrics: dict[str, float] = {}
    sample: str = ""
    seconds_s: float = 0.0
    confusion: tuple[tuple[int, ...], ...] = ()  # [label][prediction]: held-out samples; of a classifier

    def __post_init__(self) -> None:
        check_fields(self, ids=("learner",), rounds=("round",), reals=("seconds_s",), losses=("loss",))
        _check_metrics(self)
        msgspec.structs.force_setattr(self, "sample", self.sample[:MAX_SAMPLE])
        if len(self.confusion) > MAX_CLASSES or any(len(row) != len(self.confusion) for row in self.confusion):
            raise ValueError(f"confusion must be square, of at most {MAX_CLASSES} classes")
        if any(not 0 <= count <= MAX_COUNT for row in self.confusion for count in row):
            raise ValueError(f"confusion must hold counts from 0 to {MAX_COUNT}")


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters after a round, kept beside those that training needs."""

    round: int
    theta: tuple[PayloadRef, ...]  # by fragment; their keys are those of blobs/checkpoints/

    def __post_init__(self) -> None:
        check_fields(self, rounds=("round",))
        if not self.theta:
            raise ValueError("theta must have a payload for each fragment")


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the run's append-only sequence of commands."""

    MAX_BYTES: ClassVar[int] = SMALL_BYTES

    action: Literal["stop", "pause", "resume", "extend", "drop", "unknown"]
    """unknown: damaged, or of a later version; it is passed over."""
    by: str = ""  # machine name, for people
    rounds: int | None = None  # extend: how many the run has from now on; None: until it is stopped
    learner: str = ""  # drop: whose incarnations, up to this one, are to leave and are waited for no more
    incarnation: int = 0

    def __post_init__(self) -> None:
        check_fields(self, ids=("learner",) if self.learner or self.action == "drop" else (), counts=("incarnation",))
        check_texts(self, "by")
        if self.rounds is not None and not 1 <= self.rounds <= MAX_ROUND:
            raise ValueError(f"rounds must be 1 to {MAX_ROUND}, got {self.rounds}")
