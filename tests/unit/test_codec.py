"""Deltas at every delta_dtype, against ml_dtypes and an oracle in float64."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from swarm.core.errors import NotFinite, SchemaMismatch, UsageError
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import BLOCK, scratch, spans
from swarm.tensors.codec import Decoder, check_names, encode, payload_specs
from swarm.tensors.payload import Packed, check, unpack
from swarm.tensors.precision import BF16, DTYPES, F16, F32

CODES = [None, "F32", "F16", "BF16", "F8_E4M3", "F4"]
UPPER = np.arange(65_536, dtype=np.uint32) << 16
LOWER = (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
SAMPLES = np.concatenate([UPPER | lower for lower in LOWER]).view(np.float32)
"""Every sign, exponent and upper mantissa, with the lower half at and around the middle."""

shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-2, 2, width=32)


def spec(array: NDArray[Any], dtype: str = "F32") -> TensorSpec:
    return TensorSpec("w", dtype, array.shape)


def quantised(x: NDArray[np.float32], dtype: str | None, **more: Any) -> dict[str, NDArray[Any]]:
    """x as a delta: x - 0, which keeps the sign of zero."""
    return encode(x, np.zeros_like(x), spec=spec(x), dtype=dtype, **more)


def numbers(q: dict[str, NDArray[Any]], shape: tuple[int, ...], dtype: str | None) -> NDArray[np.float32]:
    one = TensorSpec("w", "F32", shape)
    decoder, (block,) = Decoder(q, one, dtype), scratch(1)
    parts = [decoder.block(span, block).copy() for span in spans(one.size)]
    return np.concatenate([*parts, np.empty(0, np.float32)]).reshape(shape)


def cast(x: NDArray[Any], dtype: Any) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(dtype).astype(np.float64)


def oracle_e4m3(x: NDArray[np.float32]) -> tuple[int, NDArray[np.float64]]:
    """(k, the numbers that x becomes), in float64, where scaling is exact."""
    largest = float(np.abs(x).max(initial=0))
    k = next((k for k in range(-126, 128) if largest <= 448 * 2.0**k), 128)
    return k, cast(x.astype(np.float64) / 2.0**k, ml_dtypes.float8_e4m3fn) * 2.0**k


def oracle_f4(x: NDArray[np.float32]) -> tuple[list[int], NDArray[np.float64]]:
    """(k of each block, the numbers that x becomes)."""
    wide = x.astype(np.float64).reshape(-1)
    ks, parts = [], []
    for start in range(0, wide.size, 32):
        block = wide[start : start + 32]
        largest = float(np.abs(block).max())
        k = math.frexp(largest)[1] - 1 - 2 if largest else -127
        k = min(max(k + (largest > 7.25 * 2.0**k), -127), 125)
        clamped = np.clip(block / 2.0**k, -6, 6)
        ks.append(k)
        parts.append(cast(clamped, ml_dtypes.float4_e2m1fn) * 2.0**k)
    return ks, np.concatenate([*parts, np.empty(0)]).reshape(x.shape)


def same(ours: NDArray[Any], want: NDArray[np.float64]) -> bool:
    """Bit for bit, signs of zeros too."""
    return ours.astype(np.float64).tobytes() == want.tobytes()


@pytest.mark.parametrize("k", [-126, -9, 0, 3, 119])
def test_e4m3_rounds_every_number_as_ml_dtypes_does(k: int) -> None:
    x = SAMPLES[np.abs(SAMPLES) <= 448 * 2.0**k]
    x = np.append(x, np.float32(448 * 2.0**k))  # so that the scale is 2^k
    q = quantised(x, "F8_E4M3")
    assert float(q["w.scale"]) == 2.0**k
    assert q["w"].tobytes() == (x.astype(np.float64) / 2.0**k).astype(ml_dtypes.float8_e4m3fn).tobytes()
    assert same(numbers(q, x.shape, "F8_E4M3"), oracle_e4m3(x)[1])
    if k > -126:  # below, fp32 has fewer numbers than E4M3
        assert len({*q["w"].view(np.uint8).tolist()}) == 254  # all but NaN


def test_f4_rounds_every_number_as_ml_dtypes_does() -> None:
    for k in (-127, 0, 60, 125):
        x = SAMPLES[np.abs(SAMPLES) <= 7.25 * 2.0**k]
        x = np.insert(x, range(0, x.size, 31), np.float32(7 * 2.0**k))  # in each block, so that each has the scale 2^k
        q = quantised(x, "F4")
        assert set(q["w.scale"].view(np.uint8).tolist()) == {k + 127}
        want = np.clip(x.astype(np.float64) / 2.0**k, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
        codes = np.stack([q["w"] & 15, q["w"] >> 4], axis=1).reshape(-1)
        assert codes[: x.size].tobytes() == want.tobytes()
        assert not codes[x.size :].any()
        assert same(numbers(q, x.shape, "F4"), oracle_f4(x)[1])
        assert set(codes.tolist()) == set(range(16))


def test_the_other_dtypes_round_as_ml_dtypes_does() -> None:
    x = SAMPLES[np.abs(SAMPLES) < 65519]
    for code in ("F32", "F16", "BF16"):
        assert quantised(x, code)["w"].tobytes() == x.astype(DTYPES[code]).tobytes()


@given(npst.arrays(np.float32, shapes, elements=finite))
@example(np.array([3.2964854e38], np.float32))
def test_any_delta_is_the_oracles(x: NDArray[np.float32]) -> None:
    if np.abs(x).max(initial=0) >= 248 * 2.0**120:  # rounded, it would be 2^128
        with pytest.raises(NotFinite):
            quantised(x, "F8_E4M3")
    else:
        k, want = oracle_e4m3(x)
        q = quantised(x, "F8_E4M3")
        assert float(q["w.scale"]) == 2.0**k
        assert same(numbers(q, x.shape, "F8_E4M3"), want)
    ks, want = oracle_f4(x)
    q = quantised(x, "F4")
    assert [byte - 127 for byte in q["w.scale"].view(np.uint8).tolist()] == ks
    assert same(numbers(q, x.shape, "F4"), want)


@given(st.floats(2.0**-117, 2.0**127, width=32))
def test_the_whole_range_of_e4m3_is_used(largest: float) -> None:
    q = quantised(np.array([largest, 0], np.float32), "F8_E4M3")
    assert 224 < largest / float(q["w.scale"]) <= 448


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, BLOCK - 1, BLOCK, 2 * BLOCK + 17])
def test_blocks_are_seamless_and_the_payload_is_as_its_specs_say(size: int, dtype: str | None) -> None:
    random = np.random.default_rng(size)
    anchor, theta, residual = (random.standard_normal(size).astype(np.float32) for _ in range(3))
    kept = np.empty(size, np.float32)
    q = encode(anchor, theta, spec=spec(anchor), dtype=dtype, residual=residual, kept=kept)
    check(q, [spec(anchor)], dtype)
    x = (anchor - theta) + residual
    found = numbers(q, x.shape, dtype)
    assert kept.tobytes() == (x - found).tobytes()
    if dtype == "F8_E4M3":
        assert same(found, oracle_e4m3(x)[1])
    elif dtype == "F4":
        assert same(found, oracle_f4(x)[1])
    else:
        assert found.tobytes() == x.astype(DTYPES[dtype or "F32"]).astype(np.float32).tobytes()


@pytest.mark.parametrize("dtype", CODES)
def test_zeros_and_scalars(dtype: str | None) -> None:
    for x in (np.zeros((3, 50), np.float32), np.array(-1.5, np.float32), np.zeros((0, 4), np.float32)):
        q = quantised(x, dtype)
        check(q, [spec(x)], dtype)
        assert numbers(q, x.shape, dtype).tobytes() == x.tobytes()
    mixed = np.concatenate([np.ones(32), np.zeros(32), np.full(32, 1e-30)]).astype(np.float32)
    if dtype == "F4":
        q = quantised(mixed, dtype)
        assert q["w.scale"].view(np.uint8)[1] == 0
        assert (numbers(q, mixed.shape, dtype)[64:] > 0).all()  # a block's scale is its own


@pytest.mark.parametrize("anchor_dtype", [F32, F16, BF16])
@pytest.mark.parametrize("dtype", CODES)
def test_parameters_of_any_dtype(anchor_dtype: np.dtype[Any], dtype: str | None) -> None:
    random = np.random.default_rng(5)
    anchor, theta = (random.standard_normal((7, 13)).astype(anchor_dtype) for _ in range(2))
    code = {F32: "F32", F16: "F16", BF16: "BF16"}[anchor_dtype]
    one = TensorSpec("w", code, anchor.shape)
    residual = random.standard_normal((7, 13)).astype(BF16)
    wide = anchor.astype(np.float32) - theta.astype(np.float32) + residual.astype(np.float32)
    ours = encode(anchor, theta, spec=one, dtype=dtype, residual=residual)
    check(ours, [one], dtype)
    assert {n: a.tobytes() for n, a in ours.items()} == {n: a.tobytes() for n, a in quantised(wide, dtype or code).items()}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, BLOCK + 40])
@pytest.mark.parametrize("dtype", CODES)
def test_what_is_not_finite_is_not_encoded(dtype: str | None, at: int, bad: float) -> None:
    x = np.ones(BLOCK + 41, np.float32)
    x[at] = bad
    with pytest.raises(NotFinite, match=r"^w: ") as caught:
        quantised(x, dtype)
    assert caught.value.name == "w"


def test_what_overflows_is_not_encoded() -> None:
    big = np.array([3e38, 3e38], np.float32)
    with pytest.raises(NotFinite):
        encode(big, -big, spec=spec(big), dtype="F8_E4M3")
    for dtype, x in (("F16", 65520.0), ("BF16", 3.4e38), ("F8_E4M3", 248 * 2.0**120)):  # the least that rounds up to 2^128
        with pytest.raises(NotFinite):
            quantised(np.array([x], np.float32), dtype)
    assert numbers(quantised(np.array([247.9 * 2.0**120], np.float32), "F8_E4M3"), (1,), "F8_E4M3") == 240 * 2.0**120
    assert numbers(quantised(np.array([3.4e38], np.float32), "F4"), (1,), "F4") == 6 * 2.0**125
    assert numbers(quantised(np.array([65519], np.float32), "F16"), (1,), "F16") == 65504


@pytest.mark.parametrize("kept_dtype", [F32, F16, BF16])
@pytest.mark.parametrize("dtype", CODES)
def test_the_residual_may_be_replaced_in_place(dtype: str | None, kept_dtype: np.dtype[Any]) -> None:
    random = np.random.default_rng(9)
    anchor, theta = (random.standard_normal(BLOCK + 40).astype(np.float32) for _ in range(2))
    residual = (random.standard_normal(anchor.shape) / 10).astype(kept_dtype)
    apart = np.empty_like(residual)
    want = encode(anchor, theta, spec=spec(anchor), dtype=dtype, residual=residual, kept=apart)
    got = encode(anchor, theta, spec=spec(anchor), dtype=dtype, residual=residual, kept=residual)
    assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}
    assert residual.tobytes() == apart.tobytes()


def test_a_narrow_residual_stays_finite() -> None:
    x = np.array([1e9, -3e8], np.float32)
    kept = np.empty(2, np.float16)
    q = quantised(x, "F4", kept=kept)
    assert (np.abs(x - numbers(q, (2,), "F4")) > 65504).any()
    assert np.isfinite(kept).all()


def test_shapes_must_agree() -> None:
    for more in ({"residual": np.zeros(3, np.float32)}, {"kept": np.zeros((2, 1), np.float32)}):
        with pytest.raises(ValueError, match="shape"):
            quantised(np.zeros(2, np.float32), "F4", **more)


def test_what_a_payload_must_hold() -> None:
    specs = [TensorSpec("a", "BF16", (5, 7)), TensorSpec("b", "F32", ()), TensorSpec("z", "F32", (0, 3))]
    assert payload_specs(specs, None) == [("a", "BF16", (5, 7)), ("b", "F32", ()), ("z", "F32", (0, 3))]
    assert payload_specs(specs, "F16") == [("a", "F16", (5, 7)), ("b", "F16", ()), ("z", "F16", (0, 3))]
    assert payload_specs(specs, "F8_E4M3") == [
        ("a", "F8_E4M3", (5, 7)),
        ("a.scale", "F32", ()),
        ("b", "F8_E4M3", ()),
        ("b.scale", "F32", ()),
        ("z", "F8_E4M3", (0, 3)),
        ("z.scale", "F32", ()),
    ]
    assert payload_specs(specs, "F4") == [
        ("a", "F4", (64,)),
        ("a.scale", "F8_E8M0", (2,)),
        ("b", "F4", (32,)),
        ("b.scale", "F8_E8M0", (1,)),
        ("z", "F4", (0,)),
        ("z.scale", "F8_E8M0", (0,)),
    ]


def test_names_that_would_stand_twice_are_refused() -> None:
    specs = [TensorSpec(name, "F32", (2,)) for name in ("norm", "norm.scale", "fc", "fc.master", "other.scale")]
    for dtype in (None, "F32", "BF16"):
        check_names(iter(specs), dtype)
    for dtype in ("F8_E4M3", "F4"):
        with pytest.raises(UsageError, match=rf"{dtype} .*'norm\.scale'"):
            check_names(iter(specs), dtype)
    check_names(specs[2:], "F4")


@pytest.mark.parametrize("scale", [0.0, -1.0, 3.0, math.inf, math.nan, 2.0**-127])
def test_a_scale_that_is_no_power_of_two_is_refused(scale: float) -> None:
    q = quantised(np.ones(3, np.float32), "F8_E4M3")
    check(q, [TensorSpec("w", "F32", (3,))], "F8_E4M3")
    q["w.scale"][...] = scale
    with pytest.raises(SchemaMismatch) as caught:
        check(q, [TensorSpec("w", "F32", (3,))], "F8_E4M3")
    assert caught.value.names == ("w.scale",)


def test_a_hostile_payload_decodes_to_what_it_says() -> None:
    one = TensorSpec("w", "F32", (40,))
    q = quantised(np.ones(40, np.float32), "F4")
    q["w.scale"].view(np.uint8)[1] = 255  # NaN
    found = numbers(q, (40,), "F4")
    assert np.isnan(found[32:]).all()
    assert (found[:32] == 1).all()
    q = quantised(np.ones(40, np.float32), "F8_E4M3")
    q["w"].view(np.uint8)[[3, 4]] = 0x7F, 0xFF
    assert np.flatnonzero(np.isnan(numbers(q, one.shape, "F8_E4M3"))).tolist() == [3, 4]


@pytest.mark.parametrize("dtype", CODES)
def test_through_a_payload_and_through_safetensors(dtype: str | None) -> None:
    specs = [TensorSpec("w", "F32", (5, 7)), TensorSpec("v", "F32", ()), TensorSpec("z", "F32", (0, 2))]
    random = np.random.default_rng(1)
    arrays = {s.name: random.standard_normal(s.shape).astype(np.float32) for s in specs}
    q: dict[str, NDArray[Any]] = {}
    for s in specs:
        q |= encode(arrays[s.name], np.zeros(s.shape, np.float32), spec=s, dtype=dtype)
    data = b"".join(Packed(q))
    found = unpack(data)
    check(found, specs, dtype)
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in q.items()}
    theirs = dict(safetensors.deserialize(data))
    assert {(n, t["dtype"], tuple(t["shape"])) for n, t in theirs.items()} == set(payload_specs(specs, dtype))
    assert {n: bytes(t["data"]) for n, t in theirs.items()} == {n: a.tobytes() for n, a in q.items()}
    (block,) = scratch(1)
    for s in specs:
        for span in spans(s.size):
            assert np.isfinite(Decoder(found, s, dtype).block(span, block)).all()  # not aligned in there
