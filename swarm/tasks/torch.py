"""Training a PyTorch model, the same for all built-in tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from swarm.learners.layout import Layout
from swarm.learners.select import adapter_for
from swarm.learners.torch import TorchOptimizer
from swarm.tasks.net import Array

M = TypeVar("M", bound=nn.Module)


def empty(model: Callable[[], M], device: torch.device) -> M:
    """The model with its parameters allocated and not set. It draws nothing: PyTorch's own initialisation would take from
    the global random state, and differ from MLX's."""
    with torch.device("meta"):
        made = model()
    return made.to_empty(device=device)


class TorchNet:
    """A Net (net.py). `loss(outputs, y)` is a batch's mean; gradients longer than `max_norm` are scaled down to it. `layout`:
    how the parameters map to the run's canonical ones, as for learners.select.adapter_for."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        device: torch.device,
        max_norm: float | None = None,
        layout: Layout | str | None = None,
    ) -> None:
        self.adapter = adapter_for(model, layout)
        self.device = str(device)
        self._state = TorchOptimizer(optimizer, model)
        self.optimizer = self._state.name
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
        return self._state.state()

    def load(self, state: Mapping[str, Array]) -> None:
        self._state.load(state)
