"""What is trained. A task is named in the manifest and must be installed here; nothing of it is ever taken from a mailbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from swarm.core.records import DataRef
from swarm.learners.contract import Adapter


class StepResult(msgspec.Struct, frozen=True):
    loss: float  # mean over the batch, before the update
    tokens: int  # what the round's weight counts; samples for tasks without tokens


class EvalResult(msgspec.Struct, frozen=True):
    loss: float  # mean over the held-out part
    metrics: dict[str, float] = {}
    sample: str = ""  # a short printable text that the model made, for language models


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
    spec: type[msgspec.Struct]  # the options, for help and forms: swarm.core.specs.options(spec) lists them

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
    ) -> Trainable:
        """A fresh model, initialised from `seed` alone. `options` and `data` are the manifest's and are checked as if a
        stranger had written them. Raises DataMissing if the data is not here, UsageError for options or data that the
        model cannot train with, DeviceUnavailable."""
        ...
