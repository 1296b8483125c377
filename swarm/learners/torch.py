"""The byte boundary to a PyTorch module."""

from __future__ import annotations

import contextlib
import copy
import os
import platform
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swarm.core.errors import DeviceUnavailable, SchemaMismatch, UsageError
from swarm.learners import optimizers
from swarm.learners.devices import cannot_honour
from swarm.learners.modules import warnings_for
from swarm.learners.parts import torch_parts, warnings_of
from swarm.tensors.payload import check
from swarm.tensors.precision import BF16
from swarm.tensors.schema import Schema, TensorSpec

_CODES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_BUFFER_CODES = {**_CODES, torch.int32: "I32", torch.int64: "I64"}


class TorchAdapter:
    """Over the parameters that require a gradient, and over persistent buffers if they are asked for; a tied one is listed
    once, under the first of its names.

    `apply` writes into the tensors, which are never replaced: optimizer state keyed by them survives, tied aliases follow,
    and a compiled model sees the new values.
    """

    framework = "torch"

    def __init__(self, model: torch.nn.Module, *, buffers: bool = False) -> None:
        self._model = model
        self._buffers = buffers

    def _tensors(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """(parameters, buffers) that are exchanged."""
        parts = torch_parts(self._model)
        return parts.parameters, {n: b for n, b in parts.buffers.items() if _exchanged(b)} if self._buffers else {}

    def schema(self) -> Schema:
        parameters, buffers = self._tensors()
        refused = [
            name
            for name, p in parameters.items()
            if torch.nn.parameter.is_lazy(p) or p.dtype not in _CODES or p.layout != torch.strided
        ]
        refused += [name for name, b in buffers.items() if torch.nn.parameter.is_lazy(b)]
        if refused:
            raise SchemaMismatch(
                sorted(refused),
                advice=f"only initialised, dense F32, F16 and BF16 parameters are exchanged: {', '.join(sorted(refused))}",
            )
        specs = [TensorSpec(name, _CODES[p.dtype], tuple(p.shape)) for name, p in parameters.items()]
        specs += [TensorSpec(name, _BUFFER_CODES[b.dtype], tuple(b.shape), buffer=True) for name, b in buffers.items()]
        return Schema(specs)

    def snapshot(self, names: Container[str] | None = None) -> Mapping[str, NDArray[np.generic]]:
        parameters, buffers = self._tensors()
        return {name: _host_view(one) for name, one in (parameters | buffers).items() if names is None or name in names}

    def apply(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        check(tensors, (spec for spec in self.schema() if spec.name in tensors))
        parameters, buffers = self._tensors()
        with torch.no_grad():
            for name, one in (parameters | buffers).items():
                if name in tensors:
                    one.copy_(_borrowed(tensors[name]))

    def warnings(self, mapped: Container[str] | None = None) -> tuple[str, ...]:
        lines = warnings_for(self._model, mapped)
        if not self._buffers:
            return lines
        parts = torch_parts(self._model)
        local = (f"{name} ({str(b.dtype).removeprefix('torch.')})" for name, b in parts.buffers.items() if not _exchanged(b))
        return lines + warnings_of(local=local, frozen=parts.frozen)


def _exchanged(buffer: torch.Tensor) -> bool:
    """A lazy one is not left out, but refused: it has no shape yet. Of an expanded one several elements are one, and
    nothing can be written into it."""
    if torch.nn.parameter.is_lazy(buffer):
        return True
    if buffer.dtype not in _BUFFER_CODES or buffer.layout != torch.strided:
        return False
    return not any(step == 0 and n > 1 for step, n in zip(buffer.stride(), buffer.shape, strict=True))


class TorchOptimizer:
    """The OptimizerState of a torch.optim.Optimizer: '<parameter>.<entry>'; nothing before the first step. The groups'
    hyperparameters, such as the learning rate, are not part of it."""

    framework = "torch"

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self.name = type(optimizer).__name__
        self._optimizer, self._model = optimizer, model

    def check(self) -> None:
        names = {parameter for _, parameter in self._model.named_parameters()}
        if any(p not in names for group in self._optimizer.param_groups for p in group["params"]):
            raise UsageError(f"the optimizer {self.name} holds a parameter that is none of the model's")
        try:
            entries = self._entries()
        except Exception as error:  # whatever the optimizer of a stranger raises
            raise UsageError(f"the state of the optimizer {self.name} cannot be kept: {error}") from error
        for name, kept in entries.items():
            for key, (value, _) in kept.items():
                if not isinstance(key, str) or not isinstance(value, torch.Tensor | int | float):
                    what = f"{key!r} of {name} is a {type(value).__name__}"
                    raise UsageError(f"the state of the optimizer {self.name} cannot be kept: {what}")

    def state(self) -> Mapping[str, NDArray[Any]]:
        found = self._optimizer.state
        return {
            f"{name}.{key}": _host_value(value)
            for name, p in self._optimized()
            for key, value in found.get(p, {}).items()
            if value is not None
        }

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        entries = self._entries() if state else {}
        # A parameter that has had no gradient yet has no state.
        entries = {name: kept for name, kept in entries.items() if any(f"{name}.{key}" in state for key in kept)}
        wanted = {f"{name}.{key}": entry for name, kept in entries.items() for key, entry in kept.items()}
        optimizers.check(state, {name: (_host_value(value).dtype, shape) for name, (value, shape) in wanted.items()})
        whole = self._optimizer.state_dict()  # its 'state' goes by the parameter's place in the groups
        whole["state"] = {
            place: {key: _like(value, state[f"{name}.{key}"]) for key, (value, _) in entries[name].items()}
            for place, (name, _) in enumerate(self._optimized())
            if entries.get(name)
        }
        self._optimizer.load_state_dict(whole)

    def _optimized(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By name, in the order of the optimizer's groups."""
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        return ((names[p], p) for group in self._optimizer.param_groups for p in group["params"])

    def _entries(self) -> dict[str, dict[str, tuple[Any, tuple[int, ...]]]]:
        """What the optimizer keeps of each parameter after a step, by the parameter's name: such a value, and its shape.
        PyTorch's optimizers begin empty and tell nobody. So a twin takes a step on one number for each parameter."""
        real = self._optimizer
        twin = copy.copy(real)  # keeps groups and state only
        # Not what a scheduler puts in the place of `step`: that would step the real one.
        vars(twin).update({name: value for name, value in vars(real).items() if name not in vars(twin) and name != "step"})
        twin.state = defaultdict(dict)
        twin.param_groups = [
            {
                **group,
                "params": [
                    torch.zeros((1,) * p.ndim, dtype=p.dtype, device=p.device, requires_grad=True) for p in group["params"]
                ],
            }
            for group in real.param_groups
        ]
        stand_ins = [p for group in twin.param_groups for p in group["params"]]
        for p in stand_ins:
            p.grad = torch.zeros_like(p)
        twin.step()
        return {
            name: {
                key: (value, tuple(mine.shape) if _host_value(value).shape == p.shape else _host_value(value).shape)
                for key, value in twin.state[p].items()
                if value is not None
            }
            for p, (name, mine) in zip(stand_ins, self._optimized(), strict=True)
        }


def _host_value(value: Any) -> NDArray[Any]:
    return _host_view(value) if isinstance(value, torch.Tensor) else np.asarray(value)


def _like(value: Any, array: NDArray[Any]) -> Any:
    """What is in `array`, by copy, as a tensor if `value` is one, else as a number."""
    if not isinstance(value, torch.Tensor):
        return type(value)(array.item())
    copied = np.array(array, order="C")
    if copied.dtype == BF16:
        return torch.from_numpy(copied.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copied)


def _host_view(parameter: torch.Tensor) -> NDArray[Any]:
    tensor = parameter.detach().cpu().contiguous()
    array: NDArray[Any]
    if tensor.dtype == torch.bfloat16:  # NumPy has no bf16 of its own: over the bits
        array = tensor.view(torch.int16).numpy().view(BF16)
    else:
        array = tensor.numpy()
    array.flags.writeable = False
    return array


class _Writable:
    """Torch warns about every read-only array, though as the source of a copy it is only read: say that it is
    writable."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # keeps the memory alive
        interface = dict(array.__array_interface__)
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


def _borrowed(array: NDArray[Any]) -> torch.Tensor:
    """A CPU tensor over `array`'s memory, to read from."""
    array = np.require(array, requirements=("C", "A"))
    if array.dtype == BF16:
        return torch.from_numpy(np.asarray(_Writable(array.view(np.int16)))).view(torch.bfloat16)
    return torch.from_numpy(np.asarray(_Writable(array)))


def device(name: str) -> torch.device:
    """'auto' (cuda, else mps, else cpu), 'cpu', 'mps', 'cuda' or 'cuda:N'.

    Raises DeviceUnavailable if it is absent here, UsageError if it is no device of PyTorch.
    """
    kind, _, index = name.partition(":")
    if name == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    match kind:
        case "cpu" if not index:
            return torch.device("cpu")
        case "mps" if not index:
            if not torch.backends.mps.is_available():
                raise DeviceUnavailable("device mps is absent: it needs a Mac with Apple silicon and macOS 12.3 or newer")
            return torch.device("mps")
        case "cuda" if name in ("auto", "cuda") or (index.isascii() and index.isdigit()):
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if int(index or 0) >= count:
                have = f"PyTorch sees {count} CUDA device{'s' if count > 1 else ''}" if count else "PyTorch sees no CUDA device"
                raise DeviceUnavailable(f"device {name} is absent: {have}")
            return torch.device("cuda", int(index or 0))
    raise UsageError(f"{name!r} is no device of PyTorch: auto, cpu, mps, cuda or cuda:N")


def present() -> list[tuple[str, str, int]]:
    """Devices that can be trained on here: name, what it is, memory of its own in bytes."""
    found = [("cpu", f"{torch.get_num_threads()} threads", 0)]
    if torch.backends.mps.is_available():
        found.append(("mps", "", 0))
    for n in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        card = torch.cuda.get_device_properties(n)
        found.append((f"cuda:{n}", card.name, card.total_memory))
    return found


def forward(name: str) -> float:
    """The sum of a layer of ones over ones, computed on that device: 4 · 8 · (16 + 1)."""
    layer = torch.nn.Linear(16, 8, device=device(name))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1.0)
        return float(layer(torch.ones(4, 16, device=device(name))).sum().item())


def on_cpu(name: str) -> bool:
    """See replay.on_cpu."""
    return bool(device(name).type == "cpu")


def build(name: str, threads: int | None) -> str:
    """See replay.exactness."""
    chosen = device(name)
    version = f"torch {torch.__version__}"
    match chosen.type:
        case "cuda":
            return f"{version}, cuda {torch.cuda.get_device_name(chosen)}"
        case "mps":
            return f"{version}, mps {platform.machine()} on macOS {platform.mac_ver()[0]}"
    vectors = torch.backends.cpu.get_cpu_capability()
    n = torch.get_num_threads() if threads is None else threads
    return f"{version}, cpu {platform.machine()} {vectors} on {platform.system()}, {n} thread{'s' if n > 1 else ''}"


def pin(name: str, threads: int | None) -> str | None:
    """See replay.pin."""
    chosen = device(name)
    late = chosen.type == "cuda" and torch.cuda.is_initialized() and "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once, when CUDA begins
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if threads is not None:
        torch.set_num_threads(threads)
        if torch.get_num_interop_threads() != threads:
            with contextlib.suppress(RuntimeError):  # no more once they work; they share operations out, and split none
                torch.set_num_interop_threads(threads)
    match chosen.type:
        case "cuda" if late:
            return "CUDA was in use here before its kernels were made deterministic: replay may not be exact"
        case "mps":
            return "PyTorch does not promise that its kernels on mps are deterministic: replay may not be exact here"
        case "cpu" if threads is not None and torch.get_num_threads() != threads:
            return cannot_honour(threads, f"PyTorch computes with {torch.get_num_threads()}")
    return None
