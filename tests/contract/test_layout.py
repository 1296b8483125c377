"""Rules by hand: what they do to names, shapes and bytes, and what they refuse."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from swarm.core.errors import SchemaMismatch, UsageError
from swarm.learners.adapted import adapted
from swarm.learners.layout import Join, Layout, Permute, Rename, Rule, Split
from swarm.learners.numpy import NumpyAdapter
from swarm.learners.select import adapter_for
from swarm.tensors.precision import DTYPES

Arrays = dict[str, NDArray[Any]]


def zeros(**shapes: tuple[int, ...]) -> Arrays:
    return {name.replace("__", "."): np.zeros(shape, np.float32) for name, shape in shapes.items()}


def schema(model: Arrays, *rules: Rule) -> dict[str, tuple[int, ...]]:
    return {spec.name: spec.shape for spec in adapter_for(model, Layout(rules)).schema()}


def patterns(shape: tuple[int, ...], code: str, seed: int) -> NDArray[Any]:
    """Random bits: NaN payloads, infinities and subnormals are among them."""
    size_bytes = int(np.prod(shape, dtype=int)) * DTYPES[code].itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size_bytes), DTYPES[code]).reshape(shape)


# Properties

CODES = st.sampled_from(["F32", "F16", "BF16"])
SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 2**32)


@given(CODES, SHAPES, SEEDS, st.randoms(use_true_random=False))
def test_a_permutation_is_numpys_and_comes_back(code: str, shape: tuple[int, ...], seed: int, random: Any) -> None:
    axes = tuple(random.sample(range(len(shape)), len(shape)))
    inside = patterns(shape, code, seed)
    model: Arrays = {"w": inside.copy()}
    adapter = adapter_for(model, Layout((Permute("w", axes=axes, to="v"),)))
    canonical = adapter.snapshot()["v"].copy()
    assert canonical.shape == adapter.schema()["v"].shape
    assert canonical.tobytes() == inside.transpose(axes).tobytes()
    model["w"][...] = 0
    adapter.apply({"v": canonical})
    assert model["w"].tobytes() == inside.tobytes()


@given(CODES, SHAPES, SEEDS, st.randoms(use_true_random=False))
def test_a_permutation_within_an_axis_comes_back(code: str, seen: tuple[int, ...], seed: int, random: Any) -> None:
    axes = tuple(random.sample(range(len(seen)), len(seen)))
    inside = patterns((int(np.prod(seen)),), code, seed)
    model: Arrays = {"w": inside.copy()}
    adapter = adapter_for(model, Layout((Permute("w", axes=axes, view=seen),)))
    canonical = adapter.snapshot()["w"].copy()
    assert canonical.shape == inside.shape
    assert canonical.tobytes() == inside.reshape(seen).transpose(axes).tobytes()
    model["w"][...] = 0
    adapter.apply({"w": canonical})
    assert model["w"].tobytes() == inside.tobytes()


@given(CODES, SHAPES, SEEDS, st.data())
def test_a_split_and_a_join_undo_each_other(code: str, shape: tuple[int, ...], seed: int, data: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = tuple(data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=4)))
    whole = list(shape)
    whole[axis] = sum(sizes)
    names = tuple(f"part{i}" for i in range(len(sizes)))
    packed: Arrays = {"w": patterns(tuple(whole), code, seed).copy()}
    split = adapter_for(packed, Layout((Split("w", to=names, axis=axis, sizes=sizes),)))
    parts: Arrays = {spec.name: np.zeros(spec.shape, DTYPES[code]) for spec in split.schema()}
    joined = adapter_for(parts, Layout((Join(names, to="w", axis=axis),)))
    want = packed["w"].tobytes()
    expected = np.split(packed["w"], np.cumsum(sizes)[:-1], axis=axis)
    for name, array in split.snapshot().items():
        joined_before = {n: a.tobytes() for n, a in parts.items()}
        adapter_for(parts).apply({name: array})
        assert {n for n, a in parts.items() if a.tobytes() != joined_before[n]} <= {name}
        assert array.tobytes() == expected[names.index(name)].tobytes()
    assert joined.schema() == adapter_for(packed).schema()
    assert joined.snapshot()["w"].tobytes() == want
    # And back, one part after the other: the parts that are not named stay.
    packed["w"][...] = 0
    for name in data.draw(st.permutations(names)):
        split.apply({name: parts[name]})
    assert packed["w"].tobytes() == want
    for array in parts.values():
        array[...] = 0
    joined.apply({"w": packed["w"]})
    assert joined.snapshot()["w"].tobytes() == want


# Names


def test_wildcards_stand_for_components() -> None:
    model = zeros(blocks__0__conv__weight=(2, 3, 4), blocks__11__conv__weight=(2, 3, 4), blocks__0__out__weight=(4, 2))
    assert schema(model, Permute("blocks.*.conv.weight", axes=(0, 2, 1), to="layers.*.c")) == {
        "layers.0.c": (2, 4, 3),
        "layers.11.c": (2, 4, 3),
        "blocks.0.out.weight": (4, 2),
    }
    assert list(schema(model, Rename("blocks.**", to="**"))) == ["0.conv.weight", "0.out.weight", "11.conv.weight"]
    assert list(schema(zeros(**{"a.b+c": (1,), "a.bbc": (1,)}), Rename("*.b+c", to="*.d"))) == ["a.bbc", "a.d"]
    assert list(schema(zeros(**{"a.*": (1,), "a.b": (2,)}), Rename("a.b", to="c"))) == ["a.*", "c"]


def test_joins_go_by_what_the_wildcards_stand_for() -> None:
    model = zeros(a__q=(2, 3), a__k=(1, 3), b__q=(4, 3), b__k=(5, 3))
    assert schema(model, Join(("*.q", "*.k"), to="*.qk")) == {"a.qk": (3, 3), "b.qk": (9, 3)}
    del model["b.k"]
    with pytest.raises(SchemaMismatch, match=r"^b\.k: a rule of the layout joins it, and there is no such parameter$"):
        schema(model, Join(("*.q", "*.k"), to="*.qk"))


def test_names_may_be_swapped_and_layouts_stacked() -> None:
    model = {"a": np.float32([1]), "b": np.float32([2, 3])}
    swapped = adapter_for(model, Layout((Rename("a", to="b"), Rename("b", to="a"))))
    assert {name: array.tolist() for name, array in swapped.snapshot().items()} == {"b": [1], "a": [2, 3]}
    swapped.apply({"a": np.float32([5, 6])})
    assert model["b"].tolist() == [5, 6]
    stacked = adapted(swapped, Layout((Split("a", to=("c", "d")), Rename("b", to="a"))))
    assert {name: array.tolist() for name, array in stacked.snapshot().items()} == {"a": [1], "c": [5], "d": [6]}
    stacked.apply({"d": np.float32([7])})
    assert model["b"].tolist() == [5, 7]


def test_the_model_may_change() -> None:
    model = zeros(a__w=(4,))
    adapter = adapter_for(model, Layout((Split("*.w", to=("*.1", "*.2")),)))
    assert adapter.schema().names == ("a.1", "a.2")
    model |= zeros(b__w=(4,))
    assert adapter.schema().names == tuple(sorted(adapter.snapshot())) == ("a.1", "a.2", "b.1", "b.2")


# What does not fit

W = zeros(w=(6, 4), v=(3,))


@pytest.mark.parametrize(
    ("rules", "name", "words"),
    [
        ((Rename("x", to="y"),), "x", "a rule of the layout matches no trainable parameter or buffer of that name"),
        ((Rename("*.w", to="*.y"),), "*.w", "a rule of the layout matches no trainable parameter or buffer of that name"),
        ((Rename("w", to="y"), Rename("*", to="*")), "w", "two rules take it"),
        ((Rename("w", to="v"),), "v", "the layout gives this name twice, to v and w"),
        ((Split("w", to=("y", "y")),), "y", "the layout gives this name twice, to w"),
        ((Rename("w", to="__metadata__"),), "w", "'__metadata__' cannot name a tensor"),
        ((Permute("w", axes=(0, 2, 1)),), "w", "axes (0, 2, 1) do not fit its shape (6, 4)"),
        ((Permute("w", axes=(1, 0), view=(5, -1)),), "w", "its shape (6, 4) cannot be seen as (5, -1)"),
        ((Permute("w", axes=(1, 0), view=(0, -1)),), "w", "its shape (6, 4) cannot be seen as (0, -1)"),
        ((Split("w", to=("a", "b"), axis=2),), "w", "its shape (6, 4) has no axis 2"),
        ((Split("w", to=("a", "b", "c"), axis=1),), "w", "axis 1 of its shape (6, 4) does not split into 3 equal parts"),
        ((Split("w", to=("a", "b"), sizes=(2, 3)),), "w", "axis 0 of its shape (6, 4) does not split into parts of (2, 3)"),
        ((Join(("w", "v"), to="y"),), "v", "F32 (3,) cannot be joined to w, F32 (6, 4), along axis 0"),
        ((Join(("v", "w"), to="y"),), "w", "F32 (6, 4) cannot be joined to v, F32 (3,), along axis 0"),
    ],
)
def test_a_layout_that_does_not_fit_the_model(rules: tuple[Rule, ...], name: str, words: str) -> None:
    adapter = adapter_for(W, Layout(rules))
    for call in (adapter.schema, adapter.snapshot, lambda: adapter.apply({})):
        with pytest.raises(SchemaMismatch) as caught:
            call()
        assert caught.value.names == (name,)
        assert str(caught.value) == f"{name}: {words}"


def test_parts_of_two_dtypes_are_not_joined() -> None:
    model = {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float16)}
    with pytest.raises(SchemaMismatch, match=r"^b: F16 \(2,\) cannot be joined to a, F32 \(2,\), along axis 0$"):
        adapter_for(model, Layout((Join(("a", "b"), to="c"),))).schema()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rename("a.*", to="b"),
        lambda: Rename("*.**", to="**.*"),
        lambda: Permute("w", axes=(0, 0)),
        lambda: Permute("w", axes=(1, 2)),
        lambda: Permute("w", axes=(1, 0), view=(2, 3, 4)),
        lambda: Permute("w", axes=(1, 0), view=(-1, -1)),
        lambda: Permute("w", axes=(1, 0), view=(-2, 1)),
        lambda: Split("w", to=("a",)),
        lambda: Split("w", to=("a", "b"), sizes=(1, 2, 3)),
        lambda: Split("w", to=("a", "b"), sizes=(-1, 2)),
        lambda: Split("*.w", to=("*.a", "b")),
        lambda: Join(("a",), to="b"),
        lambda: Join(("*.a", "b"), to="*.c"),
        lambda: Layout(("w",)),  # type: ignore[arg-type]
        lambda: adapter_for(W, "canonical"),
    ],
)
def test_what_is_no_rule(make: Any) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_mismatch_in_one_part_changes_nothing() -> None:
    model = {"w": np.ones((4, 2), np.float32), "v": np.ones(3, np.float32)}
    adapter = adapter_for(model, Layout((Split("w", to=("a", "b")), Permute("v", axes=(0,), view=(3,)))))
    with pytest.raises(SchemaMismatch) as caught:
        adapter.apply({"a": np.zeros((2, 2), np.float32), "v": np.zeros(3, np.float32), "b": np.zeros((1, 2), np.float32)})
    assert caught.value.names == ("b",)
    assert all((array == 1).all() for array in model.values())


def test_apply_holds_one_packed_parameter_at_a_time() -> None:
    """And asks for no other parameter of a model that would have to be copied from its device."""
    calls: list[Any] = []

    class Watched(NumpyAdapter):
        def snapshot(self, names: Any = None) -> Any:
            calls.append(set(names))
            return super().snapshot(names)

        def apply(self, tensors: Any) -> None:
            calls.append(sorted(tensors))
            super().apply(tensors)

    model = zeros(a__w=(4, 2), b__w=(4, 2), c=(2, 3), d=(1,))
    adapter = adapted(Watched(model), Layout((Split("*.w", to=("*.1", "*.2")), Permute("c", axes=(1, 0)))))
    new = {spec.name: np.ones(spec.shape, np.float32) for spec in adapter.schema() if spec.name != "b.2"}
    adapter.apply(new)
    assert calls == [["c", "d"], ["a.w"], {"b.w"}, ["b.w"]]
    assert model["b.w"].tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]]
    calls.clear()
    assert list(adapter.snapshot({"b.2"})) == ["b.2"]
    assert calls == [{"b.w"}]


def test_neither_a_snapshot_nor_an_apply_copies_the_model() -> None:
    """33 tensors of 256 KiB, all of which must be copied on their way: only a few are held at once."""
    one_bytes = 4 * 256 * 256
    model = zeros(**{f"{kind}{i}": (256, 256) for kind in ("permuted", "packed", "seen") for i in range(11)})
    rules = [Permute(f"permuted{i}", axes=(1, 0)) for i in range(11)]
    rules += [Permute(f"seen{i}", axes=(0, 2, 1), view=(256, 16, 16)) for i in range(11)]
    rules += [Split(f"packed{i}", to=(f"left{i}", f"right{i}"), axis=1) for i in range(11)]
    adapter = adapter_for(model, Layout(tuple(rules)))
    new = {spec.name: np.ones(spec.shape, np.float32) for spec in adapter.schema()}
    for work in (lambda: adapter.apply(new), lambda: sum(len(array.tobytes()) for array in adapter.snapshot().values())):
        tracemalloc.start()
        try:
            work()
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert one_bytes <= peak_bytes < 3.5 * one_bytes
    assert all((array == 1).all() for array in model.values())
