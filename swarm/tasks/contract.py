"""What is trained. A task is named in the manifest and must be installed here; nothing of it is ever taken from a mailbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from swarm.core.manifest import DataRef, ModelRef
from swarm.core.specs import FedAvg
from swarm.learners.contract import Adapter

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StepResult(msgspec.Struct, frozen=True):
    loss: float  # mean over the batch, before the update
    tokens: int  # what the round's weight counts; samples for tasks without tokens
    samples: int = 0  # rows of the batch


class EvalResult(msgspec.Struct, frozen=True):
    loss: float  # mean over the held-out part
    metrics: dict[str, float] = {}
    sample: str = ""  # a short printable text that the model made, for language models
    confusion: tuple[tuple[int, ...], ...] = ()  # [label][prediction]: held-out samples; of a classifier


class Trainable(Protocol):
    """One learner's model, data and inner optimizer, in one framework, on one device.

    Its methods may be called from different threads, one at a time. None of them touches a framework's global random
    state.
    """

    adapter: Adapter
    framework: str
    device: str  # what was chosen: 'cpu', 'mps', 'cuda:0', 'metal'

    def use_stream(self, learner: str, incarnation: int) -> None:
        """Draw batches from the stream (seed, learner, incarnation) from now on, from its beginning: two different streams
        are independent, so that no two learners, and no learner that was restarted, train on the same sequence of
        batches. Until then, batches come from a stream that is no learner's."""
        ...

    def step(self) -> StepResult:
        """One inner step on the learner's own stream of data."""
        ...

    def evaluate(self) -> EvalResult:
        """Loss on the held-out part, which is the same for all learners of a run; the model, the optimizer and the
        learner's stream are left as they were."""
        ...


@dataclass(frozen=True)
class TaskState:
    """Where a Trainable's inner loop stands, its parameters left out: what a restarted learner goes on from."""

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """On the host, of any NumPy dtype of numbers or truth values. Views of what is trained, where it can be: valid only
    until the next training step or load."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What JSON can hold, with text as keys."""


@runtime_checkable
class Resumable(Protocol):
    """A Trainable that can go on where another one, of the same task and options, stood. A task's need not be one: of such
    a learner only the parameters outlive a restart."""

    def state(self) -> TaskState:
        """The inner optimizer, the position in the learner's stream, and whatever else of `step` is kept between two
        steps, the parameters left out."""
        ...

    def load(self, state: TaskState) -> None:
        """Stand where `state` was taken. With the parameters of that moment applied too, all further steps are, on the same
        machine, the ones that would have followed, bit by bit. The arrays are the caller's again afterwards. Raises
        StateMismatch for a state of another task, framework, optimizer or model size, before anything is changed."""
        ...


class ClientStep(msgspec.Struct, frozen=True):
    """One step on a client's samples."""

    loss: float  # mean over the batch, before the update
    samples: int
    steps: int  # that the client takes in this round, this one included


@runtime_checkable
class Federated(Protocol):
    """A Trainable whose data is dealt out to clients (FedAvg)."""

    def deal(self, spec: FedAvg, *, seed: int) -> tuple[int, ...]:
        """Deal the training samples out to `spec.clients` logical clients as `spec.partition` says; of a private run they all
        are this machine's one client's. Returns how many each has: none is lost, none is given twice, some may have none. The
        same in every framework. Raises UsageError; also if clients cannot be trained here as `spec` says."""
        ...

    def train_client(self, spec: FedAvg, *, index: int, unit: str, round: int) -> Iterator[ClientStep]:
        """Train `spec.local_epochs` epochs on the samples of client `index`, a step at a time, from the parameters (and
        averaged buffers) that the model holds, with an optimizer of its own. What is drawn, the order of the samples included,
        follows from (`spec.training_seed`, `unit`, round, epoch) alone; without that seed from the system's entropy. The global
        random states of Python, NumPy and the frameworks, and the modes of the model's modules, are between two steps, and
        after the last, what they were. May be given up between two steps. Raises NotFinite, before an update, for a gradient
        that is not."""
        ...

    def measure_client(self, index: int) -> Mapping[str, float]:
        """What the model, as it was trained on client `index`, is worth on that client's own samples: `accuracy`, for a
        classifier. Empty for a client without any. Nothing changes."""
        ...


class Generator(Protocol):
    """A Trainable that can also write text."""

    def generate(self, prompt: bytes, *, max_tokens: int, temperature: float, seed: int) -> Iterator[bytes]:
        """What follows `prompt`, piece by piece as it is made: at most `max_tokens` tokens, without the prompt. A piece may
        end within a UTF-8 character. Temperature 0 takes the likeliest token every time; otherwise the seed decides.
        Raises UsageError, before the first piece, for a negative length or temperature."""
        ...


class Task(Protocol):
    """Importing the module that holds a task must import neither NumPy nor a framework: command line and screens list
    tasks and check options."""

    name: str
    summary: str  # one line for help and forms
    frameworks: tuple[str, ...]  # in order of preference
    spec: type[msgspec.Struct]  # the options, for help and forms: swarm.core.options.options(spec) lists them
    # A task may have `packages`, too: what it needs beside its framework, by module the extra of swarm that brings it.

    def options(self, given: Mapping[str, str]) -> dict[str, Any]:
        """All options of the task, defaults filled in: what the manifest holds. Raises UsageError for an unknown or wrong
        one."""
        ...

    def data(self, path: Path | None) -> list[DataRef]:
        """The data that a run trains on: the shipped one, or the file `path`, by name, SHA-256 and size. Empty for a task
        that makes its own. Raises UsageError for a file that cannot be read or used, DataMissing if none is shipped
        here."""
        ...

    def build(
        self,
        *,
        framework: str,
        device: str,
        options: Mapping[str, Any],
        data: list[DataRef],
        data_path: Path | None,
        seed: int,
        batch_size: int | None = None,
        buffers: bool = False,
        private: bool = False,
    ) -> Trainable:
        """A fresh model, initialised from `seed` alone. It trains on `batch_size` rows a step, its part of a batch that a
        run's learners share; None: what the options say. `buffers`: whether the adapter holds what is not trained, too:
        BatchNorm's running statistics and the like. `private`: the data at `data_path` is this machine's own, and need not be
        what `data` says. A task may leave these three arguments out (registry.build). One that fine-tunes a base model takes
        `model_path`, too: a folder with the files that the manifest names; without data it is then built to write only.
        `options` and `data` are the manifest's and are checked as if a stranger had written them. Raises DataMissing if the
        data is not here, UsageError for options or data that the model cannot train with, DeviceUnavailable."""
        ...


@runtime_checkable
class Exporter(Protocol):
    """A Task whose parameters other tools read from a folder, with more files beside them."""

    def exported(self, options: Mapping[str, Any], *, model: ModelRef | None) -> tuple[str, Mapping[str, bytes]]:
        """What the Safetensors file is called there, and the other files. `options`, `model`: the manifest's. Needs no
        framework. Raises UsageError."""
        ...
