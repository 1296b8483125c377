"""Local training of FedAvg's clients in MLX.

Everything is evaluated before a call returns: an array that MLX has yet to compute belongs to the thread that asked for it, and
the next call may come from another one.
"""

from __future__ import annotations

import inspect
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path

from swarm.core.errors import NotFinite, UsageError
from swarm.core.training import LocalTraining
from swarm.learners.layout import Layout
from swarm.learners.parts import mlx_parts
from swarm.learners.select import adapter_for
from swarm.tasks.descent import factors, kept_arrays, moved
from swarm.tasks.local import LossScale, check_rate, check_trainable, clip_factor, native_arguments
from swarm.tasks.net import Array
from swarm.tasks.seeding import seeded

_HALVES = {"F16": mx.float16, "BF16": mx.bfloat16}
_CLASSES: dict[str, type[optim.Optimizer]] = {
    "sgd": optim.SGD,
    "momentum": optim.SGD,
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "rmsprop": optim.RMSprop,
    "lion": optim.Lion,
}
Loss = Callable[[mx.array, mx.array], mx.array]  # (outputs, y) → a batch's mean
Flat: TypeAlias = dict[str, mx.array]  # parameters, gradients and the like by the parameter's path


class MlxLocalNet:
    """A LocalNet (local.py). `loss(outputs, y)` is a batch's mean. `layout`, `buffers`: as for learners.select.adapter_for."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        device: mx.Device,
        layout: Layout | str | None = None,
        buffers: bool,
    ) -> None:
        self.adapter = adapter_for(model, layout, buffers=buffers)
        self.device = _name(device)
        self._model, self._loss, self._device = model, loss, device
        self._client: _Client | None = None

    def begin(self, spec: LocalTraining) -> None:
        self.end()
        check_trainable({name: array.dtype for name, array in mlx_parts(self._model).parameters.items()})
        if spec.compiled and self._device.type == mx.cpu and shutil.which("g++") is None:
            raise UsageError("compiled: on the CPU MLX needs the C++ compiler g++, and there is none here")
        with mx.stream(self._device):
            self._client = _Client(self._model, self._loss, spec=spec)

    def step(self, x: Array, y: Array, *, lr: float) -> float:
        if self._client is None:
            raise RuntimeError("no client is being trained: call begin first")
        check_rate(lr)
        with self._mode(training=True):
            return self._client.step(mx.array(x), mx.array(y), lr=lr)

    def end(self) -> None:
        self._client = None

    def loss(self, x: Array, y: Array) -> float:
        with self._mode(training=False):
            return _number(self._loss(self._model(mx.array(x)), mx.array(y)))

    def predict(self, x: Array) -> Array:
        with self._mode(training=False):
            outputs = self._model(mx.array(x))
            mx.eval(outputs)
        return np.array(outputs)

    def seeded(self, seed: int | None) -> AbstractContextManager[None]:
        return seeded(seed)

    @contextmanager
    def _mode(self, *, training: bool) -> Iterator[None]:
        """For every submodule, each of which gets its own back; on the net's device."""
        before = [(module, module.training) for _, module in self._model.named_modules()]  # a parent before its children
        self._model.train(training)
        try:
            with mx.stream(self._device):
                yield
        finally:
            for module, mode in before:
                module.train(mode)  # with its children, whose turn comes afterwards


class _Client:
    """All that is kept while one client is trained, and gone with it: optimizer, anchor and loss scale."""

    def __init__(self, model: nn.Module, loss: Loss, *, spec: LocalTraining) -> None:
        self._model, self._spec = model, spec
        parameters: Flat = mlx_parts(model).parameters
        self._names = tuple(parameters)
        self._anchor = parameters if spec.prox_mu else {}  # MLX's arrays do not change: no copy
        self._scale = LossScale(spec)
        self._optimizer = _Native(spec, parameters) if spec.native else _Canonical(spec, parameters)
        half = _HALVES.get(spec.local_dtype)

        def loss_of(trained: Flat, x: mx.array, y: mx.array, scale: mx.array) -> tuple[mx.array, mx.array]:
            if half is None:
                _put(model, trained)
                value = loss(model(x), y)
            else:
                _put(model, {name: array.astype(half) for name, array in trained.items()})
                outputs = model(x.astype(half) if mx.issubdtype(x.dtype, mx.floating) else x)
                value = loss(outputs.astype(mx.float32), y)
            return value * scale, value

        differentiated = mx.value_and_grad(loss_of)

        def backward(trained: Flat, anchor: Flat, x: mx.array, y: mx.array, scale: mx.array) -> tuple[mx.array, Flat, mx.array]:
            (_, value), gradients = differentiated(trained, x, y, scale)
            _put(model, trained)  # the originals again
            if spec.local_dtype == "F16":
                gradients = {name: gradient / scale for name, gradient in gradients.items()}
            if spec.prox_mu:
                gradients = {
                    name: gradient + (trained[name] - anchor[name]) * spec.prox_mu for name, gradient in gradients.items()
                }
            squares = [mx.square(gradient).sum() for gradient in gradients.values()]
            return value, gradients, mx.sqrt(mx.stack(squares).sum())

        self._backward: Callable[..., tuple[mx.array, Flat, mx.array]] = backward
        if spec.compiled:
            # The forward pass updates running statistics and draws.
            state = [model.state, mx.random.state]
            self._backward = mx.compile(backward, inputs=state, outputs=state)

    def step(self, x: mx.array, y: mx.array, *, lr: float) -> float:
        model = self._model
        drawn: Any = mx.random.state
        before = model.parameters()
        try:
            held = dict(tree_flatten(model.trainable_parameters()))
            trained = {name: held[name] for name in self._names}
            while True:
                value, gradients, norm = self._backward(trained, self._anchor, x, y, mx.array(self._scale.value))
                mx.eval(value, gradients, norm, model.state, list(drawn))
                length = _number(norm)
                if length < math.inf:
                    break
                if not self._scale.halved():
                    raise NotFinite(f"gradient of {_culprit(gradients)}")
                model.update(before)  # else the batch would count twice in running statistics
        except BaseException:
            model.update(before)
            raise
        self._scale.kept()
        _put(model, self._optimizer.step(trained, gradients, clip=clip_factor(self._spec, length), lr=lr))
        return _number(value)


def _culprit(gradients: Flat) -> str:
    """The first parameter whose gradient is not finite; if only the norm of all is too large, that of the largest."""
    for name, gradient in gradients.items():
        if not mx.isfinite(gradient).all().item():
            return name
    return max(gradients, key=lambda name: _number(mx.abs(gradients[name]).max()) if gradients[name].size else 0.0)


class _Canonical:
    """The optimizer that descent.py states."""

    def __init__(self, spec: LocalTraining, parameters: Flat) -> None:
        count = kept_arrays(spec)
        self._spec = spec
        self._kept = {name: tuple(mx.zeros_like(array) for _ in range(count)) for name, array in parameters.items()}
        mx.eval(list(self._kept.values()))
        self._step = 0

        def move(
            parameters: Flat, gradients: Flat, kept: dict[str, tuple[mx.array, ...]], by: dict[str, mx.array]
        ) -> tuple[Flat, dict[str, tuple[mx.array, ...]]]:
            new: Flat = {}
            then: dict[str, tuple[mx.array, ...]] = {}
            for name, theta in parameters.items():
                gradient = gradients[name] * by["clip"] if "clip" in by else gradients[name]
                new[name], then[name] = moved(spec, theta, gradient, kept[name], by, sqrt=mx.sqrt, sign=mx.sign)
            return new, then

        self._move = mx.compile(move) if spec.compiled else move

    def step(self, parameters: Flat, gradients: Flat, *, clip: float, lr: float) -> Flat:
        by = factors(self._spec, step=self._step + 1, lr=lr)
        if self._spec.clip_grad_norm is not None:
            by["clip"] = clip
        arrays = {name: mx.array(number, mx.float32) for name, number in by.items()}
        new, kept = self._move(parameters, gradients, self._kept, arrays)
        mx.eval(new, kept)
        self._step, self._kept = self._step + 1, kept
        return new


class _Native:
    """MLX's own optimizer, for its own options. Its own step is never compiled: it is a small part."""

    def __init__(self, spec: LocalTraining, parameters: Flat) -> None:
        kind = _CLASSES[spec.optimizer]
        accepted = [name for name in inspect.signature(kind).parameters if name != "learning_rate"]
        name = f"MLX's {kind.__name__}"
        arguments = native_arguments(spec, kind=name, accepted=accepted)
        try:  # on a twin, since a value of the wrong type is refused at the first step only
            twin = kind(learning_rate=0.0, **arguments)
            one = mx.zeros((1,))
            mx.eval(twin.apply_gradients({"one": one}, {"one": one}))
            self._optimizer: Any = kind(learning_rate=0.0, **arguments)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"native options: {name} refuses them: {str(error).partition(chr(10))[0][:200]}") from error
        self._optimizer.init(parameters)
        mx.eval(self._optimizer.state)

    def step(self, parameters: Flat, gradients: Flat, *, clip: float, lr: float) -> Flat:
        if clip < 1.0:
            gradients = {name: gradient * clip for name, gradient in gradients.items()}
        self._optimizer.learning_rate = mx.array(lr, mx.float32)
        new: Flat = self._optimizer.apply_gradients(gradients, parameters)
        mx.eval(new, self._optimizer.state)
        return new


def _put(model: nn.Module, arrays: Flat) -> None:
    # In the model's own structure: an unflattened one would turn digit keys into lists.
    model.update(tree_map_with_path(lambda path, old: arrays.get(path, old), model.trainable_parameters()))


def _number(scalar: mx.array) -> float:
    value: Any = scalar.item()
    return float(value)


def _name(device: mx.Device) -> str:
    if device.type == mx.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"
