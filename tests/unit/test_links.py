"""Over which interfaces machines look for each other, and to which addresses they connect."""

from __future__ import annotations

import socket

import pytest

from swarm.network.discovery import reachable
from swarm.network.links import Link, Links, usable

FOUND = {
    "lo": ["127.0.0.1", "::1"],
    "wlan0": ["192.168.1.8", "fe80::2%wlan0"],
    "eth0": ["192.168.1.7", "fd00::7", "fe80::1%eth0", "2a00:1450:4001::1", "8.8.8.8"],
    "docker0": ["172.17.0.1"],
    "veth12ab": ["fe80::3%veth12ab"],
    "tailscale0": ["100.64.0.1"],
    "utun3": ["fe80::4%utun3"],
    "awdl0": ["fe80::5%awdl0"],
    "bridge0": ["169.254.10.1"],
    "en5": ["10.0.0.5", "224.0.0.1", "0.0.0.0", "02:fc:00:00:00:01"],
    "ppp0": ["10.9.9.9"],
    "usb0": [],
}


def names(*asked: str) -> list[str]:
    return [link.name for link in usable(FOUND, {}, names=asked)]


def test_wired_comes_first_and_networks_without_other_machines_are_left_out() -> None:
    assert names() == ["eth0", "bridge0", "en5", "wlan0"]
    by_name = {link.name: link for link in usable(FOUND, {"en5": "Thunderbolt 1"}, wireless={"eth0"}, silent={"bridge0"})}
    assert by_name["en5"].kind == "thunderbolt"
    assert by_name["eth0"].kind == "wifi"
    assert not by_name["bridge0"].multicast
    assert by_name["en5"].v4 == ("10.0.0.5",)


def test_the_whole_internet_is_not_let_in_unless_its_interface_is_named() -> None:
    (first, *_) = usable(FOUND, {})
    assert (first.v4, first.v6) == (("192.168.1.7",), ("fe80::1", "fd00::7"))
    assert first.addresses == ("192.168.1.7", "fe80::1%eth0", "fd00::7")
    (named,) = usable(FOUND, {}, names=["eth0"])
    assert "8.8.8.8" in named.v4
    assert "2a00:1450:4001::1" in named.v6


@pytest.mark.parametrize("name", ["lo", "docker0", "tailscale0", "utun3", "awdl0", "veth12ab", "ppp0"])
def test_whatever_is_named_is_taken_and_nothing_else(name: str) -> None:
    assert names(name) == [name]
    assert names("eth9") == []
    assert names(name, "wlan0") in ([name, "wlan0"], ["wlan0", name])


def test_loopback_carries_multicast_over_ipv4() -> None:
    (loopback,) = usable(FOUND, {}, names=["lo"], silent={"lo"})
    assert (loopback.v4, loopback.v6, loopback.multicast) == (("127.0.0.1",), (), True)


def test_this_machine_s_own() -> None:
    name = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    links = Links([name, "eth999"])
    (found,) = links.look()
    assert (found.kind, found.index, "127.0.0.1" in found.v4) == ("loopback", socket.if_nametoindex(name), True)
    assert links.missing == ("eth999",)
    assert isinstance(found, Link)
    assert name in links.up


def test_an_advert_leads_nobody_out_of_the_private_network() -> None:
    told = [
        "8.8.8.8",
        "2a00:1450:4001::1",
        "127.0.0.1",
        "224.0.0.251",
        "0.0.0.0",
        "fe80::1",
        "fe80::1%2",
        "fd00::1",
        "10.0.0.1",
    ]
    assert reachable(told, loopback=False) == ("10.0.0.1", "fd00::1", "fe80::1%2")
    assert reachable(told, loopback=True) == ("10.0.0.1", "127.0.0.1", "fd00::1", "fe80::1%2")
    assert len(reachable((f"10.0.0.{n}" for n in range(99)), loopback=False)) == 8
