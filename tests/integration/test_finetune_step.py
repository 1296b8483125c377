"""A step on any number of ranks is the step of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("mlx_lm")

import mlx.core as mx
import msgspec
from mlx.utils import tree_flatten

from swarm.core.errors import LossNotFinite, ReplicasDiffer, RowTooLarge
from swarm.core.finetune import FineTune, LoraParameters
from swarm.parallel.group import Alone, Group, agree, broadcast, joined_count, split_count
from swarm.parallel.memory import USED
from swarm.parallel.step import Limits, Step, Stepper, divided
from swarm.tasks.lm import model as models
from swarm.tasks.lm.rows import Rows
from tests.integration.fake_group import on_ranks
from tests.integration.tiny_llama import make_model, random_rows, spec

Named = dict[str, Any]


class Recorder:
    """An optimizer that keeps the gradient instead of using it: a parameter's own size would swallow its digits."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.seen: list[Named] = []

    def update(self, model: Any, gradients: Any) -> None:
        self.seen.append({name: np.array(value) for name, value in tree_flatten(gradients)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"))


def prepared(folder: Path, config: FineTune) -> Any:
    """A model whose adapters do something: fresh ones add nothing, and half of their gradients are zero."""
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    models.prepare(model, config)
    rng = np.random.default_rng(7)
    named = models.trainables(model).items()
    moved = [(name, value + mx.array(rng.normal(0, 0.02, value.shape), value.dtype)) for name, value in named]
    model.load_weights(moved, strict=False)
    return model


def stepped(
    folder: Path,
    config: FineTune,
    rows: Rows,
    batches: Sequence[Sequence[int]],
    *,
    group: Group,
    shares: Sequence[int],
    limits: Limits | None = None,
    buckets: int = 1,
) -> tuple[Step, Named]:
    recorder = Recorder()
    stepper = Stepper(
        prepared(folder, config),
        recorder,
        rows=rows,
        group=group,
        seed=config.seed,
        limits=limits or Limits(max_rows=100, pad_to=1),
        buckets=buckets,
    )
    if buckets > 1:  # only a pass that is known to fit is held back until its sums can be taken beside it
        stepper.local(batches, step=0, shares=shares)
    step = stepper.step(batches, step=0, shares=shares)
    return step, recorder.seen[0] if recorder.seen else {}


def error(one: Named, other: Named) -> float:
    assert one.keys() == other.keys()
    both = [np.concatenate([np.ravel(each[name]) for name in one]) for each in (one, other)]
    return float(np.linalg.norm(both[0] - both[1]) / np.linalg.norm(both[0]))


LORA = spec()
FULL = spec(fine_tune_type="full")
KINDS = {"lora": LORA, "dora": spec(fine_tune_type="dora"), "full": FULL}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_division_of_the_rows_makes_one_machines_step(folder: Path, kind: str, data: st.DataObject) -> None:
    shapes = data.draw(st.lists(st.tuples(st.integers(1, 24), st.integers(0, 24)), min_size=1, max_size=9))
    rows = random_rows([size for size, _ in shapes], offsets=[min(offset, size) for size, offset in shapes])
    shares = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any))
    cut = data.draw(st.integers(0, len(shapes)))
    indices = list(range(len(shapes)))
    batches = [part for part in (indices[:cut], indices[cut:]) if part]
    limits = [
        Limits(max_rows=data.draw(st.integers(1, 9)), max_tokens=data.draw(st.none() | st.integers(1, 99)), pad_to=pad)
        for pad in data.draw(st.lists(st.integers(1, 9), min_size=len(shares), max_size=len(shares)))
    ]
    buckets = data.draw(st.sampled_from([1, 2, 5, 1000]))
    whole, want = stepped(folder, KINDS[kind], rows, [indices], group=Alone(), shares=[1])

    def work(group: Any) -> tuple[Step, Named]:
        return stepped(
            folder, KINDS[kind], rows, batches, group=group, shares=shares, limits=limits[group.rank], buckets=buckets
        )

    for step, got in on_ranks(len(shares), work):
        assert step.tokens == whole.tokens == rows.targets.sum()
        if whole.tokens == 0:
            assert step.loss is None
            assert not got
        else:
            assert step.loss == pytest.approx(whole.loss, rel=1e-5)
            assert error(want, got) <= 1e-5


def test_the_stock_trainer_would_be_wrong_here(folder: Path) -> None:
    """The bound above can fail: a mean over ranks instead of tokens is far off."""
    rows = random_rows([3, 30], seed=3)
    _, want = stepped(folder, LORA, rows, [[0, 1]], group=Alone(), shares=[1])
    parts = [stepped(folder, LORA, rows, [[k]], group=Alone(), shares=[1])[1] for k in (0, 1)]
    assert error(want, {name: (parts[0][name] + parts[1][name]) / 2 for name in want}) > 0.1


@pytest.mark.parametrize("shares", [(1, 1), (0, 1)])
@pytest.mark.parametrize("buckets", [1, 2, 4])
def test_one_collective_a_bucket(folder: Path, buckets: int, shares: tuple[int, ...]) -> None:
    rows = random_rows([5, 9, 7])

    def work(group: Any) -> int:
        stepped(folder, FULL, rows, [[0, 1], [2]], group=group, shares=shares, buckets=buckets)
        return int(group._meeting.collectives)

    assert on_ranks(2, work) == [buckets, buckets]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(2, 30))
def test_buckets_hold_every_array_once_and_the_last_ones_first(sizes: list[int], count: int) -> None:
    named = [(f"{k}", mx.zeros(size)) for k, size in enumerate(sizes)]
    found = divided(named, count)
    assert [name for bucket in found for name, _ in bucket] == [name for name, _ in reversed(named)]
    assert 1 <= len(found) <= min(count, len(sizes))
    assert all(bucket for bucket in found)
    most = -(-sum(sizes) // count) + max(sizes)
    assert all(sum(value.size for _, value in bucket) <= most for bucket in found)
    assert divided(named, 1) == [named]


class Watched:
    """A group that notes how many passes were done when each sum was asked for."""

    def __init__(self, group: Any) -> None:
        self.rank, self.size, self._group = group.rank, group.size, group
        self.early: list[int] = []
        self.seen = 0

    def all_sum(self, array: mx.array) -> mx.array:
        total: mx.array = self._group.all_sum(array)
        return total

    def later(self, parts: Sequence[mx.array], after: mx.array | None) -> mx.array:
        self.early.append(self.seen)
        total: mx.array = self._group.later(parts, after)
        return total


def test_only_a_pass_that_fits_is_computed_beside_the_sums(folder: Path) -> None:
    rows = random_rows([5, 9, 20, 20])

    def work(group: Any) -> list[list[int]]:
        watched = Watched(group)

        def progressed() -> None:
            watched.seen += 1

        stepper = Stepper(
            prepared(folder, FULL),
            Recorder(),
            rows=rows,
            group=watched,
            seed=0,
            limits=Limits(max_rows=9, pad_to=1),
            buckets=2,
            progressed=progressed,
        )
        found = []
        for step, batch in enumerate(([0, 1], [0, 1], [2, 3], [2, 3])):
            watched.early, watched.seen = [], 0
            stepper.step([batch], step=step, shares=[1, 1])
            found.append(watched.early)
        return found

    assert on_ranks(2, work) == [[[1, 1], [0, 1], [1, 1], [0, 1]]] * 2


def test_an_all_masked_batch_updates_nothing(folder: Path) -> None:
    rows = random_rows([5, 9], offsets=[5, 9])
    model = prepared(folder, LORA)
    optimizer = models.make_optimizer(LORA, model)
    before = {name: np.array(value) for name, value in models.trainables(model).items()}
    stepper = Stepper(model, optimizer, rows=rows, group=Alone(), seed=0, limits=Limits(max_rows=9))
    step = stepper.step([[0, 1]], step=0, shares=[1])
    assert (step.loss, step.tokens) == (None, 0)
    assert optimizer.step.item() == 0
    after = models.trainables(model)
    assert all(np.array_equal(before[name], np.array(after[name])) for name in before)


def test_a_loss_that_is_not_finite_names_step_and_lines_on_every_rank(folder: Path) -> None:
    from mlx_lm.utils import load_model

    rows = random_rows([6, 7, 8, 9])
    rows.tokens[rows.starts[2] : rows.starts[3]] = 5  # the only row with this word
    for k in (0, 1, 3):
        part = rows.tokens[rows.starts[k] : rows.starts[k + 1]]
        part[part == 5] = 6

    def work(group: Any) -> tuple[LossNotFinite, bool]:
        model, _ = load_model(folder)
        table = np.array(model.model.embed_tokens.weight)
        table[5] = np.nan
        model.model.embed_tokens.weight = mx.array(table)
        models.prepare(model, LORA)
        recorder = Recorder()
        stepper = Stepper(model, recorder, rows=rows, group=group, seed=0, limits=Limits(max_rows=9, pad_to=1))
        with pytest.raises(LossNotFinite) as caught:
            stepper.step([[0, 1, 2, 3]], step=6, shares=[1, 1])
        return caught.value, bool(recorder.seen)

    for found, updated in on_ranks(2, work):
        assert (found.step, found.rows, updated) == (7, (3,), False)
        assert "step 7" in str(found)
        assert "line 3" in str(found)


def test_dropout_differs_by_rank_and_step_and_is_the_same_again(folder: Path) -> None:
    config = spec(lora_parameters=LoraParameters(dropout=0.5))
    rows = random_rows([9, 9])
    rows.tokens[9:] = rows.tokens[:9]  # the same row for both

    def work(group: Any) -> list[float]:
        stepper = Stepper(
            prepared(folder, config), Recorder(), rows=rows, group=group, seed=3, limits=Limits(max_rows=9, pad_to=1)
        )
        return [stepper.local([[0, 1]], step=step, shares=[1, 1]).loss for step in (0, 1, 0)]

    one, other = on_ranks(2, work)
    assert one[0] == one[2] != one[1]
    assert other[0] == other[2]
    assert one[0] != other[0]


def limited(stepper: Stepper, *, most: int, passes: list[int] | None = None, first: int = 0) -> None:
    """Let a pass of more than `most` positions be too much for the memory, but for the first few."""
    accumulate, evaluate = stepper._accumulate, stepper._evaluate
    seen: list[int] = [] if passes is None else passes

    def check(inputs: mx.array) -> None:
        seen.append(inputs.size)
        if inputs.size > most and len(seen) > first:
            raise RuntimeError("[malloc] Unable to allocate 1000 bytes.")

    def small(gradients: Any, inputs: mx.array, *rest: mx.array) -> Any:
        check(inputs)
        return accumulate(gradients, inputs, *rest)

    def small_evaluation(inputs: mx.array, *rest: mx.array) -> mx.array:
        check(inputs)
        return evaluate(inputs, *rest)

    stepper._accumulate, stepper._evaluate = small, small_evaluation


@pytest.mark.parametrize("first", [0, 2])  # also when a part of the step is done already: it counts once
def test_out_of_memory_halves_the_microbatch(folder: Path, first: int) -> None:
    rows = random_rows([9] * 8)
    _, want = stepped(folder, LORA, rows, [range(8)], group=Alone(), shares=[1])
    limits = Limits(max_rows=4 if first else 100, pad_to=1)
    stepper = Stepper(prepared(folder, LORA), recorder := Recorder(), rows=rows, group=Alone(), seed=0, limits=limits)
    limited(stepper, most=16, first=first - 1 if first else 0)
    stepper.step([range(8)], step=0, shares=[1])
    assert limits.max_tokens == 16
    assert error(want, recorder.seen[0]) <= 1e-5


def test_only_the_rank_that_is_out_of_memory_takes_less(folder: Path) -> None:
    rows = random_rows([9] * 8)
    whole, want = stepped(folder, LORA, rows, [range(8)], group=Alone(), shares=[1])

    def work(group: Any) -> tuple[Limits, Step, Named, tuple[float | None, int]]:
        stepper = Stepper(
            prepared(folder, LORA),
            recorder := Recorder(),
            rows=rows,
            group=group,
            seed=0,
            limits=Limits(max_rows=100, pad_to=1),
        )
        if group.rank == 1:
            limited(stepper, most=8)
        step = stepper.step([range(8)], step=0, shares=[1, 1])
        return stepper.limits, step, recorder.seen[0], stepper.evaluated(rows, [range(8)], shares=[1, 1])

    one, other = on_ranks(2, work)
    assert (one[0].max_tokens, other[0].max_tokens) == (None, 8)
    for _, step, got, (loss, tokens) in (one, other):
        assert (step.tokens, tokens) == (whole.tokens, whole.tokens)
        assert step.loss == pytest.approx(whole.loss, rel=1e-5)
        assert loss == pytest.approx(whole.loss, rel=1e-5)
        assert error(want, got) <= 1e-5


def test_a_row_that_is_too_large_is_named_in_one_line(folder: Path) -> None:
    rows = random_rows([5, 9, 7])
    stepper = Stepper(prepared(folder, LORA), Recorder(), rows=rows, group=Alone(), seed=0, limits=Limits(max_rows=9, pad_to=1))
    limited(stepper, most=7)
    with pytest.raises(RowTooLarge, match="a single row of 9 tokens, line 2, is too much") as caught:
        stepper.step([range(3)], step=0, shares=[1])
    assert "\n" not in str(caught.value)
    assert stepper.evaluated(rows, [[0, 2]], shares=[1])[1] == rows.targets[[0, 2]].sum()
    with pytest.raises(RowTooLarge, match="line 2"):
        stepper.evaluated(rows, [range(3)], shares=[1])
    stepper._accumulate = lambda *_: (_ for _ in ()).throw(RuntimeError("[matmul] other shapes"))
    with pytest.raises(RuntimeError, match="other shapes"):
        stepper.step([range(3)], step=0, shares=[1])


def test_what_goes_through_the_model_at_once_is_chosen_by_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As MLX measures it: a limit between what four and what sixteen rows take."""
    measure, peaks = mx.get_peak_memory, []
    monkeypatch.setattr(mx, "get_peak_memory", lambda: peaks.append(measure()) or peaks[-1])
    rows = random_rows([40, 60, 30])

    def fitted(memory_bytes: int, **limits: Any) -> tuple[Limits, list[int]]:
        model = prepared(folder, LORA)
        before = {name: np.array(value) for name, value in models.trainables(model).items()}
        given = Limits(**{"max_rows": 16, "pad_to": 1, **limits})
        stepper = Stepper(model, Recorder(), rows=rows, group=Alone(), seed=0, limits=given)
        passes: list[int] = []
        limited(stepper, most=10**9, passes=passes)
        stepper.fit(memory_bytes=memory_bytes)
        after = models.trainables(model)
        assert all(np.array_equal(before[name], np.array(after[name])) for name in before)
        return stepper.limits, [size // 59 for size in passes]

    gigabyte = 10**9
    assert fitted(gigabyte) == (Limits(max_rows=16, pad_to=1), [1, 2, 4, 8, 16])
    assert fitted(gigabyte, max_rows=5) == (Limits(max_rows=5, pad_to=1), [1, 2, 4, 5])
    assert fitted(gigabyte, max_tokens=3 * 59) == (Limits(max_rows=16, max_tokens=3 * 59, pad_to=1), [1, 2, 3])
    assert sorted(peaks[:5]) == peaks[:5]
    limits, tried = fitted(round((peaks[2] + peaks[4]) / 2 / USED))
    assert limits.max_tokens is not None
    assert limits.max_tokens // 59 in (4, 8)
    assert tried[:3] == [1, 2, 4]
    assert len(tried) < 5
    with pytest.raises(RowTooLarge, match=r"the 0\.0 GB of memory"):
        fitted(1000)


def test_validation_is_weighted_by_tokens_and_divided(folder: Path) -> None:
    rows = random_rows([4, 30, 9, 12, 5], offsets=[0, 20])

    def work(group: Any) -> tuple[float | None, int]:
        config = spec(lora_parameters=LoraParameters(dropout=0.5))
        stepper = Stepper(
            prepared(folder, config), Recorder(), rows=rows, group=group, seed=0, limits=Limits(max_rows=2, pad_to=4)
        )
        return stepper.evaluated(rows, [[0, 1, 2], [3, 4]], shares=[1] * group.size)

    alone, tokens = work(Alone())
    assert tokens == rows.targets.sum()
    for size in (2, 3):
        for loss, count in on_ranks(size, work):
            assert (loss, count) == (pytest.approx(alone, rel=1e-5), tokens)


@pytest.mark.parametrize("small", [False, True])
def test_broadcast_is_bit_for_bit(monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    if small:
        monkeypatch.setattr("swarm.parallel.group.CHUNK_BYTES", 8)

    def work(group: Any) -> list[bytes]:
        mine = group.rank == 0
        values = [
            mx.array([1.5, -0.0, np.nan, 1e-40] if mine else [9.0] * 4),
            mx.array([[1.5, -2.5]] if mine else [[3.0, 4.0]], mx.bfloat16),
            mx.array(2**60 + 1 if mine else 0, mx.uint64),
            mx.zeros((0, 3)),
        ]
        arrays = dict(zip("abcd", values, strict=True))
        parts = list(broadcast(group, arrays))
        assert len(parts) == (3 if small else 1)
        found = [array for part in parts for array in part.values()]
        assert [(each.shape, each.dtype) for each in found] == [(each.shape, each.dtype) for each in values]
        return [np.array(each.reshape(-1).view(mx.uint8)).tobytes() for each in found]

    one, *others = on_ranks(3, work)
    assert others == [one, one]
    assert (
        np.frombuffer(one[0], np.uint32).tolist() == np.array([1.5, -0.0, np.nan, 1e-40], np.float32).view(np.uint32).tolist()
    )
    assert np.frombuffer(one[2], np.uint64).tolist() == [2**60 + 1]


def test_what_a_rank_holds_differently_is_named_on_all() -> None:
    def work(group: Any) -> str:
        agree(group, {"the data": b"a" * 32})
        with pytest.raises(ReplicasDiffer) as caught:
            agree(group, {"the data": b"a" * 32, "the weights": bytes([group.rank // 2]) * 32})
        assert caught.value.ranks == (2,)
        return str(caught.value)

    assert set(on_ranks(3, work)) == {"the weights of rank 2 are not those of rank 0"}


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=64))
def test_counts_are_exact_in_fp32(counts: list[int]) -> None:
    low = np.add.reduce([np.float32(split_count(count)[0]) for count in counts])
    high = np.add.reduce([np.float32(split_count(count)[1]) for count in counts])
    assert joined_count(float(low), float(high)) == sum(counts)


@pytest.mark.slow  # on a CPU, a C++ compiler compiles the step
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_step_is_the_same(tmp_path: Path, kind: str) -> None:
    """Over several steps, and so with weights that change; also with dropout, which is drawn anew in each."""
    config = msgspec.structs.replace(KINDS[kind], optimizer="sgd", lora_parameters=LoraParameters(dropout=0.3))
    rows = random_rows([5, 9, 7, 12], offsets=[0, 3])
    folder = make_model(tmp_path, layers=1)
    found = []
    for compiled in (False, True):
        model = prepared(folder, config)
        optimizer = models.make_optimizer(config, model)
        stepper = Stepper(
            model, optimizer, rows=rows, group=Alone(), seed=1, limits=Limits(max_rows=2, pad_to=4), compiled=compiled
        )
        losses = [stepper.step([[0, 1, 2, 3]], step=step, shares=[1]).loss for step in range(3)]
        losses += [stepper.evaluated(rows, [[0, 1, 2, 3]], shares=[1])[0]]
        losses.append(stepper.step([[0, 1, 2, 3]], step=3, shares=[1]).loss)
        found.append((losses, {name: np.array(value) for name, value in models.trainables(model).items()}))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    assert len(set(found[1][0])) >= 4  # without dropout, the last step has the loss of the evaluation
    assert error(found[0][1], found[1][1]) <= 1e-5
