"""Which run a machine that stands by joins, and when it tries again: decisions on a fake clock."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import SwarmError
from swarm.core.standby import (
    AWAY,
    HOPELESS,
    OVER,
    Again,
    Candidate,
    Crashed,
    Done,
    Finished,
    GivenUp,
    Pace,
    Rules,
    ShareAway,
    Standing,
    Verdict,
    barred,
    choose,
    ended,
    outcome,
    refusal,
    size,
)
from swarm.core.state import RunPhase

PACE = Pace(first_s=2.0, longest_s=60.0, good_s=100.0, failures=5, given_up_s=1000.0)


def a_run(name: str = "tiny", *, phase: RunPhase = "running", **fields: object) -> Candidate:
    described = {"mailbox": "/m", "run": f"{name}-id", "name": name, "method": "diloco", "phase": phase}
    return Candidate(**(described | fields))  # type: ignore[arg-type]


class Machine:
    """Stands by for one run, whose workers end as they are told to."""

    def __init__(self, draw: float = 1.0) -> None:
        self.now_s, self.draw, self.standing = 0.0, draw, Standing()

    def ends(self, how: object = None, *, after_s: float = 0.0) -> Verdict:
        self.now_s += after_s
        good = after_s >= PACE.good_s
        self.standing, verdict = ended(
            self.standing,
            "tiny-id",
            how or Crashed("killed"),  # type: ignore[arg-type]
            good=good,
            now_s=self.now_s,
            draw=self.draw,
            pace=PACE,
        )
        return verdict

    @property
    def waits_s(self) -> float:
        """Until it is joined again, from now on, to the tenth of a second."""
        waited_s = 0.0
        while choose([a_run()], Rules(), self.standing, now_s=self.now_s + waited_s) is None:
            waited_s += 0.1
        return round(waited_s, 1)


def test_the_wait_doubles_and_the_run_is_given_up_for_long() -> None:
    machine = Machine()
    for wait_s in (2.0, 4.0, 8.0, 16.0):
        assert machine.ends() == Again(wait_s)
        assert machine.waits_s == pytest.approx(wait_s, abs=0.11)
    assert machine.ends() == GivenUp(5, 1000.0)
    assert machine.waits_s == pytest.approx(1000.0, abs=0.2)
    assert refusal(a_run(), Rules(), machine.standing, now_s=machine.now_s) == "given up after 5 failures, for now"
    machine.now_s += 1001
    assert machine.ends() == Again(2.0)  # it has its chances again


def test_a_good_while_makes_up_for_failures_before() -> None:
    machine = Machine()
    machine.ends()
    machine.ends()
    assert machine.ends(after_s=99.0) == Again(8.0)
    assert machine.ends(after_s=100.0) == Again(2.0)


def test_the_wait_has_a_limit_and_machines_do_not_come_back_together() -> None:
    pace = msgspec.structs.replace(PACE, failures=1000)
    standing = Standing()
    for _ in range(50):
        standing, verdict = ended(standing, "r", Crashed(""), good=False, now_s=0.0, draw=1.0, pace=pace)
    assert verdict == Again(60.0)
    waits = [ended(standing, "r", Crashed(""), good=False, now_s=0.0, draw=d / 10, pace=pace)[1] for d in range(11)]
    assert [w.after_s for w in waits if isinstance(w, Again)] == pytest.approx([30.0 + 3 * d for d in range(11)])


def test_a_share_that_is_away_is_no_failure() -> None:
    machine = Machine(draw=0.0)
    machine.ends()
    for _ in range(20):
        assert machine.ends(ShareAway("gone")) == Again(2.0)
    assert machine.ends() == Again(2.0)  # the second failure: 4 s, of which the draw leaves half


def test_what_only_a_person_can_mend_is_given_up_at_once() -> None:
    assert Machine().ends(Crashed("no such task", hopeless=True)) == GivenUp(1, 1000.0)


def test_a_run_that_has_ended_is_no_failure() -> None:
    machine = Machine()
    machine.ends()
    assert machine.ends(Finished()) == Done()
    assert machine.waits_s > 0  # what was seen of it may be old
    machine.now_s += 10
    assert machine.ends() == Again(2.0)


def test_last_words_tell_what_is_to_be_done() -> None:
    assert outcome(code=1, error="RunEnded", message="", ended=False) == Finished()
    assert outcome(code=0, error="", message="", ended=True) == Finished()
    assert outcome(code=130, error="KeyboardInterrupt", message="interrupted", ended=False) == Finished()
    assert outcome(code=-2, error="", message="was ended by SIGINT", ended=False) == Finished()
    assert outcome(code=-15, error="", message="was ended by SIGTERM", ended=False) == Finished()
    assert outcome(code=1, error="MailboxUnavailable", message="away", ended=False) == ShareAway("away")
    assert outcome(code=2, error="TaskUnknown", message="x", ended=False) == Crashed("x", hopeless=True)
    assert outcome(code=-9, error="", message="SIGKILL", ended=False) == Crashed("SIGKILL")
    assert outcome(code=1, error="ZeroDivisionError", message="x", ended=True) == Crashed("x")


def test_every_error_that_is_sorted_exists() -> None:
    names = {each.__name__ for each in every(SwarmError)}
    assert names >= AWAY | OVER | HOPELESS
    assert len(AWAY | OVER | HOPELESS) == len(AWAY) + len(OVER) + len(HOPELESS)  # each in one place


def every(kind: type) -> set[type]:
    return {kind}.union(*(every(each) for each in kind.__subclasses__()))


def test_who_waits_for_learners_comes_first_then_by_name() -> None:
    runs = [a_run("d", phase="idle"), a_run("c"), a_run("b"), a_run("a", phase="idle"), a_run("z", phase="waiting")]
    order = []
    while runs:
        chosen = choose(runs, Rules(), Standing(), now_s=0.0)
        assert chosen is not None
        order.append(chosen.name)
        runs.remove(chosen)
    assert order == ["z", "b", "c", "a", "d"]


@pytest.mark.parametrize("phase", ["done", "stopped", "unknown", "paused"])
def test_a_run_that_does_not_go_on_is_not_joined(phase: RunPhase) -> None:
    assert choose([a_run(phase=phase)], Rules(), Standing(), now_s=0.0) is None


@pytest.mark.parametrize(
    ("rules", "joined"),
    [
        (Rules(), True),
        (Rules(only=("tiny",)), True),
        (Rules(only=("tin?", "other")), True),
        (Rules(only=("TINY",)), False),
        (Rules(only=("tiny-id",)), True),
        (Rules(only=("tiny-*",)), False),
        (Rules(methods=("fedavg",)), False),
        (Rules(methods=("fedavg", "diloco")), True),
        (Rules(memory_bytes=999), False),
        (Rules(memory_bytes=1000), True),
    ],
)
def test_rules(rules: Rules, joined: bool) -> None:
    run = a_run(memory_bytes=1000)
    assert (choose([run], rules, Standing(), now_s=0.0) == run) is joined
    assert (refusal(run, rules, Standing(), now_s=0.0) == "") is joined


def test_whoever_joined_by_hand_again_has_changed_his_mind() -> None:
    before = barred({}, {"a": "left", "b": "dropped", "c": None})
    assert before == {"a": "left", "b": "dropped"}
    assert barred(before, {"b": None}) == {"a": "left"}
    run = a_run(run="a")
    assert refusal(run, Rules(), Standing(barred=before), now_s=1e9) == "somebody had this machine leave it"


@given(st.lists(st.sampled_from(["crash", "away", "over", "good"]), max_size=60), st.floats(0, 1))
def test_a_run_is_never_tried_in_a_hurry_nor_forgotten(ends: list[str], draw: float) -> None:
    machine = Machine(draw)
    hows = {"crash": Crashed("x"), "away": ShareAway("x"), "over": Finished(), "good": Crashed("x")}
    for end in ends:
        machine.ends(hows[end], after_s=200.0 if end == "good" else 0.0)
        tried = machine.standing.tried["tiny-id"]
        assert machine.now_s + PACE.first_s / 2 <= tried.not_before_s <= machine.now_s + PACE.given_up_s
        assert tried.failures <= PACE.failures
        machine.now_s = tried.not_before_s
        assert choose([a_run()], Rules(), machine.standing, now_s=machine.now_s) is not None


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("8G", 8 * 10**9), ("500 MB", 5 * 10**8), ("1.5GiB", 3 << 29), ("2000", 2000), ("7b", 7), ("64k", 64000), ("1KiB", 1024)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "G", "8X", "8 gigs", "-1G", "0", "1e9", "1..5G", "9" * 30, "8Gb8", "ib"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        size(text)


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        found = size(text)
    except ValueError:
        return
    assert 0 < found < 2**63
