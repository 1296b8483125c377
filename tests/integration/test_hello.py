"""A machine tells whoever connects all that it advertises: over real sockets, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from swarm.core.adverts import MAX_HELLO_BYTES, Hello, PeerAdvert, RunAdvert
from swarm.core.errors import AdvertError, PeerUnreachable, UsageError
from swarm.network import hello
from swarm.network.hello import PORTS, Asker, HelloServer, ask, parse_target, shown, why_unreachable

ME = PeerAdvert(peer="a" * 32, name="studio", boot="0badcafe", accelerators=("mps M2",), state="training")
RUN = RunAdvert(run="kx7k2m", peer="a" * 32, name="tiny", method="diloco", task="mlp", mailbox="b" * 32)
HERE = "127.0.0.1"


@contextlib.asynccontextmanager
async def listening(said: Hello | None = None, **more: object) -> AsyncIterator[HelloServer]:
    server = HelloServer(lambda: said or Hello(peer=ME, runs=(RUN,), clock_s=time.time() + 100), **more)  # type: ignore[arg-type]
    await server.open([HERE])
    try:
        yield server
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def answering(data: bytes, *, then_wait: bool = False) -> AsyncIterator[int]:
    """A program that is not ours."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if then_wait:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, HERE, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_whoever_connects_is_told_everything() -> None:
    reached: list[tuple[str, str]] = []
    async with listening(reached=lambda own, other: reached.append((own, other))) as server:
        answer = await ask(HERE, server.port)
        assert (answer.hello.peer, answer.hello.runs) == (ME, (RUN,))
        assert answer.clock_off_s == pytest.approx(100, abs=20)
        assert answer.connect_ms > 0
        assert reached == [(HERE, HERE)]
        port = server.port
    with pytest.raises(PeerUnreachable, match="does not listen"):
        await ask(HERE, port)


async def test_processes_of_a_machine_take_the_ports_in_turn_and_all_of_them_answer() -> None:
    other = msgspec.structs.replace(ME, state="idle")
    async with listening() as one, listening(Hello(peer=other)) as two:
        assert one.port != two.port
        assert {one.port, two.port} <= set(PORTS)
        answers = await Asker().ask(HERE)
        assert {one.port, two.port} <= {answer.port for answer in answers}
        (only,) = await Asker().ask(f"{HERE}:{two.port}")
        assert only.hello.peer.state == "idle"


async def test_a_hello_fits_however_many_runs_there_are() -> None:
    many = Hello(peer=ME, runs=tuple(msgspec.structs.replace(RUN, share="smb://" + "x" * 230) for _ in range(500)))
    async with listening(many) as server:
        answer = await ask(HERE, server.port)
        assert 50 < len(answer.hello.runs) <= 500
        assert len(server.bytes_to_say()) <= MAX_HELLO_BYTES


async def test_what_is_sent_is_not_read_and_nobody_holds_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hello, "CONNECTIONS", 2)
    async with listening() as server:
        _, writer = await asyncio.open_connection(HERE, server.port)
        for _ in range(10):
            writer.write(b"x" * 1000)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()
        assert (await ask(HERE, server.port)).hello.peer == ME


async def test_who_comes_beside_too_many_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hello, "CONNECTIONS", 0)
    async with listening() as server:
        with pytest.raises((PeerUnreachable, AdvertError)):
            await ask(HERE, server.port)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 400 Bad Request\r\n", b"{}", b"[" * 70_000, b"x" * 10_000_000])
async def test_another_program_is_no_peer(data: bytes) -> None:
    async with answering(data) as port:
        with pytest.raises((AdvertError, PeerUnreachable)):
            await ask(HERE, port, 30.0)


async def test_a_program_that_says_nothing_costs_its_time_and_no_more() -> None:
    async with answering(b"", then_wait=True) as port:
        with pytest.raises(PeerUnreachable, match="no answer within"):
            await ask(HERE, port, 0.2)


async def test_an_address_of_another_machine_cannot_be_listened_at() -> None:
    server = HelloServer(lambda: Hello(peer=ME))
    with pytest.raises(OSError):
        await server.open(["203.0.113.1"])
    await server.open([HERE, "203.0.113.1"])  # an address that is gone by now is passed over
    assert server.port
    await server.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6() -> None:
    server = HelloServer(lambda: Hello(peer=ME))
    try:
        await server.open(["::1"])
    except OSError:
        pytest.skip("no IPv6 address here")
    (answer,) = await Asker().ask(shown("::1", server.port))
    assert answer.hello.peer == ME
    await server.close()


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("studio", ("studio", None)), ("studio.local", ("studio.local", None)), ("my_nas-2.lan:80", ("my_nas-2.lan", 80)),
        ("10.0.0.1", ("10.0.0.1", None)), ("10.0.0.1:27273", ("10.0.0.1", 27273)), ("fe80::1%en0", ("fe80::1%en0", None)),
        ("[fe80::1%en0]:27273", ("fe80::1%en0", 27273)), ("[::1]", ("::1", None)), (" studio ", ("studio", None)),
    ],
)  # fmt: skip
def test_how_an_address_may_be_given(text: str, target: tuple[str, int | None]) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "a b",
        "http://studio",
        "studio:x",
        "studio:0",
        "studio:70000",
        "[::1",
        "[::1]x",
        "[]:1",
        "a..b",
        "-" * 300,
        "ü" * 60,
    ],
)
async def test_what_is_no_address_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no (address|port)"):
        await Asker().ask(text)


async def test_a_name_that_the_system_cannot_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise UnicodeError("label too long")

    monkeypatch.setattr(socket, "getaddrinfo", refuses)
    with pytest.raises(PeerUnreachable, match="give its address"):
        await Asker().ask("studio")


async def test_a_name_that_nobody_has() -> None:
    with pytest.raises(PeerUnreachable):
        await Asker().ask("no-such-host.invalid", 5.0)


@pytest.mark.parametrize(
    ("number", "platform", "word"),
    [
        (errno.EHOSTUNREACH, "darwin", "Privacy & Security → Local Network"),
        (errno.EHOSTUNREACH, "linux", "another network"),
        (errno.ECONNREFUSED, "linux", "does not listen"),
        (errno.ECONNRESET, "linux", "broke"),
        (errno.EMFILE, "linux", "Too many"),
    ],
)
def test_why_a_machine_is_not_reached(number: int, platform: str, word: str) -> None:
    assert word in why_unreachable(OSError(number, "Too many open files"), platform=platform)
