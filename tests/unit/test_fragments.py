"""The plan, from the schema alone, and the schedule."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.fragments import Partition, Schedule, by_bytes, fitted, plan, strided
from swarm.core.sentences import fewer_fragments
from swarm.core.specs import DiLoCo
from swarm.core.tensorspec import TensorSpec

MLP = [
    TensorSpec("fc1.bias", "F32", (32,)),
    TensorSpec("fc1.weight", "F32", (32, 16)),
    TensorSpec("fc2.bias", "F32", (4,)),
    TensorSpec("fc2.weight", "F32", (4, 32)),
    TensorSpec("norm.bias", "F32", (32,)),
    TensorSpec("norm.weight", "F32", (32,)),
]

models = st.lists(
    st.builds(
        TensorSpec,
        name=st.text("abc.", max_size=5),
        dtype=st.sampled_from(["F32", "F16", "BF16"]),
        shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda tensor: tensor.name,
)
schedules = st.integers(1, 300).flatmap(lambda h: st.builds(Schedule, sync_every=st.just(h), fragments=st.integers(1, h)))


@given(models, st.integers(1, 25))
def test_a_plan_is_a_partition_without_empty_parts(model: list[TensorSpec], fragments: int) -> None:
    plan = by_bytes(model, fragments)
    assert len(plan) == min(fragments, len(model))
    assert all(plan)
    assert sorted(name for part in plan for name in part) == sorted(tensor.name for tensor in model)
    assert all(list(part) == sorted(part) for part in plan)


@given(models, st.integers(1, 25), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_the_tensors(
    model: list[TensorSpec], fragments: int, shuffler: random.Random
) -> None:
    shuffled = list(model)
    shuffler.shuffle(shuffled)
    assert by_bytes(shuffled, fragments) == by_bytes(iter(model), fragments)


@given(models, st.integers(1, 25), st.integers(1, 25), st.sampled_from(["bytes", "strided"]))
def test_a_spec_fits_when_it_has_as_many_fragments_as_the_plan(
    model: list[TensorSpec], fragments: int, in_flight: int, partition: Partition
) -> None:
    asked = DiLoCo(fragments=fragments, in_flight=min(in_flight, fragments), partition=partition)
    fits = fitted(asked, model)
    dealt = plan(model, asked.fragments, partition)
    assert (fits.fragments, fits.in_flight) == (len(dealt), min(asked.in_flight, len(dealt)))
    assert plan(model, fits.fragments, partition) == dealt, "the run is the same one"
    assert fitted(fits, model) == fits
    assert bool(fewer_fragments(asked, fits)) == (fits != asked)


def test_who_asked_for_more_fragments_is_told() -> None:
    asked = DiLoCo(fragments=8, in_flight=8)
    assert fewer_fragments(asked, fitted(asked, MLP)) == (
        "the model has 6 parameters: 6 fragments instead of 8, 6 in flight instead of 8"
    )
    one = DiLoCo(fragments=2, partition="strided")
    words = "the model has 1 part (blocks, and parameters of none): 1 fragment instead of 2"
    assert (
        fewer_fragments(one, fitted(one, [TensorSpec("blocks.0.w", "F32", (2,)), TensorSpec("blocks.0.b", "F32", ())])) == words
    )


@given(models, st.integers(1, 25))
def test_a_plan_is_balanced(model: list[TensorSpec], fragments: int) -> None:
    size = {tensor.name: tensor.size_bytes for tensor in model}
    loads = [sum(size[name] for name in part) for part in by_bytes(model, fragments)]
    for part, load in zip(by_bytes(model, fragments), loads, strict=True):
        # Each part was the lightest when its last and smallest tensor came.
        assert load - min(size[name] for name in part) <= min(loads)
    assert max(loads) <= sum(loads) / len(loads) + max(size.values())


def test_the_largest_tensor_of_the_demo_model_stands_alone() -> None:
    assert by_bytes(MLP, 2) == (("fc1.weight",), ("fc1.bias", "fc2.bias", "fc2.weight", "norm.bias", "norm.weight"))
    assert by_bytes(MLP, 1) == (tuple(tensor.name for tensor in MLP),)
    # Every learner of every version must find this one: ties by name, then the lightest part.
    assert by_bytes(MLP, 3) == (("fc1.weight",), ("fc2.weight",), ("fc1.bias", "fc2.bias", "norm.bias", "norm.weight"))
    assert by_bytes(MLP, 9) == tuple(
        (name,) for name in ("fc1.weight", "fc2.weight", "fc1.bias", "norm.bias", "norm.weight", "fc2.bias")
    )


def test_equal_tensors_are_dealt_by_name() -> None:
    equal = [TensorSpec(name, "F32", (2,)) for name in "dbca"]
    assert by_bytes(equal, 2) == (("a", "c"), ("b", "d"))


def test_empty_tensors_leave_no_part_empty() -> None:
    empty = [TensorSpec(name, "F32", (0,)) for name in "abc"]
    assert by_bytes(empty, 3) == (("a",), ("b",), ("c",))
    assert by_bytes([*empty, TensorSpec("w", "F32", (8,))], 3) == (("w",), ("a", "c"), ("b",))


def test_nothing_to_train_and_nothing_to_put_it_in_are_refused() -> None:
    with pytest.raises(ValueError, match="without trainable parameters"):
        by_bytes([], 1)
    with pytest.raises(ValueError, match="without trainable parameters"):
        strided([], 1)
    with pytest.raises(ValueError, match="fragments must be >= 1, got 0"):
        strided(MLP, 0)
    for fragments in (0, -1):
        with pytest.raises(ValueError, match=f"fragments must be >= 1, got {fragments}"):
            by_bytes(MLP, fragments)


indexed = st.lists(
    st.builds(
        TensorSpec,
        name=st.sampled_from(["", "h.0.", "h.1.", "h.2.", "h.10.", "h.02.", "7."]).flatmap(
            lambda prefix: st.text("ab", min_size=1, max_size=3).map(lambda name: prefix + name)
        ),
        dtype=st.sampled_from(["F32", "BF16"]),
        shape=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda tensor: tensor.name,
)


@given(indexed, st.integers(1, 25), st.randoms(use_true_random=False))
def test_strided_keeps_blocks_whole_and_no_part_empty(model: list[TensorSpec], fragments: int, shuffler: random.Random) -> None:
    parts = strided(model, fragments)
    assert sorted(name for part in parts for name in part) == sorted(tensor.name for tensor in model)
    assert all(list(part) == sorted(part) for part in parts)
    assert all(parts)
    numbers = {name: int(name.split(".")[-2]) for part in parts for name in part if "." in name}
    blocks = sorted(set(numbers.values()))
    assert len(parts) == min(fragments, len(blocks) + len(model) - len(numbers))
    for k, part in enumerate(parts):
        assert {blocks.index(numbers[name]) % len(parts) for name in part if name in numbers} <= {k}
    shuffler.shuffle(model)
    assert strided(iter(model), fragments) == parts == plan(model, fragments, "strided")
    assert plan(model, fragments, "bytes") == by_bytes(model, fragments)


def test_strided_in_names() -> None:
    gpt = [TensorSpec(f"blocks.{n}.{part}.weight", "F32", (8, 8)) for n in range(5) for part in ("attn", "mlp")]
    gpt += [TensorSpec("embed.weight", "F32", (30, 8)), TensorSpec("norm.weight", "F32", (8,))]
    # Every learner of every version must find this one. The odd blocks are fewer, so the embedding joins them.
    assert strided(gpt, 2) == (
        (*(f"blocks.{n}.{part}.weight" for n in (0, 2, 4) for part in ("attn", "mlp")), "norm.weight"),
        (*(f"blocks.{n}.{part}.weight" for n in (1, 3) for part in ("attn", "mlp")), "embed.weight"),
    )
    frozen = [TensorSpec(f"blocks.{n}.weight", "F32", (8,)) for n in (10, 2, 4)]  # the others do not train
    assert strided(frozen, 2) == (("blocks.10.weight", "blocks.2.weight"), ("blocks.4.weight",))
    assert strided(MLP, 2) == by_bytes(MLP, 2)  # no blocks
    odd = [TensorSpec("²." + "9" * 5000, "F32", (2,)), TensorSpec("a", "F32", (2,))]
    assert strided(odd, 2) == (("a",), (odd[0].name,))


@given(schedules, st.integers(0, 10**6))
def test_the_schedule_is_the_formula(schedule: Schedule, round: int) -> None:
    h, p = schedule.sync_every, schedule.fragments
    assert schedule.fragment(round) == round % p
    assert schedule.step(round) == (round // p) * h + ((round % p) + 1) * h // p
    assert schedule.steps_before(round) == schedule.step(round) - (schedule.step(round - 1) if round else 0)


@given(schedules, st.integers(0, 10**6))
def test_steps_increase_and_a_cycle_has_all_of_them(schedule: Schedule, round: int) -> None:
    h, p = schedule.sync_every, schedule.fragments
    assert schedule.steps_before(round) >= 1
    assert sum(schedule.steps_before(round + i) for i in range(p)) == h
    assert schedule.step(round + p) - schedule.step(round) == h  # one fragment is due every H steps
    spread = {schedule.steps_before(round + i) for i in range(p)}
    assert max(spread) - min(spread) <= 1  # evenly


def test_a_schedule_in_figures() -> None:
    schedule = Schedule(sync_every=100, fragments=3)
    assert [schedule.step(round) for round in range(-1, 7)] == [0, 33, 66, 100, 133, 166, 200, 233]
    assert [schedule.fragment(round) for round in range(6)] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("sync_every", "fragments"), [(0, 1), (5, 0), (5, 6), (-1, -1)])
def test_more_parts_than_steps_are_refused(sync_every: int, fragments: int) -> None:
    with pytest.raises(ValueError, match=f"got {fragments} and {sync_every}"):
        Schedule(sync_every=sync_every, fragments=fragments)
