"""What becomes of a learner's own steps when a round that it reported to was committed: arithmetic on one parameter.

Only this learner sees the result, so a dot product is good enough here, whatever its rounding.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from swarm.tensors.blocks import flat, same_size, scratch, spans
from swarm.tensors.precision import F32, cast, widened

Alignment: TypeAlias = Literal["overwrite", "blend", "carry", "adaptive"]


def align(
    theta: NDArray[Any],  # the parameters as they are now; replaced
    committed: NDArray[Any],  # Θ, newly committed
    *,
    alignment: Alignment,
    published: NDArray[Any],  # the parameters as they were when the delta was made
    anchor: NDArray[Any],  # the Θ that the delta was made against
) -> float:
    """`theta` as `alignment` says; returns the share of the learner's own movement that it has now.

    overwrite: Θ. blend: Θ + ½(θ - Θ). carry: Θ + (θ - published), the steps made since the delta. adaptive:
    Θ + c(θ - published) with the `agreement` c of these steps with the committed change. In fp32, rounded to θ's dtype at the
    end. All C-contiguous, of one shape, each F32, F16 or BF16; ValueError otherwise.
    """
    match alignment:
        case "overwrite":
            share = 0.0
            cast(committed, theta)
        case "blend":
            share = 0.5
            toward(theta, committed, origin=committed, factor=share)
        case "carry":
            share = 1.0
            toward(theta, committed, origin=published, factor=share)
        case "adaptive":
            share = agreement(theta, published, committed, anchor)
            toward(theta, committed, origin=published, factor=share)
        case _:
            assert_never(alignment)
    return share


def toward(theta: NDArray[Any], committed: NDArray[Any], *, origin: NDArray[Any], factor: float) -> None:
    """θ ← Θ + factor·(θ - origin), in place; at a factor of 0 it is Θ, whatever θ is."""
    size = same_size(theta, committed, origin)
    if factor == 0:
        cast(committed, theta)
        return
    t, c, o = flat(theta), flat(committed), flat(origin)
    moved, spare = scratch(2)
    with np.errstate(all="ignore"):
        for span in spans(size):
            found = moved[: span.stop - span.start]
            np.subtract(widened(t[span], found), widened(o[span], spare), out=found)
            if factor != 1:
                np.multiply(found, np.float32(factor), out=found)
            target = t[span] if theta.dtype == F32 else found
            np.add(found, widened(c[span], spare), out=target)
            if target is found:
                np.copyto(t[span], found, casting="unsafe")


def agreement(theta: NDArray[Any], published: NDArray[Any], committed: NDArray[Any], anchor: NDArray[Any]) -> float:
    """max(0, cos) of the angle between θ - published and Θ - anchor; 0 if one of them has no length, or not a finite one."""
    size = same_size(theta, published, committed, anchor)
    arrays = [flat(array) for array in (theta, published, committed, anchor)]
    a, b, spare = scratch(3)
    product = drift = change = 0.0
    with np.errstate(all="ignore"):
        for span in spans(size):
            t, p, c, o = (array[span] for array in arrays)
            left, right = a[: t.size], b[: t.size]
            np.subtract(widened(t, left), widened(p, spare), out=left)
            np.subtract(widened(c, right), widened(o, spare), out=right)
            product += float(np.dot(left, right))
            drift += float(np.dot(left, left))
            change += float(np.dot(right, right))
    if not 0 < drift * change < math.inf:
        return 0.0
    cosine = product / math.sqrt(drift) / math.sqrt(change)
    return min(max(cosine, 0.0), 1.0) if math.isfinite(cosine) else 0.0
