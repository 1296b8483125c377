"""What `swarm status` says of a data-parallel job: its ranks, its plan and preflight, its generations and its losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_never

from swarm import api
from swarm.cli import spending
from swarm.cli.common import table
from swarm.cli.words import heard, learner_state
from swarm.core.sentences import amount, counted, number, plain

POINTS = 5  # newest reports that are listed
GENERATIONS = 8
PAIRS = 40  # links that the preflight table lists; all of them are in --json


def lines(state: api.RunState) -> Iterator[str]:
    """All that a person is told, after the headline."""
    yield from _summary(state)
    rows = [_row(state, rank) for rank in api.rank_views(state)]
    if rows:
        heads = (
            "LEARNER",
            "STATE",
            "RANK",
            "AT",
            "SHARE",
            "STEP",
            "TOKENS/S",
            "COMPUTE",
            "COMM",
            "WAIT",
            "MEMORY",
            "ROWS",
            "GEN",
        )
        yield table((*heads, "DEVICE"), rows)
    for rank in api.rank_views(state):
        for reason in rank.refused:
            yield f"{plain(rank.learner)} has no rank: {plain(reason, 200)}"
        if rank.next:
            yield f"{plain(rank.learner)} waits for the next generation"
    yield from _preflight(state)
    yield from _generations(state)
    yield from told(state)[-POINTS:]


def headline(state: api.RunState) -> str:
    """How far it is, after name and state."""
    at = api.progress(state)
    assert at is not None
    assert state.manifest is not None
    epoch = "" if at.epoch is None else f"  epoch {at.epoch:.2f}" + ("" if at.epochs is None else f" of {at.epochs:.2f}")
    model = "" if state.manifest.model is None else f"  model {plain(state.manifest.model.name)}"
    return f"iteration {at.iteration}/{at.iters}{epoch}{model}  {api.settings_words(state.manifest.algorithm)}"


def _summary(state: api.RunState) -> Iterator[str]:
    at = api.progress(state)
    assert at is not None
    words = [f"train {number(at.train_loss)}", f"val {number(at.val_loss)}"]
    if at.test_loss is not None:
        words.append(f"test {number(at.test_loss)}")
    if heard(state) and state.phase == "running":
        words.insert(0, f"{at.tokens_per_s:,.0f} tokens/s")
        words.append(f"ETA {span(at.eta_s)}")
    yield "  ".join(words)
    if (end := state.ranks.ending) is not None and end.reason:
        yield f"{end.ending}: {plain(end.reason, 200)}"
    if checkpoints := [f"step {c.step} of generation {c.generation}" for c in state.ranks.checkpoints]:
        yield f"checkpoints: {', '.join(checkpoints)}"
    planned = state.ranks.planned
    if planned is not None and planned.plan is not None:
        plan = planned.plan
        start = "" if plan.start is None else f", from step {plan.start.step} of generation {plan.start.generation}"
        ranks = f"{counted(len(plan.seats), 'rank')} over {plan.backend}"
        yield f"plan of generation {plan.generation}, by {plain(plan.leader)}: {ranks}{start}, seed {plan.seed}"
        if plan.backend == "ring" and len(plan.seats) > 1:
            yield api.OPEN_RING


def _row(state: api.RunState, rank: api.RankView) -> tuple[str, ...]:
    view = rank.view
    beat = view.beat if view is not None else None
    said = "refused" if rank.refused else "–" if view is None else learner_state(state, view)
    live = view is not None and view.live and beat is not None and rank.rank is not None
    return (
        rank.learner,
        said,
        "–" if rank.rank is None else f"{rank.rank}/{rank.size}",
        rank.address or "–",
        _percent(rank.share),
        str(beat.step) if beat is not None and rank.rank is not None else "–",
        f"{beat.tokens_per_s:,.0f}" if live and beat is not None else "–",
        _percent(rank.compute),
        _percent(rank.exchange),
        _percent(rank.waiting),
        "–" if rank.memory_bytes is None else amount(rank.memory_bytes),
        "–" if rank.microbatch_rows is None else str(rank.microbatch_rows),
        "–" if rank.generation is None else str(rank.generation),
        view.record.device if view is not None and view.record else "",
    )


def _percent(part: float | None) -> str:
    return "–" if part is None else f"{100 * part:.0f}%"


def _preflight(state: api.RunState) -> Iterator[str]:
    every = api.checked(state)
    rows = []
    for each in every:
        member = each.member
        versions = "" if member is None else f"{member.versions.get('mlx', '–')} / {member.versions.get('mlx-lm', '–')}"
        rows.append(
            (
                each.learner,
                each.verdict,
                "–" if member is None else amount(member.memory_bytes),
                versions,
                "–" if member is None else " ".join(member.backends),
                "–" if member is None or not member.tokens_per_s else f"{member.tokens_per_s:,.0f}",
                place(each),
            )
        )
    if rows:
        yield "preflight:"
        yield table(("MACHINE", "VERDICT", "FREE", "MLX / MLX-LM", "BACKENDS", "TOKENS/S", "ADDRESSES"), rows)
    pairs = [(who, each.learner, link) for each in every for who, link in each.ways]
    for who, whom, link in pairs[:PAIRS]:
        yield f"  {plain(who)} → {plain(whom)}: {way(link)}"
    if len(pairs) > PAIRS:
        yield f"  and {len(pairs) - PAIRS} more links: --json lists them"


def place(each: api.Checked) -> str:
    """A machine's addresses, with what they are."""
    addresses = each.member.addresses if each.member is not None else ()
    words = ", ".join(f"{a.address} ({a.kind})" for a in addresses[:3])
    return words + (f" and {len(addresses) - 3} more" if len(addresses) > 3 else "")


def way(link: api.Link) -> str:
    """How a machine is reached, or why not."""
    if link.error:
        return f"{link.address} not reached: {plain(link.error, 200)}"
    return f"{link.address}  {1000 * link.rtt_s:.1f} ms  {amount(round(link.bytes_per_s))}/s"


def _generations(state: api.RunState) -> Iterator[str]:
    every = state.ranks.generations
    if len(every) > GENERATIONS:
        yield f"{len(every) - GENERATIONS} earlier generations: --json lists them"
    for generation in every[-GENERATIONS:]:
        yield generation_words(generation)


def generation_words(g: api.Generation) -> str:
    """What became of a generation, in a line."""
    start = f" from step {g.plan.start.step} of generation {g.plan.start.generation}" if g.plan and g.plan.start else ""
    who = f": {', '.join(seat.learner for seat in g.seats)}{start}" if g.plan else ""
    if g.end is not None:
        reason = f": {plain(g.end.reason, 200)}" if g.end.reason else ""
        return f"generation {g.generation}{who}; ended, {g.end.ending}{reason}"
    if g.plan is None:
        come = ", ".join(dict.fromkeys(m.learner for m in g.members))
        return f"generation {g.generation} gathers: {come or 'nobody yet'}"
    lacking = f"; {', '.join(g.lacking)} not started yet" if g.lacking else ""
    return f"generation {g.generation}{who}{lacking}"


def told(state: api.RunState) -> list[str]:
    """Reports and evaluations, a line each."""
    reports = [(point.iteration, _point(point)) for point in state.ranks.points]
    evals = [(point.iteration, _point(point)) for point in state.ranks.evals]
    return [line for _, line in sorted([*reports, *evals], key=lambda each: each[0])]


def _point(point: api.TrainPoint | api.EvalPoint) -> str:
    match point:
        case api.TrainPoint():
            rate = f"{point.tokens_per_s:,.0f} tokens/s  learning rate {point.learning_rate:.3e}"
            return f"iteration {point.iteration}: train {number(point.train_loss)}  {rate}  epoch {point.epoch:.2f}"
        case api.EvalPoint():
            what = "val" if point.part == "valid" else "test"
            return f"iteration {point.iteration}: {what} {number(point.loss)}  {point.tokens:,} tokens"
        case _:
            assert_never(point)


def news(before: api.RunState, after: api.RunState) -> Iterator[str]:
    """What happened between two looks, a line each."""
    known = {g.generation: (g.plan, g.end) for g in before.ranks.generations}
    for g in after.ranks.generations:
        if (g.plan, g.end) != known.get(g.generation, (None, None)):
            yield generation_words(g)
    if after.ranks.points != before.ranks.points or after.ranks.evals != before.ranks.evals:
        said = set(told(before))
        yield from (line for line in told(after) if line not in said)


def changed(before: api.RunState, after: api.RunState) -> bool:
    """Whether there is anything new of a job that `--watch --json` tells of."""
    if api.progress(after) is None:
        return False
    return before.phase != after.phase or any(True for _ in news(before, after))


def objects(state: api.RunState) -> dict[str, Any]:
    """More of `swarm status` for --json."""
    planned, end = state.ranks.planned, state.ranks.ending
    return {
        "checkpoints": [
            {"generation": c.generation, "step": c.step, "iteration": c.iteration, "size_bytes": c.state.size_bytes}
            for c in state.ranks.checkpoints
        ],
        "members": [_member(state, rank) for rank in api.rank_views(state)],
        "history": api.job_rows(state),
        "plan": None if planned is None else planned.plan,
        "security": api.OPEN_RING if planned is not None and planned.plan and planned.plan.backend == "ring" else None,
        "preflight": [_checked(each) for each in api.checked(state)],
        "generations": [_generation(g) for g in state.ranks.generations],
        "ending": end,
    }


def _member(state: api.RunState, rank: api.RankView) -> dict[str, Any]:
    view = rank.view
    beat = view.beat if view is not None else None
    told = view.rank if view is not None and rank.compute is not None else None
    return ({} if view is None else spending.of_learner(view)) | {
        "learner": rank.learner,
        "state": None if view is None else learner_state(state, view),
        "doing": beat.doing if beat is not None else None,
        "rank": rank.rank,
        "size": rank.size or None,
        "generation": rank.generation,
        "address": rank.address or None,
        "share": rank.share,
        "step": beat.step if beat is not None and rank.rank is not None else None,
        "tokens_per_s": beat.tokens_per_s if beat is not None and rank.rank is not None else None,
        "loss": beat.loss if beat is not None else None,
        "compute": rank.compute,
        "communication": rank.exchange,
        "waiting": rank.waiting,
        "compute_s": told.compute_s if told is not None else None,
        "communication_s": told.exchange_s if told is not None else None,
        "waiting_s": told.waiting_s if told is not None else None,
        "update_s": told.update_s if told is not None else None,
        "memory_bytes": rank.memory_bytes,
        "microbatch_rows": rank.microbatch_rows,
        "refused": list(rank.refused),
        "next_generation": rank.next,
        "device": view.record.device if view is not None and view.record else None,
    }


def _checked(each: api.Checked) -> dict[str, Any]:
    member = each.member
    return {
        "learner": each.learner,
        "verdict": each.verdict,
        "rank": each.rank,
        "reasons": list(each.reasons),
        "memory_bytes": None if member is None else member.memory_bytes,
        "versions": {} if member is None else member.versions,
        "backends": [] if member is None else list(member.backends),
        "tokens_per_s": None if member is None else member.tokens_per_s or None,
        "addresses": [] if member is None else [{"address": a.address, "kind": a.kind} for a in member.addresses],
        "reached": [
            {
                "by": who,
                "address": link.address,
                "rtt_s": None if link.error else link.rtt_s,
                "bytes_per_s": None if link.error else link.bytes_per_s,
                "error": link.error or None,
            }
            for who, link in each.ways
        ],
    }


def _generation(g: api.Generation) -> dict[str, Any]:
    return {
        "generation": g.generation,
        "ranks": [seat.learner for seat in g.seats],
        "start": g.plan.start if g.plan is not None else None,
        "started": g.plan is not None and not g.lacking,
        "refused": [{"learner": r.learner, "reason": r.reason} for r in (g.plan.refused if g.plan else ())],
        "ending": g.end.ending if g.end is not None else None,
        "reason": g.end.reason if g.end is not None else None,
    }


def span(seconds_s: float | None) -> str:
    """A duration: '45 s', '12 min', '2 h 14 min', '3 d 4 h'."""
    if seconds_s is None:
        return "–"
    whole = round(seconds_s)
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
