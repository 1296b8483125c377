"""The weighted mean of contributions, and whether a contribution may be merged at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.tensors.blocks import BLOCK, flat, same_size, scratch, spans
from swarm.tensors.precision import BF16, F16, F32, widened

_EXPONENT: dict[np.dtype[Any], tuple[type[np.unsignedinteger[Any]], int]] = {
    F32: (np.uint32, 0x7F80_0000),
    F16: (np.uint16, 0x7C00),
    BF16: (np.uint16, 0x7F80),
}


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


def mean_block(
    deltas: Sequence[NDArray[Any]],  # flat
    weights: Sequence[np.float32],
    *,
    span: slice,
    out: NDArray[np.float32],  # (n,) of the span's length
    term: NDArray[np.float32],  # (n,) scratch
) -> None:
    """out = Σ weight · delta[span], added up in the given order: product and sum are rounded to fp32 each."""
    for k, (delta, weight) in enumerate(zip(deltas, weights, strict=True)):
        target = term if k else out
        np.multiply(widened(delta[span], target), weight, out=target)
        if k:
            np.add(out, term, out=out)


def weighted_mean(deltas: Sequence[NDArray[Any]], weights: Sequence[float], out: NDArray[np.float32]) -> None:
    """out = Σ wᵢ·Δᵢ / Σ wᵢ in fp32, in the given order: callers sort by unit, or two syncers get different bytes.

    `deltas`: one tensor of each contribution, all of out's shape, C-contiguous, F32, F16 or BF16. Raises ValueError
    for none, for differing shapes, and for weights that `normalised` refuses.
    """
    scales = normalised(weights)
    size = same_size(out, *deltas)
    target, sources = flat(out), [flat(d) for d in deltas]
    (term,) = scratch(1)
    with np.errstate(all="ignore"):
        for span in spans(size):
            n = span.stop - span.start
            mean_block(sources, scales, span=span, out=target[span], term=term[:n])


def all_finite(array: NDArray[Any]) -> bool:
    """Whether `array` (C-contiguous, F32, F16 or BF16) holds neither NaN nor infinity: no exponent has all bits set."""
    unsigned, mask = _EXPONENT[array.dtype]
    bits = flat(array).view(unsigned)
    (block,) = scratch(1)
    exponents = block.view(unsigned)[:BLOCK]
    for span in spans(bits.size):
        part = exponents[: span.stop - span.start]
        np.bitwise_and(bits[span], unsigned(mask), out=part)
        if part.max() == mask:
            return False
    return True
