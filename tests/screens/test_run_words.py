"""What the Run screen says of a state."""

from types import SimpleNamespace
from typing import Any

import pytest

from swarm.core.state import ManifestRead, RoundRead, apply
from tui import view_run


def said(line: Any) -> str:
    return "".join(words for words, _ in line)


def banner(shown: Any) -> list[str]:
    return [said(line) for line in view_run.banner(shown)]


def test_a_late_snapshot_stands_with_its_own_round(fixed: SimpleNamespace) -> None:
    lines = [said(line) for line in view_run.closed_round_lines(fixed.run_state(closed=6))]
    assert lines[0].startswith("r5 ✓ 4/4")
    assert lines[1].startswith("r4 ✓ 4/4")
    assert lines[2].startswith("r3 ◐ 3/4")
    assert lines[2].endswith("air late")


def test_a_round_without_participants(fixed: SimpleNamespace) -> None:
    refused = fixed.api.Rejected(learner="air", unit="air", reason="nonfinite", round=0)
    state = apply(
        apply(fixed.api.RunState(run=fixed.AT.run), ManifestRead(fixed.manifest())),
        RoundRead(fixed.round_record(0, (), (refused,))),
    )
    (line,) = view_run.closed_round_lines(state)
    assert said(line).startswith("r0 ✗ 0/1  0.4 s  train —  val —  air nonfinite")


def test_who_is_silent_and_since_when(fixed: SimpleNamespace) -> None:
    (line,) = banner(fixed.run_shown(fixed.run_state(silent=("air", "linux-3090"))))
    assert line == "⚠ air silent 38 s, linux-3090 silent 38 s; the round closes with those still live"


def test_what_is_waited_for(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.run_state(learners=("studio",), closed=0, start_learners=3))
    assert banner(shown) == ["◌ waiting for 2 more learners; join it here: enter"]
    joined = fixed.run_shown(shown.state, job=fixed.job())
    assert banner(joined) == ["◌ waiting for 2 more learners"]


def test_a_lost_share_says_how_old_everything_is(fixed: SimpleNamespace) -> None:
    (line,) = banner(fixed.run_shown(fixed.lost(fixed.run_state()), age_s=34))
    assert line == "✗ share lost: the share does not answer; what is shown is 34 s old; trying again"
    hanging = fixed.run_shown(fixed.run_state(), age_s=7.0)
    assert banner(hanging)[0] == "✗ the share does not answer; what is shown is 7.0 s old"
    assert said(view_run.headline(hanging, width=120)).endswith("share ✗ 7.0 s")


def test_idle_done_and_stopped(fixed: SimpleNamespace) -> None:
    gone = ("studio", "mbp")
    idle = fixed.run_state(learners=gone, left=gone, closed=7)
    assert banner(fixed.run_shown(idle)) == ["○ idle since round 6: no learner is live; join it here: enter"]
    done = fixed.run_state(learners=gone, left=gone, closed=40)
    assert banner(fixed.run_shown(done)) == ["✓ done: 40 rounds, loss 1.850 (validation)"]
    stopped = fixed.run_state(learners=gone, left=gone, closed=7, stop=True)
    assert banner(fixed.run_shown(stopped))[0].startswith("■ stopped by studio: 7 rounds, loss ")


def test_a_stop_that_is_not_in_effect_yet(fixed: SimpleNamespace) -> None:
    state = fixed.run_state(stop=True)
    state = fixed.msgspec.structs.replace(state, rounds=fixed.run_state().rounds)
    assert banner(fixed.run_shown(state)) == ["■ stop was asked for by studio: it takes effect at the next round"]
    assert not view_run.stoppable(state)


def test_nobody_is_called_live_or_gone_before_it_is_certain(fixed: SimpleNamespace) -> None:
    first = fixed.run_shown(fixed.run_state(polls=1))
    assert "◌ CHECKING" in said(view_run.headline(first, width=120))
    assert banner(first) == ["◌ watching for signs of life"]


@pytest.mark.parametrize("width", [120, 80, 60, 50, 40])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_headline_fits_and_keeps_state_and_share(fixed: SimpleNamespace, width: int, frozen: bool) -> None:
    line = said(view_run.headline(fixed.run_shown(fixed.run_state(name="a" * 60)), width=width, frozen=frozen))
    assert len(line) <= max(width - 2, 60)
    assert "● RUNNING" in line
    assert "r12/40" in line
    assert line.endswith("share ✓ 0.4 s")
    assert ("FROZEN" in line) == frozen


def test_a_gone_run_says_why(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.api.RunState(run=fixed.AT.run), problem="no run k4m7q2xw")
    assert banner(shown) == ["✗ no run k4m7q2xw; nothing was read yet"]


def test_the_rates_show_a_stall_and_not_the_noise() -> None:
    assert view_run._rate_bars((100.0,) * 10) == "▄▄▄▄▄▄▄▄▄▄"
    assert view_run._rate_bars((100.0, 0.0, 100.0)).endswith("█▁█")
    assert "▁" not in view_run._rate_bars((100.0, 97.0, 99.0, 101.0))
