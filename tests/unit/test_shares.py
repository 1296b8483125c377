"""Shares follow speeds, and nothing else."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.shares import IDLE_STEPS, TOTAL, WINDOW, WORTH, Balance, divided, expected
from swarm.parallel.rows import shared_out

SPEEDS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=64)


def run(balance: Balance, steps: int, speed: Callable[[int, int], float], *, rows: Sequence[int] | None = None) -> list[int]:
    """The steps after which the shares were changed. `speed`: of a rank in a step. `rows`: lengths of each batch's rows, which
    are divided; by default anything can be."""
    changed = []
    for step in range(steps):
        if rows is None:
            work = [1000.0 * share / sum(balance.shares) for share in balance.shares]
        else:
            lengths = np.asarray(rows)
            work = [float(lengths[part].sum()) for part in shared_out(range(len(rows)), lengths, balance.shares)]
        if balance.measured(work, [given / speed(rank, step) for rank, given in enumerate(work)]):
            changed.append(step)
    return changed


@given(SPEEDS, st.integers(0, 3))
def test_shares_are_in_proportion_and_nobody_who_can_work_has_none(speeds: list[float], idle: int) -> None:
    named = {rank + idle: speed for rank, speed in enumerate(speeds)}
    shares = divided(named, size=len(speeds) + idle)
    assert sum(shares) == max(TOTAL, len(speeds))
    assert shares[:idle] == (0,) * idle
    assert min(shares[idle:]) >= 1
    for rank, speed in named.items():
        fair = TOTAL * speed / sum(speeds)
        assert abs(shares[rank] - fair) <= len(speeds)  # all but one part of each are divided
    assert divided(named, size=len(shares)) == shares


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=5), st.integers(0, 2**32))
def test_shares_come_to_the_speeds_and_stay(speeds: list[float], seed: int) -> None:
    rng = random.Random(seed)
    wobble = 0.97, 1.03
    balance = Balance([1] * len(speeds))
    changed = run(balance, 8 * WINDOW, lambda rank, _: speeds[rank] * rng.uniform(*wobble))
    assert all(step >= WINDOW - 1 for step in changed)
    assert len(changed) <= 2
    named = dict(enumerate(speeds))
    best = expected(divided(named, size=len(speeds)), named)
    assert expected(balance.shares, named) <= 1.07 * WORTH * best


@given(st.integers(2, 4), st.integers(0, 2**32))
def test_noise_moves_nothing(size: int, seed: int) -> None:
    rng = random.Random(seed)
    balance = Balance([1] * size)
    assert not run(balance, 120, lambda *_: rng.uniform(0.94, 1.06))
    assert balance.shares == (1,) * size


@given(st.integers(0, 50), st.integers(0, 1))
def test_a_few_slow_steps_move_nothing(first: int, slow: int) -> None:
    balance = Balance([1, 1])
    hiccup = range(first, first + WINDOW // 2)
    assert not run(balance, 80, lambda rank, step: 0.01 if rank == slow and step in hiccup else 1.0)


def test_a_constant_part_of_the_time_is_balanced_too() -> None:
    """What a step takes whatever it is given makes a rank look slower the less it has; the shares still settle where all take
    equally long."""
    balance = Balance([1, 1])

    def seconds(rank: int, work: float) -> float:
        return (100.0, 50.0)[rank] + work / (1.0, 2.0)[rank]

    for _ in range(40 * WINDOW):
        work = [1000.0 * share / sum(balance.shares) for share in balance.shares]
        balance.measured(work, [seconds(rank, given) for rank, given in enumerate(work)])
    one, other = (seconds(rank, 1000.0 * balance.fraction(rank)) for rank in (0, 1))
    assert max(one, other) / min(one, other) < WORTH


def test_a_rank_with_no_share_stays_out() -> None:
    balance = Balance([1, 0, 1])
    assert run(balance, 50, lambda rank, _: (1.0, 9.0, 3.0)[rank])
    assert balance.shares == (251, 0, 749)
    alone = Balance([0, 2])
    assert not run(alone, 50, lambda *_: 1.0)
    assert alone.shares == (0, 2)


def test_a_rank_that_was_too_slow_for_a_single_row_is_tried_again() -> None:
    """Ever more seldom while it is slow; and soon has its share when it is not any more."""
    balance = Balance([1, 1])
    still_slow = run(balance, 8 * IDLE_STEPS, lambda rank, _: (10.0, 1.0)[rank], rows=[8] * 4)
    assert balance.shares[1] < 100
    gaps = [later - sooner for sooner, later in itertools.pairwise(still_slow)]
    assert [gap for gap in gaps if gap > WINDOW] == [IDLE_STEPS, 2 * IDLE_STEPS, 4 * IDLE_STEPS]  # in between, it is measured
    run(balance, 16 * IDLE_STEPS, lambda *_: 10.0, rows=[8] * 4)
    assert balance.shares == (500, 500)


def test_ranks_that_get_no_rows_for_want_of_rows_change_nothing() -> None:
    balance = Balance([1, 1, 1])
    run(balance, 10 * IDLE_STEPS, lambda *_: 1.0, rows=[5, 5])
    assert max(balance.shares) - min(balance.shares) <= 1


@pytest.mark.parametrize("shares", [[], [0, 0], [1, -1]])
def test_shares_that_are_none_are_refused(shares: list[int]) -> None:
    with pytest.raises(ValueError, match="shares must not be negative"):
        Balance(shares)
