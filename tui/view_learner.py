"""What the Learner screen says of one learner: values in, lines out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from swarm.api import (
    REASONS,
    energy_words,
    participants,
    power_words,
    private,
    rank_views,
)
from tui import text, view_energy
from tui.states import STATES, learner_state
from tui.view_round import grid, weight_text
from tui.view_rounds import cosine_text
from tui.view_run import asked_by, name, round_steps, work_rate
from tui.view_work import goodput_text, memory_text
from tui.widgets.table import Cell, Column

if TYPE_CHECKING:
    from swarm.api import (
        Job,
        LearnerView,
        Participant,
        RankView,
        Rejected,
        RoundRecord,
        RunState,
    )
    from tui.messages import RunShown
    from tui.widgets.toned import Line, Piece

SHOWN = 50  # rounds
_BACK = 500  # rounds that are looked through
_CHART_ROWS = 2
_LABEL = 9
_COLUMNS = (
    Column("round", 7),
    Column("snapshot", 26, grow=True),
    Column("weight", 6, right=True),
    Column("work", 7, rank=2, right=True),
    Column("steps", 6, rank=4, right=True),
    Column("loss", 6, rank=1, right=True),
    Column("took", 6, rank=3, right=True),
    Column("payload", 7, rank=5, right=True),
    Column("cos", 5, rank=6, right=True),
)


def learner_of(state: RunState, learner: str) -> LearnerView | None:
    return next((v for v in state.learners if v.learner == learner), None)


def everybody(state: RunState) -> tuple[str, ...]:
    """Whose details there are, in the order of their ids; of a data-parallel job those without a sign of life, too."""
    return tuple(sorted({v.learner for v in state.learners} | {r.learner for r in rank_views(state)}))


def job_of(shown: RunShown, learner: str) -> Job | None:
    """The worker of this machine that is, or was, this learner: one that runs, else the newest."""
    own = [job for job in (*shown.running, *shown.jobs) if job.learner == learner]
    return own[0] if own else None


def heading(shown: RunShown, learner: str) -> Line:
    state = shown.state
    view = learner_of(state, learner)
    rank = _rank(state, learner)
    said = learner_state(state, view) if view is not None else "silent"
    if (rank is not None and rank.refused and (view is None or view.live)) or _kept_out(shown, learner):
        said = "refused"
    mark, tone = STATES.get(said, ("?", ""))
    here = "  on this machine" if job_of(shown, learner) in shown.running else ""
    return (
        (f"swarm ▸ {name(state)} ▸ ", "dim"),
        (f"{text.plain(learner, 64)}", "strong"),
        (f"  {mark} {said}", tone),
        (here, "dim"),
    )


def learner_lines(
    shown: RunShown, learner: str, *, width: int, price_per_kwh: float | None = None, currency: str = ""
) -> Iterator[Line]:
    """`price_per_kwh`: of electricity, in `currency`; None: not known."""
    state = shown.state
    view, rank = learner_of(state, learner), _rank(state, learner)
    if reason := _kept_out(shown, learner):
        yield ((f"✗ it would train this run, and cannot: {reason}", "bad"),)
        if view is None and rank is None:
            return
    if view is None and rank is None:
        yield ((f"{text.plain(learner, 64)} is not in this run", "dim"),)
        return
    yield from _what_it_says(state, view, rank)
    if view is not None:
        yield from _machine(view, ranked=rank is not None)
        yield from _work(state, view)
        yield from _power(view, price_per_kwh, currency)
    if rank is not None:
        yield from _rank_lines(rank)
    yield from _charts(state, learner, view, width=width)
    if rank is None:
        yield ()
        yield from _rounds(state, learner, width=width)


def log_words(shown: RunShown, learner: str) -> str:
    """Where its log is, if it is not shown here."""
    if job_of(shown, learner) is not None:
        return ""
    view = learner_of(shown.state, learner)
    where = text.plain(view.record.machine_name, 64) if view is not None and view.record is not None else ""
    return f"its log lies on its machine{f', {where}' if where else ''}: swarm logs there"


def _kept_out(shown: RunShown, learner: str) -> str:
    """Why the machine of this name cannot take part; '' if it does, or does not want to."""
    view = learner_of(shown.state, learner)
    return "" if view is not None and view.live else dict(shown.refused).get(learner, "")


def _rank(state: RunState, learner: str) -> RankView | None:
    return next((r for r in rank_views(state) if r.learner == learner), None)


def _what_it_says(state: RunState, view: LearnerView | None, rank: RankView | None) -> Iterator[Line]:
    """What is the matter, if anything is."""
    for reason in rank.refused if rank is not None else ():
        yield ((f"✗ has no rank: {text.plain(reason)}", "bad"),)
    if rank is not None and rank.next:
        yield (("◌ waits for the next generation", "warn"),)
    if view is None:
        yield (("? no sign of life was seen", "warn"),)
        return
    dropped = state.dropped_by(view)
    if dropped is not None:
        yield ((f"○ was dropped{asked_by(dropped)}: it may join again", "warn"),)
    if view.state == "silent":
        yield ((f"? silent: no beat for {text.span(view.beat_age_s)}", "bad"),)
    elif view.state == "left" and dropped is None:
        yield (("○ left the run", "dim"),)
    if view.held:
        yield ((f"‖ is not waited for: {text.plain(view.held, 200)}", "warn"),)
    if view.beat is not None and view.beat.doing and view.live:
        yield ((f"◌ {text.plain(view.beat.doing, 200)}", "accent"),)


def _fact(label: str, *pieces: Piece) -> Line:
    return ((f"{label:<{_LABEL}}", "dim"), *pieces)


def _machine(view: LearnerView, *, ranked: bool) -> Iterator[Line]:
    record = view.record
    role = {
        "both": "trains and closes rounds",
        "learner": "trains",
        "syncer": "closes rounds",
        "either": "trains, and closes rounds if needed",
    }
    if record is None:
        yield _fact("machine", ("it has not said what it is", "dim"))
    else:
        device = text.plain(record.device, 60) or "no device"
        yield _fact("device", (device, ""), (f"  memory {memory_text(view)}", ""))
        versions = f"  swarm {text.plain(record.version, 20)}  incarnation {view.incarnation}  pid {record.pid}"
        yield _fact("machine", (text.plain(record.machine_name, 64), ""), (versions, "dim"))
    if not ranked:
        yield _fact("role", (role[view.role], ""))


def _work(state: RunState, view: LearnerView) -> Iterator[Line]:
    beat = view.beat
    if beat is None:
        return
    live = view.live and beat.phase != "left"
    age = "" if beat.phase == "left" else f"  beat {text.span(view.beat_age_s)} ago"
    if view.role != "syncer":
        hidden = state.manifest is not None and private(state.manifest.algorithm)
        steps = round_steps(state)
        at = f"r{beat.round} {beat.step}{f'/{steps}' if steps else ''}, {beat.steps:,} steps by this incarnation"
        at = at if beat.rank is None else f"step {beat.step:,}, {beat.steps:,} by this incarnation"
        rate = f"  {text.short(beat.tokens_per_s)} {work_rate(state)}" if live else ""
        loss = "" if hidden or not live else f"  loss {text.loss(beat.loss)}"
        yield _fact("work", (at, ""), (f"{rate}{loss}", ""), (age, "dim" if view.live else "bad"))
        spent = f", {text.span(beat.trained_s)} of {text.span(beat.alive_s)} went into steps" if beat.alive_s else ""
        yield _fact("goodput", (goodput_text(beat), ""), (spent, "dim"))
    else:
        yield _fact("work", (f"r{beat.round}", ""), (age, "dim" if view.live else "bad"))
    yield _fact("traffic", (f"↑ {text.size(beat.sent_bytes)} sent  ↓ {text.size(beat.received_bytes)} received", ""))


def _power(view: LearnerView, price_per_kwh: float | None, currency: str) -> Iterator[Line]:
    watts, drawn_wh = view_energy.power_w(view), view_energy.learner_wh(view)
    paid = f"  cost {view_energy.cost(drawn_wh, price_per_kwh, currency)}" if price_per_kwh is not None else ""
    unknown = "  its machine does not tell" if watts is None and drawn_wh is None else ""
    words = f"{power_words(watts)}  energy {energy_words(drawn_wh)}{paid}"
    yield _fact("power", (words, ""), (unknown, "dim"))


def _rank_lines(rank: RankView) -> Iterator[Line]:
    if rank.rank is None:
        return
    where = f"{rank.rank} of {rank.size} in generation {rank.generation}, at {rank.address}"
    share = "" if rank.share is None else f"  {100 * rank.share:.0f} % of each batch"
    rows = "" if rank.microbatch_rows is None else f", {text.count(rank.microbatch_rows, 'row')} at once"
    memory = "" if rank.memory_bytes is None else f"  {text.size(rank.memory_bytes)} of memory at most"
    yield _fact("rank", (f"{where}{share}{rows}{memory}", ""))
    parts = (("compute", rank.compute, "█"), ("exchange", rank.exchange, "▓"), ("waiting", rank.waiting, "░"))
    for label, part, mark in parts:
        if part is not None:
            yield _fact(label, (f"{mark * round(40 * part):<40}", "accent"), (f" {100 * part:>3.0f} %", ""))


def _charts(state: RunState, learner: str, view: LearnerView | None, *, width: int) -> Iterator[Line]:
    cells = max(10, min(width - 2 * _LABEL - 2, 100))
    rates = view.rates if view is not None and view.role != "syncer" else ()
    if rates:
        yield ()
        label = (work_rate(state), f"{text.short(min(rates))}–{text.short(max(rates))}")
        for n, bar in enumerate(text.bars(rates, min(cells, len(rates)), rows=_CHART_ROWS, low=0.0)):
            yield ((f"{label[n]:<{2 * _LABEL - 4}}", "dim"), (bar, "accent"))
    curve = state.series.learners.get(learner)
    if curve is not None and len(curve.values) > 1:
        yield ()
        label = ("loss by round", f"{text.loss(curve.values[0])} → {text.loss(curve.values[-1])}")
        for n, bar in enumerate(text.bars(curve.values, min(cells, len(curve.values)), rows=_CHART_ROWS)):
            yield ((f"{label[n]:<{2 * _LABEL - 4}}", "dim"), (bar, "good"))


def _rounds(state: RunState, learner: str, *, width: int) -> Iterator[Line]:
    """How its snapshots fared, the newest round first."""
    took = participants(state, learner)
    yield (("Rounds", "strong"), (f"  counted in {took} of {state.open_round}", ""))
    hidden = state.manifest is not None and private(state.manifest.algorithm)
    rows = [row for record in reversed(state.rounds[-_BACK:]) for row in _fared(record, learner, hidden=hidden)][:SHOWN]
    if rows:
        yield from grid(_COLUMNS, rows, width=width)


def _fared(record: RoundRecord, learner: str, *, hidden: bool) -> Iterator[tuple[Cell, ...]]:
    total = sum(p.weight for p in record.participants)
    for r in record.rejected:
        if r.learner == learner:
            yield _refused(r)
    for p in record.participants:
        if p.learner == learner:
            yield _counted(record, p, total, hidden=hidden)


def _refused(r: Rejected) -> tuple[Cell, ...]:
    of = "" if r.unit == r.learner else f" {text.plain(r.unit, 40)}:"
    return (Cell(f"r{r.round}"), Cell(f"✗{of} {REASONS[r.reason]}", "warn"), *(Cell() for _ in _COLUMNS[2:]))


def _counted(record: RoundRecord, p: Participant, total: float, *, hidden: bool) -> tuple[Cell, ...]:
    of = "" if p.unit == p.learner else f" {text.plain(p.unit, 40)}"
    return (
        Cell(f"r{record.round}"),
        Cell(f"✓ counts{of}", "good"),
        Cell(weight_text(p.weight, total)),
        Cell(text.short(p.tokens)),
        Cell(f"{p.steps:,}"),
        Cell(text.NONE if hidden else text.loss(p.train_loss)),
        Cell(text.NONE if hidden else text.span(p.seconds_s)),
        Cell(text.size(p.size_bytes)),
        Cell(cosine_text(p.cosine)),
    )
