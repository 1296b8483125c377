"""What a person who is not at the screen should hear of: a run ended, stalls, or lost this machine. Pure.

Transitions only: the first look tells nothing, and nothing is told twice.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from swarm.api import progress, train_loss
from tui import text
from tui.messages import RUNNING_JOB

if TYPE_CHECKING:
    from swarm.api import Home, Job, RoundRecord, RunState

Kind = Literal["end", "stall", "lost"]
MANY = 5.0  # times the usual time between two rounds
LEAST_S = 120.0  # below which nothing stalls
KEPT = 9  # of the times between two rounds that were seen here
GAP_S = 30.0  # between two looks: this machine slept, and what it saw before tells nothing
_ENDED = ("done", "stopped")


@dataclass(frozen=True)
class Alarm:
    kind: Kind
    run: str
    text: str  # harmless already


@dataclass(frozen=True)
class _Seen:
    """A run, as it was seen last."""

    phase: str = "unknown"  # the last certain one
    done: int = -1  # rounds, or iterations
    since_s: float = 0.0  # for which that has been the same, while it could have changed
    times_s: tuple[float, ...] = ()  # between two of them, as seen here
    whole: bool = False  # whether `since_s` counts from a change, and not from the first look
    stalled: bool = False
    silent: bool = False  # whether this machine's learner is


@dataclass(frozen=True)
class Watched:
    """What was known at the last look."""

    runs: Mapping[str, _Seen] = field(default_factory=dict)
    jobs: Mapping[str, str] = field(default_factory=dict)  # states, by id
    now_s: float | None = None  # None: nobody has looked


def alarms(before: Watched, home: Home, now_s: float) -> tuple[Watched, tuple[Alarm, ...]]:
    """What is known now, and what there is to tell. `now_s`: monotonic, of this look."""
    first = before.now_s is None
    gap = first or now_s - (before.now_s or 0.0) > GAP_S
    runs: dict[str, _Seen] = {}
    told: list[Alarm] = []
    mine = {job.run: job for job in reversed(home.jobs) if job.state in RUNNING_JOB}
    for state in (state for view in home.mailboxes for state in view.runs):
        old = before.runs.get(state.run)
        new = runs[state.run] = _seen(old or _Seen(since_s=now_s), state, mine.get(state.run), now_s=now_s, gap=gap)
        if old is not None:
            told += _run_alarms(old, new, state, now_s)
    for run, seen in before.runs.items():  # its mailbox does not answer: it is not forgotten
        runs.setdefault(run, replace(seen, since_s=now_s, whole=False))
    if not first:
        told += _job_alarms(before.jobs, home.jobs)
    return Watched(runs, {job.id: job.state for job in home.jobs}, now_s), tuple(told)


def usual_s(seen: _Seen, state: RunState) -> float | None:
    """What a round takes: the median of those seen here, or what the newest record tells, if that is more."""
    known = [statistics.median(seen.times_s)] if seen.times_s else []
    known += [_took_s(record) for record in state.rounds[-1:]]
    return max(known) if known else None


def patience_s(seen: _Seen, state: RunState) -> float | None:
    """For how long no round may close before the run counts as stalled; None while it is not known what is usual."""
    usual = usual_s(seen, state)
    return None if usual is None else max(LEAST_S, MANY * usual)


def _seen(old: _Seen, state: RunState, job: Job | None, *, now_s: float, gap: bool) -> _Seen:
    if state.manifest is None or state.lost:
        return replace(old, since_s=now_s, whole=False)
    at = progress(state)
    done = state.open_round if at is None else at.iteration
    phase = state.phase if state.phase_is_certain else old.phase
    times_s, since_s, whole, stalled = old.times_s, old.since_s, old.whole, old.stalled
    moves = phase == "running" and bool(state.trainers) and not state.effect.ending
    if done != old.done or not moves or gap:
        if moves and not gap and old.whole and done > old.done:
            times_s = (*times_s, (now_s - since_s) / (done - old.done))[-KEPT:]
        whole = moves and not gap and old.done >= 0 and done > old.done
        since_s, stalled = now_s, False
    seen = replace(old, phase=phase, done=done, since_s=since_s, times_s=times_s, whole=whole, stalled=stalled)
    patience = patience_s(seen, state)
    learner = next((view for view in state.learners if job is not None and view.learner == job.learner), None)
    return replace(
        seen,
        stalled=patience is not None and now_s - since_s > patience,
        silent=job is not None and job.state == "running" and learner is not None and learner.state == "silent",
    )


def _took_s(record: RoundRecord) -> float:
    return max((part.seconds_s for part in record.participants), default=0.0) + record.waited_s + record.close_s


def _run_alarms(old: _Seen, new: _Seen, state: RunState, now_s: float) -> Iterator[Alarm]:
    name = text.plain(state.name, 64)
    if new.phase in _ENDED and old.phase not in (*_ENDED, "unknown"):
        by = f" by {text.plain(state.effect.by, 40)}" if state.phase == "stopped" and state.effect.by else ""
        how = "is done" if new.phase == "done" else f"was stopped{by}"
        yield Alarm("end", state.run, f"run {name} {how}: {_came(state)}")
    if new.stalled and not old.stalled:
        usual = usual_s(new, state)
        often = f", usually one every {text.span(usual)}" if usual is not None else ""
        what = "iteration" if progress(state) is not None else "round"
        words = f"run {name} stalls: no {what} for {text.span(now_s - new.since_s)}{often}"
        yield Alarm("stall", state.run, words)
    if new.silent and not old.silent:
        yield Alarm("lost", state.run, f"run {name} has lost this machine: its worker runs, but no beat arrives")


def _came(state: RunState) -> str:
    at = progress(state)
    if at is not None:
        return text.count(at.iteration, "iteration")
    loss = state.evals[-1].loss if state.evals else train_loss(state.rounds[-1]) if state.rounds else None
    return text.count(state.open_round, "round") + (f", loss {text.loss(loss)}" if loss is not None else "")


def _job_alarms(before: Mapping[str, str], jobs: tuple[Job, ...]) -> Iterator[Alarm]:
    for job in jobs:
        if before.get(job.id) not in RUNNING_JOB or job.state not in ("failed", "dropped"):
            continue
        said = text.plain(job.message, 150)
        how = f"its worker failed: {said or 'it left no message'}" if job.state == "failed" else said or "it was dropped"
        yield Alarm("lost", job.run, f"run {text.plain(job.run_name, 64)} has lost this machine: {how}")
