"""Training a PyTorch model, the same for all built-in tasks."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from swarm.learners.torch import TorchAdapter
from swarm.tasks.net import Array
from swarm.tasks.state import check
from swarm.tensors.precision import BF16

M = TypeVar("M", bound=nn.Module)


def empty(model: Callable[[], M], device: torch.device) -> M:
    """The model with its parameters allocated and not set. It draws nothing: PyTorch's own initialisation would take from
    the global random state, and differ from MLX's."""
    with torch.device("meta"):
        made = model()
    return made.to_empty(device=device)


class TorchNet:
    """A Net (net.py). `loss(outputs, y)` is a batch's mean; gradients longer than `max_norm` are scaled down to it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        device: torch.device,
        max_norm: float | None = None,
    ) -> None:
        self.adapter = TorchAdapter(model)
        self.device = str(device)
        self.optimizer = type(optimizer).__name__
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._device = device
        self._max_norm = max_norm

    def train(self, x: Array, y: Array) -> float:
        self._optimizer.zero_grad()
        loss = self._loss(self._model(self._put(x)), self._put(y))
        loss.backward()
        if self._max_norm is not None:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._max_norm)
        self._optimizer.step()
        return loss.item()

    @torch.no_grad()
    def loss(self, x: Array, y: Array) -> float:
        return self._loss(self._model(self._put(x)), self._put(y)).item()

    @torch.no_grad()
    def predict(self, x: Array) -> Array:
        outputs: Array = self._model(self._put(x)).cpu().numpy()
        return outputs

    def _put(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def state(self) -> Mapping[str, Array]:
        """'<parameter>.<entry>'; nothing before the first step."""
        found = self._optimizer.state
        return {f"{name}.{key}": _host(value) for name, p in self._optimized() for key, value in found.get(p, {}).items()}

    def load(self, state: Mapping[str, Array]) -> None:
        entries = self._entries() if state else {}
        check(state, {f"{name}.{key}": layout for name, kept in entries.items() for key, layout in kept.items()})
        whole = self._optimizer.state_dict()  # its 'state' goes by the parameter's place in the groups
        whole["state"] = {
            place: {key: _owned(state[f"{name}.{key}"]) for key in entries[name]}
            for place, (name, _) in enumerate(self._optimized())
            if entries.get(name)
        }
        self._optimizer.load_state_dict(whole)

    def _optimized(self) -> Iterator[tuple[str, Tensor]]:
        """By name, in the order of the optimizer's groups."""
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        return ((names[p], p) for group in self._optimizer.param_groups for p in group["params"])

    def _entries(self) -> dict[str, dict[str, tuple[np.dtype[Any], tuple[int, ...]]]]:
        """What the optimizer keeps of each parameter after a step, by the parameter's name: PyTorch's optimizers begin
        empty and tell nobody. So a twin takes a step on one number for each parameter."""
        twin = copy.copy(self._optimizer)
        twin.state = defaultdict(dict)
        twin.param_groups = [
            {**group, "params": [torch.zeros((1,) * p.ndim, dtype=p.dtype, requires_grad=True) for p in group["params"]]}
            for group in self._optimizer.param_groups
        ]
        stand_ins = [p for group in twin.param_groups for p in group["params"]]
        for p in stand_ins:
            p.grad = torch.zeros_like(p)
        twin.step()
        return {
            name: {
                key: (_host(value).dtype, tuple(real.shape) if value.shape == p.shape else tuple(value.shape))
                for key, value in twin.state[p].items()
            }
            for p, (name, real) in zip(stand_ins, self._optimized(), strict=True)
        }


def _host(tensor: Tensor) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:  # NumPy has none of its own: over the bits
        return tensor.view(torch.int16).numpy().view(BF16)
    return tensor.numpy()


def _owned(array: Array) -> Tensor:
    copied = np.array(array, order="C")
    if copied.dtype == BF16:
        return torch.from_numpy(copied.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copied)
