from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from swarm.core.tensorspec import BUFFER_DTYPE_BYTES, DTYPE_BYTES
from swarm.tensors.blocks import BLOCK, flat, scratch, spans
from swarm.tensors.precision import BF16, BUFFER_DTYPES, CODES, DTYPES, F32, WIRE_CODES, WIRE_DTYPES, cast

UPPER = np.arange(65_536, dtype=np.uint32) << 16
LOWER = (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
F32_SAMPLES = np.concatenate([UPPER | lower for lower in LOWER]).view(np.float32)
"""Every sign, exponent and upper mantissa, below, at and above the middle between two bf16 values."""


def rounded(values: NDArray[np.float32], *, mantissa_bits: int, min_exponent: int, largest: float) -> NDArray[np.float64]:
    """Round to nearest even by float64 arithmetic: exact, for the quotient by a power of two is."""
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
        _, exponent = np.frexp(wide)
        quantum = np.ldexp(1.0, np.maximum(exponent - 1, min_exponent) - mantissa_bits)
        result = np.rint(wide / quantum) * quantum
        result[np.abs(result) > largest] = np.inf
    return np.copysign(np.where(np.isfinite(wide), result, wide), wide)


def from_f32(array: NDArray[np.float32], code: str) -> NDArray[Any]:
    out = np.empty(array.shape, DTYPES[code])
    cast(array, out)
    return out


def to_f32(array: NDArray[Any]) -> NDArray[np.float32]:
    out = np.empty(array.shape, F32)
    cast(array, out)
    return out


@pytest.mark.parametrize(
    ("code", "mantissa_bits", "min_exponent", "largest"),
    [("BF16", 7, -126, float(2 - 2**-7) * 2.0**127), ("F16", 10, -14, 65504.0)],
)
def test_rounds_to_nearest_even(code: str, mantissa_bits: int, min_exponent: int, largest: float) -> None:
    ours = from_f32(F32_SAMPLES, code)
    assert CODES[ours.dtype] == code
    want = rounded(F32_SAMPLES, mantissa_bits=mantissa_bits, min_exponent=min_exponent, largest=largest)
    got = ours.astype(np.float64)
    number = ~np.isnan(F32_SAMPLES)
    assert np.isnan(got[~number]).all()
    assert got[number].tobytes() == want[number].tobytes()  # signs of zeros too
    subnormal = (np.abs(got) < 2.0**min_exponent) & (got != 0)
    assert subnormal.sum() > 100


@pytest.mark.parametrize("code", ["BF16", "F16"])
def test_rounds_as_torch_does(code: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16}[code]
    theirs = torch.from_numpy(F32_SAMPLES.copy()).to(dtype).view(torch.int16).numpy()
    number = ~np.isnan(F32_SAMPLES)
    assert from_f32(F32_SAMPLES, code).view(np.int16)[number].tobytes() == theirs[number].tobytes()


@pytest.mark.parametrize("code", ["BF16", "F16", "F32"])
def test_every_narrow_value_survives_the_way_there_and_back(code: str) -> None:
    if code == "F32":
        values = F32_SAMPLES
    else:
        values = np.arange(65_536, dtype=np.uint16).view(DTYPES[code])
    number = ~np.isnan(to_f32(values))
    assert from_f32(to_f32(values), code)[number].tobytes() == values[number].tobytes()


@given(npst.arrays(np.uint32, st.integers(0, 40)), st.sampled_from(["F32", "F16", "BF16"]))
def test_a_cast_is_numpys(bits: NDArray[np.uint32], code: str) -> None:
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        assert from_f32(values, code).tobytes() == values.astype(DTYPES[code]).tobytes()


def test_shapes_are_kept_and_blocks_are_seamless() -> None:
    values = np.arange(3 * (BLOCK + 1), dtype=np.float32).reshape(3, -1)
    narrow = from_f32(values, "BF16")
    assert narrow.shape == values.shape
    assert narrow.tobytes() == values.astype(BF16).tobytes()
    assert to_f32(np.float16(1.5).reshape(())).shape == ()


@pytest.mark.parametrize(
    ("array", "out"),
    [
        (np.zeros((2, 3), np.float32), np.zeros((3, 2), BF16)),
        (np.zeros((1, 3), np.float32), np.zeros((3, 3), BF16)),
        (np.zeros((2, 2), np.float32).T, np.zeros((2, 2), BF16).T),
        (np.zeros(4, np.float32)[::2], np.zeros(2, BF16)),
    ],
)
def test_what_cannot_be_cast(array: NDArray[Any], out: NDArray[Any]) -> None:
    with pytest.raises(ValueError):
        cast(array, out)


def test_the_tables_agree() -> None:
    assert {code: dtype.itemsize for code, dtype in DTYPES.items()} == DTYPE_BYTES
    assert [DTYPES[code] for code in CODES.values()] == list(CODES)
    assert np.dtype(">f4") not in CODES
    assert {code: dtype.itemsize for code, dtype in BUFFER_DTYPES.items()} == BUFFER_DTYPE_BYTES
    assert DTYPES.items() < BUFFER_DTYPES.items() < WIRE_DTYPES.items()
    assert [WIRE_DTYPES[code] for code in WIRE_CODES.values()] == list(WIRE_CODES)


@given(st.integers(0, 5 * BLOCK))
def test_spans_cover_everything_once(size: int) -> None:
    at = 0
    for span in spans(size):
        assert span.start == at
        assert 0 < span.stop - span.start <= BLOCK
        at = span.stop
    assert at == size


def test_scratch_is_allocated_once() -> None:
    first, second = scratch(2)
    assert not np.shares_memory(first, second)
    assert scratch(1)[0] is first


def test_flat_shares_memory_or_refuses() -> None:
    array = np.zeros((2, 3), np.float32)
    flat(array)[5] = 7
    assert array[1, 2] == 7
    with pytest.raises(ValueError):
        flat(array.T)
