"""Each thing that the doctor judges: when it is well, when it is not well, and when it fails."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from swarm.core.adverts import PeerAdvert
from swarm.core.diagnosis import (
    LOCAL_NETWORK,
    TOPICS,
    Carrier,
    Machine,
    Multicast,
    Passphrase,
    Tried,
    TriedDevice,
    clock_words,
    framework_ticks,
    interface_ticks,
    machine_ticks,
    multicast_ticks,
    passphrase_ticks,
    peer_ticks,
    settings_ticks,
    sighting_ticks,
)
from swarm.core.manifest import FORMAT
from swarm.core.sightings import SeenPeer, Sightings
from swarm.core.ticks import Tick

replace = msgspec.structs.replace
MACHINE = Machine(
    platform="linux",
    system="Linux 6.1 x86_64",
    python="3.11.7",
    version="0.1.0",
    cpus=8,
    memory_bytes=32 << 30,
    free_memory_bytes=20 << 30,
    state_dir="/home/ann/.local/state/swarm",
    state_free_bytes=100 << 30,
)
STUDIO = PeerAdvert(peer="a" * 32, name="studio", boot="b" * 8, version="0.1.0", port=4711)


def verdicts(ticks: Iterable[Tick]) -> list[tuple[str, str]]:
    found = list(ticks)
    for tick in found:
        assert tick.topic in TOPICS
        assert tick.detail or tick.verdict == "ok"
        assert bool(tick.remedy) == (tick.verdict != "ok"), tick
    return [(tick.name, tick.verdict) for tick in found]


# This machine


def test_a_machine_with_room_is_well() -> None:
    found = machine_ticks(MACHINE)
    assert verdicts(found) == [("system", "ok"), ("memory", "ok"), ("own files", "ok")]
    assert f"format {FORMAT}" in found[0].detail
    assert found[1].detail == "21.5 GB of 34.4 GB free, 8 processors"


def test_little_memory_and_little_space_are_warnings() -> None:
    poor = replace(MACHINE, free_memory_bytes=(1 << 30) - 1, state_free_bytes=(1 << 30) - 1)
    assert verdicts(machine_ticks(poor)) == [("system", "ok"), ("memory", "warning"), ("own files", "warning")]


def test_a_state_folder_that_cannot_be_written_fails() -> None:
    found = machine_ticks(replace(MACHINE, state_problem="Permission denied"))
    assert verdicts(found)[2] == ("own files", "failed")
    assert found[2].detail == "/home/ann/.local/state/swarm: Permission denied"
    assert "SWARM_STATE_DIR" in found[2].remedy


# Frameworks


def test_no_framework_fails_and_says_what_to_install() -> None:
    [found] = framework_ticks([])
    assert verdicts([found]) == [("framework", "failed")]
    assert found.remedy == "pip install 'homeswarm[train]'"


def test_each_device_that_computes_is_well() -> None:
    gpu = TriedDevice(name="cuda:0", what="NVIDIA H200", memory_bytes=150 << 30, took_ms=81.2)
    found = framework_ticks([Tried(framework="torch", version="2.9", devices=(TriedDevice(name="cpu"), gpu))], nvidia=True)
    assert verdicts(found) == [("torch cpu", "ok"), ("torch cuda:0", "ok")]
    assert found[1].detail == "torch 2.9, NVIDIA H200, 161 GB, forward pass in 81 ms"


def test_a_device_that_does_not_compute_fails_and_the_others_stand() -> None:
    bad = TriedDevice(name="cuda:0", error="RuntimeError: CUDA error: no kernel image")
    found = framework_ticks([Tried(framework="torch", devices=(TriedDevice(name="cpu"), bad))])
    assert verdicts(found) == [("torch cpu", "ok"), ("torch cuda:0", "failed")]
    assert "--device cpu" in found[1].remedy


def test_a_broken_cpu_asks_for_another_installation() -> None:
    [found] = framework_ticks([Tried(framework="mlx", devices=(TriedDevice(name="cpu", error="gives nan"),))])
    assert found.remedy == "install it again: pip install --force-reinstall 'homeswarm[mlx]'"


def test_a_framework_that_cannot_be_loaded_fails() -> None:
    found = framework_ticks([Tried(framework="mlx", error="the process ended with code 1: ImportError: libmlx.so")])
    assert verdicts(found) == [("mlx", "failed")]


def test_one_that_still_loads_is_a_warning_and_one_that_hangs_fails() -> None:
    loads = Tried(framework="torch", hangs_at="", limit_s=9.0)
    hangs = Tried(framework="torch", devices=(TriedDevice(name="cpu"),), hangs_at="cuda:0", limit_s=9.0)
    assert verdicts(framework_ticks([loads])) == [("torch", "warning")]
    assert verdicts(framework_ticks([hangs])) == [("torch cpu", "ok"), ("torch cuda:0", "failed")]


@pytest.mark.parametrize(
    ("nvidia", "expected"), [(True, [("torch cpu", "ok"), ("torch cuda", "warning")]), (False, [("torch cpu", "ok")])]
)
def test_a_card_that_pytorch_does_not_see(nvidia: bool, expected: list[tuple[str, str]]) -> None:
    tried = Tried(framework="torch", version="2.9+cpu", devices=(TriedDevice(name="cpu"),))
    assert verdicts(framework_ticks([tried], nvidia=nvidia)) == expected


# Network


def test_interfaces_that_are_used_and_those_that_are_not() -> None:
    found = interface_ticks(
        [
            Carrier(name="en0", address="10.0.0.2", kind="ethernet", speed_bytes_per_s=10e9 / 8),
            Carrier(name="en1", address="10.0.0.3", kind="wifi", speed_bytes_per_s=433e6 / 8),
            Carrier(name="utun3", address="100.64.0.1", kind="vpn", why_not="a VPN"),
        ]
    )
    assert verdicts(found) == [("interface en0", "ok"), ("interface en1", "ok"), ("not used", "ok")]
    assert found[0].detail == "10.0.0.2, wired, 10 Gbit/s, used first"
    assert found[1].detail == "10.0.0.3, Wi-Fi, 433 Mbit/s"
    assert found[2].detail == "utun3 (a VPN)"


def test_an_interface_without_multicast_is_a_warning() -> None:
    found = interface_ticks([Carrier(name="en0", address="10.0.0.2", kind="ethernet", multicast=False)])
    assert verdicts(found) == [("interface en0", "warning")]
    assert "--peer HOST" in found[0].remedy


def test_no_interface_fails() -> None:
    found = interface_ticks([Carrier(name="lo", address="127.0.0.1", kind="loopback", why_not="loopback")])
    assert verdicts(found) == [("interfaces", "failed"), ("not used", "ok")]
    assert "--interface" in found[0].remedy


def test_many_interfaces_that_are_not_used_are_counted() -> None:
    many = [Carrier(name=f"veth{n}", address="172.17.0.1", kind="other", why_not="of containers") for n in range(40)]
    assert interface_ticks(many)[-1].detail.endswith("veth11 (of containers) and 28 more")


HEARD = Multicast(interface="en0", address="10.0.0.2", sent=True, own=True, packets=9, others=3)


def test_multicast_that_is_sent_and_heard_is_well() -> None:
    found = multicast_ticks([HEARD], platform="linux")
    assert verdicts(found) == [("multicast en0", "ok")]
    assert found[0].detail == "sent and received; 9 packets of 3 other machines heard"


def test_multicast_that_could_not_be_tried_is_a_warning() -> None:
    assert verdicts(multicast_ticks([], platform="linux")) == [("multicast", "warning")]


def test_hearing_nobody_is_a_warning() -> None:
    [found] = multicast_ticks([replace(HEARD, packets=0, others=0)], platform="linux")
    assert verdicts([found]) == [("multicast en0", "warning")]
    assert "client isolation" in found.remedy


@pytest.mark.parametrize(("platform", "how"), [("linux", "ufw"), ("darwin", "System Settings")])
def test_multicast_that_does_not_come_back_fails(platform: str, how: str) -> None:
    [found] = multicast_ticks([replace(HEARD, own=False)], platform=platform)
    assert verdicts([found]) == [("multicast en0", "failed")]
    assert "5353" in found.remedy
    assert how in found.remedy


@pytest.mark.parametrize(
    ("code", "platform", "what"),
    [
        ("EHOSTUNREACH", "darwin", LOCAL_NETWORK),
        ("EHOSTUNREACH", "linux", "see that the interface is connected"),
        ("EADDRINUSE", "linux", "end the program that holds UDP port 5353"),
        ("EPERM", "linux", "a firewall forbids it"),
        ("ENOBUFS", "linux", "--peer HOST"),
    ],
)
def test_why_nothing_was_sent(code: str, platform: str, what: str) -> None:
    [found] = multicast_ticks([replace(HEARD, sent=False, own=False, error="so it is", code=code)], platform=platform)
    assert verdicts([found]) == [("multicast en0", "failed")]
    assert found.detail == "cannot be sent: so it is"
    assert what in found.remedy


def test_what_discovery_complains_of() -> None:
    seen = Sightings(trouble=("en0: No route to host",), ignored=2)
    linux, darwin = sighting_ticks(seen, platform="linux"), sighting_ticks(seen, platform="darwin")
    assert verdicts(linux) == verdicts(darwin) == [("discovery", "warning"), ("adverts", "warning")]
    assert darwin[0].remedy == LOCAL_NETWORK != linux[0].remedy
    assert sighting_ticks(Sightings(), platform="linux") == ()


# Peers


def judged(peer: SeenPeer, *, now_s: float = 100.0, platform: str = "linux") -> Tick:
    [found] = peer_ticks(Sightings(peers=(peer,)), now_s=now_s, platform=platform)
    verdicts([found])
    return found


PEER = SeenPeer(
    advert=STUDIO, how=("network",), addresses=("10.0.0.9",), heard_s=97.0, sees_us=True, reached_ms=2.13, clock_off_s=7260.0
)


def test_a_peer_that_is_seen_and_sees_us_is_well_whatever_its_clock_says() -> None:
    found = judged(PEER)
    assert (found.name, found.verdict) == ("studio", "ok")
    said = "last advert 3 s ago (network); sees this machine; reached at 10.0.0.9 in 2.1 ms; its clock is 2 h 1 min ahead"
    assert found.detail == said


def test_one_way_visibility_is_a_warning() -> None:
    found = judged(replace(PEER, sees_us=False))
    assert found.verdict == "warning"
    assert "does not see this machine" in found.detail
    assert "5353" in found.remedy
    unknown = judged(replace(PEER, sees_us=None))
    assert unknown.verdict == "ok"
    assert "has not said yet" in unknown.detail


def test_a_peer_that_is_on_and_cannot_be_reached_fails() -> None:
    away = replace(PEER, reached_ms=None, unreachable="10.0.0.9: timed out")
    found = judged(away)
    assert found.verdict == "failed"
    assert "4711" in found.remedy
    asleep = judged(away, now_s=200.0)
    assert asleep.verdict == "warning"
    assert "asleep" in asleep.remedy


def test_macos_without_the_permission_for_the_local_network() -> None:
    found = judged(replace(PEER, reached_ms=None, unreachable="No route to host"), platform="darwin")
    assert (found.verdict, found.remedy) == ("failed", LOCAL_NETWORK)
    assert judged(replace(PEER, reached_ms=None, unreachable="No route to host")).remedy != LOCAL_NETWORK


@pytest.mark.parametrize(
    ("peer", "what"),
    [
        (replace(PEER, doubled=True), "machine-id"),
        (replace(PEER, ours=False), "swarm key"),
        (replace(PEER, reached_ms=900.0), "cable"),
        (replace(PEER, advert=replace(STUDIO, format=FORMAT + 1)), "upgrade swarm on this machine"),
        (replace(PEER, advert=replace(STUDIO, format=0)), "upgrade swarm on studio"),
    ],
)
def test_peers_that_are_not_as_they_should_be(peer: SeenPeer, what: str) -> None:
    found = judged(peer)
    assert found.verdict == "warning"
    assert what in found.remedy


def test_the_worst_is_told() -> None:
    assert judged(replace(PEER, doubled=True, reached_ms=None, unreachable="refused")).verdict == "failed"


def test_nobody_is_a_warning_and_this_machine_is_no_peer() -> None:
    alone = Sightings(peers=(replace(PEER, itself=True),))
    assert verdicts(peer_ticks(alone, now_s=100.0, platform="linux")) == [("peers", "warning")]
    twice = Sightings(peers=(replace(PEER, itself=True, doubled=True),))
    assert verdicts(peer_ticks(twice, now_s=100.0, platform="linux")) == [("this machine", "warning"), ("peers", "warning")]


def test_a_peers_name_is_plain_text() -> None:
    assert "\x1b" not in judged(replace(PEER, advert=replace(STUDIO, name="\x1b[31mstudio\n"))).name


@pytest.mark.parametrize(
    ("off_s", "words"),
    [
        (0.01, "the same"), (-0.3, "0.3 s behind"), (59.4, "59.4 s ahead"), (-150, "2 min behind"), (3600, "1 h 0 min ahead"),
        (90000, "1 d 1 h ahead"),
    ],
)  # fmt: skip
def test_clocks_in_words(off_s: float, words: str) -> None:
    assert clock_words(off_s) == words


# Settings, passphrase


def test_settings() -> None:
    assert verdicts(settings_ticks(())) == [("settings", "ok")]
    assert verdicts(settings_ticks(("a: b", "c: d"))) == [("settings", "failed"), ("settings", "failed")]


def test_the_passphrase() -> None:
    good = Passphrase(path="/home/ann/passphrase.toml", there=True, fingerprint="0a1b2c3d")
    assert verdicts(passphrase_ticks(good)) == [("passphrase", "ok")]
    assert "0a1b2c3d" in passphrase_ticks(good)[0].detail
    assert verdicts(passphrase_ticks(Passphrase(path="", there=False))) == [("passphrase", "warning")]
    assert verdicts(passphrase_ticks(replace(good, problem="holds none"))) == [("passphrase", "failed")]
    [loose] = passphrase_ticks(replace(good, mode=0o644, problem="others can read it"))
    assert verdicts([loose]) == [("passphrase", "failed")]
    assert "0644" in loose.detail
    assert loose.remedy == "chmod 600 /home/ann/passphrase.toml"
