from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import StateMismatch
from swarm.tasks.streams import at, generator, position

part = st.one_of(st.integers(-(2**70), 2**70), st.text(st.characters(codec="utf-8"), max_size=4))
name = st.tuples(st.integers(0, 3), st.lists(part, max_size=3)).map(lambda drawn: (drawn[0], *drawn[1]))


def first(seed: int, *names: str | int) -> list[int]:
    return list(generator(seed, *names).bit_generator.random_raw(4))


@given(name, name)
def test_streams_are_equal_if_and_only_if_their_names_are(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert (first(*one) == first(*other)) == (one == other)


def test_neither_type_nor_border_of_a_part_is_lost() -> None:
    names: list[tuple[str | int, ...]] = [(), ("",), ("a", "b"), ("ab",), ("a", "b", ""), (1,), ("1",), (11,), (1, 1)]
    streams = {tuple(first(0, *parts)) for parts in names}
    assert len(streams) == len(names)


def test_streams_share_no_stretch() -> None:
    streams = [generator(0, "batches", learner, k).bit_generator.random_raw(2000) for learner in "ab" for k in (1, 2)]
    assert len(np.unique(np.concatenate(streams))) == 4 * 2000


def test_the_bits_are_the_same_on_every_machine() -> None:
    """What a run draws must not change with a later version of swarm."""
    assert [hex(word) for word in first(7, "charlm", "batches", "studio", 2)] == [
        "0xead55bb717e421a8",
        "0xbb77b7e471378957",
        "0x9d90792f3ae9a54d",
        "0xb2c3e7635359f30e",
    ]


@given(name, st.lists(st.sampled_from(["normal", "integers", "bytes"]), max_size=5))
def test_a_stream_goes_on_from_a_position_that_was_written_down(parts: tuple[int, ...], draws: list[str]) -> None:
    random = generator(*parts)
    for draw in draws:
        {
            "normal": random.standard_normal,
            "integers": lambda: random.integers(0, 9, 3, np.uint32),
            "bytes": lambda: random.bytes(5),
        }[draw]()
    other = at(json.loads(json.dumps(position(random))))
    assert list(other.bit_generator.random_raw(9)) == list(random.bit_generator.random_raw(9))
    assert position(other) == position(random)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda v: st.lists(v) | st.dictionaries(st.text(), v)))
def test_what_is_no_position_is_refused(value: object) -> None:
    with pytest.raises(StateMismatch, match="no position"):
        at(value)
    for part in ("state", "buffer", "buffer_pos", "has_uint32", "uinteger", "bit_generator"):
        good = position(generator(0))
        with contextlib.suppress(StateMismatch):
            assert position(at(good | {part: value})) == good | {part: value}
