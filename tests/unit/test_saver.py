"""When a learner saves its local checkpoint: a policy over a clock that is passed in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.runtime.local import Saver


def test_the_first_round_boundary_is_saved_at_once() -> None:
    saver = Saver(100.0)
    assert not saver.due(100.0)
    assert saver.due(100.0, boundary=True)


def test_without_a_boundary_it_saves_once_a_minute() -> None:
    saver = Saver(0.0)
    assert not saver.due(59.9)
    assert saver.due(60.0)
    saver.tried(began_s=60.0, now_s=61.0)
    assert not saver.due(120.9)
    assert saver.due(121.0)


def test_a_save_that_took_long_puts_off_the_next_one() -> None:
    saver = Saver(0.0)
    saver.tried(began_s=10.0, now_s=14.0)
    assert not saver.due(213.9, boundary=True)
    assert not saver.due(213.9)
    assert saver.due(214.0)
    assert saver.due(214.0, boundary=True)


def test_a_quick_save_is_repeated_at_every_boundary_that_is_not_too_close() -> None:
    saver = Saver(0.0)
    saver.tried(began_s=1.0, now_s=1.125)
    assert not saver.due(7.25, boundary=True)
    assert saver.due(7.375, boundary=True)
    assert not saver.due(7.375)


def test_who_leaves_saves_in_any_case() -> None:
    saver = Saver(0.0)
    saver.tried(began_s=10.0, now_s=20.0)
    assert saver.due(20.0, leaving=True)


costs = st.lists(st.tuples(st.floats(0.001, 30), st.floats(0.01, 5), st.booleans()), min_size=1, max_size=50)


@given(costs)
def test_saving_takes_at_most_a_fiftieth_of_the_time_of_training(steps: list[tuple[float, float, bool]]) -> None:
    """A step of training before each question; each save takes its own time."""
    saver, now_s, saving_s, last_cost_s = Saver(0.0), 0.0, 0.0, 0.0
    for step_s, cost_s, boundary in steps * 20:
        now_s += step_s
        if saver.due(now_s, boundary=boundary):
            saver.tried(began_s=now_s, now_s=now_s + cost_s)
            now_s += cost_s
            saving_s += cost_s
            last_cost_s = cost_s
    assert saving_s - last_cost_s <= (now_s - saving_s) / 50 + 1e-6
