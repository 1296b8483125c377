"""Machines of one swarm, a machine of another one and one without a passphrase, in real processes over a real folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.records import Control
from swarm.tape import nonce
from tests.process.terminal import FRAMEWORK, ROOT, TINY, Terminal

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
JOIN = ("join", "mlp-ours", *FRAMEWORK)


def key(machine: str, *argv: str, typed: str = "") -> str:
    """`swarm key ARGV` on a machine, which has a key file of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "swarm", "key", *argv],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SWARM_KEY_FILE": machine},
        input=typed,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def told_to(pid: int) -> bytes:
    """What a process was started with."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def test_two_machines_of_a_swarm_train_and_others_have_no_part(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    studio, mbp, other = (str(tmp_path / name) for name in ("studio.toml", "mbp.toml", "other.toml"))
    passphrase = key(studio, "new")
    key(mbp, "import", typed=f"{passphrase}\n")
    key(other, "new")
    assert key(mbp, "show") == passphrase != key(other, "show")

    first = swarm.start(
        *("start", "diloco", *TINY, "--quorum-size", "2", "--name", "mlp-ours", "--learner-id", "studio"), SWARM_KEY_FILE=studio
    )
    first.until("round 0: waiting for 1 more learner")
    if sys.platform == "linux":
        for pid in (first.process.pid, *swarm.workers().values()):
            told = told_to(pid)
            assert studio.encode() in told
            assert passphrase.encode() not in told

    stranger = swarm.start(*JOIN, "--learner-id", "stranger", SWARM_KEY_FILE=other)
    assert stranger.wait() == 1
    assert "1 run of another passphrase ignored" in stranger.err[-1]
    guest = swarm.start(*JOIN, "--learner-id", "guest", SWARM_KEY_FILE="")
    assert guest.wait() == 1
    assert "run mlp-ours is signed" in guest.err[-1]
    assert "swarm key import" in guest.err[-1]
    watching = swarm.start("runs", "--json", SWARM_KEY_FILE="")
    assert watching.wait() == 0
    [seen] = watching.objects()
    assert (seen["name"], seen["signed"], seen["learners"]) == ("mlp-ours", True, ["studio"])

    second = swarm.start(*JOIN, "--learner-id", "mbp", SWARM_KEY_FILE=mbp)
    second.until("round 2 closed with mbp, studio")
    keys = RunKeys(str(seen["run"]))
    forged = Path(mailbox, keys.control_record(1))  # a stop of somebody who has the share alone
    forged.parent.mkdir(parents=True)
    forged.write_bytes(encode(Control(action="stop", by="stranger"), nonce=nonce()))
    until = f"round {len(list(Path(mailbox, 'runs').glob('*/rounds/*/*'))) + 2} closed"
    second.until(until)
    shown = swarm.start("status", "mlp-ours", "--json", SWARM_KEY_FILE=mbp)
    assert shown.wait() == 0
    [state] = shown.objects()
    assert (state["signed"], state["asked"], state["forged"]["kinds"]) == (True, None, {"control": 1})  # type: ignore[index]

    stopping = swarm.start("stop", "mlp-ours", SWARM_KEY_FILE=mbp)
    assert stopping.wait() == 0
    assert first.wait() == second.wait() == 0
    assert first.err[-1].startswith("the run was stopped after")
    records = [path for path in Path(mailbox, "runs").rglob("*.json") if path != forged]
    assert len(records) > 10
    assert all(json.loads(path.read_bytes().splitlines()[1])["signature"] for path in records)


def test_a_forged_round_ends_the_work_with_its_name(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    studio = str(tmp_path / "studio.toml")
    key(studio, "new")
    command = swarm.start("start", "diloco", *TINY, "--name", "mlp-ours", "--learner-id", "studio", SWARM_KEY_FILE=studio)
    command.until("round 1 closed")
    [run] = os.listdir(Path(mailbox, "runs"))
    keys = RunKeys(run)
    ahead = 50  # a learner that is not there yet cannot be outrun
    for number in range(2, ahead):
        folder = Path(mailbox, keys.round(number)).parent
        staged = tmp_path / f"staged-{number}"
        staged.mkdir()
        (staged / "record.json").write_bytes(b"{}\n{}\n")
        try:
            staged.rename(folder)  # as a record is published: never over one that is there
        except OSError:
            continue
    assert command.wait() == 1
    assert "is not signed" in " ".join(command.err)
    [job] = swarm.objects("jobs", "--all")
    assert job["state"] == "failed"
    shown = swarm.start("status", "mlp-ours", SWARM_KEY_FILE=studio)
    assert shown.wait() == 1
    assert "halted" in shown.out[0]
    assert keys.root in shown.err[-1]
