"""What is trained. A task is named in the manifest and must be installed here; nothing of it is ever taken from a mailbox."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from swarm.core.records import DataRef
from swarm.learners.contract import Adapter


class StepResult(msgspec.Struct, frozen=True):
    loss: float
    tokens: int  # what the round's weight counts; samples for tasks without tokens


class EvalResult(msgspec.Struct, frozen=True):
    loss: float
    metrics: dict[str, float] = {}
    sample: str = ""  # a text that the model made, for language models


class Trainable(Protocol):
    """One learner's model, data and inner optimizer, in one framework, on one device."""

    adapter: Adapter
    framework: str
    device: str  # what was chosen: 'cpu', 'mps', 'cuda:0', 'metal'

    def use_stream(self, learner: str, incarnation: int) -> None:
        """Draw batches from the stream (seed, learner, incarnation) from now on: two different streams are independent,
        so that no two learners, and no learner that was restarted, train on the same sequence of batches."""
        ...

    def step(self) -> StepResult:
        """One inner step on the learner's own stream of data."""
        ...

    def evaluate(self) -> EvalResult:
        """Loss on the held-out part; the model and the learner's streams are left as they were."""
        ...


class Generator(Protocol):
    """A Trainable that can also write text."""

    def generate(self, prompt: bytes, *, max_tokens: int, temperature: float, seed: int) -> bytes: ...


class Task(Protocol):
    name: str
    summary: str  # one line for help and forms
    frameworks: tuple[str, ...]  # in order of preference

    def options(self, given: Mapping[str, str]) -> dict[str, Any]:
        """All options of the task, defaults filled in. Raises UsageError for an unknown or wrong one."""
        ...

    def data(self, path: Path | None) -> list[DataRef]:
        """The data that a run trains on: the shipped one, or the file `path`, by name, SHA-256 and size."""
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
        """A fresh model, initialised from `seed` alone. Raises DataMissing if the data is not here."""
        ...
