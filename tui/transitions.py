"""What changed between two states, in words: for toasts and for the log. Pure; `before` is None on the first look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from swarm.api import (
    ORDINARY,
    DiLoCo,
    LearnerView,
    accuracy,
    expected,
    private,
    progress,
    refusal,
    train_loss,
)
from tui import text
from tui.messages import RUNNING_JOB

if TYPE_CHECKING:
    from swarm.api import (
        Algorithm,
        EvalRecord,
        Home,
        Job,
        RoundRecord,
        RunState,
    )

Severity = Literal["information", "warning", "error"]
_CATCH_UP = 3  # more new rounds than that in one poll are a history being read, not news


@dataclass(frozen=True)
class Note:
    """`n` numbers the notes of a sitting; `at` is the local time of day, for people."""

    text: str
    severity: Severity = "information"
    toast: bool = True
    n: int = 0
    at: str = ""


def run_notes(before: RunState | None, after: RunState) -> Iterator[Note]:
    if before is None or before.manifest is None:
        return
    if after.lost and not before.lost:
        yield Note(f"{'a forged record' if after.halted else 'share lost'}: {text.plain(after.lost)}", "error")
    if before.lost and not after.lost:
        yield Note("the forged record is gone" if before.halted else "share is back")
    if after.trust.forged.count > before.trust.forged.count and not after.halted:
        yield Note(text.plain(after.trust.ignored), "warning")
    if before.polled_at_s is None:  # the first beats: everybody would seem to join
        return
    yield from _learner_notes(before, after)
    yield from _round_notes(before, after)
    yield from _generation_notes(before, after)
    if before.phase_is_certain and after.phase_is_certain and before.phase != after.phase:
        yield from _phase_notes(after)


def home_notes(before: Home | None, after: Home) -> Iterator[Note]:
    """About this machine's jobs."""
    if before is None:
        return
    old = {job.id: job for job in before.jobs}
    for job in after.jobs:
        was = old.get(job.id)
        if was is not None and was.state != job.state:
            yield from _job_notes(job)
        if was is not None and bool(was.trouble) != bool(job.trouble) and job.mailbox not in unread(after):
            name = text.plain(job.run_name, 64)
            if job.trouble:
                yield Note(f"{name} on this machine: {text.plain(job.trouble, 300)}", "error")
            elif job.state in RUNNING_JOB:
                yield Note(f"{name} on this machine goes on")


def unread(home: Home) -> frozenset[str]:
    """Mailboxes that the screen itself cannot read: it says so already."""
    lost = (view for view in home.mailboxes if view.problem or any(run.lost and not run.halted for run in view.runs))
    return frozenset(view.location for view in lost)


def mailbox_notes(before: Home | None, after: Home) -> Iterator[Note]:
    if before is None:
        return
    old = {view.location: view.problem for view in before.mailboxes}
    for view in after.mailboxes:
        was = old.get(view.location)
        if view.problem and was == "":
            yield Note(f"{text.plain(view.location)}: {text.after_place(view.location, view.problem)}", "error")
        elif was and not view.problem:
            yield Note(f"{text.plain(view.location)} is back")


def _learner_notes(before: RunState, after: RunState) -> Iterator[Note]:
    old = {view.learner: view for view in before.learners}
    for view in after.learners:
        was = old.get(view.learner, LearnerView(learner=view.learner))
        if was.state == view.state and was.incarnation == view.incarnation:
            continue
        name = text.plain(view.learner, 64)
        if view.live and view.incarnation > was.incarnation:
            yield Note(f"{name} joined" if was.incarnation == 0 else f"{name} joined again")
        elif view.live and not was.live:
            yield Note(f"{name} is back")
        elif was.live and not view.live and (dropped := after.dropped_by(view)) is not None:
            yield Note(f"{name} was dropped{_by(dropped)}", "warning")
        elif was.live and view.state == "left":
            yield Note(f"{name} left")
        elif was.live and not view.live:
            yield Note(f"{name} silent: no beat for {text.span(view.beat_age_s)}", "warning")


def _round_notes(before: RunState, after: RunState) -> Iterator[Note]:
    count = after.open_round - before.open_round  # only the newest records stay
    if (not before.rounds and count > 1) or count > _CATCH_UP:
        yield Note(f"{text.count(count, 'round')} read", toast=False)
        return
    new = after.rounds[len(after.rounds) - count :]
    evals = {e.round: e for e in after.evals}
    spec = after.manifest.algorithm if after.manifest is not None else DiLoCo()
    records = {r.round: r for r in after.rounds[-count - 1 :]}
    for record in new:
        words = round_closed(record, evals.get(record.round), spec, records.get(record.round - 1))
        yield Note(words, "warning" if record.rejected else "information", toast=False)


def _generation_notes(before: RunState, after: RunState) -> Iterator[Note]:
    """Of a data-parallel job. What is older than what was known is history being read, not news."""
    newest = before.ranks.planned
    first = -1 if newest is None else newest.generation
    known = {g.generation: g for g in before.ranks.generations}
    for g in after.ranks.generations:
        was = known.get(g.generation)
        if g.generation < first or not before.ranks.generations:
            continue
        if g.plan is not None and (was is None or was.plan is None):
            refused = "".join(f"; {text.plain(str(r))}" for r in g.plan.refused[:_CATCH_UP])
            words = f"generation {g.generation} begins with {text.count(len(g.seats), 'rank')}{refused}"
            yield Note(words, "warning" if refused else "information")
        if g.end is not None and g.end.goes_on and (was is None or was.end is None):
            severity: Severity = "information" if g.end.ending == "regroup" else "warning"
            yield Note(f"generation {g.generation} ended, {g.end.ending}: {text.plain(g.end.reason)}", severity)
    last = before.ranks.evals[-1].iteration if before.ranks.evals else -1
    new = [e for e in after.ranks.evals if e.iteration > last]
    if before.ranks.points and len(new) <= _CATCH_UP:
        for e in new:
            what = "validation" if e.part == "valid" else "test"
            yield Note(f"iteration {e.iteration}: {what} {text.loss(e.loss)}", toast=False)


def round_closed(record: RoundRecord, evaluated: EvalRecord | None, spec: Algorithm, before: RoundRecord | None = None) -> str:
    """`before`: the round before it."""
    of = expected(spec, record, [r for r in record.rejected if r.round == record.round], before)
    parts = [f"round {record.round} closed: {len(record.participants)}/{of}"]
    trained = None if private(spec) else train_loss(record)
    if record.version != record.round:
        parts.append("unchanged")
    if trained is not None:
        parts.append(f"train {text.loss(trained)}")
    if evaluated is not None:
        parts.append(f"val {text.loss(evaluated.loss)}")
        if (right := accuracy(evaluated.metrics)) is not None:
            parts.append(f"accuracy {text.loss(right)}")
    if record.reason not in ORDINARY:
        parts.append(text.plain(record.reason))
    rejected = []
    for r in record.rejected:
        earlier = f", round {r.round}" if r.round != record.round else ""
        rejected.append(f"{refusal(r)}{earlier}")
    return "; ".join([", ".join(parts), *rejected])


def _phase_notes(after: RunState) -> Iterator[Note]:
    match after.phase:
        case "running":
            yield Note(f"{text.plain(after.name, 64)} is running")
        case "done":
            at = progress(after)
            came = text.count(after.open_round, "round") if at is None else text.count(at.iteration, "iteration")
            yield Note(f"{text.plain(after.name, 64)} is done: {came}")
        case "stopped":
            yield Note(f"{text.plain(after.name, 64)} was stopped{_by(after.effect.by)}", "warning")
        case "paused":
            yield Note(f"{text.plain(after.name, 64)} is paused{_by(after.effect.by)}", "warning")
        case "idle":
            yield Note(f"{text.plain(after.name, 64)} is idle: no learner is live", "warning")
        case "waiting" | "unknown":
            return


def _by(machine: str) -> str:
    return f" by {text.plain(machine, 64)}" if machine else ""


def _job_notes(job: Job) -> Iterator[Note]:
    who, where = text.plain(job.learner, 64), text.plain(job.run_name, 64)
    match job.state:
        case "running":
            yield Note(f"this machine trains {where} as {who}")
        case "failed":
            yield Note(f"the worker of {where} failed: {text.plain(job.message)}", "error")
        case "dropped":
            yield Note(f"{where}: {text.plain(job.message) or f'{who} was dropped'}", "warning")
        case "done":
            yield Note(f"this machine's job in {where} is done")
        case "left":
            yield Note(f"this machine left {where}")
        case _:
            return
