"""Merging contributions of which some may lie: the median, or the trimmed mean, of each number (arXiv:1803.01498).

All contributions count the same, whatever weight they claim. The numbers of one place are sorted; some are left out at either
end, and the rest's mean is taken in float64, one after the other, and rounded once to fp32. -0 counts as 0: then equal
numbers are the same bits, and the result does not depend on how a machine sorts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import NotFinite
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.agreement import Agreement
from swarm.tensors.blocks import BLOCK, flat, in_one_piece, scratch
from swarm.tensors.buffers import narrowed, nearest
from swarm.tensors.codec import GROUP, Decoder
from swarm.tensors.finite import all_finite
from swarm.tensors.fold import sums_of_squares
from swarm.tensors.precision import DTYPES, F32

MATRIX = 1 << 18
"""Numbers that are sorted at once, of all contributions: these stay in cache."""


def left_out(count: int, trim: float | None) -> int:
    """How many of `count` numbers are left out at either end: ⌊trim·count⌋, of `trim` as it is written in decimal; None: all
    but the middle one, or the middle two."""
    return (count - 1) // 2 if trim is None else math.floor(Fraction(repr(trim)) * count)


class Robust:
    """Give every parameter's tensors of all contributions together, after `look` at each, then take the results."""

    def __init__(
        self,
        specs: Iterable[TensorSpec],
        count: int,
        *,
        trim: float | None,  # None: the median
        dtype: str | None,  # of the deltas
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._trim, self._dtype = trim, dtype
        self._floating = [spec for spec in self._specs.values() if spec.dtype in DTYPES]
        self._merged: dict[str, NDArray[Any]] = {}
        self.restart(count)

    def restart(self, count: int) -> None:
        """Begin again with so many other contributions, in the memory that is there."""
        self._count = count
        if any(spec.name not in self._merged for spec in self._floating):  # some were given away
            self._merged = {}
        self._squares: list[list[float]] = [[] for _ in range(count)]
        self._agreement = Agreement([spec for spec in self._specs.values() if not spec.buffer], count)

    def look(self, k: int, name: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """At the tensor `name` of the `k`-th contribution; `tensors` holds its arrays as a payload does, checked against
        `payload_specs`. Raises NotFinite."""
        spec = self._specs[name]
        if spec.buffer:
            if not all_finite(tensors[name]):
                raise NotFinite(name)
        else:
            self._squares[k] += sums_of_squares(Decoder(tensors, spec, self._dtype), spec)

    @property
    def norms(self) -> list[float]:
        """Each contribution's L2 norm over the parameters looked at so far, of the same bits on every machine."""
        return [math.sqrt(math.fsum(squares)) for squares in self._squares]

    @property
    def cosines(self) -> list[float | None]:
        """Between each contribution and the results taken so far, roughly: for people. None where one of them is zero."""
        return self._agreement.cosines

    def add(self, name: str, contributions: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """The tensor `name` of all contributions, in the order in which they were looked at."""
        spec = self._specs[name]
        if not self._merged:
            self._merged = in_one_piece({each.name: (each.shape, F32) for each in self._floating})
        first = left_out(self._count, self._trim)
        kept = slice(first, self._count - first)
        if spec.dtype not in DTYPES:
            self._merged[name] = _middle_integers([tensors[name] for tensors in contributions], kept, spec)
            return
        target = flat(self._merged[name])
        decoders = [Decoder(tensors, spec, self._dtype) for tensors in contributions]
        width = min(BLOCK, max(MATRIX // self._count // GROUP, 1) * GROUP)
        places = [] if spec.buffer else [self._agreement.place(k, name) for k in range(self._count)]
        rows = np.empty((min(width, spec.size), self._count), F32)
        (block,) = scratch(1)
        for start in range(0, spec.size, width):
            span = slice(start, min(start + width, spec.size))
            numbers = rows[: span.stop - span.start]
            for k, decoder in enumerate(decoders):
                found = decoder.block(span, block)
                if not spec.buffer:
                    self._agreement.take(places[k], start, found)
                np.add(found, np.float32(0), out=numbers[:, k])
            numbers.sort(axis=1)
            target[span] = _mean(numbers, kept)

    def result(self, name: str) -> NDArray[Any]:
        """The merged delta of `name`, in its shape, F32, or the merged value of a buffer, in its dtype; the caller's from now
        on."""
        spec, merged = self._specs[name], self._merged.pop(name)
        if not spec.buffer:
            self._agreement.merged(name, merged)
        return narrowed(flat(merged).astype(np.float64), spec) if spec.buffer and merged.dtype == F32 else merged


def _mean(numbers: NDArray[np.float32], kept: slice) -> NDArray[np.float64]:
    """The mean of the columns `kept` of `numbers` (n, K), (n,)."""
    total = numbers[:, kept.start].astype(np.float64)
    for k in range(kept.start + 1, kept.stop):
        total += numbers[:, k]
    total /= kept.stop - kept.start
    return total


def _middle_integers(contributions: Sequence[NDArray[Any]], kept: slice, spec: TensorSpec) -> NDArray[Any]:
    numbers = np.stack([flat(values) for values in contributions])
    numbers.sort(axis=0)
    return nearest(numbers[kept].astype(object).sum(axis=0), kept.stop - kept.start, spec)
