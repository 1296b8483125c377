"""Parameters without a task: what `swarm bench` moves about. No task of the registry, and nothing is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Shapes = dict[str, tuple[int, ...]]


def shapes(params: int, tensors: int) -> Shapes:
    """About `params` parameters in `tensors` tensors as a transformer has them: large and smaller matrices, and vectors."""
    units = [(8.0, 4.0, 4.0, 0.02)[i % 4] for i in range(tensors)]
    unit = params / sum(units)
    found: Shapes = {}
    for i, part in enumerate(units):
        size = max(1, round(part * unit))
        rows = 1 if part < 1 else max(1, int(size**0.5) // 64 * 64)
        found[f"layer{i:03d}.weight"] = (size,) if rows == 1 else (rows, max(1, size // rows))
    return found


def build(framework: str, shapes: Shapes, *, seed: int) -> tuple[Any, Callable[[float], None]]:
    """(a model for `learners.select.adapter_for`, what multiplies all its parameters by a number, in place)."""
    rng = np.random.default_rng(seed)
    if framework == "torch":
        from swarm.tasks.blank.torch import blank
    elif framework == "mlx":
        from swarm.tasks.blank.mlx import blank
    else:
        model = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}

        def scale(factor: float) -> None:
            for array in model.values():
                np.multiply(array, np.float32(factor), out=array)

        return model, scale
    return blank((name, rng.standard_normal(shape, dtype=np.float32)) for name, shape in shapes.items())
