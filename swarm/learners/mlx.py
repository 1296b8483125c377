"""The byte boundary to an MLX module.

MLX flushes subnormals in its casts: nothing is cast here, bf16 crosses as its bits.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Container, Iterator, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path
from numpy.typing import NDArray

from swarm.core.errors import DeviceUnavailable, SchemaMismatch, UsageError
from swarm.learners import optimizers
from swarm.learners.modules import warnings_for
from swarm.learners.parts import mlx_parts, warnings_of
from swarm.tensors.payload import check
from swarm.tensors.precision import BF16
from swarm.tensors.schema import Schema, TensorSpec

_CODES = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}
_BUFFER_CODES = {**_CODES, mx.int32: "I32", mx.int64: "I64"}


class MlxAdapter:
    """Over the trainable parameters, and over buffers if they are asked for, named by their dotted paths: 'fc1.weight',
    'layers.0.bias'.

    `apply` sets arrays by `Module.update`, in the containers that a compiled step holds on to; MLX keys optimizer state by
    path, so it survives.
    """

    framework = "mlx"

    def __init__(self, model: nn.Module, *, buffers: bool = False) -> None:
        self._model = model
        self._buffers = buffers

    def _arrays(self) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
        """(parameters, buffers) that are exchanged."""
        parts = mlx_parts(self._model)
        return parts.parameters, {n: b for n, b in parts.buffers.items() if b.dtype in _BUFFER_CODES} if self._buffers else {}

    def schema(self) -> Schema:
        """Raises SchemaMismatch for other dtypes, and for two parameters that are one array: the first update would
        untie them."""
        parameters, buffers = self._arrays()
        self._refuse_ties(parameters.keys() | buffers.keys())
        refused = sorted(name for name, array in parameters.items() if array.dtype not in _CODES)
        if refused:
            raise SchemaMismatch(refused, advice=f"only F32, F16 and BF16 parameters are exchanged: {', '.join(refused)}")
        specs = [TensorSpec(name, _CODES[array.dtype], tuple(array.shape)) for name, array in parameters.items()]
        specs += [TensorSpec(name, _BUFFER_CODES[b.dtype], tuple(b.shape), buffer=True) for name, b in buffers.items()]
        return Schema(specs)

    def _refuse_ties(self, ours: set[str]) -> None:
        holders: dict[int, list[str]] = {}
        every = tree_flatten(self._model.parameters())  # frozen ones too: a tie to one breaks as well
        for name, array in every:
            holders.setdefault(id(array), []).append(name)
        tied = sorted(name for names in holders.values() if len(names) > 1 and not ours.isdisjoint(names) for name in names)
        if tied:
            raise SchemaMismatch(
                tied,
                advice=f"parameters are tied by identity, which MLX breaks at the first update: {', '.join(tied)}; "
                "use a structural tie such as embed.as_linear",
            )

    def snapshot(self, names: Container[str] | None = None) -> Mapping[str, NDArray[np.generic]]:
        parameters, buffers = self._arrays()
        wanted = {name: array for name, array in (parameters | buffers).items() if names is None or name in names}
        mx.eval(list(wanted.values()))
        return {name: _host_view(array) for name, array in wanted.items()}

    def apply(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        check(tensors, (spec for spec in self.schema() if spec.name in tensors))
        arrays = {name: _owned(array) for name, array in tensors.items()}
        # All parameters, in the model's own structure: an unflattened part of it would turn digit keys into lists.
        tree = tree_map_with_path(lambda path, old: arrays.get(path, old), self._model.parameters())
        mx.eval(list(arrays.values()))
        self._model.update(tree)

    def warnings(self, mapped: Container[str] | None = None) -> tuple[str, ...]:
        lines = warnings_for(self._model, mapped)
        if not self._buffers:
            return lines
        parts = mlx_parts(self._model)
        local = (
            f"{name} ({str(b.dtype).removeprefix('mlx.core.').rstrip('_')})"
            for name, b in parts.buffers.items()
            if b.dtype not in _BUFFER_CODES
        )
        return lines + warnings_of(local=local, frozen=parts.frozen)


class MlxOptimizer:
    """The OptimizerState of an mlx.optimizers.Optimizer, by path: 'step', 'learning_rate', 'fc1.weight.m'."""

    framework = "mlx"

    def __init__(self, optimizer: optim.Optimizer, model: nn.Module) -> None:
        self.name = type(optimizer).__name__
        self._optimizer, self._model = optimizer, model

    def check(self) -> None:
        """Begins the state, too, as the first step would: there is something to compare with."""
        self._optimizer.init(self._model.trainable_parameters())
        state = self._optimizer.state
        other = sorted(name for name, holder, key in _leaves(state) if not isinstance(holder[key], mx.array))
        if other:
            raise UsageError(f"the state of the optimizer {self.name} cannot be kept: {other[0]} is no array")

    def state(self) -> Mapping[str, NDArray[Any]]:
        return {name: _host_view(array) for name, array in tree_flatten(self._optimizer.state)}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        optimizers.check(state, {name: (array.dtype, array.shape) for name, array in self.state().items()})
        owned = {name: _owned(array) for name, array in state.items()}
        mx.eval(list(owned.values()))
        for name, holder, key in _leaves(self._optimizer.state):
            holder[key] = owned[name]  # in place: a compiled step holds on to these containers


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each array's path, as tree_flatten has it, with what holds it and under which key."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, (dict, list)):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", tree, key


def _host_view(array: mx.array) -> NDArray[Any]:
    view: NDArray[Any]
    # NumPy holds the array, and so MLX neither frees nor reuses its memory while the view lives.
    if array.dtype == mx.bfloat16:  # has no buffer protocol
        view = np.ascontiguousarray(np.asarray(array.view(mx.uint16))).view(BF16)
    else:
        view = np.ascontiguousarray(np.asarray(array))
    view = view.reshape(array.shape)  # ascontiguousarray makes a scalar one-dimensional
    view.flags.writeable = False
    return view


def _owned(array: NDArray[Any]) -> mx.array:
    """An MLX array with a copy of `array`'s bytes."""
    array = np.require(array, requirements=("C", "A"))
    if array.dtype == BF16:
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array)


def device(name: str) -> mx.Device:
    """'auto' (MLX's own choice), 'cpu' or 'metal'. Raises DeviceUnavailable if it is absent here, UsageError if it is
    none."""
    match name:
        case "auto":
            return mx.default_device()
        case "cpu":
            return mx.Device(mx.cpu)
        case "metal":
            if not mx.metal.is_available():
                raise DeviceUnavailable("device metal is absent: it needs a Mac with Apple silicon")
            return mx.Device(mx.gpu)
    raise UsageError(f"{name!r} is no device of MLX: auto, cpu or metal")


def present() -> list[tuple[str, str, int]]:
    """Devices that can be trained on here: name, what it is, memory of its own in bytes."""
    found = [("cpu", "", 0)]
    if mx.metal.is_available():
        found.append(("metal", str(mx.device_info()["device_name"]), 0))
    return found


def forward(name: str) -> float:
    """The sum of a layer of ones over ones, computed on that device: 4 · 8 · (16 + 1)."""
    with mx.stream(device(name)):
        layer = nn.Linear(16, 8)
        layer.update({"weight": mx.ones((8, 16)), "bias": mx.ones((8,))})
        return float(layer(mx.ones((4, 16))).sum().item())


def on_cpu(name: str) -> bool:
    """See replay.on_cpu."""
    return device(name) == mx.Device(mx.cpu)


def build(name: str, threads: int | None) -> str:
    """See replay.exactness. On Linux, MLX's CPU kernels and its BLAS have one thread, whatever the environment says."""
    version = f"mlx {mx.__version__}"  # type: ignore[attr-defined]  # the stubs lack it
    if not on_cpu(name):
        return f"{version}, {_gpu()}"
    where = f"{version}, cpu {platform.machine()} on {platform.system()}"
    if sys.platform != "darwin" or threads is None:
        return where
    return f"{where}, {threads} thread{'s' if threads > 1 else ''}"  # of Accelerate


def pin(name: str) -> str | None:
    """See replay.pin."""
    if not on_cpu(name):
        return "MLX does not promise that its kernels on the GPU are deterministic: replay may not be exact here"
    return None


def _gpu() -> str:
    if mx.metal.is_available():
        return f"metal {mx.device_info()['device_name']} on macOS {platform.mac_ver()[0]}"
    return f"gpu {platform.machine()} on {platform.system()}"
