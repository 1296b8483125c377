"""What the Run screen says of a data-parallel job: ranks, plan, generations and preflight. Values in, words out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from swarm.api import (
    OPEN_RING,
    FineTune,
    checked,
    progress,
    rank_views,
)
from tui import text, view_refused
from tui.commands import KEYS, Table
from tui.states import STATES, learner_state
from tui.view_rounds import before_line
from tui.widgets.table import Cell, Column, Row

if TYPE_CHECKING:
    from swarm.api import (
        Checked,
        Generation,
        Link,
        Progress,
        RankView,
        RunState,
    )
    from tui.messages import RunShown
    from tui.widgets.toned import Line, Piece

RANK_COLUMNS = (
    Column("learner", 12, grow=True),
    Column("state", 10),
    Column("rank", 5, rank=1),
    Column("step", 7, rank=2, right=True, descending=True),
    Column("tok/s", 6, rank=3, right=True, descending=True),
    Column("█ compute ▓ comm ░ wait", 23, rank=4, sortable=False),
    Column("memory", 6, rank=5, right=True, descending=True),
    Column("rows", 4, rank=6, right=True, descending=True),
    Column("share", 5, rank=7, right=True, descending=True),
    Column("beat", 6, rank=8, right=True),
    Column("gen", 4, rank=9, right=True),
    Column("device", 10, rank=10, grow=True),
)
SHOWN = 50  # generations, checks and links
APART = 3  # machines without a rank that have a line above the table
_PARTS = 5  # the column that says why a machine has no rank
_BAR = 10  # cells
_EVALS = 5  # evaluations of one generation that are shown
_ENDINGS = {
    "rendezvous": ("✗", "warn"),
    "lost": ("✗", "bad"),
    "regroup": ("◆", "dim"),
    "finished": ("✓", "good"),
    "stopped": ("■", "dim"),
}


def parallel(state: RunState) -> bool:
    return state.manifest is not None and isinstance(state.manifest.algorithm, FineTune)


def rank_rows(shown: RunShown) -> tuple[Row, ...]:
    """Ranks in their order, then the machines that have none, then those that cannot take part."""
    state, mine = shown.state, {job.learner for job in shown.running}
    ranks, refused = rank_views(state), dict(shown.refused)
    here = {rank.learner for rank in ranks if rank.view is not None and rank.view.live}
    rows = [
        _row(state, rank, mine=rank.learner in mine) for rank in ranks if rank.learner in here or rank.learner not in refused
    ]
    return (*rows, *view_refused.rows(shown, RANK_COLUMNS, without=here))


def _row(state: RunState, rank: RankView, *, mine: bool) -> Row:
    view = rank.view
    beat = view.beat if view is not None else None
    said = "silent" if view is None else learner_state(state, view)
    if rank.refused and (view is None or view.live):
        said = "refused"
    mark, tone = STATES.get(said, ("?", ""))
    ranked = beat is not None and rank.rank is not None
    running = ranked and view is not None and view.live and said != "paused"
    step, rate_s = (beat.step, beat.tokens_per_s) if beat is not None and ranked else (0, 0.0)
    away = said in ("left", "dropped")
    age_s = view.beat_age_s if view is not None else 0.0
    return Row(
        key=rank.learner,
        quiet=away,
        spill=_PARTS if rank.refused else None,
        cells=(
            Cell(text.plain(rank.learner, 64) + ("*" if mine else ""), "strong" if mine else ""),
            Cell(f"{mark} {said}", tone),
            Cell("next" if rank.next else text.NONE if rank.rank is None else f"{rank.rank}/{rank.size}"),
            Cell(str(step) if ranked else text.NONE, order=float(step)),
            Cell(text.short(rate_s) if running else text.NONE, order=rate_s),
            Cell(*_parts(rank)),
            Cell(text.size(rank.memory_bytes) if rank.memory_bytes else text.NONE, order=float(rank.memory_bytes or 0)),
            Cell(str(rank.microbatch_rows) if rank.microbatch_rows else text.NONE, order=float(rank.microbatch_rows or 0)),
            Cell(text.NONE if rank.share is None else f"{100 * rank.share:.0f}%", order=rank.share or 0.0),
            Cell(
                text.NONE if away or beat is None else text.span(age_s),
                "" if view is not None and view.live else "bad",
                order=age_s,
            ),
            Cell(text.NONE if rank.generation is None else f"g{rank.generation}"),
            Cell(text.plain(view.record.device, 40) if view is not None and view.record else text.NONE),
        ),
    )


def _parts(rank: RankView) -> tuple[str, str]:
    """A step's time as a bar and in percent: compute █, communication ▓, waiting ░. Why a machine has no rank stands there
    instead."""
    if rank.refused:
        return text.plain(rank.refused[0], 80), "bad"
    parts = (rank.compute, rank.exchange, rank.waiting)
    if rank.compute is None or rank.exchange is None or rank.waiting is None:
        doing = rank.view.beat.doing if rank.view is not None and rank.view.live and rank.view.beat is not None else ""
        return text.plain(doing, 80) or text.NONE, "dim"
    ends = [round(_BAR * (rank.compute + part)) for part in (0.0, rank.exchange, rank.exchange + rank.waiting)]
    cells = "█" * ends[0] + "▓" * (ends[1] - ends[0]) + "░" * (max(ends[2], ends[1]) - ends[1])
    figures = " ".join(f"{100 * (part or 0.0):>2.0f}%" for part in parts)
    return f"{cells:<{_BAR}} {figures}", "accent"


def headline_figures(state: RunState) -> tuple[str, ...]:
    """For the first line, the most important first."""
    at = _progress(state)
    planned = state.ranks.planned
    size = len(planned.seats) if planned is not None and planned.end is None else 0
    live = sum(r.rank is not None and r.view is not None and r.view.live for r in rank_views(state)) if size else 0
    return (
        f"  {live}/{text.count(size, 'rank')}" if size else "  no rank",
        *_speed(state),
        *(() if at.epoch is None else (f"  epoch {at.epoch:.2f}",)),
    )


def _speed(state: RunState) -> tuple[str, ...]:
    """Of all ranks together, and how long it will take; nothing while nobody trains."""
    at = _progress(state)
    left = () if at.eta_s is None else (f"  ETA {text.span(at.eta_s)}",)
    return (f"  {text.rate(at.tokens_per_s)}", *left) if state.phase == "running" else ()


def iteration_text(state: RunState) -> str:
    """'604/1000': iterations done, of how many; in percent if that is too long for a table."""
    at = _progress(state)
    words = f"{at.iteration}/{at.iters}"
    return words if len(words) <= 8 else f"{100 * at.iteration // at.iters}%"


def _progress(state: RunState) -> Progress:
    at = progress(state)
    assert at is not None, "asked of data-parallel jobs alone"
    return at


def summary(state: RunState) -> str:
    """What an ended job came to."""
    at = _progress(state)
    losses = f"validation {text.loss(at.val_loss)}" if at.val_loss is not None else f"loss {text.loss(at.train_loss)}"
    return f"{text.count(at.iteration, 'iteration')}, {losses}"


def apart_lines(state: RunState) -> Iterator[Line]:
    """Who has no rank and why: refused, or too late for the generation under way. The first few of them."""
    apart = [rank for rank in rank_views(state) if rank.refused or rank.next]
    for rank in apart[:APART]:
        name = text.plain(rank.learner, 64)
        if rank.refused:
            yield ((f"✗ {name} has no rank: {text.plain('; '.join(rank.refused))}", "warn"),)
        else:
            yield ((f"◌ {name} waits for the next generation", "dim"),)
    if len(apart) > APART:
        yield ((f"  and {len(apart) - APART} more without a rank", "dim"),)


def generation_heading(shown: RunShown, *, brief: bool = False) -> tuple[Line, ...]:
    """What stands above the generations: what the newest runs on, and what is saved. `brief`: all in one line."""
    state = shown.state
    every = state.ranks.generations
    if not every:
        return ((("no machine has come yet", "dim"),),)
    ranks = state.ranks
    saved = ranks.checkpoints[-1] if ranks.checkpoints else None
    if brief:
        kept: Line = ((f"  saved {saved.step}" if saved is not None else "  nothing saved yet", "dim"),)
        at = ranks.planned if ranks.planned is not None and ranks.planned.end is None else every[-1]
        return ((*_generation(at, brief=True), *((words, "") for words in _speed(state)), *kept),)
    lines: list[Line] = []
    if ranks.planned is not None and ranks.planned.end is None and _open_ring(ranks.planned):
        lines.append((("⚠ no passwords on the ring: each binds to one address", "warn"),))
    if saved is not None:
        lines.append(((f"checkpoint: step {saved.step} of g{saved.generation}", "dim"),))
    return tuple(lines)


def generation_entries(state: RunState) -> tuple[tuple[int, tuple[Line, ...]], ...]:
    """The generations, newest first, each with its number and why it ended."""
    found = []
    for g in reversed(state.ranks.generations[-SHOWN:]):
        lines: list[Line] = [_generation(g)]
        if g.end is not None and g.end.reason and g.end.goes_on:
            lines.append(((f"  {text.plain(g.end.reason)}", "dim"),))
        found.append((g.generation, tuple(lines)))
    return tuple(found)


def older_line(state: RunState, keys: Table = KEYS) -> tuple[Line, ...]:
    before = len(state.ranks.generations) - SHOWN
    return before_line(before, keys) if before > 0 else ()


def _generation(g: Generation, *, brief: bool = False) -> Line:
    """`brief`: with the ring's warning, for which there is no line of its own, and not with what it goes on from."""
    head: Piece = (f"g{g.generation} ", "strong")
    what = ""
    if g.plan is not None:
        start = "" if g.plan.start is None or brief else f" from g{g.plan.start.generation} step {g.plan.start.step}"
        open_ring = " (no passwords)" if brief and _open_ring(g) else ""
        what = f" {text.count(len(g.seats), 'rank')}, {g.plan.backend}{open_ring}{start}"
    if g.end is not None:
        mark, tone = _ENDINGS[g.end.ending]
        return (head, (f"{mark} {g.end.ending}", tone), (what, "dim"))
    if g.plan is None:
        come = text.count(len({m.learner for m in g.members}), "machine")
        return (head, ("◌ gathers", "accent"), (f" {come}", "dim"))
    if g.lacking:
        lacking = text.plain(", ".join(g.lacking), 60)
        return (head, ("◌ starts", "accent"), (f"{what}; not yet: {lacking}", "dim"))
    return (head, ("● trains", "good"), (what, ""))


def _open_ring(g: Generation) -> bool:
    return g.plan is not None and g.plan.backend == "ring" and len(g.seats) > 1


def generation_details(state: RunState, number: int) -> Iterator[Line]:
    """One generation: its ranks and their parts, what it reported, and why it ended; of the newest also the preflight."""
    g = state.ranks.find(number)
    if g is None:
        yield (("nothing is known of it any more", "dim"),)
        return
    yield _generation(g)
    if g.end is not None:
        after = "" if g.end.checkpoint is None else f", with the checkpoint of step {g.end.checkpoint.step}"
        reason = text.plain(g.end.reason)
        yield (("ended    ", "dim"), (f"{f'{reason}, ' if reason else ''}said by {text.plain(g.end.by, 64)}{after}", ""))
    saved = [c.step for c in state.ranks.checkpoints if c.generation == number]
    if saved:
        steps = ", ".join(map(str, saved[-8:]))
        yield (("saved    ", "dim"), (f"checkpoints in the mailbox: step {steps}", ""))
    yield from _reports(g)
    if g is state.ranks.planned:
        yield ()
        yield from details(state)
        return
    if g.plan is None:
        yield ()
        yield ((f"Machines {len({m.learner for m in g.members})}", "strong"),)
        for member in g.members[:SHOWN]:
            memory = f"{text.size(member.memory_bytes)} free"
            yield ((f"  {text.fit(member.learner, 20)}", ""), (f"  {memory}  {' '.join(member.backends)}", "dim"))
        return
    yield ()
    yield ((f"Ranks {len(g.seats)}", "strong"), (f"  planned by {text.plain(g.plan.leader, 64)}, seed {g.plan.seed}", "dim"))
    total = sum(g.share(n) for n in range(len(g.seats)))
    for n, seat in enumerate(g.seats):
        part = f"{100 * g.share(n) / total:.0f} %" if total else text.NONE
        yield ((f"  {n:>3}  {text.fit(seat.learner, 20)}", ""), (f"  {part:>5}  {seat.address}:{seat.port}", "dim"))
    for refused in g.plan.refused[:SHOWN]:
        yield ((f"  ✗ {text.plain(str(refused))}", "warn"),)


def _reports(g: Generation) -> Iterator[Line]:
    """What it told of its training, the newest first."""
    if g.points:
        first, last = g.points[0], g.points[-1]
        losses = f"loss {text.loss(first.train_loss)} to {text.loss(last.train_loss)}"
        yield (
            ("trained  ", "dim"),
            (f"iterations {first.iteration} to {last.iteration}, {losses}", ""),
            (f", {text.rate(last.tokens_per_s)}, {text.short(last.trained_tokens)} tokens in all", "dim"),
        )
    for e in reversed(g.evals[-_EVALS:]):
        what = "validation" if e.part == "valid" else "test"
        yield (
            ("checked  ", "dim"),
            (f"iteration {e.iteration}: {what} {text.loss(e.loss)}", ""),
            (f", in {text.span(e.seconds_s)}", "dim"),
        )


def details(state: RunState) -> Iterator[Line]:
    """The plan and the preflight table, each refusal with its reason."""
    planned = state.ranks.planned
    if planned is None or planned.plan is None:
        yield (("No plan yet", "strong"),)
    else:
        plan = planned.plan
        start = "" if plan.start is None else f", from step {plan.start.step} of generation {plan.start.generation}"
        yield (
            (f"Plan of generation {plan.generation}", "strong"),
            (f"  by {text.plain(plan.leader, 64)}, over {plan.backend}{start}, seed {plan.seed}", "dim"),
        )
        for n, seat in enumerate(plan.seats):
            yield ((f"  {n:>3}  {text.fit(seat.learner, 20)}", ""), (f"  {seat.address}:{seat.port}", "dim"))
        if _open_ring(planned):
            yield ((f"  {OPEN_RING}", "warn"),)
    every = checked(state)
    if not every:
        return
    yield ()
    yield (("Preflight", "strong"),)
    for each in every[:SHOWN]:
        yield from _check(each)
    if len(every) > SHOWN:
        yield ((f"  and {len(every) - SHOWN} more", "dim"),)
    pairs = [(text.plain(f"{who} → {each.learner}", 44), link) for each in every for who, link in each.ways]
    if pairs:
        yield ()
        yield (("Links", "strong"), ("  round trip, and what comes through", "dim"))
    wide = max((len(pair) for pair, _ in pairs[:SHOWN]), default=0)
    for pair, link in pairs[:SHOWN]:
        yield _way(f"  {pair:<{wide}}  {link.address:<15}  ", link)
    if len(pairs) > SHOWN:
        yield ((f"  and {len(pairs) - SHOWN} more: swarm status --json", "dim"),)


def _check(each: Checked) -> Iterator[Line]:
    mark: Piece = ("✗ ", "bad") if each.reasons else ("✓ ", "good") if each.rank is not None else ("◌ ", "accent")
    member = each.member
    what = "announced nothing that can be read"
    if member is not None:
        versions = "  ".join(f"{text.plain(name, 20)} {text.plain(v, 20)}" for name, v in list(member.versions.items())[:4])
        what = f"{text.size(member.memory_bytes)} free  {versions}  {' '.join(member.backends)}"
    yield (mark, (text.fit(each.learner, 14), ""), (f" {each.verdict:<15} ", mark[1]), (what, "dim"))
    for reason in each.reasons:
        yield ((f"    {text.plain(reason)}", "warn"),)


def _way(pair: str, link: Link) -> Line:
    if link.error:
        return ((pair, ""), (f"not reached: {text.plain(link.error)}", "bad"))
    return ((pair, ""), (f"{1000 * link.rtt_s:>6.1f} ms  {text.short(link.bytes_per_s):>6}B/s", "dim"))
