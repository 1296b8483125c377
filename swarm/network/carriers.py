"""This machine's interfaces for people: which are used to find other machines, and why the others are not."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterable, Mapping

import psutil

from swarm.core.diagnosis import KINDS, Carrier
from swarm.network.interfaces import VIRTUAL, kind_of
from swarm.network.links import Link, Links


def carriers(names: Collection[str] = ()) -> tuple[Carrier, ...]:
    """The best first, those that are not used last. `names`: those that a person asked for; none: the best are used."""
    used = Links(names).look()
    stats = psutil.net_if_stats()
    addresses = {
        name: [a.address for a in listed if a.family in (socket.AF_INET, socket.AF_INET6)]
        for name, listed in psutil.net_if_addrs().items()
    }
    return sorted_out(
        used,
        addresses,
        up={name for name, each in stats.items() if each.isup},
        speeds={name: each.speed for name, each in stats.items()},
        names=names,
    )


def sorted_out(
    used: Iterable[Link],
    addresses: Mapping[str, Iterable[str]],
    *,
    up: Collection[str],
    speeds: Mapping[str, int],
    names: Collection[str] = (),
) -> tuple[Carrier, ...]:
    """`used`: the best first; `addresses`: of all interfaces, by name; `up`: names of those that are; `speeds`: in Mbit/s."""
    first = [
        Carrier(
            name=link.name,
            address=next(iter(link.addresses), ""),
            v4=link.v4,
            v6=link.v6,
            kind=link.kind,
            speed_bytes_per_s=max(0, speeds.get(link.name, 0)) * 1e6 / 8,
            multicast=link.multicast,
        )
        for link in used
    ]
    taken = {each.name for each in first}
    left = [
        Carrier(
            name=name,
            address=next(iter(addresses.get(name, ())), ""),
            kind=kind_of(name),
            why_not=_why_not(name, addresses.get(name, ()), up=name in up, asked=bool(names)),
        )
        for name in sorted({*addresses, *up} - taken)
    ]
    # One that is down without any address is a port without a cable, or a driver's leftover: nobody misses it.
    return (*first, *(each for each in left if each.address or each.name in up))


def _why_not(name: str, addresses: Iterable[str], *, up: bool, asked: bool) -> str:
    kind = kind_of(name)
    found = [ipaddress.ip_address(each) for each in addresses]
    if not up:
        return "down"
    if kind in ("loopback", "vpn"):
        return KINDS[kind]
    if VIRTUAL.fullmatch(name):
        return "of containers or virtual machines"
    if not found:
        return "no address"
    if asked:
        return "not among those asked for"
    if all(each.is_global for each in found):
        return "its addresses are public"
    return "of this system's own"
