"""Probes between agents: whether one reaches another's address, how long a round trip takes, how many bytes a second come.

On ports of their own: a stray connection to a rank's port would break the ring. Whoever knocks proves that it knows the nonce
which the target announced in the mailbox, and the target proves the same, so that nobody is answered, or believed, who is not
of the run: challenges go both ways, and the nonce itself is never sent.

    server → client   "swarm-probe-1\\n", 16 random bytes
    client → server   16 random bytes, HMAC-SHA256(nonce, "client" + both)
    server → client   HMAC-SHA256(nonce, "server" + both)
    client → server   4 bytes: how many bytes are wanted; again and again
    server → client   as many bytes
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from swarm.core.ranks import Address, Link, Member, in_words
from swarm.network.interfaces import Interface

GREETING = b"swarm-probe-1\n"
CHALLENGE_BYTES, MAC_BYTES = 16, 32
KNOCK_S = 3.0  # to connect and to be believed, each
TRIPS = 5  # round trips, of which the shortest counts
BULK_BYTES = 4 << 20  # what a bandwidth is measured with: 30 ms of a gigabit a second
BULK_S = 2.0  # a slow link is measured by what has come by then
MAX_SERVED_BYTES = BULK_BYTES + (64 << 10)  # to one connection
SERVED_S = 20.0  # one connection at most
GUESTS = 8  # connections at a time
CHUNK = bytes(64 << 10)
STRANGER = "another program answers there, or another machine has this address"


@dataclass
class Answering:
    """The answering side of one agent: one listener for each of its addresses."""

    nonce: str
    servers: Sequence[asyncio.Server]
    addresses: tuple[Address, ...]
    _guests: dict[asyncio.Task[None], asyncio.StreamWriter]

    async def close(self) -> None:
        for server in self.servers:
            server.close()
        guests = dict(self._guests)
        for writer in guests.values():  # a guest that is cancelled would be an error to asyncio
            writer.transport.abort()
        if guests:
            await asyncio.wait(guests)


async def answer(interfaces: Iterable[Interface], ports: Collection[int], nonce: str) -> Answering:
    """Listen at each interface's own address, at one of `ports` that is free there; never at all addresses at once. Those at
    which none is free are left out."""
    guests: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(guests) < GUESTS:
            guests[task] = writer
            task.add_done_callback(guests.pop)
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(SERVED_S):
                    await _serve(reader, writer, nonce.encode())
        writer.transport.abort()  # nothing is owed to whom was not believed, nor to one that has read all

    servers: list[asyncio.Server] = []
    addresses: list[Address] = []
    for interface in interfaces:
        bound = _bound(interface.address, ports)
        if bound is None:
            continue
        servers.append(await asyncio.start_server(guest, sock=bound))
        addresses.append(
            Address(
                address=interface.address,
                interface=interface.name,
                kind=interface.kind,
                probe_port=bound.getsockname()[1],
                speed_bytes_per_s=interface.speed_bytes_per_s,
            )
        )
    return Answering(nonce, servers, tuple(addresses), guests)


def _bound(address: str, ports: Iterable[int]) -> socket.socket | None:
    """Exclusively: asyncio itself would set SO_REUSEADDR."""
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind((address, port))
        except OSError:
            listener.close()
        else:
            return listener
    return None


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nonce: bytes) -> None:
    mine = secrets.token_bytes(CHALLENGE_BYTES)
    writer.write(GREETING + mine)
    async with asyncio.timeout(KNOCK_S):
        theirs = await reader.readexactly(CHALLENGE_BYTES)
        mac = await reader.readexactly(MAC_BYTES)
    if not hmac.compare_digest(mac, _mac(nonce, b"client", mine, theirs)):
        return
    writer.write(_mac(nonce, b"server", mine, theirs))
    served = 0
    while True:
        wanted = int.from_bytes(await reader.readexactly(4), "big")
        served += wanted
        if served > MAX_SERVED_BYTES:
            return
        while wanted > 0:
            writer.write(CHUNK[:wanted])
            wanted -= len(CHUNK)
            await writer.drain()


def _mac(nonce: bytes, side: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.digest(nonce, side + server + client, "sha256")


@dataclass
class _Way:
    """An open connection that both sides believe in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rtt_s: float


async def knock(target: Member) -> tuple[Link, ...]:
    """One link for each address of `target`, those that cannot be reached with the reason. All are knocked at together, since
    one that never answers takes its time; bandwidths are measured one after the other, so that they do not share the line."""
    ways = await asyncio.gather(*(_way(address, target.nonce) for address in target.addresses))
    try:
        return tuple([await _link(address, way) for address, way in zip(target.addresses, ways, strict=True)])
    finally:
        for way in ways:
            if isinstance(way, _Way):
                way.writer.transport.abort()


async def _way(address: Address, nonce: str) -> _Way | str:
    """Or why there is none, in words."""
    writer: asyncio.StreamWriter | None = None
    way: _Way | None = None
    try:
        async with asyncio.timeout(KNOCK_S):
            reader, writer = await asyncio.open_connection(address.address, address.probe_port)
        async with asyncio.timeout(KNOCK_S):
            await _be_believed(reader, writer, nonce.encode())
            way = _Way(reader, writer, min([await _timed(reader, writer) for _ in range(TRIPS)]))
    except TimeoutError:
        return f"no connection within {KNOCK_S:g} s" if writer is None else f"no answer within {KNOCK_S:g} s"
    except EOFError:
        return STRANGER
    except OSError as error:
        return in_words(error.strerror or str(error))
    finally:
        if way is None and writer is not None:
            writer.transport.abort()
    return way


async def _link(address: Address, way: _Way | str) -> Link:
    if isinstance(way, str):
        return Link(address=address.address, error=way)
    try:
        bytes_per_s = await _bandwidth(way.reader, way.writer, way.rtt_s)
    except (EOFError, OSError) as error:
        return Link(address=address.address, error=in_words(f"the connection broke: {error}"))
    source = way.writer.get_extra_info("sockname")[0]
    return Link(address=address.address, source=source, rtt_s=way.rtt_s, bytes_per_s=bytes_per_s)


async def _be_believed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nonce: bytes) -> None:
    """Raises EOFError if who answers does not know the nonce."""
    if await reader.readexactly(len(GREETING)) != GREETING:
        raise EOFError
    theirs, mine = await reader.readexactly(CHALLENGE_BYTES), secrets.token_bytes(CHALLENGE_BYTES)
    writer.write(mine + _mac(nonce, b"client", theirs, mine))
    if not hmac.compare_digest(await reader.readexactly(MAC_BYTES), _mac(nonce, b"server", theirs, mine)):
        raise EOFError


async def _timed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    """Seconds of one round trip."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    writer.write((1).to_bytes(4, "big"))
    await reader.readexactly(1)
    return loop.time() - begun_s


async def _bandwidth(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rtt_s: float) -> float:
    """Bytes a second, by what comes within BULK_S; the way of the request is not counted. Raises EOFError if nothing comes."""
    loop = asyncio.get_running_loop()
    begun_s, got = loop.time(), 0
    writer.write(BULK_BYTES.to_bytes(4, "big"))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BULK_S):
            while got < BULK_BYTES:
                chunk = await reader.read(1 << 18)
                if not chunk:
                    break
                got += len(chunk)
    if not got:
        raise EOFError("nothing came")
    took_s = loop.time() - begun_s
    return got / max(took_s - rtt_s, took_s / 10, 1e-6)
