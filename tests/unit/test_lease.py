"""Leases: judged on the observer's clock, from how long the newest beat stays the same."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.lease import BeatId, Lease, Leases, leases

SPECS = st.sampled_from([(30.0, 5.0), (30.0, 15.0), (4.0, 1.0), (1.0, 0.5), (100.0, 1.0)])  # lease_s, beat_s
SIXTEENTH = 1 / 16  # times are multiples of it, so that sums of floats are exact


def times(gaps: Iterable[int], start: float = 1000.0) -> list[float]:
    found = [start]
    for gap in gaps:
        found.append(found[-1] + gap * SIXTEENTH)
    return found


def poll_gaps(largest_s: float) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, int(largest_s / SIXTEENTH)), min_size=1, max_size=60)


@given(SPECS, st.data())
def test_a_learner_that_beats_is_never_stale(spec: tuple[float, float], data: st.DataObject) -> None:
    lease_s, beat_s = spec
    fold = leases(lease_s=lease_s, beat_s=beat_s)
    phase = data.draw(st.floats(0, 1))
    for now_s in times(data.draw(poll_gaps(fold.gap_s))):
        n = int((now_s + phase * beat_s) // beat_s)
        fold = fold.observe(now_s, {"a": BeatId(1, n)})
        assert fold.live() == {"a"}
        assert fold.holds("a", 1)


@given(SPECS, st.data())
def test_a_learner_that_stopped_is_stale_one_lease_and_one_poll_after_it_was_last_seen(
    spec: tuple[float, float], data: st.DataObject
) -> None:
    lease_s, beat_s = spec
    fold = leases(lease_s=lease_s, beat_s=beat_s)
    gaps = data.draw(st.lists(st.integers(1, int(fold.gap_s / SIXTEENTH)), min_size=1, max_size=9))
    first_s = now_s = 1000.0
    fold = fold.observe(now_s, {"a": BeatId(1, 7)})
    for gap in itertools.cycle(gaps):
        if now_s - first_s >= lease_s:
            break
        assert fold.live() == {"a"}
        now_s += gap * SIXTEENTH
        fold = fold.observe(now_s, {"a": BeatId(1, 7)})
    assert now_s - first_s <= lease_s + fold.gap_s
    assert fold.live() == frozenset()
    assert not fold.holds("a", 1)


polls = st.lists(
    st.tuples(
        st.integers(-200, 2000),  # since the poll before, in sixteenths of a second
        st.dictionaries(st.sampled_from("abc"), st.builds(BeatId, st.integers(1, 3), st.integers(0, 4))),
        st.frozensets(st.sampled_from("abc")),
    ),
    max_size=25,
)


@given(SPECS, polls, st.integers(0, 10**6))
def test_an_observer_that_slept_declares_nobody_dead(
    spec: tuple[float, float], history: list[tuple[int, dict[str, BeatId], frozenset[str]]], asleep: int
) -> None:
    lease_s, beat_s = spec
    fold = leases(lease_s=lease_s, beat_s=beat_s)
    now_s = 1000.0
    for gap, newest, released in history:
        before = fold
        now_s += gap * SIXTEENTH
        fold = fold.observe(now_s, newest, released)
        if before.polled_at_s is None or not 0 <= gap * SIXTEENTH <= fold.gap_s:
            assert all(lease.unchanged_s == 0 for lease in fold.by_learner.values())
        assert all(lease.unchanged_s >= 0 for lease in fold.by_learner.values())
    awake = fold.observe(now_s + fold.gap_s + (1 + asleep) * SIXTEENTH, {})
    assert awake.live() == {k for k, lease in fold.by_learner.items() if not lease.released}
    # It takes a whole lease of watching again.
    assert awake.observe(awake.polled_at_s + min(fold.gap_s, lease_s / 2), {}).live() == awake.live()  # type: ignore[operator]


@given(SPECS, polls)
def test_a_poll_never_forgets_a_learner_nor_goes_back(
    spec: tuple[float, float], history: list[tuple[int, dict[str, BeatId], frozenset[str]]]
) -> None:
    fold = leases(lease_s=spec[0], beat_s=spec[1])
    now_s = 1000.0
    for gap, newest, released in history:
        before, now_s = fold, now_s + gap * SIXTEENTH
        fold = before.observe(now_s, newest, released)
        assert set(fold.by_learner) == set(before.by_learner) | set(newest)
        for learner, old in before.by_learner.items():
            assert fold.by_learner[learner].newest == max(old.newest, newest.get(learner, old.newest))


@given(SPECS, st.floats(-1e9, 1e9).map(lambda x: float(int(x))), st.data())
def test_only_differences_of_the_observers_clock_count(spec: tuple[float, float], origin_s: float, data: st.DataObject) -> None:
    fold = leases(lease_s=spec[0], beat_s=spec[1])
    here, there = fold, fold
    for now_s in times(data.draw(poll_gaps(2 * fold.gap_s)), start=0.0):
        beats = {"a": BeatId(1, data.draw(st.integers(0, 3)))}
        here, there = here.observe(now_s, beats), there.observe(origin_s + now_s, beats)
    assert here.by_learner == there.by_learner


def watch(fold: Leases, *beats: dict[str, BeatId], every_s: float = 5.0) -> Leases:
    now_s = 0.0 if fold.polled_at_s is None else fold.polled_at_s + every_s
    for newest in beats:
        fold = fold.observe(now_s, newest)
        now_s += every_s
    return fold


FOLD = leases(lease_s=30, beat_s=5)


def test_the_gap_is_one_beat_or_a_third_of_a_lease() -> None:
    assert leases(lease_s=30, beat_s=5).gap_s == 10
    assert leases(lease_s=30, beat_s=15).gap_s == 15


def test_a_gap_of_exactly_the_limit_counts_and_a_longer_one_does_not() -> None:
    fold = FOLD.observe(0, {"a": BeatId(1, 1)})
    assert fold.observe(10, {"a": BeatId(1, 1)}).by_learner["a"].unchanged_s == 10
    assert fold.observe(10.001, {"a": BeatId(1, 1)}).by_learner["a"].unchanged_s == 0


def test_a_clock_that_goes_back_starts_anew() -> None:
    fold = watch(FOLD, *[{"a": BeatId(1, 1)}] * 6)
    assert fold.by_learner["a"].unchanged_s == 25
    assert fold.observe(3.0, {"a": BeatId(1, 1)}).by_learner["a"].unchanged_s == 0


def test_a_late_listing_proves_nothing() -> None:
    fold = watch(FOLD, *[{"a": BeatId(1, 9)}] * 4)
    late = watch(fold, {"a": BeatId(1, 8)})
    assert late.by_learner["a"] == Lease(newest=BeatId(1, 9), unchanged_s=20)
    assert watch(late, {}).by_learner["a"] == Lease(newest=BeatId(1, 9), unchanged_s=25)
    assert watch(late, {}, {}).live() == frozenset()


def test_a_release_is_believed_at_once_and_until_a_newer_beat() -> None:
    fold = FOLD.observe(0, {"a": BeatId(1, 9)}).observe(5, {"a": BeatId(1, 10)}, frozenset({"a"}))
    assert fold.live() == frozenset()
    assert fold.observe(8, {}).live() == frozenset()
    back = fold.observe(8, {"a": BeatId(2, 0)})
    assert back.live() == {"a"}
    assert back.holds("a", 2)
    assert not back.holds("a", 1)


def test_a_late_listing_neither_releases_nor_takes_a_release_back() -> None:
    back = FOLD.observe(0, {"a": BeatId(1, 9)}, frozenset({"a"})).observe(5, {"a": BeatId(2, 0)})
    assert back.observe(8, {"a": BeatId(1, 9)}, frozenset({"a"})).live() == {"a"}
    left = FOLD.observe(0, {"a": BeatId(1, 8)}).observe(5, {"a": BeatId(1, 9)}, frozenset({"a"}))
    assert left.observe(8, {"a": BeatId(1, 8)}).live() == frozenset()


def test_a_higher_incarnation_takes_over_and_a_lower_one_never_does() -> None:
    fold = FOLD.observe(0, {"a": BeatId(1, 500)}).observe(5, {"a": BeatId(2, 0)})
    assert fold.by_learner["a"] == Lease(newest=BeatId(2, 0))
    old = fold.observe(10, {"a": BeatId(1, 501)})
    assert old.holds("a", 2)
    assert not old.holds("a", 1)


@pytest.mark.parametrize(("learner", "incarnation"), [("b", 1), ("a", 2), ("", 0)])
def test_nobody_else_holds_it(learner: str, incarnation: int) -> None:
    assert not FOLD.observe(0, {"a": BeatId(1, 1)}).holds(learner, incarnation)
