"""Ranks as processes: they train as one machine would, and none of them hangs when another is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx_lm")

import mlx.core as mx

from swarm.core.finetune import FineTune
from swarm.core.rankjob import HALTED, Halt, Phase, RankEvent, RankReady, RankStepped, Saved, Validated, encode_command
from swarm.tasks.lm import model as models
from tests.integration.tiny_llama import completions, make_data, make_model, spec
from tests.process.ranks import ROOT, Rank, ranks

pytestmark = pytest.mark.process

LONG = spec(iters=100_000, save_every=5, optimizer="sgd")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("job")
    data = make_data(folder / "data", train=completions(13), valid=completions(5, seed=1))
    return {"model": make_model(folder / "model"), "data": data}


def adapter(folder: Path) -> Any:
    arrays: Any = mx.load(str(folder / "adapters" / "adapters.safetensors"))
    return flat(arrays)


def flat(arrays: dict[str, Any]) -> Any:
    return np.concatenate([np.ravel(np.array(arrays[name])) for name in sorted(arrays)])


def untrained(folder: Path, config: FineTune) -> Any:
    model, _ = models.load_base(folder)
    models.prepare(model, config)
    return flat(models.trainables(model))


def finished(folder: Path, config: FineTune, places: dict[str, Path], **values: Any) -> list[Rank]:
    with ranks(folder, config, **places, **values) as all_ranks:
        for rank in all_ranks:
            assert rank.wait() == 0, rank.words()
            assert rank.ended.reason == "done"
    return all_ranks


def stepped(step: int) -> Any:
    def reached(event: RankEvent) -> bool:
        return isinstance(event, RankStepped) and event.step >= step

    return reached


def compare(places: dict[str, Path], folder: Path, config: FineTune, **values: Any) -> list[Rank]:
    (alone,) = finished(folder / "alone", config, places, size=1)
    together = finished(folder / "together", config, places, **values)
    one, other = adapter(folder / "alone"), adapter(folder / "together")
    size = np.linalg.norm(one)
    assert np.linalg.norm(one - other) / size <= 1e-5
    assert np.linalg.norm(one - untrained(places["model"], config)) / size > 1e-3  # what one rank added would show
    mine, theirs = alone.of(Validated)[-1], together[0].of(Validated)[-1]
    assert mine.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert mine.tokens == theirs.tokens
    assert [each.tokens for each in alone.of(RankStepped)] == [each.tokens for each in together[0].of(RankStepped)]
    return together


def test_two_ranks_train_as_one(places: dict[str, Path], tmp_path: Path) -> None:
    compare(places, tmp_path, spec(iters=6, optimizer="sgd"), size=2)


def test_two_ranks_train_whole_layers_as_one(places: dict[str, Path], tmp_path: Path) -> None:
    config = spec(iters=6, fine_tune_type="full", optimizer="sgd", grad_accumulation_steps=2, batch_size=3)
    compare(places, tmp_path, config, size=2, shares=(3, 1))


BUCKETS = spec(iters=6, fine_tune_type="full", optimizer="sgd", grad_accumulation_steps=2, batch_size=3, gradient_buckets=4)


def test_two_ranks_that_sum_in_buckets_train_as_one(places: dict[str, Path], tmp_path: Path) -> None:
    compare(places, tmp_path, BUCKETS, size=2, shares=(3, 1))


def test_a_rank_that_is_killed_ends_the_others_between_buckets(places: dict[str, Path], tmp_path: Path) -> None:
    config = spec(iters=100_000, save_every=5, optimizer="sgd", fine_tune_type="full", gradient_buckets=8)
    with ranks(tmp_path, config, **places, size=2) as (first, second):
        first.until(stepped(5))
        second.process.kill()
        assert first.wait() == 75, first.words()
        assert first.ended.again
        assert first.ended.error == "GroupBroken"


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(), (5, 2, 1), (1, 0, 1)])
@pytest.mark.parametrize(("kind", "buckets"), [("lora", 1), ("full", 1), ("full", 5)])
def test_three_ranks_train_as_one(
    places: dict[str, Path], tmp_path: Path, kind: str, buckets: int, shares: tuple[int, ...]
) -> None:
    config = spec(iters=9, fine_tune_type=kind, optimizer="sgd", gradient_buckets=buckets)
    together = compare(places, tmp_path, config, size=3, shares=shares)
    idle = [rank for rank, share in enumerate(shares) if share == 0]
    assert all(each.own_tokens == 0 for rank in idle for each in together[rank].of(RankStepped))


def test_a_killed_rank_ends_the_others_and_a_new_generation_goes_on(places: dict[str, Path], tmp_path: Path) -> None:
    with ranks(tmp_path, LONG, **places, size=2) as (first, second):
        first.until(lambda event: isinstance(event, Saved))
        second.process.kill()
        assert first.wait() == 75, first.words()
        assert first.ended.again
        assert first.ended.error == "GroupBroken"
        start = first.ended.checkpoint
    assert start is not None
    saved = first.of(Saved)[-1]
    assert saved.checkpoint == start
    with ranks(tmp_path, LONG, **places, size=1, generation=1, start=start) as (alone,):
        ready = alone.until(lambda event: isinstance(event, RankReady))
        assert isinstance(ready, RankReady)
        assert ready.step == saved.step
        alone.until(stepped(saved.step + 3))


def test_a_stopped_rank_ends_the_others_within_their_limit(places: dict[str, Path], tmp_path: Path) -> None:
    with ranks(tmp_path, LONG, **places, size=2, silence_s=2.0) as (first, second):
        first.until(stepped(5))
        second.process.send_signal(signal.SIGSTOP)
        assert first.wait() == 75, first.words()
        assert "no sign of progress" in first.ended.reason
        assert "newest MLX" in first.ended.reason
        assert first.ended.again
        second.process.send_signal(signal.SIGCONT)
        assert second.wait() == 75, second.words()


def test_a_rank_does_not_outlive_who_started_it(places: dict[str, Path], tmp_path: Path) -> None:
    with ranks(tmp_path, LONG, **places, size=1, leash=True) as (alone,):
        alone.until(stepped(2))
        assert alone.process.stdin is not None
        alone.process.stdin.close()
        assert alone.wait() == 75, alone.words()
        assert "is gone" in alone.ended.reason


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_halt_together_when_one_is_told_to(places: dict[str, Path], tmp_path: Path, size: int) -> None:
    with ranks(tmp_path, LONG, **places, size=size, leash=True) as all_ranks:
        told = all_ranks[-1]
        told.until(stepped(2))
        told.command(b'{"command": "of a later version"}\n')
        told.command(encode_command(Halt()))
        assert {rank.wait() for rank in all_ranks} == {HALTED}, told.words()
    endings = {(rank.ended.reason, rank.ended.step, rank.ended.again) for rank in all_ranks}
    assert len(endings) == 1, endings
    assert {rank.ended.reason for rank in all_ranks} == {"halted"}
    saved = all_ranks[0].of(Saved)[-1]
    assert saved.step == told.ended.step
    assert saved.checkpoint == all_ranks[0].ended.checkpoint
    assert "no command" in told.log.read_text()


@pytest.mark.slow
def test_a_rank_that_is_told_to_halt_while_it_prepares_ends_before_its_first_step(
    places: dict[str, Path], tmp_path: Path
) -> None:
    with ranks(tmp_path, LONG, **places, size=2, leash=True) as (first, second):
        second.command(encode_command(Halt()))
        assert [first.wait(), second.wait()] == [HALTED, HALTED], second.words()
    assert not first.of(RankStepped)
    assert first.ended.checkpoint is None
    assert second.ended.again


def test_a_stuck_rank_ends_also_when_nobody_reads_its_words(tmp_path: Path) -> None:
    """The pipe is full, and the thread that writes holds it for ever."""
    code = """if True:
        import os, threading, time
        from swarm.core.rankjob import Smaller
        from swarm.parallel.rank import Voice
        from swarm.parallel.watchdog import Watchdog
        voice = Voice()
        watchdog = Watchdog(lambda words: voice.last(words))
        watchdog.start()
        watchdog.expect("reading", 0.5)
        while True:
            voice.tell(Smaller(microbatch_tokens=1))
    """
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.wait(60) == 75
        finally:
            process.kill()


def test_ranks_that_do_not_come_together_end(places: dict[str, Path], tmp_path: Path) -> None:
    with ranks(tmp_path, LONG, **places, size=2, meet_s=8.0) as (first, second):
        second.process.kill()
        assert first.wait() == -signal.SIGALRM, first.words()
        assert [type(event) for event in first.events] == [Phase]


@pytest.mark.parametrize("argument", ["{", '{"rank": 1}', ""])
def test_a_plan_that_is_none_is_told(argument: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "swarm.parallel.rank", argument], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == len(done.stdout.splitlines()) == 1


def test_a_job_that_cannot_begin_says_why(places: dict[str, Path], tmp_path: Path) -> None:
    with ranks(tmp_path, LONG, model=tmp_path / "absent", data=places["data"], size=1) as (alone,):
        assert alone.wait() == 2
        assert "no config.json" in alone.ended.reason
        assert not alone.ended.again
