from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swarm.tasks.streams import generator

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
