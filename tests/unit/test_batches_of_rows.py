"""Which rows make which batch, and who computes them."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import DataMissing, UsageError
from swarm.tasks.lm.rows import Order, assembled, microbatches, padded, permutation, read_rows, shared_out
from tests.integration.tiny_llama import completions, make_data, make_model, random_rows, spec

lengths_of_rows = st.lists(st.integers(1, 60), min_size=1, max_size=300)


@given(lengths_of_rows, st.integers(1, 40), st.integers(0, 2**31), st.integers(0, 5))
def test_each_epoch_has_every_row_once(lengths: list[int], batch_size: int, seed: int, epoch: int) -> None:
    order = Order(np.asarray(lengths), batch_size=batch_size, seed=seed)
    batches = [order.batch(epoch * order.per_epoch + k) for k in range(order.per_epoch)]
    assert sorted(chain(*batches)) == list(range(len(lengths)))
    sizes = {len(batch) for batch in batches}
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1


@given(lengths_of_rows, st.integers(1, 8), st.integers(0, 99))
def test_a_batch_is_a_function_of_seed_and_number(lengths: list[int], batch_size: int, seed: int) -> None:
    one = Order(np.asarray(lengths), batch_size=batch_size, seed=seed)
    forwards = [one.batch(k) for k in range(3 * one.per_epoch)]
    other = Order(np.asarray(lengths), batch_size=batch_size, seed=seed)
    backwards = [other.batch(k) for k in reversed(range(3 * other.per_epoch))]
    assert forwards == backwards[::-1]


def test_epochs_and_seeds_differ() -> None:
    lengths = np.asarray([5] * 100)
    one, other = Order(lengths, batch_size=4, seed=1), Order(lengths, batch_size=4, seed=2)
    first = [one.batch(k) for k in range(25)]
    assert {frozenset(batch) for batch in first} != {frozenset(one.batch(k)) for k in range(25, 50)}
    assert first != [other.batch(k) for k in range(25)]


def test_the_order_is_the_same_everywhere() -> None:
    """All ranks must draw it, with whatever version of NumPy."""
    assert permutation(10, 0, "rows", 0).tolist() == [2, 6, 0, 9, 3, 8, 4, 5, 7, 1]


def test_rows_of_a_batch_are_alike_in_length() -> None:
    lengths = np.random.default_rng(0).integers(10, 500, 2000)
    order = Order(lengths, batch_size=8, seed=0)
    spread = [np.ptp(lengths[list(order.batch(k))]) for k in range(order.per_epoch)]
    assert np.mean(spread) < 10  # unsorted it is about 380


@given(st.lists(st.integers(1, 60), min_size=0, max_size=40), st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_each_row_is_computed_by_one_rank(lengths: list[int], shares: list[int]) -> None:
    if not any(shares):
        shares[0] = 1
    parts = shared_out(range(len(lengths)), np.asarray(lengths), shares)
    assert sorted(chain(*parts)) == list(range(len(lengths)))
    assert not any(part for part, share in zip(parts, shares, strict=True) if share == 0)


def test_tokens_go_by_shares() -> None:
    lengths = np.random.default_rng(0).integers(10, 500, 200)
    parts = shared_out(range(200), lengths, [3, 1, 0])
    tokens = [int(lengths[part].sum()) for part in parts]
    assert tokens[0] / tokens[1] == pytest.approx(3, rel=0.05)
    with pytest.raises(ValueError):
        shared_out([0], lengths, [0, 0])


@given(
    st.lists(st.integers(1, 60), min_size=0, max_size=40),
    st.integers(1, 9),
    st.none() | st.integers(1, 200),
    st.integers(1, 40),
)
def test_microbatches_fit(lengths: list[int], max_rows: int, max_tokens: int | None, pad_to: int) -> None:
    sizes = np.asarray(lengths)
    groups = list(microbatches(range(len(lengths)), sizes, max_rows=max_rows, max_tokens=max_tokens, pad_to=pad_to))
    assert Counter(chain(*groups)) == Counter(range(len(lengths)))
    for group in groups:
        width = max(padded(lengths[row], pad_to) for row in group)
        assert len(group) <= max_rows
        assert len(group) == 1 or max_tokens is None or width * len(group) <= max_tokens


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=8), st.integers(1, 16))
def test_learned_tokens_are_those_after_the_prompt(rows: list[tuple[int, int]], pad_to: int) -> None:
    found = random_rows([size for size, _ in rows], offsets=[min(offset, size) for size, offset in rows])
    batch = assembled(found, range(len(rows)), pad_to=pad_to)
    assert batch.inputs.shape[1] % pad_to == 0
    for k, (size, offset) in enumerate(rows):
        row = found.row(k)
        learned = [(batch.inputs[k, t], batch.targets[k, t]) for t in np.flatnonzero(batch.mask[k])]
        first = max(1, min(offset, size))
        assert learned == [(row[t - 1], row[t]) for t in range(first, size)]
    assert batch.learned_tokens == int(found.targets.sum())
    assert batch.padding == batch.inputs.size - int((found.lengths - 1).sum())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    pytest.importorskip("mlx_lm")
    from mlx_lm.utils import load_tokenizer

    return load_tokenizer(make_model(tmp_path_factory.mktemp("llama")))


def test_rows_are_tokenised_as_mlx_lm_does(tokenizer: object, tmp_path: Path) -> None:
    from mlx_lm.tuner.datasets import load_local_dataset

    chat = [{"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sees"}]}]
    for rows, masks in ((completions(9), (False, True)), (chat, (False, True)), ([{"text": "a cat runs"}], (False,))):
        for mask in masks:
            folder = make_data(tmp_path / f"{len(rows)}{mask}{next(iter(rows[0]))}", train=rows)
            ours = read_rows(folder, "train", tokenizer=tokenizer, spec=spec(mask_prompt=mask))
            theirs = load_local_dataset(folder, tokenizer, SimpleNamespace(mask_prompt=mask))[0]
            want = [theirs.process(theirs[k]) for k in range(len(theirs))]
            assert [(ours.row(k).tolist(), int(ours.offsets[k])) for k in range(len(ours))] == want


def test_long_rows_are_cut_and_counted(tokenizer: object, tmp_path: Path) -> None:
    folder = make_data(tmp_path, train=[{"text": "cat " * 30}, {"text": "cat"}])
    rows = read_rows(folder, "train", tokenizer=tokenizer, spec=spec(max_seq_length=8))
    assert rows.lengths.tolist() == [8, 2]
    assert rows.cut == 1
    assert len(read_rows(folder, "valid", tokenizer=tokenizer, spec=spec())) == 0


def test_other_keys_can_be_named(tokenizer: object, tmp_path: Path) -> None:
    folder = make_data(tmp_path, train=[{"q": "cat", "a": "dog"}])
    rows = read_rows(
        folder, "train", tokenizer=tokenizer, spec=spec(prompt_feature="q", completion_feature="a", mask_prompt=True)
    )
    assert rows.offsets[0] > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"text": "cat"}\n\n{"text": 3', "line 3: no JSON"),
        ('{"text": "cat"}\n[1]', "line 2: a row is a JSON object"),
        ('{"text": "cat"}\n{"prompt": "cat"}', "line 2: it has no 'text'"),
        ('{"prompt": "a", "completion": "b"}\n{"prompt": "a"}', "line 2: it has no 'completion'"),
        ('{"messages": [{"role": "user", "content": "cat"}]}\n{"messages": 3}', "line 2"),
        ('{"something": 1}', "Unsupported data format"),
        ('{"text": 5}', "line 1"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_with_its_line(tokenizer: object, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "train.jsonl").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_rows(tmp_path, "train", tokenizer=tokenizer, spec=spec())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_rows_to_train_on(tokenizer: object, tmp_path: Path) -> None:
    with pytest.raises(DataMissing):
        read_rows(tmp_path, "train", tokenizer=tokenizer, spec=spec())
    make_data(tmp_path, train=[{"text": "cat"}])
    with pytest.raises(UsageError, match="masking"):
        read_rows(tmp_path, "train", tokenizer=tokenizer, spec=spec(mask_prompt=True))
