"""Blank parameters in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def blank(arrays: Iterable[tuple[str, Any]]) -> tuple[torch.nn.Module, Callable[[float], None]]:
    model = torch.nn.Module()
    for name, array in arrays:
        layer = torch.nn.Module()
        layer.register_parameter("weight", torch.nn.Parameter(torch.from_numpy(array)))
        model.add_module(name.partition(".")[0], layer)

    def scale(factor: float) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(factor)

    return model, scale
