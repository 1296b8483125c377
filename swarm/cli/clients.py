"""What `swarm status` says of FedAvg's clients, and of a classifier: nothing for other runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swarm import api
from swarm.cli.common import table
from swarm.cli.words import heard
from swarm.core.sentences import counted, number, plain

ROWS = 100  # clients of a large run that are listed, those of the open round and the last ones to train first
WIDTH = 80


def evaluation_lines(state: api.RunState) -> Iterator[str]:
    """The newest evaluation, if the task tells an accuracy."""
    newest = state.evals[-1] if state.evals else None
    if newest is None or state.manifest is None or api.accuracy(newest.metrics) is None:
        return
    metrics = plain("  ".join(f"{plain(name)} {number(value)}" for name, value in newest.metrics.items()), 300)
    whose = plain(api.labelled(newest, state.manifest.algorithm), 200)
    yield f"{metrics}  val {number(newest.loss)}  round {newest.round}, {whose}"


def table_lines(state: api.RunState) -> Iterator[str]:
    """Each client's part in the rounds, and who trains it now."""
    if state.manifest is None or not state.clients:
        return
    spec, every = state.manifest.algorithm, state.clients
    shown = sorted(every, key=lambda c: (not c.doing, -(c.tally.round if c.tally else -1), c.client))[:ROWS]
    wide = not api.private(spec)
    there = bool(heard(state))
    graded = any(c.tally is not None and api.accuracy(c.tally.last.metrics) is not None for c in every)
    rows = [_row(c, wide=wide, graded=graded, there=there) for c in sorted(shown, key=lambda c: c.client)]
    more = ("LOSS", *(("ACC",) if graded else ()), "SECONDS") if wide else ()
    yield table(("CLIENT", "ROUNDS", "SAMPLES", *more, "LAST BY", "NOW"), rows)
    if len(every) > len(shown):
        yield f"and {counted(len(every) - len(shown), 'client')} more: --json lists them"


def _row(c: api.ClientView, *, wide: bool, graded: bool, there: bool) -> tuple[str, ...]:
    last = c.tally.last if c.tally else None
    figures = (
        number(last.train_loss if last else None),
        *((number(api.accuracy(last.metrics) if last else None),) if graded else ()),
        number(last.seconds_s if last else None, 1),
    )
    doing = "silent" if c.doing == "training" and not there else c.doing
    by = f" ({c.by})" if c.by and c.by != c.client else ""
    return (
        c.client,
        str(c.rounds),
        "–" if c.samples is None else f"{c.samples:,}",
        *(figures if wide else ()),
        last.learner if last else "–",
        f"{doing}{by}",
    )


def confusion_lines(state: api.RunState) -> Iterator[str]:
    """The last one that an evaluation made, as a table of at most 80 columns."""
    newest = next((e for e in reversed(state.evals) if e.confusion), None)
    if newest is not None:
        yield f"confusion of round {newest.round} (rows: labels, columns: answers):"
        yield from api.confusion_lines(newest.confusion, width=WIDTH)


def objects(state: api.RunState, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """More of the object for --json; `rounds`: those of its history, which are told of more, too."""
    spec = state.manifest.algorithm if state.manifest is not None else None
    evals = {e.round: e for e in state.evals}
    for told in rounds:
        if (evaluated := evals.get(told["round"])) is not None and evaluated.metrics:
            told |= {"metrics": evaluated.metrics, "evaluated_by": evaluated.learner}
    found: dict[str, Any] = {}
    if (newest := next((e for e in reversed(state.evals) if e.confusion), None)) is not None:
        found["confusion"] = {"round": newest.round, "labels_by_answers": newest.confusion}
    if not isinstance(spec, api.FedAvg):
        return found
    for told, row in zip(rounds, api.nested_history(state), strict=True):
        told |= {
            "clients": row["participants"],
            "rejected": row["rejected"],
            "reason": row["reason"],
            "waited_s": row["waited_s"],
            "close_s": row["close_s"],
        }
    return found | {"buffers": spec.buffers, "clients": [_object(c, spec) for c in state.clients]}


def _object(c: api.ClientView, spec: api.FedAvg) -> dict[str, Any]:
    last = None if c.tally is None else c.tally.last
    seen: dict[str, Any] = {}
    if last is not None and not api.private(spec):
        seen = {"train_loss": last.train_loss, "metrics": last.metrics, "seconds_s": last.seconds_s}
    return {
        "client": c.client,
        "rounds": c.rounds,
        "last_round": None if c.tally is None else c.tally.round,
        "samples": c.samples,
        "learner": None if last is None else last.learner,
        "now": c.doing or None,
        "by": c.by or None,
        **seen,
    }
