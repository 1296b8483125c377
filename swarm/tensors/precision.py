"""The dtypes that cross the mailbox, and the casts between them: round to nearest even, subnormals kept.

NumPy and ml_dtypes cast without flushing subnormals, so nothing is done by a framework here. A NaN stays a NaN; its
payload bits are not promised.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from swarm.tensors.blocks import flat, same_size, spans

F32 = np.dtype("<f4")
F16 = np.dtype("<f2")
BF16 = np.dtype(ml_dtypes.bfloat16)

DTYPES: dict[str, np.dtype[Any]] = {"F32": F32, "F16": F16, "BF16": BF16}
"""Safetensors code -> NumPy dtype, of parameters: the one table that casts and adapters go by."""
CODES: dict[np.dtype[Any], str] = {dtype: code for code, dtype in DTYPES.items()}
"""NumPy dtype -> Safetensors code. A parameter of a dtype that is not here (big-endian ones included) is not exchanged."""

I32 = np.dtype("<i4")
I64 = np.dtype("<i8")
BUFFER_DTYPES: dict[str, np.dtype[Any]] = DTYPES | {"I32": I32, "I64": I64}
"""The same of everything that a schema may hold: buffers may be counters."""

F8_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
F8_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
F4_PAIRS = np.dtype(np.uint8)
"""Two F4 numbers (E2M1), the first in the low nibble. Nothing else in a payload is a uint8 array."""

WIRE_DTYPES: dict[str, np.dtype[Any]] = BUFFER_DTYPES | {"F8_E4M3": F8_E4M3, "F8_E8M0": F8_E8M0, "F4": F4_PAIRS}
"""What a payload may hold: besides the dtypes of parameters and buffers those of quantised deltas. tensors/codec.py gives them
their meaning."""
WIRE_CODES: dict[np.dtype[Any], str] = {dtype: code for code, dtype in WIRE_DTYPES.items()}


def wire_shape(array: NDArray[Any]) -> tuple[int, ...]:
    """The shape that a payload's header states for `array`: F4 counts its elements, of which each byte holds two."""
    if array.dtype == F4_PAIRS:
        return (*array.shape[:-1], 2 * array.shape[-1])
    return array.shape


def cast(array: NDArray[Any], out: NDArray[Any]) -> None:
    """`out` = `array` in out's dtype, block by block. Both of one shape, C-contiguous (else ValueError)."""
    source, target = flat(array), flat(out)
    with np.errstate(all="ignore"):
        for span in spans(same_size(array, out)):
            np.copyto(target[span], source[span], casting="unsafe")


def widened(block: NDArray[Any], scratch: NDArray[np.float32]) -> NDArray[np.float32]:
    """`block` (n,) as fp32: itself if it is F32, otherwise converted into the first n elements of `scratch`."""
    if block.dtype == F32:
        return block
    wide = scratch[: block.size]
    np.copyto(wide, block)
    return wide
