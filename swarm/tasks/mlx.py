"""Training an MLX model, the same for all built-in tasks.

Everything is evaluated before a call returns: an array that MLX has yet to compute belongs to the thread that asked for
it, and the next call may come from another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten

from swarm.learners.mlx import MlxAdapter
from swarm.tasks.net import Array
from swarm.tasks.state import check
from swarm.tensors.precision import BF16

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
    """A Net (net.py). `loss(outputs, y)` is a batch's mean; gradients longer than `max_norm` are scaled down to it.

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
    ) -> None:
        self.adapter = MlxAdapter(model)
        self.device = _name(device)
        self._device = device
        self.optimizer = type(optimizer).__name__
        self._model = model
        self._optimizer = optimizer
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
        """By path: 'step', 'fc1.weight.m'."""
        with mx.stream(self._device):
            return {name: _host(array) for name, array in tree_flatten(self._optimizer.state)}

    def load(self, state: Mapping[str, Array]) -> None:
        check(state, {name: (array.dtype, array.shape) for name, array in self.state().items()})
        with mx.stream(self._device):
            owned = {name: _owned(array) for name, array in state.items()}
            mx.eval(list(owned.values()))
        for name, holder, key in _leaves(self._optimizer.state):
            holder[key] = owned[name]  # in place: the compiled step holds on to these containers


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each array's path, as tree_flatten has it, with what holds it and under which key."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, (dict, list)):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", tree, key


def _host(array: mx.array) -> Array:
    if array.dtype == mx.bfloat16:  # has no buffer protocol
        return _host(array.view(mx.uint16)).view(BF16)
    view = np.ascontiguousarray(np.asarray(array)).reshape(array.shape)  # which makes a scalar one-dimensional
    view.flags.writeable = False
    return view


def _owned(array: Array) -> mx.array:
    array = np.require(array, requirements=("C", "A"))
    if array.dtype == BF16:
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


def _number(scalar: mx.array) -> float:
    value: Any = scalar.item()
    return float(value)


def _name(device: mx.Device) -> str:
    if device.type == mx.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"
