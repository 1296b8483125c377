"""What people ask of a data-parallel job, answered from a run's state: how far it is, what each rank does, who can take part,
and its history as rows. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from swarm.core import rankstate
from swarm.core.finetune import FineTune
from swarm.core.ranks import EvalPoint, Link, Member, Plan, TrainPoint
from swarm.core.rankstate import Generation
from swarm.core.state import LearnerView, RunState

OPEN_RING = (
    "the ring's sockets know no passwords: each rank binds to the one address of its plan, for machines of a trusted network"
)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is."""

    step: int
    steps: int
    iteration: int
    iters: int
    epoch: float | None  # at the newest report
    epochs: float | None  # in all, at that pace
    tokens_per_s: float  # of all ranks: now if somebody trains, else at the newest report
    train_loss: float | None
    val_loss: float | None
    test_loss: float | None
    eta_s: float | None  # None: nobody trains, or the speed is not known yet


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of the newest plan, or a machine that has none."""

    learner: str
    rank: int | None = None
    size: int = 0
    generation: int | None = None
    address: str = ""  # with its port
    share: float | None = None  # of each batch, as a part of 1
    compute: float | None = None  # parts of a step's time: passes and update here,
    exchange: float | None = None  # communication,
    waiting: float | None = None  # waiting for slower ranks
    microbatch_rows: int | None = None
    memory_bytes: int | None = None
    refused: tuple[str, ...] = ()  # why it has no rank
    next: bool = False  # it waits for the next generation
    view: LearnerView | None = None  # None: it has sent no beat


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the preflight table."""

    learner: str
    member: Member | None  # what it announced
    rank: int | None = None
    reasons: tuple[str, ...] = ()  # why it cannot take part
    next: bool = False
    ways: tuple[tuple[str, Link], ...] = ()  # (from whom, how it is reached there): of each other one the best way

    @property
    def verdict(self) -> str:
        """In a word or two; `reasons` say more."""
        if self.reasons:
            return "refused"
        if self.rank is not None:
            return f"rank {self.rank}"
        return "next generation" if self.next else "being checked"


def spec_of(state: RunState) -> FineTune | None:
    """Of a data-parallel job; None for other runs."""
    algorithm = state.manifest.algorithm if state.manifest is not None else None
    return algorithm if isinstance(algorithm, FineTune) else None


def progress(state: RunState) -> Progress | None:
    """None for other runs."""
    spec, ranks = spec_of(state), state.ranks
    if spec is None:
        return None
    last = ranks.points[-1] if ranks.points else None
    step = _step(state, spec)
    iteration = spec.iterations(step)
    trains = state.phase == "running"
    losses: dict[str, float | None] = {}
    for evaluated in ranks.evals:
        losses[evaluated.part] = evaluated.loss
    reported = 0.0 if last is None else last.tokens_per_s
    return Progress(
        step=step,
        steps=spec.steps,
        iteration=iteration,
        iters=spec.iters,
        epoch=None if last is None else last.epoch,
        epochs=last.epoch * spec.iters / last.iteration if last is not None and last.iteration else None,
        tokens_per_s=(state.tokens_per_s or reported) if trains else reported,
        train_loss=None if last is None else last.train_loss,
        val_loss=losses.get("valid"),
        test_loss=losses.get("test"),
        eta_s=rankstate.remaining_s(ranks, spec, iteration) if trains else None,
    )


def _step(state: RunState, spec: FineTune) -> int:
    """Optimizer steps done, as far as is known: by the ranks that run, else by reports and checkpoints."""
    ranks = state.ranks
    planned, ending = ranks.planned, ranks.ending
    if ending is not None and ending.ending == "finished":
        return spec.steps
    known = [point.step for point in ranks.points[-1:]]
    if planned is not None and planned.plan is not None:
        known += [planned.plan.start.step] if planned.plan.start is not None else []
        known += [c.step for c in ranks.checkpoints if c.generation == planned.generation]
        beats = [v.beat for v in state.learners if v.beat is not None and v.beat.rank is not None]
        known += [b.step for b in beats if b.rank is not None and b.rank.generation == planned.generation]
    return min(spec.steps, max(known, default=0))


def rank_views(state: RunState) -> tuple[RankView, ...]:
    """Ranks in their order, then the machines that have none."""
    if spec_of(state) is None:
        return ()
    planned, views = state.ranks.planned, {view.learner: view for view in state.learners}
    over = planned is None or (planned.end is not None and state.phase not in ("done", "stopped"))
    seats = () if planned is None or over else planned.seats
    shares = [planned.share(n) for n in range(len(seats))] if planned is not None else []
    found = []
    for n, seat in enumerate(seats):
        view = views.pop(seat.learner, None)
        assert planned is not None
        part = shares[n] / sum(shares) if sum(shares) else None
        found.append(_rank(planned, seat.learner, n, f"{seat.address}:{seat.port}", view, part, seat.incarnation))
    refused, late = refusals(state), newcomers(state)
    for learner in sorted({*views, *refused, *late} - {r.learner for r in found}):
        view = views.get(learner)
        found.append(RankView(learner=learner, refused=refused.get(learner, ()), next=learner in late, view=view))
    return tuple(found)


def _rank(
    planned: Generation, learner: str, n: int, address: str, view: LearnerView | None, share: float | None, incarnation: int
) -> RankView:
    told = view.rank if view is not None and view.incarnation == incarnation else None
    told = told if told is not None and told.generation == planned.generation else None
    took_s = rankstate.took_s(told) if told is not None else 0.0
    return RankView(
        learner=learner,
        rank=n,
        size=len(planned.seats),
        generation=planned.generation,
        address=address,
        share=share,
        compute=(told.compute_s + told.update_s) / took_s if told is not None and took_s else None,
        exchange=told.exchange_s / took_s if told is not None and took_s else None,
        waiting=told.waiting_s / took_s if told is not None and took_s else None,
        microbatch_rows=told.microbatch_rows or None if told is not None else None,
        memory_bytes=told.memory_bytes or None if told is not None else None,
        view=view,
    )


def refusals(state: RunState) -> dict[str, tuple[str, ...]]:
    """Why machines have no rank in the newest plan, or could not take theirs, by learner."""
    planned = state.ranks.planned
    if planned is None or planned.plan is None:
        return {}
    found: dict[str, list[str]] = {}
    for refusal in planned.plan.refused:
        found.setdefault(refusal.learner, []).append(refusal.reason)
    for ready in planned.ready:
        if ready.refusal and planned.plan.rank(ready.learner, ready.incarnation) is not None:
            found.setdefault(ready.learner, []).append(ready.refusal)
    return {learner: tuple(reasons) for learner, reasons in found.items()}


def newcomers(state: RunState) -> frozenset[str]:
    """Who waits for the generation after the one that is under way."""
    planned, newest = state.ranks.planned, state.ranks.newest
    if planned is None or newest is None or planned.end is not None or newest.generation <= planned.generation:
        return frozenset()
    seated = {(seat.learner, seat.incarnation) for seat in planned.seats}
    return frozenset(m.learner for m in newest.members if (m.learner, m.incarnation) not in seated)


def checked(state: RunState) -> tuple[Checked, ...]:
    """The preflight table: of the newest generation that has one, and who waits for the next."""
    newest, planned = state.ranks.newest, state.ranks.planned
    if newest is None:
        return ()
    at = planned if planned is not None and (planned.end is None or not newest.members) else newest
    plan, reasons = at.plan, refusals(state) if at is planned else {}
    late = newcomers(state)
    members = {m.learner: m for m in newest.members if m.learner in late} | {m.learner: m for m in at.members}
    ways = _ways(at)
    found = []
    for learner in sorted({*members, *reasons, *(seat.learner for seat in at.seats)}):
        found.append(
            Checked(
                learner=learner,
                member=members.get(learner),
                rank=_seat(plan, learner),
                reasons=reasons.get(learner, ()),
                next=learner in late,
                ways=tuple(ways.get(learner, ())),
            )
        )
    return tuple(sorted(found, key=lambda c: (c.rank is None, c.rank or 0, c.learner)))


def _seat(plan: Plan | None, learner: str) -> int | None:
    seats = plan.seats if plan is not None else ()
    return next((n for n, seat in enumerate(seats) if seat.learner == learner), None)


def _ways(at: Generation) -> dict[str, list[tuple[str, Link]]]:
    """How each is reached by each other one: at the address that was planned, else the fastest way, else why not."""
    planned = {seat.learner: seat.address for seat in at.seats}
    found: dict[str, list[tuple[str, Link]]] = {}
    for probe in sorted(at.probes, key=lambda p: (p.target, p.learner, -p.incarnation)):
        if not probe.links:
            continue

        def worth(link: Link, target: str = probe.target) -> tuple[bool, bool, float]:
            return not link.error, link.address == planned.get(target), link.bytes_per_s

        found.setdefault(probe.target, []).append((probe.learner, max(probe.links, key=worth)))
    return found


def job_rows(state: RunState) -> list[dict[str, Any]]:
    """One for each iteration that something was reported of, all with the same columns. What is not known is None."""
    rows: dict[int, dict[str, Any]] = {}
    for generation, point in rankstate.told(state.ranks):
        row = rows.setdefault(point.iteration, _empty(point.iteration, point.step))
        row["generation"] = generation
        match point:
            case TrainPoint():
                row |= {
                    "epoch": point.epoch,
                    "train_loss": point.train_loss,
                    "learning_rate": point.learning_rate,
                    "tokens_per_s": point.tokens_per_s,
                    "trained_tokens": point.trained_tokens,
                }
            case EvalPoint(part="valid"):
                row |= {"val_loss": point.loss, "val_tokens": point.tokens, "val_s": point.seconds_s}
            case EvalPoint():
                row |= {"test_loss": point.loss, "test_tokens": point.tokens}
    return [rows[iteration] for iteration in sorted(rows)]


def _empty(iteration: int, step: int) -> dict[str, Any]:
    names = ("generation", "epoch", "train_loss", "val_loss", "learning_rate", "tokens_per_s", "trained_tokens")
    return {"iteration": iteration, "step": step} | dict.fromkeys((*names, "val_tokens", "val_s", "test_loss", "test_tokens"))
