"""Which curves a run has, and what a plot shows of them. Values in, values out. Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from swarm.api import (
    Curve,
    FineTune,
    longest_s,
    mean_metrics,
    measured,
    private,
    steps_made,
)
from tui import text
from tui.plotting import GLYPHS, Chart, Trace

if TYPE_CHECKING:
    from swarm.api import (
        Figure,
        RoundRecord,
        RunState,
        TrainPoint,
    )
    from tui.plotting import Kind, Point

Axis: TypeAlias = Literal["rounds", "steps", "time"]
AXES: tuple[Axis, ...] = ("rounds", "steps", "time")
MOST = 6  # curves laid over one another
LOSSES = ("loss", "perplexity")  # what evaluations always tell
_LAST_ROUNDS = (None, 100, 20)  # by number of the window
_LAST_ITERATIONS = (None, 1000, 200)  # of a data-parallel job: a report comes every ten, as a rule
_LAST_S = (None, 3600.0, 600.0)
_SPANS = ("all", "last hour", "last 10 min")
_ENDLESS = 1e300  # what a peer may write, too, and no axis can hold
_MEASURED = "metric "  # before a name that a task gave: it may be called as ours are


@dataclass(frozen=True)
class PlotView:
    """How a plot is looked at. It outlives what is drawn: a run that has no such metric shows its first one."""

    metric: str = ""  # key of one; '': the run's first
    axis: Axis = "rounds"
    log: bool = False
    window: int = 0  # 0: all; 1 and 2: the newest part
    each: bool = False  # every learner's curve, and not their mean

    def turned(self) -> PlotView:
        """With the next horizontal axis."""
        return replace(self, axis=AXES[(AXES.index(self.axis) + 1) % len(AXES)])

    def nearer(self) -> PlotView:
        """With the next window."""
        return replace(self, window=(self.window + 1) % len(_SPANS))


@dataclass(frozen=True)
class Metric:
    key: str
    name: str  # harmless already
    kind: Kind = "figure"
    figure: Figure | None = None  # of round records
    measured: str = ""  # as the task calls what it measured
    short: str = ""  # for a few cells


def metrics(state: RunState) -> tuple[Metric, ...]:
    """Those that this run has, the one that is shown first in front."""
    found = _job_metrics(state) if is_job(state) else _round_metrics(state)
    graded = next((m for m in found if m.measured == "accuracy"), None)
    return found if graded is None else (graded, *(m for m in found if m is not graded))


def _round_metrics(state: RunState) -> tuple[Metric, ...]:
    series = state.series
    found = [Metric("loss", "Loss", figure="train", short="loss")]
    named = {*series.metrics, *(name for e in state.evals for name in e.metrics)}
    if any(e.sample for e in state.evals):  # a language model
        found.append(Metric("perplexity", "Perplexity", figure="train", short="ppl"))
        named.discard("perplexity")  # which tells the same, and nothing of training
    for name in sorted(named):
        told = text.plain(name, 24) or "metric"
        short = "acc" if name == "accuracy" else told[:6]
        found.append(Metric(_MEASURED + name, told[:1].upper() + told[1:], measured=name, short=short))
    work = state.manifest.algorithm.weight_unit if state.manifest is not None else "tokens"
    figures = (
        Metric("cosine", "Cosine", figure="cosine", short="cos"),
        Metric("rate", f"{work.capitalize()}/s", "rate", figure="rate", short="tok/s" if work == "tokens" else "smp/s"),
        Metric("seconds", "Round time", "seconds", figure="seconds", short="round"),
        Metric("sent", "Bytes per round", "bytes", figure="sent", short="sent"),
    )
    return (*found, *(m for m in figures if m.figure is not None and series.of(m.figure).rounds))


def _job_metrics(state: RunState) -> tuple[Metric, ...]:
    found = [Metric("loss", "Loss", short="loss"), Metric("perplexity", "Perplexity", short="ppl")]
    if state.ranks.points:
        found += [Metric("rate", "Tokens/s", "rate", short="tok/s"), Metric("learning rate", "Learning rate", short="lr")]
    return tuple(found)


def chosen(every: Sequence[Metric], view: PlotView) -> Metric:
    """The one of `every` that `view` shows."""
    return next((m for m in every if m.key == view.metric), every[0])


def after(every: Sequence[Metric], view: PlotView) -> PlotView:
    """With the metric that comes after the one that is shown."""
    at = every.index(chosen(every, view))
    return replace(view, metric=every[(at + 1) % len(every)].key)


def can_overlay(state: RunState) -> bool:
    """Whether anything is known of each learner: of private clients it is not, and the ranks of a job have one loss."""
    return not is_job(state) and not _hidden(state) and len(state.series.took_part) > 1


def overlaid(state: RunState, selected: str = "") -> tuple[tuple[str, ...], int]:
    """(the learners whose curves are laid over one another: the selected one and the most active, by name; how many more there
    are)."""
    counts = state.series.took_part
    live = {v.learner for v in state.live}
    active = sorted(counts, key=lambda name: (name != selected, -counts[name], name not in live, name))
    return tuple(sorted(active[:MOST])), len(active[MOST:])


def chart(state: RunState, view: PlotView, *, selected: str = "") -> Chart:
    """`selected`: the learner that is drawn in any case, where each one is."""
    metric, part = chosen(metrics(state), view), Part(state, view)
    if not (view.each and can_overlay(state)):
        return charted(metric, view, of_all(part, metric), (part,))
    names, more = overlaid(state, selected)
    traces = [
        Trace(text.plain(name, 40), part.points(part.trained(metric, name)), GLYPHS[n], color=n, first=name == selected)
        for n, name in enumerate(names)
    ]
    notes = [f"{text.count(more, 'learner')} more"] if more else []
    if metric.figure != "train" and state.rounds and state.rounds[0].round > 0:
        notes.append(f"since r{state.rounds[0].round}")  # of each learner, only its loss is known for longer
    return charted(metric, view, traces, (part,), title=f"{metric.name} of each", notes=notes, legend=True)


def of_all(part: Part, metric: Metric) -> list[Trace]:
    """A whole run's curves: what training tells, and evaluations."""
    train, evaluated = part.points(part.trained(metric)), part.evaluated(metric)
    graded = metric.key in LOSSES
    if evaluated is None:
        return [Trace("train" if metric.measured else "", train)]
    if not train:  # nothing but evaluations: joined by a line they tell more
        return [Trace("validation" if graded else "", part.points(evaluated), color=1)]
    return [Trace("train", train), Trace("validation", part.points(evaluated), mark="×", line=False, color=1)]


def charted(
    metric: Metric,
    view: PlotView,
    traces: Iterable[Trace],
    parts: Sequence[Part],
    *,
    title: str = "",
    notes: Iterable[str] = (),
    legend: bool = False,
) -> Chart:
    """`parts`: of the runs that are drawn; the first one names what all have in common."""
    state, window = parts[0].state, parts[0].window
    shown, gone = _positive(traces) if view.log else (tuple(traces), 0)
    missed = sum(part.missed for part in parts)
    if gone:
        why = "no value above 0, as a logarithmic axis needs it"
    elif missed:
        why = "no value is finite"
    elif any(part.outside for part in parts):
        why = f"nothing in the {window}"
    elif any(part.state.open_round or part.state.ranks.points for part in parts):
        why = "nothing was measured yet"
    else:
        why = "nothing was reported yet" if is_job(state) else "no round has closed yet"
    told = (
        f"by {_axis_words(state, view.axis)}",
        window,
        *(("log",) if view.log else ()),
        *notes,
        *((f"{gone} not above 0",) if gone else ()),
        *((f"{missed} not finite",) if missed else ()),
    )
    return Chart(
        title=title or metric.name,
        traces=shown,
        kind=metric.kind,
        across="seconds" if view.axis == "time" else "count",
        unit={"rounds": unit(state), "steps": "step", "time": "time"}[view.axis],
        log=view.log,
        short=metric.short,
        notes=told,
        flags=(*(("log",) if view.log else ()), *((window,) if view.window else ())),
        legend=legend,
        empty=f"{metric.name.lower()}: {why}",
    )


def _positive(traces: Iterable[Trace]) -> tuple[tuple[Trace, ...], int]:
    """What a logarithmic axis can show, and how many values it cannot."""
    every = tuple(traces)
    kept = tuple(replace(t, points=tuple(p for p in t.points if p[1] > 0)) for t in every)
    return kept, sum(len(t.points) for t in every) - sum(len(t.points) for t in kept)


def unit(state: RunState) -> str:
    return "iteration" if is_job(state) else "round"


def _axis_words(state: RunState, axis: Axis) -> str:
    """With what its time is made of."""
    match axis:
        case "rounds":
            return f"{unit(state)}s"
        case "steps":
            return "steps" if is_job(state) else "inner steps"
        case "time":
            return "time in training" if is_job(state) else "time in rounds"


def is_job(state: RunState) -> bool:
    """Whether it is a data-parallel one, of iterations and not of rounds."""
    return state.manifest is not None and isinstance(state.manifest.algorithm, FineTune)


def _hidden(state: RunState) -> bool:
    return state.manifest is not None and private(state.manifest.algorithm)


class Part:
    """What of a run is in the window, and where it lies on the horizontal axis."""

    def __init__(self, state: RunState, view: PlotView) -> None:
        self.state, self._axis, self._zoomed = state, view.axis, view.window > 0
        self.missed = 0  # evaluations that are not finite
        self.outside = 0  # values that lie before the window
        self._at = self._scale()
        self._from_n, self._from_x = -math.inf, -math.inf
        self.window = _SPANS[view.window]
        if view.axis == "time":
            span_s = _LAST_S[view.window]
            if span_s is not None and self._at:
                self._from_x = self._at[-1][1] - span_s
        elif (most := (_LAST_ITERATIONS if is_job(state) else _LAST_ROUNDS)[view.window]) is not None:
            self.window = f"last {most} {unit(state)}s"
            points = state.ranks.points
            newest = (points[-1].iteration if points else 0) if is_job(state) else state.open_round - 1
            self._from_n = newest - most + 1

    def points(self, values: Iterable[tuple[int, float]]) -> tuple[Point, ...]:
        """Where values by round or iteration lie, of those in the window."""
        found = []
        for n, value in values:
            x = self._x(n)
            if x is not None and abs(x) < _ENDLESS and n >= self._from_n and x >= self._from_x:
                found.append((x, value))
            else:
                self.outside += 1
        return tuple(found)

    def trained(self, metric: Metric, learner: str = "") -> list[tuple[int, float]]:
        """What training tells, by round or iteration; of one learner if it is named."""
        if is_job(self.state):
            return [(p.iteration, v) for p in self.state.ranks.points if (v := _reported(metric, p)) is not None]
        series = self.state.series
        if learner:
            curve = series.learners.get(learner, Curve()) if metric.figure == "train" else Curve()
        elif metric.measured:
            curve = series.metrics.get(metric.measured, Curve())
        else:
            curve = series.of(metric.figure or "train")
        found = _pairs(curve)
        # A long run's curve has not every round: where they are looked at closely, the newest records tell.
        if (self._zoomed and curve.stride > 1) or (learner and metric.figure != "train"):
            newest = [(r.round, v) for r in self.state.rounds if (v := self._told(metric, r, learner)) is not None]
            found = [pair for pair in found if not newest or pair[0] < newest[0][0]] + newest
        return [(n, v) for n, each in found if (v := _shown(metric, each)) is not None]

    def _told(self, metric: Metric, record: RoundRecord, learner: str) -> float | None:
        parts = [p for p in record.participants if not learner or p.learner == learner]
        if metric.measured:
            return mean_metrics(parts).get(metric.measured)
        # A learner's own time ends with its training: closing is everybody's.
        return measured(metric.figure or "train", parts, close_s=0.0 if learner else record.close_s)

    def evaluated(self, metric: Metric) -> list[tuple[int, float]] | None:
        """What evaluations tell, by round or iteration; None if they never tell of this metric."""
        every: list[tuple[int, float | None]]
        if is_job(self.state) and metric.key in LOSSES:
            every = [(e.iteration, e.loss) for e in self.state.ranks.evals if e.part == "valid"]
        elif metric.key in LOSSES:
            every = [(e.round, e.loss) for e in self.state.evals]
        else:
            every = [(e.round, e.metrics[metric.measured]) for e in self.state.evals if metric.measured in e.metrics]
            if not every:
                return None
        found = [(n, v) for n, each in every if each is not None and (v := _shown(metric, each)) is not None]
        drawn = {n for n, _ in found}
        self.missed += len(self.points((n, 0.0) for n, _ in every if n not in drawn))
        return found

    def _x(self, n: int) -> float | None:
        """Where the end of a round or an iteration lies; between those that are known, in proportion."""
        if self._axis == "rounds":
            return float(n)
        if not self._at:
            return None
        at = bisect.bisect_left(self._at, n, key=lambda pair: pair[0])
        if at == len(self._at):  # evaluated before its report was read
            return self._at[-1][1]
        (before, start), (behind, end) = self._at[at - 1] if at else (-1, 0.0), self._at[at]
        return start + (end - start) * (n - before) / (behind - before)

    def _scale(self) -> list[tuple[int, float]]:
        """(round or iteration, steps or seconds up to its end)."""
        if self._axis == "rounds":
            return []
        return self._job_scale() if is_job(self.state) else self._round_scale()

    def _round_scale(self) -> list[tuple[int, float]]:
        series, steps = self.state.series, self._axis == "steps"
        curve = series.steps if steps else series.elapsed
        found = _pairs(curve)
        if not self._zoomed or curve.stride == 1:
            return found
        newest: list[tuple[int, float]] = []  # exactly, counted back from the last round
        total = found[-1][1]
        for record in reversed(self.state.rounds):
            newest.append((record.round, total))
            total -= steps_made(record.participants) if steps else longest_s(record.participants) + record.close_s
        return [pair for pair in found if not newest or pair[0] < newest[-1][0]] + newest[::-1]

    def _job_scale(self) -> list[tuple[int, float]]:
        points = self.state.ranks.points
        if self._axis == "steps":
            return [(p.iteration, float(p.step)) for p in points]
        found, tokens, seconds_s = [], 0, 0.0
        for point in points:
            if point.tokens_per_s > 0:
                seconds_s += max(0, point.trained_tokens - tokens) / point.tokens_per_s
            tokens = point.trained_tokens
            found.append((point.iteration, seconds_s))
        return found


def _pairs(curve: Curve) -> list[tuple[int, float]]:
    return list(zip(curve.rounds, curve.values, strict=True))


def _reported(metric: Metric, point: TrainPoint) -> float | None:
    """What a data-parallel job's report tells."""
    match metric.key:
        case "rate":
            return _shown(metric, point.tokens_per_s)
        case "learning rate":
            return _shown(metric, point.learning_rate)
        case _:
            return None if point.train_loss is None else _shown(metric, point.train_loss)


def _shown(metric: Metric, value: float) -> float | None:
    """`value` as it is drawn; None of what is not finite."""
    if metric.key == "perplexity":
        return math.exp(value) if value < 700 else None
    return value if abs(value) < _ENDLESS else None
