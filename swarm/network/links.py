"""The interfaces over which machines find each other, the best first, with their IPv4 and IPv6 addresses."""

from __future__ import annotations

import ipaddress
import re
import socket
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import psutil

from swarm.core.ranks import Kind
from swarm.network.interfaces import VIRTUAL, hardware_ports, is_wireless, kind_of

_RANKS: Mapping[Kind, int] = {"ethernet": 0, "thunderbolt": 1, "other": 2, "wifi": 3, "vpn": 4, "loopback": 5}
_UNASKED: frozenset[Kind] = frozenset({"vpn", "loopback"})  # only where a person names them
_SYSTEM = re.compile(r"awdl\d+|llw\d+|anpi\d+|gif\d+|stf\d+|XHC\d+")  # of macOS, for itself


@dataclass(frozen=True)
class Link:
    """One interface that is up."""

    name: str
    kind: Kind
    index: int  # the system's
    v4: tuple[str, ...] = ()
    v6: tuple[str, ...] = ()  # without scopes
    multicast: bool = True  # whether it carries any

    @property
    def addresses(self) -> tuple[str, ...]:
        """As a socket of this machine takes them: a link-local one with its interface."""
        return (*self.v4, *(f"{a}%{self.name}" if ipaddress.ip_address(a).is_link_local else a for a in self.v6))


class Links:
    """Asks the system for them; on macOS, what carries each is asked once for each set of names: it takes a while."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: those to use, whatever they are; none: the best, of private networks."""
        self.names = tuple(dict.fromkeys(names))
        self._hardware: tuple[frozenset[str], dict[str, str]] = (frozenset(), {})
        self.missing: tuple[str, ...] = ()  # of `names`, those that were not up at the last look
        self.up: tuple[str, ...] = ()  # those that were

    def look(self) -> tuple[Link, ...]:
        """The best first. May take some milliseconds; after a change, on macOS, longer."""
        stats = {name: each for name, each in psutil.net_if_stats().items() if each.isup}
        found = {name: listed for name, listed in psutil.net_if_addrs().items() if name in stats}
        self.up = tuple(sorted(found))
        self.missing = tuple(name for name in self.names if name not in found)
        if sys.platform == "darwin" and self._hardware[0] != frozenset(found):
            self._hardware = frozenset(found), hardware_ports()
        addresses = {
            name: [a.address for a in listed if a.family in (socket.AF_INET, socket.AF_INET6)] for name, listed in found.items()
        }
        silent = {name for name, each in stats.items() if each.flags and "multicast" not in each.flags.split(",")}
        wireless = {name for name in found if is_wireless(name)}
        links = usable(addresses, self._hardware[1], names=self.names, wireless=wireless, silent=silent)
        return tuple(replaced for link in links if (replaced := _indexed(link)) is not None)


def usable(
    found: Mapping[str, Iterable[str]],
    hardware: Mapping[str, str],
    *,
    names: Collection[str] = (),
    wireless: Collection[str] = (),
    silent: Collection[str] = (),
) -> list[Link]:
    """`found`: addresses by interface that is up; `hardware`: what macOS calls what carries it; `wireless`, `silent`: names of
    those that are, and of those without multicast. Links have no index yet."""
    links = []
    for name, listed in found.items():
        kind = kind_of(name, hardware.get(name, ""))
        if kind in ("other", "ethernet") and name in wireless:
            kind = "wifi"
        if names:
            if name not in names:
                continue
        elif kind in _UNASKED or VIRTUAL.fullmatch(name) or _SYSTEM.fullmatch(name):
            continue
        v4, v6 = [], []
        for text in listed:
            ip = _address(text)
            if ip is None or ip.is_multicast or ip.is_unspecified or (ip.is_global and not names):
                continue  # the whole internet may reach a global one
            if ip.version == 4:
                v4.append(str(ip))
            elif ip.is_link_local or kind != "loopback":  # no multicast over ::1
                v6.append(str(ip).partition("%")[0])
        if v4 or v6:
            # Link-local addresses first: they need no router.
            v6.sort(key=lambda text: not ipaddress.ip_address(text).is_link_local)
            multicast = kind == "loopback" or name not in silent
            links.append(Link(name=name, kind=kind, index=0, v4=tuple(v4), v6=tuple(v6), multicast=multicast))
    return sorted(links, key=lambda link: (_RANKS[link.kind], link.name))


def _indexed(link: Link) -> Link | None:
    try:
        index = socket.if_nametoindex(link.name)
    except OSError:  # gone meanwhile
        return None
    return Link(name=link.name, kind=link.kind, index=index, v4=link.v4, v6=link.v6, multicast=link.multicast)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
