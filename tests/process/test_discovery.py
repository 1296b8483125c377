"""Machines find each other by real multicast, over real interfaces: several hosts on this one, joined by a bridge."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.process.hosts import HANG_S, Lan, others, peer, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def test_three_hosts_see_each_other_and_a_run_and_one_says_goodbye(net: Lan) -> None:
    studio, mbp, air = (net.host(name) for name in ("studio", "mbp", "air"))
    a = studio.neighbour("--state", "training", "--run", "kx7k2m")
    b, c = mbp.neighbour(), air.neighbour()
    for each, names in ((a, ["air", "mbp"]), (b, ["air", "studio"]), (c, ["mbp", "studio"])):
        each.until(lambda seen, names=names: others(seen) == names)
        each.until(lambda seen, names=names: all(p.reached_ms is not None and p.sees_us for p in seen.peers if not p.itself))
        assert not each.seen.trouble
    seen = b.until(lambda seen: run(seen, "kx7k2m"))
    told = run(seen, "kx7k2m")
    assert told is not None
    assert (told.advert.name, told.how, told.peers, told.location) == ("tiny-lm", ("network",), ("studio",), None)
    there = peer(seen, "studio")
    assert there is not None
    assert there.advert.state == "training"
    assert there.addresses[0] == "10.77.0.1"
    a.close()
    b.until(lambda seen: others(seen) == ["air"] and not seen.runs)


def test_a_host_that_loses_its_power_is_gone_after_a_while(net: Lan) -> None:
    a, b = net.host("studio").neighbour("--run", "kx7k2m"), net.host("mbp").neighbour()
    b.until(lambda seen: others(seen) == ["studio"] and seen.runs)
    a.kill()
    b.until(lambda seen: not others(seen) and not seen.runs)


def test_an_interface_goes_down_and_comes_back(net: Lan) -> None:
    studio = net.host("studio")
    a, b = studio.neighbour(), net.host("mbp").neighbour()
    for each, name in ((a, "mbp"), (b, "studio")):
        each.until(lambda seen, name=name: others(seen) == [name])
    studio.run("ip", "link", "set", "eth0", "down")
    a.until(lambda seen: any("no private network" in line for line in seen.trouble) and not others(seen))
    b.until(lambda seen: not others(seen))
    studio.run("ip", "link", "set", "eth0", "up")
    studio.run("ip", "address", "add", "10.77.0.77/24", "dev", "eth0")  # another address than before
    for each, name in ((a, "mbp"), (b, "studio")):
        each.until(lambda seen, name=name: others(seen) == [name] and not seen.trouble)
    b.until(lambda seen: "10.77.0.77" in peer(seen, "studio").addresses and peer(seen, "studio").reached_ms is not None)


def test_a_host_without_multicast_is_found_at_its_address(net: Lan) -> None:
    studio, mbp = net.host("studio"), net.host("mbp", v6=False)
    mbp.run("ip", "link", "set", "eth0", "multicast", "off")
    net.keep_multicast_back()
    a = studio.neighbour("--run", "kx7k2m")
    b = mbp.neighbour("--peer", "10.77.0.1", "--peer", "10.77.0.99")
    seen = b.until(lambda seen: others(seen) == ["studio"] and run(seen, "kx7k2m") and len(seen.trouble) == 2)
    assert peer(seen, "studio").how == ("address",)
    assert peer(seen, "studio").reached_ms is not None
    assert abs(peer(seen, "studio").clock_off_s) < 5
    assert "multicast" in seen.trouble[0]
    assert seen.trouble[1].startswith("10.77.0.99: ")
    a.kill()
    b.until(lambda seen: not others(seen) and len(seen.trouble) == 3)


def test_two_hosts_with_one_id_are_told_and_one_takes_another(net: Lan) -> None:
    studio, copy, air = (net.host(name) for name in ("studio", "copy", "air"))
    shared = (studio.place / "state" / "machine-id").read_text()
    (copy.place / "state" / "machine-id").write_text(shared)  # both stand on the same machine, so this alone is their id
    c = air.neighbour()
    a = studio.neighbour("--boot", "one")
    b = copy.neighbour("--boot", "two")
    seen = c.until(lambda seen: others(seen) == ["copy", "studio"] and len({p.advert.peer for p in seen.peers}) == 3)
    assert not any(p.doubled for p in seen.peers)
    notes = [each.until(lambda seen: len(others(seen)) == 2).trouble for each in (a, b)]
    assert sorted(map(len, notes)) == [0, 1]
    assert "this one has a new id" in "".join(line for lines in notes for line in lines)
    ids = [(host.place / "state" / "machine-id").read_text() for host in (studio, copy)]
    assert sorted(each == shared for each in ids) == [False, True]


def test_ipv6_alone_is_enough(net: Lan) -> None:
    a, b = (net.host(name, v4=False).neighbour() for name in ("studio", "mbp"))
    for each, name in ((a, "mbp"), (b, "studio")):
        seen = each.until(lambda seen, name=name: others(seen) == [name] and peer(seen, name).reached_ms is not None)
        assert peer(seen, name).addresses[0].startswith("fe80::")
        assert not seen.trouble


def test_a_foreign_swarm_is_seen_apart(net: Lan) -> None:
    a = net.host("studio").neighbour("--key", "ours", "--run", "kx7k2m")
    b = net.host("mbp").neighbour("--key", "ours")
    c = net.host("theirs").neighbour("--key", "another", "--run", "kx7k2m")
    seen = b.until(lambda seen: others(seen) == ["studio", "theirs"] and len(seen.runs) == 2)
    assert (peer(seen, "studio").ours, peer(seen, "theirs").ours) == (True, False)
    assert sorted((r.ours, r.peers) for r in seen.runs) == [(False, ("theirs",)), (True, ("studio",))]
    assert c.until(lambda seen: len(others(seen)) == 2).peers
    assert a.process.poll() is None


def test_several_processes_of_a_machine_are_one(net: Lan) -> None:
    studio, air = net.host("studio"), net.host("air")
    a, b = studio.neighbour("--state", "training", "--run", "kx7k2m"), studio.neighbour()
    c = air.neighbour("--peer", "10.77.0.1:27274")
    seen = c.until(lambda seen: run(seen, "kx7k2m") and peer(seen, "studio") and "address" in peer(seen, "studio").how)
    assert others(seen) == ["studio"]
    assert peer(seen, "studio").advert.state == "training"
    a.close()
    seen = c.until(lambda seen: not seen.runs and peer(seen, "studio").advert.state == "watching")
    assert others(seen) == ["studio"]
    assert b.process.poll() is None


def test_an_interface_that_is_named_is_the_only_one(net: Lan) -> None:
    studio, mbp = net.host("studio"), net.host("mbp")
    a = studio.neighbour("--interface", "lo")
    b = studio.neighbour("--interface", "lo", "--interface", "eth9")
    c = mbp.neighbour()
    seen = b.until(lambda seen: seen.trouble)
    assert seen.trouble == ("no interface eth9 is up here: there are eth0, lo",)
    seen = a.until(lambda seen: seen.peers and seen.peers[0].how)
    assert seen.peers[0].itself
    assert c.until(lambda seen: seen.peers and seen.peers[0].how).peers[0].itself
    assert not others(c.seen)


def test_people_see_machines_and_runs_by_commands(net: Lan) -> None:
    studio, mbp = net.host("studio"), net.host("mbp")
    a = studio.neighbour("--state", "training", "--run", "kx7k2m")
    a.until(lambda seen: seen.peers and seen.peers[0].how)
    found = mbp.swarm("peers", "--json")
    told = {each["name"]: each for each in map(json.loads, found.stdout.splitlines())}
    assert told["studio"]["state"] == "training"
    assert told["studio"]["how"] == ["network"]
    assert told["studio"]["reached_ms"] > 0
    assert "tag" not in told["studio"]
    shown = mbp.swarm("runs")
    assert shown.stdout.splitlines()[1].split()[:3] == ["tiny-lm", "kx7k2m", "diloco"]
    assert "mailbox not mounted here" in shown.stdout
    assert "network (studio)" in shown.stdout
    shown = mbp.swarm("peers", "--peer", "10.77.0.99")
    assert shown.stdout.splitlines()[1].split()[:3] == ["studio", "training", "CPU"]
    assert "10.77.0.99: " in shown.stderr


def test_peers_are_watched_as_they_come_and_go(net: Lan) -> None:
    watching = net.host("mbp").swarm_started("peers", "--watch")
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith(b"NAME")
    assert b"*" in watching.stdout.readline()
    a = net.host("studio").neighbour()
    assert b"studio: here, watching, 10.77.0.2" in watching.stdout.readline()
    a.until(lambda seen: any(p.sees_us for p in seen.peers))
    a.close()
    lines = [watching.stdout.readline()]
    while b"gone" not in lines[-1]:
        lines.append(watching.stdout.readline())
    watching.send_signal(signal.SIGINT)
    assert watching.wait(HANG_S) == 130


@pytest.mark.slow
def test_a_worker_tells_of_its_run_and_of_how_it_goes(net: Lan, tmp_path: Path) -> None:
    """The share, which both hosts have, is a folder."""
    studio, mbp = net.host("studio"), net.host("mbp")
    share = str(tmp_path / "share")
    studio.swarm("init", share)
    near = mbp.neighbour("--lives", "60")
    started = ["start", "diloco", "--task", "mlp", "--name", "tiny", "--rounds", "1000", "--sync-every", "20"]
    started += ["--beat-s", "0.2", "--lease-s", "2", "--device", "cpu"]
    training = studio.swarm_started(*started, "--mailbox", share)
    seen = near.until(lambda seen: seen.runs and seen.runs[0].advert.phase == "running" and seen.runs[0].advert.round > 1)
    told = seen.runs[0].advert
    assert (told.name, told.method, told.task, told.learners, told.rounds) == ("tiny", "diloco", "mlp", 1, 1000)
    near.until(lambda seen: seen.runs[0].advert.round > told.round)  # it goes on, and says so
    (there,) = (each for each in seen.peers if not each.itself)
    assert (there.advert.state, there.advert.mailboxes) == ("training", (told.mailbox,))
    (run,) = map(json.loads, mbp.swarm("runs", "--json").stdout.splitlines())
    assert (run["name"], run["how"], run["peers"], run["location"]) == ("tiny", ["network"], [there.advert.name], None)
    mbp.swarm("init", share)  # known here from now on
    (run,) = map(json.loads, mbp.swarm("runs", "--json").stdout.splitlines())
    assert (run["name"], len(run["learners"])) == ("tiny", 1)
    machines = [json.loads(line) for line in mbp.swarm("peers", "--json").stdout.splitlines()]
    assert [each["how"] for each in machines if each["peer"] == there.advert.peer] == [["network", "mailbox"]]
    training.send_signal(signal.SIGINT)
    training.wait(HANG_S)
    near.until(lambda seen: not seen.runs and all(each.itself for each in seen.peers))
