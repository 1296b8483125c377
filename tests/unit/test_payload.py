from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from swarm.core import header as headers
from swarm.core.errors import HeaderError, SchemaMismatch
from swarm.tensors.payload import (
    CHUNK_BYTES,
    MAX_HEADER_BYTES,
    Packed,
    check,
    header_size,
    parse_header,
    unpack,
)
from swarm.tensors.precision import BF16, F4_PAIRS, F8_E4M3, F8_E8M0, WIRE_CODES, wire_shape
from swarm.tensors.schema import TensorSpec

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10).filter(lambda name: name != "__metadata__")


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    """Any bits, NaN payloads included."""
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    if draw(st.booleans()):
        return draw(npst.arrays(np.uint32, shape)).view(np.float32)
    return draw(npst.arrays(np.uint16, shape)).view(draw(st.sampled_from([np.dtype(np.float16), BF16])))


tensor_dicts = st.dictionaries(names, arrays(), max_size=5)
narrow_arrays = st.builds(
    lambda array, dtype: array.view(dtype),
    npst.arrays(np.uint8, npst.array_shapes(max_dims=3, min_side=0, max_side=5)),
    st.sampled_from([F4_PAIRS, F8_E4M3, F8_E8M0]),
)
wire_dicts = st.dictionaries(names, arrays() | narrow_arrays, max_size=5)


def bits(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.name, array.shape, array.tobytes()


def blob(header: object, data: bytes = b"", *, raw: bytes | None = None) -> bytes:
    text = json.dumps(header).encode() if raw is None else raw
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@given(wire_dicts)
def test_what_is_packed_is_unpacked(tensors: dict[str, NDArray[Any]]) -> None:
    packed = Packed(tensors)
    data = b"".join(packed)
    assert len(data) == packed.size_bytes
    assert packed.sha256 == hashlib.sha256(data).hexdigest()
    assert header_size(data[:8], len(data)) % 8 == 0
    found = unpack(data)
    assert list(found) == sorted(tensors)
    assert {name: bits(array) for name, array in found.items()} == {name: bits(a) for name, a in tensors.items()}
    assert not any(array.flags.writeable for array in found.values())


@given(wire_dicts, st.randoms())
def test_equal_tensors_give_equal_bytes_in_any_order(tensors: dict[str, NDArray[Any]], random: Any) -> None:
    shuffled = dict(random.sample(list(tensors.items()), len(tensors)))
    assert b"".join(Packed(shuffled)) == b"".join(Packed(tensors))


@given(wire_dicts)
def test_safetensors_reads_what_we_write(tensors: dict[str, NDArray[Any]]) -> None:
    found = dict(safetensors.deserialize(b"".join(Packed(tensors))))
    assert {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in found.items()} == {
        name: (WIRE_CODES[a.dtype], wire_shape(a), a.tobytes()) for name, a in tensors.items()
    }


@given(tensor_dicts, st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1))
def test_we_read_what_safetensors_writes(tensors: dict[str, NDArray[Any]], metadata: dict[str, str] | None) -> None:
    found = unpack(safetensors.numpy.save(tensors, metadata))
    assert {name: bits(a) for name, a in found.items()} == {name: bits(a) for name, a in tensors.items()}


def test_chunks_are_bounded_and_share_the_tensors_memory() -> None:
    big = np.zeros(CHUNK_BYTES // 2, np.float32)  # two chunks
    _header, *chunks = Packed({"w": big})
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES, CHUNK_BYTES]
    addresses = [np.frombuffer(chunk, np.uint8).ctypes.data for chunk in chunks]
    assert addresses == [big.ctypes.data, big.ctypes.data + CHUNK_BYTES]


def test_the_hash_is_that_of_the_last_whole_iteration() -> None:
    array = np.zeros(4, np.float32)
    packed = Packed({"w": array})
    with pytest.raises(RuntimeError):
        _ = packed.sha256
    first = b"".join(packed)
    assert packed.sha256 == hashlib.sha256(first).hexdigest()
    next(iter(packed))
    with pytest.raises(RuntimeError):
        _ = packed.sha256
    array += 1
    second = b"".join(packed)
    assert second != first
    assert packed.sha256 == hashlib.sha256(second).hexdigest()


@pytest.mark.parametrize(
    "tensors",
    [
        {"w": np.zeros((2, 3), np.float32).T},
        {"w": np.zeros(3, np.float64)},
        {"w": np.zeros(3, ">f4")},
        {"w": np.zeros(3, ml_dtypes.float8_e5m2)},
        {"w": np.zeros((), np.uint8)},
        {"__metadata__": np.zeros(3, np.float32)},
        {"\ud800": np.zeros(3, np.float32)},
    ],
    ids=["strided", "F64", "big-endian", "F8_E5M2", "F4 scalar", "reserved", "surrogate"],
)
def test_what_cannot_be_packed(tensors: dict[str, NDArray[Any]]) -> None:
    with pytest.raises(ValueError):
        Packed(tensors)


def test_a_header_that_would_not_be_read_is_not_written() -> None:
    one = np.zeros(0, np.float32)
    with pytest.raises(ValueError, match="header"):
        Packed({"x" * 1000 + str(n): one for n in range(MAX_HEADER_BYTES // 1000)})


def test_views_need_no_copy_and_no_alignment() -> None:
    tensors = {"a": np.array([1.5], BF16), "b": np.array([2.5], np.float32)}
    data = bytearray(b"".join(Packed(tensors)))
    found = unpack(data)
    assert not found["b"].flags.aligned
    data[-4:] = struct.pack("<f", 7.0)
    assert found["b"][0] == 7.0
    with pytest.raises(ValueError, match="read-only"):
        found["b"][0] = 1


def test_the_header_alone_is_enough_to_parse() -> None:
    data = b"".join(Packed({"w": np.zeros((2, 3), np.float32), "b": np.zeros(5, BF16)}))
    end = header_size(data[:8], len(data))
    b, w = parse_header(data[:end], len(data))
    assert (b.name, b.dtype, b.shape, b.end - b.begin) == ("b", "BF16", (5,), 10)
    assert (w.name, w.dtype, w.shape, w.end) == ("w", "F32", (2, 3), len(data))
    assert b.begin == end


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "HeaderTruncated"),
        (b"\x02\0\0\0\0\0\0", "HeaderTruncated"),
        ((3).to_bytes(8, "little") + b"{}", "HeaderTruncated"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "HeaderTooLong"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b" " * (MAX_HEADER_BYTES + 1), "HeaderTooLong"),
        (blob(0, raw=b'{"\xff":1}'), "HeaderNotUtf8"),
        (blob(0, raw=b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'), "HeaderNotUtf8"),
        (blob(0, raw=b'{"w"'), "HeaderNotJson"),
        (blob(0, raw=b"{}{}"), "HeaderNotJson"),
        (blob(0, raw=b'{"w":' + b"[" * 500_000), "HeaderNotJson"),
        (blob(0, raw=b'{"w":' + b"9" * 5_000 + b"}"), "HeaderNotJson"),
        (blob(0, raw=b""), "HeaderNotObject"),
        (blob([]), "HeaderNotObject"),
        (blob(0, raw=b" {}"), "HeaderNotObject"),
        (blob({"w": 3}), "HeaderNotObject"),
        (blob({"w": None}), "HeaderNotObject"),
        (
            blob(
                0,
                raw=b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                b'"\\u0077":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
                data=bytes(4),
            ),
            "HeaderDuplicateName",
        ),
        (
            blob(0, raw=b'{"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', data=bytes(4)),
            "HeaderDuplicateName",
        ),
        (blob(0, raw=b'{"__metadata__":{},"__metadata__":{}}'), "HeaderDuplicateName"),
        (blob({"w": {}}), "HeaderUnknownDtype"),
        (blob({"w": entry("F64", [1], [0, 8])}, bytes(8)), "HeaderUnknownDtype"),
        (blob({"w": entry("F8_E5M2", [4])}, bytes(4)), "HeaderUnknownDtype"),
        (blob({"w": entry(["F32"])}, bytes(4)), "HeaderUnknownDtype"),
        (blob({"w": entry(shape=None)}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=4)}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape={"0": 1})}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=[-1])}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=[-1, -1])}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=[1.0])}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=[True])}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=["1"])}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=[float("nan")])}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=[2**64 + 1])}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=[2**33, 2**33, 0])}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=[1] * 65)}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(shape=[10**18] * 300_000)}, bytes(4)), "HeaderBadShape"),
        (blob({"w": entry(offsets=None)}, bytes(4)), "HeaderBadOffsets"),
        (blob({"w": entry(offsets=[0])}, bytes(4)), "HeaderBadOffsets"),
        (blob({"w": entry(offsets=[0, 4, 4])}, bytes(4)), "HeaderBadOffsets"),
        (blob({"w": entry(offsets=[0, 4.0])}, bytes(4)), "HeaderBadOffsets"),
        (blob({"w": entry(offsets=[False, 4])}, bytes(4)), "HeaderBadOffsets"),
        (blob({"w": entry(offsets=[-4, 0])}, bytes(4)), "HeaderBadOffsets"),
        (blob({"w": entry(offsets=[4, 0])}, bytes(4)), "HeaderBadOffsets"),
        (blob({"w": entry()}, bytes(3)), "HeaderOutside"),
        (blob({"w": entry(shape=[2**40], offsets=[0, 2**42])}, bytes(4)), "HeaderOutside"),
        (blob({"w": entry(offsets=[2**64, 2**64 + 4])}, bytes(4)), "HeaderOutside"),
        (blob({"w": entry("F4", [3], [0, 2])}, bytes(2)), "HeaderBadShape"),
        (blob({"w": entry("F4", [2, 3], [0, 3])}, bytes(3)), "HeaderBadShape"),
        (blob({"w": entry("F4", [], [0, 1])}, bytes(1)), "HeaderBadShape"),
        (blob({"w": entry("F4", [4])}, bytes(4)), "HeaderWrongSize"),
        (blob({"w": entry("F8_E4M3", [2])}, bytes(4)), "HeaderWrongSize"),
        (blob({"w": entry("F8_E8M0", [8])}, bytes(4)), "HeaderWrongSize"),
        (blob({"w": entry(shape=[2])}, bytes(4)), "HeaderWrongSize"),
        (blob({"w": entry("F16")}, bytes(4)), "HeaderWrongSize"),
        (blob({"w": entry(shape=[0])}, bytes(4)), "HeaderWrongSize"),
        (blob({"v": entry(), "w": entry()}, bytes(4)), "HeaderOverlap"),
        (blob({"v": entry(shape=[2], offsets=[0, 8]), "w": entry(offsets=[4, 8])}, bytes(8)), "HeaderOverlap"),
        (blob({"v": entry(), "w": entry(shape=[0], offsets=[2, 2])}, bytes(4)), "HeaderOverlap"),
        (blob({"w": entry(offsets=[4, 8])}, bytes(8)), "HeaderGap"),
        (blob({"v": entry(), "w": entry(offsets=[8, 12])}, bytes(12)), "HeaderGap"),
        (blob({"w": entry()}, bytes(5)), "HeaderGap"),
        (blob({}, bytes(1)), "HeaderGap"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)}-bytes",
)
def test_every_broken_rule_has_its_error(data: bytes, error: str) -> None:
    with pytest.raises(HeaderError) as caught:
        unpack(data)
    assert type(caught.value) is getattr(headers, error)
    assert len(str(caught.value)) < 400


def test_every_error_class_is_tested_and_drawn() -> None:
    classes = {name for name, value in vars(headers).items() if isinstance(value, type) and value.__base__ is HeaderError}
    parameters = test_every_broken_rule_has_its_error.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {error for _, error in parameters} == classes
    assert all(f"─ {name} " in (headers.__doc__ or "") for name in classes)


def test_metadata_and_unknown_fields_are_ignored() -> None:
    header = {"__metadata__": {"format": "pt"}, "w": entry() | {"future": [1, 2]}}
    assert list(unpack(blob(header, bytes(4)))) == ["w"]
    assert unpack(blob({"__metadata__": 3})) == {}


def test_a_scalar_and_tensors_without_elements() -> None:
    header = {
        "s": entry(shape=[], offsets=[0, 4]),
        "z": entry(shape=[0], offsets=[4, 4]),
        "a": entry(shape=[0, 9], offsets=[0, 0]),
    }
    found = unpack(blob(header, bytes(4)))
    assert {name: array.shape for name, array in found.items()} == {"s": (), "z": (0,), "a": (0, 9)}


def test_a_large_claim_allocates_little() -> None:
    claims = {f"t{n}": entry(shape=[2**30], offsets=[n << 32, (n + 1) << 32]) for n in range(100)}
    data = blob(claims)
    tracemalloc.start()
    try:
        with pytest.raises(headers.HeaderOutside):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
near_entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F16", "BF16", "F8_E4M3", "F8_E8M0", "F4"]) | json_values,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | json_values,
        "data_offsets": st.tuples(st.integers(-2, 12), st.integers(-2, 12)) | json_values,
    },
)


@given(st.dictionaries(st.text(max_size=3), near_entries | json_values, max_size=4), st.binary(max_size=16))
def test_a_strange_header_is_refused_or_consistent(header: dict[str, Any], data: bytes) -> None:
    assert_refused_or_consistent(blob(header, data))


@given(st.binary(max_size=64))
def test_noise_is_refused_or_consistent(data: bytes) -> None:
    assert_refused_or_consistent(data)


@given(wire_dicts, st.data())
def test_a_damaged_payload_is_refused_or_consistent(tensors: dict[str, NDArray[Any]], data: st.DataObject) -> None:
    damaged = bytearray(b"".join(Packed(tensors)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2) | st.sampled_from([b"9", b"0", b"]"]))
        if not damaged:
            break
    assert_refused_or_consistent(bytes(damaged))


def assert_refused_or_consistent(data: bytes) -> None:
    """Every byte after the header belongs to one tensor, and Safetensors' own reader agrees; or a HeaderError."""
    try:
        found = unpack(data)
    except HeaderError:
        return
    assert sum(array.nbytes for array in found.values()) == len(data) - header_size(data[:8], len(data))
    try:
        theirs = dict(safetensors.deserialize(data))
    except safetensors.SafetensorError:
        if b"__metadata__" in data:  # ignored by us, checked by them
            return
        raise
    assert {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in theirs.items()} == {
        name: (WIRE_CODES[a.dtype], wire_shape(a), a.tobytes()) for name, a in found.items()
    }


SPECS = (TensorSpec("a", "F32", (2, 3)), TensorSpec("b", "BF16", (4,)))


def test_tensors_that_match_their_specs() -> None:
    check({"b": np.zeros(4, BF16), "a": np.zeros((2, 3), np.float32)}, SPECS)
    check({"b": np.zeros(4, np.float16), "a": np.zeros((2, 3), np.float16)}, iter(SPECS), "F16")
    check({}, ())


@pytest.mark.parametrize(
    ("tensors", "dtype", "differing"),
    [
        ({"a": np.zeros((2, 3), np.float32)}, None, ("b",)),
        ({"a": np.zeros((3, 2), np.float32), "b": np.zeros(4, BF16)}, None, ("a",)),
        ({"a": np.zeros(6, np.float32), "b": np.zeros(4, np.float16)}, None, ("a", "b")),
        ({"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, BF16), "c": np.zeros(1, BF16)}, None, ("c",)),
        ({"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, BF16)}, "F32", ("b",)),
        ({"a": np.zeros((2, 3), ">f4"), "b": np.zeros(4, np.int16)}, None, ("a", "b")),
        ({"z": np.zeros(1, BF16)}, "BF16", ("a", "b", "z")),
    ],
)
def test_tensors_that_do_not(tensors: dict[str, NDArray[Any]], dtype: str | None, differing: tuple[str, ...]) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        check(tensors, SPECS, dtype)
    assert caught.value.names == differing
    assert str(caught.value) == f"tensors do not match the schema: {', '.join(differing)}"
