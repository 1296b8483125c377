"""When a round closes, who closes it, and what counts."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.checks import MAX_COUNT
from swarm.core.manifest import PayloadRef
from swarm.core.records import Role, Snapshot
from swarm.core.rounds import (
    ClaimView,
    Close,
    RoundView,
    Wait,
    closes,
    decide,
    grace_s,
    hurry_at_s,
    my_claim,
    next_claim,
    objection,
    opened,
    quorum,
    weight,
)
from swarm.core.specs import DiLoCo, FedAvg

NOW_S, GRACE_S = 100.0, 10.0


def view(live: str = "", reported: str = "", accepted: str | None = None, **changes: Any) -> RoundView:
    """Learners are single letters."""
    known: dict[str, Any] = {"round": 5, "opened": True, "quorum_at_s": None} | changes
    accepted = reported if accepted is None else accepted
    return RoundView(live=frozenset(live), reported=frozenset(reported), accepted=frozenset(accepted), **known)


CLOSE, WAIT = Close, Wait


@pytest.mark.parametrize(
    ("seen", "quorum", "expected"),
    [
        # Every live learner has reported.
        (view("abc", "abc"), 3, CLOSE),
        (view("ab", "ab"), 1, CLOSE),
        # When learners have gone, those still live are enough.
        (view("ab", "ab"), 3, CLOSE),
        (view("b", "ab"), 2, CLOSE),
        (view("", "ab"), 3, CLOSE),
        # All have reported and some were rejected: nothing more can come.
        (view("ab", "ab", "a"), 2, CLOSE),
        (view("ab", "ab", ""), 2, CLOSE),
        # Nobody live and nothing accepted: it stays open.
        (view("", ""), 1, WAIT),
        (view("", "a", ""), 1, WAIT),
        # Somebody is still at it.
        (view("ab", ""), 1, WAIT),
        (view("abc", "a"), 2, WAIT),
        (view("abc", "ab", "a", quorum_at_s=0.0), 2, WAIT),
        # The quorum is there: the grace for the others.
        (view("abc", "ab", quorum_at_s=NOW_S), 2, WAIT),
        (view("abc", "ab", quorum_at_s=NOW_S - 9.9), 2, WAIT),
        (view("abc", "ab", quorum_at_s=NOW_S - 10), 2, CLOSE),
        (view("abc", "ab"), 2, WAIT),
        # Round 0 waits for its starters.
        (view("a", "a", round=0, opened=False), 2, WAIT),
        (view("a", "a", round=0, opened=True), 2, CLOSE),
        (view("", "", round=0, opened=False), 1, WAIT),
        (view("a", "a", round=1, opened=False), 2, CLOSE),
        # A stop is pending.
        (view("", "", stopping=True), 2, CLOSE),
        (view("", "", round=0, opened=False, stopping=True), 2, CLOSE),
        (view("a", "a", round=0, opened=False, stopping=True), 2, CLOSE),
        (view("a", "", stopping=True), 1, WAIT),
        (view("ab", "a", stopping=True), 2, WAIT),
    ],
)
def test_decisions(seen: RoundView, quorum: int, expected: type) -> None:
    assert isinstance(decide(seen, DiLoCo(quorum_size=quorum), grace_s=GRACE_S, now_s=NOW_S), expected)


def test_a_wait_says_what_for_and_until_when() -> None:
    spec = DiLoCo(quorum_size=2, start_learners=3)

    def of(seen: RoundView) -> Wait | Close:
        return decide(seen, spec, grace_s=GRACE_S, now_s=NOW_S)

    assert of(view("ab", round=0, opened=False)) == Wait("waiting for 1 more learner")
    assert of(view("a", round=0, opened=False)) == Wait("waiting for 2 more learners")
    assert of(view("abc", "a")) == Wait("1 of 2 for the quorum")
    assert of(view("abcd", "ab", quorum_at_s=95.0)) == Wait("grace for c, d", 105.0)
    assert of(view("ab")) == Wait("nobody has reported")


@st.composite
def views(draw: st.DrawFn) -> RoundView:
    reported = draw(st.frozensets(st.sampled_from("abcd")))
    return RoundView(
        round=draw(st.integers(0, 3)),
        reported=reported,
        accepted=draw(st.frozensets(st.sampled_from(sorted(reported)))) if reported else frozenset(),
        live=draw(st.frozensets(st.sampled_from("abcd"))),
        opened=draw(st.booleans()),
        quorum_at_s=draw(st.none() | st.floats(0, 200)),
        stopping=draw(st.booleans()),
    )


specs = st.builds(DiLoCo, quorum_size=st.integers(1, 5), start_learners=st.none() | st.integers(1, 5))


@given(views(), specs, st.floats(0, 100), st.floats(0, 300))
def test_what_every_decision_keeps(seen: RoundView, spec: DiLoCo, grace: float, now_s: float) -> None:
    decision = decide(seen, spec, grace_s=grace, now_s=now_s)
    silent = seen.live - seen.reported
    waits_for_starters = seen.round == 0 and not seen.opened and not seen.stopping
    if isinstance(decision, Close):
        assert seen.reported or seen.stopping
        assert seen.accepted or seen.live or seen.stopping
        assert not waits_for_starters
        if silent:  # only the grace closes over somebody who is still at it
            assert len(seen.accepted) >= quorum(spec, stopping=seen.stopping)
            assert seen.quorum_at_s is None or now_s >= seen.quorum_at_s + grace
    else:
        # Never for ever: not once every live learner has reported, and the grace has an end.
        assert silent or waits_for_starters or (not seen.stopping and not seen.accepted and not seen.live)
        if silent and not waits_for_starters and len(seen.accepted) >= quorum(spec, stopping=seen.stopping):
            assert decision.until_s is not None
            later = msgspec.structs.replace(seen, quorum_at_s=decision.until_s - grace)
            assert isinstance(decide(later, spec, grace_s=grace, now_s=decision.until_s + 1e-6), Close)
        assert decision.reason


@given(views(), specs)
def test_a_learner_that_goes_never_keeps_a_round_open(seen: RoundView, spec: DiLoCo) -> None:
    silent = seen.live - seen.reported
    if silent and seen.accepted and (seen.opened or seen.round):
        gone = msgspec.structs.replace(seen, live=seen.live - silent)
        assert isinstance(decide(gone, spec, grace_s=1e9, now_s=0.0), Close)


@given(st.frozensets(st.sampled_from("abcd")), st.frozensets(st.sampled_from("abcd")), st.integers(1, 5))
def test_round_0_opens_with_enough_live_or_enough_reports(live: frozenset[str], reported: frozenset[str], n: int) -> None:
    spec = DiLoCo(quorum_size=1, start_learners=n)
    assert opened(spec=spec, live=live, reported=reported) == (max(len(live), len(reported)) >= n)
    assert opened(spec=DiLoCo(quorum_size=n), live=live, reported=reported) == opened(spec=spec, live=live, reported=reported)


def test_the_grace_follows_the_recent_waits_between_a_second_and_a_lease() -> None:
    spec = DiLoCo()
    assert grace_s(spec, []) == spec.lease_s
    assert grace_s(spec, [2.0, 4.0, 3.0]) == 6.0
    assert grace_s(spec, [0.0, 0.1]) == 1.0
    assert grace_s(spec, [1e9]) == spec.lease_s
    assert grace_s(spec, [2.0], [3.0]) == 12.0
    assert grace_s(DiLoCo(grace_s=0.0), [5.0]) == 0.0
    assert grace_s(DiLoCo(grace_s=99.0), []) == 99.0


@given(st.lists(st.floats(0, 1e9), max_size=9))
def test_the_grace_stays_within_its_bounds(waits_s: list[float]) -> None:
    spec = DiLoCo(beat_s=0.2, lease_s=0.5)
    assert grace_s(spec, waits_s) == 0.5
    assert 1.0 <= grace_s(DiLoCo(), waits_s) <= 30.0


claims = st.lists(
    st.builds(ClaimView, st.integers(0, 20), st.sampled_from(["a", "b", ""]), st.integers(0, 2), st.booleans()),
    max_size=6,
    unique_by=lambda claim: claim.n,
)


@given(claims)
def test_a_claim_is_overtaken_only_when_its_holder_is_gone(seen: list[ClaimView]) -> None:
    n = next_claim(iter(seen), learner="a", incarnation=1)
    mine = my_claim(iter(seen), learner="a", incarnation=1)
    if not seen:
        assert (n, mine) == (0, False)
        return
    newest = max(seen, key=lambda claim: claim.n)
    assert mine == ((newest.learner, newest.incarnation) == ("a", 1))
    assert n == (None if newest.holder_live or mine else newest.n + 1)
    assert n is None or n not in {claim.n for claim in seen}


def test_another_incarnations_claim_is_not_mine() -> None:
    dead = ClaimView(3, "a", 1, holder_live=False)
    assert next_claim([dead], learner="a", incarnation=2) == 4
    assert not my_claim([dead], learner="a", incarnation=2)
    assert my_claim([dead], learner="a", incarnation=1)


@given(st.integers(1, MAX_COUNT), st.integers(1, MAX_COUNT))
def test_a_weight_is_finite_and_counts_tokens_and_tokens_per_step(tokens: int, steps: int) -> None:
    value = weight(DiLoCo(), tokens=tokens, steps=steps)
    assert 0 < value < math.inf
    assert value == pytest.approx(tokens * (tokens / steps))
    assert weight(DiLoCo(), tokens=2 * tokens, steps=steps) == pytest.approx(4 * value)
    assert weight(FedAvg(), tokens=tokens, steps=steps) == tokens  # a client counts by its samples


SHA, OTHER, SCHEMA = "a" * 64, "b" * 64, "c" * 64
GOOD = Snapshot(
    round=4,
    fragment=0,
    learner="a",
    incarnation=1,
    unit="a",
    base_sha256=SHA,
    schema_sha256=SCHEMA,
    dtype=None,
    payload=PayloadRef(round=4, sha256=OTHER, size_bytes=10),
    tokens=100,
    steps=10,
    train_loss=1.0,
    seconds_s=1.0,
)
# Each wrong in one way; in the order in which they are looked at.
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"schema_sha256": OTHER}, "schema"),
    ({"dtype": "BF16"}, "schema"),
    ({"round": 3}, "stale"),
    ({"round": 5}, "stale"),
    ({"fragment": 1}, "schema"),
    ({"base_sha256": OTHER}, "stale"),
    ({"steps": 0}, "zero_steps"),
    ({"tokens": 0}, "tokens"),
]


def found(snapshot: Snapshot) -> str | None:
    return objection(snapshot, round=4, fragment=0, base_sha256=SHA, schema_sha256=SCHEMA, dtype=None)


def test_an_objection_names_the_first_fault() -> None:
    assert found(GOOD) is None
    for i, (fault, reason) in enumerate(FAULTS):
        assert found(msgspec.structs.replace(GOOD, **fault)) == reason
        for later, _ in FAULTS[i + 1 :]:
            assert found(msgspec.structs.replace(GOOD, **(later | fault))) == reason


def test_a_snapshot_of_another_round_is_stale_whatever_its_fragment() -> None:
    assert found(msgspec.structs.replace(GOOD, round=3, fragment=1)) == "stale"


def test_those_who_have_not_reported_hurry_at_half_the_grace() -> None:
    assert hurry_at_s(Wait("grace for c", 105.0), grace_s=10.0) == 100.0
    assert hurry_at_s(Wait("nobody has reported"), grace_s=10.0) is None


@pytest.mark.parametrize(
    ("role", "others", "overdue", "expected"),
    [
        ("both", ["syncer"], False, True),
        ("syncer", ["syncer", "both"], False, True),
        ("learner", ["learner"], True, False),
        ("either", [], False, True),
        ("either", ["both", "learner"], False, True),
        ("either", ["syncer"], False, False),
        ("either", ["syncer"], True, True),
    ],
)
def test_who_bids_to_close_a_round(role: Role, others: list[Role], overdue: bool, expected: bool) -> None:
    assert closes(role, others, overdue=overdue) is expected
