"""Whether numbers are finite: the cheapest test that is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.tensors.blocks import flat, scratch, spans
from swarm.tensors.precision import BF16, F16, F32

EXPONENT_F32 = 0x7F80_0000
_EXPONENT: dict[np.dtype[Any], tuple[type[np.unsignedinteger[Any]], int]] = {
    F32: (np.uint32, EXPONENT_F32),
    F16: (np.uint16, 0x7C00),
    BF16: (np.uint16, 0x7F80),
}


def finite_block(
    block: NDArray[Any],  # (n,) F32, F16 or BF16
    spare: NDArray[np.float32],  # at least n elements; overwritten
) -> bool:
    """Whether `block` holds neither NaN nor infinity.

    A finite sum of squares proves it with one fast pass, however the machine adds up. One that is not finite may come of
    finite numbers too: then, and for narrow dtypes, the exponents decide.
    """
    if block.dtype == F32:
        with np.errstate(all="ignore"):
            if np.isfinite(np.dot(block, block)):
                return True
    unsigned, mask = _EXPONENT[block.dtype]
    exponents = spare.view(unsigned)[: block.size]
    np.bitwise_and(block.view(unsigned), unsigned(mask), out=exponents)
    return not bool((exponents == mask).any())


def all_finite(array: NDArray[Any]) -> bool:
    """Whether `array` (C-contiguous, F32, F16, BF16 or of integers) holds neither NaN nor infinity."""
    if array.dtype.kind == "i":
        return True
    source = flat(array)
    (spare,) = scratch(1)
    return all(finite_block(source[span], spare) for span in spans(source.size))
