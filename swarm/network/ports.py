"""Whether a port is free, and whether somebody listens at it: told without ever connecting to it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

import psutil

TRIED = 2000  # ports before it is said that none is free


def obstacle(address: str, port: int) -> str:
    """Why a rank cannot have `port` at this very address, in words; "" if nobody holds it, shared or not, listening or not.

    Bound without SO_REUSEADDR and SO_REUSEPORT: with either of them a port that another program shares looks free, and a rank
    that binds it gets no error, and only some of its connections.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
        if exclusive is not None:  # Windows: else a shared one looks free there, too
            tried.setsockopt(socket.SOL_SOCKET, exclusive, 1)
        try:
            tried.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"port {port} at {address} is held by another program"
            if error.errno == errno.EADDRNOTAVAIL:
                return f"{address} is no longer an address of this machine"
            return f"port {port} at {address} cannot be bound: {error.strerror}"
    return ""


def free_ports(addresses: Collection[str], candidates: Iterable[int], count: int) -> tuple[int, ...]:
    """The first `count` of `candidates` that are free at each of `addresses`; fewer if no more are found."""

    def found() -> Iterator[int]:
        seen = set()
        for port in islice(candidates, TRIED):
            if port not in seen and not any(obstacle(address, port) for address in addresses):
                yield port
            seen.add(port)

    return tuple(islice(found(), count))


def listens(pid: int, address: str, port: int) -> bool:
    """Whether the process `pid` listens at this address and port, by the local socket table. False for one that is gone."""
    try:
        table = psutil.Process(pid).net_connections(kind="tcp4")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and tuple(c.laddr) == (address, port) for c in table)
