"""Local training of FedAvg's clients in PyTorch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from swarm.core.errors import NotFinite, UsageError
from swarm.core.training import LocalTraining
from swarm.learners.layout import Layout
from swarm.learners.select import adapter_for
from swarm.tasks.descent import Kept, factors, kept_arrays, moved
from swarm.tasks.local import LossScale, check_rate, check_trainable, clip_factor, native_arguments
from swarm.tasks.net import Array
from swarm.tasks.seeding import seeded

_HALVES = {"F16": torch.float16, "BF16": torch.bfloat16}
_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, y) → a batch's mean


class TorchLocalNet:
    """A LocalNet (local.py). `loss(outputs, y)` is a batch's mean. `layout`, `buffers`: as for learners.select.adapter_for."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        device: torch.device,
        layout: Layout | str | None = None,
        buffers: bool,
    ) -> None:
        self.adapter = adapter_for(model, layout, buffers=buffers)
        self.device = str(device)
        self._model, self._loss, self._device = model, loss, device
        self._client: _Client | None = None

    def begin(self, spec: LocalTraining) -> None:
        self.end()
        check_trainable({name: p.dtype for name, p in self._model.named_parameters() if p.requires_grad})
        if spec.compiled:
            raise UsageError("compiled: PyTorch would compile the step anew in every process, for about a minute: leave it out")
        self._client = _Client(self._model, self._loss, spec=spec, device=self._device)

    def step(self, x: Array, y: Array, *, lr: float) -> float:
        if self._client is None:
            raise RuntimeError("no client is being trained: call begin first")
        check_rate(lr)
        with self._mode(training=True):
            return self._client.step(self._put(x), self._put(y), lr=lr)

    def end(self) -> None:
        self._client = None

    def loss(self, x: Array, y: Array) -> float:
        with self._mode(training=False), torch.no_grad():
            return self._loss(self._model(self._put(x)), self._put(y)).item()

    def predict(self, x: Array) -> Array:
        with self._mode(training=False), torch.no_grad():
            outputs: Array = self._model(self._put(x)).cpu().numpy()
            return outputs

    def seeded(self, seed: int | None) -> AbstractContextManager[None]:
        return seeded(seed)

    @contextmanager
    def _mode(self, *, training: bool) -> Iterator[None]:
        """For every submodule, each of which gets its own back."""
        before = [(module, module.training) for module in self._model.modules()]
        self._model.train(training)
        try:
            yield
        finally:
            for module, mode in before:
                module.training = mode

    def _put(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)


class _Client:
    """All that is kept while one client is trained, and gone with it: optimizer, anchor and loss scale."""

    def __init__(self, model: nn.Module, loss: Loss, *, spec: LocalTraining, device: torch.device) -> None:
        self._model, self._loss, self._spec = model, loss, spec
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [p for _, p in named]
        self._anchor = [p.detach().clone() for p in self._parameters] if spec.prox_mu else None
        self._scale = LossScale(spec)
        self._half = None if spec.local_dtype == "F32" else _half(spec, device)
        self._optimizer = _Native(spec, self._parameters) if spec.native else _Canonical(spec, self._parameters)

    def step(self, x: Tensor, y: Tensor, *, lr: float) -> float:
        before = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        try:
            value, gradients = self._backward(x, y)
            norm = self._norm(gradients)
            while not norm < math.inf and self._scale.halved():
                _put_back(before)  # else the batch would count twice in running statistics
                value, gradients = self._backward(x, y)
                norm = self._norm(gradients)
            if not norm < math.inf:
                raise NotFinite(f"gradient of {self._culprit(gradients)}")
        except BaseException:
            _put_back(before)
            raise
        self._scale.kept()
        if (factor := clip_factor(self._spec, norm)) < 1.0:
            for gradient in gradients:
                gradient.mul_(factor)
        self._optimizer.step(gradients, lr=lr)
        return value.item()

    def _backward(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss, and the gradient of each parameter with FedProx's term."""
        with nullcontext() if self._half is None else torch.autocast(x.device.type, dtype=self._half):
            outputs = self._model(x)
        value = self._loss(outputs if self._half is None else outputs.float(), y)
        scale = self._scale.value
        # A parameter that is not used gets zeros, as in MLX: decay and momentum go on.
        found = torch.autograd.grad(
            value if scale == 1.0 else value * scale, self._parameters, allow_unused=True, materialize_grads=True
        )
        gradients = list(found) if scale == 1.0 else [gradient / scale for gradient in found]
        if self._anchor is not None:
            with torch.no_grad():
                gradients = [
                    gradient + (p - anchor) * self._spec.prox_mu
                    for gradient, p, anchor in zip(gradients, self._parameters, self._anchor, strict=True)
                ]
        return value.detach(), gradients

    @staticmethod
    def _norm(gradients: list[Tensor]) -> float:
        """The L2 norm of all; it is finite only if every gradient is. One pass over each, and one wait for the device."""
        return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])).item()

    def _culprit(self, gradients: list[Tensor]) -> str:
        """The first parameter whose gradient is not finite; if only the norm of all is too large, that of the largest."""
        for name, gradient in zip(self._names, gradients, strict=True):
            if not gradient.isfinite().all():
                return name
        largest = [gradient.abs().max().item() if gradient.numel() else 0.0 for gradient in gradients]
        return self._names[largest.index(max(largest))]


def _put_back(buffers: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)


def _half(spec: LocalTraining, device: torch.device) -> torch.dtype:
    """Raises UsageError if the device cannot compute in it: autocast would only warn, and go on in F32."""
    dtype = _HALVES[spec.local_dtype]
    try:
        with torch.autocast(device.type, dtype=dtype):
            one = torch.ones((1, 1), device=device)
            if (one @ one).dtype == dtype:
                return dtype
    except RuntimeError:
        pass
    raise UsageError(f"local_dtype {spec.local_dtype}: PyTorch cannot compute in it on {device}")


class _Canonical:
    """The optimizer that descent.py states."""

    def __init__(self, spec: LocalTraining, parameters: list[nn.Parameter]) -> None:
        self._spec, self._parameters = spec, parameters
        count = kept_arrays(spec)
        self._kept: list[Kept] = [tuple(torch.zeros_like(p.detach()) for _ in range(count)) for p in parameters]
        self._step = 0

    @torch.no_grad()
    def step(self, gradients: list[Tensor], *, lr: float) -> None:
        self._step += 1
        by = factors(self._spec, step=self._step, lr=lr)
        for place, (p, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
            new, self._kept[place] = moved(self._spec, p, gradient, self._kept[place], by, sqrt=torch.sqrt, sign=torch.sign)
            p.copy_(new)


class _Native:
    """PyTorch's own optimizer, for its own options."""

    def __init__(self, spec: LocalTraining, parameters: list[nn.Parameter]) -> None:
        kind = _CLASSES.get(spec.optimizer)
        if kind is None:
            raise UsageError(f"native options: PyTorch has no optimizer {spec.optimizer} that could take them")
        accepted = list(inspect.signature(kind).parameters)
        name = f"PyTorch's {kind.__name__}"
        arguments = native_arguments(spec, kind=name, accepted=[one for one in accepted if one not in ("params", "lr")])
        if spec.dampening and "momentum" in arguments:
            raise UsageError(f"{name} leaves dampening out of the first step: give it in native, or leave native out")
        try:  # on a twin, since some options are refused at the first step only
            twin = [nn.Parameter(torch.zeros(1, device=p.device)) for p in parameters[:1]]
            twin[0].grad = torch.zeros_like(twin[0])
            kind(twin, lr=0.0, **arguments).step()
            self._optimizer: Any = kind(parameters, lr=0.0, **arguments)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"native options: {name} refuses them: {_first_line(error)}") from error
        self._parameters = parameters

    def step(self, gradients: list[Tensor], *, lr: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for p, gradient in zip(self._parameters, gradients, strict=True):
            p.grad = gradient
        try:
            self._optimizer.step()
        finally:
            self._optimizer.zero_grad()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
