"""The byte boundary to a PyTorch module."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from swarm.core.errors import DeviceUnavailable, SchemaMismatch, UsageError
from swarm.learners.modules import warnings_for
from swarm.tensors.payload import check
from swarm.tensors.precision import BF16
from swarm.tensors.schema import Schema, TensorSpec

_CODES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


class TorchAdapter:
    """Over the parameters that require a gradient; a tied one is listed once, under the first of its names.

    `apply` writes into the parameters, which are never replaced: optimizer state keyed by them survives, and tied
    aliases follow.
    """

    framework = "torch"

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return ((name, p) for name, p in self._model.named_parameters() if p.requires_grad)

    def schema(self) -> Schema:
        refused = sorted(
            name
            for name, p in self._parameters()
            if torch.nn.parameter.is_lazy(p) or p.dtype not in _CODES or p.layout != torch.strided
        )
        if refused:
            raise SchemaMismatch(
                refused,
                advice=f"only initialised, dense F32, F16 and BF16 parameters are exchanged: {', '.join(refused)}",
            )
        return Schema(TensorSpec(name, _CODES[p.dtype], tuple(p.shape)) for name, p in self._parameters())

    def snapshot(self, names: Container[str] | None = None) -> Mapping[str, NDArray[np.generic]]:
        return {name: _host_view(p) for name, p in self._parameters() if names is None or name in names}

    def apply(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        check(tensors, (spec for spec in self.schema() if spec.name in tensors))
        with torch.no_grad():
            for name, parameter in self._parameters():
                if name in tensors:
                    parameter.copy_(_borrowed(tensors[name]))

    def warnings(self, mapped: Container[str] | None = None) -> tuple[str, ...]:
        return warnings_for(self._model, mapped)


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
