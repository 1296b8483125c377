"""Blank parameters in MLX."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
import mlx.nn as nn


def blank(arrays: Iterable[tuple[str, Any]]) -> tuple[nn.Module, Callable[[float], None]]:
    model = nn.Module()
    layers = []
    for name, array in arrays:
        layer = nn.Module()
        layer.weight = mx.array(array)
        model[name.partition(".")[0]] = layer
        layers.append(layer)

    def scale(factor: float) -> None:
        for layer in layers:
            layer.weight = layer.weight * factor
            mx.eval(layer.weight)  # one after the other: no second copy of the model

    return model, scale
