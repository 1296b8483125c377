"""Training an MLX model, the same for all built-in tasks.

Everything is evaluated before a call returns: an array that MLX has yet to compute belongs to the thread that asked for
it, and the next call may come from another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np

from swarm.learners.layout import Layout
from swarm.learners.mlx import MlxOptimizer
from swarm.learners.select import adapter_for
from swarm.tasks.net import Array

M = TypeVar("M", bound=nn.Module)


def untouched(model: Callable[[], M], device: mx.Device) -> M:
    """The model as MLX initialises it, with MLX's global random state left as it was."""
    state: Any = mx.random.state
    high, low = (int(word) for word in np.array(state[0]))
    try:
        with mx.stream(device):
            return model()
    finally:
        mx.random.seed(high << 32 | low)  # which sets the state to these two words


class MlxNet:
    """A Net (net.py). `loss(outputs, y)` is a batch's mean; gradients longer than `max_norm` are scaled down to it. `layout`:
    how the parameters map to the run's canonical ones, as for learners.select.adapter_for.

    On a GPU the step is compiled into fewer kernels. On the CPU that would take a C++ compiler and up to minutes, and gain
    nothing: the time goes into matrix products. `compiled` overrides this choice.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: optim.Optimizer,
        loss: Callable[[mx.array, mx.array], mx.array],
        *,
        device: mx.Device,
        max_norm: float | None = None,
        compiled: bool | None = None,
        layout: Layout | str | None = None,
    ) -> None:
        self.adapter = adapter_for(model, layout)
        self.device = _name(device)
        self._device = device
        self._kept = MlxOptimizer(optimizer, model)
        self.optimizer = self._kept.name
        self._model = model
        self._loss = loss
        state = [model.state, optimizer.state]
        loss_and_grad = nn.value_and_grad(model, lambda x, y: loss(model(x), y))

        def step(x: mx.array, y: mx.array) -> mx.array:
            value, gradients = loss_and_grad(x, y)
            if max_norm is not None:
                gradients, _ = optim.clip_grad_norm(gradients, max_norm)
            optimizer.update(model, gradients)
            return value

        with mx.stream(device):
            optimizer.init(model.trainable_parameters())
            mx.eval(state)
        if compiled is None:
            compiled = device.type == mx.gpu
        self._state = state
        self._step = mx.compile(step, inputs=state, outputs=state) if compiled else step

    def train(self, x: Array, y: Array) -> float:
        with mx.stream(self._device):
            loss = self._step(mx.array(x), mx.array(y))
            mx.eval(loss, self._state)
            return _number(loss)

    def loss(self, x: Array, y: Array) -> float:
        with mx.stream(self._device):
            return _number(self._loss(self._model(mx.array(x)), mx.array(y)))

    def predict(self, x: Array) -> Array:
        with mx.stream(self._device):
            outputs = self._model(mx.array(x))
            mx.eval(outputs)
        return np.array(outputs)

    def state(self) -> Mapping[str, Array]:
        with mx.stream(self._device):
            return self._kept.state()

    def load(self, state: Mapping[str, Array]) -> None:
        with mx.stream(self._device):
            self._kept.load(state)


def _number(scalar: mx.array) -> float:
    value: Any = scalar.item()
    return float(value)


def _name(device: mx.Device) -> str:
    if device.type == mx.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"
