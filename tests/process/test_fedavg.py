"""FedAvg as people run it: commands and workers in real processes over a real folder, some of them killed or stopped."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swarm import api
from swarm.tasks.lenet5 import places
from tests.process.machines import check_mailbox
from tests.process.terminal import Command, Terminal, eventually

pytest.importorskip("torch")
pytest.importorskip("mlx.core")
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SEEDS = ("--model-seed", "17", "--training-seed", "29", "--selection-seed", "5", "--partition-seed", "7")
LEASE = ("--beat-s", "0.2", "--lease-s", "2")
LOCAL = ("--batch-size", "8", "--local-epochs", "3", "--optimizer", "momentum", "--momentum", "0.9", "--lr", "0.02")
MLP = ("--task", "lenet5", "-o", "model=mlp", "--clients", "6", "--per-round", "3", *LOCAL, *LEASE)
ROUNDS = 6
FRAMEWORKS = ("torch", "mlx")


def on_cpu(framework: str = "mlx") -> tuple[str, ...]:
    return ("--framework", framework, "--device", "cpu")


def begin(swarm: Terminal, name: str, *argv: str, framework: str = "mlx", rounds: int | None = ROUNDS) -> Command:
    """Start a run and train in it, as learner 'a' if nothing else is said."""
    ends = () if rounds is None else ("--rounds", str(rounds))
    who = () if "--learner-id" in argv else ("--learner-id", "a")
    return swarm.start("start", "fedavg", *MLP, *on_cpu(framework), *ends, "--name", name, *who, *argv)


def join(swarm: Terminal, name: str, learner: str, *argv: str, framework: str = "mlx") -> Command:
    return swarm.start("join", name, *on_cpu(framework), "--learner-id", learner, *argv)


def ended(*commands: Command, code: int = 0) -> None:
    for command in commands:
        assert command.wait() == code, str(command)


def theta(swarm: Terminal, name: str, folder: Path) -> bytes:
    """The committed parameters, as `swarm export` writes them."""
    file = folder / f"{name}.safetensors"
    swarm.run("export", name, str(file))
    return file.read_bytes()


def history(swarm: Terminal, name: str) -> list[dict[str, Any]]:
    """The run's rounds, oldest first; each with `clients`, `rejected` and `reason`."""
    [found] = swarm.objects("status", name)
    return found["history"]  # type: ignore[return-value]


def check_counts(rounds: Sequence[dict[str, Any]], count: int, *, per_round: int = 3) -> None:
    """Every round is there once, and all its clients count, each once."""
    assert [told["round"] for told in rounds] == list(range(count))
    for told in rounds:
        units = [client["unit"] for client in told["clients"]]
        assert len(set(units)) == len(units) == per_round, told


def pid_of(learner: str) -> int:
    return next(job.pid for job in api.jobs() if job.learner == learner and job.pid)


def kill(learner: str) -> None:
    os.kill(pid_of(learner), signal.SIGKILL)


def kill_all(swarm: Terminal, *commands: Command) -> None:
    """Every process at once, as when the power fails."""
    pids = [command.process.pid for command in commands] + list(swarm.workers().values())
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for command in commands:
        command.process.wait()
    eventually(lambda: not swarm.workers(), "they are gone")


# Replay: the same bytes, whoever trained what, and whoever died


def alone(swarm: Terminal, folder: Path, *argv: str, framework: str, rounds: int = ROUNDS) -> bytes:
    """What one learner that nobody disturbs comes to."""
    ended(begin(swarm, "alone", *SEEDS, *argv, framework=framework, rounds=rounds))
    check_counts(history(swarm, "alone"), rounds)
    return theta(swarm, "alone", folder)


def made(swarm: Terminal, name: str, *argv: str, framework: str, rounds: int | None = ROUNDS) -> None:
    """The run is there, and paused: so nobody trains it to its end while others still load their framework."""
    ended(begin(swarm, name, *argv, "--no-join", framework=framework, rounds=rounds))
    swarm.run("pause", name)


def disturbed(swarm: Terminal, folder: Path, *argv: str, framework: str, rounds: int = ROUNDS, seed: int) -> bytes:
    """The same run with a syncer and learners that only train, one of which is killed and comes back."""
    rng, name = random.Random(seed), f"together-{seed}"
    made(swarm, name, *SEEDS, *argv, framework=framework, rounds=rounds)
    there = {k: join(swarm, name, k, "--role", "learner", framework=framework) for k in ("a", "b", "c")}
    nas = swarm.start("join", name, "--learner-id", "nas", "--role", "syncer")
    for command in (*there.values(), nas):
        command.until("the run is paused")
    swarm.run("resume", name)
    victim = rng.choice(sorted(there))
    there[victim].until(f"round {rng.randrange(rounds // 2)} closed")
    time.sleep(rng.uniform(0, 0.3))
    kill(victim)
    assert there.pop(victim).wait() == 1
    again = join(swarm, name, victim, "--role", "learner", framework=framework)
    ended(*there.values(), nas)
    if again.wait():
        assert "has all its" in again.err[-1], "it came when the run was done"
    rounds_there = history(swarm, name)
    check_counts(rounds_there, rounds)
    assert len({client["learner"] for told in rounds_there for client in told["clients"]}) > 1
    return theta(swarm, name, folder)


def struck(
    swarm: Terminal, mailbox: str, folder: Path, *argv: str, framework: str, rounds: int = ROUNDS, seed: int, strikes: int = 1
) -> bytes:
    """The same run of two learners, all of whose processes are killed at once, and begun again."""
    rng, name = random.Random(seed), f"struck-{seed}"
    there = begin(swarm, name, *SEEDS, *argv, "--workers", "2", framework=framework, rounds=rounds)
    for strike in range(strikes):
        there.until(f"round {2 * strike + 1} closed")
        time.sleep(rng.uniform(0, 0.2))
        kill_all(swarm, there)
        [run] = [run for run in swarm.objects("runs") if run["name"] == name]
        assert run["state"] != "done", "struck too late"
        there = join(swarm, name, "a", "--workers", "2", framework=framework)
    ended(there)
    assert check_mailbox(mailbox, str(run["run"])) == rounds
    check_counts(history(swarm, name), rounds)
    return theta(swarm, name, folder)


@pytest.mark.slow
def test_three_learners_and_one_that_is_killed_come_to_what_one_comes_to(swarm: Terminal, tmp_path: Path) -> None:
    assert disturbed(swarm, tmp_path, framework="mlx", seed=1) == alone(swarm, tmp_path, framework="mlx")


@pytest.mark.slow
def test_all_processes_are_killed_and_the_run_goes_on_with_its_outer_state(
    swarm: Terminal, mailbox: str, tmp_path: Path
) -> None:
    outer = ("--outer", "fedyogi", "--outer-lr", "0.1")
    want = alone(swarm, tmp_path, *outer, framework="torch")
    assert struck(swarm, mailbox, tmp_path, *outer, framework="torch", seed=2) == want


BUFFERS = ("-o", "model=lenet5", "-o", "norm=batch", "-o", "dropout=0.25", "--local-epochs", "1", "--clients", "12")


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [(), ("--outer", "fedavgm"), ("--outer", "fedyogi", "--outer-lr", "0.1"), BUFFERS],
    ids=["fedavg", "fedavgm", "fedyogi", "buffers"],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_replay_with_outer_state_and_with_buffers(
    swarm: Terminal, mailbox: str, tmp_path: Path, framework: str, argv: tuple[str, ...]
) -> None:
    want = alone(swarm, tmp_path, *argv, framework=framework)
    assert disturbed(swarm, tmp_path, *argv, framework=framework, seed=3) == want
    assert struck(swarm, mailbox, tmp_path, *argv, framework=framework, seed=3, strikes=2) == want


@pytest.mark.slow
def test_torch_and_mlx_train_the_clients_of_one_run(swarm: Terminal) -> None:
    argv = ("-o", "model=lenet5", "--local-epochs", "1", "--clients", "16", "--per-round", "4", "--lr", "0.05")
    made(swarm, "both", *SEEDS, *argv, framework="mlx", rounds=3)
    torch, mlx = (join(swarm, "both", framework, framework=framework) for framework in FRAMEWORKS)
    said = torch.until("replay is not exact here: torch ")
    assert "instead of mlx " in said
    for command in (torch, mlx):
        command.until("the run is paused")
    swarm.run("resume", "both")
    ended(torch, mlx)
    assert "replay is not exact" not in "\n".join(mlx.err)
    rounds = history(swarm, "both")
    check_counts(rounds, 3, per_round=4)
    assert {client["learner"] for told in rounds for client in told["clients"]} == {"torch", "mlx"}
    losses = [told["val_loss"] for told in rounds]
    assert losses == sorted(losses, reverse=True), losses


@pytest.mark.slow
def test_other_threads_than_the_runs_are_told(swarm: Terminal) -> None:
    made(swarm, "seeded", *SEEDS, framework="mlx")
    command = join(swarm, "seeded", "a", "--threads", "2", framework="torch")
    command.until("replay is not exact here: 2 threads instead of 1")
    command.signal(signal.SIGINT)
    ended(command, code=130)


# Learners that are slow, stopped, or gone


LONG = ("--local-epochs", "40", "--clients", "2", "--per-round", "2")  # seconds for each client, and no more than two


def claimed(mailbox: str, learner: str) -> bool:
    """Whether `learner` has a client, which it trains for seconds."""
    claims = Path(mailbox, "runs").glob("*/clients/*/*/*/record.json")
    return any(f'"learner":"{learner}"' in path.read_text() for path in claims)


@pytest.mark.slow
def test_training_longer_than_a_lease_loses_nothing(swarm: Terminal, mailbox: str) -> None:
    made(swarm, "long", *LONG, "--lease-s", "1", framework="mlx", rounds=1)
    there = [join(swarm, "long", learner) for learner in ("a", "b")]
    for command in there:
        command.until("the run is paused")
    swarm.run("resume", "long")
    ended(*there)
    [told] = history(swarm, "long")
    assert told["rejected"] == []
    assert {client["learner"] for client in told["clients"]} == {"a", "b"}
    assert all(client["seconds_s"] > 1 for client in told["clients"]), "else it tells nothing"
    assert sorted(path.parent.name for path in Path(mailbox, "runs").glob("*/clients/*/*/*/record.json")) == ["000", "000"]


@pytest.mark.slow
def test_a_client_of_a_learner_that_was_stopped_is_taken_over(swarm: Terminal, mailbox: str) -> None:
    """It wakes up while another one trains its client: one of the two counts, and neither fails."""
    made(swarm, "stopped", *SEEDS, *LONG, framework="mlx", rounds=1)
    there = {learner: join(swarm, "stopped", learner) for learner in ("a", "b")}
    for command in there.values():
        command.until("the run is paused")
    swarm.run("resume", "stopped")
    eventually(lambda: claimed(mailbox, "b"), "b has a client")
    stopped = pid_of("b")
    os.kill(stopped, signal.SIGSTOP)
    there["a"].until("takes over client-")
    os.kill(stopped, signal.SIGCONT)
    ended(*there.values())
    rounds = history(swarm, "stopped")
    check_counts(rounds, 1, per_round=2)
    refused = [each for told in rounds for each in told["rejected"]]
    assert {each["reason"] for each in refused} <= {"duplicate", "late"}
    assert not any(each["differs"] for each in refused)


def own_data(folder: Path, name: str, count: int, *, labels: range = range(10)) -> Path:
    """Some of the shipped digits, as a person would have them in a file."""
    with np.load(places.shipped()) as digits:
        chosen = np.flatnonzero(np.isin(digits["labels"], labels))[:count]
        file = folder / f"{name}.npz"
        np.savez(file, images=digits["images"][chosen], labels=digits["labels"][chosen])
    return file


@pytest.mark.slow
@pytest.mark.parametrize("needed", [1, 2])
def test_a_deadline_closes_a_round_without_stragglers(swarm: Terminal, tmp_path: Path, needed: int) -> None:
    """The straggler is a private client, which nobody else can train, and whose lease is long."""
    argv = ("--clients", "private", "--per-round", "2", "--deadline-s", "3", "--min-clients", str(needed), "--lease-s", "100")
    made(swarm, "dead", *argv, framework="mlx", rounds=2)
    data = {learner: str(own_data(tmp_path, learner, 60)) for learner in ("a", "b")}
    there = {learner: join(swarm, "dead", learner, "--data", data[learner]) for learner in ("a", "b")}
    for command in there.values():
        command.until("the run is paused")
    stopped = pid_of("b")
    os.kill(stopped, signal.SIGSTOP)
    swarm.run("resume", "dead")
    if needed == 1:
        assert "the deadline is over: 1 of 2 clients" in there["a"].until("round 0 closed")
    else:
        there["a"].until("the run goes on")
        time.sleep(4)
        assert history(swarm, "dead") == []
    os.kill(stopped, signal.SIGCONT)
    ended(*there.values())
    assert [len(told["clients"]) for told in history(swarm, "dead")] == [needed, 2]


# Private clients


def test_nothing_of_private_data_is_in_the_mailbox(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    folder = tmp_path / "patients-ward-seven"
    folder.mkdir()
    every = {"a": (60, range(10)), "b": (95, range(10)), "c": (33, range(4))}
    files = {k: own_data(folder, f"scans-of-{k}", count, labels=labels) for k, (count, labels) in every.items()}
    first = begin(swarm, "hush", "--clients", "private", "--per-round", "2", "--data", str(files["a"]), rounds=None)
    first.until("made run")
    refused = swarm.run("join", "hush", *on_cpu(), "--learner-id", "d", code=2)
    assert refused.err[-1] == "swarm: the clients of this run are private: pass this machine's own data with --data"
    second = join(swarm, "hush", "b", "--data", str(files["b"]))
    assert "a (60 samples), b (95)" in first.until("round 1 closed")
    third = join(swarm, "hush", "c", "--data", str(files["c"]))  # it comes late, with labels of its own
    first.until("c (33")
    second.signal(signal.SIGINT)
    ended(second, code=130)
    first.until("closed: a (60 samples), c (33)")
    swarm.run("stop", "hush")
    ended(first, third)
    rounds = history(swarm, "hush")
    assert {len(told["clients"]) for told in rounds[:-1]} <= {1, 2}, "the stop may close one that nobody has begun"
    hidden = [b"scans-of", b"patients"]
    hidden += [hashlib.sha256(file.read_bytes()).hexdigest()[:12].encode() for file in files.values()]
    for path in Path(mailbox).rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for word in hidden:
            assert word not in content, path
            assert word.decode() not in str(path.relative_to(mailbox)), path
        if "evals" not in path.parts:  # made on images that everybody has
            assert not re.search(rb'loss":[-\d]', content), path


# Steering


@pytest.mark.slow
def test_a_run_is_paused_extended_and_stopped(swarm: Terminal) -> None:
    first = begin(swarm, "one", rounds=1000)
    first.until("made run")
    second = join(swarm, "one", "b")
    first.until("round 0 closed")
    second.until("joined one")
    swarm.run("pause", "one")
    first.until("the run is paused")
    second.until("the run is paused")
    at = len(history(swarm, "one"))
    [run] = swarm.objects("runs")
    assert run["state"] == "paused"
    time.sleep(1)
    assert len(history(swarm, "one")) == at
    swarm.run("extend", "one", "--rounds", "2000")
    swarm.run("resume", "one")
    first.until("the run goes on")
    assert f"({at + 1} of 2000)" in first.until(f"round {at} closed")
    swarm.run("drop", "one", "b")
    ended(second, code=1)
    assert "learner 'b' was dropped from the run" in second.err[-1]
    swarm.run("stop", "one")
    ended(first)
    assert first.err[-1].startswith("the run was stopped after")
    rounds = history(swarm, "one")
    check_counts(rounds[:-1], len(rounds) - 1)
    assert len(rounds[-1]["clients"]) == 3 or rounds[-1]["reason"] == "the run ends"


@pytest.mark.slow
def test_a_run_that_is_done_goes_on_when_it_is_extended(swarm: Terminal) -> None:
    ended(begin(swarm, "one", rounds=2))
    assert "join one" in swarm.run("extend", "one", "--by", "2").err[-1]
    ended(join(swarm, "one", "b"))
    check_counts(history(swarm, "one"), 4)


# What cannot be trained is told, and leaves no run behind


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--optimizer-option", "foo=1"), "native option 'foo' is none of MLX's SGD; it has "),
        (("--task", "charlm"), "task charlm has no data that can be dealt out to clients"),
        (("--data", "mnist:/nowhere"), "/nowhere is no folder: it should hold train-images-idx3-ubyte, "),
    ],
    ids=["native", "task", "data"],
)
def test_what_cannot_be_trained_leaves_no_run_behind(swarm: Terminal, argv: tuple[str, ...], words: str) -> None:
    refused = swarm.run("start", "fedavg", *LEASE, *on_cpu(), *argv, code=2)
    assert refused.err[-1].startswith(f"swarm: {words}")
    assert swarm.objects("runs") == []
