"""What the Run screen says of FedAvg's clients, and of a classifier's evaluations: values in, words out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from swarm.api import (
    ORDINARY,
    FedAvg,
    accuracy,
    confusion_lines,
    labelled,
    private,
    refusal,
    train_loss,
)
from tui import text
from tui.widgets.table import Cell, Column, Row

if TYPE_CHECKING:
    from swarm.api import (
        ClientView,
        RunState,
    )
    from tui.messages import RunShown
    from tui.widgets.toned import Line

CLIENT_COLUMNS = (
    Column("client", 12, grow=True),
    Column("now", 10),
    Column("by", 12, rank=2, grow=True),
    Column("rounds", 6, rank=1, right=True, descending=True),
    Column("samples", 7, rank=1, right=True, descending=True),
    Column("loss", 6, rank=3, right=True),
    Column("acc", 5, rank=4, right=True, descending=True),
    Column("took", 6, rank=6, right=True, descending=True),
    Column("last round", 10, rank=7, right=True, descending=True),
)
SHOWN = 200  # of many: those of the open round, and the last ones to train
_PAGE_WIDTH = 94  # cells of a page's lines on a wide screen
_DOING = {
    "": ("", ""),
    "waiting": ("◌ waiting", ""),
    "training": ("● training", "good"),
    "silent": ("? silent", "bad"),
    "reported": ("✓ reported", "accent"),
}


def federated(state: RunState) -> bool:
    return state.manifest is not None and isinstance(state.manifest.algorithm, FedAvg)


def client_rows(shown: RunShown) -> tuple[Row, ...]:
    """The clients of the open round, then the others."""
    state = shown.state
    if state.manifest is None:
        return ()
    hidden = private(state.manifest.algorithm)
    every = state.clients
    newest = sorted(every, key=lambda c: (not c.doing, -(c.tally.round if c.tally else -1), c.client))[:SHOWN]
    return tuple(_row(c, hidden=hidden) for c in sorted(newest, key=lambda c: (not c.doing, c.client)))


def _row(c: ClientView, *, hidden: bool) -> Row:
    """`hidden`: of a private client only counts are shown."""
    last = None if c.tally is None else c.tally.last
    seen = None if hidden else last
    right = accuracy(seen.metrics) if seen else None
    words, tone = _DOING[c.doing]
    by = c.by if c.doing else last.learner if last is not None else ""
    return Row(
        key=c.client,
        quiet=not c.doing,
        cells=(
            Cell(text.plain(c.client, 64), "strong" if c.doing else ""),
            Cell(words, tone),
            Cell(text.plain(by, 64) or text.NONE),
            Cell(str(c.rounds), order=float(c.rounds)),
            Cell(text.NONE if c.samples is None else f"{c.samples}", order="" if c.samples is None else float(c.samples)),
            Cell(text.loss(seen.train_loss if seen else None), order=_order(seen.train_loss if seen else None)),
            Cell(text.loss(right), order=_order(right)),
            Cell(text.span(seen.seconds_s) if seen else text.NONE, order=seen.seconds_s if seen else ""),
            Cell(f"r{c.tally.round}" if c.tally else text.NONE, order=float(c.tally.round) if c.tally else ""),
        ),
    )


def _order(value: float | None) -> float | str:
    return "" if value is None else value


def details(state: RunState) -> Iterator[Line]:
    """The last round: who took part and why it closed, and what the newest evaluation found."""
    if state.manifest is None or not state.rounds:
        yield (("no round has closed yet", "dim"),)
        return
    spec, record = state.manifest.algorithm, state.rounds[-1]
    hidden, wide = private(spec), max([8, *(len(p.unit) for p in record.participants)])
    changed = "" if record.version == record.round else ", unchanged"
    yield ((f"Round {record.round}{changed}", "strong"), (f"  closed by {text.plain(record.closer, 64) or text.NONE}", "dim"))
    if record.reason:
        yield ((f"  {text.plain(record.reason)}", "dim" if record.reason in ORDINARY else "warn"),)
    yield ((f"  waited {text.span(record.waited_s)}, merged in {text.span(record.close_s)}", "dim"),)
    for p in record.participants:
        right = accuracy(p.metrics)
        graded = "" if right is None else f"  acc {text.loss(right)}"
        seen = "" if hidden else f"  loss {text.loss(p.train_loss)}{graded}  {text.span(p.seconds_s):>6}"
        by = f"  {text.plain(p.learner, 64)}" if p.learner != p.unit else ""
        yield ((f"  {text.fit(p.unit, min(wide, 40))}", ""), (f"  {p.tokens:>7} {spec.weight_unit}{seen}{by}", "dim"))
    for r in record.rejected:
        yield ((f"  {refusal(r)}", "warn"),)
    mean = None if hidden else train_loss(record)
    if mean is not None:
        yield ((f"  training loss {text.loss(mean)}", ""),)
    newest = state.evals[-1] if state.evals else None
    if newest is None:
        return
    yield ()
    yield ((f"Evaluation of round {newest.round}", "strong"), (f"  {text.plain(labelled(newest, spec), 120)}", "dim"))
    yield ((f"  loss {text.loss(newest.loss)}", ""),)
    for name, value in newest.metrics.items():
        yield ((f"  {text.plain(name, 40)} {text.loss(value)}", ""),)
    confused = next((e for e in reversed(state.evals) if e.confusion), None)
    if confused is not None:
        yield ()
        yield ((f"Confusion of round {confused.round}", "strong"), ("  rows: labels, columns: answers", "dim"))
        for line in confusion_lines(confused.confusion, width=_PAGE_WIDTH - 2):
            yield ((f"  {line}", ""),)
