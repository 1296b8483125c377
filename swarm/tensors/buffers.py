"""Merging buffers, of which contributions hold the values: their weighted mean, in the buffer's own dtype.

Floating ones: Σ wᵢ·xᵢ / Σ wᵢ in float64, rounded to fp32 and then to the dtype; equal values stay what they are, and the mean
never leaves their range. Integers: Σ wᵢ·xᵢ / Σ wᵢ in whole numbers of any size, rounded to the nearest, halves upwards; that
takes some 50 bytes of memory for each, which is nothing for the counters that they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import NotFinite
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import flat
from swarm.tensors.finite import all_finite
from swarm.tensors.precision import BUFFER_DTYPES, F32


class BufferMean:
    """Give the buffer of every contribution in turn, then take the mean."""

    def __init__(self, spec: TensorSpec, weights: Sequence[float]) -> None:
        self.spec, self._weights = spec, whole(weights) if _is_whole(spec) else list(weights)
        self._count = 0
        self._total: NDArray[Any] = np.zeros(spec.size, object if _is_whole(spec) else np.float64)

    def add(self, values: NDArray[Any]) -> None:
        """Of the buffer's dtype and shape. Raises NotFinite."""
        if not all_finite(values):
            raise NotFinite(self.spec.name)
        weight, self._count = self._weights[self._count], self._count + 1
        if weight:
            self._total += flat(values).astype(self._total.dtype) * weight

    def result(self) -> NDArray[Any]:
        """In the buffer's dtype and shape."""
        if _is_whole(self.spec):
            return nearest(self._total, int(sum(self._weights)), self.spec)
        return narrowed(self._total / math.fsum(self._weights), self.spec)


def narrowed(values: NDArray[np.float64], spec: TensorSpec) -> NDArray[Any]:
    """`values` (n,), of a floating buffer, in its dtype and shape."""
    with np.errstate(all="ignore"):
        found: NDArray[Any] = values.astype(F32).astype(BUFFER_DTYPES[spec.dtype]).reshape(spec.shape)
    return found


def nearest(total: NDArray[Any], count: int, spec: TensorSpec) -> NDArray[Any]:
    """`total` / `count`, Python's integers (n,), in the dtype and shape of a buffer of integers."""
    rounded = (2 * total + count) // (2 * count)
    found: NDArray[Any] = rounded.astype(BUFFER_DTYPES[spec.dtype]).reshape(spec.shape)
    return found


def whole(weights: Sequence[float]) -> list[int]:
    """Integers in exactly the same proportion: every float is one, divided by a power of two."""
    ratios = [float(weight).as_integer_ratio() for weight in weights]
    scale = max((denominator for _, denominator in ratios), default=1)
    return [numerator * (scale // denominator) for numerator, denominator in ratios]


def _is_whole(spec: TensorSpec) -> bool:
    return BUFFER_DTYPES[spec.dtype].kind == "i"
