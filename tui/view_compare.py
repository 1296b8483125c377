"""What the Compare screen says of two runs. Values in, words out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from swarm.api import differing, totals
from tui import text
from tui.commands import KEYS, Place, Table, pressed
from tui.plotting import Chart, Trace
from tui.view_curves import Part, charted, chosen, is_job, metrics, of_all
from tui.view_run import glyph
from tui.widgets.table import Cell, Column, Row

if TYPE_CHECKING:
    from swarm.api import RunState
    from tui.messages import RunAt
    from tui.view_curves import Metric, PlotView
    from tui.widgets.toned import Line, Piece

GLYPHS = ("◆", "◇")
_EVALUATED = ("×", "+")  # the marks of their evaluations


@dataclass(frozen=True)
class Side:
    """One of the two."""

    at: RunAt
    state: RunState | None = None  # None: nothing was read yet
    problem: str = ""  # why it cannot be read; '' if it can
    behind: bool = False  # more of its history is there to be read

    @property
    def read_on(self) -> bool:
        """Whether more of its history can be read at once."""
        return self.behind and self.state is not None and not self.state.lost

    @property
    def goes_on(self) -> bool:
        """Whether there may be more of it later."""
        return self.state is None or self.behind or bool(self.state.lost) or self.state.phase not in ("done", "stopped")

    @property
    def name(self) -> str:
        return text.plain(self.state.name if self.state is not None else self.at.run, 40)


def names(sides: tuple[Side, Side]) -> tuple[str, str]:
    """As the runs are called; with their ids where both are called the same."""
    one, other = sides
    if one.name != other.name:
        return one.name, other.name
    return f"{one.name} ({text.plain(one.at.run, 12)})", f"{other.name} ({text.plain(other.at.run, 12)})"


def columns(sides: tuple[Side, Side]) -> tuple[Column, ...]:
    heads = (f"{mark} {name}" for mark, name in zip(GLYPHS, names(sides), strict=True))
    return (Column("", 18, sortable=False), *(Column(head, 12, sortable=False, grow=True) for head in heads))


def headline(sides: tuple[Side, Side], *, width: int) -> Line:
    """Both runs with their phases; what finds no room in `width` cells is left out, the least important first."""
    for brief in range(3):
        pieces: list[Piece] = [] if brief else [("swarm ▸ compare", "dim")]
        for side, name, mark in zip(sides, names(sides), GLYPHS, strict=True):
            phase = side.state.phase if side.state is not None and side.state.manifest is not None else "unknown"
            shape, tone = glyph(phase)
            said = "reading" if phase == "unknown" and not side.problem else phase
            pieces += [(f"{'  ' if pieces else ''}{mark} ", ""), (name, "strong")]
            pieces.append((f" {shape}" if brief == 2 else f" {shape} {said}", tone))
        if sum(len(words) for words, _ in pieces) <= width - 2:
            break
    return tuple(pieces)


def banner(sides: tuple[Side, Side], problem: str = "") -> Iterator[Line]:
    """What keeps a run from being shown whole, a line each. `problem`: of both."""
    if problem:
        yield ((f"✗ {text.plain(problem)}", "bad"),)
    for side, name in zip(sides, names(sides), strict=True):
        if side.problem:
            yield ((f"✗ {name} cannot be read: {text.plain(side.problem)}", "bad"),)
        elif side.state is not None and side.state.lost:
            yield ((f"⚠ {name}: {text.plain(side.state.lost)}; shown as far as it was read", "warn"),)
        elif side.state is None or side.behind:
            done = side.state.open_round if side.state is not None else 0
            yield ((f"◌ reading {name}" + (f": {text.count(done, 'round')} so far" if done else ""), "accent"),)


def every(sides: tuple[Side, Side]) -> tuple[Metric, ...]:
    """The metrics of either run, those that both have in front."""
    known = [metrics(side.state) for side in sides if side.state is not None]
    if not known:
        return ()
    common = set.intersection(*({m.key for m in each} for each in known))
    found = {m.key: m for each in known for m in each}
    return tuple(sorted(found.values(), key=lambda m: m.key not in common))


def chart(sides: tuple[Side, Side], view: PlotView) -> Chart:
    """One metric of both. Runs of rounds and of iterations are drawn by steps, which both have."""
    states = [side.state for side in sides if side.state is not None]
    if not states:
        return Chart(title="Compare", empty="nothing was read yet")
    metric = chosen(every(sides), view)
    mixed = len({is_job(state) for state in states}) > 1
    notes = ("one has rounds, the other iterations",) if mixed and view.axis == "rounds" else ()
    view = replace(view, axis="steps") if notes else view
    traces: list[Trace] = []
    parts: list[Part] = []
    for n, (side, name) in enumerate(zip(sides, names(sides), strict=True)):
        drawn: list[Trace] = []
        if side.state is not None:
            parts.append(Part(side.state, view))
            own = next((m for m in metrics(side.state) if m.key == metric.key), None)
            drawn = [trace for trace in of_all(parts[-1], own) if trace.points] if own is not None else []
        for trace in drawn or [Trace(name, ())]:
            mark = GLYPHS[n] if trace.line else _EVALUATED[n]
            traces.append(replace(trace, name=name if trace.line else trace.name, mark=mark, color=n))
    return charted(metric, view, traces, parts, notes=notes, legend=True)


def rows(sides: tuple[Side, Side]) -> tuple[Row, ...]:
    """How far each has come, then the settings that differ; of one that cannot be read, nothing."""
    one, other = (side.state if side.state is not None and side.state.manifest is not None else None for side in sides)
    found: list[tuple[str, str, str, str]] = []
    if one is not None and other is not None:
        found += [(what, here, there, "") for what, here, there in totals(one, other)]
        settings = differing(one, other)
        found += [(what, here, there, "accent") for what, here, there in settings]
        found += [] if settings else [("settings", "the same", "the same", "dim")]
    elif one is not None:
        found += [(what, here, text.NONE, "") for what, here, _ in totals(one, one)]
    elif other is not None:
        found += [(what, text.NONE, there, "") for what, _, there in totals(other, other)]
    return tuple(
        Row(
            key=f"{n} {what}", cells=tuple(Cell(text.plain(words, 80), tone) for words, tone in _cells(what, here, there, tone))
        )
        for n, (what, here, there, tone) in enumerate(found)
    )


def _cells(what: str, here: str, there: str, tone: str) -> tuple[Piece, ...]:
    return (what, tone or "dim"), (here, ""), (there, "")


def marked(shown: tuple[Row, ...], key: str) -> tuple[Row, ...]:
    """Home's runs, with a mark on the one of that key."""
    return tuple(
        replace(row, cells=(row.cells[0]._replace(text=f"◆ {row.cells[0].text}"), *row.cells[1:])) if row.key == key else row
        for row in shown
    )


def mark_line(name: str, keys: Table = KEYS) -> Line:
    """What a mark is for."""
    key = pressed(keys, Place.HOME, "compare")
    return (
        (f"◆ {text.plain(name, 40)}", "strong"),
        (f" is marked: {key} on another run compares the two, {key} on it unmarks it", ""),
    )
