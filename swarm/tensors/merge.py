"""The weighted mean of contributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.tensors.blocks import flat, same_size, scratch, spans
from swarm.tensors.finite import all_finite as all_finite
from swarm.tensors.precision import widened


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
