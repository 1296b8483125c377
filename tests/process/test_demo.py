"""`swarm demo`: what a first user sees, and that it leaves nothing behind, however it ends."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.process.machines import check_mailbox
from tests.process.terminal import Command, Terminal, terminal

pytest.importorskip("torch")
pytest.importorskip("mlx.core")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def swarm(state_dir: Path) -> Iterator[Terminal]:
    with terminal(state_dir) as found:
        yield found


def workers(command: Command) -> list[psutil.Process]:
    return [p for p in psutil.Process(command.process.pid).children() if "swarm.worker" in p.cmdline()]


def folder_of(command: Command) -> Path:
    return Path(command.until(", through ").rpartition(", through ")[2]).parent


def nothing_is_left(command: Command, state: Path, processes: Sequence[psutil.Process] = ()) -> None:
    assert not [p for p in processes if p.is_running()]
    assert folder_of(command).name.startswith("swarm-demo-")
    assert not folder_of(command).exists()
    assert not state.exists()


def test_the_demo_of_a_moment(swarm: Terminal, state_dir: Path) -> None:
    command = swarm.run("demo", "--task", "mlp", "--rounds", "3", "--json")
    [result] = command.objects()
    assert result.keys() == {"rounds", "participants", "rejected", "val_loss_first", "val_loss_last", "identical"}
    assert (result["rounds"], result["rejected"], result["identical"]) == (3, 0, True)
    assert result["participants"] == {"torch": 3, "mlx": 3}
    assert result["val_loss_last"] < result["val_loss_first"]  # type: ignore[operator]
    nothing_is_left(command, state_dir)


@pytest.mark.slow
def test_the_demo_teaches_a_language_model_which_then_writes(swarm: Terminal, tmp_path: Path) -> None:
    command = swarm.run("demo", "--json", "--keep")
    folder = folder_of(command)
    try:
        [result] = command.objects()
        assert (result["rounds"], result["rejected"], result["identical"]) == (6, 0, True)
        assert result["participants"] == {"torch": 6, "mlx": 6}
        assert result["val_loss_last"] < result["val_loss_first"] - 0.3  # type: ignore[operator]
        kept = str(folder / "mailbox")
        assert any(line.startswith(f"kept: {kept} ") for line in command.err)
        [listed] = swarm.objects("runs", "--mailbox", kept)
        assert (listed["name"], listed["state"]) == ("demo-charlm", "done")
        assert check_mailbox(kept, str(listed["run"])) == 6

        write = ("generate", "demo", "--mailbox", kept, "--prompt", "In the", "--max-tokens", "40")
        first, again = ("\n".join(swarm.run(*write, "--framework", "mlx", "--seed", "1").out) for _ in range(2))
        assert first == again
        assert len(first.encode()) >= 20
        other = "\n".join(swarm.run(*write, "--framework", "torch", "--temp", "0").out)
        assert len(other.encode()) >= 20
        assert swarm.objects("jobs", "--all") == []  # it takes part in nothing
        [shown] = swarm.objects("status", "demo", "--mailbox", kept)
        assert [m["learner"] for m in shown["members"]] == ["mlx", "torch"]  # type: ignore[attr-defined]
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_the_demo_with_one_line(swarm: Terminal, state_dir: Path) -> None:
    command = swarm.start("demo", "--task", "mlp", "--rounds", "100000")
    command.until("round 0 closed")
    [victim, other] = workers(command)
    victim.kill()
    assert command.wait() == 1
    lines = [line for line in command.err if line.startswith("swarm: ")]
    assert lines == command.err[-1:]
    assert "was ended by SIGKILL" in lines[0]
    nothing_is_left(command, state_dir, [victim, other])


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nothing_behind(swarm: Terminal, state_dir: Path) -> None:
    command = swarm.start("demo", "--task", "mlp", "--rounds", "100000")
    command.until("mlx: joined")
    processes = workers(command)
    assert len(processes) == 2
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):  # whoever is impatient, too
        command.signal(number)
    assert command.wait() == 130
    nothing_is_left(command, state_dir, processes)
