"""Training the adapters on a learner's stream of rows or on a client's, and writing with them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import DataMissing, StateMismatch, UsageError
from swarm.core.finetune import FineTune
from swarm.core.manifest import DataRef
from swarm.core.specs import FedAvg
from swarm.tasks.charlm.sampling import check_writing
from swarm.tasks.contract import ClientStep, EvalResult, StepResult, TaskState
from swarm.tasks.federated import Clients
from swarm.tasks.lm.rows import Order, Rows, assembled, read_rows
from swarm.tasks.lora.places import UNLEARNED, WHAT_DATA_IS
from swarm.tasks.net import Array
from swarm.tasks.state import check_same
from swarm.tasks.streams import generator

if TYPE_CHECKING:
    from swarm.tasks.lora.mlx import Tuned

_SEED_BITS = 62


class Part(NamedTuple):
    """Rows, and those of them with a token to learn: a mean over none is no number."""

    rows: Rows
    usable: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Rows) -> Part:
        return cls(rows, np.flatnonzero(rows.targets > 0))

    def __len__(self) -> int:
        return len(self.usable)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.rows.lengths[self.usable]

    def batch(self, indices: Sequence[int] | NDArray[np.int64], *, pad_to: int) -> tuple[Array, Array]:
        """(rows, length) tokens and the ones that follow, UNLEARNED where they are not learned."""
        made = assembled(self.rows, self.usable[np.asarray(indices)].tolist(), pad_to=pad_to)
        return made.inputs, np.where(made.mask, made.targets, UNLEARNED).astype(np.int32)


class Parts(NamedTuple):
    train: Part
    valid: Part

    @classmethod
    def read(cls, folder: Path | None, data: list[DataRef], *, tokenizer: Any, spec: FineTune, private: bool) -> Parts:
        """Of a private client: its own rows to train on, but nobody's own to evaluate on. Raises DataMissing, UsageError."""
        nothing = Part.of(_no_rows())
        if folder is None:
            return cls(nothing, nothing)
        train = Part.of(read_rows(folder, "train", tokenizer=tokenizer, spec=spec))
        if not len(train):
            raise UsageError(f"{folder / 'train.jsonl'}: no row has a token to learn")
        if private and "valid.jsonl" not in {ref.name for ref in data}:
            return cls(train, nothing)
        valid = Part.of(read_rows(folder, "valid", tokenizer=tokenizer, spec=spec))
        if not len(valid):
            raise UsageError(f"{folder / 'valid.jsonl'}: no row to evaluate on; the data is {WHAT_DATA_IS}")
        return cls(train, valid)


class Tuner:
    """A Trainable, Resumable, Federated and a Generator (contract.py)."""

    def __init__(self, tuned: Tuned, parts: Parts, *, spec: FineTune, seed: int, sample_tokens: int) -> None:
        self.adapter = tuned.local.adapter
        self.framework = tuned.local.adapter.framework
        self.device = tuned.local.device
        self._net, self._local, self._writer, self._pad_to = tuned
        self._train, self._valid = parts
        self._batch_size, self._seed, self._sample_tokens = spec.batch_size, seed, sample_tokens
        self._held_out: list[tuple[int, ...]] = []
        if len(self._valid):
            order = Order(self._valid.lengths, batch_size=spec.batch_size, seed=seed)
            count = order.per_epoch if spec.val_batches < 0 else min(spec.val_batches, order.per_epoch)
            self._held_out = [order.batch(k) for k in range(count)]
        self._clients = Clients(tuned.local, lambda mine: self._train.batch(mine, pad_to=self._pad_to), count=len(self._train))
        self._begin(generator(seed, "lora", "batches"), position=0)

    def _begin(self, stream: np.random.Generator, *, position: int) -> None:
        self._take_up(int(stream.integers(1 << _SEED_BITS)), position)

    def _take_up(self, stream: int, position: int) -> None:
        """The order of the rows, and what dropout draws, follow from one number."""
        self._stream, self._position = stream, position
        self._order = Order(self._train.lengths, batch_size=self._batch_size, seed=stream) if len(self._train) else None

    def use_stream(self, learner: str, incarnation: int) -> None:
        self._begin(generator(self._seed, "lora", "batches", learner, incarnation), position=0)

    def step(self) -> StepResult:
        if self._order is None:
            raise DataMissing(f"nothing to train on: pass {WHAT_DATA_IS} with --data")
        x, y = self._train.batch(self._order.batch(self._position), pad_to=self._pad_to)
        drawn = generator(self._stream, "dropout", self._position).integers(1 << _SEED_BITS)
        with self._local.seeded(int(drawn)):
            loss = self._net.train(x, y)
        self._position += 1
        return StepResult(loss=loss, tokens=_learned(y), samples=len(y))

    def state(self) -> TaskState:
        return TaskState(arrays=self._net.state(), values={**self._what(), "random": [self._stream, self._position]})

    def load(self, state: TaskState) -> None:
        check_same(state, self._what())
        match state.values.get("random"):
            case [int(stream), int(position)] if 0 <= stream < 1 << _SEED_BITS and 0 <= position < 1 << _SEED_BITS:
                pass
            case _:
                raise StateMismatch("the saved state has no position in a stream of rows that can be taken up here")
        self._net.load(state.arrays)
        self._take_up(stream, position)

    def _what(self) -> dict[str, str]:
        return {"task": "lora", "framework": self.framework, "optimizer": self._net.optimizer}

    def deal(self, spec: FedAvg, *, seed: int) -> tuple[int, ...]:
        """Rows have no labels: they are dealt out iid."""
        return self._clients.deal(spec, seed=seed)

    def train_client(self, spec: FedAvg, *, index: int, unit: str, round: int) -> Iterator[ClientStep]:
        return self._clients.train(spec, index=index, unit=unit, round=round)

    def measure_client(self, index: int) -> Mapping[str, float]:
        return {}

    def evaluate(self) -> EvalResult:
        """Cross entropy in nats a learned token, over the learned tokens of valid.jsonl's batches; `perplexity` is its
        exponential. The sample goes on from how the first row begins, each time with the likeliest token."""
        if not self._held_out:
            raise DataMissing("nothing to evaluate on: valid.jsonl is not here, or of a private client's own")
        total, tokens = 0.0, 0
        for rows in self._held_out:
            x, y = self._valid.batch(rows, pad_to=self._pad_to)
            count = _learned(y)
            total += self._local.loss(x, y) * count
            tokens += count
        loss = total / tokens
        return EvalResult(loss=loss, metrics={"perplexity": _exponential(loss)}, sample=self._sample())

    def _sample(self) -> str:
        if not self._sample_tokens:
            return ""
        random = generator(self._seed, "lora", "sample")
        return self._writer.sample(self._valid.rows, int(self._valid.usable[0]), count=self._sample_tokens, random=random)

    def generate(self, prompt: bytes, *, max_tokens: int, temperature: float, seed: int) -> Iterator[bytes]:
        """A token at a time; it ends where the model ends. The prompt is asked in the words of the tokenizer's chat template,
        if it has one, as MLX-LM's tools do."""
        check_writing(max_tokens=max_tokens, temperature=temperature)
        tokens = self._writer.prompt(prompt.decode(errors="replace"))
        random = generator(seed, "lora", "generate")
        pieces = self._writer.written(tokens, count=max_tokens, temperature=temperature, random=random)
        return (piece.encode(errors="replace") for piece in pieces if piece)


def _learned(targets: Array) -> int:
    return int(np.count_nonzero(targets != UNLEARNED))


def _exponential(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _no_rows() -> Rows:
    nothing = np.zeros(0, np.int32)
    return Rows(nothing, np.zeros(1, np.int64), nothing, np.zeros(0, np.int64), 0)
