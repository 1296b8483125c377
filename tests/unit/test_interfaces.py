"""Which of a machine's addresses other machines may use, and what carries them."""

from __future__ import annotations

import pytest

from swarm.network.interfaces import addresses, is_private, kind_of, parse_hardware_ports, usable

LISTED = """
Hardware Port: Ethernet
Device: en0
Ethernet Address: 00:00:00:00:00:01

Hardware Port: Thunderbolt Ethernet Slot 1
Device: en7
Ethernet Address: 00:00:00:00:00:02

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 00:00:00:00:00:03

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 00:00:00:00:00:04

Hardware Port: Thunderbolt 1
Device: en5
Ethernet Address: 00:00:00:00:00:05

VLAN Configurations
===================
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lo", "loopback"), ("lo0", "loopback"), ("eth0", "ethernet"), ("enp3s0", "ethernet"), ("eno1", "ethernet"),
        ("wlan0", "wifi"), ("wlp2s0", "wifi"), ("Wi-Fi", "wifi"), ("Ethernet", "ethernet"), ("bridge0", "thunderbolt"),
        ("thunderbolt0", "thunderbolt"), ("utun3", "vpn"), ("tailscale0", "vpn"), ("wg0", "vpn"), ("en5", "other"),
        ("weird7", "other"),
    ],
)  # fmt: skip
def test_the_kind_is_guessed_from_the_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_macos_says_what_carries_an_interface() -> None:
    ports = parse_hardware_ports(LISTED)
    kinds = {name: kind_of(name, ports.get(name, "")) for name in ("en0", "en7", "bridge0", "en1", "en5", "utun0")}
    assert kinds == {
        "en0": "ethernet",
        "en7": "ethernet",  # an adapter: the cable that matters is Ethernet
        "bridge0": "thunderbolt",
        "en1": "wifi",
        "en5": "thunderbolt",
        "utun0": "vpn",
    }


def test_private_addresses_of_interfaces_that_are_up() -> None:
    found = {
        "lo0": ["127.0.0.1"],
        "en0": ["192.168.1.5", "8.8.8.8"],
        "bridge0": ["169.254.7.1"],
        "utun3": ["100.101.102.103"],
        "en9": ["10.0.0.9"],
        "docker0": ["172.17.0.1"],
        "veth12": ["172.17.0.2"],
        "wifi0": ["10.1.0.1"],
    }
    speeds = {"lo0": 0, "en0": 1000, "bridge0": 0, "utun3": 0, "docker0": 0, "veth12": 0, "wifi0": -1}
    ports = {"en0": "Ethernet"}
    usual = usable(found, speeds, ports, wireless=lambda name: False)
    assert [(each.address, each.kind, each.speed_bytes_per_s) for each in usual] == [
        ("169.254.7.1", "thunderbolt", 0.0),
        ("192.168.1.5", "ethernet", 125e6),
        ("127.0.0.1", "loopback", 0.0),
        ("100.101.102.103", "vpn", 0.0),
        ("10.1.0.1", "wifi", 0.0),
    ]
    assert "8.8.8.8" in [each.address for each in usable(found, speeds, ports, public=True)]


def test_the_system_may_say_that_a_device_is_wireless() -> None:
    found = {"eth1": ["10.0.0.1"], "tun0": ["10.0.0.2"]}
    told = usable(found, {"eth1": 0, "tun0": 0}, {}, wireless=lambda name: True)
    assert [each.kind for each in told] == ["wifi", "vpn"]


@pytest.mark.parametrize(
    ("address", "private"),
    [("10.1.2.3", True), ("172.16.0.1", True), ("192.168.0.1", True), ("169.254.1.1", True), ("127.0.0.1", True),
     ("100.64.0.1", True), ("8.8.8.8", False), ("172.32.0.1", False)],
)  # fmt: skip
def test_private_means_that_the_internet_does_not_reach_it(address: str, private: bool) -> None:
    assert is_private(address) == private


def test_this_machine_has_a_loopback_address() -> None:
    assert "127.0.0.1" in [each.address for each in addresses() if each.kind == "loopback"]
