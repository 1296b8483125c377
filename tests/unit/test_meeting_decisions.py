"""What an agent does next at a rendezvous, told by what it sees; and what the next generation starts from."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.meeting import (
    PORTS,
    Apart,
    Bury,
    Confirm,
    End,
    Hold,
    Lead,
    Over,
    Propose,
    Running,
    Start,
    Stay,
    View,
    decide,
    ports,
    start_after,
)
from swarm.core.preflight import Terms
from swarm.core.ranks import CheckpointAt, GenerationEnd, Plan, Ready, Refusal, Seat
from swarm.core.rounds import ClaimView
from tests.unit.test_preflight import A, B, C, probes

TERMS = Terms(world_size_min=2, gather_s=5.0, probe_s=10.0, start_s=60.0)
MINE = ClaimView(n=0, learner="air", incarnation=1, holder_live=True)
THEIRS = ClaimView(n=0, learner="mini", incarnation=1, holder_live=True)
PLAN = Plan(
    generation=0,
    leader="mini",
    seats=tuple(
        Seat(learner=each.learner, incarnation=1, address=each.addresses[0].address, port=21_001) for each in (A, B, C)
    ),
    backend="ring",
    seed=0,
    start_s=60.0,
    refused=(Refusal(learner="max", subject="mlx", reason="has no mlx"), Refusal(learner="max", subject="a", reason="no a")),
)
READY = {name: Ready(generation=0, learner=name, incarnation=1) for name in ("air", "mini", "pro")}


def seen(**fields: Any) -> View:
    described: dict[str, Any] = {"learner": "air", "incarnation": 1, "generation": 0, "terms": TERMS, "members": (A, B)}
    return View(**described | fields)


def planned(**fields: Any) -> View:
    return seen(**{"plan": PLAN, "members": (A, B, C), "ready": READY} | fields)


def test_before_the_plan() -> None:
    assert decide(seen(members=(B, C))) == Hold("its own announcement is not seen yet")
    assert decide(seen(members=(A,), missing=frozenset({"pro", "mini"}), enough_s=1e9)) == Hold(
        "waiting for 1 more machine; not here: mini, pro"
    )
    assert decide(seen()) == Lead(0)
    assert decide(seen(claims=(msgspec.structs.replace(THEIRS, holder_live=False),))) == Lead(1)
    assert decide(seen(claims=(THEIRS,), enough_s=120.0)) == End("mini made no plan within 120 s")


def test_the_leader_waits_for_probes_and_for_more_but_not_for_ever() -> None:
    of_all = tuple(probes([A, B]))
    assert decide(seen(claims=(MINE,), steady_s=9.0)) == Hold("measuring links: air to mini, mini to air")
    assert decide(seen(claims=(MINE,), probes=of_all, steady_s=4.0)) == Hold("2 machines there; waiting for more")
    proposed = decide(seen(claims=(MINE,), probes=of_all, steady_s=5.0))
    assert isinstance(proposed, Propose)
    assert [seat.learner for seat in proposed.plan.seats] == ["air", "mini"]
    full = msgspec.structs.replace(TERMS, world_size_max=2)
    assert isinstance(decide(seen(claims=(MINE,), probes=of_all, terms=full)), Propose), "nobody else can be waited for"
    words = "waiting for 1 more machine; mini: air has not measured how it reaches mini"
    assert decide(seen(claims=(MINE,), steady_s=10.0, enough_s=59.0)) == Hold(words)
    assert decide(seen(claims=(MINE,), steady_s=10.0, enough_s=60.0)) == End(words)


def test_who_does_not_lead_knows_what_the_leader_waits_for() -> None:
    of_all = tuple(probes([A, B]))
    assert decide(seen(claims=(THEIRS,), steady_s=9.0)) == decide(seen(claims=(MINE,), steady_s=9.0))
    assert decide(seen(claims=(THEIRS,), probes=of_all, steady_s=5.0)) == Hold("mini makes the plan")
    words = "waiting for 1 more machine; mini: air has not measured how it reaches mini"
    assert decide(seen(claims=(THEIRS,), steady_s=10.0, enough_s=60.0)) == Hold(words)


def test_the_start_goes_by_the_order_of_ranks() -> None:
    assert decide(planned(ready={})) == Confirm(PLAN, 0)
    assert decide(planned(ready={"air": READY["air"]})) == Hold("waiting for mini, pro to be ready")
    assert decide(planned()) == Start(PLAN, 0)
    assert decide(planned(started=frozenset({"air"}))) == Hold("waiting for the ranks of mini to listen")
    assert decide(planned(learner="pro")) == Hold("waiting for the ranks of air, mini to listen")
    assert decide(planned(learner="pro", started=frozenset({"air", "mini"}))) == Start(PLAN, 2)
    assert decide(planned(started=frozenset({"air", "mini"}))) == Hold("waiting for the rank of pro")
    assert decide(planned(started=frozenset({"air", "mini", "pro"}))) == Running(PLAN, 0)


def test_what_ends_a_generation_that_has_not_started() -> None:
    held = {"mini": msgspec.structs.replace(READY["mini"], refusal="port 21001 at 10.0.0.5 is held by another program")}
    assert decide(planned(ready=held)) == End("mini: port 21001 at 10.0.0.5 is held by another program")
    gone = "pro left, or was not heard of for a lease, before all ranks had started"
    assert decide(planned(gone=frozenset({"pro"}))) == End(gone)
    late = End("not started within 60 s: waiting for the ranks of mini to listen")
    assert decide(planned(started=frozenset({"air"}), planned_s=60.0)) == late
    assert decide(planned(started=frozenset({"air", "mini", "pro"}), planned_s=1e9)) == Running(PLAN, 0)


def test_who_is_not_in_the_plan_is_told_why() -> None:
    assert decide(planned(learner="max")) == Apart("has no mlx; no a", refused=True)
    assert decide(planned(learner="zoe")) == Apart("it came when the plan of generation 0 was made already")
    assert decide(planned(incarnation=2)) == Apart("it came when the plan of generation 0 was made already")


def test_the_generation_before_must_have_ended() -> None:
    assert decide(seen(generation=3, under_way=True, claims=(MINE,), enough_s=1e9)) == Hold(
        "generation 2 is under way; this machine takes part in the next one"
    )
    assert decide(seen(generation=3, under_way=True, deserted=True)) == Bury(
        "none of the machines of generation 2 is there any more"
    )
    end = GenerationEnd(generation=0, ending="lost", by="air")
    assert decide(planned(end=end)) == Over(end)


@given(st.lists(st.tuples(st.integers(0, 12).map(lambda n: n / 4), st.booleans())))
def test_only_time_that_was_watched_counts(looks: list[tuple[float, bool]]) -> None:
    stay, now_s, since_s, last = Stay(2.0), 0.0, 0.0, None
    for elapsed_s, what in looks:
        now_s += elapsed_s
        if what != last or elapsed_s > 2.0:
            since_s, last = now_s, what
        stay = stay.observe(now_s, what)
        assert stay.same_s == now_s - since_s


def test_ports_differ_by_generation_and_by_machine() -> None:
    drawn = {who: list(itertools.islice(ports(*who), 20)) for who in itertools.product(range(3), ("air", "mini"), (1, 2))}
    assert len({tuple(found) for found in drawn.values()}) == len(drawn)
    assert all(PORTS[0] <= port < PORTS[1] for found in drawn.values() for port in found)
    assert drawn[0, "air", 1] == list(itertools.islice(ports(0, "air", 1), 20))


def test_the_chain_of_plans_says_which_checkpoint_counts() -> None:
    def plan(generation: int, start: CheckpointAt | None) -> Plan:
        return msgspec.structs.replace(PLAN, generation=generation, start=start)

    first, then = plan(0, None), plan(2, CheckpointAt(generation=0, step=20))
    assert start_after(first, []) is None
    assert start_after(first, [20, 10]) == CheckpointAt(generation=0, step=20)
    assert start_after(then, []) == then.start  # whatever the old generation, which may be alive, writes by now
    assert start_after(then, [30]) == CheckpointAt(generation=2, step=30)
