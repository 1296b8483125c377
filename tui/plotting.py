"""Curves drawn with braille dots, cell by cell, into toned lines. Values in, lines out; pure, and without NumPy: six curves of
1,000 points take a few milliseconds, where a plot widget takes 85."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never

from tui import text

if TYPE_CHECKING:
    from tui.widgets.toned import Line, Piece

Kind: TypeAlias = Literal["count", "figure", "rate", "bytes", "seconds"]
"""Of what a number tells: how it is written, and where an axis has its ticks."""
Point: TypeAlias = tuple[float, float]
TONES = tuple(f"plot{n}" for n in range(6))  # by the number of a trace's colour
GLYPHS = "●○◆◇■+"  # the same curves told apart without colour
ROWS = 6  # a plot lower than this shows nothing
MARKS = 24  # marks of one trace at most, so that they stay apart
_WIDEST = 8  # cells of a label beside the vertical axis
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille cell, by column and row
_LEAST = 1e-300  # what is smaller is as good as 0: beyond it numbers lose their digits
_MOST_POWER = 307  # of ten, that a float holds
_SPANS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True)
class Trace:
    """One curve. `points` are finite, by x."""

    name: str
    points: tuple[Point, ...]
    mark: str = ""  # drawn at some of the points; '': a line only
    line: bool = True  # False: marks only
    color: int = 0  # of TONES
    first: bool = False  # where there is no room for all, it is drawn

    @property
    def newest(self) -> float | None:
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True)
class Chart:
    """What there is to draw, at any size."""

    title: str
    traces: tuple[Trace, ...] = ()
    kind: Kind = "figure"  # of the vertical axis
    across: Kind = "count"  # of the horizontal one
    unit: str = "round"  # of the horizontal one
    log: bool = False
    short: str = ""  # the title, for a few cells
    notes: tuple[str, ...] = ()  # what else is to be known: axis, window, what is left out
    flags: tuple[str, ...] = ()  # the most important of them, for a few cells
    legend: bool = False  # the traces' names stand in the drawing, and not in its title
    empty: str = "nothing to draw yet"  # what is said while there is nothing

    @property
    def drawn(self) -> tuple[Trace, ...]:
        return tuple(trace for trace in self.traces if trace.points)

    @property
    def heading(self) -> str:
        """Its title, with the newest values."""
        if self.legend:
            return self.title
        told = (f"{t.name} {'⠒⠒' if t.line else t.mark} {figure(t.newest, self.kind)}".strip() for t in self.traces)
        return "  ".join((self.title, *told))


def figure(value: float | None, kind: Kind) -> str:
    """`value` as people read it."""
    if value is None or not math.isfinite(value):
        return text.NONE
    match kind:
        case "count":
            return f"{value:.0f}"
        case "rate":
            return text.short(value) if abs(value) >= 100 else f"{value:.3g}"
        case "bytes":
            return text.size(int(value))
        case "seconds":
            return text.span(value) if value else "0"
        case "figure":
            return text.loss(value) if not value or abs(value) >= 0.001 else f"{value:.1e}"
        case _:
            assert_never(kind)


# The drawing


def lines(chart: Chart, width: int, height: int) -> tuple[Line, ...]:
    """`chart` in `height` lines of at most `width` cells: a plot where there is room for one, else bars of two lines."""
    if not chart.drawn:
        return (((text.fit(chart.empty, min(width, len(chart.empty))), "dim"),),)
    if height < ROWS or width < 3 * _WIDEST:
        return bars(chart, width, height)
    top = _legend(chart, width, most=max(1, height // 3)) if chart.legend else ()
    return (*top, *_plot(chart, width, height - len(top)))


def bars(chart: Chart, width: int, height: int) -> tuple[Line, ...]:
    """The first curve in at most two lines, with the newest values before it; or, where all have names, two curves in a line
    each."""
    rows, drawn = max(1, min(height, 2)), sorted(chart.drawn, key=lambda trace: not trace.first)
    if chart.legend:
        said = [f"{t.mark} {t.name} {figure(t.newest, chart.kind)} " for t in drawn[:rows]]
    else:
        said = [f"{chart.short if n == 0 else t.name[:3]} {figure(t.newest, chart.kind)} " for n, t in enumerate(drawn[:rows])]
    left = max(12, *(len(words) for words in said))
    more = (f"{len(drawn) - rows} more",) if chart.legend and len(drawn) > rows else ()
    tail = ", ".join((*chart.flags, *more))[: max(0, width - left - 12)]
    room = max(1, width - left - (len(tail) + 1 if tail else 0))

    def drawing(trace: Trace, rows: int) -> tuple[str, ...]:
        values = [_log(y) if chart.log else y for _, y in trace.points]
        return text.bars(values, min(room, len(values)), rows=rows)

    if chart.legend:
        each = [(drawing(trace, 1)[0], trace.color) for trace in drawn[:rows]]
    else:
        each = [(line, drawn[0].color) for line in drawing(drawn[0], rows)]
    return tuple(
        (
            (text.fit(said[n] if n < len(said) else "", left), ""),
            (line, TONES[color]),
            (f" {tail}" if tail and n == 0 else "", "dim"),
        )
        for n, (line, color) in enumerate(each)
    )


def _legend(chart: Chart, width: int, *, most: int) -> tuple[Line, ...]:
    """Which curve is which, in at most `most` lines; names are shortened until they fit."""
    longest = max(len(trace.name) for trace in chart.traces)
    while True:
        found: list[list[Piece]] = [[]]
        used = 0
        for trace in chart.traces:
            name, value = text.fit(trace.name, min(longest, len(trace.name))), figure(trace.newest, chart.kind)
            value = text.fit(value, min(len(value), max(1, width - len(name) - 3)))  # of a figure beyond all measure
            cells = len(name) + len(value) + 3
            if used and used + 2 + cells > width:
                found.append([])
                used = 0
            found[-1] += [
                ("  " if used else "", ""),
                (trace.mark or "⠒", TONES[trace.color]),
                (f" {name} ", ""),
                (value, "dim"),
            ]
            used += cells + (2 if used else 0)
        if len(found) <= most or longest <= 2:
            return tuple(map(tuple, found[:most]))
        longest -= 1


def _plot(chart: Chart, width: int, height: int) -> tuple[Line, ...]:
    rows = height - 2
    points = [p for t in chart.drawn for p in t.points]
    low, high = _reach([y for _, y in points], log=chart.log)
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    if last - first <= 1e-9 * max(1.0, abs(last)):
        pad = max(1.0, 1e-6 * abs(last))
        first, last = max(min(first, 0.0), first - pad), last + pad  # no round comes before the first one
    ticks = _ticks_log(low, high) if chart.log else _ticks(low, high, most=max(2, min(6, rows // 2)), kind=chart.kind)
    even = len(ticks) > 1 and math.isclose(ticks[1] - ticks[0], ticks[-1] - ticks[-2])
    rules = ticks if even else ()
    labels = {_row(_log(t) if chart.log else t, low, high, rows): _label(t, rules, chart.kind) for t in ticks}
    left = min(_WIDEST, max((len(label) for label in labels.values()), default=0)) + 1
    columns = max(1, width - left - 1)
    grid = _Grid(columns, rows)
    for n, trace in enumerate(chart.drawn):
        _draw(grid, trace, (first, last), (low, high), log=chart.log, among=(n, len(chart.drawn)))
    found = [
        ((text.fit(labels.get(y, ""), left, right=True), "dim"), ("┤" if y in labels else "│", "dim"), *grid.line(y))
        for y in range(rows)
    ]
    return (*found, *_across(chart, first, last, left=left, columns=columns))


def _draw(grid: _Grid, trace: Trace, across: Point, up: Point, *, log: bool, among: tuple[int, int]) -> None:
    """`among`: its place among so many, so that the marks of curves that lie close stand beside one another."""
    most = 2 * grid.columns if trace.line else MARKS
    xs = text.thin([x for x, _ in trace.points], most)
    ys = text.thin([_log(y) if log else y for _, y in trace.points], most)
    (first, last), (low, high) = across, up
    wide, tall = (2 * grid.columns - 1) / (last - first), (4 * grid.rows - 1) / (high - low)
    dots = [(round((x - first) * wide), round((high - y) * tall)) for x, y in zip(xs, ys, strict=True)]
    if trace.line and len(dots) > 1:
        for a, b in itertools.pairwise(dots):
            grid.segment(a, b, trace.color)
    if not trace.line:
        for x, y in dots:
            grid.mark(x, y, trace.mark, trace.color)
    elif trace.mark or len(dots) == 1:
        n, of = among
        apart = max(1, grid.columns // 3)
        wanted = itertools.chain(range(2 * (apart * n // of), dots[-1][0], 2 * apart), (dots[-1][0],))
        at = 0
        for x in wanted:
            while at < len(dots) - 1 and dots[at][0] < x:
                at += 1
            grid.mark(*dots[at], trace.mark or GLYPHS[0], trace.color)


class _Grid:
    """Braille dots of `columns` × `rows` cells; of a cell that two curves cross, the later one has the colour."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._dots = [[0] * columns for _ in range(rows)]
        self._colors = [[0] * columns for _ in range(rows)]
        self._marks: dict[tuple[int, int], tuple[str, int]] = {}

    def segment(self, a: tuple[int, int], b: tuple[int, int], color: int) -> None:
        """From dot to dot: one run of dots in each column between them."""
        (x0, y0), (x1, y1) = a, b
        across = x1 - x0
        before = y0
        for x in range(x0, x1 + 1):
            # Half a column before x its run begins, half a column behind it ends.
            after = y1 if x == x1 else y0 + round((y1 - y0) * (2 * (x - x0) + 1) / (2 * across))
            self._run(x, min(before, after), max(before, after), color)
            before = after

    def _run(self, x: int, top: int, bottom: int, color: int) -> None:
        cell, dots = x >> 1, _DOTS[x & 1]
        if not 0 <= cell < self.columns:
            return
        for y in range(max(0, top), min(bottom, 4 * self.rows - 1) + 1):
            row = y >> 2
            self._dots[row][cell] |= dots[y & 3]
            self._colors[row][cell] = color

    def mark(self, x: int, y: int, glyph: str, color: int) -> None:
        self._marks[min(max(y >> 2, 0), self.rows - 1), min(max(x >> 1, 0), self.columns - 1)] = (glyph, color)

    def line(self, row: int) -> Line:
        cells: list[tuple[str, str]] = []
        marks = {x: mark for (y, x), mark in self._marks.items() if y == row}
        for x, (dots, color) in enumerate(zip(self._dots[row], self._colors[row], strict=True)):
            if x in marks:
                glyph, color = marks[x]
                cells.append((glyph, TONES[color]))
            elif dots:
                cells.append((chr(0x2800 + dots), TONES[color]))
            else:
                cells.append((" ", ""))
        grouped = itertools.groupby(cells, key=lambda cell: cell[1])
        return tuple(("".join(char for char, _ in group), tone) for tone, group in grouped)


# Axes


def _log(value: float) -> float:
    return math.log10(max(value, _LEAST))


def _row(value: float, low: float, high: float, rows: int) -> int:
    return min(max(round((high - value) / (high - low) * (4 * rows - 1)) // 4, 0), rows - 1)


def _reach(values: Sequence[float], *, log: bool) -> Point:
    """The ends of the vertical axis; of a logarithmic one, powers of ten. A constant lies in the middle."""
    low, high = min(values), max(values)
    if log:
        low, high = _log(low), _log(high)
        pad = 0.05 * (high - low) or 0.1
        return low - pad, high + pad
    pad = 0.05 * (high - low)
    if pad <= max(1e-9 * abs(high), _LEAST):  # as good as constant
        pad = 0.1 * abs(high) if abs(high) > 100 * _LEAST else 1.0
    return max(low - pad, 0.0 if low >= 0 else -math.inf), high + pad


def _steps(kind: Kind, over: float) -> float:
    """The smallest step of an axis that is at least `over`."""
    if kind == "seconds" and over > 1:
        return float(next((s for s in _SPANS if s >= over), 86400 * math.ceil(over / 86400)))
    unit = 1.0
    if kind == "bytes":
        while over > 512 * unit:
            unit *= 1024
        over /= unit
    power = 10.0 ** math.floor(math.log10(over))
    step = unit * next((n * power for n in (1, 2, 5, 10) if n * power >= over * (1 - 1e-9)), 10 * power)
    return max(1.0, step) if kind in ("count", "bytes") else step


def _ticks(low: float, high: float, *, most: int, kind: Kind) -> tuple[float, ...]:
    step = _steps(kind, (high - low) / most)
    first = math.ceil(low / step - 1e-9)
    return tuple(step * n for n in range(first, math.floor(high / step + 1e-9) + 1))


def _ticks_log(low: float, high: float) -> tuple[float, ...]:
    """`low` and `high` are exponents: powers of ten, of a short reach 1, 2 and 5 times those, or what divides it evenly."""
    powers = range(max(math.floor(low), -_MOST_POWER), min(math.ceil(high), _MOST_POWER) + 1)
    thinned = powers[:: max(1, math.ceil(len(powers) / 6))]
    for digits in ((1,), (1, 2, 5)):
        ticks = tuple(d * 10.0**p for p in (thinned if digits == (1,) else powers) for d in digits)
        within = tuple(t for t in ticks if low <= _log(t) <= high)
        if len(within) >= 2:
            return within
    return _ticks(10.0**low, 10.0**high, most=6, kind="figure")


def _label(value: float, ticks: Sequence[float], kind: Kind) -> str:
    if kind in ("seconds", "bytes"):
        return figure(value, kind)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
    if abs(value) >= 10_000 or (kind == "rate" and abs(value) >= 1000):
        return text.short(value) if abs(value) < 1e15 else f"{value:.0e}"
    if value and abs(value) < 0.001:
        return "0" if abs(value) < step / 1000 else f"{value:.0e}"
    if not step or (not value and step < 0.001):
        return f"{value:g}"
    return f"{value + 0.0:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _across(chart: Chart, first: float, last: float, *, left: int, columns: int) -> tuple[Line, Line]:
    """The horizontal axis: its ticks, and their labels, and the unit at the right end if there is room."""
    ticks = _ticks(first, last, most=max(2, columns // 10), kind=chart.across)
    axis, labels = ["─"] * columns, [" "] * columns
    free = -1
    for tick in ticks:
        x = min(round((tick - first) / (last - first) * (columns - 1)), columns - 1)
        axis[x] = "┬"
        label = figure(tick, chart.across) if chart.across == "seconds" else _label(tick, ticks, chart.across)
        start = min(max(x - len(label) // 2, 0), columns - len(label))
        if start > free:
            labels[start : start + len(label)] = label
            free = start + len(label)
    if columns - len(chart.unit) > free:
        labels[columns - len(chart.unit) :] = chart.unit
    words = "".join(labels)
    edge = " " * left
    return ((f"{edge}└" + "".join(axis), "dim"),), ((f"{edge} {words}", "dim"),)
