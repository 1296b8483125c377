"""Who is told what: transitions only, each once."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from swarm.api import Home
from swarm.core.state import RoundRead, apply
from tui.alarms import GAP_S, LEAST_S, MANY, Watched, alarms


class Told:
    """Looks again and again, a step of time apart."""

    def __init__(self, step_s: float = 2.0) -> None:
        self.watched, self.now_s, self.step_s = Watched(), 1000.0, step_s

    def look(self, home: Home) -> list[str]:
        self.now_s += self.step_s
        self.watched, found = alarms(self.watched, home, self.now_s)
        return [alarm.text for alarm in found]

    def for_s(self, home: Home, seconds_s: float) -> list[str]:
        return [line for _ in range(round(seconds_s / self.step_s)) for line in self.look(home)]


def left(fixed: SimpleNamespace, **more: Any) -> Any:
    return fixed.run_state(left=("studio", "mbp", "linux-3090", "air"), **more)


@pytest.mark.parametrize("state", ["running", "done", "stopped"])
def test_the_first_look_tells_nothing(fixed: SimpleNamespace, state: str) -> None:
    run = left(fixed, closed=40) if state == "done" else fixed.run_state(stop=state == "stopped")
    told = Told()
    assert told.for_s(fixed.home(run, jobs=(fixed.job(state="failed", message="no data"),)), 20.0) == []


def test_the_end_of_a_run_is_told_once(fixed: SimpleNamespace) -> None:
    told = Told()
    assert told.look(fixed.home(fixed.run_state(closed=39))) == []
    assert told.look(fixed.home(left(fixed, closed=40))) == ["run charlm-brave-otter is done: 40 rounds, loss 1.850"]
    assert told.for_s(fixed.home(left(fixed, closed=40)), 20.0) == []


def test_who_stopped_a_run_is_told(fixed: SimpleNamespace) -> None:
    told = Told()
    told.look(fixed.home(fixed.run_state()))
    stopped = left(fixed, controls=(fixed.Control(action="stop", by="mbp"),))
    (line,) = told.look(fixed.home(stopped))
    assert line.startswith("run charlm-brave-otter was stopped by mbp: 12 rounds")


def test_a_run_without_a_round_for_long_stalls_and_goes_on(fixed: SimpleNamespace) -> None:
    told = Told()
    state = fixed.run_state()
    assert told.look(fixed.home(state)) == []
    assert told.for_s(fixed.home(state), LEAST_S) == []
    (line,) = told.for_s(fixed.home(state), 2 * LEAST_S)
    assert line == "run charlm-brave-otter stalls: no round for 2m02, usually one every 9.0 s"
    after = apply(state, RoundRead(fixed.round_record(state.open_round, ("studio", "mbp"))))
    assert told.for_s(fixed.home(after), LEAST_S) == []
    assert len(told.for_s(fixed.home(after), LEAST_S)) == 1  # stalled anew


def test_what_is_usual_is_seen_here(fixed: SimpleNamespace) -> None:
    """Rounds that take longer than their records tell, since somebody always comes late."""
    told = Told()
    state, usual_s = fixed.run_state(), 100.0
    for _ in range(5):
        assert told.for_s(fixed.home(state), usual_s) == []
        state = apply(state, RoundRead(fixed.round_record(state.open_round, ("studio", "mbp"))))
    assert told.for_s(fixed.home(state), MANY * usual_s) == []
    assert len(told.for_s(fixed.home(state), 10.0)) == 1


def resting(fixed: SimpleNamespace) -> Iterable[Any]:
    yield fixed.run_state(controls=(fixed.Control(action="pause", by="mbp"),))
    yield fixed.run_state(learners=("studio",), closed=0)
    yield left(fixed)
    yield fixed.lost(fixed.run_state())


def test_a_run_that_rests_does_not_stall(fixed: SimpleNamespace) -> None:
    for state in resting(fixed):
        told = Told()
        told.look(fixed.home(fixed.run_state(closed=0 if not state.rounds else 12)))
        assert [line for line in told.for_s(fixed.home(state), 10 * LEAST_S) if "stalls" in line] == []


def test_a_machine_that_slept_blames_nobody(fixed: SimpleNamespace) -> None:
    told = Told()
    home = fixed.home(fixed.run_state())
    told.for_s(home, 20.0)
    told.now_s += 10 * GAP_S + LEAST_S
    assert told.look(home) == []


@pytest.mark.parametrize(
    ("state", "message", "words"),
    [
        ("failed", "no\x1b[31m data", "its worker failed: no data"),
        ("failed", "", "its worker failed: it left no message"),
        ("dropped", "studio was dropped by mbp", "studio was dropped by mbp"),
    ],
)
def test_a_run_that_lost_this_machine_is_told(fixed: SimpleNamespace, state: str, message: str, words: str) -> None:
    told = Told()
    told.look(fixed.home(fixed.run_state(), jobs=(fixed.job(),)))
    after = fixed.home(fixed.run_state(), jobs=(fixed.job(state=state, message=message),))
    assert told.look(after) == [f"run charlm-brave-otter has lost this machine: {words}"]
    assert told.for_s(after, 20.0) == []


@pytest.mark.parametrize("state", ["left", "done", "stopped"])
def test_a_job_that_ends_as_it_should_is_no_loss(fixed: SimpleNamespace, state: str) -> None:
    told = Told()
    told.look(fixed.home(fixed.run_state(), jobs=(fixed.job(),)))
    assert told.look(fixed.home(fixed.run_state(), jobs=(fixed.job(state=state),))) == []


def test_a_worker_whose_beats_do_not_arrive_is_told(fixed: SimpleNamespace) -> None:
    told = Told()
    told.look(fixed.home(fixed.run_state(), jobs=(fixed.job(),)))
    silent = fixed.home(fixed.run_state(silent=("studio",)), jobs=(fixed.job(),))
    assert told.look(silent) == ["run charlm-brave-otter has lost this machine: its worker runs, but no beat arrives"]
    assert told.for_s(silent, 20.0) == []


def test_another_machines_silence_is_its_own(fixed: SimpleNamespace) -> None:
    told = Told()
    told.look(fixed.home(fixed.run_state(), jobs=(fixed.job(),)))
    assert told.look(fixed.home(fixed.run_state(silent=("mbp",)), jobs=(fixed.job(),))) == []


def test_a_share_that_comes_back_repeats_nothing(fixed: SimpleNamespace) -> None:
    told = Told()
    told.look(fixed.home(fixed.run_state(closed=39)))
    done = fixed.home(left(fixed, closed=40))
    assert len(told.look(done)) == 1
    gone = msgspec.structs.replace(done, mailboxes=(fixed.api.MailboxView(location=fixed.SHARE, problem="no answer"),))
    assert told.for_s(gone, 60.0) == []
    assert told.for_s(done, 60.0) == []
