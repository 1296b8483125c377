"""Discovery on one machine, over loopback, with real multicast: sleep, floods, trouble, and adverts that are none."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from swarm.core.adverts import PEER_SERVICE, RUN_SERVICE, PeerAdvert, RunAdvert, peer_txt
from swarm.core.sightings import MAX_SOURCES, Sighted, Sightings
from swarm.network import mdns
from swarm.network.discovery import Discovery, Pace, Told
from swarm.network.links import Link, Links
from swarm.network.mdns import GROUP_V4, PORT

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
PACE = Pace(tick_s=0.05, say_s=0.2, beat_s=1.0, links_s=0.2, again_s=0.3, ask_s=0.3, probe_s=1.0, timeout_s=1.0, lives_s=4.0)
LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
HANG_S = 60.0


FLOODS = f"""
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
    sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    for line in sys.stdin:
        sending.sendto(bytes.fromhex(line), ("{GROUP_V4}", {PORT}))
        time.sleep(0.0005)
"""


class Here:
    """One process's part, in this one."""

    def __init__(self, name: str, *, tells: bool = True, runs: tuple[RunAdvert, ...] = (), **more: Any) -> None:
        self.me = PeerAdvert(peer=secrets.token_hex(16), name=f"{name}-{secrets.token_hex(3)}", boot="0badcafe")
        self.runs, self.tells = runs, tells
        self.lock = threading.RLock()
        self.sighted = Sighted(peer=self.me.peer, boot=self.me.boot, lives_s=PACE.lives_s)
        self.discovery = Discovery(
            self.sighted, lock=self.lock, told=self.told, links=Links([LOOPBACK]), probes=True, pace=PACE, **more
        )

    def told(self, address: str, port: int) -> Told:
        if not self.tells:
            return Told()
        return Told(msgspec.structs.replace(self.me, port=port, sees=self.sighted.sees(time.monotonic())), self.runs)

    def seen(self) -> Sightings:
        with self.lock:
            return self.sighted.seen(time.monotonic(), trouble=self.discovery.trouble)

    def until(self, wanted: Callable[[Sightings], object]) -> Sightings:
        until_s = time.monotonic() + HANG_S
        while not wanted(seen := self.seen()):
            assert time.monotonic() < until_s, seen
            time.sleep(0.02)
        return seen

    def sees(self, other: Here) -> Callable[[Sightings], object]:
        return lambda seen: any(peer.advert.name == other.me.name for peer in seen.peers)


@contextlib.contextmanager
def on_air(*every: Here) -> Iterator[None]:
    for each in every:
        each.discovery.start()
    try:
        yield
    finally:
        for each in every:
            each.discovery.close()


def test_two_processes_find_each_other_and_what_changes_is_told() -> None:
    a, b = Here("a"), Here("b")
    with on_air(a, b):
        a.until(a.sees(b))
        b.until(b.sees(a))
        a.me = msgspec.structs.replace(a.me, state="training")
        a.runs = (RunAdvert(run="kx7k2m", peer=a.me.peer, name="tiny", method="diloco", task="mlp", mailbox="b" * 32),)
        b.until(lambda seen: any(p.advert.state == "training" for p in seen.peers) and seen.runs)
        a.runs = ()
        b.until(lambda seen: not seen.runs)
        a.tells = False  # it only listens from now on
        b.until(lambda seen: not b.sees(a)(seen))
        a.until(a.sees(b))
    assert a.seen().trouble == b.seen().trouble == ()


def test_after_a_sleep_it_begins_anew() -> None:
    slept_s = 0.0
    a, b = Here("a", wall=lambda: time.time() + slept_s), Here("b")
    with on_air(a, b):
        b.until(b.sees(a))
        radio = a.discovery._radio
        assert radio is not None
        slept_s = 3600.0
        a.until(lambda seen: a.discovery._radio not in (None, radio))
        b.until(b.sees(a))
        a.until(a.sees(b))


def test_what_keeps_it_off_the_air_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Here("a"), Here("b")
    opened, failures = mdns.Radio.open, [OSError(98, "Address already in use"), RuntimeError("of zeroconf")]

    async def fail(self: mdns.Radio) -> None:
        if self._host.startswith(f"swarm-{a.discovery._token}") and failures:
            raise failures[0]
        await opened(self)

    monkeypatch.setattr(mdns.Radio, "open", fail)
    with on_air(a, b):
        a.until(lambda seen: any("another program holds port 5353" in line for line in seen.trouble))
        failures.pop(0)
        a.until(lambda seen: any("RuntimeError: of zeroconf" in line for line in seen.trouble))
        assert a.discovery.unheard
        failures.pop(0)
        b.until(b.sees(a))
        a.until(lambda seen: not seen.trouble)


def test_trouble_that_is_over_is_told_no_more_where_there_is_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    a, look, failures = Here("a"), Links.look, [RuntimeError("of the system")]

    def fail(self: Links) -> tuple[Link, ...]:
        if failures:
            raise failures[0]
        look(self)
        return ()

    monkeypatch.setattr(Links, "look", fail)
    with on_air(a):
        a.until(lambda seen: any("RuntimeError: of the system" in line for line in seen.trouble))
        failures.pop(0)
        a.until(lambda seen: len(seen.trouble) == 1 and "no private network" in seen.trouble[0])


def say(name: str, type: str, text: list[bytes], *, ttl: int = 75) -> bytes:
    """A packet with one TXT record, as anybody may send it."""
    labels = [*([name] if name else []), *type.rstrip(".").split(".")]
    where = b"".join(bytes([len(label.encode())]) + label.encode() for label in labels) + b"\0"
    data = b"".join(bytes([len(each)]) + each for each in text)
    record = where + (16).to_bytes(2, "big") + (0x8001).to_bytes(2, "big") + ttl.to_bytes(4, "big")
    return bytes([0, 0, 0x84, 0, 0, 0, 0, 1, 0, 0, 0, 0]) + record + len(data).to_bytes(2, "big") + data


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes], object]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        yield lambda data: sending.sendto(data, (GROUP_V4, PORT))


def test_a_flood_of_machines_drives_nobody_out() -> None:
    a, b = Here("a"), Here("b")
    with on_air(a, b):
        b.until(b.sees(a))
        flood = b"".join(
            say(f"flood{n}", PEER_SERVICE, [f"{key}={value}".encode() for key, value in txt.items()]).hex().encode() + b"\n"
            for n in range(2000)
            for txt in [peer_txt(PeerAdvert(peer=f"{n:032x}", name=f"flood {n}", boot="00000000"))]
        )
        # From a process of its own: in this one, every packet would wait for the others' threads.
        subprocess.run([sys.executable, "-c", FLOODS], input=flood, check=True, timeout=HANG_S)
        seen = b.until(lambda seen: seen.ignored > 100)
        assert len(seen.peers) <= MAX_SOURCES
        a.me = msgspec.structs.replace(a.me, state="paused")
        b.until(lambda seen: any((p.advert.name, p.advert.state) == (a.me.name, "paused") for p in seen.peers))


def test_adverts_that_are_none_are_counted(stranger: Callable[[bytes], object]) -> None:
    a = Here("a")
    told = [
        [b"v=1"], [], [b"id=" + b"x" * 32, b"n=x", b"b=00000000"], [b"\xff\xfe=\xff"], [b"id", b"n", b"b"],
        [b"id=" + b"a" * 32, b"n=x", b"b=00000000", b"mem=" + b"9" * 30], [b"=" * 255] * 30,
        [b"id=" + b"a" * 32, b"n=x", b"b=00000000", b"st=dancing"],
    ]  # fmt: skip
    with on_air(a):
        a.until(lambda seen: seen.peers)
        for n, text in enumerate(told):
            for type in (PEER_SERVICE, RUN_SERVICE):
                stranger(say(f"odd-{secrets.token_hex(4)}-{n}", type, text))
        stranger(say("", PEER_SERVICE, [b"v=1"]))  # of no instance
        stranger(b"\0" * 5)
        stranger(secrets.token_bytes(400))
        seen = a.until(lambda seen: seen.ignored >= 2 * len(told))
        assert [peer.advert.name for peer in seen.peers if peer.advert.name == "x"] == []
        nasty = [b"id=" + b"a" * 32, "n=\x1b[31m‮evil\n".encode(), b"b=00000000"]
        stranger(say(f"nasty-{secrets.token_hex(4)}", PEER_SERVICE, nasty))
        seen = a.until(lambda seen: any(p.advert.peer == "a" * 32 for p in seen.peers))
        assert all(peer.advert.name.isprintable() for peer in seen.peers)
    assert a.seen().trouble == ()
