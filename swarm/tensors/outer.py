"""The outer step: Nesterov momentum over the merged delta (DiLoCo, arXiv:2311.08105), in fp32, in place.

Only additions and multiplications, each rounded to fp32: the same bytes on every machine. A dot product, a norm or a
fused multiply-add would not be.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.tensors.blocks import flat, same_size, scratch, spans
from swarm.tensors.finite import finite_block
from swarm.tensors.precision import F32, widened


def step(
    base: NDArray[Any],  # F32, F16 or BF16: Θ, or its master copy
    delta: NDArray[np.float32],  # becomes the new Θ (or master), not rounded to its dtype yet
    *,
    momentum: NDArray[Any] | None,  # F32, F16 or BF16; None: zero
    new_momentum: NDArray[Any],  # F32, F16 or BF16; may be `momentum` itself
    lr: float,
    beta: float,
) -> bool:
    """m ← βm + Δ; Θ ← Θ − η(Δ + βm), with η and β rounded to fp32: torch.optim.SGD(nesterov=True) on Δ from zero momentum on.

    `delta` is given up for the result: no array is made, and `base` stays as it is. The momentum that is stored is rounded to
    its dtype; this step's Θ is not. Returns whether all of the new numbers are finite. C-contiguous arrays of one shape;
    ValueError otherwise, and if `delta` is not F32.
    """
    if delta.dtype != F32:
        raise ValueError(f"the merged delta must be F32, got {delta.dtype}")
    size = same_size(base, delta, new_momentum, *(() if momentum is None else (momentum,)))
    b, d, n = flat(base), flat(delta), flat(new_momentum)
    old = None if momentum is None else flat(momentum)
    eta, decay = np.float32(lr), np.float32(beta)
    first, second = scratch(2)
    sound = True
    with np.errstate(all="ignore"):
        for span in spans(size):
            update, stored = d[span], n[span]
            wide = second[: update.size]
            m = stored if stored.dtype == F32 else first[: update.size]
            if old is None:
                m[:] = 0
            else:
                np.multiply(widened(old[span], m), decay, out=m)
            np.add(m, update, out=m)
            np.multiply(m, decay, out=wide)
            if m is not stored:
                np.copyto(stored, m, casting="unsafe")
            np.add(update, wide, out=update)
            np.multiply(update, eta, out=update)
            np.subtract(widened(b[span], wide), update, out=update)
            sound = sound and finite_block(update, wide) and finite_block(stored, wide)
    return sound
