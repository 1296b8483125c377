"""Machines of a data-parallel job as real processes: each has folders of its own, all exchange over the loopback interface."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("mlx_lm")

from swarm import api
from swarm.core.events import GenerationOver, JobSaved, JobStepped, RankPlaced, Trouble
from swarm.core.finetune import FineTune
from swarm.core.jobs import CreateRun
from tests.integration.handmade import make_mailbox
from tests.integration.tiny_llama import completions, make_data, make_model
from tests.process.machines import Machine

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


class Lab:
    def __init__(self, folder: Path, mailbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.mailbox, self._patch = folder, mailbox, monkeypatch
        self.model = make_model(folder / "model")
        self.data = make_data(folder / "data", train=completions(40), valid=completions(8, seed=1))
        self.machines: list[Machine] = []

    def new(self, **values: object) -> CreateRun:
        fields = {"iters": 40, "batch_size": 4, "num_layers": -1, "max_seq_length": 64, "learning_rate": 1e-3, "val_batches": 2}
        tempo = {"beat_s": 0.2, "lease_s": 2.0, "steps_per_report": 10, "save_every": 10, "steps_per_eval": 1000}
        return api.new_finetuning(FineTune(**{**fields, **tempo, **values}), name="job")

    def start(self, name: str, run: CreateRun, *, create: bool = False, model: Path | None = None) -> Machine:
        self._patch.setenv("SWARM_CACHE_DIR", str(self.folder / name / "cache"))
        order = api.learn_order(
            self.mailbox,
            run.run,
            create=run if create else None,
            learner_id=name,
            data=str(self.data),
            model=str(model or self.model),
            adapter_path=str(self.adapters(name)),
            interface="lo0" if os.uname().sysname == "Darwin" else "lo",
        )
        self.machines.append(Machine(order))
        return self.machines[-1]

    def pair(self, run: CreateRun) -> tuple[Machine, Machine]:
        first = self.start("aa", run, create=True)
        first.until(lambda e: isinstance(e, RankPlaced) or "waiting" in getattr(e, "reason", ""))
        return first, self.start("bb", run)

    def adapters(self, name: str) -> Path:
        return self.folder / name / "adapters"


@pytest.fixture
def lab(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    found = Lab(tmp_path, make_mailbox(tmp_path / "mailbox"), monkeypatch)
    yield found
    for machine in found.machines:
        for process in (machine.worker.process, *rank_of(machine, patient=False)):
            process.kill()


def rank_of(machine: Machine, *, patient: bool = True) -> list[psutil.Process]:
    """The rank's process, below its agent's."""
    until_s = time.monotonic() + 30
    while True:
        try:
            found = psutil.Process(machine.worker.process.pid).children()
        except psutil.NoSuchProcess:
            return []
        if found or not patient or time.monotonic() > until_s:
            return found
        time.sleep(0.05)


def stepping(generation: int) -> Callable[[object], bool]:
    """Whether an event is of a step after the ranks of `generation` were placed."""
    seen = False

    def wanted(event: object) -> bool:
        nonlocal seen
        seen = seen or (isinstance(event, RankPlaced) and event.generation >= generation)
        return seen and isinstance(event, JobStepped)

    return wanted


def together(*machines: Machine) -> int:
    """Wait until both make steps in one generation, the number of which is returned."""
    found = {
        event.generation
        for event in (m.until(lambda e: isinstance(e, RankPlaced) and e.size == len(machines)) for m in machines)
        if isinstance(event, RankPlaced)
    }
    for machine in machines:
        machine.until(stepping(max(found)))
    return max(found)


def over(machine: Machine) -> list[GenerationOver]:
    return [event for event in machine.look() if isinstance(event, GenerationOver)]


def placed(machine: Machine) -> list[RankPlaced]:
    return [event for event in machine.look() if isinstance(event, RankPlaced)]


def test_two_machines_make_one_adapter_which_both_get(lab: Lab) -> None:
    first, second = lab.pair(lab.new(world_size_min=2))
    for machine in (first, second):
        assert machine.wait() == 0, machine.words()
        ended = machine.ended
        assert ended is not None
        assert (ended.reason, ended.iterations) == ("done", 40)
        assert ended.chat.startswith(f"mlx_lm.chat --model {lab.model} --adapter-path ")
    adapters = [(lab.adapters(name) / "adapters.safetensors").read_bytes() for name in ("aa", "bb")]
    assert adapters[0] == adapters[1]
    config = json.loads((lab.adapters("bb") / "adapter_config.json").read_text())
    assert config["fine_tune_type"] == "lora"
    assert (lab.adapters("aa") / "0000010_adapters.safetensors").is_file()
    from mlx_lm import load

    load(str(lab.model), adapter_path=str(lab.adapters("bb")))
    state = asyncio.run(api.RunWatch(lab.mailbox, placed_run(lab)).poll())
    assert state.phase == "done"


def placed_run(lab: Lab) -> str:
    return next(path.name for path in (Path(lab.mailbox) / "runs").iterdir())


def test_the_job_goes_on_when_a_rank_and_then_a_machine_is_killed(lab: Lab) -> None:
    first, second = lab.pair(lab.new(iters=4000, save_every=20))
    begun = together(first, second)
    saver = first if any(e.rank == 0 for e in placed(first)) else second
    saver.until(lambda e: isinstance(e, JobSaved))

    (rank,) = rank_of(second)
    rank.kill()
    lost = first.until(lambda e: isinstance(e, GenerationOver) and e.generation == begun)
    assert isinstance(lost, GenerationOver)
    assert (lost.ending, "bb" in lost.reason) == ("lost", True), lost
    for machine in (first, second):
        machine.until(stepping(begun + 1))
        assert placed(machine)[-1].size == 2
        assert placed(machine)[-1].step >= 20  # from a checkpoint, not from the beginning

    (orphan,) = rank_of(second)
    second.kill()
    first.until(lambda e: isinstance(e, RankPlaced) and e.size == 1 and e.generation > begun)
    assert orphan.wait(30) is not None or not orphan.is_running()
    first.until(stepping(placed(first)[-1].generation))

    joined = lab.start("cc", CreateRun(**{**as_fields(first), "name": "job"}))
    joined.until(lambda e: isinstance(e, RankPlaced))
    joined.until(lambda e: isinstance(e, JobStepped))
    assert any("cc joins" in each.reason and each.ending == "regroup" for each in over(first))

    joined.worker.interrupt()
    assert joined.wait() == 0, joined.words()
    assert joined.ended is not None
    assert joined.ended.reason == "left"
    first.until(lambda e: isinstance(e, GenerationOver) and e.reason.startswith("cc"))
    alone = first.until(lambda e: isinstance(e, RankPlaced) and e.generation > joined_in(joined))
    assert isinstance(alone, RankPlaced)
    assert alone.step > placed(joined)[-1].step  # what was under way was saved

    asyncio.run(api.stop_run(lab.mailbox, placed_run(lab)))
    assert first.wait() == 0, first.words()
    assert first.ended is not None
    assert first.ended.reason == "stopped"
    assert (lab.adapters("aa") / "adapters.safetensors").is_file()


def joined_in(machine: Machine) -> int:
    return placed(machine)[-1].generation


def as_fields(machine: Machine) -> dict[str, object]:
    order = json.loads((machine.worker.job / "order.json").read_bytes())["create"]
    run = api.new_finetuning(FineTune(), name="job")
    return {name: getattr(run, name) for name in run.__struct_fields__} | {"run": order["run"]}


def test_a_machine_that_sleeps_is_left_behind_and_one_with_another_model_is_refused(lab: Lab) -> None:
    run = lab.new(iters=4000, world_size_max=2)
    first, second = lab.pair(run)
    begun = together(first, second)
    (rank,) = rank_of(second)
    os.kill(second.worker.process.pid, signal.SIGSTOP)  # as a Mac that sleeps: its agent, and its rank
    rank.suspend()
    try:
        end = first.until(lambda e: isinstance(e, GenerationOver) and e.generation == begun)
        assert isinstance(end, GenerationOver)
        assert end.ending == "lost"
        assert "bb" in end.reason
        first.until(lambda e: isinstance(e, RankPlaced) and e.generation > begun)
        swapped = make_model(lab.folder / "swapped", seed=1)
        (lab.model / "model.safetensors").unlink()
        (lab.model / "model.safetensors").write_bytes((swapped / "model.safetensors").read_bytes())
    finally:
        rank.resume()
        os.kill(second.worker.process.pid, signal.SIGCONT)
    # It wakes up, and the model under the job is another one by now.
    second.until(lambda e: isinstance(e, Trouble) and "model/model.safetensors is not the run's any more" in e.message)
    for machine in (first, second):
        machine.worker.interrupt()
    for machine in (first, second):
        assert machine.wait() == 0, machine.words()


def test_nobody_trains_before_enough_machines_are_there_and_a_pause_lasts(lab: Lab) -> None:
    run = lab.new(iters=4000, world_size_min=2)
    first = lab.start("aa", run, create=True)
    first.until(lambda e: "waiting for 1 more machine" in getattr(e, "reason", ""))
    second = lab.start("bb", run)
    first.until(stepping(0))
    asyncio.run(api.pause_run(lab.mailbox, run.run))
    for machine in (first, second):
        machine.until(lambda e: type(e).__name__ == "Paused")
    assert [each.ending for each in over(first)] == ["regroup"]
    asyncio.run(api.resume_run(lab.mailbox, run.run))
    for machine in (first, second):
        machine.until(stepping(1))
    assert placed(first)[-1].step > 0
    asyncio.run(api.stop_run(lab.mailbox, run.run))
    for machine in (first, second):
        assert machine.wait() == 0, machine.words()
