"""The addresses at which other machines of the same private network may reach this one."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import psutil

from swarm.core.ranks import Kind, is_address

_KINDS: tuple[tuple[Kind, str], ...] = (
    ("loopback", r"lo\d*|loopback.*"),
    ("vpn", r"utun.*|tun.*|tap.*|wg.*|ppp.*|ipsec.*|tailscale.*|zt.*|nordlynx.*|proton.*"),
    ("thunderbolt", r"bridge0|thunderbolt.*|tb\d+.*"),
    ("wifi", r"wl.*|wi-?fi.*|ath\d+|ra\d+|awdl.*|llw.*|ap\d+"),
    ("ethernet", r"eth.*|en[opsx].*|em\d+|bond.*|ib.*|end\d+"),
)
VIRTUAL = re.compile(r"docker.*|veth.*|virbr.*|vmnet.*|vnic.*|br-.*|cni.*|flannel.*|podman.*|lxc.*|bridge1\d\d|vEthernet.*")
"""Networks of virtual machines and containers: no other machine is in them, and each machine may have the same addresses."""


@dataclass(frozen=True)
class Interface:
    """One IPv4 address of this machine, and what carries it."""

    address: str
    name: str
    kind: Kind
    speed_bytes_per_s: float  # as the system tells; 0: it does not


def addresses(*, public: bool = False) -> list[Interface]:
    """Of all interfaces that are up, loopback included (agents of one machine meet there), sorted. Addresses that the whole
    internet can reach are left out unless `public`: a rank's sockets ask nobody who they are."""
    speeds = {name: stats.speed for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = {name: [a.address for a in listed if a.family == socket.AF_INET] for name, listed in psutil.net_if_addrs().items()}
    ports = hardware_ports() if sys.platform == "darwin" else {}
    return usable(found, speeds, ports, public=public, wireless=is_wireless)


def usable(
    found: Mapping[str, Iterable[str]],
    speeds: Mapping[str, int],
    ports: Mapping[str, str],
    *,
    public: bool = False,
    wireless: Callable[[str], bool] = lambda name: False,
) -> list[Interface]:
    """`found`: addresses by interface; `speeds`: of those that are up, in Mbit/s; `ports`: what macOS calls the hardware.
    `wireless`: whether a name is a wireless device's, where the system says."""
    interfaces = []
    for name, listed in found.items():
        if name not in speeds or VIRTUAL.fullmatch(name):
            continue
        kind = kind_of(name, ports.get(name, ""))
        if kind in ("other", "ethernet") and wireless(name):
            kind = "wifi"
        for address in listed:
            if is_address(address) and (public or is_private(address)) and _may_be_bound(address):
                interfaces.append(Interface(address, name, kind, max(0, speeds[name]) * 1e6 / 8))
    return sorted(interfaces, key=lambda each: (each.name, ipaddress.IPv4Address(each.address)))


def is_private(address: str) -> bool:
    """Whether only a private network reaches it: private ranges, link-local ones (a Thunderbolt cable between two Macs has
    nothing else), carriers' and VPNs' (100.64/10), and loopback."""
    return not ipaddress.IPv4Address(address).is_global


def _may_be_bound(address: str) -> bool:
    ip = ipaddress.IPv4Address(address)
    return not (ip.is_multicast or ip.is_unspecified)


def kind_of(name: str, hardware: str = "") -> Kind:
    """Guessed from the interface's name, and from what macOS calls its hardware, which knows better: en5 may be anything."""
    if hardware:
        lowered = hardware.lower()
        words: tuple[tuple[str, Kind], ...] = (("thunderbolt", "thunderbolt"), ("wi-fi", "wifi"), ("airport", "wifi"))
        for word, kind in words:
            if word in lowered:
                # An adapter for a network cable that hangs on a Thunderbolt port is no link between two Macs.
                return "ethernet" if "ethernet" in lowered else kind
        if "ethernet" in lowered or "lan" in lowered:
            return "ethernet"
    for kind, pattern in _KINDS:
        if re.fullmatch(pattern, name, re.IGNORECASE):
            return kind
    return "other"


def hardware_ports() -> dict[str, str]:
    """macOS: what carries each interface, by its name: 'Thunderbolt Bridge', 'Wi-Fi', 'Ethernet'. Empty where it cannot be
    told."""
    try:
        done = subprocess.run(["/usr/sbin/networksetup", "-listallhardwareports"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_hardware_ports(done.stdout)


def parse_hardware_ports(text: str) -> dict[str, str]:
    found = re.findall(r"^Hardware Port: (.+)\nDevice: (\S+)$", text, re.MULTILINE)
    return {device: port for port, device in found}


def is_wireless(name: str) -> bool:
    """Linux says so of a device, whatever it is called."""
    return os.path.isdir(f"/sys/class/net/{name}/wireless")
