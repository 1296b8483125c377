"""A run that has ended is browsed from its records alone: whoever opens it later sees the curves and rounds that a screen drew
which watched it, though nobody is left of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarm import api
from swarm.core.finetune import FineTune
from swarm.core.keys import RunKeys
from swarm.core.specs import DiLoCo
from swarm.watch import RunWatch
from tests.integration import handmade_job as made
from tests.integration.handmade import (
    evaluate,
    fed_records,
    make_mailbox,
    make_run,
    round_records,
    stop,
    write_fed_rounds,
    write_rounds,
)
from tui.messages import RunAt, RunShown
from tui.screens.compare import BothRuns
from tui.view_curves import AXES, PlotView, chart, metrics
from tui.view_rounds import closed_round_lines

KEPT = 64
SPEC = DiLoCo(sync_every=10, quorum_size=1, beat_s=0.2, lease_s=2.0)


@pytest.fixture(autouse=True)
def _own_files(state_dir: Path) -> None:
    """No test looks at this machine's settings and jobs."""


def drawn(state: api.RunState) -> list[object]:
    views = [
        PlotView(m.key, axis, window=n, each=each) for m in metrics(state) for axis in AXES for n in range(3) for each in (0, 1)
    ]
    return [(view, chart(state, view)) for view in views]


@pytest.mark.parametrize("end", ["done", "stopped"])
def test_a_run_opened_later_draws_the_curves_of_one_that_was_watched(tmp_path: Path, end: str) -> None:
    location = make_mailbox(tmp_path / "m")
    manifest = make_run(location, "mlp-one", "aaaa1111", rounds=150, algorithm=SPEC)
    count = 150 if end == "done" else 90
    records = round_records(manifest, count)

    async def follow() -> api.RunState:
        watch = RunWatch(location, manifest.run, keep=KEPT)
        for round, data in enumerate(records):
            path = Path(location, RunKeys(manifest.run).round(round))
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
            if round % 10 == 5:
                evaluate(location, manifest.run, round - 1, accuracy=0.5 + round / 1000, confusion=False)
            if round % 7 == 0:
                await watch.poll()
        return await watch.poll()

    watched = asyncio.run(follow())
    if end == "stopped":
        stop(location, manifest.run)

    async def later() -> api.RunState:
        return await RunWatch(location, manifest.run, keep=KEPT).poll()

    opened = asyncio.run(later())
    assert opened.phase == end
    assert not opened.learners  # nothing but records
    assert drawn(opened) == drawn(watched)
    assert len(metrics(opened)) >= 5
    lines = closed_round_lines(opened, width=80)
    assert lines == closed_round_lines(watched, width=80)
    assert [line[0][0].strip() for line in lines[:2]] == [f"r{count - 1}", f"r{count - 2}"]


def test_a_job_that_is_done_is_drawn_from_its_records(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "m")
    spec = FineTune(iters=1000, world_size_min=2, beat_s=0.2, lease_s=2.0)
    made.write(location, made.manifest(spec), made.job(upto=1000, finished=True))

    async def later() -> api.RunState:
        return await RunWatch(location, "k4m7q2xw", keep=KEPT).poll()

    opened = asyncio.run(later())
    assert opened.phase == "done"
    train, validation = chart(opened, PlotView()).traces
    assert [x for x, _ in train.points] == list(range(10, 1001, 10))
    assert [x for x, _ in validation.points] == [200, 400, 600, 800, 1000]


async def test_both_runs_are_read_each_from_its_own_mailbox(tmp_path: Path) -> None:
    def prepare() -> tuple[str, str]:
        here, there = make_mailbox(tmp_path / "here"), make_mailbox(tmp_path / "there")
        write_rounds(here, make_run(here, "one", "aaaa1111", algorithm=SPEC), 3)
        fed = make_run(there, "two", "bbbb2222", algorithm=api.FedAvg(clients=4, beat_s=0.2, lease_s=2.0))
        assert fed_records(fed, 2)
        write_fed_rounds(there, fed, 2)
        return here, there

    here, there = await asyncio.to_thread(prepare)
    question = BothRuns((RunAt(here, "aaaa1111"), RunAt(there, "bbbb2222")))
    one, other = await question.answer(api)
    assert (one.name, other.name) == ("one", "two")
    assert (one.state.open_round, other.state.open_round) == (3, 2)  # type: ignore[union-attr]
    again, _ = await question.answer(api)
    assert again.state.rounds[0] is one.state.rounds[0], "what was read is kept"  # type: ignore[union-attr]
    gone = BothRuns((RunAt(here, "aaaa1111"), RunAt(there, "cccc3333")))
    one, other = await gone.answer(api)
    assert one.state is not None
    assert other.state is None
    assert "cccc3333" in other.problem
    nowhere = BothRuns((RunAt(str(tmp_path / "away"), "aaaa1111"), RunAt(there, "bbbb2222")))
    one, other = await nowhere.answer(api)
    assert other.state is not None
    assert one.problem or (one.state is not None and one.state.lost)


def test_a_shown_run_needs_nobody(tmp_path: Path) -> None:
    """The Run screen's words over a run of records alone."""
    from tui import view_run

    location = make_mailbox(tmp_path / "m")
    manifest = make_run(location, "mlp-one", "aaaa1111", rounds=3, algorithm=SPEC)
    write_rounds(location, manifest, 3)

    async def later() -> api.RunState:
        return await RunWatch(location, manifest.run, keep=KEPT).poll()

    shown = RunShown(at=RunAt(location, manifest.run), state=asyncio.run(later()), now_s=1.0)
    assert view_run.learner_rows(shown) == ()
    assert "done" in "".join(words for line in view_run.banner(shown) for words, _ in line)
