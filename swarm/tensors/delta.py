"""What a learner publishes: anchor - theta."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.tensors.blocks import flat, same_size, scratch, spans
from swarm.tensors.precision import F32, widened


def delta(anchor: NDArray[Any], theta: NDArray[Any], out: NDArray[Any]) -> None:
    """out = anchor - theta, computed in fp32 and rounded to out's dtype.

    Three C-contiguous arrays of one shape (ValueError otherwise), each F32, F16 or BF16. `out` may be one of the
    other two.
    """
    size = same_size(anchor, theta, out)
    a, t, o = flat(anchor), flat(theta), flat(out)
    left, right = scratch(2)
    with np.errstate(all="ignore"):
        for span in spans(size):
            target = o[span]
            difference = target if target.dtype == F32 else left[: target.size]
            np.subtract(widened(a[span], left), widened(t[span], right), out=difference)
            if difference is not target:
                np.copyto(target, difference, casting="unsafe")
