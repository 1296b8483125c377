"""What the Run screen says of rounds: the open one, closed ones and their curves. Values in, words out. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from swarm.api import (
    DiLoCo,
    FedAvg,
    accuracy,
    expected,
    grace_s,
    longest_s,
    norms,
    private,
    refusal,
    train_loss,
)
from tui import text
from tui.commands import KEYS, Place, Table, pressed

if TYPE_CHECKING:
    from swarm.api import (
        EvalRecord,
        Rejected,
        RoundRecord,
        RunState,
    )
    from tui.messages import RunShown
    from tui.widgets.toned import Line, Piece

_REFUSED = 4  # rejected snapshots that a round shows
_ROOM_FOR_BYTES, _ROOM_FOR_NORMS = 52, 72  # cells; the same for all lines, so that their figures stand in columns
_AHEAD = 6  # rounds in flight that are shown
_RECENT = 8  # rounds that the grace goes by, and the time that is left
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


def has_quorum(state: RunState) -> bool:
    """Whether as many have reported to DiLoCo's open round as may close it."""
    spec = state.manifest.algorithm if state.manifest is not None else None
    return isinstance(spec, DiLoCo) and len(reporters(state, state.open_round)) >= spec.quorum_size


def reporters(state: RunState, round: int) -> frozenset[str]:
    """Units whose snapshots for a round that is open are there."""
    return frozenset(s.unit for s in state.reported if s.round == round)


def closing_line(shown: RunShown) -> Line:
    """What the open round still needs to close; nothing where a word would be none."""
    state = shown.state
    spec = state.manifest.algorithm if state.manifest is not None else None
    if state.phase != "running":
        return ()
    match spec:
        case DiLoCo():
            reported, wanted = len(reporters(state, state.open_round)), len(state.trainers)
            if reported < spec.quorum_size:
                return (("quorum ", "dim"), (f"{reported}/{spec.quorum_size}", ""))
            return (("quorum ", "dim"), (f"✓ {reported}/{spec.quorum_size}", "good"), (f"  closes at {_at(shown, wanted)}", ""))
        case FedAvg(deadline_s=float(deadline_s)) if shown.round_since_s is not None:
            left_s = deadline_s - (shown.now_s - shown.round_since_s)
            return (
                ("deadline ", "dim"),
                (f"in {text.span(left_s)}" if left_s > 0 else "is over", "" if left_s > 0 else "warn"),
            )
        case _:
            return ()


def _at(shown: RunShown, wanted: int) -> str:
    """'4/4 or in 26 s': with how many, or when, as far as this observer can tell."""
    left_s = grace_left_s(shown)
    when = "" if left_s is None else f" or in {text.span(left_s)}" if left_s > 0 else ", or any moment now"
    return f"{wanted}/{wanted}{when}"


def grace_left_s(shown: RunShown) -> float | None:
    """Until DiLoCo's open round closes without those that have not reported, about: the closer counts on a clock of its own.
    None before its quorum was seen."""
    state = shown.state
    spec = state.manifest.algorithm if state.manifest is not None else None
    if not isinstance(spec, DiLoCo) or shown.quorum_since_s is None:
        return None
    last = state.rounds[-_RECENT:]
    wait_s = grace_s(spec, [r.quorum_waited_s for r in last], [r.close_s for r in last])
    return shown.quorum_since_s + wait_s - shown.now_s


def in_flight_line(state: RunState) -> Line:
    """The rounds that learners are ahead in: of other fragments, reported to before the open one has closed."""
    spec = state.manifest.algorithm if state.manifest is not None else None
    if not isinstance(spec, DiLoCo) or spec.fragments == 1 or state.phase not in ("running", "waiting", "idle"):
        return ()
    ahead = sorted({s.round for s in state.reported if s.round >= state.open_round} | {state.open_round})
    words = (f"r{r} f{r % spec.fragments} {len(reporters(state, r))}/{len(state.trainers)}" for r in ahead[:_AHEAD])
    return ((f"in flight, of {spec.fragments} fragments  ", "dim"), ("  ".join(words), ""))


def eta_s(state: RunState) -> float | None:
    """Until all rounds are done, at the pace of the last ones; None without an end or a pace."""
    total, recent = state.total_rounds, state.rounds[-_RECENT:]
    if total is None or not recent or state.phase != "running":
        return None
    took_s = sum(longest_s(r.participants) + r.close_s for r in recent) / len(recent)
    return (total - state.open_round) * took_s if took_s > 0 else None


def mean_cosine(record: RoundRecord) -> float | None:
    """How far the participants' deltas agree with the merged one; None if no participant tells."""
    known = [p.cosine for p in record.participants if p.cosine is not None and math.isfinite(p.cosine)]
    return sum(known) / len(known) if known else None


def cosine_text(value: float | None) -> str:
    """'.71', '-.05', '1.0'."""
    if value is None:
        return text.NONE
    words = f"{value:.2f}"
    return words.replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.1f}"


def closed_rounds(state: RunState, *, width: int, most: int = 200) -> tuple[tuple[int, tuple[Line, ...]], ...]:
    """Closed rounds, newest first: the number, its line, and what was rejected and why. A snapshot that came late is listed by
    a later record, and shown where it belongs. `width`: cells of a line; a narrow one has fewer figures."""
    evals = {e.round: e for e in state.evals[-most - 1 :]}
    refused: dict[int, list[Rejected]] = {}
    for rejected in (r for record in state.rounds[-most - 1 :] for r in record.rejected):
        refused.setdefault(rejected.round, []).append(rejected)
    digits = len(str(state.open_round))
    found: list[tuple[int, tuple[Line, ...]]] = []
    spec = state.manifest.algorithm if state.manifest is not None else DiLoCo()
    first = state.rounds[0].round if state.rounds else 0
    for record in reversed(state.rounds[-most:]):
        here = refused.get(record.round, [])
        before = state.rounds[record.round - first - 1] if record.round > first else None
        of, evaluated = expected(spec, record, here, before), evals.get(record.round)
        lines: list[Line] = [_closed(record, evaluated, of, digits=digits, width=width, hidden=private(spec))]
        lines += [((f"  {refusal(r)}", "warn"),) for r in here[:_REFUSED]]
        if len(here) > _REFUSED:
            lines.append(((f"  and {len(here) - _REFUSED} more", "warn"),))
        found.append((record.round, tuple(lines)))
    return tuple(found)


def older_line(state: RunState, listed: int, keys: Table = KEYS) -> tuple[Line, ...]:
    """That there are more rounds than those in the list, and how they are reached."""
    before = state.open_round - listed
    return before_line(before, keys) if before > 0 and listed else ()


def before_line(before: int, keys: Table) -> tuple[Line, ...]:
    """That so many rounds, or generations, are not in the list."""
    older, number = (pressed(keys, Place.ROUND, action) for action in ("older", "number"))
    return (((f"and {before} before: open one, then {older} or {number}", "dim"),),)


def closed_round_lines(state: RunState, *, width: int, most: int = 200) -> tuple[Line, ...]:
    """As `closed_rounds`, without the numbers."""
    return tuple(line for _, lines in closed_rounds(state, width=width, most=most) for line in lines)


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
    agree, sent_bytes = mean_cosine(record), sum(p.size_bytes for p in record.participants)
    more: list[Piece] = [(f"  cos {cosine_text(agree)}", "")] if agree is not None else []
    more += [(f"  ↑{text.size(sent_bytes)}", "dim")] if sent_bytes else []
    for piece in more:
        if width >= max(_ROOM_FOR_BYTES, sum(len(words) for words, _ in (*pieces, piece))):
            pieces.append(piece)
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
