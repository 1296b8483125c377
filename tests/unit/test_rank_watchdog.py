"""When a rank counts as stuck."""

from __future__ import annotations

import pytest

from swarm.parallel.hangs import advice
from swarm.parallel.watchdog import PATIENCE, Progress


def test_silence_beyond_the_limit_is_told_with_what_it_waited_for() -> None:
    progress = Progress()
    assert not progress.overdue(1e9)  # nothing is expected yet
    progress.expect("meeting", 10.0, now_s=100.0)
    assert not progress.overdue(110.0)
    assert progress.overdue(110.5) == "meeting: no sign of progress for 10 s"
    progress.sign(110.6)
    assert not progress.overdue(120.0)
    progress.expect("training", 60.0, now_s=121.0)
    assert not progress.overdue(180.0)
    assert "training" in progress.overdue(182.0)


@pytest.mark.parametrize("grows", [True, False])
def test_slow_signs_are_given_more_time(grows: bool) -> None:
    progress = Progress()
    progress.expect("a step", 10.0, now_s=0.0, grows=grows)
    progress.sign(8.0)
    progress.sign(9.0)  # a quick one takes nothing away
    assert bool(progress.overdue(9.0 + 8.0 * PATIENCE)) is not grows
    assert progress.overdue(9.0 + 8.0 * PATIENCE + 1)
    progress.expect("a step", 10.0, now_s=100.0, grows=grows)
    assert progress.overdue(111.0)  # what was before is forgotten


def test_what_is_known_of_such_a_silence_is_told_with_it() -> None:
    progress = Progress()
    progress.expect("a step", 10.0, now_s=0.0, advice=advice("ring", 3))
    words = progress.overdue(11.0)
    assert words.startswith("a step: no sign of progress for 11 s; if no machine slept")
    assert "install the newest MLX" in words
    assert "\n" not in words
    progress.expect("another", 10.0, now_s=20.0)
    assert progress.overdue(31.0) == "another: no sign of progress for 11 s"


def test_nothing_is_said_of_collectives_that_are_not_known_to_hang() -> None:
    assert advice("nccl", 3) == advice("ring", 1) == ""
