"""The mailbox's marker and a run's manifest: what is written once, before anybody takes part (FORMAT.md, "Records")."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from typing import Literal

import msgspec

from swarm.core.checks import MAX_ROUND, MAX_SEED, check_fields, check_name, check_texts
from swarm.core.finetune import FineTune
from swarm.core.fragments import plan
from swarm.core.ids import WINDOWS_DEVICES, is_run_id
from swarm.core.specs import Algorithm, ByRounds, DiLoCo, FedAvg
from swarm.core.tensorspec import TensorSpec

FORMAT = 1
INIT = -1  # the round of Θ⁰ in a PayloadRef
MAX_OPTIONS = 1000  # of a task
MAX_OPTION = 100_000  # characters of one
MAX_FILES = 1000  # attached to one run
MAX_FILE_BYTES = 1 << 40
MAX_CHUNK_BYTES = 64 << 20  # is held in memory
MAX_CHUNKS = 10**6  # what six digits of a key can say

_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
"""The grammar of Python's packages: a shell takes no such name for anything else."""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """`mailbox/record.json`: this folder is a mailbox."""

    id: str
    format: int = FORMAT

    def __post_init__(self) -> None:
        check_name("id", self.id)


class DataRef(msgspec.Struct, frozen=True, kw_only=True):
    """Data that a run trains on, by name and content."""

    name: str  # a file's name, for people
    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        check_name("data name", self.name, path=True)
        check_fields(self, hashes=("sha256",), counts=("size_bytes",))


class TaskRef(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    options: dict[str, int | float | str | bool] = {}
    data: tuple[DataRef, ...] = ()
    package: str = ""  # that the task came in where the run was made, for people; "": swarm's own

    def __post_init__(self) -> None:
        check_name("task name", self.name)
        if self.package and not _PACKAGE.fullmatch(self.package):
            raise ValueError(f"package must be the name of one, got {self.package!r:.100}")
        if len(self.options) > MAX_OPTIONS or any(len(option) > 200 for option in self.options):
            raise ValueError(f"options must be at most {MAX_OPTIONS}, with names of at most 200 characters")
        for option, value in self.options.items():
            if isinstance(value, str) and len(value) > MAX_OPTION:
                raise ValueError(f"option {option} must be at most {MAX_OPTION} characters, got {len(value)}")
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
        check_name("file name", self.name, path=True)
        device = self.name.split(".")[0].rstrip(" ").lower() in WINDOWS_DEVICES
        if device or self.name[-1] in ". " or len(self.name.encode()) > 200 or set(self.name) & set('<>"|?*'):
            raise ValueError(f"file name must be one that every system allows, got {self.name!r:.100}")
        check_fields(self, hashes=("sha256", "hashes_sha256"), counts=("size_bytes", "chunk_bytes"))
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
        check_fields(self, hashes=("sha256",), rounds=() if self.round == INIT else ("round",), counts=("size_bytes",))


class ModelRef(msgspec.Struct, frozen=True, kw_only=True):
    """A base model that a run fine-tunes: the files of its folder, each known by its content."""

    name: str  # a Hugging Face repository, or its folder's name; for people, and to look for it in a cache
    revision: str = ""  # of the repository; "": a folder
    files: tuple[DataRef, ...] = ()

    def __post_init__(self) -> None:
        check_name("model", self.name)
        if self.revision:
            check_name("revision", self.revision, path=True)
        if not 1 <= len(self.files) <= MAX_FILES or len({ref.name.casefold() for ref in self.files}) < len(self.files):
            raise ValueError(f"files of a model must be 1 to {MAX_FILES}, each name once")

    @property
    def sha256(self) -> str:
        """Over the names and hashes of its files."""
        lines = sorted(f"{ref.name} {ref.sha256}\n" for ref in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A run, described once."""

    run: str
    name: str
    algorithm: Algorithm
    task: TaskRef
    tensors: tuple[TensorSpec, ...] = ()  # sorted by name; none of an MLX-LM fine-tuning, whose parameters no round exchanges
    schema_sha256: str = ""
    init: tuple[PayloadRef, ...] = ()  # Θ⁰, by fragment; empty until it is written
    rounds: int | None = None  # how many the run has; None: until it is stopped
    seed: int = 0
    eval_every: int = 1  # turns through all fragments; 0: never
    checkpoint_every: int = 0  # turns through all fragments after which the parameters are kept for good; 0: never
    checkpoints_kept: int = 3  # the newest of them
    created_by: str = ""  # machine name, for people
    format: int = FORMAT
    files: tuple[FileRef, ...] = ()  # attached, each written before the manifest
    replay: str = ""  # of a seeded FedAvg: what equal bytes hang on where it was made, for people and for comparison
    base: DataRef | None = None  # the file that Θ⁰, or the adapter, was read from; None: freshly initialised
    model: ModelRef | None = None  # what is fine-tuned
    share: str = ""  # URL of the share that holds the mailbox, smb://nas/swarm: for machines that have not mounted it

    def __post_init__(self) -> None:
        _check_files(self.files)
        if not is_run_id(self.run):
            raise ValueError(f"run must be 4 to 32 of a-z and 0-9, got {self.run!r:.100}")
        check_name("name", self.name)
        check_texts(self, "created_by", "replay")
        if self.share:
            check_name("share", self.share)
        check_fields(self, rounds=("eval_every", "checkpoint_every", "checkpoints_kept"))
        if self.rounds is not None and not 1 <= self.rounds <= MAX_ROUND:
            raise ValueError(f"rounds must be 1 to {MAX_ROUND}, got {self.rounds}")
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must be 0 to {MAX_SEED}, got {self.seed}")
        if isinstance(self.algorithm, FineTune):
            if self.tensors or self.schema_sha256 or self.init or self.rounds is not None:
                raise ValueError("an MLX-LM fine-tuning has no tensors, no init and no rounds of its own")
            if self.model is None:
                raise ValueError("an MLX-LM fine-tuning must name its model")
            return
        check_fields(self, hashes=("schema_sha256",))
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
            case FineTune():
                return ()

    @property
    def by_rounds(self) -> ByRounds:
        """The algorithm of a run in rounds. Raises ValueError for any other."""
        if isinstance(self.algorithm, FineTune):
            raise ValueError(f"run {self.name} is an MLX-LM fine-tuning, which has no rounds")
        return self.algorithm
