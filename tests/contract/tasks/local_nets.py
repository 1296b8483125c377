"""Small models for local training, the same in either framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from swarm.tasks.local import LocalNet

PARAMETERS = {"a": (3,), "b": (2, 2)}
COUNT = 7  # numbers in them
NOTHING = np.zeros(1, np.float32)  # a `y` for losses that do not read it


def probe(framework: str, **values: np.ndarray[Any, Any]) -> LocalNet:
    """Parameters a and b, and a loss that is their inner product with x (batch, 7), a's part first: of a batch of one row, that
    row is the gradient. `frozen` (1,) is not trained, `unused` (2,) has no part in the loss."""
    given = {"frozen": np.ones(1), "unused": np.ones(2), **{name: np.zeros(shape) for name, shape in PARAMETERS.items()}}
    arrays = {name: np.asarray(array, np.float32) for name, array in (given | values).items()}
    if framework == "torch":
        import torch

        from swarm.tasks.local_torch import TorchLocalNet

        class Torch(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                for name, array in arrays.items():
                    setattr(self, name, torch.nn.Parameter(torch.from_numpy(array.copy()), requires_grad=name != "frozen"))

            def forward(self, x: Any) -> Any:
                return x @ torch.cat([self.a, self.b.flatten()]) * self.frozen

        return TorchLocalNet(Torch(), lambda outputs, y: outputs.mean(), device=torch.device("cpu"), buffers=False)
    import mlx.core as mx
    import mlx.nn as nn

    from swarm.tasks.local_mlx import MlxLocalNet

    class Mlx(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, array in arrays.items():
                setattr(self, name, mx.array(array))
            self.freeze(keys="frozen")

        def __call__(self, x: Any) -> Any:
            return x @ mx.concatenate([self.a, self.b.flatten()]) * self.frozen

    return MlxLocalNet(Mlx(), lambda outputs, y: outputs.mean(), device=mx.Device(mx.cpu), buffers=False)


class Seen:
    """What the model was in when it was last called."""

    modes: list[bool]
    dtype: str


def deep(
    framework: str, *, dropout: float = 0.5, norm: bool = True, activation: str = "", buffers: bool = False
) -> tuple[LocalNet, Any, Seen]:
    """(net, model, what it saw): a classifier of 4 numbers into 3, with nested modules, a batch norm and a dropout. The middle
    one, `inner.drop`, begins in evaluation mode, the others in training mode. `activation`: 'fail' raises when called."""
    seen = Seen()
    rng = np.random.default_rng(5)
    first = rng.normal(size=(8, 4)).astype(np.float32) / 2
    last = rng.normal(size=(3, 8)).astype(np.float32) / 2
    if framework == "torch":
        import torch
        from torch import nn

        from swarm.tasks.local_torch import TorchLocalNet

        class TorchInner(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.drop = nn.Dropout(dropout)
                if norm:
                    self.norm = nn.BatchNorm1d(8)

            def forward(self, x: Any) -> Any:
                return torch.tanh(self.drop(self.norm(x) if norm else x))

        class Torch(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc1, self.inner, self.fc2 = nn.Linear(4, 8), TorchInner(), nn.Linear(8, 3)

            def forward(self, x: Any) -> Any:
                seen.modes = [module.training for module in self.modules()]
                if activation == "fail":
                    raise ArithmeticError("no forward pass")
                hidden = self.fc1(x)
                seen.dtype = str(hidden.dtype)
                return self.fc2(self.inner(hidden))

        model: Any = Torch()
        with torch.no_grad():
            for parameter, array in ((model.fc1.weight, first), (model.fc2.weight, last)):
                parameter.copy_(torch.from_numpy(array))
            model.fc1.bias.zero_()
            model.fc2.bias.zero_()
        model.inner.drop.eval()
        return TorchLocalNet(model, nn.functional.cross_entropy, device=torch.device("cpu"), buffers=buffers), model, seen
    import mlx.core as mx
    import mlx.nn as mnn

    from swarm.tasks.local_mlx import MlxLocalNet

    class MlxInner(mnn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = mnn.Dropout(dropout)
            if norm:
                self.norm = mnn.BatchNorm(8)

        def __call__(self, x: Any) -> Any:
            return mx.tanh(self.drop(self.norm(x) if norm else x))

    class Mlx(mnn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.inner, self.fc2 = mnn.Linear(4, 8), MlxInner(), mnn.Linear(8, 3)

        def __call__(self, x: Any) -> Any:
            seen.modes = [module.training for _, module in self.named_modules()]
            if activation == "fail":
                raise ArithmeticError("no forward pass")
            hidden = self.fc1(x)
            seen.dtype = str(hidden.dtype)
            return self.fc2(self.inner(hidden))

    model = Mlx()
    model.fc1.weight, model.fc1.bias = mx.array(first), mx.zeros(8)
    model.fc2.weight, model.fc2.bias = mx.array(last), mx.zeros(3)
    model.inner.drop.eval()
    mx.eval(model.parameters())
    net = MlxLocalNet(model, lambda o, y: mnn.losses.cross_entropy(o, y).mean(), device=mx.Device(mx.cpu), buffers=buffers)
    return net, model, seen


def batch(seed: int = 0, rows: int = 6) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 4)).astype(np.float32), rng.integers(3, size=rows)


def parameters(net: LocalNet) -> dict[str, np.ndarray[Any, Any]]:
    """Copies."""
    return {name: np.array(array) for name, array in net.adapter.snapshot().items()}


def same(one: dict[str, np.ndarray[Any, Any]], other: dict[str, np.ndarray[Any, Any]]) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def statistics(model: Any) -> list[float]:
    """The batch norm's running mean and variance."""
    norm = model.inner.norm
    return [*norm.running_mean.tolist(), *norm.running_var.tolist()]


@contextmanager
def client(net: LocalNet, spec: Any) -> Iterator[Callable[..., float]]:
    net.begin(spec)
    try:
        yield net.step
    finally:
        net.end()
