"""What is concluded from a data-parallel job's records, in whatever order they are seen."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core import rankstate, rankview
from swarm.core.finetune import FineTune
from swarm.core.keeping import OLDER
from swarm.core.ranks import CheckpointAt, GenerationEnd, JobLog, Plan, Ready
from swarm.core.rankstate import Generation, Log, Ranks
from swarm.core.records import Beat, Control, RankBeat
from swarm.core.state import ControlRead, ManifestRead, RunState, apply
from tests.integration import handmade_job as made

STOPPED = GenerationEnd(generation=2, ending="stopped", by="mbp", reason="the loss is NaN at step 612")


def folded(records: list[Any]) -> Ranks:
    state = apply(RunState(run="k4m7q2xw"), ManifestRead(made.manifest()))
    for event in made.events(records):
        state = apply(state, event)
    return state.ranks


def test_steps_after_a_later_generations_start_are_dropped() -> None:
    ranks = folded(made.job())
    assert [p.iteration for p in ranks.points] == list(range(10, 601, 10))
    assert [round(p.train_loss - made.loss_at(p.iteration), 6) for p in ranks.points if p.train_loss] == [0.5] * 20 + [0.0] * 40
    assert [e.iteration for e in ranks.evals] == [200, 400, 600]
    assert [(g.generation, g.end.ending if g.end else "") for g in ranks.generations] == [
        (0, "lost"),
        (1, "rendezvous"),
        (2, ""),
        (3, ""),
    ]
    assert ranks.planned is ranks.under_way is ranks.find(2)


@given(st.randoms(use_true_random=False), st.booleans())
def test_the_order_in_which_records_are_seen_changes_nothing(chance: random.Random, finished: bool) -> None:
    records = made.job(upto=260, finished=finished)
    logs = [r for r in records if isinstance(r, JobLog)]  # a log is read in its order
    others = [r for r in records if not isinstance(r, JobLog)]
    chance.shuffle(others)
    mixed = others
    for g in (0, 2):
        at = sorted(chance.randrange(len(mixed) + 1) for part in logs if part.generation == g)
        for moved, (place, part) in enumerate(zip(at, [p for p in logs if p.generation == g], strict=True)):
            mixed = [*mixed[: place + moved], part, *mixed[place + moved :]]
    seen, expected = folded(mixed), folded(records)
    assert (seen.points, seen.evals, seen.ending) == (expected.points, expected.evals, expected.ending)
    known = [(g.generation, g.plan, g.end, g.parts, g.started, set(g.ready)) for g in seen.generations]
    assert known == [(g.generation, g.plan, g.end, g.parts, g.started, set(g.ready)) for g in expected.generations]
    assert [m.learner for m in (seen.planned or Generation(generation=0)).members] == ["air", "linux-3090", "mbp", "studio"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 4)), min_size=1, max_size=6))
def test_what_counts_is_one_history(plans: list[tuple[int, int, int]]) -> None:
    """However generations follow each other: every iteration once, in order, and of the newest generation that counts."""
    ranks, written = Ranks(), {}
    for generation, (from_, step, more) in enumerate(plans):
        start = CheckpointAt(generation=min(from_, generation - 1), step=step) if generation else None
        ranks = rankstate.found(ranks, Generation(generation=generation, plan=made.plan(generation, ("mbp",), start=start)))
        first = start.step if start else 0
        written[generation] = range(first + 1, first + more + 1)
        parts = made.log(generation, first, first + more, every=1)
        ranks = rankstate.logged(ranks, Log(generation=generation, parts=tuple(parts)))
    iterations = [p.iteration for p in ranks.points]
    assert all(a < b for a, b in itertools.pairwise(iterations))
    kept = rankstate.chain(ranks)
    assert kept[-1] == (ranks.planned, None)
    for generation, point in rankstate.told(ranks):
        later = [g for g, _ in kept if g.generation > generation]
        assert point.iteration in written[generation]
        assert all(point.step <= g.plan.start.step for g in later if g.plan and g.plan.start)


def test_parts_of_a_log_come_in_order_or_not_at_all() -> None:
    parts = made.log(0, 0, 50)
    ranks = rankstate.found(Ranks(), Generation(generation=0, plan=made.plan(0, ("mbp",))))
    gap = rankstate.logged(ranks, Log(generation=0, parts=(parts[0], parts[2])))
    assert [p.iteration for p in gap.points] == [10]
    assert rankstate.logged(gap, Log(generation=0, parts=(parts[0],))) is gap
    assert rankstate.logged(gap, Log(generation=0, parts=(msgspec.structs.replace(parts[1], generation=1),))) is gap
    whole = rankstate.logged(gap, Log(generation=0, parts=tuple(parts[1:])))
    assert [p.iteration for p in whole.points] == [10, 20, 30, 40, 50]


def test_shares_are_those_told_last() -> None:
    told = JobLog(generation=2, n=0, shares=(5, 3, 2))
    ranks = folded([*[r for r in made.job() if not isinstance(r, JobLog) or r.generation == 0], told])
    planned = ranks.planned
    assert planned is not None
    assert [planned.share(n) for n in range(3)] == [5, 3, 2]
    other = msgspec.structs.replace(planned, shares=(1, 2))  # of another number of ranks
    assert [other.share(n) for n in range(3)] == [1210, 455, 820]


def test_members_of_old_generations_are_forgotten_and_their_ends_are_not() -> None:
    ranks = Ranks()
    for g in range(6):
        end = GenerationEnd(generation=g, ending="rendezvous", by="mbp", reason="late")
        ranks = rankstate.found(ranks, Generation(generation=g, members=(made.member("mbp", g),), end=end))
    assert [len(g.members) for g in ranks.generations] == [0, 0, 0, 0, 1, 1]
    assert all(g.end is not None for g in ranks.generations)


def test_the_time_left_follows_from_recent_reports() -> None:
    ranks = folded(made.job())
    # 1200 tokens an iteration at 2485 tokens/s; 400 iterations and validations after 800 and 1000 are left, 3 s each.
    assert rankstate.remaining_s(ranks, made.SPEC, 600) == pytest.approx(400 * 1200 / 2485 + 2 * 3.0)
    assert rankstate.remaining_s(ranks, made.SPEC, 1000) == 0.0
    assert rankstate.remaining_s(Ranks(), made.SPEC, 0) is None
    unevaluated = FineTune(iters=1000, val_batches=0)
    assert rankstate.remaining_s(ranks, unevaluated, 600) == pytest.approx(400 * 1200 / 2485)


def test_a_new_generation_is_timed_by_its_own_reports() -> None:
    records = [r for r in made.job() if not isinstance(r, JobLog) or r.generation == 0]
    slower = JobLog(generation=2, n=0, points=(made.point(210, tokens_per_s=1000.0),))
    before, after = folded(records), folded([*records, slower])
    assert rankstate.iteration_s(before) == pytest.approx(1200 / 2485)
    assert rankstate.iteration_s(after) == pytest.approx(1.2)


def test_a_beat_in_the_middle_of_a_step_keeps_what_the_last_step_took() -> None:
    timed = RankBeat(generation=1, rank=0, size=2, compute_s=3.0, waiting_s=1.0, memory_bytes=5)
    middle = RankBeat(generation=1, rank=0, size=2, memory_bytes=7)
    kept = rankstate.newest_rank(timed, middle)
    assert kept is not None
    assert (kept.compute_s, kept.waiting_s, kept.memory_bytes) == (3.0, 1.0, 7)
    elsewhere = msgspec.structs.replace(middle, generation=2)
    assert rankstate.newest_rank(timed, elsewhere) is elsewhere
    assert rankstate.newest_rank(timed, None) is None


def waiting(**more: Any) -> RunState:
    records = [r for r in made.job(late=False) if getattr(r, "generation", None) in (0, 1)]
    return made.seen([*records, made.member("studio", 2)], trains=False, **more)


@pytest.mark.parametrize(
    ("state", "phase", "waits_for"),
    [
        (made.seen(made.job()), "running", ""),
        (made.seen(made.job(), live=False), "idle", ""),
        (made.seen(made.job(upto=1000, finished=True), live=False), "done", ""),
        (made.seen(made.job(ending=STOPPED)), "stopped", ""),
        (waiting(words={"studio": "waiting for 1 more machine; not here: mbp"}), "waiting", "1 more machine; not here: mbp"),
        (waiting(words={"air": "measuring links: air to mbp"}), "waiting", "measuring links: air to mbp"),
        (waiting(words={"studio": ""}), "waiting", "1 more machine"),
        (waiting(words={"studio": "", "mbp": ""}), "waiting", "the machines to agree on a plan"),
    ],
    ids=["running", "idle", "done", "failed", "lacking", "measuring", "wordless", "planless"],
)
def test_the_phase_of_a_job(state: RunState, phase: str, waits_for: str) -> None:
    assert state.phase == phase
    if phase == "waiting":
        assert state.waits_for == waits_for


def test_a_job_waits_for_the_ranks_that_have_not_started() -> None:
    records = [r for r in made.job(late=False) if not (type(r).__name__ == "Started" and r.learner == "mbp")]
    state = made.seen(records, trains=False, words={"studio": "", "mbp": ""})
    assert (state.phase, state.waits_for) == ("waiting", "the ranks of mbp")


def test_a_stop_is_in_effect_when_nobody_is_there_to_heed_it() -> None:
    running, idle = made.seen(made.job()), made.seen(made.job(), live=False)
    stop = ControlRead(1, Control(action="stop", by="mbp"))
    asked = apply(running, stop)
    assert (asked.phase, asked.effect.stopping) == ("running", True)
    assert apply(idle, stop).phase == "stopped"


def test_how_far_a_job_is() -> None:
    running = rankview.progress(made.seen(made.job(), step=604))
    assert running is not None
    assert (running.iteration, running.iters, running.epoch, running.epochs) == (604, 1000, 1.5, 2.5)
    assert running.tokens_per_s == pytest.approx(2485, rel=0.2)
    assert running.val_loss == pytest.approx(made.loss_at(600) + 0.1)
    assert running.eta_s == pytest.approx(396 * 1200 / 2485 + 6.0)
    idle = rankview.progress(made.seen(made.job(), live=False))
    assert idle is not None
    assert (idle.iteration, idle.eta_s, idle.tokens_per_s) == (600, None, 2485.0)
    assert rankview.progress(RunState(run="x")) is None


def test_a_generation_that_goes_back_is_not_ahead_by_an_older_ones_steps() -> None:
    records = [r for r in made.job(late=False) if not isinstance(r, JobLog) or r.generation == 0]
    state = made.seen([r for r in records if type(r).__name__ != "JobCheckpoint"], trains=False, words={"studio": ""})
    progress = rankview.progress(state)
    assert progress is not None
    assert progress.iteration == 200


def test_ranks_and_whoever_has_none() -> None:
    views = rankview.rank_views(made.seen(made.job()))
    assert [(v.learner, v.rank, v.next) for v in views] == [
        ("linux-3090", 0, False),
        ("mbp", 1, False),
        ("studio", 2, False),
        ("air", None, False),
        ("mini", None, True),
    ]
    slow, fast = views[1], views[2]
    assert (slow.compute, slow.exchange, slow.waiting) == (pytest.approx(0.9), pytest.approx(0.1), 0.0)
    assert (fast.compute, fast.exchange, fast.waiting) == (pytest.approx(0.65), pytest.approx(0.1), pytest.approx(0.25))
    assert (slow.address, slow.microbatch_rows, slow.memory_bytes, slow.generation) == ("192.168.1.21:21000", 1, 7 << 30, 2)
    assert sum(v.share or 0 for v in views) == pytest.approx(1.0)
    assert views[3].refused == (made.OTHER_MLX,)


def test_the_preflight_table_tells_each_reason() -> None:
    table = {c.learner: c for c in rankview.checked(made.seen(made.job()))}
    assert {who: c.verdict for who, c in table.items()} == {
        "linux-3090": "rank 0",
        "mbp": "rank 1",
        "studio": "rank 2",
        "air": "refused",
        "mini": "next generation",
    }
    assert table["air"].reasons == (made.OTHER_MLX,)
    assert [who for who, _ in table["studio"].ways] == ["air", "linux-3090", "mbp"]
    assert table["mini"].member is not None


def test_a_machine_that_cannot_take_its_place_says_why() -> None:
    records = [r for r in made.job(late=False) if not isinstance(r, Ready)]
    held = Ready(generation=2, learner="mbp", incarnation=1, refusal="port 21000 is held by another program")
    table = {c.learner: c for c in rankview.checked(made.seen([*records, held]))}
    assert table["mbp"].reasons == ("port 21000 is held by another program",)
    other = msgspec.structs.replace(held, incarnation=7)  # not the one of the plan
    assert rankview.refusals(made.seen([*records, other])) == {"air": (made.OTHER_MLX,)}


def test_while_machines_meet_the_table_is_of_the_new_generation() -> None:
    records = [r for r in made.job(late=False) if not isinstance(r, Plan) or r.generation == 0]
    unreached = msgspec.structs.replace(
        made.probe("studio", "mbp", 2, error="no connection within 3 s"),
        learner="mini",
        links=made.probe("studio", "mbp", 2, error="no connection within 3 s").links,
    )
    table = {c.learner: c for c in rankview.checked(made.seen([*records, unreached], trains=False, words={"mbp": ""}))}
    assert {c.verdict for c in table.values()} == {"being checked"}
    assert [link.error for who, link in table["mbp"].ways if who == "mini"] == ["no connection within 3 s"]


def test_the_history_has_a_row_for_each_iteration() -> None:
    rows = rankview.job_rows(made.seen(made.job()))
    assert [row["iteration"] for row in rows] == list(range(10, 601, 10))
    assert {row["generation"] for row in rows[:20]} == {0}
    assert {row["generation"] for row in rows[20:]} == {2}
    assert len({tuple(row) for row in rows}) == 1
    assert [row["iteration"] for row in rows if row["val_loss"] is not None] == [200, 400, 600]


def test_a_refused_machine_is_no_rank_by_its_beats() -> None:
    state = made.seen(made.job())
    views = {v.learner: v for v in rankview.rank_views(state)}
    assert views["air"].view is not None
    assert views["air"].view.beat == Beat(phase="wait", doing=made.OTHER_MLX)
    assert views["air"].compute is None


def test_the_reports_of_a_long_job_are_thinned_and_its_speed_is_that_of_the_newest() -> None:
    """Two generations of 1,500 reports each, the second of which goes on where the first was saved."""
    keep, events = 64, []
    for generation, (first, last) in enumerate(((0, 30_000), (20_000, 50_000))):
        start = CheckpointAt(generation=0, step=first) if generation else None
        events.append(Generation(generation=generation, plan=made.plan(generation, ("mbp",), start=start)))
        parts = made.log(generation, first, last, every=20)
        events += [Log(generation=generation, parts=tuple(parts[n : n + 50])) for n in range(0, len(parts), 50)]
    whole, kept = Ranks(), Ranks()
    for event in events:
        if isinstance(event, Generation):
            whole, kept = rankstate.found(whole, event), rankstate.found(kept, event, keep=keep)
        else:
            whole, kept = rankstate.logged(whole, event), rankstate.logged(kept, event, keep=keep)
    assert sum(len(g.points) for g in kept.generations) <= OLDER + keep < len(whole.points)
    assert set(kept.points) <= set(whole.points)
    assert kept.points[-keep:] == whole.points[-keep:]
    assert kept.points[0] == whole.points[0]
    assert max(b.iteration - a.iteration for a, b in itertools.pairwise(kept.points)) <= 8 * 20
    assert rankstate.iteration_s(kept) == rankstate.iteration_s(whole)
    assert kept.planned is not None
    assert whole.planned is not None
    assert (kept.planned.parts, kept.evals) == (whole.planned.parts, whole.evals), "which are few"
