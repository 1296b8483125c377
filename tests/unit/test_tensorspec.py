"""What a manifest may say about a tensor."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.tensorspec import MAX_BYTES, MAX_RANK, TensorSpec

DTYPES = {"F32": 4, "F16": 2, "BF16": 2}


@given(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 2**40), max_size=6))
def test_sizes_are_the_products_of_the_shape(dtype: str, shape: list[int]) -> None:
    allowed = math.prod(max(n, 1) for n in shape) * DTYPES[dtype] <= MAX_BYTES
    if not allowed:
        with pytest.raises(ValueError, match="bytes"):
            TensorSpec("w", dtype, tuple(shape))
        return
    spec = TensorSpec("w", dtype, tuple(shape))
    assert spec.size == math.prod(shape)
    assert spec.size_bytes == spec.size * DTYPES[dtype]
    assert msgspec.json.decode(msgspec.json.encode(spec), type=TensorSpec) == spec


def test_a_scalar_has_one_element() -> None:
    assert (TensorSpec("s", "F32", ()).size, TensorSpec("s", "F32", ()).size_bytes) == (1, 4)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('{"name":"w","dtype":"F64","shape":[2]}', "'F64'"),
        ('{"name":"w","dtype":"f32","shape":[2]}', "dtype"),
        ('{"name":"__metadata__","dtype":"F32","shape":[2]}', "__metadata__"),
        ('{"name":"w","dtype":"F32","shape":[-1]}', "w: dimensions"),
        ('{"name":"w","dtype":"F32","shape":[-1,-1]}', "w: dimensions"),
        ('{"name":"w","dtype":"F32","shape":[4611686018427387904]}', r"w: .*2\^63"),
        (f'{{"name":"w","dtype":"F32","shape":[{"9" * 400}]}}', r"w: .*2\^63"),
        (f'{{"name":"w","dtype":"F32","shape":[0,{"9" * 400}]}}', r"w: .*2\^63"),
        (f'{{"name":"w","dtype":"F32","shape":[1{",1" * MAX_RANK}]}}', "at most 64"),
        ('{"name":"w","dtype":"F32","shape":[1.5]}', "shape"),
        ('{"name":"w","dtype":"F32","shape":[true]}', "shape"),
        ('{"name":"w","dtype":"F32"}', "shape"),
    ],
)
def test_an_impossible_one_is_refused_by_name(body: str, complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        msgspec.json.decode(body, type=TensorSpec)


@pytest.mark.parametrize("shape", [(1.0,), (True,), [2], "2", (-1,), (None,)])
def test_construction_is_as_strict_as_decoding(shape: object) -> None:
    with pytest.raises(ValueError, match="w: "):
        TensorSpec("w", "F32", shape)  # type: ignore[arg-type]


def test_a_name_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="not Unicode text"):
        TensorSpec("\ud800", "F32", ())
