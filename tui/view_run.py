"""What the Run screen says of a run: values in, words out. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.cells import cell_len

from swarm.api import EvalRecord, LearnerView, Rejected, RoundRecord, RunState, train_loss
from tui import text
from tui.messages import RunShown
from tui.widgets.plot import Curves
from tui.widgets.table import Cell, Column, Row
from tui.widgets.toned import Line, Piece

STALE_S = 5.0  # a share that has not answered for so long counts as lost
METHODS = {"diloco": "DiLoCo", "fedavg": "FedAvg"}
_PHASES = {
    "running": ("●", "good"),
    "waiting": ("◌", "warn"),
    "paused": ("‖", "warn"),
    "idle": ("○", "dim"),
    "done": ("✓", "good"),
    "stopped": ("■", "dim"),
    "checking": ("◌", "dim"),
    "unknown": ("?", "dim"),
}
_STATES = {
    "train": ("●", "good"),
    "upload": ("↑", "good"),
    "wait": ("◌", ""),
    "merge": ("◆", "accent"),
    "pull": ("↓", "good"),
    "evaluate": ("◇", "accent"),
    "join": ("◌", "accent"),
    "joining": ("◌", "accent"),
    "paused": ("‖", "warn"),
    "silent": ("?", "bad"),
    "left": ("○", "dim"),
}
_STAGES = ("train", "upload", "merge", "pull")

LEARNER_COLUMNS = (
    Column("learner", 14, grow=True),
    Column("state", 10),
    Column("round", 12, rank=1),
    Column("tok/s", 6, rank=2, right=True, descending=True),
    Column("rate", 10, rank=5, sortable=False, grow=True),
    Column("loss", 6, rank=3, right=True),
    Column("beat", 6, rank=4, right=True),
    Column("device", 11, rank=6, grow=True),
    Column("memory", 6, rank=8, right=True, descending=True),
    Column("sent", 6, rank=7, right=True, descending=True),
)


def word(state: RunState) -> str:
    """The run's phase; 'checking' while watching longer may still change it."""
    return state.phase if state.phase_is_certain or state.manifest is None else "checking"


def glyph(word: str) -> Piece:
    return _PHASES.get(word, ("?", "dim"))


def phase_cell(state: RunState) -> Cell:
    said = word(state)
    mark, tone = glyph(said)
    return Cell(f"{mark} {said}", tone)


def round_text(state: RunState) -> str:
    """'r12/40': the open round of how many; for an ended run the rounds it had."""
    total = state.total_rounds
    return f"r{state.open_round}" + (f"/{total}" if total is not None else "")


def joinable(state: RunState) -> bool:
    """Whether a learner may still join: a run that nobody trains goes on with the next one."""
    return state.manifest is not None and state.phase in ("running", "waiting", "paused", "idle")


def stoppable(state: RunState) -> bool:
    return joinable(state) and not any(c.action == "stop" for c in state.controls)


def can_join(shown: RunShown) -> bool:
    return joinable(shown.state) and not shown.running


def name(state: RunState) -> str:
    return text.plain(state.name, 40)


def headline(shown: RunShown, *, width: int, frozen: bool = False) -> Line:
    """The first line; figures that find no room are left out, the least important first."""
    state = shown.state
    said = word(state)
    mark, tone = glyph(said)
    share = _share(shown)
    pieces: list[Piece] = [(f"{mark} {said.upper()}", tone)]
    if frozen:
        pieces.append(("  ‖ FROZEN", "warn"))
    if state.manifest is not None:
        pieces.append((f"  {round_text(state)}", ""))
    room = width - 3 - _length([*pieces, share])
    who = text.fit(name(state), min(cell_len(name(state)), max(8, room - 2))) + "  "
    room -= cell_len(who)
    head = "swarm ▸ "
    if len(head) <= room:
        room -= len(head)
    else:
        head = ""
    for figure in _figures(state):
        if len(figure) > room:
            break
        pieces.append((figure, ""))
        room -= len(figure)
    return ((head, "dim"), (who, "strong"), *pieces, (" " * max(1, room + 1), ""), share)


def _figures(state: RunState) -> tuple[str, ...]:
    if state.manifest is None:
        return ()
    known = [v for v in state.learners if v.state != "left"]
    return (
        f"  {len(state.live)}/{text.count(len(known), 'learner')}" if known else "  no learner",
        *((f"  {text.rate(state.tokens_per_s)}",) if state.live else ()),
        f"  {METHODS.get(method(state), method(state))}",
        f"  H={state.manifest.algorithm.sync_every}",
    )


def method(state: RunState) -> str:
    """As the command line names it; '' while it is not known."""
    return str(type(state.manifest.algorithm).__struct_config__.tag) if state.manifest else ""


def _length(pieces: list[Piece]) -> int:
    return sum(cell_len(words) for words, _ in pieces)


def _share(shown: RunShown) -> Piece:
    polled_s = shown.state.polled_at_s
    if polled_s is None:
        return ("share …", "dim") if not shown.state.lost else ("share ✗", "bad")
    age_s = shown.now_s - polled_s
    if shown.state.lost or age_s > STALE_S:
        return f"share ✗ {text.span(age_s)}", "bad"
    return f"share ✓ {text.span(age_s)}", "good"


def banner(shown: RunShown) -> Iterator[Line]:
    """What needs attention, most urgent first."""
    state, job = shown.state, shown.job
    age_s = None if state.polled_at_s is None else shown.now_s - state.polled_at_s
    age = "nothing was read yet" if age_s is None else f"what is shown is {text.span(age_s)} old"
    if shown.problem:
        yield ((f"✗ {text.plain(shown.problem)}; {age}", "bad"),)
    elif state.lost:
        yield ((f"✗ share lost: {text.plain(state.lost)}; {age}; trying again", "bad"),)
    elif age_s is not None and age_s > STALE_S:
        yield ((f"✗ the share does not answer; {age}", "bad"),)
    elif state.manifest is None:
        yield (("◌ reading the run", "dim"),)
        return
    if job is not None and job.state == "failed":
        yield ((f"✗ the worker on this machine failed: {text.plain(job.message) or 'it left no message'}", "bad"),)
        yield ((f"  whole log: {text.plain(str(job.log), 300)}", "dim"),)
    elif job is not None and job.state == "starting":
        yield ((f"◌ this machine joins as {text.plain(job.learner, 64)}: its worker is starting", "accent"),)
    if state.manifest is not None and not state.lost:
        yield from _phase_lines(shown)


def _phase_lines(shown: RunShown) -> Iterator[Line]:
    state, manifest = shown.state, shown.state.manifest
    assert manifest is not None
    here = "" if shown.running else "; join it here: enter"
    ended = f"{text.count(state.open_round, 'round')}, loss {_last_loss(state)}"
    match word(state):
        case "waiting":
            yield ((f"◌ waiting for {state.waits_for}{here}", "warn"),)
        case "paused":
            by = f" by {text.plain(state.effect.by)}" if state.effect.by else ""
            yield ((f"‖ paused{by} at round {state.open_round}: nobody trains until it is resumed", "warn"),)
        case "idle":
            since = f"since round {state.open_round - 1}" if state.rounds else "since its start"
            yield ((f"○ idle {since}: no learner is live{here}", "warn"),)
        case "done":
            yield ((f"✓ done: {ended}", "good"),)
        case "stopped":
            yield ((f"■ stopped{_stopped_by(state)}: {ended}", "dim"),)
        case "checking":
            yield (("◌ watching for signs of life", "dim"),)
        case _:
            silent = [v for v in state.learners if v.state == "silent"]
            if silent:
                names = ", ".join(f"{text.plain(v.learner, 64)} silent {text.span(v.beat_age_s)}" for v in silent[:3])
                rest = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
                yield ((f"⚠ {names}{rest}; the round closes with those still live", "warn"),)
            if any(c.action == "stop" for c in state.controls):
                yield ((f"■ stop was asked for{_stopped_by(state)}: it takes effect at the next round", "warn"),)


def _stopped_by(state: RunState) -> str:
    by = next((c.by for c in state.controls if c.action == "stop"), "")
    return f" by {text.plain(by, 64)}" if by else ""


def _last_loss(state: RunState) -> str:
    if state.evals:
        return f"{text.loss(state.evals[-1].loss)} (validation)"
    return text.loss(train_loss(state.rounds[-1]) if state.rounds else None)


def learner_rows(shown: RunShown) -> tuple[Row, ...]:
    state = shown.state
    mine = {job.learner for job in shown.running}
    order = {"silent": 1, "left": 2}
    views = sorted(state.learners, key=lambda v: (order.get(v.state, 0), v.learner))
    return tuple(_learner_row(state, view, mine=view.learner in mine) for view in views)


def _learner_row(state: RunState, view: LearnerView, *, mine: bool) -> Row:
    beat, record = view.beat, view.record
    mark, tone = _STATES.get(view.state, ("?", ""))
    live, left = view.live and beat is not None, view.state == "left"
    steps = round_steps(state)
    at = f"r{beat.round} {beat.step:>4}/{steps}" if beat else text.NONE
    rate_s = beat.tokens_per_s if live and beat else 0.0
    return Row(
        key=view.learner,
        quiet=left,
        cells=(
            Cell(text.plain(view.learner, 64) + ("*" if mine else ""), "strong" if mine else ""),
            Cell(f"{mark} {view.state}", tone),
            Cell(at, order=float(beat.round * (steps + 1) + beat.step) if beat else ""),
            Cell(text.short(rate_s) if live else text.NONE, order=rate_s),
            Cell(_rate_bars(view.rates), "accent"),
            Cell(text.loss(beat.loss if live and beat else None), order=beat.loss if beat and beat.loss is not None else ""),
            # Of one that left, the age would be that of our watching.
            Cell(
                text.NONE if left or not beat else text.span(view.beat_age_s), "" if view.live else "bad", order=view.beat_age_s
            ),
            Cell(text.plain(record.device, 40) if record and record.device else text.NONE),
            Cell(
                text.size(beat.rss_bytes) if beat and beat.rss_bytes else text.NONE, order=float(beat.rss_bytes if beat else 0)
            ),
            Cell(f"↑{text.size(beat.sent_bytes)}" if beat else text.NONE, order=float(beat.sent_bytes if beat else 0)),
        ),
    )


def _rate_bars(rates: tuple[float, ...]) -> str:
    # As far below the lowest as the highest is above it: changes show, and a small one does not look like a stall.
    shown = text.thin(rates[-20:], 10)
    return text.bars(shown, 10, low=max(0.0, 2 * min(shown) - max(shown)))[0] if shown else ""


def round_steps(state: RunState) -> int:
    """Inner steps between two rounds."""
    if state.manifest is None:
        return 0
    algorithm = state.manifest.algorithm
    return max(1, algorithm.sync_every // algorithm.fragments)


def open_round_line(shown: RunShown) -> Line:
    """The open round's phase, how many have reported, and for how long it has been open as seen from here."""
    state = shown.state
    if state.phase in ("done", "stopped") or state.manifest is None:
        return ((f"no open round; {text.count(state.open_round, 'round')} closed", "dim"),)
    reported = len({s.unit for s in state.reported if s.round == state.open_round})
    phases = {v.beat.phase for v in state.live if v.beat}
    if "merge" in phases:
        stage = "merge"
    elif reported or "upload" in phases:
        stage = "upload"
    else:
        stage = "pull" if phases == {"pull"} else "train"
    pieces: list[Piece] = [(f"r{state.open_round} ", "strong")]
    for n, each in enumerate(_STAGES):
        pieces += [(" ▸ " if n else "", "dim"), (each.upper(), "accent") if each == stage else (each, "dim")]
    pieces.append((f"  {reported}/{max(len(state.live), reported)} reported", ""))
    if shown.round_since_s is not None:
        pieces.append((f"  {text.span(shown.now_s - shown.round_since_s)}", "dim"))
    return tuple(pieces)


def closed_round_lines(state: RunState, most: int = 200) -> tuple[Line, ...]:
    """Closed rounds, newest first. A snapshot that came late is listed by a later record, and shown where it belongs."""
    evals = {e.round: e for e in state.evals}
    refused: dict[int, list[Rejected]] = {}
    for rejected in (r for record in state.rounds[-most - 1 :] for r in record.rejected):
        refused.setdefault(rejected.round, []).append(rejected)
    digits = len(str(state.open_round))
    return tuple(
        _closed(record, evals.get(record.round), refused.get(record.round, []), digits)
        for record in reversed(state.rounds[-most:])
    )


def _closed(record: RoundRecord, evaluated: EvalRecord | None, refused: list[Rejected], digits: int) -> Line:
    taken = len(record.participants)
    mark, tone = ("✗", "bad") if not taken else ("◐", "warn") if refused else ("✓", "good")
    seconds_s = max((p.seconds_s for p in record.participants), default=0.0) + record.close_s
    pieces: list[Piece] = [
        (f"{f'r{record.round}':<{digits + 1}} ", ""),
        (f"{mark} {taken}/{taken + len(refused)}", tone),
        (f"  {text.span(seconds_s):>5}", ""),
        (f"  train {text.loss(train_loss(record))}", ""),
        (f"  val {text.loss(evaluated.loss if evaluated else None)}", ""),
    ]
    if refused:
        pieces.append(("  " + ", ".join(f"{text.plain(r.learner, 64)} {r.reason}" for r in refused[:4]), "warn"))
    return tuple(pieces)


def rounds_summary(shown: RunShown) -> Line:
    """The rounds in one line: the open one, then the newest closed one."""
    closed = closed_round_lines(shown.state, 1)
    return (*open_round_line(shown), *((("  ", ""), *closed[0]) if closed else ()))


def curves(rounds: tuple[RoundRecord, ...], evals: tuple[EvalRecord, ...]) -> Curves:
    return Curves(
        train=tuple((r.round, loss) for r in rounds if (loss := train_loss(r)) is not None),
        validation=tuple((e.round, e.loss) for e in evals if e.loss is not None and math.isfinite(e.loss)),
    )
