"""Every JSON record of the mailbox (FORMAT.md, "Records"); core/lines.py writes and reads them.

Unknown fields are ignored, so that a later version may add some. Values are checked whenever a record is made, decoded ones
included: whoever holds a record can calculate with it, and build keys from it.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import msgspec

from swarm.core.fragments import plan
from swarm.core.ids import WINDOWS_DEVICES, is_learner_id, is_run_id
from swarm.core.keys import is_sha256
from swarm.core.options import MAX_REAL
from swarm.core.specs import Algorithm, DiLoCo, FedAvg
from swarm.core.tensorspec import TensorSpec

FORMAT = 1
INIT = -1  # the round of Θ⁰ in a PayloadRef
MAX_ROUND = 10**10 - 1  # what ten digits of a key can say
MAX_COUNT = 2**53 - 1  # of anything else: every JSON reader keeps it exact, and tokens²/steps is finite
MAX_SEED = 2**63 - 1
MAX_FILES = 1000  # attached to one run
MAX_FILE_BYTES = 1 << 40
MAX_CHUNK_BYTES = 64 << 20  # is held in memory
MAX_METRICS = 100
MAX_CLASSES = 1000  # of a confusion matrix
MAX_UNITS = 10_000  # that train in one round
MAX_CHUNKS = 10**6  # what six digits of a key can say

RejectReason = Literal[
    "stale", "late", "zero_steps", "tokens", "schema", "corrupt", "missing", "nonfinite", "norm", "duplicate", "unsampled"
]
Role = Literal["both", "learner", "syncer", "either"]
"""What an incarnation does: train and close rounds; train; close; train, and close while no syncer is live."""
LearnerPhase = Literal["join", "train", "upload", "wait", "merge", "pull", "evaluate", "paused", "left"]


def _check(
    record: msgspec.Struct,
    *,
    ids: tuple[str, ...] = (),
    hashes: tuple[str, ...] = (),
    rounds: tuple[str, ...] = (),
    counts: tuple[str, ...] = (),
    reals: tuple[str, ...] = (),
    losses: tuple[str, ...] = (),
) -> None:
    """Raises ValueError for the first of the named fields whose value is not what its kind allows.

    `losses` may be any number: one that is not finite becomes null on its way into JSON.
    """
    for name in ids:
        if not is_learner_id(getattr(record, name)):
            raise ValueError(f"{name} must be 1 to 64 of a-z, 0-9 and '-', got {getattr(record, name)!r:.100}")
    for name in hashes:
        if not is_sha256(getattr(record, name)):
            raise ValueError(f"{name} must be 64 lower-case hex digits, got {getattr(record, name)!r:.100}")
    for names, limit in ((rounds, MAX_ROUND), (counts, MAX_COUNT)):
        for name in names:
            value = getattr(record, name)
            if type(value) is not int or not 0 <= value <= limit:
                raise ValueError(f"{name} must be a whole number from 0 to {limit}, got {value!r:.100}")
    for name in reals:
        value = getattr(record, name)
        if type(value) not in (int, float) or not 0 <= value <= MAX_REAL:
            raise ValueError(f"{name} must be a number from 0 to {MAX_REAL:g}, got {value!r:.100}")
    for name in losses:
        value = getattr(record, name)
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"{name} must be a number or null, got {value!r:.100}")


def _check_metrics(record: Snapshot | Participant | EvalRecord) -> None:
    """A metric that is not finite is left out: JSON has no word for it. Raises ValueError for very many."""
    if len(record.metrics) > MAX_METRICS:
        raise ValueError(f"metrics must be at most {MAX_METRICS}, got {len(record.metrics)}")
    finite = {name: float(value) for name, value in record.metrics.items() if math.isfinite(value)}
    msgspec.structs.force_setattr(record, "metrics", finite)


def _check_name(field: str, name: str, *, path: bool = False) -> None:
    """Raises ValueError unless `name` is one short printable line; with `path`, also one that names no other folder."""
    if not 1 <= len(name) <= 200 or not name.isprintable():
        raise ValueError(f"{field} must be 1 to 200 printable characters, got {name!r:.100}")
    if path and (name.startswith(".") or set(name) & set("/\\:")):
        raise ValueError(f"{field} must be a file's name, got {name!r:.100}")


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """`mailbox/record.json`: this folder is a mailbox."""

    id: str
    format: int = FORMAT

    def __post_init__(self) -> None:
        _check_name("id", self.id)


class DataRef(msgspec.Struct, frozen=True, kw_only=True):
    """Data that a run trains on, by name and content."""

    name: str  # a file's name, for people
    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        _check_name("data name", self.name, path=True)
        _check(self, hashes=("sha256",), counts=("size_bytes",))


class TaskRef(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    options: dict[str, int | float | str | bool] = {}
    data: tuple[DataRef, ...] = ()

    def __post_init__(self) -> None:
        _check_name("task name", self.name)
        for option, value in self.options.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"option {option} must be finite, got {value}")


class FileRef(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the run brings along, in chunks of `chunk_bytes`; the last may be shorter. Its keys follow from its hash."""

    name: str  # a file's name: of one component, safe on every file system
    kind: Literal["data", "model"]
    sha256: str
    size_bytes: int
    chunk_bytes: int
    hashes_sha256: str  # of the object that holds the chunks' SHA-256, 32 bytes each, in order

    def __post_init__(self) -> None:
        _check_name("file name", self.name, path=True)
        device = self.name.split(".")[0].rstrip(" ").lower() in WINDOWS_DEVICES
        if device or self.name[-1] in ". " or len(self.name.encode()) > 200 or set(self.name) & set('<>"|?*'):
            raise ValueError(f"file name must be one that every system allows, got {self.name!r:.100}")
        _check(self, hashes=("sha256", "hashes_sha256"), counts=("size_bytes", "chunk_bytes"))
        if not 1 <= self.size_bytes <= MAX_FILE_BYTES:
            raise ValueError(f"size_bytes of a file must be 1 to {MAX_FILE_BYTES}, got {self.size_bytes}")
        if not 1 <= self.chunk_bytes <= MAX_CHUNK_BYTES or self.chunks > MAX_CHUNKS:
            raise ValueError(f"chunk_bytes must be 1 to {MAX_CHUNK_BYTES}, for {MAX_CHUNKS} chunks, got {self.chunk_bytes}")

    @property
    def chunks(self) -> int:
        """How many there are."""
        return -(-self.size_bytes // self.chunk_bytes)


def _check_files(files: tuple[FileRef, ...]) -> None:
    """Raises ValueError if they are too many, or two would be one on a system that ignores case."""
    if len(files) > MAX_FILES:
        raise ValueError(f"files must be at most {MAX_FILES}, got {len(files)}")
    if len({(ref.kind, ref.name.casefold()) for ref in files}) < len(files):
        raise ValueError("files must have different names")


class PayloadRef(msgspec.Struct, frozen=True, kw_only=True):
    """A payload of one fragment. Its key follows from these fields: no record ever holds a path."""

    round: int  # the round that wrote it; INIT for Θ⁰
    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        _check(self, hashes=("sha256",), rounds=() if self.round == INIT else ("round",), counts=("size_bytes",))


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A run, described once."""

    run: str
    name: str
    algorithm: Algorithm
    task: TaskRef
    tensors: tuple[TensorSpec, ...]  # sorted by name
    schema_sha256: str
    init: tuple[PayloadRef, ...]  # Θ⁰, by fragment; empty until it is written
    rounds: int | None = None  # how many the run has; None: until it is stopped
    seed: int = 0
    eval_every: int = 1  # turns through all fragments; 0: never
    checkpoint_every: int = 0  # turns through all fragments after which the parameters are kept for good; 0: never
    checkpoints_kept: int = 3  # the newest of them
    created_by: str = ""  # machine name, for people
    format: int = FORMAT
    files: tuple[FileRef, ...] = ()  # attached, each written before the manifest
    replay: str = ""  # of a seeded FedAvg: what equal bytes hang on where it was made, for people and for comparison
    base: DataRef | None = None  # the file that Θ⁰ was read from, for people; None: a freshly initialised model

    def __post_init__(self) -> None:
        _check_files(self.files)
        if not is_run_id(self.run):
            raise ValueError(f"run must be 4 to 32 of a-z and 0-9, got {self.run!r:.100}")
        _check_name("name", self.name)
        _check(self, hashes=("schema_sha256",), rounds=("eval_every", "checkpoint_every", "checkpoints_kept"))
        if self.rounds is not None and not 1 <= self.rounds <= MAX_ROUND:
            raise ValueError(f"rounds must be 1 to {MAX_ROUND}, got {self.rounds}")
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must be 0 to {MAX_SEED}, got {self.seed}")
        names = [tensor.name for tensor in self.tensors]
        if not names:
            raise ValueError("a model without trainable parameters cannot be trained")
        if any(a >= b for a, b in itertools.pairwise(names)):
            raise ValueError("tensors must be sorted by name, each once")
        fragments = len(self.plan)
        if len(self.init) not in (0, fragments) or any(ref.round != INIT for ref in self.init):
            raise ValueError(f"init must be {fragments} payloads of round {INIT}, one for each fragment")

    @property
    def plan(self) -> tuple[tuple[str, ...], ...]:
        """Names of parameters by fragment."""
        match self.algorithm:
            case DiLoCo(fragments=fragments, partition=partition):
                return plan(self.tensors, fragments, partition)
            case FedAvg():
                return plan(self.tensors, 1, "bytes")


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
    role: Role = "both"

    def __post_init__(self) -> None:
        _check(self, ids=("learner",), counts=("incarnation", "pid"))


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """Lease and telemetry of one incarnation."""

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

    def __post_init__(self) -> None:
        amounts = ("step", "steps", "rss_bytes", "sent_bytes", "received_bytes", "progress_bytes")
        _check(self, rounds=("round",), counts=amounts, reals=("tokens_per_s",), losses=("loss",))
        if not all(map(is_sha256, self.fetching)):
            raise ValueError("fetching must hold SHA-256 in lower-case hex")


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
    finite: bool = True  # False: the delta is not, and the payload is empty
    claim: int = 0  # number of the claim on the unit, for a client of FedAvg
    metrics: dict[str, float] = {}

    def __post_init__(self) -> None:
        _check(
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

    round: int
    learner: str  # "": nobody, whom the next claim may overtake at once
    incarnation: int

    def __post_init__(self) -> None:
        _check(self, ids=("learner",) if self.learner else (), rounds=("round",), counts=("incarnation",))


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
    claim: int = 0
    metrics: dict[str, float] = {}

    def __post_init__(self) -> None:
        amounts, reals = ("tokens", "steps", "size_bytes", "claim"), ("weight", "seconds_s")
        _check(self, ids=("learner", "unit"), counts=amounts, reals=reals, losses=("train_loss", "delta_norm"))
        _check_metrics(self)


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    learner: str
    unit: str
    reason: RejectReason
    round: int  # for which it was published: an earlier one than the record's if it came late
    differs: bool = False  # a duplicate, of a client whose training is replayable, with other bytes than the one that counts

    def __post_init__(self) -> None:
        _check(self, ids=("learner", "unit"), rounds=("round",))


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
        _check(
            self,
            ids=("closer",) if self.closer else (),
            hashes=() if self.parent is None else ("parent",),
            rounds=("round",),
            counts=("fragment", "step", "control"),
            reals=("waited_s", "quorum_waited_s", "close_s"),
        )
        _check_units("clients", self.clients)
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
        _check(self, rounds=("round",))
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
        _check(self, ids=("learner",), rounds=("round",), reals=("seconds_s",), losses=("loss",))
        _check_metrics(self)
        if len(self.confusion) > MAX_CLASSES or any(len(row) != len(self.confusion) for row in self.confusion):
            raise ValueError(f"confusion must be square, of at most {MAX_CLASSES} classes")
        if any(not 0 <= count <= MAX_COUNT for row in self.confusion for count in row):
            raise ValueError(f"confusion must hold counts from 0 to {MAX_COUNT}")


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters after a round, kept beside those that training needs."""

    round: int
    theta: tuple[PayloadRef, ...]  # by fragment; their keys are those of blobs/checkpoints/

    def __post_init__(self) -> None:
        _check(self, rounds=("round",))
        if not self.theta:
            raise ValueError("theta must have a payload for each fragment")


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the run's append-only sequence of commands."""

    action: Literal["stop", "pause", "resume", "extend", "drop", "unknown"]
    """unknown: damaged, or of a later version; it is passed over."""
    by: str = ""  # machine name, for people
    rounds: int | None = None  # extend: how many the run has from now on; None: until it is stopped
    learner: str = ""  # drop: whose incarnations, up to this one, are to leave and are waited for no more
    incarnation: int = 0

    def __post_init__(self) -> None:
        _check(self, ids=("learner",) if self.learner or self.action == "drop" else (), counts=("incarnation",))
        if self.rounds is not None and not 1 <= self.rounds <= MAX_ROUND:
            raise ValueError(f"rounds must be 1 to {MAX_ROUND}, got {self.rounds}")
