"""Ctrl-C, SIGTERM, a killed parent, `swarm leave`: a worker leaves its run, quickly and cleanly."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from swarm.core.keys import RunKeys
from tests.process.terminal import TINY, Command, Terminal, beats, eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
START = ("start", "diloco", *TINY)


def run_of(command: Command) -> str:
    return command.until("made run").rpartition("(")[2].rstrip(")")


def left(mailbox: str, run: str) -> bool:
    return {beat.phase for beat in beats(mailbox, run).values()} == {"left"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_lets_the_worker_leave(swarm: Terminal, mailbox: str, number: signal.Signals) -> None:
    command = swarm.start(*START)
    run = run_of(command)
    command.until("round 0 closed")
    assert not left(mailbox, run)
    command.signal(number)
    assert command.wait() == 130, str(command)
    assert left(mailbox, run)
    assert swarm.workers() == {}
    assert command.err[-1].startswith("left the run after")


def test_a_snapshot_that_was_begun_is_finished(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    command = swarm.start(*START, "--quorum-size", "2", sabotage=f"slow:{tmp_path / 'writing'}")
    run = run_of(command)
    eventually((tmp_path / "writing").exists, "a snapshot is being written")
    snapshots = Path(mailbox, RunKeys(run).snapshots(0))
    assert not snapshots.exists()
    command.signal(signal.SIGINT)
    assert command.wait() == 130, str(command)
    assert len(list(snapshots.rglob("*.json"))) == 1
    assert left(mailbox, run)


def test_a_share_that_hangs_holds_nobody_up(swarm: Terminal, tmp_path: Path) -> None:
    command = swarm.start(*START, sabotage=f"hang:{tmp_path / 'hangs'}")
    command.until("round 0 closed")
    (tmp_path / "hangs").touch()
    time.sleep(0.5)
    sent_s = time.monotonic()
    command.signal(signal.SIGINT)
    assert command.wait() == 130, str(command)
    assert time.monotonic() - sent_s < 8  # 3 are promised, to a machine that does nothing else


def test_a_second_ctrl_c_ends_at_once(swarm: Terminal, tmp_path: Path) -> None:
    command = swarm.start(*START, sabotage=f"hang:{tmp_path / 'hangs'}")
    command.until("round 0 closed")
    (tmp_path / "hangs").touch()
    sent_s = time.monotonic()
    command.signal(signal.SIGINT)
    command.until("leaving:")
    command.signal(signal.SIGINT)
    took_s = time.monotonic() - sent_s
    assert command.wait() == 130, str(command)
    if took_s < 1:  # on a machine so busy that it took longer, leaving may have given the share up by itself
        assert command.err[-1] == "swarm: interrupted"


def test_joining_a_share_that_hangs_can_be_given_up(swarm: Terminal, tmp_path: Path) -> None:
    command = swarm.start(*START, sabotage=f"hang:{tmp_path / 'hangs'}")
    command.until("preparing")
    (tmp_path / "hangs").touch()
    command.signal(signal.SIGINT)
    assert command.wait() == 130, str(command)
    assert swarm.workers() == {}


def test_a_command_on_a_share_that_hangs_can_be_ended(swarm: Terminal, tmp_path: Path) -> None:
    (tmp_path / "hangs").touch()
    command = swarm.start("runs", sabotage=f"hang:{tmp_path / 'hangs'}")
    time.sleep(2)
    assert command.process.poll() is None, str(command)
    command.signal(signal.SIGINT)
    assert command.wait() == 130, str(command)
    assert command.err == ["", "swarm: interrupted"]


def test_a_worker_leaves_when_the_command_that_started_it_is_killed(swarm: Terminal, mailbox: str) -> None:
    command = swarm.start(*START)
    run = run_of(command)
    command.until("round 0 closed")
    command.signal(signal.SIGKILL)
    eventually(lambda: not swarm.workers(), "the worker ends")
    assert left(mailbox, run)
    [job] = swarm.objects("jobs", "--all")
    assert (job["state"], job["run"]) == ("left", run)


def test_a_detached_worker_goes_on_until_it_is_told_to_leave(swarm: Terminal, mailbox: str) -> None:
    [job] = swarm.objects(*START, "--detach", "--name", "mlp-one")
    assert job["name"] == "mlp-one"
    [pid] = swarm.workers().values()
    assert os.getsid(pid) == pid  # in a session of its own: no terminal that is closed ends it
    [listed] = swarm.objects("jobs")
    assert (listed["id"], listed["state"], listed["run_name"], listed["pid"]) == (job["job"], "running", "mlp-one", pid)
    following = swarm.start("logs", "-f")
    following.until("round 1 closed")
    assert "joined mlp-one" in "\n".join(swarm.run("logs", "-n", "1000").out)
    assert "fits" not in "\n".join(swarm.run("leave", "mlp-o").err)
    assert following.wait() == 0, str(following)
    assert "left the run after" in following.out[-1]
    assert swarm.workers() == {}
    assert left(mailbox, str(job["run"]))
    assert [job["state"] for job in swarm.objects("jobs", "--all")] == ["left"]
    assert swarm.run("leave", code=2).err == ["swarm: no running job on this machine; running: none"]


def test_a_detached_worker_that_fails_says_so_at_once(swarm: Terminal) -> None:
    command = swarm.run(*START, "--detach", "--device", "metal", code=2)
    assert "device metal is absent" in command.err[-1]
    assert swarm.workers() == {}


def test_whoever_reads_the_events_may_stop_reading(swarm: Terminal) -> None:
    ours, theirs = os.pipe()
    command = swarm.start(*START, "--json", stdout=theirs)
    os.close(theirs)
    with open(ours, "rb") as reading:
        assert b'"event":"Building"' in reading.readline()
    assert command.wait() == 0, str(command)
    eventually(lambda: not swarm.workers(), "the worker ends")
    assert not [line for line in command.err if "Error" in line]


def test_a_worker_whose_learner_is_dropped_ends_and_says_who_asked(swarm: Terminal) -> None:
    command = swarm.start(*START, "--learner-id", "studio")
    run = run_of(command)
    command.until("round 0 closed")
    swarm.run("drop", run, "studio")
    assert command.wait() == 1, str(command)
    said = "learner 'studio' was dropped from the run, asked for on "
    assert any(said in line for line in command.err)
    [job] = swarm.objects("jobs")
    assert job["state"] == "dropped"
    assert str(job["message"]).startswith(said)
