"""A run of two machines from its start to its end, as people see it: the commands, in real processes over a real folder."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from pathlib import Path

import pytest

from swarm import api
from swarm.exchange import Exchange
from swarm.mailbox import open_mailbox
from swarm.manifests import read_manifest
from tests.integration.handmade import make_run
from tests.process.terminal import FRAMEWORK, TINY, Terminal, beats, eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
JOIN = ("join", *FRAMEWORK)


def newest_commit(location: str, run: str) -> dict[str, object]:
    async def read() -> dict[str, object]:
        mailbox = open_mailbox(location)
        await mailbox.open()
        exchange = Exchange(mailbox, await read_manifest(mailbox, run))
        found: dict[str, object] = {}
        for fragment, record in enumerate(await exchange.newest_records(await exchange.newest_round())):
            found |= await exchange.fetch(fragment, exchange.theta_ref(fragment, record))
        return found

    return asyncio.run(read())


def test_two_learners_from_start_to_stop(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    first = swarm.start("start", "diloco", *TINY, "--quorum-size", "2", "--name", "mlp-one", "--learner-id", "studio")
    first.until("round 0: waiting for 1 more learner")
    [waiting] = swarm.objects("runs")
    assert (waiting["state"], waiting["round"], waiting["learners"]) == ("waiting", 0, ["studio"])
    taken = swarm.run(*JOIN, "mlp-one", "--learner-id", "studio", code=1)
    assert "'studio-2' is free (--learner-id)" in taken.err[-1]
    second = swarm.start(*JOIN, "--learner-id", "mbp")
    second.until("round 2 closed with mbp, studio")

    [listed] = swarm.objects("runs")
    assert {k: listed[k] for k in ("name", "method", "task", "state", "learners")} == {
        "name": "mlp-one",
        "method": "diloco",
        "task": "mlp",
        "state": "running",
        "learners": ["mbp", "studio"],
    }
    [shown] = swarm.objects("status", "mlp-one")
    members = {m["learner"]: m for m in shown["members"]}  # type: ignore[attr-defined]
    assert set(members) == {"mbp", "studio"}
    assert all(m["rounds"] >= 1 and m["device"].endswith("cpu") and m["state"] != "silent" for m in members.values())
    history = shown["history"]
    assert [r["round"] for r in history] == list(range(len(history)))  # type: ignore[attr-defined, arg-type]
    assert all(r["participants"] == ["mbp", "studio"] and r["train_loss"] > 0 for r in history)  # type: ignore[attr-defined]
    assert "in mlp-one: `swarm stop` it first" in swarm.run("rm", "mlp-one", "--yes", code=2).err[-1]

    watching = swarm.start("status", "mlp-one", "--watch")
    watching.until("val")
    swarm.run("stop", "mlp-one")
    assert first.wait() == second.wait() == 0
    assert first.err[-1].startswith("the run was stopped after")
    assert first.err[-1] == second.err[-1]
    assert watching.wait() == 0
    [ended] = swarm.objects("runs")
    assert (ended["state"], ended["learners"], ended["certain"]) == ("stopped", [], True)
    assert sorted(str(job["state"]) for job in swarm.objects("jobs", "--all")) == ["failed", "stopped", "stopped"]
    assert "was stopped" in swarm.run(*JOIN, "mlp-one", code=1).err[-1]

    file = tmp_path / "model.safetensors"
    swarm.run("export", "mlp-one", str(file))
    numpy = pytest.importorskip("safetensors.numpy")
    exported, committed = numpy.load_file(file), newest_commit(mailbox, str(listed["run"]))
    assert exported.keys() == committed.keys()
    assert all(exported[name].tobytes() == committed[name].tobytes() for name in exported)  # type: ignore[attr-defined]
    assert [p.name for p in tmp_path.iterdir() if "model" in p.name] == ["model.safetensors"]
    assert "cannot write" in swarm.run("export", "mlp-one", str(tmp_path / "no" / "file"), code=2).err[-1]
    assert "writes no text" in swarm.run("generate", "mlp-one", "--prompt", "x", code=2).err[-1]
    assert "objects deleted" in swarm.run("rm", "mlp-one", "--yes").err[-1]
    assert swarm.objects("runs") == []


def test_a_run_goes_on_after_its_only_learner_was_killed(swarm: Terminal, mailbox: str) -> None:
    command = swarm.start("start", "diloco", *TINY, "--name", "mlp-one")
    command.until("round 1 closed")
    [pid] = swarm.workers().values()
    os.kill(pid, signal.SIGKILL)
    assert command.wait() == 1
    assert command.err[-2].startswith("swarm: the worker was ended by SIGKILL")
    assert command.err[-1].startswith("its log: ")
    [idle] = swarm.objects("runs")
    assert (idle["state"], idle["learners"], idle["certain"]) == ("idle", [], True)
    [job] = swarm.objects("jobs")
    assert (job["state"], job["message"]) == ("failed", "the process was ended from outside")

    again = swarm.start(*JOIN, "--json")
    joined = again.until('"event":"Joined"')
    assert '"incarnation":2' in joined
    assert f'"round":{idle["round"]}' in joined
    again.until('"event":"RoundClosed"')
    again.signal(signal.SIGINT)
    assert again.wait() == 130
    assert again.objects()[-1]["event"] in ("Ended", "Evaluated", "RoundClosed")
    assert {beat.phase for beat in beats(mailbox, str(idle["run"])).values()} == {"left"}
    [idle] = swarm.objects("runs")
    assert (idle["state"], idle["learners"]) == ("idle", [])


def test_a_screen_follows_a_run_of_other_processes(swarm: Terminal, mailbox: str) -> None:
    [made] = swarm.objects("start", "diloco", *TINY, "--rounds", "5", "--detach")

    async def follow() -> list[api.RunState]:
        home, run = api.HomeWatch((mailbox,)), api.RunWatch(mailbox, str(made["run"]))
        states = []
        while not states or states[-1].phase != "done" or states[-1].live:
            states.append(await run.poll())
            [view] = (await home.poll()).mailboxes
            assert [r.run for r in view.runs] == [made["run"]]
            await asyncio.sleep(0.1)
        return states

    states = asyncio.run(asyncio.wait_for(follow(), 60))
    assert states[-1].open_round == 5
    assert [e.round for e in states[-1].evals] == [0, 1, 2, 3, 4]
    assert {v.state for v in states[-1].learners} == {"left"}
    assert all(state.lost is None for state in states)
    eventually(lambda: [job.state for job in api.jobs()] == ["done"], "the job is done")


def test_no_framework_is_told_before_anything_is_made(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text("import sys; sys.modules.update({'torch': None, 'mlx': None})\n")
    bare = os.pathsep.join([str(tmp_path / "bare"), str(Path(__file__).parents[2])])
    for argv, code in ((("start", "diloco", "--task", "mlp"), 2), (("demo",), 2), (("doctor",), 1)):
        command = swarm.start(*argv, PYTHONPATH=bare)
        assert command.wait() == code, str(command)
        said = "\n".join((*command.err, *command.out))
        assert "installed" in said, said
        assert "pip install 'homeswarm[" in said, said
    assert swarm.objects("runs") == []


def test_another_text_than_the_runs_is_refused(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("All work and no play makes Jack a dull boy. " * 3000)
    made = ("start", "diloco", "--task", "charlm", *FRAMEWORK, "--no-join", "--name", "prose")
    swarm.run(*made, "--data", str(text), "--no-attach")
    for argv in ((), ("--data", str(tmp_path / "other.txt")), ("--data", str(tmp_path / "missing.txt"))):
        (tmp_path / "other.txt").write_text("Something else entirely. " * 5000)
        command = swarm.run(*JOIN, "prose", *argv, code=1)
        assert command.err[-1].startswith("swarm: "), str(command)
        assert hashlib.sha256(text.read_bytes()).hexdigest()[:12] in command.err[-1], str(command)
        assert "--data" in command.err[-1], str(command)


def test_a_model_that_is_not_the_runs_is_refused(swarm: Terminal, mailbox: str) -> None:
    make_run(mailbox, "mlp-odd", "aaaa1111")
    command = swarm.run(*JOIN, code=1)
    assert command.err[-1].startswith("swarm: model does not match the run's schema: "), str(command)
    assert beats(mailbox, "aaaa1111") == {}


def test_several_learners_of_one_machine_are_one_command(swarm: Terminal, mailbox: str) -> None:
    """One of them dies, and the others train on; Ctrl-C lets all of them leave."""
    argv = ("--quorum-size", "2", "--name", "mlp-one", "--learner-id", "studio", "--workers", "3")
    together = swarm.start("start", "diloco", *TINY, *argv)
    together.until("with studio, studio-2, studio-3")
    victim = next(job.pid for job in api.jobs() if job.learner == "studio-2")
    os.kill(victim, signal.SIGKILL)
    assert "SIGKILL" in together.until("studio-2: swarm: the worker was ended by")
    together.until("closed with studio, studio-3")
    together.signal(signal.SIGINT)
    assert together.wait() == 130
    assert {"studio: left the run", "studio-3: left the run"} <= {line.partition(" after")[0] for line in together.err}
    closed = [line.partition(" closed")[0] for line in together.err if line.startswith("round ") and " closed" in line]
    assert len(closed) == len(set(closed)), "told once, not by each of them"
    assert not swarm.workers()
