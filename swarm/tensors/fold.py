"""Merging contributions one at a time, so that a closer holds none of them: only the sums, in fp32.

`mean` is the weighted mean, Σ wᵢ·Δᵢ with normalised weights. `rda` is Radial-Directional Averaging (arXiv:2604.21428): for
each parameter the weighted mean of the norms along the weighted mean direction, (Σ wᵢ‖Δᵢ‖) · φ(Σ wᵢ φ(Δᵢ)) with φ(v) = v/‖v‖
and φ(0) = 0. Deltas from different data are nearly orthogonal, so that their mean is the shorter the more there are; with RDA
the length of a step does not depend on the number of learners. Embeddings are merged by weighted mean: most of their rows have
a delta from few learners only. Buffers are merged by tensors/buffers.py.

Products and sums are rounded to fp32 each, norms to float64: their squares are added up by blocks, the blocks' sums exactly
(math.fsum). So the bytes are the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import NotFinite
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.agreement import Agreement
from swarm.tensors.blocks import flat, in_one_piece, scratch, spans, wide_scratch
from swarm.tensors.buffers import BufferMean
from swarm.tensors.codec import Decoder
from swarm.tensors.finite import finite_block
from swarm.tensors.precision import F32

Merge: TypeAlias = Literal["mean", "rda"]

EMBEDDINGS = frozenset(
    {
        *("emb", "embed", "embedding", "embeddings", "wte", "wpe", "pos"),
        *("embed_tokens", "tok_embeddings", "tok_emb", "token_embedding", "token_embeddings", "word_embeddings"),
        *("embed_positions", "pos_emb", "pos_embed", "position_embedding", "position_embeddings"),
    }
)
"""What the owner of an embedding table is called in models of PyTorch and MLX."""

_FAINT = 2.0**-16
"""A mean of unit directions that is shorter than this is zero but for rounding, which must not become a direction."""


def is_embedding(spec: TensorSpec) -> bool:
    """Whether a parameter is an embedding table, told from the schema alone, so that every closer finds the same: it has two
    axes, and the last component of its dotted name, not counting `weight`, is one of EMBEDDINGS."""
    parts = spec.name.lower().split(".")
    if parts[-1] == "weight":
        parts.pop()
    return len(spec.shape) == 2 and bool(parts) and parts[-1] in EMBEDDINGS


def normalised(weights: Sequence[float]) -> list[np.float32]:
    """Each weight divided by their sum: both in float64 (the sum exactly rounded), the quotient then rounded to fp32.

    So they need not add up to exactly 1. Raises ValueError for a negative or non-finite weight, and if the sum is
    zero or overflows: the caller leaves Θ as it was.
    """
    if any(not math.isfinite(w) or w < 0 for w in weights):
        raise ValueError(f"weights must be finite and >= 0, got {list(weights)}")
    try:
        total = math.fsum(weights)  # exact: the same whatever the Python version or the order
    except OverflowError:
        raise ValueError("the weights' sum overflows") from None
    if total == 0:
        raise ValueError("the weights' sum is zero")
    return [np.float32(w / total) for w in weights]


class Fold:
    """Give every contribution's tensors in turn, sorted by unit, then take the results."""

    def __init__(
        self,
        specs: Iterable[TensorSpec],
        weights: Sequence[float],
        *,
        merge: Merge,
        dtype: str | None,  # of the deltas
        embeddings: frozenset[str] = frozenset(),  # names of parameters that are merged by weighted mean whatever `merge` is
        norms: bool = False,  # whether they are asked for: a pass more, which RDA makes anyway
    ) -> None:
        """Raises ValueError for weights that `normalised` refuses."""
        specs = list(specs)
        self._specs = {spec.name: spec for spec in specs if not spec.buffer}
        self._buffer_specs = [spec for spec in specs if spec.buffer]
        self._rda = frozenset(self._specs) - embeddings if merge == "rda" else frozenset()
        self._dtype, self._measured = dtype, norms
        self._sums: dict[str, NDArray[np.float32]] = {}
        self.restart(weights, norms=norms)

    def restart(self, weights: Sequence[float], *, norms: bool | None = None) -> None:
        """Begin again with other contributions, in the memory that is there: one of them turned out not to count."""
        self._measured = self._measured if norms is None else norms
        self._weights = normalised(weights)
        if self._sums.keys() != self._specs.keys():  # some were given away
            self._sums = {}
        self._buffers = {spec.name: BufferMean(spec, weights) for spec in self._buffer_specs}
        self._seen = dict.fromkeys([*self._specs, *self._buffers], 0)
        self._lengths: dict[str, float] = {}  # by name: Σ w‖Δ‖
        self._squares: list[list[float]] = [[] for _ in weights]
        self._agreement = Agreement(self._specs.values(), len(weights))

    def add(self, name: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """The next contribution's tensor `name`; `tensors` holds its arrays as a payload does, scale included, checked against
        `payload_specs`.

        Raises NotFinite, after which only `restart` makes sense; ValueError if all contributions had theirs.
        """
        k = self._seen[name]
        if k == len(self._weights):
            raise ValueError(f"{name}: there are only {k} contributions")
        if name in self._buffers:
            self._buffers[name].add(tensors[name])
            self._seen[name] = k + 1
            return
        spec = self._specs[name]
        decoder = Decoder(tensors, spec, self._dtype)
        if name not in self._sums:
            fresh = self._specs.values() if not self._sums else [spec]
            self._sums |= in_one_piece({spec.name: (spec.shape, F32) for spec in fresh})
        weight = self._weights[k]
        factors = [weight]
        measured = self._measured or name in self._rda
        if measured:
            squares = sums_of_squares(decoder, spec)
            self._squares[k] += squares
            norm = math.sqrt(math.fsum(squares))
            if name in self._rda:
                self._lengths[name] = self._lengths.get(name, 0.0) + float(weight) * norm
                factors = _factors(float(weight) / norm if norm else 0.0)
        total = flat(self._sums[name])
        term, spare = scratch(2)
        place, take = self._agreement.place(k, name), self._agreement.take
        with np.errstate(all="ignore"):
            for span in spans(spec.size):
                block = decoder.block(span, term)
                square = math.nan if measured else float(np.dot(block, block))
                if math.isfinite(square):  # then so is every number, however the machine adds up
                    self._squares[k].append(square)
                elif not measured:
                    if not finite_block(block, spare):
                        raise NotFinite(name)
                    self._squares[k].append(_sum_of_squares(block))
                take(place, span.start, block)
                target = term[: block.size] if k else total[span]
                for factor in factors:
                    block = np.multiply(block, factor, out=target)
                if k:
                    np.add(total[span], target, out=total[span])
        self._seen[name] = k + 1

    @property
    def norms(self) -> list[float]:
        """Each contribution's L2 norm over the parameters given so far: with `norms`, of the same bits on every machine; else
        good enough for people, and for nothing."""
        return [math.sqrt(math.fsum(squares)) for squares in self._squares]

    @property
    def cosines(self) -> list[float | None]:
        """Between each contribution and the results taken so far, roughly: for people. None where one of them is zero."""
        return self._agreement.cosines

    def result(self, name: str) -> NDArray[Any]:
        """The merged delta of `name`, in its shape, F32, or the merged value of a buffer, in its dtype; the caller's from now
        on. Raises ValueError unless all contributions had theirs."""
        if self._seen[name] != len(self._weights):
            raise ValueError(f"{name}: {self._seen[name]} of {len(self._weights)} contributions")
        self._seen[name] = 0
        if name in self._buffers:
            return self._buffers[name].result()
        sums = self._sums.pop(name)
        if name in self._rda:
            _stretch(sums, self._lengths[name])
        self._agreement.merged(name, sums)
        return sums


def sums_of_squares(decoder: Decoder, spec: TensorSpec) -> list[float]:
    """Of each block, of the same bits on every machine. Raises NotFinite."""
    (block,) = scratch(1)
    sums = []
    with np.errstate(all="ignore"):
        for span in spans(spec.size):
            sums.append(_sum_of_squares(decoder.block(span, block)))
            if not math.isfinite(sums[-1]):  # the squares of finite fp32 numbers never overflow
                raise NotFinite(spec.name)
    return sums


def _sum_of_squares(block: NDArray[np.float32]) -> float:
    wide = wide_scratch()[: block.size]
    np.copyto(wide, block)
    np.multiply(wide, wide, out=wide)
    return float(np.add.reduce(wide))


def _factors(factor: float) -> list[np.float32]:
    """fp32 numbers whose product is `factor`, such that no rounding to a subnormal or to infinity comes between."""
    if factor == 0 or 2.0**-100 <= factor <= 2.0**100:
        return [np.float32(factor)]
    part = 2.0**100 if factor > 1 else 2.0**-100
    return [np.float32(part), np.float32(factor / part)]


def _stretch(direction: NDArray[np.float32], length: float) -> None:
    """Make `direction`, a weighted mean of unit vectors, as long as `length`, in place; zero if it is none."""
    values = flat(direction)
    with np.errstate(all="ignore"):
        norm = math.sqrt(math.fsum(_sum_of_squares(values[span]) for span in spans(values.size)))
        if norm < _FAINT:
            values[:] = 0
            return
        factors = _factors(length / norm)
        for span in spans(values.size):
            for factor in factors:
                np.multiply(values[span], factor, out=values[span])
