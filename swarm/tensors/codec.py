"""How a delta is written at a delta_dtype, and read again: exact, and the same bytes on every machine.

F32, F16, BF16 (None: each parameter's own): the numbers, rounded to nearest even.

F8_E4M3: `<name>` in the parameter's shape, and `<name>.scale`, F32 of shape (), a power of two 2^k. A number is its code
times the scale. k is the least from -126 on for which the largest magnitude is at most 448·2^k, so that all of the format's
range is used.

F4 (E2M1, as OCP's MX format has it): `<name>` flattened and padded with zeros to blocks of 32, two numbers in a byte, the
first in the low nibble; and `<name>.scale`, F8_E8M0, one byte k + 127 for each block. k is floor(log2 of the block's largest
magnitude) - 2, and one more if that magnitude is above 7.25·2^k: 6 is the largest code, and clamping what is just below 8 to
it costs more than half the resolution for the others does (mean squared error of normally distributed numbers: 6 % lower
than without, and within 0.1 % of choosing the better k for each block).

A buffer's own value is written, in its own dtype, whatever the delta_dtype: a mean of values that are not negative never is
either, which a mean of differences need not be.

Rounding is to nearest, ties to even, subnormals kept; -0 stays -0. Tables of 64 Ki codes are looked up by the upper half of an
fp32 number, with one bit, whether anything is in the lower half, folded into its last: that rounds exactly, for ties have
zeros there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import NotFinite, UsageError
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import BLOCK, flat, in_one_piece, same_size, scratch, spans
from swarm.tensors.finite import EXPONENT_F32, all_finite, finite_block
from swarm.tensors.precision import BF16, BUFFER_DTYPES, F16, F32, WIRE_DTYPES, widened

GROUP = 32
"""Numbers that share a scale in F4."""
QUANTISED = ("F8_E4M3", "F4")

_GROUP_STARTS = np.arange(0, BLOCK, GROUP)
_LARGEST = {F16: 65504.0, BF16: float.fromhex("0x1.fep127")}
_E4M3_TOO_LARGE = 248 * 2.0**120  # it would be rounded to 2^128
_CLAMPED = np.uint32(0x68_0000)  # the fp32 mantissa of 7.25 = 1.8125 · 4


def scale_name(name: str) -> str:
    return f"{name}.scale"


def payload_specs(specs: Iterable[TensorSpec], dtype: str | None) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name, Safetensors code, shape) of every tensor in the payload of a delta of `specs` at `dtype`."""
    found: list[tuple[str, str, tuple[int, ...]]] = []
    for spec in specs:
        match None if spec.buffer else dtype:
            case "F8_E4M3" as code:
                found += [(spec.name, code, spec.shape), (scale_name(spec.name), "F32", ())]
            case "F4" as code:
                groups = _groups(spec.size)
                found += [(spec.name, code, (groups * GROUP,)), (scale_name(spec.name), "F8_E8M0", (groups,))]
            case _:
                found.append((spec.name, spec.dtype if spec.buffer else dtype or spec.dtype, spec.shape))
    return found


def check_names(specs: Iterable[TensorSpec], dtype: str | None) -> None:
    """Raises UsageError if a parameter's scale at `dtype` would have another tensor's name."""
    if dtype not in QUANTISED:
        return
    specs = list(specs)
    names = {spec.name for spec in specs}
    taken = sorted(spec.name for spec in specs if not spec.buffer and scale_name(spec.name) in names)
    if taken:
        beside = scale_name(taken[0])
        raise UsageError(
            f"delta_dtype or commit_dtype {dtype} keeps {taken[0]!r}'s beside it as {beside!r}, which names a parameter"
        )


def encode(
    anchor: NDArray[Any],
    theta: NDArray[Any],
    *,
    spec: TensorSpec,
    dtype: str | None,
    residual: NDArray[Any] | None = None,
    kept: NDArray[Any] | None = None,
    out: Mapping[str, NDArray[Any]] | None = None,
) -> dict[str, NDArray[Any]]:
    """One parameter's arrays in a delta's payload: q = Q(anchor - theta + residual), by name, as `payload_specs` lists them.

    `kept` receives anchor - theta + residual - Q⁻¹(q), rounded to its dtype (beyond whose range it is clamped): what is still
    to be sent once q was accepted (error feedback). It may be `residual` itself. `out`: arrays to use, by `room`.

    Of a buffer: its value, that is `theta`, and nothing is kept back.

    All others are C-contiguous, of one shape, each F32, F16 or BF16; ValueError otherwise. Raises NotFinite for NaN and
    infinity, also such as come of rounding; `kept` and `out` are worthless then. At F32, F16 and BF16 `out` may be the anchor.
    """
    size = same_size(anchor, theta, *(array for array in (residual, kept) if array is not None))
    if spec.buffer:
        return _value(theta, spec=spec, kept=kept, out=out)
    names = [(name, code, shape) for name, code, shape in payload_specs([spec], dtype)]
    q = {name: _new(code, shape) if out is None else out[name] for name, code, shape in names}
    values, difference, decoder = flat(q[spec.name]), _Difference(anchor, theta, residual), Decoder(q, spec, dtype)
    left = None if kept is None else flat(kept)
    block, spare, other = scratch(3)
    with np.errstate(all="ignore"):
        if dtype == "F8_E4M3":
            tops = [_largest(difference.block(span, block, spare), spare, spec.name) for span in spans(size)]
            largest = max(tops, default=0.0)
            if largest >= _E4M3_TOO_LARGE:
                raise NotFinite(spec.name)
            k = _e4m3_exponent(largest)
            q[scale_name(spec.name)][...] = 2.0**k
        for span in spans(size):
            n = span.stop - span.start
            plain = values.dtype == F32
            x = difference.block(span, values[span] if plain else block, spare)
            if dtype == "F8_E4M3":
                scaled = np.multiply(x, np.float32(2.0**-k), out=other[:n])
                _round(scaled, _encode_table(4, 3), values[span].view(np.uint8), spare)
            elif dtype == "F4":
                groups = slice(span.start // GROUP, _groups(span.stop))
                pairs, scales = values[groups.start * GROUP // 2 : groups.stop * GROUP // 2], q[scale_name(spec.name)][groups]
                padded = block[: scales.size * GROUP]
                padded[n:] = 0
                if not _encode_f4(padded, pairs, scales, spares=[spare, other]):
                    raise NotFinite(spec.name)
                if left is not None:  # it was scaled in place
                    x = difference.block(span, block, spare)
            else:
                if not plain:
                    np.copyto(values[span], x, casting="unsafe")
                if not finite_block(values[span], spare):
                    raise NotFinite(spec.name)
            if left is not None:
                _subtract(x, decoder.block(span, other), out=left[span], spare=other)
    return q


def _value(
    theta: NDArray[Any], *, spec: TensorSpec, kept: NDArray[Any] | None, out: Mapping[str, NDArray[Any]] | None
) -> dict[str, NDArray[Any]]:
    """A buffer's array in a payload. Raises NotFinite, and ValueError if it is of another dtype."""
    if theta.dtype != BUFFER_DTYPES[spec.dtype]:
        raise ValueError(f"{spec.name}: the buffer must be {spec.dtype}, got {theta.dtype}")
    if not all_finite(theta):
        raise NotFinite(spec.name)
    value = _new(spec.dtype, spec.shape) if out is None else out[spec.name]
    np.copyto(value, theta)
    if kept is not None:
        kept.fill(0)
    return {spec.name: value}


class Decoder:
    """The fp32 numbers of one parameter in a delta's payload, exactly: `tensors` as `check` accepts them. Of a buffer its
    values, unless they are integers."""

    def __init__(self, tensors: Mapping[str, NDArray[Any]], spec: TensorSpec, dtype: str | None) -> None:
        self._spec, self._dtype = spec, None if spec.buffer else dtype
        self._values = flat(tensors[spec.name])
        self._scales = flat(tensors[scale_name(spec.name)]) if self._dtype in QUANTISED else None

    def block(self, span: slice, out: NDArray[np.float32]) -> NDArray[np.float32]:
        """The numbers of `span`, which begins at a multiple of GROUP, (n,): in `out` (BLOCK,), or a view of the payload if that
        is F32."""
        n = span.stop - span.start
        if self._scales is None:
            return widened(self._values[span], out)
        found = out[:n]
        with np.errstate(all="ignore"):
            if self._dtype == "F8_E4M3":
                np.take(_decode_table(4, 3), self._values[span].view(np.uint8), out=found, mode="clip")
                np.multiply(found, self._scales[0], out=found)
                return found
            groups = slice(span.start // GROUP, _groups(span.stop))
            padded = out[: (groups.stop - groups.start) * GROUP]
            nibbles = self._values[groups.start * GROUP // 2 : groups.stop * GROUP // 2]
            np.take(_pair_table(), nibbles, out=padded.view(np.uint64), mode="clip")
            scales = np.take(_scale_table(), self._scales[groups].view(np.uint8))
            rows = padded.reshape(-1, GROUP)
            np.multiply(rows, scales[:, None], out=rows)
            return found


def is_scale(scale: float) -> bool:
    """Whether `scale` is one that F8_E4M3 may have: a positive power of two that is no fp32 subnormal."""
    return math.isfinite(scale) and scale >= 2.0**-126 and math.frexp(scale)[0] == 0.5


def _groups(size: int) -> int:
    return -(-size // GROUP)


def room(specs: Iterable[TensorSpec], dtype: str | None) -> dict[str, NDArray[Any]]:
    """Arrays for the delta of `specs`, not filled, in one piece of memory."""
    shapes = {name: _array_shape(code, shape) for name, code, shape in payload_specs(specs, dtype)}
    return in_one_piece({name: (array, WIRE_DTYPES[code]) for name, (array, code) in shapes.items()})


def _array_shape(code: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    return ((shape[0] // 2,) if code == "F4" else shape), code


def _new(code: str, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.empty((shape[0] // 2,) if code == "F4" else shape, WIRE_DTYPES[code])


class _Difference:
    """anchor - theta + residual, by blocks, each sum rounded to fp32."""

    def __init__(self, anchor: NDArray[Any], theta: NDArray[Any], residual: NDArray[Any] | None) -> None:
        self._anchor, self._theta = flat(anchor), flat(theta)
        self._residual = None if residual is None else flat(residual)

    def block(self, span: slice, out: NDArray[np.float32], spare: NDArray[np.float32]) -> NDArray[np.float32]:
        """In `out`. Both scratch, of at least the span's length."""
        found = out[: span.stop - span.start]
        np.subtract(widened(self._anchor[span], found), widened(self._theta[span], spare), out=found)
        if self._residual is not None:
            np.add(found, widened(self._residual[span], spare), out=found)
        return found


def _largest(x: NDArray[np.float32], spare: NDArray[np.float32], name: str) -> float:
    """The largest magnitude in `x` (n,). Raises NotFinite."""
    magnitudes = _magnitudes(x, spare)
    bits = magnitudes.max(initial=0)
    if bits >= EXPONENT_F32:
        raise NotFinite(name)
    return float(np.uint32(bits).view(np.float32))


def _magnitudes(x: NDArray[np.float32], spare: NDArray[np.float32]) -> NDArray[np.uint32]:
    """|x| as integers, which have the same order, above all of them infinity and then NaN. In `spare`."""
    found = spare[: x.size].view(np.uint32)
    np.bitwise_and(x.view(np.uint32), np.uint32(0x7FFF_FFFF), out=found)
    return found


def _e4m3_exponent(largest: float) -> int:
    """k, so that largest / 2^k is in (224, 448]; at least -126."""
    mantissa, exponent = math.frexp(largest)  # 448 = 0.875 · 2^9
    return max(exponent - (9 if mantissa <= 0.875 else 8), -126) if largest else -126


def _round(x: NDArray[np.float32], table: NDArray[np.uint8], out: NDArray[np.uint8], spare: NDArray[np.float32]) -> None:
    """out = the codes of `x`. All (n,), `spare` longer maybe."""
    bits, index = x.view(np.uint32), spare[: x.size].view(np.uint32)
    np.bitwise_and(bits, np.uint32(0xFFFF), out=index)
    np.add(index, np.uint32(0xFFFF), out=index)  # bit 16: whether anything is in the lower half
    np.bitwise_or(index, bits, out=index)
    np.right_shift(index, np.uint32(16), out=index)
    np.take(table, index, out=out, mode="clip")


def _subtract(x: NDArray[np.float32], q: NDArray[np.float32], *, out: NDArray[Any], spare: NDArray[np.float32]) -> None:
    """out = x - q, of a narrow dtype the nearest that is finite. All (n,); `spare` may be q."""
    if out.dtype == F32:
        np.subtract(x, q, out=out)
        return
    rest = np.subtract(x, q, out=spare[: x.size])
    largest = np.float32(_LARGEST[out.dtype])
    np.clip(rest, -largest, largest, out=rest)
    np.copyto(out, rest, casting="unsafe")


def _encode_f4(
    x: NDArray[np.float32], pairs: NDArray[np.uint8], scales: NDArray[Any], spares: list[NDArray[np.float32]]
) -> bool:
    """`x`, (32·m,), overwritten: pairs (16·m,), scales (m,). Returns whether all of `x` is finite."""
    spare, codes = spares[0], spares[1].view(np.uint8)[: x.size]
    top = np.maximum.reduceat(_magnitudes(x, spare), _GROUP_STARTS[: scales.size])
    if top.max() >= EXPONENT_F32:
        return False
    # Biased exponents: k + 127. 2^-k and 6·2^k must be finite.
    exponents = (top >> np.uint32(23)).astype(np.int32) - 2 + ((top & np.uint32(0x7F_FFFF)) > _CLAMPED)
    np.clip(exponents, 0, 252, out=exponents)
    scales.view(np.uint8)[:] = exponents
    inverse = ((254 - exponents) << 23).view(np.float32)
    rows = x.reshape(-1, GROUP)
    np.multiply(rows, inverse[:, None], out=rows)
    _round(x, _encode_table(2, 1), codes, spare)
    two = codes.view("<u2")
    other = spare.view(np.uint16)[: two.size]
    np.right_shift(two, np.uint16(4), out=other)
    np.bitwise_or(two, other, out=other)
    np.copyto(pairs, other, casting="unsafe")  # the lower byte
    return True


@functools.cache
def _levels(exponent_bits: int, mantissa_bits: int) -> NDArray[np.float64]:
    """The magnitude that each code without its sign stands for, rising."""
    codes = np.arange(1 << exponent_bits + mantissa_bits)
    exponents, mantissas = codes >> mantissa_bits, codes & (1 << mantissa_bits) - 1
    mantissas += np.where(exponents > 0, 1 << mantissa_bits, 0)
    bias = (1 << exponent_bits - 1) - 1
    levels: NDArray[np.float64] = np.ldexp(mantissas.astype(np.float64), np.maximum(exponents, 1) - bias - mantissa_bits)
    return levels


@functools.cache
def _encode_table(exponent_bits: int, mantissa_bits: int) -> NDArray[np.uint8]:
    """The code of each fp32 number whose lower half is zero: the nearest, of two the even one, or the largest."""
    numbers = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
    levels = _levels(exponent_bits, mantissa_bits)[: 127 if mantissa_bits == 3 else None]  # E4M3's last one is NaN
    middles = (levels[1:] + levels[:-1]) / 2
    size = np.abs(numbers)
    codes = np.searchsorted(middles, size)  # a tie goes down
    at = np.minimum(codes, middles.size - 1)
    codes += (middles[at] == size) & (codes % 2 == 1)
    return (codes | np.signbit(numbers) << exponent_bits + mantissa_bits).astype(np.uint8)


@functools.cache
def _decode_table(exponent_bits: int, mantissa_bits: int) -> NDArray[np.float32]:
    levels = _levels(exponent_bits, mantissa_bits).astype(np.float32)
    if mantissa_bits == 3:
        levels[127] = np.nan
    return np.concatenate([levels, -levels])


@functools.cache
def _pair_table() -> NDArray[np.uint64]:
    """Two fp32 numbers for each byte."""
    one = _decode_table(2, 1)
    byte = np.arange(256)
    return np.stack([one[byte & 15], one[byte >> 4]], axis=1).view(np.uint64).reshape(-1)


@functools.cache
def _scale_table() -> NDArray[np.float32]:
    scales = np.ldexp(np.float32(1), np.arange(256) - 127)
    scales[255] = np.nan
    return scales.astype(np.float32)
