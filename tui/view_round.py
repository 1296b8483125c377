"""What the Round screen says of one closed round: values in, lines out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from swarm.api import (
    ORDINARY,
    REASONS,
    DiLoCo,
    FedAvg,
    confusion_lines,
    expected,
    labelled,
    longest_s,
    mean_metrics,
    private,
    refusal,
    train_loss,
)
from tui import text
from tui.view_rounds import cosine_text, mean_cosine
from tui.widgets.table import Cell, Column, fit_columns

if TYPE_CHECKING:
    from swarm.api import (
        Algorithm,
        ClosedRound,
        EvalRecord,
        Participant,
        RoundRecord,
        RunState,
    )
    from tui.widgets.toned import Line, Piece

SHOWN = 500  # participants, and as many rejected
METRICS = 20  # shown of each kind
_SAMPLE_LINES = 40
_GRID = 48  # cells of all columns that grow, at most: figures far from what they belong to are hard to read
_COLUMNS = (
    Column("learner", 12, grow=True),
    Column("by", 10, rank=2, grow=True),
    Column("weight", 6, right=True),
    Column("tokens", 7, rank=3, right=True),
    Column("steps", 6, rank=5, right=True),
    Column("loss", 6, rank=1, right=True),
    Column("took", 6, rank=4, right=True),
    Column("rate", 6, rank=8, right=True),
    Column("payload", 7, rank=6, right=True),
    Column("Δ norm", 8, rank=9, right=True),
    Column("cos", 5, rank=7, right=True),
)


def grid(columns: tuple[Column, ...], rows: Iterable[tuple[Cell, ...]], *, width: int) -> Iterator[Line]:
    """A heading and lines in columns, of which those stay that find room."""
    kept = fit_columns(columns, min(width - 2, _GRID + sum(c.width + 2 for c in columns if not c.grow)))
    yield tuple(_cells([Cell(c.title, "dim") for c in columns], columns, kept))
    for row in rows:
        yield tuple(_cells(row, columns, kept))


def _cells(row: Iterable[Cell], columns: tuple[Column, ...], kept: tuple[tuple[int, int], ...]) -> Iterator[Piece]:
    cells = tuple(row)
    for c, width in kept:
        yield ("  ", "")
        yield (text.fit(cells[c].text, width, right=columns[c].right), cells[c].tone)


def heading(spec: Algorithm, found: ClosedRound) -> Line:
    """How many counted, of which fragment, and whether it changed anything."""
    record = found.record
    taken, of = len(record.participants), expected(spec, record, found.refused, found.before)
    unchanged = record.version != record.round
    mark, tone = ("✗", "bad") if unchanged else ("◐", "warn") if of > taken else ("✓", "good")
    fragment = f"  fragment {record.fragment} of {spec.fragments}" if isinstance(spec, DiLoCo) and spec.fragments > 1 else ""
    version = "the beginning" if record.version < 0 else f"r{record.version}"
    return (
        (f"{mark} {taken}/{of}", tone),
        (fragment, ""),
        (f"  step {record.step:,}", ""),
        (f"  unchanged: Θ is that of {version}" if unchanged else f"  version {record.version}", "bad" if unchanged else "dim"),
    )


def round_lines(state: RunState, found: ClosedRound, *, width: int) -> Iterator[Line]:
    if state.manifest is None:
        return
    spec, record = state.manifest.algorithm, found.record
    hidden = private(spec)
    yield heading(spec, found)
    yield from _closing(record)
    yield from _payloads(record)
    yield ()
    yield from _participants(spec, record, width=width, hidden=hidden)
    yield from _rejected(found)
    yield ()
    yield from evaluation_lines(spec, found.evaluated, width=width)


def _closing(record: RoundRecord) -> Iterator[Line]:
    why = text.plain(record.reason) or "it does not say why"
    yield (
        ("closed   ", "dim"),
        (f"by {text.plain(record.closer, 64) or 'nobody who said so'}: ", ""),
        (why, "" if record.reason in ORDINARY else "warn"),
    )
    yield (
        ("waited   ", "dim"),
        (f"{text.span(record.waited_s)} from the first snapshot on,", ""),
        (f" {text.span(record.quorum_waited_s)} of it from the quorum to the last one", "dim"),
    )
    trained_s = longest_s(record.participants)
    yield (
        ("took     ", "dim"),
        (f"{text.span(trained_s)} of training at most, {text.span(record.close_s)} to read, merge and write", ""),
    )
    if record.control:
        yield (("control  ", "dim"), (f"{text.count(record.control, 'command')} in effect from here on", ""))


def _payloads(record: RoundRecord) -> Iterator[Line]:
    words = []
    for name, ref in (("theta", record.theta), ("outer state", record.outer), ("update", record.update)):
        if ref is not None:
            earlier = "" if ref.round == record.round else f" of {'the beginning' if ref.round < 0 else f'r{ref.round}'}"
            words.append(f"{name} {text.size(ref.size_bytes)}{earlier}")
    sent_bytes = sum(p.size_bytes for p in record.participants)
    yield (("payloads ", "dim"), ("  ".join(words), ""), (f"  snapshots ↑{text.size(sent_bytes)}", ""))


def _participants(spec: Algorithm, record: RoundRecord, *, width: int, hidden: bool) -> Iterator[Line]:
    """`hidden`: of the participants' data only counts are shown."""
    parts = record.participants
    mean = None if hidden else train_loss(record)
    agree = mean_cosine(record)
    yield (
        (f"Participants {len(parts)}", "strong"),
        ("" if mean is None else f"  training loss {text.loss(mean)}", ""),
        ("" if agree is None else f"  mean cosine {cosine_text(agree)}", ""),
        ("" if hidden else _metrics(mean_metrics(parts)), "dim"),
    )
    if not parts:
        return
    total = sum(p.weight for p in parts)
    names = () if hidden else sorted({name for p in parts for name in p.metrics})[:METRICS]
    metrics = tuple(Column(text.plain(n, 12), 8, rank=10 + i, right=True) for i, n in enumerate(names))
    columns = tuple(
        c
        for c in _columns(spec)
        if (c.title != "by" or any(p.unit != p.learner for p in parts))
        and (c.title != "Δ norm" or any(p.delta_norm is not None for p in parts))
        and (c.title != "cos" or agree is not None)
    )
    shown = sorted(parts, key=lambda p: -p.weight)[:SHOWN]
    rows = (
        (*_participant(p, total, columns, hidden=hidden), *(Cell(text.loss(p.metrics.get(name))) for name in names))
        for p in shown
    )
    yield from grid((*columns, *metrics), rows, width=width)
    if len(parts) > SHOWN:
        yield ((f"  and {len(parts) - SHOWN} more", "dim"),)


def _columns(spec: Algorithm) -> tuple[Column, ...]:
    federated = isinstance(spec, FedAvg)
    unit = "client" if federated else "learner"
    work = "samples" if federated or spec.weight_unit == "samples" else "tokens"
    names = {"learner": unit, "tokens": work, "rate": "smp/s" if work == "samples" else "tok/s"}
    return tuple(Column(**{**vars(c), "title": names.get(c.title, c.title)}) for c in _COLUMNS)


def _participant(p: Participant, total: float, columns: tuple[Column, ...], *, hidden: bool) -> tuple[Cell, ...]:
    seen = not hidden
    cells = {
        "by": Cell(text.plain(p.learner, 64), "dim"),
        "weight": Cell(weight_text(p.weight, total)),
        "steps": Cell(f"{p.steps:,}"),
        "loss": Cell(text.loss(p.train_loss) if seen else text.NONE),
        "took": Cell(text.span(p.seconds_s) if seen else text.NONE),
        "payload": Cell(text.size(p.size_bytes)),
        "Δ norm": Cell(text.NONE if p.delta_norm is None else f"{p.delta_norm:.3g}"),
        "cos": Cell(cosine_text(p.cosine)),
    }
    work, speed = Cell(text.short(p.tokens)), Cell(text.short(p.tokens / p.seconds_s) if p.seconds_s and seen else text.NONE)
    of_unit = {"learner": Cell(text.plain(p.unit, 64)), "client": Cell(text.plain(p.unit, 64))}
    of_work = {"tokens": work, "samples": work, "tok/s": speed, "smp/s": speed}
    every = {**of_unit, **of_work, **cells}
    return tuple(every[c.title] for c in columns)


def weight_text(weight: float, total: float) -> str:
    """A participant's part of the merge: '40 %'; weights alone say nothing."""
    return f"{100 * weight / total:.0f} %" if total > 0 else text.NONE


def _rejected(found: ClosedRound) -> Iterator[Line]:
    record = found.record
    earlier = [r for r in record.rejected if r.round != record.round]
    if found.refused:
        yield ()
        yield ((f"Rejected {len(found.refused)}", "strong"),)
        for r in found.refused[:SHOWN]:
            yield ((f"  ✗ {refusal(r)}", "warn"),)
        if len(found.refused) > SHOWN:
            yield ((f"  and {len(found.refused) - SHOWN} more", "dim"),)
    if earlier:
        yield ()
        yield (("Listed here, of earlier rounds", "strong"),)
        for r in earlier[:SHOWN]:
            yield ((f"  r{r.round}  {text.plain(r.unit, 64)}: {REASONS[r.reason]}", "dim"),)


def evaluation_lines(spec: Algorithm, evaluated: EvalRecord | None, *, width: int) -> Iterator[Line]:
    """What the round's model was worth: loss, metrics, the confusion of a classifier, and what a language model wrote."""
    if evaluated is None:
        yield (("Evaluation", "strong"), ("  none yet, or none was asked for", "dim"))
        return
    took = f", in {text.span(evaluated.seconds_s)}" if evaluated.seconds_s else ""
    yield (("Evaluation", "strong"), (f"  {text.plain(labelled(evaluated, spec), 120)}{took}", "dim"))
    loss = "not finite: the model has diverged" if evaluated.loss is None else text.loss(evaluated.loss)
    yield ((f"  loss {loss}", "bad" if evaluated.loss is None else ""), (_metrics(evaluated.metrics), ""))
    if evaluated.confusion:
        yield (("  Confusion", "strong"), ("  rows: labels, columns: answers", "dim"))
        for line in confusion_lines(evaluated.confusion, width=max(20, width - 4)):
            yield ((f"    {line}", ""),)
    if evaluated.sample:
        yield (("  Sample", "strong"),)
        for line in sample_lines(evaluated.sample, width=width - 4, most=_SAMPLE_LINES):
            yield (("  │ ", "accent"), (line, ""))


def _metrics(metrics: dict[str, float]) -> str:
    return "".join(f"  {text.plain(name, 40)} {text.loss(value)}" for name, value in list(metrics.items())[:METRICS])


def sample_lines(sample: str, *, width: int, most: int) -> Iterator[str]:
    """What a model wrote, line by line, folded at `width` characters and made harmless; at most `most` lines."""
    given = 0
    for line in sample[: most * max(width, 1)].rstrip().split("\n"):
        words = text.plain(line, len(line) + 1)
        for at in range(0, max(len(words), 1), max(width, 1)):
            if given == most:
                yield "…"
                return
            given += 1
            yield words[at : at + max(width, 1)]
