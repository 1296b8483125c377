"""What is known of a data-parallel job's generations, as a fold over the records that were read: who came, the plan, why one
ended, and the losses that count. Pure, and in whatever order the records are seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from swarm.core.finetune import FineTune
from swarm.core.keeping import firsts, stride_for
from swarm.core.ranks import (
    EvalPoint,
    GenerationEnd,
    JobCheckpoint,
    JobLog,
    Member,
    Plan,
    Probe,
    Ready,
    Seat,
    TrainPoint,
)
from swarm.core.records import Beat, RankBeat

DETAILED = 2  # newest generations whose members and probes are kept: one may be under way while the next one gathers
RECENT = 10  # reports that a speed is estimated from
Told: TypeAlias = TrainPoint | EvalPoint
P = TypeVar("P", bound=TrainPoint | EvalPoint)
WAITING = "waiting for "


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One of them; or, as an event, what was newly read of it."""

    generation: int
    members: tuple[Member, ...] = ()  # by learner and incarnation; of the newest DETAILED generations only, as the probes
    probes: tuple[Probe, ...] = ()
    plan: Plan | None = None
    ready: tuple[Ready, ...] = ()
    started: tuple[tuple[str, int], ...] = ()  # incarnations
    end: GenerationEnd | None = None
    parts: int = 0  # of its log, read so far
    points: tuple[TrainPoint, ...] = ()  # as they were logged
    evals: tuple[EvalPoint, ...] = ()
    shares: tuple[int, ...] = ()  # of the ranks, as told last; none: as planned

    @property
    def under_way(self) -> bool:
        """Whether all its ranks have started, and it has not ended."""
        return self.plan is not None and self.end is None and not self.lacking

    @property
    def lacking(self) -> tuple[str, ...]:
        """Learners of the plan whose ranks have not started."""
        seats = self.plan.seats if self.plan is not None else ()
        return tuple(s.learner for s in seats if (s.learner, s.incarnation) not in self.started)

    def share(self, rank: int) -> int:
        """Of a batch, in proportion to the others'."""
        seats = self.seats
        return self.shares[rank] if len(self.shares) == len(seats) else seats[rank].share

    @property
    def seats(self) -> tuple[Seat, ...]:
        return () if self.plan is None else self.plan.seats


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Event: parts of a generation's log, in order."""

    generation: int
    parts: tuple[JobLog, ...]
    alone: bool = False  # the newest part, in place of all before it: for a list of runs


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The generations of one job, and what counts of them."""

    generations: tuple[Generation, ...] = ()  # ascending
    checkpoints: tuple[JobCheckpoint, ...] = ()  # that lie in the mailbox, by generation and step
    points: tuple[TrainPoint, ...] = ()  # that count: of a generation those up to the step that a later one goes on from
    evals: tuple[EvalPoint, ...] = ()

    @property
    def newest(self) -> Generation | None:
        return self.generations[-1] if self.generations else None

    @property
    def planned(self) -> Generation | None:
        """The newest one with a plan."""
        return next((g for g in reversed(self.generations) if g.plan is not None), None)

    @property
    def under_way(self) -> Generation | None:
        """The one that trains, as far as records tell."""
        found = self.planned
        return found if found is not None and found.under_way else None

    @property
    def ending(self) -> GenerationEnd | None:
        """After which none follows: the job is done, or was stopped."""
        return next((g.end for g in reversed(self.generations) if g.end is not None and not g.end.goes_on), None)

    def find(self, generation: int) -> Generation | None:
        return next((g for g in reversed(self.generations) if g.generation == generation), None)


def found(state: Ranks, new: Generation, *, keep: int | None = None) -> Ranks:
    """With what was newly read of a generation. What is known stays: no record ever changes. `keep`: of the newest reports
    so many, and older ones thinned; None: all."""
    old = state.find(new.generation) or Generation(generation=new.generation)
    after = msgspec.structs.replace(
        old,
        members=_merged(old.members, new.members),
        probes=tuple(dict.fromkeys((*old.probes, *new.probes))),
        plan=old.plan or new.plan,
        ready=tuple(dict.fromkeys((*old.ready, *new.ready))),
        started=tuple(sorted({*old.started, *new.started})),
        end=old.end or new.end,
    )
    return _counted(_put(state, after), keep) if after.plan is not old.plan else _put(state, after)


def logged(state: Ranks, log: Log, *, keep: int | None = None) -> Ranks:
    """With parts of a log: those that come next, without a gap. `keep` as in `found`."""
    old = state.find(log.generation) or Generation(generation=log.generation)
    points, evals, shares, parts = list(old.points), list(old.evals), old.shares, old.parts
    if log.alone and log.parts:
        points, evals, parts = [], [], log.parts[0].n
    for part in log.parts:
        if part.generation != log.generation or part.n != parts:
            continue
        points += part.points
        evals += part.evals
        shares = part.shares or shares
        parts += 1
    if parts == old.parts:
        return state
    after = msgspec.structs.replace(old, points=tuple(points), evals=tuple(evals), shares=shares, parts=parts)
    return _counted(_put(state, after), keep)


def saved(state: Ranks, checkpoints: Sequence[JobCheckpoint]) -> Ranks:
    """With the checkpoints that lie there now."""
    return msgspec.structs.replace(state, checkpoints=tuple(sorted(checkpoints, key=lambda c: (c.generation, c.step))))


def _merged(old: tuple[Member, ...], new: tuple[Member, ...]) -> tuple[Member, ...]:
    if not new:
        return old
    known = {(m.learner, m.incarnation): m for m in (*new, *old)}
    return tuple(known[key] for key in sorted(known))


def _put(state: Ranks, after: Generation) -> Ranks:
    others = [g for g in state.generations if g.generation != after.generation]
    every = sorted([*others, after], key=lambda g: g.generation)
    # A run of many generations would else keep every machine's addresses and hashes as often.
    bare = [msgspec.structs.replace(g, members=(), probes=()) if g.members or g.probes else g for g in every[:-DETAILED]]
    return msgspec.structs.replace(state, generations=(*bare, *every[-DETAILED:]))


def chain(state: Ranks) -> list[tuple[Generation, int | None]]:
    """The generations whose training counts, oldest first, each with the step up to which it does (None: all): the newest
    that has a plan, the one that its checkpoint is of, and so on."""
    kept: list[tuple[Generation, int | None]] = []
    at, limit = state.planned, None
    while at is not None:
        kept.append((at, limit))
        start = at.plan.start if at.plan is not None else None
        if start is None:
            break
        # A checkpoint is never of a step before its generation's own start: but what is read here is anybody's.
        at, limit = state.find(start.generation), start.step if limit is None else min(limit, start.step)
    return kept[::-1]


def told(state: Ranks) -> Iterator[tuple[int, Told]]:
    """(generation, point) of all that counts, a generation's reports before its evaluations. Steps only go forward: what does
    not is left out, whoever wrote it."""
    iteration = 0
    for generation, limit in chain(state):
        for point in generation.points:
            if (limit is None or point.step <= limit) and point.iteration > iteration:
                iteration = point.iteration
                yield generation.generation, point
        for evaluated in generation.evals:
            if limit is None or evaluated.step <= limit:
                yield generation.generation, evaluated


def _counted(state: Ranks, keep: int | None) -> Ranks:
    if keep is not None:
        state = _thinned(state, keep)
    points: list[TrainPoint] = []
    evals: dict[tuple[str, int], EvalPoint] = {}  # a generation may evaluate what the one before it did, too
    for _, point in told(state):
        match point:
            case TrainPoint():
                points.append(point)
            case EvalPoint():
                evals[point.part, point.iteration] = point
    by_iteration = sorted(evals.values(), key=lambda e: (e.iteration, e.part == "test"))
    return msgspec.structs.replace(state, points=tuple(points), evals=tuple(by_iteration))


def _thinned(state: Ranks, keep: int) -> Ranks:
    """The last `keep` reports of the newest generation that has any, and of all others, whatever their generation, so many
    that memory is bounded; evaluations likewise."""
    newest = max((g.generation for g in state.generations if g.points), default=-1)

    def older(g: Generation, points: tuple[P, ...]) -> tuple[P, ...]:
        return points[: max(0, len(points) - keep)] if g.generation == newest else points

    by_points = stride_for([p.iteration for g in state.generations for p in older(g, g.points)])
    by_evals = stride_for([e.iteration for g in state.generations for e in older(g, g.evals)])
    if by_points == by_evals == 1:
        return state

    def thin(g: Generation, points: tuple[P, ...], stride: int) -> tuple[P, ...]:
        old = older(g, points)
        return (*firsts(old, lambda p: p.iteration, stride), *points[len(old) :])

    generations = tuple(
        msgspec.structs.replace(g, points=thin(g, g.points, by_points), evals=thin(g, g.evals, by_evals))
        for g in state.generations
    )
    return msgspec.structs.replace(state, generations=generations)


def iteration_s(state: Ranks) -> float | None:
    """Seconds that an iteration takes, by the newest reports of the newest generation that has made any; None: not known."""
    planned = state.planned
    if planned is None:
        return None
    own = {p.iteration for p in planned.points}
    start = TrainPoint(step=0, iteration=0, train_loss=None, learning_rate=0, tokens_per_s=0, trained_tokens=0, epoch=0)
    seconds_s, iterations = 0.0, 0
    recent = state.points[-RECENT - 1 :]
    for before, point in itertools.pairwise(recent if len(recent) > RECENT else (start, *recent)):
        tokens = point.trained_tokens - before.trained_tokens
        if tokens > 0 and point.tokens_per_s > 0 and (point.iteration in own or not own):
            seconds_s += tokens / point.tokens_per_s
            iterations += point.iteration - before.iteration
    return seconds_s / iterations if iterations and math.isfinite(seconds_s) else None


def remaining_s(state: Ranks, spec: FineTune, iteration: int) -> float | None:
    """Until all iterations are done, with their validations; None: not known."""
    each_s = iteration_s(state)
    if each_s is None:
        return None
    timed = [e.seconds_s for e in state.evals if e.part == "valid"][-3:]
    validations = -(-spec.iters // spec.steps_per_eval) - iteration // spec.steps_per_eval if spec.val_batches else 0
    pauses_s = sum(timed) / len(timed) * max(0, validations) if timed else 0.0
    return max(0, spec.iters - iteration) * each_s + pauses_s


def waiting(state: Ranks, spec: FineTune, said: Sequence[Beat]) -> str:
    """What keeps a job from training, as its machines tell, "waiting …"; '' while nothing does. `said`: the newest beats, in
    anybody's words, of those that are there to train."""
    if state.under_way is not None or any(b.rank is not None and b.phase in ("train", "evaluate") for b in said):
        return ""
    # Whom they wait for goes before what they do meanwhile.
    doing = sorted((b.doing for b in said if b.doing), key=lambda words: not words.startswith(WAITING))
    if doing:
        return doing[0] if doing[0].startswith(WAITING) else f"waiting: {doing[0]}"
    missing = spec.world_size_min - len(said)
    if missing > 0:
        return f"{WAITING}{missing} more machine{'s' if missing > 1 else ''}"
    planned = state.planned
    if planned is not None and planned.end is None and planned.lacking:
        return f"{WAITING}the ranks of {', '.join(planned.lacking)}"
    return f"{WAITING}the machines to agree on a plan"


def newest_rank(before: RankBeat | None, said: RankBeat | None) -> RankBeat | None:
    """What is known of a rank after a beat. A step may take longer than the time between two beats: what the last one took is
    told until the next one has ended."""
    if said is None or before is None or (said.generation, said.rank) != (before.generation, before.rank):
        return said
    if took_s(said) > 0:
        return said
    return msgspec.structs.replace(
        said,
        compute_s=before.compute_s,
        waiting_s=before.waiting_s,
        exchange_s=before.exchange_s,
        update_s=before.update_s,
    )


def took_s(rank: RankBeat) -> float:
    """What the steps that it tells of took."""
    return rank.compute_s + rank.waiting_s + rank.exchange_s + rank.update_s
