"""Workers that fine-tune together over a real folder while people have them come and go, pause, stop and sleep."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest

pytest.importorskip("mlx_lm")

import mlx.core as mx

from swarm import api
from swarm.core.events import (
    Created,
    Freed,
    Gathering,
    GenerationOver,
    Held,
    JobSaved,
    Paused,
    RankPlaced,
    Resumed,
    WorkerEvent,
)
from swarm.core.finetune import FineTune
from swarm.core.jobs import CreateRun
from swarm.core.keys import RunKeys
from swarm.core.ranks import CheckpointAt
from swarm.mailbox import open_mailbox
from swarm.parallel.store import Store
from tests.integration.tiny_llama import completions, make_data, make_model, spec
from tests.process.machines import HANG_S, Machine, make_mailbox
from tests.process.terminal import ROOT, SABOTAGE

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("state_dir")]
Told = TypeVar("Told", bound=WorkerEvent)
FAST: dict[str, Any] = {"beat_s": 0.2, "lease_s": 2.0, "learning_rate": 1e-3, "val_batches": 0}
LONG: dict[str, Any] = {"iters": 1_000_000, "save_every": 50, "steps_per_report": 1000, **FAST}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_model(folder / "model")
    make_data(folder / "data", train=completions(40), valid=completions(5, seed=1))
    return folder


class Job:
    """A run and the machines that were started for it."""

    def __init__(self, folder: Path, made: Path, config: FineTune) -> None:
        self.folder, self.made = folder, made
        self.mailbox = make_mailbox(folder)
        self.create: CreateRun = api.new_finetuning(config, name="ft")
        self.run = self.create.run
        self.machines: list[Machine] = []

    def start(self, learner: str, *, adapter: bool = True, model: Path | None = None, **more: Any) -> Machine:
        """The first one makes the run."""
        first = not self.machines
        order = api.learn_order(
            self.mailbox,
            self.run,
            create=self.create if first else None,
            run_name="ft",
            learner_id=learner,
            model=str(model or self.made / "model"),
            data=str(self.made / "data") if first else None,
            adapter_path=str(self.folder / learner) if adapter else None,
            interface="lo0" if os.uname().sysname == "Darwin" else "lo",
            **more,
        )
        machine = Machine(order)
        self.machines.append(machine)
        if first:
            machine.until(lambda event: isinstance(event, Created))
        return machine

    def adapter(self, learner: str) -> dict[str, Any]:
        arrays: Any = mx.load(str(self.folder / learner / "adapters.safetensors"))
        return {name: np.array(array) for name, array in arrays.items()}

    def command(self, what: Callable[[str, str], Any]) -> None:
        asyncio.run(what(self.mailbox, self.run))

    def kept(self, generation: int) -> list[int]:
        """Steps whose checkpoints are in the mailbox."""

        async def look() -> list[int]:
            mailbox = open_mailbox(self.mailbox)
            await mailbox.open()
            store = Store(mailbox, RunKeys(self.run))
            steps = await store.steps(generation)
            for step in steps:
                assert await store.record(CheckpointAt(generation=generation, step=step))
            return steps

        return asyncio.run(look())


@contextlib.contextmanager
def job(folder: Path, made: Path, **values: Any) -> Iterator[Job]:
    """All that it started has ended afterwards."""
    found = Job(folder, made, spec(**values))
    try:
        yield found
    finally:
        for machine in found.machines:
            if machine.worker.process.poll() is None:
                machine.kill()


def rank_of(machine: Machine) -> psutil.Process:
    children = psutil.Process(machine.worker.process.pid).children()
    (rank,) = [child for child in children if "swarm.parallel.rank" in child.cmdline()]
    return rank


def mark(machine: Machine) -> int:
    """What is told from now on comes after this."""
    return len(machine.look())


def after(machine: Machine, seen: int, kind: type[Told], fits: Callable[[Told], bool] = lambda event: True) -> Told:
    """The first such event after those `seen`."""
    until_s = time.monotonic() + HANG_S
    while True:
        running = machine.worker.process.poll() is None
        for event in machine.look()[seen:]:
            if isinstance(event, kind) and fits(event):
                return event
        assert running, machine.words()
        assert time.monotonic() < until_s, f"{kind.__name__}: {machine.words()}"
        time.sleep(0.02)


def placed(machine: Machine, seen: int, size: int) -> RankPlaced:
    return after(machine, seen, RankPlaced, lambda event: event.size == size)


def gone(process: psutil.Process) -> None:
    """It has ended, whoever its parent is by now."""
    psutil.wait_procs([process], timeout=HANG_S)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_machines_come_and_go_and_the_job_is_stopped(made: Path, tmp_path: Path) -> None:
    with job(tmp_path, made, **LONG) as it:
        a, b = it.start("aa"), it.start("bb")
        placed(a, 0, 2)
        seen = mark(a)
        c = it.start("cc")
        over = after(a, seen, GenerationOver, lambda event: event.ending == "regroup")
        assert over.reason == "cc joins"
        assert set(placed(c, 0, 3).machines) == {"aa", "bb", "cc"}
        after(a, mark(a), JobSaved)

        seen = mark(a)
        b.worker.interrupt()
        assert b.wait() == 0, b.words()
        assert b.ended is not None
        assert b.ended.reason == "left"
        over = after(a, seen, GenerationOver)
        assert (over.ending, over.reason) == ("regroup", "bb leaves")
        assert placed(a, seen, 2).step == b.ended.iterations, "the checkpoint of that very step is kept"
        after(a, mark(a), JobSaved)

        it.command(api.stop_run)
        assert (a.wait(), c.wait()) == (0, 0), f"{a.words()} {c.words()}"
        assert [m.ended.reason if m.ended else "" for m in (a, c)] == ["stopped", "stopped"]
        assert same(it.adapter("aa"), it.adapter("cc"))
        assert a.ended is not None
        last = [event for event in a.events if isinstance(event, GenerationOver)][-1]
        assert it.kept(last.generation)[-1] == a.ended.iterations


@pytest.mark.slow
def test_a_pause_and_a_machine_that_sleeps(made: Path, tmp_path: Path) -> None:
    with job(tmp_path, made, **LONG) as it:
        a, b = it.start("aa"), it.start("bb", adapter=False)
        placed(b, 0, 2)
        after(a, mark(a), JobSaved)
        seen = mark(a), mark(b)
        it.command(api.pause_run)
        after(a, seen[0], Paused)
        after(b, seen[1], Paused)
        assert not [child for m in (a, b) for child in psutil.Process(m.worker.process.pid).children()], (
            "no rank runs meanwhile"
        )
        it.command(api.resume_run)
        after(a, seen[0], Resumed)
        first = placed(a, seen[0], 2)
        assert first.step > 0
        after(a, mark(a), JobSaved)

        rank, seen_a, seen_b = rank_of(b), mark(a), mark(b)
        os.kill(b.worker.process.pid, signal.SIGSTOP)
        rank.suspend()
        after(a, seen_a, GenerationOver, lambda event: event.ending == "lost" and "bb" in event.reason)
        alone = placed(a, seen_a, 1)
        after(a, mark(a), JobSaved)
        os.kill(b.worker.process.pid, signal.SIGCONT)  # it wakes, with a rank of a generation that is over
        gone(rank)
        after(b, seen_b, GenerationOver)
        together = placed(b, seen_b, 2)
        assert together.generation > alone.generation
        assert together.step > alone.step
        it.command(api.stop_run)
        assert (a.wait(), b.wait()) == (0, 0), f"{a.words()} {b.words()}"


def test_a_base_model_that_is_swapped_and_too_few_machines(made: Path, tmp_path: Path) -> None:
    mine = make_model(tmp_path / "mine")
    with job(tmp_path, made, world_size_min=2, **LONG) as it:
        a = it.start("aa")
        waits = after(a, 0, Gathering, lambda event: "waiting for 1 more machine" in event.reason)
        assert waits.generation == 0
        b = it.start("bb", model=mine)
        placed(a, 0, 2)
        after(a, mark(a), JobSaved)
        make_model(mine, seed=5)
        rank_of(b).kill()
        until_s = time.monotonic() + HANG_S
        words: list[str] = []
        while not any("differs" in each for each in words):  # whoever is to make the plan says why there is none
            assert time.monotonic() < until_s, f"{a.words()} {b.words()}"
            words = [
                event.reason for m in (a, b) for event in m.look() if isinstance(event, Gathering) and event.generation > 0
            ]
            time.sleep(0.02)
        refused = next(each for each in words if "differs" in each)
        assert "waiting for 1 more machine" in refused
        assert "bb: model/model.safetensors differs" in refused
        a.worker.interrupt()
        b.worker.interrupt()
        assert (a.wait(), b.wait()) == (0, 0), f"{a.words()} {b.words()}"
        assert [m.ended.reason if m.ended else "" for m in (a, b)] == ["left", "left"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_is_stopped_alone_is_ended_by_the_watchdogs(made: Path, tmp_path: Path) -> None:
    with job(tmp_path, made, **LONG) as it:
        a, b = it.start("aa"), it.start("bb")
        placed(b, 0, 2)
        saved = after(a, mark(a), JobSaved)
        rank, seen = rank_of(b), mark(a)
        rank.suspend()
        until_s = time.monotonic() + 400
        while not any(isinstance(event, GenerationOver) for event in a.look()[seen:]):
            assert time.monotonic() < until_s, a.words()
            time.sleep(0.5)
        gone(rank)
        assert placed(a, seen, 2).step >= saved.iteration
        it.command(api.stop_run)
        assert (a.wait(), b.wait()) == (0, 0)


def test_a_machine_that_holds_still_for_its_owner_has_no_rank_and_comes_back(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody = tmp_path / "somebody"
    monkeypatch.setenv("SABOTAGE", f"owner:{somebody}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SABOTAGE), str(ROOT)]))
    with job(tmp_path, made, **LONG) as ft:
        a, b = ft.start("a"), ft.start("b", idle_only=True)
        placed(a, 0, 2)
        placed(b, 0, 2)
        after(a, 0, JobSaved)
        rank, seen_a, seen_b = rank_of(b), mark(a), mark(b)
        somebody.touch()
        assert after(b, seen_b, Held).reason == "somebody is at the keyboard"
        gone(rank)
        alone = placed(a, seen_a, 1)
        assert alone.step > 0, "from the checkpoint"
        assert psutil.Process(b.worker.process.pid).children() == []
        seen_a, seen_b = mark(a), mark(b)
        somebody.unlink()
        after(b, seen_b, Freed)
        assert placed(b, seen_b, 2).step >= alone.step
        placed(a, seen_a, 2)
        ft.command(api.stop_run)
        assert (a.wait(), b.wait()) == (0, 0)
