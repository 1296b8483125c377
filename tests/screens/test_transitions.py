"""What is told of a change, and what is not."""

from types import SimpleNamespace

from swarm.core.lease import BeatId
from swarm.core.state import Polled, RoundRead, apply
from tui.transitions import home_notes, mailbox_notes, run_notes


def told(before: object, after: object) -> list[str]:
    return [note.text for note in run_notes(before, after)]  # type: ignore[arg-type]


def test_the_first_look_tells_nothing(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    assert told(None, state) == []
    assert told(fixed.api.RunState(run=state.run), state) == []
    assert list(home_notes(None, fixed.home(state, jobs=(fixed.job(),)))) == []


def test_an_unchanged_state_tells_nothing(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    assert told(state, state) == []


def test_joining_leaving_and_falling_silent(fixed: SimpleNamespace) -> None:
    two, three = fixed.run_state(learners=("studio", "mbp")), fixed.run_state(learners=("studio", "mbp", "air"))
    assert told(two, three) == ["air joined"]
    assert told(three, fixed.run_state(learners=("studio", "mbp", "air"), left=("air",))) == ["air left"]
    quiet = fixed.run_state(learners=("studio", "mbp", "air"), silent=("air",))
    (note,) = run_notes(three, quiet)
    assert (note.text, note.severity) == ("air silent: no beat for 38 s", "warning")
    assert told(quiet, three) == ["air is back"]


def test_a_restarted_learner_joined_again(fixed: SimpleNamespace) -> None:
    before = fixed.run_state(learners=("studio", "mbp"))
    beats = {"studio": (BeatId(2, 0), fixed.beat(0, "studio"))}
    assert told(before, apply(before, Polled(now_s=60.0, beats=beats))) == ["studio joined again"]


def test_a_lost_share_and_its_return(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    lost = fixed.lost(state)
    (note,) = run_notes(state, lost)
    assert (note.text, note.severity, note.toast) == ("share lost: the share does not answer", "error", True)
    assert told(lost, lost) == []
    assert told(lost, state) == ["share is back"]


def test_a_mailbox_that_takes_nothing_from_this_machines_job_is_told_and_its_return(fixed: SimpleNamespace) -> None:
    state, job = fixed.run_state(), fixed.job()
    full = fixed.msgspec.structs.replace(job, trouble="the mailbox is full\x1b[2J")
    before, after = (fixed.home(state, jobs=(each,)) for each in (job, full))
    (note,) = home_notes(before, after)
    assert (note.text, note.severity) == ("charlm-brave-otter on this machine: the mailbox is full", "error")
    assert list(home_notes(after, after)) == []
    assert [note.text for note in home_notes(after, before)] == ["charlm-brave-otter on this machine goes on"]
    lost = fixed.home(fixed.lost(state), jobs=(full,))
    assert list(home_notes(before, lost)) == [], "the screen says itself that the share is lost"


def test_a_closed_round_is_logged_and_not_toasted(fixed: SimpleNamespace) -> None:
    before = fixed.run_state(closed=3)
    late = fixed.api.Rejected(learner="air", unit="air", reason="late", round=2)
    own = fixed.api.Rejected(learner="mbp", unit="mbp", reason="nonfinite", round=3)
    after = apply(before, RoundRead(fixed.round_record(3, ("studio",), (own, late))))
    (note,) = run_notes(before, after)
    assert note.text.startswith("round 3 closed: 1/2, train ")
    assert note.text.endswith("; mbp: holds NaN or infinite numbers; air: came after the round had closed, round 2")
    assert not note.toast


def test_a_long_history_is_one_line(fixed: SimpleNamespace) -> None:
    before, after = fixed.run_state(closed=1), fixed.run_state(closed=30)
    assert told(before, after) == ["29 rounds read"]


def test_the_end_of_a_run(fixed: SimpleNamespace) -> None:
    before, after = fixed.run_state(closed=39), fixed.run_state(closed=40)
    assert told(before, after)[-1] == "charlm-brave-otter is done: 40 rounds"
    stopped = fixed.run_state(closed=39, stop=True)
    assert "charlm-brave-otter was stopped by studio" in told(before, stopped)


def test_jobs_and_mailboxes(fixed: SimpleNamespace) -> None:
    starting = fixed.home(jobs=(fixed.job(state="starting"),))
    running = fixed.home(jobs=(fixed.job(),))
    failed = fixed.home(jobs=(fixed.job(state="failed", message="no\x1b[2J data\nhere"),))
    assert [n.text for n in home_notes(starting, running)] == ["this machine trains charlm-brave-otter as studio"]
    assert [n.text for n in home_notes(running, failed)] == ["the worker of charlm-brave-otter failed: no data here"]
    dropped = fixed.home(jobs=(fixed.job(state="dropped", message="learner 'studio' was dropped, asked for on mbp"),))
    assert [(n.text, n.severity) for n in home_notes(running, dropped)] == [
        ("charlm-brave-otter: learner 'studio' was dropped, asked for on mbp", "warning")
    ]
    gone = fixed.home(problem="no mailbox there")
    assert [n.text for n in mailbox_notes(fixed.home(), gone)] == ["/mnt/share/swarm: no mailbox there"]
    named = fixed.home(problem="/mnt/share/swarm: no mailbox there")
    assert [n.text for n in mailbox_notes(fixed.home(), named)] == ["/mnt/share/swarm: no mailbox there"]
    assert [n.text for n in mailbox_notes(gone, fixed.home())] == ["/mnt/share/swarm is back"]
