"""What is said of two runs side by side comes from the run's curves, however few of its records are kept."""

from __future__ import annotations

import msgspec
import pytest

from swarm.core.comparison import At, Standing, differing, history, standing, totals, unit_of
from swarm.core.finetune import FineTune
from swarm.core.manifest import Manifest, PayloadRef, TaskRef
from swarm.core.records import EvalRecord, Participant, RoundRecord
from swarm.core.specs import DiLoCo
from swarm.core.state import EvalRead, ManifestRead, RoundRead, RunState, apply
from swarm.core.tensorspec import TensorSpec
from tests.integration import handmade_job


def run(rounds: int, *, name: str = "one", **settings: int) -> RunState:
    made = Manifest(
        run="k4m7q2xw",
        name=name,
        algorithm=DiLoCo(quorum_size=1, **settings),
        task=TaskRef(name="mlp"),
        tensors=(TensorSpec("w", "F32", (4, 4)),),
        schema_sha256="0" * 64,
        init=(),
        rounds=40,
    )
    state = apply(RunState(run=made.run), ManifestRead(made))
    for round in range(rounds):
        part = Participant(
            learner="ab"[round % 2],
            unit="u",
            weight=1.0,
            tokens=10,
            steps=5,
            train_loss=4.0 - round,
            seconds_s=2.0,
            size_bytes=8,
        )
        theta = PayloadRef(round=round, sha256="1" * 64, size_bytes=1)
        record = RoundRecord(
            round=round,
            fragment=0,
            step=0,
            version=round,
            parent=None,
            participants=(part,),
            rejected=(),
            theta=theta,
            close_s=1.0,
            outer=None,
        )
        state = apply(state, RoundRead(record))
    return state


def test_the_standing_is_that_of_the_last_round() -> None:
    state = run(3)
    for round, loss in ((0, 3.5), (1, 2.0), (2, None)):
        state = apply(state, EvalRead(EvalRecord(round=round, learner="a", loss=loss, metrics={"accuracy": 0.1 * round})))
    now = standing(state)
    assert now == Standing(
        done=3, tokens=30, seconds_s=9.0, learners=2, last_train=2.0, best_val=2.0, last_val=2.0, best_accuracy=0.2
    )
    assert history(state)[-1] == At(2, now.tokens, now.seconds_s, 2.0, None, 0.2)
    assert standing(msgspec.structs.replace(state, rounds=state.rounds[-1:])) == now


def test_totals_and_settings_in_words() -> None:
    here, there = run(3, sync_every=10), run(1, sync_every=20)
    assert ("sync_every", "10", "20") in differing(here, there)
    assert not [name for name, *_ in differing(here, there) if name in ("seed", "outer_lr", "task")]
    rows = {name: (one, other) for name, one, other in totals(here, there)}
    assert rows["rounds so far"] == ("3", "1")
    assert rows["learners"] == ("2", "1")
    assert rows["time in rounds"] == ("9.0 s", "3.0 s")
    assert "best accuracy" not in rows


def test_a_run_that_nothing_is_known_of_stands_nowhere() -> None:
    assert standing(RunState(run="x")) == Standing()
    assert differing(RunState(run="x"), run(1)) == []
    assert {n: (a, b) for n, a, b in totals(RunState(run="x"), run(1))}["work"] == ("–", "10")


def test_a_data_parallel_job_stands_at_its_last_report() -> None:
    job = handmade_job.seen(handmade_job.job(upto=600), spec=FineTune(world_size_min=2))
    now = standing(job)
    assert unit_of(job) == "iteration"
    assert now.done == 604  # as its ranks tell; the last report was of 600
    assert (now.tokens, now.seconds_s) == (history(job)[-1].tokens, pytest.approx(history(job)[-1].seconds_s))
    assert now.learners == 3
    assert now.best_val is not None
    assert ("iterations so far", "604", "3 rounds") in totals(job, run(3))
