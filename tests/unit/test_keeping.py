"""What is kept of a long history: bounded, evenly spread, and the newest as it was."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.keeping import OLDER, kept_evals, kept_rounds, spread
from swarm.core.records import EvalRecord

CONFUSION = ((3, 1), (0, 4))


def evaluated(round: int) -> EvalRecord:
    return EvalRecord(
        round=round, learner="a", loss=float(round), metrics={"accuracy": 0.5}, sample="text", confusion=CONFUSION
    )


def folded(rounds: list[int], keep: int | None) -> tuple[EvalRecord, ...]:
    """As a watch adds them, one after another."""
    kept: tuple[EvalRecord, ...] = ()
    for round in rounds:
        kept = kept_evals((*kept, evaluated(round)), keep)
    return kept


def test_without_a_limit_everything_stays() -> None:
    everything = tuple(map(evaluated, range(5)))
    assert kept_evals(everything, None) == everything
    assert kept_rounds((), None) == kept_rounds((), 4) == ()


@pytest.mark.parametrize(("every", "first", "keep"), [(1, 0, 64), (10, 9, 256), (7, 1000, 64), (64, 63, 64)])
def test_old_evaluations_are_thinned_evenly(every: int, first: int, keep: int) -> None:
    rounds = [first + every * n for n in range(4 * OLDER)]
    kept = folded(rounds, keep)
    assert kept[-keep:] == tuple(map(evaluated, rounds[-keep:]))
    old = kept[:-keep]
    assert OLDER // 4 <= len(old) <= OLDER
    assert old[0].round == first, "the beginning stays"
    assert all((e.loss, e.metrics, e.sample, e.confusion) == (float(e.round), {"accuracy": 0.5}, "", ()) for e in old)
    gaps = [b.round - a.round for a, b in itertools.pairwise(old)]
    assert max(gaps) <= 16 * every, "no stretch of the curve is lost"


@given(st.lists(st.integers(0, 1 << 40), max_size=50))
def test_few_stay_as_they_are(places: list[int]) -> None:
    assert spread(sorted(places), lambda place: place) == tuple(sorted(places))


@given(st.integers(0, 40), st.integers(0, 1 << 32))
def test_what_comes_in_any_order_is_bounded(shift: int, seed: int) -> None:
    chance = random.Random(seed)
    places = [chance.randrange(1 << shift) for _ in range(2 * OLDER)]
    kept = spread(places, lambda place: place)
    assert len(kept) <= OLDER
    assert set(kept) <= set(places)
