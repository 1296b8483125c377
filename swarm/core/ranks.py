"""Records of a data-parallel job's generations (FORMAT.md, "Generations"): who is there, over which links, and where each rank
stands. Written once each, below `ranks/<generation>/`; what one generation wrote says nothing in another."""

from __future__ import annotations

import ipaddress
from typing import Literal, TypeAlias

import msgspec

from swarm.core.checks import MAX_COUNT, MAX_SEED, check_fields, check_name
from swarm.core.finetune import MAX_RANKS
from swarm.core.keys import is_sha256

MAX_GENERATION = 10**6 - 1  # what six digits of a key can say
MAX_ADDRESSES = 64  # of one machine
MAX_PORTS = 64  # that one machine offers
MAX_HASHES = 1000  # of one machine
MAX_SAMPLE = 2000  # characters of what a model wrote
MAX_POINTS = 1000  # in one part of a job's log
REASON = 200  # characters of what is said to people

Kind: TypeAlias = Literal["thunderbolt", "ethernet", "wifi", "other", "vpn", "loopback"]
"""Of a network interface, as far as its name tells."""
Backend: TypeAlias = Literal["jaccl", "nccl", "ring", "mpi"]
"""Of mlx.distributed, the best first."""
Ending: TypeAlias = Literal["rendezvous", "lost", "regroup", "finished", "stopped"]
"""Why a generation ended: it never started; a rank was lost; others joined, or shares changed; the job is done; it was told to,
or cannot go on."""
GOES_ON: frozenset[Ending] = frozenset({"rendezvous", "lost", "regroup"})
"""Endings after which another generation follows."""


def is_address(text: str) -> bool:
    """Whether `text` is an IPv4 address as it is written everywhere: the ring knows no other."""
    try:
        return str(ipaddress.IPv4Address(text)) == text
    except ValueError:
        return False


def is_port(number: object) -> bool:
    return type(number) is int and 1 <= number <= 65535


def _check_address(address: str, *ports: int) -> None:
    if not is_address(address):
        raise ValueError(f"address must be one of IPv4, got {address!r:.100}")
    if not all(map(is_port, ports)):
        raise ValueError(f"a port must be a whole number from 1 to 65535, got {ports!r:.100}")


def _check_generation(generation: int) -> None:
    if type(generation) is not int or not 0 <= generation <= MAX_GENERATION:
        raise ValueError(f"generation must be a whole number from 0 to {MAX_GENERATION}, got {generation!r:.100}")


def _check_reason(field: str, text: str) -> None:
    if len(text) > REASON or (text and not text.isprintable()):
        raise ValueError(f"{field} must be at most {REASON} printable characters, got {text!r:.100}")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a machine can be reached, if it can."""

    address: str
    interface: str  # the system's name for it
    kind: Kind
    probe_port: int  # where its agent answers probes at this address
    speed_bytes_per_s: float = 0.0  # as the system tells; 0: it does not

    def __post_init__(self) -> None:
        _check_address(self.address, self.probe_port)
        check_name("interface", self.interface)
        check_fields(self, reals=("speed_bytes_per_s",))


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine's agent announces for one generation."""

    generation: int
    learner: str
    incarnation: int
    machine_name: str  # for people
    addresses: tuple[Address, ...]
    ports: tuple[int, ...]  # offered to its rank: free at all of its addresses when it announced them
    nonce: str  # proves to its prober who knocks, and to who knocks that this is its prober
    memory_bytes: int  # that a rank may take
    versions: dict[str, str] = {}  # of swarm, mlx, mlx-lm
    hashes: dict[str, str] = {}  # SHA-256 by file: data, tokenizer, configuration, base weights
    backends: tuple[Backend, ...] = ()  # that it can do
    tokens_per_s: float = 0.0  # of its own training, measured; 0: not known

    def __post_init__(self) -> None:
        _check_generation(self.generation)
        check_fields(self, ids=("learner",), counts=("incarnation", "memory_bytes"), reals=("tokens_per_s",))
        check_name("machine_name", self.machine_name)
        if len(self.addresses) > MAX_ADDRESSES or len({a.address for a in self.addresses}) < len(self.addresses):
            raise ValueError(f"addresses must be at most {MAX_ADDRESSES}, each once")
        if len(self.ports) > MAX_PORTS or not all(map(is_port, self.ports)) or len(set(self.ports)) < len(self.ports):
            raise ValueError(f"ports must be at most {MAX_PORTS} whole numbers from 1 to 65535, each once")
        if not 16 <= len(self.nonce) <= 64 or not self.nonce.isalnum() or not self.nonce.isascii():
            raise ValueError("nonce must be 16 to 64 letters and digits")
        if len(self.versions) > 20 or len(self.hashes) > MAX_HASHES:
            raise ValueError(f"versions must be at most 20, hashes at most {MAX_HASHES}")
        for name, version in self.versions.items():
            check_name("package", name)
            _check_reason("version", version)
        for name, sha256 in self.hashes.items():
            check_name("file name", name)
            if not is_sha256(sha256):
                raise ValueError(f"hash of a file must be 64 lower-case hex digits, got {sha256!r:.100}")


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one knock at one address."""

    address: str  # the target's
    source: str = ""  # the prober's own address on that way; "": not reached
    rtt_s: float = 0.0
    bytes_per_s: float = 0.0  # from the target to the prober
    error: str = ""  # why it was not reached, for people

    def __post_init__(self) -> None:
        _check_address(self.address)
        if self.source:
            _check_address(self.source)
        check_fields(self, reals=("rtt_s", "bytes_per_s"))
        _check_reason("error", self.error)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """How one machine reaches another: one link for each of the target's addresses."""

    generation: int
    learner: str
    incarnation: int
    target: str
    target_incarnation: int
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        _check_generation(self.generation)
        check_fields(self, ids=("learner", "target"), counts=("incarnation", "target_incarnation"))
        if len(self.links) > MAX_ADDRESSES or len({link.address for link in self.links}) < len(self.links):
            raise ValueError(f"links must be at most {MAX_ADDRESSES}, one for each address")


class CheckpointAt(msgspec.Struct, frozen=True, kw_only=True):
    """Names a checkpoint of the job: the generation that wrote it, and the step it was written after."""

    generation: int
    step: int

    def __post_init__(self) -> None:
        _check_generation(self.generation)
        check_fields(self, counts=("step",))


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a machine cannot take part, in words."""

    learner: str
    subject: str  # what it is about: a package, a file, "memory", "ports", "network", "backend", "place"
    reason: str

    def __post_init__(self) -> None:
        check_fields(self, ids=("learner",))
        check_name("subject", self.subject)
        _check_reason("reason", self.reason)

    def __str__(self) -> str:
        return f"{self.learner}: {self.reason}"


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: its number is its place in the plan."""

    learner: str
    incarnation: int
    address: str  # the one at which all others reach it, and the only one to which it binds
    port: int
    share: int = 1  # of the global batch, in proportion to the others'
    rdma: tuple[str, ...] = ()  # JACCL: its RDMA device towards each rank; "" towards itself

    def __post_init__(self) -> None:
        check_fields(self, ids=("learner",), counts=("incarnation", "share"))
        _check_address(self.address, self.port)
        if self.share < 1:
            raise ValueError(f"share must be >= 1, got {self.share}")
        if len(self.rdma) > MAX_RANKS or not all(len(d) <= 64 and (d.isprintable() or not d) for d in self.rdma):
            raise ValueError(f"rdma must be at most {MAX_RANKS} names of devices")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One generation's ranks, in order. There is one, and everybody adopts it."""

    generation: int
    leader: str
    seats: tuple[Seat, ...]
    backend: Backend
    seed: int
    start: CheckpointAt | None = None  # what it goes on from; None: the beginning
    start_s: float = 120.0  # how long every observer waits for all ranks to start, on its own clock
    refused: tuple[Refusal, ...] = ()  # those that are there and take no part

    def __post_init__(self) -> None:
        _check_generation(self.generation)
        check_fields(self, ids=("leader",), reals=("start_s",))
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must be 0 to {MAX_SEED}, got {self.seed}")
        if not 1 <= len(self.seats) <= MAX_RANKS:
            raise ValueError(f"seats must be 1 to {MAX_RANKS}, got {len(self.seats)}")
        if len({seat.learner for seat in self.seats}) < len(self.seats):
            raise ValueError("seats must be of different learners")
        if len({(seat.address, seat.port) for seat in self.seats}) < len(self.seats):
            raise ValueError("seats must have different places")
        if any(len(seat.rdma) != (len(self.seats) if self.backend == "jaccl" else 0) for seat in self.seats):
            raise ValueError("rdma must name a device for each rank with jaccl, and none without")
        if self.start is not None and self.start.generation >= self.generation:
            raise ValueError("start must be of an earlier generation")
        if len(self.refused) > MAX_RANKS:
            raise ValueError(f"refused must be at most {MAX_RANKS}")

    def rank(self, learner: str, incarnation: int) -> int | None:
        """The rank of this very incarnation; None: it has none."""
        for rank, seat in enumerate(self.seats):
            if (seat.learner, seat.incarnation) == (learner, incarnation):
                return rank
        return None


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A machine has read the plan and has tried its own place; or says why its rank cannot start."""

    generation: int
    learner: str
    incarnation: int
    refusal: str = ""

    def __post_init__(self) -> None:
        _check_generation(self.generation)
        check_fields(self, ids=("learner",), counts=("incarnation",))
        _check_reason("refusal", self.refusal)


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's process listens at its place; the last one's is part of the whole group, and with it all the others."""

    generation: int
    learner: str
    incarnation: int
    pid: int

    def __post_init__(self) -> None:
        _check_generation(self.generation)
        check_fields(self, ids=("learner",), counts=("incarnation", "pid"))


class GenerationEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing that this generation writes from here on is read."""

    generation: int
    ending: Ending
    by: str  # the learner that wrote it
    reason: str = ""
    checkpoint: CheckpointAt | None = None  # finished, stopped: that of the adapters that count

    def __post_init__(self) -> None:
        _check_generation(self.generation)
        check_fields(self, ids=("by",))
        _check_reason("reason", self.reason)
        if self.checkpoint is not None and self.checkpoint.generation > self.generation:
            raise ValueError("checkpoint must not be of a later generation")

    @property
    def goes_on(self) -> bool:
        """Whether another generation follows."""
        return self.ending in GOES_ON


class TrainPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What MLX-LM reports every `steps_per_report` iterations, over all ranks."""

    step: int  # optimizer steps done
    iteration: int
    train_loss: float | None  # mean over all tokens since the point before; None: there were none, or it is not finite
    learning_rate: float
    tokens_per_s: float
    trained_tokens: int
    epoch: float

    def __post_init__(self) -> None:
        amounts = ("step", "iteration", "trained_tokens")
        check_fields(self, counts=amounts, reals=("learning_rate", "tokens_per_s", "epoch"), losses=("train_loss",))


class EvalPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The loss on validation or test rows, over their tokens."""

    part: Literal["valid", "test"]
    step: int
    iteration: int
    loss: float | None  # None: not finite
    tokens: int
    seconds_s: float
    sample: str = ""  # what the model wrote then, for people

    def __post_init__(self) -> None:
        check_fields(self, counts=("step", "iteration", "tokens"), reals=("seconds_s",), losses=("loss",))
        msgspec.structs.force_setattr(self, "sample", self.sample[:MAX_SAMPLE])


class JobLog(msgspec.Struct, frozen=True, kw_only=True):
    """The n-th part of what a generation tells of its training, by the machine of rank 0. Steps after the checkpoint that the
    next generation starts from are made again there."""

    generation: int
    n: int
    points: tuple[TrainPoint, ...] = ()
    evals: tuple[EvalPoint, ...] = ()
    shares: tuple[int, ...] = ()  # of each rank in a batch, from here on; none: as before

    def __post_init__(self) -> None:
        _check_generation(self.generation)
        check_fields(self, counts=("n",))
        if len(self.points) > MAX_POINTS or len(self.evals) > MAX_POINTS:
            raise ValueError(f"points and evals must be at most {MAX_POINTS}")
        if len(self.shares) > MAX_RANKS or not all(type(share) is int and 0 <= share <= MAX_COUNT for share in self.shares):
            raise ValueError(f"shares must be at most {MAX_RANKS} whole numbers, not negative")


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that lies in the mailbox whole, under a key that holds its hash."""

    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        check_fields(self, hashes=("sha256",), counts=("size_bytes",))


class JobCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All that a job goes on from, after a step of a generation; written after its files."""

    generation: int
    step: int
    iteration: int
    by: str  # the learner whose rank wrote it
    state: StoredFile  # trainables, optimizer state and position (parallel/checkpoint.py)
    adapter: StoredFile  # the trainables alone, as MLX-LM's tools read them

    def __post_init__(self) -> None:
        _check_generation(self.generation)
        check_fields(self, ids=("by",), counts=("step", "iteration"))

    @property
    def at(self) -> CheckpointAt:
        return CheckpointAt(generation=self.generation, step=self.step)


def in_words(text: str) -> str:
    """`text` as a reason: one printable line, cut to what a record holds."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= REASON else line[: REASON - 1] + "…"
