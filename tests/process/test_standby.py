"""`swarm join --wait`: a machine that stands by takes part in runs as they appear, whatever befalls its worker."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from swarm.core.events import Joined, Restored, RoundClosed, WorkerEvent
from swarm.core.standby import Pace, Rules
from swarm.core.standbywords import GivesBack, HoldsStill, JoinedNoMore, Told, WorkerLost
from swarm.standby import Standby
from tests.integration.handmade import make_mailbox
from tests.process.terminal import FRAMEWORK, ROOT, SABOTAGE, TINY, Command, Terminal, beats, eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
WAIT = ("join", "--wait", *FRAMEWORK)
MADE = ("start", "diloco", *TINY, "--no-join")


@pytest.fixture
def mailbox(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "share").mkdir()
    location = make_mailbox(tmp_path / "share" / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", location)
    return location


def make(swarm: Terminal, name: str, *options: str) -> str:
    """A run that nobody trains yet; its id."""
    return run_of(swarm.run(*MADE, "--name", name, *options))


def run_of(command: Command) -> str:
    return command.until("made run").rpartition("(")[2].rstrip(")")


def joined(command: Command, name: str) -> int:
    return sum(f"joined {name}" in line for line in command.err)


def test_two_runs_in_turn_and_what_a_rule_excludes(swarm: Terminal, mailbox: str, state_dir: Path) -> None:
    command = swarm.start(*WAIT, "--only", "tiny-*", "--method", "diloco", "--json")
    line = command.until("stands by for runs")
    log = state_dir / "standby" / "log.txt"
    assert str(log) in line
    assert mailbox in line
    other = make(swarm, "other", "--rounds", "2")
    command.until("other: not what --only names")
    make(swarm, "tiny-one", "--rounds", "2")
    command.until("the run is done after 2 rounds")
    make(swarm, "tiny-two", "--rounds", "3")
    command.until("the run is done after 3 rounds")
    assert beats(mailbox, other) == {}
    command.signal(signal.SIGTERM)
    assert command.wait() == 130, str(command)
    objects = command.objects()
    assert [o["name"] for o in objects if o["event"] == "Joins"] == ["tiny-one", "tiny-two"]
    assert all("run" in o for o in objects if o["event"] in ("Joined", "RoundClosed", "Stepped"))
    written = log.read_text()
    for said in ("stands by for runs", "joins tiny-one", "round 1 closed", "the run is done after 3 rounds", "no more"):
        assert said in written, written


def test_a_killed_worker_is_joined_again_where_it_stood(swarm: Terminal, mailbox: str) -> None:
    run = make(swarm, "lasting")
    command = swarm.start(*WAIT)
    for kill in range(2):
        command.until("round 0 closed") if kill == 0 else eventually(lambda: joined(command, "lasting") == 2, "joined again")
        eventually(lambda n=kill: {b.phase for b in beats(mailbox, run).values()} & {"train", "wait", "merge"}, "it trains")
        (pid,) = swarm.workers().values()
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: joined(command, "lasting") == 3, "joined a third time")
    assert any("lasting is joined again in" in line and "SIGKILL" in line for line in command.err)
    assert any("incarnation 3" in line for line in command.err)
    assert len(beats(mailbox, run)) == 1  # one learner all the time
    command.signal(signal.SIGINT)
    assert command.wait() == 130, str(command)
    assert {beat.phase for beat in beats(mailbox, run).values()} == {"left"}
    assert swarm.workers() == {}


@pytest.mark.slow
def test_what_it_was_dropped_from_or_left_by_hand_is_not_joined_again(swarm: Terminal, mailbox: str) -> None:
    make(swarm, "first-one")
    command = swarm.start(*WAIT)
    command.until("round 0 closed")
    swarm.run("leave", "first-one")
    command.until("first-one is not joined again: somebody had this machine leave it")
    run = make(swarm, "second-one")
    command.until("joined second-one")
    (learner,) = beats(mailbox, run)
    swarm.run("drop", "second-one", learner, "--yes")
    command.until("second-one is not joined again: this machine was dropped from it")
    command.signal(signal.SIGTERM)
    assert command.wait() == 130, str(command)
    shutil.rmtree(next(p for p in swarm._jobs.iterdir()))  # one is forgotten; what it said is not
    again = swarm.start(*WAIT)
    again.until("first-one: somebody had this machine leave it; second-one: this machine was dropped from it")
    assert not joined(again, "first-one")
    assert not joined(again, "second-one")
    swarm.run("join", "second-one", *FRAMEWORK, "--detach", "--learner-id", "by-hand")
    again.until("waits: this machine trains second-one already")
    again.signal(signal.SIGTERM)
    assert again.wait() == 130


def test_it_goes_on_after_it_was_ended_while_it_trained(swarm: Terminal, mailbox: str) -> None:
    make(swarm, "lasting")
    for end in (signal.SIGKILL, signal.SIGTERM):
        command = swarm.start(*WAIT)
        command.until("joined lasting")
        command.until("closed")
        command.signal(end)
        assert command.wait() == (130 if end == signal.SIGTERM else -end)
        eventually(lambda: not swarm.workers(), "the worker leaves with it")


@pytest.mark.slow
def test_a_share_that_goes_away_and_comes_back(swarm: Terminal, mailbox: str) -> None:
    share = Path(mailbox).parent
    away = share.with_name("unplugged")
    command = swarm.start(*WAIT)
    command.until("no run to join now")
    share.rename(away)
    command.until("is waited for")
    away.rename(share)
    command.until("is there")
    make(swarm, "later", "--rounds", "200")
    command.until("joined later")
    command.until("round 1 closed")
    share.rename(away)
    command.until("the mailbox is not there")
    away.rename(share)
    command.until("the mailbox is back")
    command.until("the run is done after 200 rounds")
    command.signal(signal.SIGTERM)
    assert command.wait() == 130, str(command)
    assert joined(command, "later") == 1


def test_a_machine_that_sleeps_wakes_up_and_goes_on(swarm: Terminal, mailbox: str) -> None:
    run = make(swarm, "drowsy")
    command = swarm.start(*WAIT)
    command.until("round 0 closed")
    root = psutil.Process(command.process.pid)
    sleepers = [root, *root.children(recursive=True)]
    assert len(sleepers) >= 2
    for each in sleepers:
        each.suspend()
    other = swarm.start("join", "drowsy", *FRAMEWORK, "--learner-id", "awake")  # which sees its lease run out
    other.until("closed")
    eventually(lambda: sum("closed" in line for line in other.err) > 3, "the others go on without it")
    for each in sleepers:
        each.resume()
    eventually(lambda: any("awake, " in line or ", awake" in line for line in command.err if "closed" in line), "with both")
    assert joined(command, "drowsy") == 1
    assert len(beats(mailbox, run)) == 2
    command.signal(signal.SIGTERM)
    assert command.wait() == 130, str(command)


def steps(mailbox: str, run: str) -> int:
    return sum(beat.steps for beat in beats(mailbox, run).values())


def paused(mailbox: str, run: str) -> bool:
    return {(beat.phase, beat.held) for beat in beats(mailbox, run).values()} == {("paused", "somebody is at the keyboard")}


@pytest.mark.parametrize("method", ["diloco", pytest.param("fedavg", marks=pytest.mark.slow)])
def test_an_owner_comes_first_and_gets_the_machine_back_within_seconds(
    swarm: Terminal, mailbox: str, tmp_path: Path, method: str
) -> None:
    somebody = tmp_path / "somebody"
    somebody.touch()
    command = swarm.start(*WAIT, "--idle-only", "--nice", "3", sabotage=f"owner:{somebody}")
    assert "nice level 3, trains only while nobody was at the keyboard for 3 min" in command.until("stands by for runs")
    if method == "diloco":
        run = make(swarm, "courteous")
    else:
        options = ("--task", "lenet5", "--clients", "4", "--beat-s", "0.2", "--lease-s", "2", *FRAMEWORK[:4])
        run = run_of(swarm.run("start", "fedavg", *options, "--no-join", "--name", "courteous"))
    command.until("joins nothing for now: somebody is at the keyboard")
    assert swarm.workers() == {}
    somebody.unlink()
    command.until("its owner comes first: nice level 3")
    command.until("round 0 closed")
    (pid,) = swarm.workers().values()
    assert psutil.Process(pid).nice() >= 3
    somebody.touch()
    command.until("paused here: somebody is at the keyboard")
    eventually(lambda: paused(mailbox, run), "the others are told")
    [job] = swarm.objects("jobs")
    assert job["message"] == "paused here: somebody is at the keyboard"
    shown = swarm.run("status", "courteous")
    assert any("paused: somebody is at the keyboard" in line for line in shown.out), str(shown)
    assert swarm.objects("status", "courteous")[0]["members"][0]["held"] == "somebody is at the keyboard"  # type: ignore[index]
    done = steps(mailbox, run)
    closed = sum("closed" in line for line in command.err)
    used_s = psutil.Process(pid).cpu_times().user
    time.sleep(3.0)
    assert psutil.Process(pid).cpu_times().user - used_s < 1.0
    assert steps(mailbox, run) == done
    assert sum("closed" in line for line in command.err) == closed
    somebody.unlink()
    command.until("goes on here")
    eventually(lambda: steps(mailbox, run) > done, "it goes on by itself")
    assert swarm.workers() == {job["id"]: pid}
    command.signal(signal.SIGTERM)
    assert command.wait() == 130, str(command)


def test_a_machine_that_holds_still_for_long_gives_its_memory_back(
    swarm: Terminal, mailbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    somebody = tmp_path / "somebody"
    monkeypatch.setenv("SABOTAGE", f"owner:{somebody}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SABOTAGE), str(ROOT)]))
    run = make(swarm, "long-held")
    told: list[Told] = []
    events: list[WorkerEvent] = []
    choice = {"framework": FRAMEWORK[1], "device": "cpu", "threads": 1, "idle_only": True}

    async def main() -> None:
        machine = Standby(
            Rules(),
            choice,
            mailbox=mailbox,
            held=lambda: "somebody is at the keyboard" if somebody.exists() else "",
            tell=told.append,
            heard=lambda run, event: events.append(event),
            pace=Pace(look_s=0.2, first_s=0.2, held_s=1.0),
        )
        ending = False
        running = asyncio.create_task(machine.run(lambda: int(ending)))

        async def until(holds: Callable[[], object]) -> None:
            while not holds():
                assert not running.done()
                await asyncio.sleep(0.05)

        await until(lambda: any(isinstance(e, RoundClosed) for e in events))
        somebody.touch()
        await until(lambda: any(isinstance(e, HoldsStill) for e in told))
        assert swarm.workers() == {}
        assert [type(e) for e in told if isinstance(e, GivesBack | WorkerLost | JoinedNoMore)] == [GivesBack]
        somebody.unlink()
        await until(lambda: sum(isinstance(e, Joined) for e in events) == 2)
        assert [e.incarnation for e in events if isinstance(e, Joined)] == [1, 2]
        await until(lambda: any(isinstance(e, Restored) for e in events))
        ending = True
        for worker in machine.workers:
            worker.interrupt()
        await running

    asyncio.run(asyncio.wait_for(main(), 120))
    assert len(beats(mailbox, run)) == 1


def test_only_one_stands_by_on_a_machine(swarm: Terminal) -> None:
    command = swarm.start(*WAIT)
    command.until("stands by for runs")
    second = swarm.run(*WAIT, code=1)
    assert f"stands by already: process {command.process.pid}" in second.err[-1]
    command.signal(signal.SIGTERM)
    assert command.wait() == 130


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--wait", "--detach"), "service install"),
        (("--wait", "--workers", "2"), "one learner"),
        (("--wait", "--check"), "--check"),
        (("--wait", "--mount"), "--mount"),
        (("--only", "x"), "--only goes with --wait"),
        (("--wait", "--max-memory", "much"), "no size"),
        (("--wait", "--learner-id", "No One"), "No One"),
    ],
)
def test_wrong_options_are_said_at_once(swarm: Terminal, options: tuple[str, ...], words: str) -> None:
    assert words in swarm.run("join", *options, code=2).err[-1]
