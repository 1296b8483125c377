"""Training on images of digits, and reading those that are held out, in either framework."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.specs import FedAvg
from swarm.core.tensorspec import TensorSpec
from swarm.tasks.contract import ClientStep, EvalResult, StepResult, TaskState
from swarm.tasks.federated import Clients
from swarm.tasks.lenet5.images import CLASSES, Parts
from swarm.tasks.local import LocalNet
from swarm.tasks.net import Net
from swarm.tasks.state import restore, state_of
from swarm.tasks.streams import generator

_EVAL_ROWS = 500


def initial(tensors: Iterable[TensorSpec], seed: int) -> dict[str, NDArray[Any]]:
    """Parameters from the seed alone, equal in every framework: weights and biases uniform within ±1/√(inputs), as PyTorch
    has it, norms 1 and 0, their running means 0 and variances 1."""
    specs = {spec.name: spec for spec in tensors}
    made: dict[str, NDArray[Any]] = {}
    for name, spec in specs.items():
        layer, _, kind = name.rpartition(".")
        if layer.startswith("norm"):
            made[name] = np.full(spec.shape, float(kind in ("weight", "running_var")), np.float32)
        else:
            bound = math.prod(specs[f"{layer}.weight"].shape[1:]) ** -0.5
            made[name] = generator(seed, "lenet5", "init", name).uniform(-bound, bound, spec.shape).astype(np.float32)
    return made


class Reader:
    """A Trainable, Resumable and Federated (contract.py). `net` and `local` train the same model: the one with an optimizer of
    its own, the other with a client's."""

    def __init__(self, net: Net, local: LocalNet, parts: Parts, *, batch_size: int, seed: int) -> None:
        self.adapter = local.adapter
        self.framework = local.adapter.framework
        self.device = local.device
        self._net = net
        self._local = local
        self._train, self._held_out = parts.train, parts.held_out
        self._clients = Clients(local, parts.train.batch, count=len(parts.train), labels=parts.train.labels)
        self._batch_size = batch_size
        self._seed = seed
        self.adapter.apply(initial(self.adapter.schema(), seed))
        self._random = generator(seed, "lenet5", "batches")

    def use_stream(self, learner: str, incarnation: int) -> None:
        self._random = generator(self._seed, "lenet5", "batches", learner, incarnation)

    def step(self) -> StepResult:
        x, y = self._train.batch(self._random.integers(0, len(self._train), self._batch_size))
        with self._local.seeded(int(self._random.integers(1 << 63))):  # what dropout draws
            loss = self._net.train(x, y)
        return StepResult(loss=loss, tokens=len(y), samples=len(y))

    def state(self) -> TaskState:
        return state_of(self._net, self._random, task="lenet5")

    def load(self, state: TaskState) -> None:
        self._random = restore(self._net, state, task="lenet5")

    def deal(self, spec: FedAvg, *, seed: int) -> tuple[int, ...]:
        return self._clients.deal(spec, seed=seed)

    def train_client(self, spec: FedAvg, *, index: int, unit: str, round: int) -> Iterator[ClientStep]:
        return self._clients.train(spec, index=index, unit=unit, round=round)

    def measure_client(self, index: int) -> Mapping[str, float]:
        mine, right = self._clients.of(index), 0
        for start in range(0, len(mine), _EVAL_ROWS):
            x, y = self._train.batch(mine[start : start + _EVAL_ROWS])
            right += int(np.count_nonzero(self._local.predict(x).argmax(axis=1) == y))
        return {"accuracy": right / len(mine)} if len(mine) else {}

    def evaluate(self) -> EvalResult:
        """Cross entropy in nats an image; `accuracy`: the part that is read right."""
        total, confusion = 0.0, np.zeros((CLASSES, CLASSES), np.int64)
        for start in range(0, len(self._held_out), _EVAL_ROWS):
            x, y = self._held_out.batch(slice(start, start + _EVAL_ROWS))
            outputs = self._local.predict(x).astype(np.float64)
            top = outputs.max(axis=1)
            right = np.take_along_axis(outputs, y[:, None].astype(np.int64), axis=1)[:, 0]
            total += float((top + np.log(np.exp(outputs - top[:, None]).sum(axis=1)) - right).sum())
            np.add.at(confusion, (y, outputs.argmax(axis=1)), 1)
        count = len(self._held_out)
        return EvalResult(
            loss=total / count,
            metrics={"accuracy": float(np.trace(confusion)) / count},
            confusion=tuple(tuple(row) for row in confusion.tolist()),
        )
