"""A run's rounds, or a data-parallel job's iterations, as rows of plain values: what people plot. From records alone. Pure."""

from __future__ import annotations

from typing import Any

from swarm.core.participation import mean_metrics
from swarm.core.rankview import job_rows, spec_of
from swarm.core.records import EvalRecord, Participant, Rejected, RoundRecord
from swarm.core.sentences import plain
from swarm.core.series import longest_s
from swarm.core.specs import Algorithm, private
from swarm.core.state import RunState, train_loss


def rows(state: RunState) -> list[dict[str, Any]]:
    """One for each round, all with the same columns: counts and losses, the evaluation's metrics under their names, those of
    training as `train_…`, waits and seconds, and who took part. What is not known is None. Of a data-parallel job one for each
    iteration that was reported."""
    if state.manifest is None:
        return []
    if spec_of(state) is not None:
        return job_rows(state)
    spec = state.manifest.algorithm
    evals = {e.round: e for e in state.evals}
    trained = [{} if private(spec) else mean_metrics(r.participants) for r in state.rounds]
    names = sorted({name for e in state.evals for name in e.metrics})
    train_names = sorted({name for each in trained for name in each})
    found = []
    for record, means in zip(state.rounds, trained, strict=True):
        evaluated = evals.get(record.round)
        row = _row(spec, record, evaluated)
        metrics = evaluated.metrics if evaluated is not None else {}
        more = {name: metrics.get(name) for name in names} | {f"train_{name}": means.get(name) for name in train_names}
        # A task may call its metrics as it likes.
        found.append(row | {(f"metric_{name}" if name in row else plain(name)): value for name, value in more.items()})
    return found


def nested(state: RunState) -> list[dict[str, Any]]:
    """As `rows`, with every participant, and everything that was rejected, as an object of its own."""
    spec = state.manifest.algorithm if state.manifest is not None else None
    if spec is None:
        return []
    if spec_of(state) is not None:  # whose rows hold nothing to nest
        return job_rows(state)
    return [
        row
        | {
            "participants": [participant(p, spec) for p in record.participants],
            "rejected": [refused(r) for r in record.rejected],
        }
        for row, record in zip(rows(state), state.rounds, strict=True)
    ]


def participant(p: Participant, spec: Algorithm) -> dict[str, Any]:
    counts = {"unit": p.unit, "learner": p.learner, spec.weight_unit: p.tokens}
    if private(spec):
        return counts
    return counts | {"steps": p.steps, "train_loss": p.train_loss, "seconds_s": p.seconds_s, "metrics": p.metrics}


def refused(r: Rejected) -> dict[str, Any]:
    return {"unit": r.unit, "learner": r.learner, "reason": r.reason, "round": r.round, "differs": r.differs}


def _row(spec: Algorithm, record: RoundRecord, evaluated: EvalRecord | None) -> dict[str, Any]:
    parts, hidden = record.participants, private(spec)
    return {
        "round": record.round,
        "participants": len(parts),
        spec.weight_unit: sum(p.tokens for p in parts),
        "train_loss": None if hidden else train_loss(record),
        "val_loss": evaluated.loss if evaluated else None,
        "evaluated_by": evaluated.learner if evaluated else None,
        "changed": record.version == record.round,
        "rejected": len(record.rejected),
        "reason": plain(record.reason, 200),
        "train_s": None if hidden else longest_s(parts),
        "waited_s": record.waited_s,
        "close_s": record.close_s,
        "sent_bytes": sum(p.size_bytes for p in parts),
        "closer": record.closer,
        "units": " ".join(p.unit for p in parts),
        "learners": " ".join(dict.fromkeys(p.learner for p in parts)),
    }
