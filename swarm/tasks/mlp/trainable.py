"""The data of the regression, and training on it in either framework."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from swarm.core.tensorspec import TensorSpec
from swarm.tasks.contract import EvalResult, StepResult, TaskState
from swarm.tasks.net import Net
from swarm.tasks.state import restore, state_of
from swarm.tasks.streams import generator

F32 = NDArray[np.float32]

INPUTS, HIDDEN, OUTPUTS = 16, 32, 4
HELD_OUT_SAMPLES = 1024
_TEACHER_UNITS = 8


class Problem:
    """y = tanh(x U) V with x ~ N(0, 1), and U (16, 8) and V (8, 4) drawn from the seed; y is scaled to mean 0 and variance
    1 on the held-out samples."""

    def __init__(self, seed: int) -> None:
        random = generator(seed, "mlp", "teacher")
        self._first = random.normal(0, INPUTS**-0.5, (INPUTS, _TEACHER_UNITS)).astype(np.float32)
        self._second = random.normal(0, 1, (_TEACHER_UNITS, OUTPUTS)).astype(np.float32)
        x = generator(seed, "mlp", "held-out").standard_normal((HELD_OUT_SAMPLES, INPUTS), dtype=np.float32)
        raw = self._raw(x)
        self._mean, self._scale = raw.mean(axis=0), raw.std(axis=0)
        self.held_out = (x, self._targets(x))

    def batch(self, random: np.random.Generator, size: int) -> tuple[F32, F32]:
        """(size, 16) inputs and their (size, 4) targets."""
        x = random.standard_normal((size, INPUTS), dtype=np.float32)
        return x, self._targets(x)

    def _targets(self, x: F32) -> F32:
        targets: F32 = (self._raw(x) - self._mean) / self._scale
        return targets

    def _raw(self, x: F32) -> F32:
        raw: F32 = np.tanh(x @ self._first) @ self._second
        return raw


def initial(tensors: Iterable[TensorSpec], seed: int) -> dict[str, F32]:
    """Parameters from the seed alone, equal in every framework: linear layers uniform within ±1/√(inputs), as PyTorch and
    MLX do it, norms 1 and 0."""
    made: dict[str, F32] = {}
    for spec in tensors:
        layer, kind = spec.name.split(".")
        if layer == "norm":
            made[spec.name] = np.full(spec.shape, float(kind == "weight"), np.float32)
        else:
            bound = {"fc1": INPUTS, "fc2": HIDDEN}[layer] ** -0.5
            drawn = generator(seed, "mlp", "init", spec.name).uniform(-bound, bound, spec.shape)
            made[spec.name] = drawn.astype(np.float32)
    return made


class Regression:
    """A Trainable (contract.py)."""

    def __init__(self, net: Net, *, batch_size: int, seed: int) -> None:
        self.adapter = net.adapter
        self.framework = net.adapter.framework
        self.device = net.device
        self._net = net
        self._batch_size = batch_size
        self._seed = seed
        self._problem = Problem(seed)
        self.adapter.apply(initial(self.adapter.schema(), seed))
        self._random = generator(seed, "mlp", "batches")

    def use_stream(self, learner: str, incarnation: int) -> None:
        self._random = generator(self._seed, "mlp", "batches", learner, incarnation)

    def step(self) -> StepResult:
        x, y = self._problem.batch(self._random, self._batch_size)
        return StepResult(loss=self._net.train(x, y), tokens=len(y), samples=len(y))

    def state(self) -> TaskState:
        return state_of(self._net, self._random, task="mlp")

    def load(self, state: TaskState) -> None:
        self._random = restore(self._net, state, task="mlp")

    def evaluate(self) -> EvalResult:
        """`r2`: the part of the targets' variance that is explained."""
        loss = self._net.loss(*self._problem.held_out)
        return EvalResult(loss=loss, metrics={"r2": 1 - loss})  # the targets' variance is 1
