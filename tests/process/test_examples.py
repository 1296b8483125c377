"""The examples, as a person runs them: in processes of their own, over a folder."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import swarm
from swarm.core.naming import run_id_of
from swarm.core.records import Control
from swarm.exchange import Exchange
from swarm.mailbox import open_mailbox
from swarm.manifests import read_manifest
from swarm.watch import RunWatch
from tests.process.machines import HANG_S, make_mailbox
from tests.process.terminal import eventually

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "assets" / "examples"


class Program:
    """A Python program with a mailbox, its output in a file."""

    def __init__(self, script: Path, *arguments: str, output: Path) -> None:
        self.output = output
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *arguments], stdout=file, stderr=file, env=environment, cwd=output.parent
            )

    @property
    def text(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def until(self, words: str) -> None:
        until_s = time.monotonic() + HANG_S
        while words not in self.text:
            assert self.process.poll() is None or words in self.text, self.text
            assert time.monotonic() < until_s, self.text
            time.sleep(0.02)

    def wait(self) -> int:
        return self.process.wait(HANG_S)


def learner(framework: str, mailbox: str, folder: Path, *, rounds: int = 6, example: str = "{}_learner.py") -> Program:
    pytest.importorskip({"torch": "torch", "mlx": "mlx.core"}[framework])
    arguments = ("--mailbox", mailbox, "--rounds", str(rounds), "--learner-id", framework)
    return Program(EXAMPLES / example.format(framework), *arguments, output=folder / f"{framework}.txt")


@pytest.mark.parametrize("order", [("torch", "mlx"), pytest.param(("mlx", "torch"), marks=pytest.mark.slow)], ids="-then-".join)
def test_torch_and_mlx_train_one_model_whoever_comes_first(tmp_path: Path, state_dir: Path, order: tuple[str, str]) -> None:
    mailbox = make_mailbox(tmp_path)
    first = learner(order[0], mailbox, tmp_path)
    first.until("waiting for 1 more learner")
    second = learner(order[1], mailbox, tmp_path)
    assert (first.wait(), second.wait()) == (0, 0), first.text + second.text
    assert "made run mlp" in first.text
    assert "made run" not in second.text
    ends = [re.search(r"done: 6 rounds, \d+ steps here, parameters ([0-9a-f]{64})", p.text) for p in (first, second)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0][1] == ends[1][1], "identical parameters"

    async def check() -> None:
        store = open_mailbox(mailbox)
        await store.open()
        exchange = Exchange(store, await read_manifest(store, run_id_of("mlp")))
        sizes = [{name: exchange.schema[name].size_bytes for name in names} for names in exchange.plan]
        assert sizes[0] == {"fc1.weight": 2048}
        assert sum(sizes[1].values()) == 912
        assert len(sizes[1]) == 5
        assert await exchange.newest_round() == 5
        for round in range(6):
            record = await exchange.round(round)
            assert record is not None
            assert sorted(p.learner for p in record.participants) == ["mlx", "torch"]
            assert record.rejected == ()
        watch = RunWatch(mailbox, exchange.manifest.run)  # what the screen shows
        state = await watch.poll()
        while watch.behind:
            state = await watch.poll()
        assert state.phase == "done"
        assert state.manifest == exchange.manifest

    asyncio.run(check())


@pytest.mark.slow
def test_torch_and_mlx_train_the_clients_of_one_fedavg(tmp_path: Path, state_dir: Path) -> None:
    mailbox = make_mailbox(tmp_path)
    first = learner("mlx", mailbox, tmp_path, rounds=1000, example="fedavg_{}.py")
    first.until("joined blobs")
    second = learner("torch", mailbox, tmp_path, rounds=1000, example="fedavg_{}.py")

    async def stop() -> set[str]:
        """When both have trained, and the model has had some rounds to learn in. Who trained."""
        store = open_mailbox(mailbox)
        await store.open()
        exchange = Exchange(store, await read_manifest(store, run_id_of("blobs")))
        until_s, trained, newest = time.monotonic() + HANG_S, set[str](), -1
        while len(trained) < 2 or newest < 7:
            assert time.monotonic() < until_s, first.text + second.text
            if newest < await exchange.newest_round():
                newest += 1
                record = await exchange.round(newest)
                assert record is not None
                assert len(record.participants) == 4
                assert record.rejected == ()
                trained |= {p.learner for p in record.participants}
            else:
                await asyncio.sleep(0.1)
        await exchange.control(Control(action="stop"))
        return trained

    assert asyncio.run(stop()) == {"torch", "mlx"}
    assert (first.wait(), second.wait()) == (0, 0), first.text + second.text
    assert "made run blobs" in first.text
    assert "made run" not in second.text
    ends = [re.search(r"stopped: \d+ rounds, \d+ clients here, parameters ([0-9a-f]{64})", p.text) for p in (first, second)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0][1] == ends[1][1], "identical parameters"
    told = re.findall(r"round (\d+): validation loss ([\d.]+)", first.text + second.text)
    losses = {int(round): float(loss) for round, loss in told}
    assert losses[max(losses)] < losses[min(losses)]


@pytest.mark.slow
def test_the_gpt_learns(tmp_path: Path, state_dir: Path) -> None:
    pytest.importorskip("torch")
    mailbox = make_mailbox(tmp_path)
    arguments = ("--tiny", "--mailbox", mailbox, "--rounds", "2", "--sync-every", "20")
    program = Program(EXAMPLES / "gpt2.py", *arguments, output=tmp_path / "gpt2.txt")
    assert program.wait() == 0, program.text
    losses = [float(loss) for loss in re.findall(r"validation loss ([\d.]+)", program.text)]
    assert len(losses) == 2
    assert losses[1] < losses[0] < 5.7, "a guess at one of 256 bytes has 5.55"
    assert "done: 2 rounds" in program.text


@pytest.mark.slow
def test_ctrl_c_leaves_and_the_program_goes_on(tmp_path: Path, state_dir: Path) -> None:
    mailbox = make_mailbox(tmp_path)
    program = learner("torch", mailbox, tmp_path)
    program.until("waiting for 1 more learner")
    program.process.send_signal(signal.SIGINT)
    assert program.wait() == 0, program.text
    assert re.search(r"^left: 0 rounds, \d+ steps here", program.text, re.MULTILINE), program.text
    assert "Traceback" not in program.text


@pytest.mark.parametrize("method", ["diloco", "fedavg"])
def test_the_commands_know_such_a_run(tmp_path: Path, state_dir: Path, method: str) -> None:
    mailbox = make_mailbox(tmp_path)
    params = {"w": np.arange(3, dtype=np.float32)}
    common: dict[str, Any] = {"mailbox": mailbox, "run": "mine", "learner_id": "me"}
    session: swarm.Session | swarm.ClientSession
    if method == "diloco":
        session = swarm.Session(params, algorithm=swarm.DiLoCo(beat_s=0.1, lease_s=1.0), **common)
        with session:
            session.leave()
    else:
        spec = swarm.FedAvg(clients=2, per_round=2, beat_s=0.1, lease_s=1.0)
        session = swarm.ClientSession(params, algorithm=spec, samples=[3, 4], rounds=1, **common)
        session.run(lambda client: [(0.5, client.samples)])

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "swarm", *arguments, "--mailbox", mailbox]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=HANG_S)

    assert re.search(rf"^mine +\w+ +{method} +library ", command("runs").stdout, re.MULTILINE)
    status = command("status", "mine")
    assert status.returncode == 0, status.stderr
    assert method == "diloco" or re.search(r"^client-0001 +1 +4 +0\.5", status.stdout, re.MULTILINE), status.stdout
    exported = command("export", "mine", str(tmp_path / "mine.safetensors"))
    assert exported.returncode == 0, exported.stderr
    joined = command("join", "mine")
    if method == "diloco":  # the other one has had all its rounds
        assert joined.returncode == 2
        assert "joined by starting that program here" in joined.stderr
    assert "Traceback" not in joined.stderr


QUEUE = """
import sys, time
import numpy as np, swarm

session = swarm.Session(
    {"w": np.zeros(3, np.float32)},
    algorithm=swarm.DiLoCo(beat_s=0.1, lease_s=1.0),
    mailbox=sys.argv[1], run="shared", learner_id=sys.argv[2],
)
with session:
    for unit in swarm.SharedQueue(session, "files", [f"file-{n}" for n in range(int(sys.argv[3]))]):
        print("begin", unit, flush=True)
        time.sleep(float(sys.argv[4]))
        print("end", unit, flush=True)
"""


def test_the_unit_of_a_killed_process_is_done_by_another_and_no_other_twice(tmp_path: Path, state_dir: Path) -> None:
    mailbox, script = make_mailbox(tmp_path), tmp_path / "units.py"
    script.write_text(QUEUE)
    victim = Program(script, mailbox, "victim", "12", "1000", output=tmp_path / "victim.txt")
    victim.until("begin")
    others = [Program(script, mailbox, name, "12", "0.01", output=tmp_path / f"{name}.txt") for name in ("a", "b")]
    eventually(lambda: any("end" in other.text for other in others), "one of them does a unit, if the other has not begun yet")
    os.kill(victim.process.pid, signal.SIGKILL)
    victim.wait()
    for other in others:
        assert other.wait() == 0, other.text
    begun = re.findall(r"begin (\S+)", victim.text)
    ended = [unit for other in others for unit in re.findall(r"end (\S+)", other.text)]
    assert sorted(ended) == sorted(f"file-{n}" for n in range(12))
    assert len(begun) == 1


def test_a_root_that_is_lazy_has_everything(state_dir: Path) -> None:
    assert {name for name in swarm.__all__ if getattr(swarm, name, None) is None} == set()
    assert set(swarm.__all__) <= set(dir(swarm))
