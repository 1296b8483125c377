"""The text of charlm: which file it is, how it is cut into batches, and how bytes are chosen and shown."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from swarm.core.errors import DataMissing, UsageError
from swarm.core.manifest import DataRef
from swarm.tasks import registry
from swarm.tasks.charlm import text
from swarm.tasks.charlm.corpus import Corpus
from swarm.tasks.charlm.sampling import choose, printable

TASK = registry.get("charlm")


def test_the_shipped_text_is_described_and_loaded() -> None:
    (ref,) = TASK.data(None)
    assert ref.name == "kjv.txt"
    loaded = text.load(ref, None)
    assert len(loaded) == ref.size_bytes
    assert hashlib.sha256(loaded).hexdigest() == ref.sha256


@pytest.mark.parametrize("place", ["site/swarm/tasks/charlm/text", "site/assets/text"])
def test_the_shipped_text_is_found_in_a_package_and_in_a_source_tree(tmp_path: Path, place: str) -> None:
    package = tmp_path / "site" / "swarm" / "tasks" / "charlm"
    package.mkdir(parents=True)
    with pytest.raises(DataMissing, match="--data FILE"):
        text.shipped(package)
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "kjv.txt").write_bytes(b"x")
    assert text.shipped(package) == tmp_path / place / "kjv.txt"


def test_a_file_is_told_by_its_content_whatever_its_name(tmp_path: Path) -> None:
    mine, copy = tmp_path / "mine.txt", tmp_path / "copy.txt"
    mine.write_bytes(b"my own words\n" * 100)
    copy.write_bytes(mine.read_bytes())
    (ref,) = TASK.data(mine)
    assert (ref.name, ref.size_bytes) == ("mine.txt", 1300)
    assert text.load(ref, copy) == mine.read_bytes()


def test_other_content_is_refused_with_the_hash_to_look_for(tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_bytes(b"something else")
    ref = DataRef(name="mine.txt", sha256="0123456789abcdef" * 4, size_bytes=14)
    advice = "pass the same file with --data; its SHA-256 starts with 0123456789ab"
    for path in (other, tmp_path / "missing.txt", None):
        with pytest.raises(DataMissing, match=advice):
            text.load(ref, path)


def test_what_cannot_be_trained_on_is_refused_before_a_run_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    os.mkfifo(tmp_path / "pipe.txt")  # nobody writes into it: to open it would be to wait for ever
    (tmp_path / "endless.txt").symlink_to("/dev/zero")
    for name, reason in (
        ("empty.txt", "is empty"),
        ("missing.txt", "cannot read"),
        (".", "cannot read"),
        ("pipe.txt", "no file"),
        ("endless.txt", "no file"),
    ):
        with pytest.raises(UsageError, match=reason):
            TASK.data(tmp_path / name)


def test_a_text_that_is_too_long_to_hold_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.truncate(text.MAX_TEXT_BYTES + 1)  # sparse: no such bytes exist
    with pytest.raises(UsageError, match="pass a part of it"):
        text.describe(path)


# Every byte of a text that is its own position, so that a window tells where it was cut.
def numbered(length: int) -> bytes:
    return bytes(range(length))


@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 7), st.data())
def test_windows(seq_len: int, eval_windows: int, size: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(10 * (seq_len + 1), 255))
    corpus = Corpus(numbered(length), seq_len=seq_len, eval_windows=eval_windows)
    split = length - length // 10
    x, y = corpus.batch(np.random.default_rng(0), size)
    assert x.shape == y.shape == (size, seq_len)
    assert np.array_equal(x + 1, y)  # the byte that follows
    assert y.max() < split
    assert np.array_equal(np.diff(x.astype(int), axis=1), np.ones((size, seq_len - 1)))

    held = [np.concatenate(part) for part in zip(*corpus.held_out(size), strict=True)]
    assert np.array_equal(held[0] + 1, held[1])
    assert held[0].min() == split  # held out from here on, and seen by no batch
    assert held[1].max() < length
    assert 1 <= len(held[0]) <= eval_windows
    assert len(np.unique(held[0][:, 0])) == len(held[0])
    again = [np.concatenate(part) for part in zip(*corpus.held_out(size + 3), strict=True)]
    assert np.array_equal(again, held)  # however they are batched


def test_every_place_of_the_training_part_is_drawn() -> None:
    corpus = Corpus(numbered(60), seq_len=4, eval_windows=1)
    x, _ = corpus.batch(np.random.default_rng(0), 2000)
    assert set(x[:, 0]) == set(range(54 - 4))


@pytest.mark.parametrize(("length", "enough"), [(649, False), (650, True)])
def test_a_text_shorter_than_a_window_in_its_last_tenth_is_refused(length: int, enough: bool) -> None:
    if enough:
        Corpus(bytes(length), seq_len=64, eval_windows=8)
    else:
        with pytest.raises(UsageError, match="649 bytes, and seq_len 64 needs at least 650"):
            Corpus(bytes(length), seq_len=64, eval_windows=8)


logits = arrays(np.float32, 256, elements=st.floats(-1e4, 1e4, width=32))


@given(logits, st.integers(0, 2**32))
def test_temperature_zero_takes_the_likeliest_and_draws_nothing(values: np.ndarray, seed: int) -> None:
    random = np.random.default_rng(seed)
    assert choose(values, 0, random) == int(values.argmax())
    assert random.random() == np.random.default_rng(seed).random()


@given(logits, st.floats(1e-300, 1e300), st.integers(0, 2**32))
def test_a_byte_is_always_chosen_and_never_an_impossible_one(values: np.ndarray, temperature: float, seed: int) -> None:
    chosen = choose(values, temperature, np.random.default_rng(seed))
    distance = (values.astype(np.float64).max() - float(values[chosen])) / temperature
    assert distance < 746  # beyond that, e to the minus it is 0


def test_bytes_are_drawn_as_often_as_their_probability_says() -> None:
    values = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    random = np.random.default_rng(0)
    counts = np.bincount([choose(values, 1.0, random) for _ in range(4000)], minlength=4) / 4000
    assert np.allclose(counts, [0.5, 0.25, 0.125, 0.125], atol=0.03)
    counts = np.bincount([choose(values, 0.5, random) for _ in range(4000)], minlength=4) / 4000
    assert np.allclose(counts, np.array([16, 4, 1, 1]) / 22, atol=0.03)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_model_that_has_diverged_still_yields_a_byte(temperature: float) -> None:
    assert 0 <= choose(np.full(256, np.nan, np.float32), temperature, np.random.default_rng(0)) < 256


@given(st.binary(max_size=60))
def test_shown_text_is_one_printable_line_no_longer_than_its_bytes(data: bytes) -> None:
    shown = printable(data)
    assert len(shown) <= len(data)
    assert shown.isprintable()
    assert shown == shown.strip()
    assert "  " not in shown


def test_shown_text_keeps_what_can_be_shown() -> None:
    assert printable("And it came\n to pass,\t Ümläut \x1b[31mred".encode()) == "And it came to pass, Ümläut [31mred"
