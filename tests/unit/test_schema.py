from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import SchemaMismatch
from swarm.tensors.schema import Schema, TensorSpec, check_equal

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")
specs = st.builds(
    TensorSpec,
    name=names,
    dtype=st.sampled_from(["F32", "F16", "BF16"]),
    shape=st.lists(st.integers(0, 70_000), max_size=3).map(tuple),
)
spec_lists = st.lists(specs, max_size=6, unique_by=lambda spec: spec.name)


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("__metadata__", "F32", (1,)),
        ("\ud800", "F32", (1,)),
        (7, "F32", (1,)),
        ("w", "F64", (1,)),
        ("w", "f32", (1,)),
        ("w", "F32", [1]),
        ("w", "F32", (-1,)),
        ("w", "F32", (True,)),
        ("w", "F32", (1.0,)),
        ("w", "F32", (2**61,)),
        ("w", "F32", (2**40, 2**40)),
        ("w", "F32", (0, 2**62)),
        ("w", "F32", (1,) * 65),
        ("w", "F32", (10**5000,)),
    ],
)
def test_an_impossible_spec_cannot_exist(name: Any, dtype: str, shape: Any) -> None:
    with pytest.raises(ValueError):
        TensorSpec(name, dtype, shape)


def test_an_impossible_spec_cannot_be_decoded() -> None:
    with pytest.raises(msgspec.ValidationError, match="F64"):
        msgspec.json.decode(b'{"name":"w","dtype":"F64","shape":[1]}', type=TensorSpec)


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "size_bytes"),
    [("F32", (), 1, 4), ("F16", (3, 5), 15, 30), ("BF16", (7, 0), 0, 0), ("F32", (2**60,), 2**60, 2**62)],
)
def test_sizes(dtype: str, shape: tuple[int, ...], size: int, size_bytes: int) -> None:
    spec = TensorSpec("w", dtype, shape)
    assert (spec.size, spec.size_bytes) == (size, size_bytes)


@given(specs)
def test_a_spec_survives_json(spec: TensorSpec) -> None:
    assert msgspec.json.decode(msgspec.json.encode(spec), type=TensorSpec) == spec


@given(spec_lists, st.randoms())
def test_the_order_of_specs_does_not_matter(tensors: list[TensorSpec], random: Any) -> None:
    shuffled = random.sample(tensors, len(tensors))
    one, other = Schema(tensors), Schema(shuffled)
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest == other.digest
    assert list(one.names) == sorted(spec.name for spec in tensors)
    assert one.names == tuple(sorted(one.names, key=str.encode))
    assert len(one) == len(tensors)
    assert all(one[spec.name] == spec and spec.name in one for spec in tensors)
    assert one.size_bytes == sum(spec.size_bytes for spec in tensors)
    assert one.size == sum(spec.size for spec in tensors)


@given(spec_lists, spec_lists)
def test_digests_are_equal_exactly_for_equal_schemas(left: list[TensorSpec], right: list[TensorSpec]) -> None:
    equal = {spec.name: spec for spec in left} == {spec.name: spec for spec in right}
    assert (Schema(left) == Schema(right)) == equal
    assert (Schema(left).digest == Schema(right).digest) == equal


def test_a_name_occurs_once() -> None:
    with pytest.raises(ValueError, match="'w'"):
        Schema([TensorSpec("w", "F32", (1,)), TensorSpec("w", "F16", (1,))])


def test_a_schema_equals_nothing_else() -> None:
    assert Schema([]) != Schema([]).digest


@given(spec_lists, spec_lists)
def test_a_mismatch_names_every_differing_parameter(left: list[TensorSpec], right: list[TensorSpec]) -> None:
    model, run = {spec.name: spec for spec in left}, {spec.name: spec for spec in right}
    differing = sorted(name for name in model | run if model.get(name) != run.get(name))
    if differing:
        with pytest.raises(SchemaMismatch) as caught:
            check_equal(Schema(left), Schema(right))
        assert caught.value.names == tuple(differing)
        assert str(caught.value) == f"model does not match the run's schema: {', '.join(differing)}"
    else:
        check_equal(Schema(left), Schema(right))


def test_schemas_need_no_numpy() -> None:
    code = "import sys, swarm.tensors.schema, swarm.core.tensorspec; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
