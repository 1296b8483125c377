"""When a round closes, who closes it, and what a snapshot weighs. Decisions only; time is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, assert_never

import msgspec

from swarm.core.records import RejectReason, Role, Snapshot
from swarm.core.specs import ByRounds, DiLoCo, FedAvg


class RoundView(msgspec.Struct, frozen=True, kw_only=True):
    """What one observer knows of the open round."""

    round: int
    accepted: frozenset[str]  # learners whose snapshot is acceptable as far as its record tells
    reported: frozenset[str]  # learners with any snapshot for this round
    live: frozenset[str]  # learners that train, with a live lease: who is waited for
    opened: bool  # round 0 only: the starters were live together, or have all reported
    quorum_at_s: float | None  # when this observer first saw the quorum
    stopping: bool = False  # a stop or a pause is pending: no wait for the starters, nor for a report when nobody is live


class Wait(msgspec.Struct, frozen=True):
    reason: str
    until_s: float | None = None  # the observer's clock; None: until something changes


class Close(msgspec.Struct, frozen=True):
    reason: str


Decision: TypeAlias = Wait | Close


def decide(view: RoundView, spec: DiLoCo, *, grace_s: float, now_s: float) -> Decision:
    """Whether the round may close now."""
    if view.round == 0 and not view.opened and not view.stopping:
        missing = max(1, spec.starters - len(view.live))
        return Wait(f"waiting for {missing} more learner{'s' if missing > 1 else ''}")
    silent = view.live - view.reported
    someone = view.accepted or (view.live and view.reported)  # nobody live and nothing accepted: it stays open
    if not silent and (someone or view.stopping):
        return Close("every live learner has reported")
    if not view.reported:
        return Wait("nobody has reported" if view.live else "waiting for a learner")
    needed = quorum(spec, stopping=view.stopping)
    if len(view.accepted) < needed:
        return Wait(f"{len(view.accepted)} of {needed} for the quorum")
    until_s = (now_s if view.quorum_at_s is None else view.quorum_at_s) + grace_s
    if now_s >= until_s:
        return Close("the grace is over")
    return Wait(f"grace for {', '.join(sorted(silent))}", until_s)


def quorum(spec: DiLoCo, *, stopping: bool) -> int:
    """Snapshots that may close a round. The last one of a run that is stopped or paused waits for no more than one."""
    return 1 if stopping else spec.quorum_size


def starters(spec: ByRounds) -> int:
    """Live learners that round 0 waits for: private clients for as many as a round samples."""
    match spec:
        case DiLoCo():
            return spec.starters
        case FedAvg():
            return spec.per_round if spec.private else 1


def closes(role: Role, others: Iterable[Role], *, overdue: bool) -> bool:
    """Whether an incarnation of `role` bids to close a round that is due. `others`: the roles of the others that are live.
    `overdue`: it has been due for a lease, so that a syncer which is there does not do its duty."""
    match role:
        case "both" | "syncer":
            return True
        case "either":
            return overdue or "syncer" not in others
        case "learner":
            return False
        case _:
            assert_never(role)


def opened(*, spec: DiLoCo, live: frozenset[str], reported: frozenset[str]) -> bool:
    """Round 0: enough learners live at once, or enough have already reported."""
    return len(live) >= spec.starters or len(reported) >= spec.starters


def grace_s(spec: DiLoCo, recent_quorum_waits_s: Sequence[float], recent_closes_s: Sequence[float] = ()) -> float:
    """The grace: as configured, else half as much again as the longest recent wait for the last one, and four times as
    long as closing took (half a grace must do to write a delta, and closing reads and writes several), within
    [1 s, lease]; a lease while there is no history."""
    if spec.grace_s is not None:
        return spec.grace_s
    if not recent_quorum_waits_s:
        return spec.lease_s
    waits_s, closes_s = max(recent_quorum_waits_s), max(recent_closes_s, default=0.0)
    return min(max(1.0, 1.5 * waits_s, 4.0 * closes_s), spec.lease_s)


def hurry_at_s(wait: Wait, *, grace_s: float) -> float | None:
    """When a learner that has not reported should, with the steps that it has: at half the grace, so that a slow machine
    takes part in every round with what it did, instead of losing it. None: not as long as this is what is waited for."""
    return None if wait.until_s is None else wait.until_s - grace_s / 2


class ClaimView(msgspec.Struct, frozen=True):
    n: int
    learner: str
    incarnation: int
    holder_live: bool


def next_claim(claims: Iterable[ClaimView], *, learner: str, incarnation: int) -> int | None:
    """The number of the claim that I should make, or None: the newest one is mine, or its holder lives."""
    newest = max(claims, key=lambda c: c.n, default=None)
    if newest is None:
        return 0
    if newest.holder_live or (newest.learner, newest.incarnation) == (learner, incarnation):
        return None
    return newest.n + 1


def my_claim(claims: Iterable[ClaimView], *, learner: str, incarnation: int) -> bool:
    """Whether the newest claim is mine."""
    newest = max(claims, key=lambda c: c.n, default=None)
    return newest is not None and (newest.learner, newest.incarnation) == (learner, incarnation)


class ClientsView(msgspec.Struct, frozen=True, kw_only=True):
    """What one observer knows of an open round of FedAvg."""

    wanted: frozenset[str]  # units that were sampled
    accepted: frozenset[str]  # of these, those whose snapshot is acceptable as far as its record tells
    reported: frozenset[str]  # of these, those with any snapshot
    gone: frozenset[str]  # of these, private clients whose learner is not live: nobody else can train them
    working: frozenset[str]  # of these, those that somebody live has claimed
    present: bool  # whether anybody is live who trains
    open_s: float  # for how long this observer has seen it open
    lacking: int = 0  # private clients that must come before any are sampled
    stopping_s: float | None = None  # for how long this observer has seen that a stop is pending; None: none is


def decide_clients(view: ClientsView, spec: FedAvg, *, now_s: float) -> Decision:
    """Whether the round may close now."""
    missing = view.wanted - view.reported - view.gone
    # Clients that were begun may be finished within a lease, and no others are.
    if view.stopping_s is not None and missing and (not missing & view.working or view.stopping_s >= spec.lease_s):
        return Close("the run ends")
    if not view.wanted:
        many = "s" if view.lacking > 1 else ""
        return Wait(f"waiting for {view.lacking} more learner{many}") if view.stopping_s is None else Close("the run ends")
    if not missing:
        if view.reported:
            return Close("every client has reported" if not view.gone else "every client that is there has reported")
        return Close("the clients of the round are gone")
    done = f"{len(view.reported)} of {len(view.wanted)} clients"
    if spec.deadline_s is None:
        return Wait(done if view.present else "waiting for a learner")
    left_s = spec.deadline_s - view.open_s
    if left_s > 0:
        return Wait(done, now_s + left_s)
    if len(view.accepted) < spec.min_clients:
        return Wait(f"{len(view.accepted)} of the {spec.min_clients} clients that a round needs at its deadline")
    return Close(f"the deadline is over: {done}")


def weight(spec: ByRounds, *, tokens: int, steps: int) -> float:
    """DiLoCo: tokens²/steps, since a learner counts by its tokens and by its tokens per step. FedAvg: samples."""
    match spec:
        case DiLoCo():
            return tokens * tokens / steps
        case FedAvg():
            return float(tokens)


def objection(
    snapshot: Snapshot,
    *,
    round: int,
    fragment: int,
    base_sha256: str,
    schema_sha256: str,
    dtype: str | None,
    clients: frozenset[str] | None = None,
) -> RejectReason | None:
    """Why the snapshot cannot count, as far as its record tells; None if it may. `clients`: of FedAvg, those that were sampled
    for the round; one without samples is none the worse for it."""
    if snapshot.schema_sha256 != schema_sha256 or snapshot.dtype != dtype:
        return "schema"
    if snapshot.round != round:  # before the fragment: another round's is most likely another fragment's
        return "stale"
    if snapshot.fragment != fragment:
        return "schema"
    if snapshot.base_sha256 != base_sha256:
        return "stale"
    if clients is not None and snapshot.unit not in clients:
        return "unsampled"
    if clients is None and snapshot.steps < 1:
        return "zero_steps"
    if clients is None and snapshot.tokens < 1:
        return "tokens"
    return None if snapshot.finite else "nonfinite"
