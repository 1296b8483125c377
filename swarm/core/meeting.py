"""How the machines of a data-parallel job agree on one generation: who leads, when there is a plan, who starts when. Decisions
only; time is an argument."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Hashable, Iterator
from typing import TypeAlias

import msgspec

from swarm.core.preflight import Terms, preflight, unmeasured
from swarm.core.ranks import CheckpointAt, Ending, GenerationEnd, Member, Plan, Probe, Ready, in_words
from swarm.core.rounds import ClaimView, my_claim, next_claim
from swarm.core.sentences import counted

PORTS = (21_000, 32_000)
"""Where ranks and probers listen, the end excluded: below what Linux and macOS give out for connections of their own."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What one observer knows of a generation."""

    learner: str
    incarnation: int
    generation: int
    terms: Terms
    under_way: bool = False  # the generation before has not ended
    deserted: bool = False  # and none of its machines is live, so that nobody else can end it
    members: tuple[Member, ...] = ()  # whose incarnations are live
    missing: frozenset[str] = frozenset()  # learners that were heard of in this run and are not live
    probes: tuple[Probe, ...] = ()
    claims: tuple[ClaimView, ...] = ()
    plan: Plan | None = None
    ready: dict[str, Ready] = {}  # of the plan's incarnations
    started: frozenset[str] = frozenset()  # learners of the plan's incarnations
    gone: frozenset[str] = frozenset()  # learners of the plan whose incarnations are not live
    end: GenerationEnd | None = None
    steady_s: float = 0.0  # for how long the members have been the same
    enough_s: float = 0.0  # for how long there have been enough of them
    planned_s: float = 0.0  # for how long there has been a plan


class Hold(msgspec.Struct, frozen=True):
    """Nothing to do for now."""

    reason: str


class Lead(msgspec.Struct, frozen=True):
    """Make claim `n` on leading."""

    n: int


class Propose(msgspec.Struct, frozen=True):
    """Write the plan, once it is filled in what it starts from."""

    plan: Plan


class Confirm(msgspec.Struct, frozen=True):
    """Try the own place, and say whether it is free."""

    plan: Plan
    rank: int


class Start(msgspec.Struct, frozen=True):
    """Start the own rank now."""

    plan: Plan
    rank: int


class Running(msgspec.Struct, frozen=True):
    """All ranks have started."""

    plan: Plan
    rank: int


class Apart(msgspec.Struct, frozen=True):
    """This generation goes on without this machine. `refused`: not because it was late."""

    reason: str
    refused: bool = False


class End(msgspec.Struct, frozen=True):
    """End the generation."""

    reason: str
    ending: Ending = "rendezvous"


class Bury(msgspec.Struct, frozen=True):
    """End the generation before."""

    reason: str


class Over(msgspec.Struct, frozen=True):
    """It has ended."""

    end: GenerationEnd


Action: TypeAlias = Hold | Lead | Propose | Confirm | Start | Running | Apart | Bury | End | Over


def decide(view: View) -> Action:
    """What this observer does next to come to a running generation."""
    if view.end is not None:
        return Over(view.end)
    if view.under_way and view.deserted:
        return Bury(f"none of the machines of generation {view.generation - 1} is there any more")
    if view.under_way:
        return Hold(f"generation {view.generation - 1} is under way; this machine takes part in the next one")
    return _gather(view) if view.plan is None else _follow(view, view.plan)


def _gather(view: View) -> Action:
    terms, members = view.terms, view.members
    if all((m.learner, m.incarnation) != (view.learner, view.incarnation) for m in members):
        return Hold("its own announcement is not seen yet")
    if len(members) < terms.world_size_min:
        return Hold(_lacking(terms.world_size_min - len(members), view.missing))
    n = next_claim(view.claims, learner=view.learner, incarnation=view.incarnation)
    if n is not None:
        return Lead(n)
    leader = max(view.claims, key=lambda claim: claim.n).learner
    leads = my_claim(view.claims, learner=view.learner, incarnation=view.incarnation)
    if not leads and view.enough_s >= 2 * terms.start_s:  # a leader that does its work says earlier, and better, what is wrong
        return End(f"{leader} made no plan within {2 * terms.start_s:g} s")
    pairs = unmeasured(view.probes, members)
    if pairs and view.steady_s < terms.probe_s:
        return Hold(f"measuring links: {', '.join(f'{a} to {b}' for a, b in pairs[:3])}{' …' if len(pairs) > 3 else ''}")
    full = terms.world_size_max is not None and len(members) >= terms.world_size_max
    if not full and view.steady_s < terms.gather_s:
        return Hold(f"{counted(len(members), 'machine')} there; waiting for more")
    verdict = preflight(members, view.probes, terms)
    if len(verdict.seats) < terms.world_size_min:
        words = _lacking(terms.world_size_min - len(verdict.seats), view.missing)
        words = "; ".join([words, *map(str, verdict.refused)])
        return End(in_words(words)) if leads and view.enough_s >= terms.start_s else Hold(words)
    if not leads:
        return Hold(f"{leader} makes the plan")
    return Propose(
        Plan(
            generation=view.generation,
            leader=view.learner,
            seats=verdict.seats,
            backend=verdict.backend,
            seed=terms.seed,
            start_s=terms.start_s,
            refused=verdict.refused,
        )
    )


def _lacking(count: int, missing: Collection[str]) -> str:
    words = f"waiting for {counted(count, 'more machine')}"
    return f"{words}; not here: {', '.join(sorted(missing))}" if missing else words


def _follow(view: View, plan: Plan) -> Action:
    rank = plan.rank(view.learner, view.incarnation)
    if rank is None:
        reasons = [refusal.reason for refusal in plan.refused if refusal.learner == view.learner]
        if reasons:
            return Apart("; ".join(reasons), refused=True)
        return Apart(f"it came when the plan of generation {plan.generation} was made already")
    for seat in plan.seats:
        said = view.ready.get(seat.learner)
        if said is not None and said.refusal:
            return End(in_words(f"{seat.learner}: {said.refusal}"))
    if view.gone:
        return End(
            in_words(f"{', '.join(sorted(view.gone))} left, or was not heard of for a lease, before all ranks had started")
        )
    if view.learner not in view.ready:
        return Confirm(plan, rank)
    unready = [seat.learner for seat in plan.seats if seat.learner not in view.ready]
    before = [seat.learner for seat in plan.seats[:-1] if seat.learner not in view.started]
    last = plan.seats[-1].learner
    if unready:
        waits = f"waiting for {', '.join(unready)} to be ready"
    elif rank < len(plan.seats) - 1 and view.learner not in view.started:
        return Start(plan, rank)
    elif before:
        waits = f"waiting for the ranks of {', '.join(before)} to listen"
    elif rank == len(plan.seats) - 1 and last not in view.started:
        return Start(plan, rank)
    elif last not in view.started:
        waits = f"waiting for the rank of {last}"
    else:
        return Running(plan, rank)
    return overdue(view, plan, waits) or Hold(waits)


def overdue(view: View, plan: Plan, waits: str) -> End | None:
    """The end of a generation that has not started in time."""
    return End(in_words(f"not started within {plan.start_s:g} s: {waits}")) if view.planned_s >= plan.start_s else None


class Stay(msgspec.Struct, frozen=True):
    """For how long one observer has seen the same thing, by its own clock. Counts only time between looks that are at most
    `gap_s` apart: an observer that slept or lost the share starts anew (core/lease.py)."""

    gap_s: float
    what: Hashable = None
    same_s: float = 0.0
    looked_at_s: float | None = None

    def observe(self, now_s: float, what: Hashable) -> Stay:
        elapsed_s = 0.0 if self.looked_at_s is None else now_s - self.looked_at_s
        same = what == self.what and 0 <= elapsed_s <= self.gap_s
        return Stay(self.gap_s, what, self.same_s + elapsed_s if same else 0.0, now_s)


def ports(generation: int, learner: str, incarnation: int) -> Iterator[int]:
    """Ports to try, in an order that differs by generation and by learner: what held up one generation is not met again in
    the next, and two agents on one machine seldom get in each other's way."""
    first, end = PORTS
    for n in itertools.count():
        drawn = hashlib.sha256(f"{generation} {learner} {incarnation} {n}".encode()).digest()
        yield first + int.from_bytes(drawn[:8], "big") % (end - first)


def start_after(plan: Plan, saved: Collection[int]) -> CheckpointAt | None:
    """What goes on after the generation of `plan`, which wrote whole checkpoints after the steps `saved`: the newest of them,
    else what it started from itself. So each generation hangs on the one before, and whatever an older one that is still alive
    writes is never read."""
    later = [step for step in saved if plan.start is None or step >= plan.start.step]
    return CheckpointAt(generation=plan.generation, step=max(later)) if later else plan.start


def start_before(at: CheckpointAt, plan: Plan | None, saved: Collection[int]) -> CheckpointAt | None:
    """What is gone on from where `at` is no more, since it was damaged: the newest before it of the steps `saved` by its
    generation, else what that one started from. `plan`: of its generation."""
    first = 0 if plan is None or plan.start is None else plan.start.step
    earlier = [step for step in saved if first <= step < at.step]
    if earlier:
        return CheckpointAt(generation=at.generation, step=max(earlier))
    return None if plan is None else plan.start
