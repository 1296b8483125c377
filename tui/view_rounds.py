"""What the Run screen says of rounds: the open one, closed ones and their curves. Values in, words out. Pure."""

from __future__ import annotations

from swarm.api import (
    DiLoCo,
    EvalRecord,
    Rejected,
    RoundRecord,
    RunState,
    accuracy,
    expected,
    longest_s,
    norms,
    private,
    refusal,
    train_loss,
)
from tui import text
from tui.messages import RunShown
from tui.widgets.toned import Line, Piece

_REFUSED = 4  # rejected snapshots that a round shows
_ROOM_FOR_BYTES, _ROOM_FOR_NORMS = 52, 72  # cells; the same for all lines, so that their figures stand in columns
_STAGES = ("train", "upload", "merge", "pull")


def open_round_line(shown: RunShown, *, brief: bool = False) -> Line:
    """The open round's phase, how many have reported, and for how long it has been open as seen from here. `brief`: without
    the phases before and after it."""
    state = shown.state
    if state.phase in ("done", "stopped") or state.manifest is None:
        return ((f"no open round; {text.count(state.open_round, 'round')} closed", "dim"),)
    if state.phase == "paused":
        return ((f"r{state.open_round} ", "strong"), ("‖ paused", "warn"))
    reported = len({s.unit for s in state.reported if s.round == state.open_round})
    phases = {v.beat.phase for v in state.live if v.beat}
    if "merge" in phases:
        stage = "merge"
    elif reported or "upload" in phases:
        stage = "upload"
    else:
        stage = "pull" if phases == {"pull"} else "train"
    pieces: list[Piece] = [(f"r{state.open_round} ", "strong")]
    for n, each in enumerate((stage,) if brief else _STAGES):
        pieces += [(" ▸ " if n else "", "dim"), (each.upper(), "accent") if each == stage else (each, "dim")]
    wanted = len(state.sampled) or len(state.trainers)
    pieces.append((f"  {reported}/{max(wanted, reported)} reported", ""))
    if shown.round_since_s is not None:
        pieces.append((f"  {text.span(shown.now_s - shown.round_since_s)}", "dim"))
    return tuple(pieces)


def closed_round_lines(state: RunState, *, width: int, most: int = 200) -> tuple[Line, ...]:
    """Closed rounds, newest first, each followed by what was rejected and why. A snapshot that came late is listed by a later
    record, and shown where it belongs. `width`: cells of a line; a narrow one has fewer figures."""
    evals = {e.round: e for e in state.evals}
    refused: dict[int, list[Rejected]] = {}
    for rejected in (r for record in state.rounds[-most - 1 :] for r in record.rejected):
        refused.setdefault(rejected.round, []).append(rejected)
    digits = len(str(state.open_round))
    lines: list[Line] = []
    spec = state.manifest.algorithm if state.manifest is not None else DiLoCo()
    first = state.rounds[0].round if state.rounds else 0
    for record in reversed(state.rounds[-most:]):
        here = refused.get(record.round, [])
        before = state.rounds[record.round - first - 1] if record.round > first else None
        of, evaluated = expected(spec, record, here, before), evals.get(record.round)
        lines.append(_closed(record, evaluated, of, digits=digits, width=width, hidden=private(spec)))
        lines += [((f"  {refusal(r)}", "warn"),) for r in here[:_REFUSED]]
        if len(here) > _REFUSED:
            lines.append(((f"  and {len(here) - _REFUSED} more", "warn"),))
    return tuple(lines)


def _closed(record: RoundRecord, evaluated: EvalRecord | None, of: int, *, digits: int, width: int, hidden: bool) -> Line:
    """`of`: how many there might have been; `hidden`: of the participants' data only counts are shown."""
    taken = len(record.participants)
    unchanged = record.version != record.round
    mark, tone = ("✗", "bad") if unchanged else ("◐", "warn") if of > taken else ("✓", "good")
    seconds_s = longest_s(record.participants) + record.close_s
    right = accuracy(evaluated.metrics) if evaluated else None
    pieces: list[Piece] = [
        (f"{f'r{record.round}':<{digits + 1}} ", ""),
        (f"{mark} {taken}/{of}", tone),
        (f"  {text.span(seconds_s):>5}", ""),
        *((("  unchanged", "bad"),) if unchanged else ()),
        *(((f"  train {text.loss(train_loss(record))}", ""),) if taken and not hidden else ()),
        (f"  val {text.loss(evaluated.loss if evaluated else None)}", ""),
    ]
    if right is not None:
        pieces.append((f"  acc {text.loss(right)}", ""))
    sent_bytes = sum(p.size_bytes for p in record.participants)
    sent = f"  ↑{text.size(sent_bytes)}"
    if sent_bytes and width >= max(_ROOM_FOR_BYTES, sum(len(words) for words, _ in pieces) + len(sent)):
        pieces.append((sent, "dim"))
    if (sizes := norms(record)) and width >= _ROOM_FOR_NORMS:
        pieces.append((f"  Δ {sizes}", "dim"))
    return tuple(pieces)


def rounds_summary(shown: RunShown) -> Line:
    """The rounds in one line: the open one, then the newest closed one; if that has something to say, it gets the room."""
    newest = shown.state.rounds[-1] if shown.state.rounds else None
    if newest is None:
        return open_round_line(shown)
    refused = [r for r in newest.rejected if r.round == newest.round]
    brief = bool(refused) or newest.version != newest.round
    closed = closed_round_lines(shown.state, width=0, most=1)
    line = closed[0]
    if brief:
        line = (*closed[0][:2], *(piece for piece in closed[0] if piece[0].endswith("unchanged")))
    more = tuple((words if n == 0 else "," + words, tone) for n, ((words, tone),) in enumerate(closed[1:]))
    return (*open_round_line(shown, brief=brief), ("  ", ""), *line, *more)
