from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.controls import Effect, effect
from swarm.core.records import Control


def control(text: str) -> Control:
    action, _, number = text.partition(" ")
    given: dict[str, Any] = {"by": "m"}
    if action == "extend":
        given["rounds"] = int(number) if number else None
    if action == "drop":
        given |= {"learner": "x", "incarnation": int(number)}
    return Control(action=action, **given)  # type: ignore[arg-type]


def folded(*texts: str, rounds: int | None = 6, committed: int = 3, named: int = 99) -> Effect:
    return effect([control(text) for text in texts], rounds=rounds, committed=committed, named=named)


def test_without_controls_there_is_the_manifest() -> None:
    assert folded() == Effect(rounds=6)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["stop"], {"stopped": True}),
        (["pause"], {"paused": True}),
        (["pause", "resume"], {}),
        (["resume"], {}),
        (["pause", "pause", "resume"], {}),
        (["pause", "stop"], {"stopped": True}),
        (["extend 9"], {"rounds": 9}),
        (["extend"], {"rounds": None}),
        (["extend 9", "extend 2"], {"rounds": 2}),
        (["unknown", "pause", "unknown"], {"paused": True}),
    ],
)
def test_what_is_named_is_in_effect(texts: list[str], expected: dict[str, Any]) -> None:
    now = folded(*texts)
    assert (now.rounds, now.stopped, now.paused) == (
        expected.get("rounds", 6),
        expected.get("stopped", False),
        expected.get("paused", False),
    )
    assert not now.ending


def test_what_no_record_names_is_asked_for() -> None:
    assert folded("pause", named=0) == Effect(rounds=6, pausing=True, by="m")
    assert folded("stop", named=0) == Effect(rounds=6, stopping=True, by="m")
    assert folded("extend 9", named=0) == Effect(rounds=6)
    assert not folded("pause", "resume", named=0).ending, "nobody need hurry any more"


def test_while_it_is_paused_everything_is_at_once() -> None:
    assert folded("pause", "resume", named=1) == Effect(rounds=6)
    assert folded("pause", "stop", named=1).stopped
    assert folded("pause", "extend 9", named=1).rounds == 9
    after = folded("pause", "resume", "pause", named=1)
    assert (after.paused, after.pausing) == (False, True), "that one waits for a round again"


def test_a_run_that_has_all_its_rounds_is_extended_at_once() -> None:
    assert folded("extend 9", committed=6, named=0).rounds == 9
    assert folded("extend 9", "extend 7", committed=6, named=0).rounds == 9, "it goes on, and the second one waits for a round"
    assert folded("stop", "extend 9", committed=6, named=0) == Effect(rounds=9), "there was nothing to stop"
    assert folded("stop", "extend 9", committed=7, named=2) == Effect(rounds=9), "nor is there later"


def test_a_stop_is_final() -> None:
    assert folded("stop", "extend 9", "resume", "pause") == Effect(rounds=6, stopped=True, by="m")


def test_a_drop_is_at_once_and_about_the_incarnations_so_far() -> None:
    now = folded("drop 2", "drop 1", named=0)
    assert [now.is_dropped("x", k) for k in (1, 2, 3)] == [True, True, False]
    assert not now.is_dropped("y", 1)
    assert now.dropped["x"] == (2, "m")


ACTIONS = st.sampled_from(["stop", "pause", "resume", "extend", "extend 2", "extend 5", "extend 9", "drop 1", "unknown"])


@given(st.lists(ACTIONS, max_size=8), st.integers(0, 10), st.integers(0, 8))
def test_what_was_in_effect_stays_so_as_the_run_goes_on(texts: list[str], committed: int, named: int) -> None:
    """A stop that was seen in effect is never taken back by rounds or names that come later."""
    if folded(*texts, committed=committed, named=named).stopped:
        for more in range(3):
            assert folded(*texts, "resume", "extend", committed=committed, named=named + more).stopped


@given(st.lists(ACTIONS, max_size=8), st.integers(0, 10))
def test_when_all_is_named_nothing_is_asked_for(texts: list[str], committed: int) -> None:
    assert not folded(*texts, committed=committed, named=len(texts)).ending
