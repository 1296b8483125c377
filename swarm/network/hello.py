"""Who listens on a port tells whoever connects all that it advertises, as one JSON Hello, and closes. Nothing is read.

It shows that a machine can be reached, tells of it where multicast does not get through, and costs it next to nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from swarm.core.adverts import MAX_HELLO_BYTES, Hello, hello_of
from swarm.core.errors import AdvertError, PeerUnreachable, UsageError
from swarm.mailbox.threads import DaemonThreads

PORTS = range(27273, 27281)
"""A process takes the first one that is free; any other if none is. An address without a port is asked at each of them."""
CONNECTIONS = 16  # at once; who comes beside them is turned away
ANSWER_S = 5.0  # that a connection may take
LOCAL_NETWORK = "this terminal may not use the local network: allow it in System Settings → Privacy & Security → Local Network"


class HelloServer:
    """`says`: what is told now. `reached`: called with the address of this machine that somebody has reached, and theirs."""

    def __init__(self, says: Callable[[], Hello], *, reached: Callable[[str, str], object] = lambda own, other: None) -> None:
        self._says, self._reached = says, reached
        self._servers: list[asyncio.AbstractServer] = []
        self._open: set[asyncio.BaseTransport] = set()
        self.port = 0  # 0: it does not listen

    async def open(self, addresses: Iterable[str]) -> None:
        """Listen at these addresses of this machine and at no other, at one port. Raises OSError if none can be had."""
        await self.close()
        listed = tuple(addresses)
        failed: OSError | None = None
        for port in (*PORTS, 0):
            try:
                sockets = _bound(listed, port)
            except OSError as error:
                failed = error
                continue
            loop = asyncio.get_running_loop()
            self._servers = [await loop.create_server(lambda: _Answer(self), sock=each) for each in sockets]
            self.port = sockets[0].getsockname()[1] if sockets else 0
            return
        assert failed is not None
        raise failed

    async def close(self) -> None:
        servers, self._servers, self.port = self._servers, [], 0
        for server in servers:
            server.close()
        for transport in list(self._open):
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()

    def bytes_to_say(self) -> bytes:
        """Never more than whoever asks takes: the last runs are left out."""
        hello = self._says()
        said = msgspec.json.encode(hello)
        while len(said) > MAX_HELLO_BYTES and hello.runs:
            hello = msgspec.structs.replace(hello, runs=hello.runs[: len(hello.runs) // 2])
            said = msgspec.json.encode(hello)
        return said


class _Answer(asyncio.Protocol):
    def __init__(self, server: HelloServer) -> None:
        self._server = server
        self._transport: asyncio.BaseTransport | None = None
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        server = self._server
        if len(server._open) >= CONNECTIONS:
            transport.abort()
            return
        self._transport = transport
        server._open.add(transport)
        own, other = (transport.get_extra_info(name) or ("",) for name in ("sockname", "peername"))
        server._reached(str(own[0]).partition("%")[0], str(other[0]).partition("%")[0])
        transport.pause_reading()
        transport.write(server.bytes_to_say())
        transport.close()  # once that is written
        self._end = asyncio.get_running_loop().call_later(ANSWER_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._server._open.discard(self._transport)
        if self._end is not None:
            self._end.cancel()


def _bound(addresses: tuple[str, ...], port: int) -> list[socket.socket]:
    """Sockets at one port of all these addresses. Raises OSError if one of them cannot be had; an address that is gone by now,
    or is not fit for use yet, is passed over."""
    found: list[socket.socket] = []
    try:
        for address in addresses:
            # Numeric, so that nobody is asked for a name.
            family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
            each = socket.socket(family, socket.SOCK_STREAM)
            found.append(each)
            if sys.platform != "win32":
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of a process that has just ended
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                each.bind(place)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                found.pop().close()
                continue
            each.listen(CONNECTIONS)
            each.setblocking(False)
            port = port or each.getsockname()[1]
    except OSError:
        for each in found:
            each.close()
        raise
    if addresses and not found:
        raise OSError(errno.EADDRNOTAVAIL, "no address of this machine can be listened at")
    return found


# ---- who asks


@dataclass(frozen=True)
class Answer:
    hello: Hello
    address: str  # numeric; a link-local one with its interface
    port: int
    connect_ms: float
    clock_off_s: float  # how far the clock there is ahead of ours


async def ask(address: str, port: int, timeout_s: float = 2.0) -> Answer:
    """What the process at a numeric address and port tells. Raises PeerUnreachable, AdvertError."""
    writer: asyncio.StreamWriter | None = None
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address, port, limit=MAX_HELLO_BYTES)
            connected_s, connected_wall_s = time.monotonic(), time.time()
            data = bytearray()
            while len(data) <= MAX_HELLO_BYTES and (piece := await reader.read(MAX_HELLO_BYTES)):
                data += piece
            answered_wall_s = time.time()
    except TimeoutError:
        raise PeerUnreachable(f"no answer within {timeout_s:g} s: it is off or asleep, or a firewall lies between") from None
    except OSError as error:
        raise PeerUnreachable(why_unreachable(error)) from None
    finally:
        if writer is not None:
            writer.close()
    hello = hello_of(bytes(data))
    off_s = hello.clock_s - (connected_wall_s + answered_wall_s) / 2 if hello.clock_s else 0.0
    connect_ms = (connected_s - started_s) * 1000
    return Answer(hello=hello, address=address, port=port, connect_ms=connect_ms, clock_off_s=off_s)


def why_unreachable(error: OSError, *, platform: str = sys.platform) -> str:
    """In words, with what to do about it."""
    number = error.errno
    if isinstance(error, socket.gaierror):
        return "no machine of that name is known here: give its address"
    if number == errno.ECONNREFUSED:
        return "it is there, and swarm does not listen on it"
    if number in (errno.EHOSTUNREACH, errno.EPERM, errno.EACCES) and platform == "darwin":
        return f"no route to it: it is off, or {LOCAL_NETWORK}"
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN):
        return "no route to it: it is off, or in another network"
    if number in (errno.ECONNRESET, errno.EPIPE):
        return "it broke the connection off"
    return error.strerror or str(error)


def parse_target(text: str) -> tuple[str, int | None]:
    """(host, port or None) of HOST, HOST:PORT, ADDRESS, [IPV6]:PORT. Raises UsageError."""
    given = text.strip()
    host, port = given, ""
    if given.startswith("["):
        host, bracket, rest = given[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(f"{text!r:.100} is no address: HOST, HOST:PORT or [IPV6]:PORT")
        port = rest[1:]
    elif given.count(":") == 1:
        host, _, port = given.partition(":")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.rstrip(".").split(".")
        plain = all(0 < len(part) <= 63 and part.replace("-", "a").replace("_", "a").isalnum() for part in labels)
        if not plain or len(host) > 253 or ":" in host or not _is_idna(host):
            raise UsageError(f"{text!r:.100} is no address: HOST, HOST:PORT or [IPV6]:PORT") from None
    if not port:
        return host, None
    if not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise UsageError(f"{port!r:.20} is no port: 1 to 65535")
    return host, int(port)


def _is_idna(host: str) -> bool:
    """Whether a name can be looked up: letters other than ASCII's are longer there than they are written."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def shown(address: str, port: int) -> str:
    """An address and its port, as `parse_target` takes them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class Asker:
    """Asks machines at addresses that people gave. Names are looked up on a thread that nobody waits for at the end."""

    def __init__(self) -> None:
        self._names = DaemonThreads(4)

    async def ask(self, target: str, timeout_s: float = 2.0) -> list[Answer]:
        """Every process of swarm that answers there, at least one. Raises PeerUnreachable, UsageError, AdvertError."""
        host, port = parse_target(target)
        try:
            async with asyncio.timeout(2 * timeout_s):
                found: list[Any] = await self._names.run(socket.getaddrinfo, host, port or PORTS[0], type=socket.SOCK_STREAM)
        except TimeoutError:
            raise PeerUnreachable("its name is not found: the name server does not answer; give its address") from None
        except UnicodeError:
            raise PeerUnreachable("its name cannot be looked up: give its address") from None
        except OSError as error:
            raise PeerUnreachable(why_unreachable(error)) from None
        addresses = list(dict.fromkeys(_numeric(place) for _, _, _, _, place in found))[:4]
        failed: dict[str, PeerUnreachable | AdvertError] = {}
        for address in addresses:
            ports = PORTS if port is None else (port,)
            results = await asyncio.gather(*(ask(address, each, timeout_s) for each in ports), return_exceptions=True)
            answers = [result for result in results if isinstance(result, Answer)]
            if answers:
                return answers
            for result in results:
                if isinstance(result, PeerUnreachable | AdvertError):
                    failed.setdefault(address, result)
                elif isinstance(result, BaseException):
                    raise result
        raise next(iter(failed.values()), PeerUnreachable("it has no address"))


def _numeric(place: tuple[Any, ...]) -> str:
    address = str(place[0])
    if len(place) == 4 and place[3] and "%" not in address:
        with contextlib.suppress(OSError):
            return f"{address}%{socket.if_indextoname(place[3])}"
    return address
