"""The read model: each event, and what is concluded from all of them."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.lease import BeatId
from swarm.core.manifest import INIT, Manifest, PayloadRef, TaskRef
from swarm.core.records import Beat, Control, EvalRecord, LearnerRecord, Participant, Rejected, Role, RoundRecord, Snapshot
from swarm.core.specs import DiLoCo
from swarm.core.state import (
    HISTORY,
    ControlRead,
    EvalRead,
    Event,
    LearnerRead,
    ManifestRead,
    Polled,
    RoundRead,
    RoundsRead,
    RunState,
    ShareLost,
    SnapshotRead,
    apply,
    participants,
    rejections,
    train_loss,
)
from swarm.core.tensorspec import TensorSpec

SHA = "ab" * 32
STOP = Control(action="stop")


def manifest(*, rounds: int | None = None, starters: int = 1) -> Manifest:
    return Manifest(
        run="abcd1234",
        name="tiny",
        algorithm=DiLoCo(start_learners=starters, beat_s=5, lease_s=30),
        task=TaskRef(name="mlp"),
        tensors=(TensorSpec("w", "F32", (2,)),),
        schema_sha256=SHA,
        init=(PayloadRef(round=INIT, sha256=SHA, size_bytes=80),),
        rounds=rounds,
    )


def participant(learner: str, *, tokens: int = 100, loss: float | None = 1.0) -> Participant:
    return Participant(
        learner=learner, unit=learner, weight=1.0, tokens=tokens, steps=10, train_loss=loss, seconds_s=1.0, size_bytes=80
    )


def round_record(round: int, *who: Participant, control: int = 0, **changes: Any) -> RoundRecord:
    return RoundRecord(
        round=round,
        fragment=0,
        step=100 * (round + 1),
        version=round,
        parent=None if round == 0 else SHA,
        participants=who,
        rejected=changes.pop("rejected", ()),
        theta=PayloadRef(round=round, sha256=SHA, size_bytes=80),
        outer=None,
        control=control,
    )


def snapshot(round: int, learner: str = "a") -> Snapshot:
    return Snapshot(
        round=round,
        fragment=0,
        learner=learner,
        incarnation=1,
        unit=learner,
        base_sha256=SHA,
        schema_sha256=SHA,
        dtype=None,
        payload=PayloadRef(round=round, sha256=SHA, size_bytes=80),
        tokens=10,
        steps=1,
        train_loss=None,
        seconds_s=1.0,
    )


def learner(name: str, incarnation: int = 1) -> LearnerRecord:
    return LearnerRecord(
        learner=name, incarnation=incarnation, machine="m", machine_name="M", boot="b", pid=1, process="p", version="0"
    )


def polled(now_s: float, /, **beats: tuple[int, int, str] | tuple[int, int, str, float]) -> Polled:
    """Beats as (incarnation, n, phase, tokens/s)."""
    return Polled(
        now_s,
        {
            name: (BeatId(beat[0], beat[1]), Beat(phase=beat[2], tokens_per_s=beat[3] if len(beat) > 3 else 0.0))  # type: ignore[arg-type]
            for name, beat in beats.items()
        },
    )


def fold(*events: Event, start: RunState | None = None) -> RunState:
    state = start or RunState(run="abcd1234")
    for event in events:
        state = apply(state, event)
    return state


def watched(*, seconds: int, start: RunState, **beats: tuple[int, int, str]) -> RunState:
    """The state after polls every 5 s that show the same beats."""
    assert start.polled_at_s is not None
    return fold(*(polled(start.polled_at_s + s, **beats) for s in range(5, seconds + 1, 5)), start=start)


KNOWN = ManifestRead(manifest())

# One event at a time


def test_nothing_is_known_of_a_new_run() -> None:
    state = RunState(run="abcd1234")
    assert (state.name, state.open_round, state.phase, state.phase_is_certain) == ("abcd1234", 0, "unknown", False)
    assert (state.live, state.tokens_per_s, state.stopped) == ((), 0, False)


def test_the_manifest_gives_the_name_and_the_lease() -> None:
    state = fold(KNOWN)
    assert state.name == "tiny"
    assert state.leases is not None
    assert (state.leases.lease_s, state.leases.gap_s) == (30, 10)


def test_rounds_are_contiguous_and_start_anywhere() -> None:
    state = fold(KNOWN, RoundRead(round_record(7)))
    assert state.open_round == 8
    for other in (7, 6, 9, 0):
        assert apply(state, RoundRead(round_record(other))) is state
    state = fold(RoundRead(round_record(8)), RoundRead(round_record(9)), start=state)
    assert [record.round for record in state.rounds] == [7, 8, 9]


def test_many_rounds_read_at_once_are_as_many_read_one_by_one() -> None:
    records = [round_record(n, participant("a"), participant("b", loss=n + 1.0)) for n in (3, 4, 5, 7)]
    start = fold(KNOWN, SnapshotRead(snapshot(4)), SnapshotRead(snapshot(6)), start=RunState(run="r", keep=2))
    at_once = apply(start, RoundsRead(tuple(records)))
    assert at_once == fold(*map(RoundRead, records), start=start)
    assert [record.round for record in at_once.rounds] == [4, 5]
    assert apply(at_once, RoundsRead(tuple(records))) is at_once


def test_whoever_watches_keeps_the_newest_records() -> None:
    state = fold(KNOWN, start=RunState(run="abcd1234", keep=3))
    for n in range(7):
        state = fold(RoundRead(round_record(n, participant("a"))), start=state)
    assert [record.round for record in state.rounds] == [4, 5, 6]
    assert (state.open_round, state.series.train.rounds, participants(state, "a")) == (7, tuple(range(7)), 7)
    assert apply(state, RoundRead(round_record(9))) is state, "what is between is read first"


def test_a_list_of_runs_has_the_newest_record_alone() -> None:
    state = fold(KNOWN, *(RoundRead(round_record(n, participant("a"))) for n in (3, 9)), start=RunState(run="r", keep=0))
    assert ([record.round for record in state.rounds], state.series.train.rounds) == ([9], ())
    assert apply(state, RoundRead(round_record(8))) is state


def test_a_committed_round_takes_its_snapshots_with_it() -> None:
    state = fold(KNOWN, SnapshotRead(snapshot(0)), SnapshotRead(snapshot(0, "b")), SnapshotRead(snapshot(1)))
    assert len(state.reported) == 3
    state = fold(RoundRead(round_record(0)), start=state)
    assert state.reported == (snapshot(1),)
    assert apply(state, SnapshotRead(snapshot(0))) is state
    assert apply(state, SnapshotRead(snapshot(1))) is state


def test_evaluations_stand_by_round() -> None:
    evals = [EvalRecord(round=n, learner="a", loss=float(n)) for n in (4, 0, 2)]
    state = fold(KNOWN, *map(EvalRead, evals))
    assert [e.round for e in state.evals] == [0, 2, 4]
    state = fold(EvalRead(EvalRecord(round=2, learner="b", loss=9.0)), start=state)
    assert [(e.round, e.loss) for e in state.evals] == [(0, 0.0), (2, 9.0), (4, 4.0)]


def test_controls_are_a_sequence_without_gaps() -> None:
    state = fold(KNOWN, ControlRead(2, STOP))
    assert state.controls == ()
    state = fold(ControlRead(1, STOP), ControlRead(1, Control(action="stop", by="other")), start=state)
    assert state.controls == (STOP,)


def test_a_learner_record_of_a_lower_incarnation_is_old_news() -> None:
    state = fold(KNOWN, LearnerRead(learner("a", 2)), LearnerRead(learner("a", 1)), LearnerRead(learner("b")))
    assert [(v.learner, v.incarnation) for v in state.learners] == [("a", 2), ("b", 1)]
    assert state.learners[0].record == learner("a", 2)


def test_a_poll_before_the_manifest_says_only_that_the_share_answers() -> None:
    state = fold(ShareLost(1.0, "gone"), polled(2.0, a=(1, 0, "train")))
    assert (state.polled_at_s, state.lost, state.learners) == (2.0, None, ())


def test_a_beat_makes_a_learner_live_until_it_stays_the_same_for_a_lease() -> None:
    beats = {"a": (1, 0, "train")}
    state = fold(KNOWN, polled(100, **beats))
    assert [v.state for v in state.live] == ["train"]
    state = watched(seconds=25, start=state, **beats)
    assert state.learners[0].beat_age_s == 25
    assert state.learners[0].state == "train"
    state = watched(seconds=5, start=state, **beats)
    assert (state.live, state.learners[0].state) == ((), "silent")
    back = apply(state, polled(131, a=(1, 1, "wait")))
    assert [v.state for v in back.live] == ["wait"]


def test_a_learner_that_left_says_so() -> None:
    state = fold(KNOWN, polled(100, a=(1, 0, "train")), polled(105, a=(1, 1, "left")))
    assert (state.live, state.learners[0].state) == ((), "left")
    late = apply(state, polled(110, a=(1, 0, "train")))  # a late listing
    assert (late.live, late.learners[0].state) == ((), "left")
    assert fold(polled(110, a=(2, 0, "join")), start=late).learners[0].state == "join"


def test_throughput_is_the_sum_of_the_live_and_its_history_is_bounded() -> None:
    state = fold(KNOWN, polled(100, a=(1, 0, "train", 10.0), b=(1, 0, "train", 5.0), c=(1, 0, "left", 99.0)))
    assert state.tokens_per_s == 15
    for n in range(1, HISTORY + 10):
        state = fold(polled(100 + n, a=(1, n, "train", float(n))), start=state)
    assert state.learners[0].rates == tuple(float(n) for n in range(10, HISTORY + 10))
    again = fold(polled(250, a=(1, HISTORY + 9, "train", 7.0)), start=state)
    assert again.learners[0].rates == state.learners[0].rates  # the same beat, read twice


def test_a_lost_share_keeps_what_was_seen_and_since_when_it_is_lost() -> None:
    seen = fold(KNOWN, polled(100, a=(1, 0, "train")))
    state = fold(ShareLost(103, "no answer"), ShareLost(109, "still none"), start=seen)
    assert (state.lost, state.lost_at_s, state.live) == ("still none", 103, seen.live)
    back = apply(state, polled(140, a=(1, 0, "train")))
    assert (back.lost, back.lost_at_s) == (None, None)
    assert back.live  # nobody died while nobody looked
    assert back.learners[0].beat_age_s == 0
    assert back.watched_s == 0


# All of them

names = st.sampled_from(["a", "b", "c"])
beats = st.dictionaries(
    names,
    st.tuples(
        st.builds(BeatId, st.integers(1, 3), st.integers(0, 5)), st.builds(Beat, phase=st.sampled_from(["train", "left"]))
    ),
)
events: st.SearchStrategy[Event] = st.one_of(
    st.just(KNOWN),
    st.integers(0, 4).map(lambda n: RoundRead(round_record(n))),
    st.integers(0, 4).map(lambda n: EvalRead(EvalRecord(round=n, learner="a", loss=1.0))),
    st.builds(lambda name, k: LearnerRead(learner(name, k)), names, st.integers(1, 3)),
    st.integers(1, 3).map(lambda n: ControlRead(n, STOP)),
    st.builds(lambda n, name: SnapshotRead(snapshot(n, name)), st.integers(0, 4), names),
    st.builds(Polled, st.integers(0, 400).map(lambda n: n / 4), beats),
    st.builds(ShareLost, st.integers(0, 400).map(float), st.just("gone")),
)


@given(st.lists(events, max_size=20), events)
def test_a_known_event_changes_nothing(history: list[Event], event: Event) -> None:
    once = fold(*history, event)
    assert apply(once, event) == once


@given(st.lists(events, max_size=20))
def test_what_always_holds(history: list[Event]) -> None:
    state = fold(*history)
    numbers = [record.round for record in state.rounds]
    assert not numbers or numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [e.round for e in state.evals] == sorted({e.round for e in state.evals})
    assert [v.learner for v in state.learners] == sorted({v.learner for v in state.learners})
    assert all(s.round >= state.open_round for s in state.reported)
    if state.leases is not None:
        assert {v.learner for v in state.live} == state.leases.live()
    assert all(v.beat is not None for v in state.live)
    assert all(v.state not in ("silent", "left") for v in state.live)
    assert all(v.state in ("silent", "left") for v in state.learners if not v.live)
    assert (state.lost is None) == (state.lost_at_s is None)
    assert (state.phase == "unknown") == (state.manifest is None)
    assert msgspec.json.encode(state)  # what a screen shows can be handed on


@given(st.randoms(use_true_random=False))
def test_records_of_different_kinds_may_come_in_any_order(shuffler: random.Random) -> None:
    """Within a kind, rounds and control records come in the order of their numbers."""
    kinds: list[list[Event]] = [
        [KNOWN],
        [RoundRead(round_record(n)) for n in range(3)],
        [ControlRead(1, STOP), ControlRead(2, STOP)],
        *([EvalRead(EvalRecord(round=n, learner="a", loss=1.0))] for n in range(3)),
        *([LearnerRead(learner("a", k))] for k in range(1, 4)),
        [LearnerRead(learner("b"))],
        [SnapshotRead(snapshot(3))],
        [SnapshotRead(snapshot(1))],
    ]
    expected = fold(*(event for kind in kinds for event in kind))
    queues = [list(kind) for kind in kinds]
    state = RunState(run="abcd1234")
    while any(queues):
        state = apply(state, shuffler.choice([queue for queue in queues if queue]).pop(0))
    assert state == expected


# Conclusions


def seen(*events: Event, rounds: int | None = None, starters: int = 1) -> RunState:
    return fold(ManifestRead(manifest(rounds=rounds, starters=starters)), *events)


TRAINING = polled(100, a=(1, 0, "train"))


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (RunState(run="abcd1234"), "unknown"),
        (fold(RoundRead(round_record(0))), "unknown"),
        (seen(), "idle"),
        (seen(TRAINING), "running"),
        (seen(TRAINING, starters=2), "waiting"),
        (seen(polled(100, a=(1, 0, "train"), b=(1, 0, "join")), starters=2), "running"),
        (seen(RoundRead(round_record(0)), TRAINING, starters=2), "running"),
        (seen(RoundRead(round_record(0))), "idle"),
        (seen(polled(100, a=(1, 0, "left"))), "idle"),
        (seen(RoundRead(round_record(3)), TRAINING, rounds=4), "done"),
        (seen(RoundRead(round_record(2)), TRAINING, rounds=4), "running"),
        # A stop takes effect at the first record that names it, and at once when nobody is live.
        (seen(ControlRead(1, STOP), TRAINING), "running"),
        (seen(ControlRead(1, STOP), RoundRead(round_record(0)), TRAINING), "running"),
        (seen(ControlRead(1, STOP), RoundRead(round_record(0, control=1)), TRAINING), "stopped"),
        (seen(ControlRead(1, STOP), polled(100, a=(1, 0, "left"))), "stopped"),
        (seen(ControlRead(1, STOP), RoundRead(round_record(3, control=1)), rounds=4), "done"),
    ],
)
def test_phases(state: RunState, phase: str) -> None:
    assert state.phase == phase
    assert state.stopped == (phase == "stopped")  # one that has all its rounds has nothing to stop


def crew(phase: Any = "train", **roles: Role) -> Event:
    """Everybody live, by role."""
    beats = {name: (BeatId(1, 0), Beat(phase=phase, role=role)) for name, role in roles.items()}
    return Polled(now_s=100.0, beats=beats)


@pytest.mark.parametrize(
    ("state", "phase", "waits_for"),
    [
        (seen(crew(a="learner", b="learner")), "waiting", "a syncer"),
        (seen(crew(a="learner", nas="syncer")), "running", ""),
        (seen(crew(a="learner", b="either")), "running", ""),
        (seen(crew(nas="syncer")), "waiting", "a learner"),
        (seen(RoundRead(round_record(0)), crew(nas="syncer")), "waiting", "a learner"),
        (seen(crew(a="both", nas="syncer"), starters=2), "waiting", "1 more learner"),
        (seen(crew(a="learner"), starters=3), "waiting", "2 more learners"),
        (seen(), "idle", ""),
    ],
)
def test_whom_a_run_waits_for(state: RunState, phase: str, waits_for: str) -> None:
    assert (state.phase, state.waits_for) == (phase, waits_for)


PAUSE, RESUME = Control(action="pause", by="studio"), Control(action="resume")


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (seen(ControlRead(1, PAUSE)), "paused"),
        (seen(ControlRead(1, PAUSE), TRAINING), "running"),
        (seen(ControlRead(1, PAUSE), crew("paused", a="both", nas="syncer")), "paused"),  # no record says so, but all do
        (seen(ControlRead(1, PAUSE), RoundRead(round_record(0, control=1)), TRAINING), "paused"),
        (seen(ControlRead(1, PAUSE), RoundRead(round_record(0, control=1)), ControlRead(2, RESUME), TRAINING), "running"),
        (seen(ControlRead(1, PAUSE), ControlRead(2, RESUME)), "idle"),
        (seen(ControlRead(1, Control(action="extend", rounds=9)), RoundRead(round_record(3)), rounds=4), "idle"),
        (seen(ControlRead(1, Control(action="extend", rounds=2)), RoundRead(round_record(3))), "done"),
        (seen(ControlRead(1, Control(action="extend", rounds=2)), RoundRead(round_record(3)), TRAINING), "running"),
    ],
)
def test_what_commands_make_of_a_run(state: RunState, phase: str) -> None:
    assert state.phase == phase


def test_a_run_has_the_rounds_that_it_was_extended_to() -> None:
    longer = Control(action="extend", rounds=9)
    assert seen(rounds=4).total_rounds == 4
    assert seen(ControlRead(1, longer), rounds=4).total_rounds == 9
    assert seen(ControlRead(1, longer), TRAINING, rounds=4).total_rounds == 4, "not yet"
    assert seen(ControlRead(1, longer), TRAINING, rounds=4).asked_rounds == 9
    shorter = Control(action="extend", rounds=2)
    assert seen(ControlRead(1, shorter), *(RoundRead(round_record(n)) for n in range(3)), rounds=4).total_rounds == 3, "it had"


def test_a_run_is_idle_once_its_learners_are_silent() -> None:
    state = watched(seconds=30, start=seen(TRAINING), a=(1, 0, "train"))
    assert (state.phase, state.phase_is_certain) == ("idle", True)


def test_nothing_is_certain_before_the_first_poll_but_what_a_record_says() -> None:
    assert not seen().phase_is_certain
    assert not seen(ControlRead(1, STOP)).phase_is_certain  # somebody may be live
    assert seen(ControlRead(1, STOP), RoundRead(round_record(0, control=1))).phase_is_certain
    assert seen(RoundRead(round_record(3)), rounds=4).phase_is_certain
    assert not fold(TRAINING).phase_is_certain  # no manifest


def test_one_look_at_a_beat_proves_nothing_and_a_second_beat_does() -> None:
    state = seen(TRAINING)
    assert not state.phase_is_certain
    assert not fold(polled(105, a=(1, 0, "train")), start=state).phase_is_certain
    moved = fold(polled(105, a=(1, 1, "train")), start=state)
    assert (moved.phase, moved.phase_is_certain) == ("running", True)


def test_an_empty_mailbox_and_released_leases_are_certain_at_once() -> None:
    assert seen(polled(100)).phase_is_certain
    left = seen(polled(100, a=(1, 3, "left")), ControlRead(1, STOP))
    assert (left.phase, left.phase_is_certain) == ("stopped", True)


def test_silence_is_certain_after_a_lease_of_watching_and_a_gap_starts_anew() -> None:
    beats = {"a": (1, 0, "train")}
    state = watched(seconds=25, start=seen(TRAINING), **beats)
    assert not state.phase_is_certain
    assert watched(seconds=5, start=state, **beats).phase_is_certain
    slept = fold(polled(200, **beats), start=state)  # type: ignore[arg-type]
    assert not slept.phase_is_certain
    assert (slept.phase, slept.watched_s) == ("running", 0)
    assert watched(seconds=30, start=slept, **beats).phase == "idle"


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), max_size=30))
def test_what_is_certain_is_true_of_one_learner(polls: list[tuple[int, int]]) -> None:
    """A learner that beats every 5 s and stops at some time is never certainly idle while it beats."""
    state, now_s = seen(TRAINING), 100.0
    for gap, n in polls:
        now_s += gap / 4
        state = apply(state, polled(now_s, a=(1, max(n, int(now_s - 100) // 5), "train")))
        assert state.phase == "running"


def test_losses_are_means_by_tokens() -> None:
    record = round_record(
        0, participant("a", tokens=300, loss=1.0), participant("b", tokens=100, loss=3.0), participant("c", loss=None)
    )
    assert train_loss(record) == 1.5
    assert train_loss(round_record(0)) is None
    assert train_loss(round_record(0, participant("a", loss=None))) is None
    assert train_loss(round_record(0, participant("a", tokens=0, loss=9.0))) is None
    huge = participant("a", tokens=2**53 - 1, loss=1e308)
    assert train_loss(round_record(0, huge, huge)) is None


def test_participants_and_rejections_are_counted_over_the_rounds() -> None:
    late = Rejected(learner="b", unit="b", reason="late", round=0)
    state = seen(
        RoundRead(round_record(0, participant("a"), participant("b"))),
        RoundRead(round_record(1, participant("a"), rejected=(late,))),
    )
    assert [participants(state, name) for name in "abc"] == [2, 1, 0]
    assert rejections(state) == (late,)
