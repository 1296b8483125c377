"""`swarm doctor` on a real network: hosts that are joined by a bridge, with and without multicast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.handmade import make_mailbox
from tests.process.hosts import Host, Lan, others
from tests.process.terminal import BARE

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]


def doctor(host: Host) -> dict[str, tuple[str, str]]:
    """What it finds in this host: by name of a check, its verdict and detail."""
    mailbox = make_mailbox(host.place / "mailbox")
    env = {
        **os.environ,
        "SWARM_DISCOVERY": "1",
        "SWARM_CONFIG": str(host.place / "settings.toml"),
        "SWARM_STATE_DIR": str(host.place / "state"),
        "PYTHONPATH": BARE,  # what this is about needs no framework
    }
    command = ["ip", "netns", "exec", host.space, sys.executable, "-m", "swarm", "doctor", "--json", "--mailbox", mailbox]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stderr  # no framework
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["check"]: (each["verdict"], each["detail"]) for each in found if each["topic"] in ("network", "peers")}


def test_a_neighbour_is_heard_reached_and_sees_this_machine(net: Lan) -> None:
    there = net.host("studio").neighbour("--state", "training")
    here = net.host("mbp")
    there.until(lambda seen: not seen.trouble)
    found = doctor(here)
    assert found["interface eth0"][0] == "ok"
    assert found["interface eth0"][1].startswith("10.77.0.2, wired")
    assert found["interface eth0"][1].endswith("used first")
    assert "lo (loopback)" in found["not used"][1]
    assert found["multicast eth0"][0] == "ok"
    assert "of 1 other machine heard" in found["multicast eth0"][1]
    verdict, detail = found["studio"]
    assert verdict == "ok"
    assert "reached at 10.77.0.1 in" in detail
    assert "sees this machine" in detail
    there.until(lambda seen: not others(seen))  # it has said goodbye


def test_a_network_that_keeps_multicast_back_is_told_and_an_address_helps(net: Lan) -> None:
    there = net.host("studio").neighbour()
    here = net.host("mbp")
    net.keep_multicast_back()
    there.until(lambda seen: bool(seen.peers))
    (here.place / "settings.toml").write_text('peers = ["10.77.0.1", "10.77.0.99"]\n')
    found = doctor(here)
    assert found["multicast eth0"] == ("warning", "sent and received, and no other machine is heard")
    assert found["discovery"][0] == "warning"
    assert found["discovery"][1].startswith("10.77.0.99: ")
    assert found["studio"][0] == "ok"
    assert "(address)" in found["studio"][1]


def test_a_network_that_has_ipv6_alone(net: Lan) -> None:
    there = net.host("studio", v4=False).neighbour()
    here = net.host("mbp", v4=False)
    there.until(lambda seen: not seen.trouble)
    found = doctor(here)
    assert found["interface eth0"][1].startswith("fe80:")
    assert found["multicast eth0"][0] == "ok"
    assert "of 1 other machine heard" in found["multicast eth0"][1]
    assert found["studio"][0] == "ok"


def test_a_machine_without_any_network_is_told(net: Lan) -> None:
    here = net.host("mbp")
    here.run("ip", "link", "set", "eth0", "down")
    found = doctor(here)
    assert found["interfaces"] == ("failed", "no interface leads to other machines")
    assert "eth0 (down)" in found["not used"][1]
    assert found["multicast"][0] == "warning"
    assert found["peers"] == ("warning", "no other machine is seen")
