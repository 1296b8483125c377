"""A run that only the network tells of is joined in real processes, where its mailbox is mounted on this machine."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.tape import Tape
from tests.integration.handmade import make_mailbox, on
from tests.process.hosts import HANG_S, Host, Lan
from tests.process.terminal import FRAMEWORK, TINY

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def swarm(host: Host, *argv: str, mounted: str = "") -> subprocess.CompletedProcess[str]:
    """`swarm ARGV` in this host, to its end. `mounted`: a folder that this command finds as a mount below /mnt."""
    command = shlex.join([sys.executable, "-m", "swarm", *argv])
    first = ""
    if mounted:  # `ip netns exec` has given it a mount table of its own
        first = f"mount -t tmpfs none /mnt && mkdir /mnt/nas && mount --bind {shlex.quote(mounted)} /mnt/nas && "
    return subprocess.run(
        [*host.inside, "sh", "-c", f"{first}exec {command}"],
        env=host.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * HANG_S,
        check=False,
    )


def test_a_run_of_the_network_is_joined_where_its_share_is_mounted(net: Lan, tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    location = make_mailbox(served / "mailbox")
    studio, mbp = net.host("studio"), net.host("mbp")
    options = ("--name", "far", "--rounds", "6", "--quorum-size", "2", "--learner-id", "studio", "--mailbox", location)
    first = studio.swarm_started("start", "diloco", *TINY, *options, "--share", "smb://nas/swarm")

    for _ in range(20):  # until its worker tells of the run
        looked = swarm(mbp, "join", "far", "--check", "--json")
        if looked.returncode == 1 and looked.stdout:
            break
    ticks = {line["check"]: line for line in map(json.loads, looked.stdout.splitlines())}
    assert ticks["seen"]["verdict"] == "ok", looked
    assert ticks["share mounted here"]["verdict"] == "failed"
    assert "mount smb://nas/swarm" in ticks["share mounted here"]["remedy"]

    refused = swarm(mbp, "join", *FRAMEWORK)
    assert refused.returncode == 1, refused
    assert "is not mounted here" in refused.stderr
    assert "mount smb://nas/swarm" in refused.stderr

    joined = swarm(mbp, "join", *FRAMEWORK, "--learner-id", "mbp", mounted=str(served))  # the only one; one folder below
    assert joined.returncode == 0, joined
    assert first.wait(HANG_S) == 0
    [run] = [path.name for path in Path(location, "runs").iterdir()]
    record = on(location, run, lambda tape: last(tape))
    assert record == ["mbp", "studio"]
    assert (mbp.place / "settings.toml").read_text().strip() == 'mailboxes = ["/mnt/nas/mailbox"]'


async def last(tape: Tape) -> list[str]:
    record = await tape.round(await tape.newest_round())
    assert record is not None
    return sorted(p.learner for p in record.participants)
