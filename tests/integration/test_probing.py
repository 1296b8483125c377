"""Ports and probes over real sockets, at several loopback addresses: each as if it were a machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.core.meeting import ports as drawn
from swarm.core.preflight import Terms
from swarm.core.ranks import Address, Member
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.network import ports
from swarm.network.interfaces import Interface
from swarm.parallel import probing
from swarm.parallel.generations import come
from swarm.parallel.meeting import Facts, Meeting, Placed
from swarm.parallel.network import LocalNetwork
from tests.integration.ranks import PLACE, Agent, Lan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no loopback address but 127.0.0.1")
NONCE = secrets.token_hex(16)


def interface(address: str) -> Interface:
    return Interface(address, "lo", "loopback", 0.0)


def announced(answering: probing.Answering, *, nonce: str = NONCE) -> Member:
    return Member(
        generation=0,
        learner="mini",
        incarnation=1,
        machine_name="mini",
        addresses=answering.addresses,
        ports=(21_001,),
        nonce=nonce,
        memory_bytes=1,
    )


@contextlib.asynccontextmanager
async def machine(*addresses: str) -> AsyncIterator[probing.Answering]:
    """`ports` of its own: tests may run side by side."""
    tried = [port for port, _ in zip(drawn(os.getpid(), "tests", id(addresses)), range(50), strict=False)]
    answering = await probing.answer(map(interface, addresses), tried, NONCE)
    try:
        yield answering
    finally:
        await answering.close()


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.socket() as other:
        yield other


# Ports


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize("at", ["127.0.0.2", "0.0.0.0"])
def test_a_port_that_another_program_holds_is_not_free(held: socket.socket, shared: bool, listening: bool, at: str) -> None:
    if shared:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((at, 0))
    if listening:
        held.listen()
    port = held.getsockname()[1]
    assert ports.obstacle("127.0.0.2", port) == f"port {port} at 127.0.0.2 is held by another program"
    assert port not in ports.free_ports(["127.0.0.3", "127.0.0.2"], [port, port, 21_321, 21_322, 21_323], 2)
    held.close()
    assert ports.obstacle("127.0.0.2", port) == "", "to ask does not hold it"


def test_only_the_one_address_is_asked(held: socket.socket) -> None:
    held.bind(("127.0.0.2", 0))
    assert ports.obstacle("127.0.0.3", held.getsockname()[1]) == ""


def test_an_address_that_is_gone_is_said() -> None:
    assert ports.obstacle("192.0.2.77", 21_000) == "192.0.2.77 is no longer an address of this machine"


def test_the_socket_table_tells_who_listens(held: socket.socket) -> None:
    held.bind(("127.0.0.2", 0))
    port = held.getsockname()[1]
    assert not ports.listens(os.getpid(), "127.0.0.2", port)
    held.listen()
    held.setblocking(False)
    assert ports.listens(os.getpid(), "127.0.0.2", port)
    assert not ports.listens(os.getpid(), "127.0.0.3", port)
    assert not ports.listens(os.getppid(), "127.0.0.2", port)
    assert not ports.listens(2**22 + 1, "127.0.0.2", port)
    with pytest.raises(BlockingIOError):
        held.accept()


# Probes


async def test_a_link_for_each_address_with_round_trip_and_bandwidth() -> None:
    async with machine("127.0.0.2", "127.0.0.3") as answering:
        links = await probing.knock(announced(answering))
    assert [link.address for link in links] == ["127.0.0.2", "127.0.0.3"]
    for link in links:
        assert link.error == ""
        assert link.source.startswith("127.")
        assert link.rtt_s > 0
        assert link.bytes_per_s > 1e6


async def test_each_listens_at_its_own_address_only() -> None:
    async with machine("127.0.0.2") as answering:
        port = answering.addresses[0].probe_port
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.3", port)
        async with machine("127.0.0.3") as other:
            assert [address.address for address in other.addresses] == ["127.0.0.3"]


async def test_a_port_that_is_held_is_passed_over_and_an_address_without_any_is_left_out(held: socket.socket) -> None:
    held.bind(("127.0.0.2", 0))
    port = held.getsockname()[1]
    answering = await probing.answer([interface("127.0.0.2"), interface("127.0.0.3")], [port], NONCE)
    assert [(address.address, address.probe_port) for address in answering.addresses] == [("127.0.0.3", port)]
    await answering.close()


async def test_who_does_not_know_the_nonce_is_neither_answered_nor_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with machine("127.0.0.2") as answering:
        links = await probing.knock(announced(answering, nonce="f" * 32))
        assert links[0].source == ""
        assert links[0].error == probing.STRANGER


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100, probing.GREETING + bytes(16) + bytes(32)])
async def test_another_program_is_no_link(words: bytes) -> None:
    async def guest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        await reader.read(1 << 16)
        writer.close()

    async with await asyncio.start_server(guest, "127.0.0.2", 0) as server:
        port = server.sockets[0].getsockname()[1]
        there = Address(address="127.0.0.2", interface="lo", kind="loopback", probe_port=port)
        (link,) = await probing.knock(announced(probing.Answering(NONCE, [], (there,), {})))
    assert link.error == probing.STRANGER


async def test_nobody_there_and_no_answer(monkeypatch: pytest.MonkeyPatch, held: socket.socket) -> None:
    monkeypatch.setattr(probing, "KNOCK_S", 0.2)
    async with machine("127.0.0.2") as answering:
        there = announced(answering)
    (link,) = await probing.knock(there)
    assert link.error.startswith("Connect call failed") or "refused" in link.error
    held.bind(("127.0.0.2", there.addresses[0].probe_port))
    held.listen()  # its system accepts, and nobody answers
    (link,) = await probing.knock(there)
    assert link.error == "no answer within 0.2 s"


async def connected(answering: probing.Answering) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.2", answering.addresses[0].probe_port)


async def test_a_stranger_gets_a_challenge_and_nothing_else() -> None:
    async with machine("127.0.0.2") as answering:
        reader, writer = await connected(answering)
        writer.write(bytes(16 + 32) + (1 << 20).to_bytes(4, "big"))
        got = await read_all(reader)
        assert got[: len(probing.GREETING)] == probing.GREETING
        assert len(got) == len(probing.GREETING) + probing.CHALLENGE_BYTES
        writer.close()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    got = b""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(1 << 16):
            got += chunk
    return got


async def test_one_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "KNOCK_S", 0.1)
    async with machine("127.0.0.2") as answering:
        reader, _ = await connected(answering)
        assert len(await read_all(reader)) == len(probing.GREETING) + probing.CHALLENGE_BYTES


async def test_guests_and_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "GUESTS", 2)
    async with machine("127.0.0.2") as answering:
        first = [await connected(answering) for _ in range(2)]
        for reader, _ in first:
            await reader.readexactly(len(probing.GREETING))
        reader, _ = await connected(answering)
        assert await read_all(reader) == b""
        for _, writer in first:
            writer.transport.abort()
        while answering._guests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        reader, writer = await connected(answering)
        await probing._be_believed(reader, writer, NONCE.encode())
        writer.write((probing.MAX_SERVED_BYTES + 1).to_bytes(4, "big"))
        assert await read_all(reader) == b""


# All of it


class OwnSocket:
    """A rank in this very process: a listening socket at its place."""

    def __init__(self, placed: Placed, listening: dict[int, socket.socket]) -> None:
        self.pid, self.placed, self.listening = os.getpid(), placed, listening
        listener = listening[placed.rank] = socket.socket()
        listener.bind((placed.seat.address, placed.seat.port))
        listener.listen()

    def died(self) -> str:
        return ""

    def joined(self) -> bool:
        return len(self.listening) == len(self.placed.plan.seats)


@pytest.mark.parametrize("kind", ["memory", "folder"])
async def test_three_machines_meet_over_real_sockets(kind: str, tmp_path: Path) -> None:
    store, listening = MemoryStore(), dict[int, socket.socket]()
    terms = Terms(world_size_min=3, world_size_max=3)
    if kind == "folder":
        await FolderMailbox.init(tmp_path / "box")

    async def live(name: str, address: str) -> Placed:
        box: Mailbox = MemoryMailbox(store) if kind == "memory" else FolderMailbox(tmp_path / "box")
        await box.open()
        beats = asyncio.create_task(Agent(store, Lan(), name, terms=terms, wrap=lambda _: box).beats())

        def make(generation: int) -> Meeting:
            facts = Facts(learner=name, incarnation=1, machine_name=name, memory_bytes=1)
            network = LocalNetwork(lambda: [interface(address)])
            fields: dict[str, Any] = {"beat_s": 0.5, "lease_s": 30.0, "start": nothing}
            return Meeting(box, PLACE, generation, facts, terms, network, **fields)

        found = await come(box, PLACE, learner=name, incarnation=1, meeting=make)
        assert isinstance(found, tuple)
        meeting, placed = found
        assert placed.rank < 2 or sorted(listening) == [0, 1], "the last one starts when the others listen"
        assert await meeting.started(OwnSocket(placed, listening)) is None
        beats.cancel()
        await meeting.close()
        return placed

    async def nothing() -> None:
        return None

    placed = await asyncio.gather(*(live(name, f"127.0.0.{n}") for n, name in enumerate(("air", "mini", "pro"), 2)))
    assert [each.rank for each in placed] == [0, 1, 2]
    assert [seat.address for seat in placed[0].plan.seats] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    assert not placed[0].plan.refused
    for each in listening.values():
        each.close()
