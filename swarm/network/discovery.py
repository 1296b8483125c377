"""Tells the network of this machine and its runs, and hears of the others: on a daemon thread, for whatever process takes part.

It follows the interfaces as they come and go, and begins anew after a sleep. It never raises into whoever started it: what does
not work stands in `trouble`, in words, and is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from swarm.core.adverts import (
    PEER_SERVICE,
    RUN_SERVICE,
    Hello,
    PeerAdvert,
    RunAdvert,
    peer_of,
    peer_txt,
    run_of,
    run_txt,
)
from swarm.core.errors import AdvertError, PeerUnreachable, UsageError
from swarm.core.sentences import plain
from swarm.core.sightings import LIVES_S, SeenPeer, Sighted
from swarm.network import words
from swarm.network.hello import Answer, Asker, HelloServer, ask, shown
from swarm.network.links import Link, Links
from swarm.network.mdns import HeardService, Radio, Said

ASLEEP_S = 5.0  # by which the wall clock runs ahead of the monotonic one when the machine has slept
PROBED = 32  # machines to which a connection is tried
RUNS_TOLD = 16


@dataclass(frozen=True)
class Pace:
    """How often something is done, in seconds."""

    tick_s: float = 0.5  # a look at everything that is due
    say_s: float = 1.0  # between two changes that are told
    beat_s: float = 10.0  # between two times that all is told again
    links_s: float = 2.0  # between two looks at the interfaces
    again_s: float = 5.0  # after what did not work
    ask_s: float = 5.0  # between two questions to an address that a person gave
    probe_s: float = 20.0  # between two connections to a machine, to see whether it can be reached
    timeout_s: float = 2.0  # of a connection
    lives_s: float = LIVES_S


USUAL = Pace()


@dataclass(frozen=True)
class Told:
    """What this process tells. No peer: it only listens."""

    peer: PeerAdvert | None = None
    runs: tuple[RunAdvert, ...] = ()


class Discovery:
    """`sighted` and `told` are guarded by `lock`, which is held for moments only. `told` gets the address at which others
    reached this machine last, and the port at which it answers."""

    def __init__(
        self,
        sighted: Sighted,
        *,
        lock: threading.RLock,
        told: Callable[[str, int], Told],
        links: Links,
        probes: bool,
        pace: Pace = USUAL,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`probes`: connect to the machines that are heard, to tell whether they can be reached. `wall`: the time of day, which
        goes on while the machine sleeps."""
        self._sighted, self._lock, self._told, self._links = sighted, lock, told, links
        self._probes, self._pace, self._wall = probes, pace, wall
        self._token = secrets.token_hex(3)  # of this process: no two are called the same on the network
        self._radio: Radio | None = None
        self._hello = HelloServer(self._say_hello, reached=self._reached)
        self._asker = Asker()
        self._asked: tuple[str, ...] = ()  # addresses that people gave
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._address = ""
        self._faults: dict[str, str] = {}
        self.told_since_s: float | None = None  # since when others may know of this machine
        self.heard_own_s: float | None = None  # when its own words last came back to it
        self.over: tuple[Link, ...] = ()  # the links in use

    # ---- from any thread

    def start(self) -> None:
        self._thread = threading.Thread(target=self._main, name="swarm-discovery", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Say goodbye; after a moment at most."""
        loop = self._loop
        if self._thread is None or loop is None:
            return
        with contextlib.suppress(RuntimeError):  # ended already
            loop.call_soon_threadsafe(self._stop)
            self._ended.wait(timeout_s)

    def ask(self, targets: Iterable[str]) -> None:
        """These addresses are asked from now on, and no others."""
        asked = tuple(dict.fromkeys(targets))
        with self._lock:
            self._sighted.forget(set(self._asked) - set(asked))
            self._asked = asked

    @property
    def trouble(self) -> tuple[str, ...]:
        """What keeps this machine from seeing others, or others from seeing it."""
        return tuple(dict.fromkeys(self._faults.copy().values()))

    @property
    def unheard(self) -> str:
        """The part of it that a person who trains should know; a machine that is in no network knows why."""
        faults = self._faults.copy()
        named = ("links",) if self._links.missing else ()  # an interface that a person named
        return next((faults[name] for name in (*named, "discovery", "radio", "multicast", "deaf") if name in faults), "")

    # ---- on its own thread

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:
            self._fault(error)
        finally:
            self._ended.set()

    def _fault(self, error: BaseException) -> None:
        self._faults["discovery"] = f"the network is not listened to: {type(error).__name__}: {plain(str(error), 200)}"

    def _stop(self) -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "discovery":
                task.cancel()

    async def _run(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        # Else it would print, in the middle of somebody's screen.
        loop.set_exception_handler(lambda _, about: self._fault(about.get("exception") or RuntimeError(about["message"])))
        task = asyncio.current_task()
        assert task is not None
        task.set_name("discovery")
        try:
            while True:
                try:
                    await self._over(self._links.look())
                except Exception as error:  # of the system, or of zeroconf: whoever started this goes on without it
                    self._fault(error)
                    await asyncio.sleep(self._pace.again_s)
                finally:
                    await self._silence()
        except asyncio.CancelledError:
            pass
        finally:
            for each in self._tasks.values():
                each.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _silence(self) -> None:
        radio, self._radio = self._radio, None
        if radio is not None:
            with contextlib.suppress(Exception):  # its sockets may be gone with their interface
                await radio.close()
        await self._hello.close()

    async def _over(self, links: tuple[Link, ...]) -> None:
        """Speak and listen over these links, until others are there or the machine has slept."""
        self.over = links
        self._note("links", words.no_links(self._links, links))
        radio_again_s = 0.0
        due = dict.fromkeys(("say", "beat", "links", "hello", "multicast"), 0.0)
        said: dict[str, Said] = {}
        awake_s = self._wall() - time.monotonic()
        due["well"] = time.monotonic() + self._pace.beat_s
        while True:
            now_s = time.monotonic()
            if abs(self._wall() - now_s - awake_s) > ASLEEP_S:
                return
            if now_s >= due["links"]:
                due["links"] = now_s + self._pace.links_s
                found = self._links.look()
                self._note("links", words.no_links(self._links, found))
                if found != links or (self._radio is not None and self._radio.overfull):
                    return
            if self._radio is None and links and now_s >= radio_again_s:
                radio_again_s = now_s + self._pace.again_s
                await self._tune(links)
                said, due["say"], due["beat"] = {}, now_s, now_s + self._pace.beat_s
            if now_s >= due["multicast"]:
                due["multicast"] = now_s + self._pace.beat_s
                self._note("multicast", words.no_multicast(links))
                self._note_heard(now_s)
            with self._lock:
                told = self._told(self._address, self._hello.port)
            if told.peer is not None and links and not self._hello.port and now_s >= due["hello"]:
                due["hello"] = now_s + self._pace.again_s
                await self._listen(links)
                continue  # with its port
            if told.peer is None and self._hello.port:
                await self._hello.close()
            if self._radio is not None and now_s >= due["say"]:
                wanted = self._services(told)
                if wanted != said:
                    await self._radio.say(wanted)
                    said, due["say"] = wanted, now_s + self._pace.say_s
                    self._note_said(bool(wanted), now_s)
                elif now_s >= due["beat"]:
                    due["beat"] = now_s + self._pace.beat_s
                    self._radio.say_again()
            if now_s >= due["well"]:  # it has worked for as long as this, be it without a network
                due["well"] = now_s + self._pace.beat_s
                self._note("discovery", "")
            self._ask_around(now_s)
            await asyncio.sleep(self._pace.tick_s)

    async def _tune(self, links: tuple[Link, ...]) -> None:
        radio = Radio(
            links,
            host=f"swarm-{self._token}",
            heard=self._heard,
            departed=self._departed,
            dropped=self._count,
        )
        try:
            await radio.open()
        except OSError as error:
            await radio.close()
            self._note("radio", words.no_radio(error))
        else:
            self._radio = radio
            self._note("radio", "")

    async def _listen(self, links: tuple[Link, ...]) -> None:
        try:
            await self._hello.open(address for link in links for address in link.addresses)
        except OSError as error:
            self._note("hello", f"no port to answer at: {error.strerror or error}: others cannot ask this machine")
        else:
            self._note("hello", "")

    def _services(self, told: Told) -> dict[str, Said]:
        if told.peer is None:
            return {}
        # Runs need no port: their machine has one. Port 9 discards: RFC 863.
        port = self._hello.port or 9
        own = f"{told.peer.peer[:8]}-{self._token}"
        services = {f"peer-{own}": Said(PEER_SERVICE, tuple(peer_txt(told.peer).items()), port)}
        for run in told.runs[:RUNS_TOLD]:
            services[f"{run.run}-{own}"] = Said(RUN_SERVICE, tuple(run_txt(run).items()), port)
        return services

    def _say_hello(self) -> Hello:
        with self._lock:
            told = self._told(self._address, self._hello.port)
        if told.peer is None:
            raise RuntimeError("nobody listens, and somebody connects")
        return Hello(peer=told.peer, runs=told.runs, clock_s=self._wall())

    # ---- what is heard

    def _heard(self, service: HeardService) -> None:
        now_s = time.monotonic()
        if self._radio is not None and self._radio.is_own(service.name):
            self.heard_own_s = now_s
        try:
            advert: PeerAdvert | RunAdvert
            advert = peer_of(service.txt, port=service.port) if service.type == PEER_SERVICE else run_of(service.txt)
        except AdvertError:
            self._count()
            return
        with self._lock:
            self._sighted.heard(
                advert,
                source=service.name.lower(),
                how="network",
                now_s=now_s,
                addresses=reachable(service.addresses, loopback=any(link.kind == "loopback" for link in self.over)),
            )

    def _departed(self, name: str) -> None:
        with self._lock:
            self._sighted.departed(name.lower())

    def _count(self) -> None:
        with self._lock:
            self._sighted.ignored += 1

    def _reached(self, own: str, other: str) -> None:
        if own != other:  # not this machine itself
            self._address = own

    # ---- connections

    def _ask_around(self, now_s: float) -> None:
        """Begin what is due of the questions to others; each is one task."""
        for name in [name for name, task in self._tasks.items() if task.done()]:
            self._tasks.pop(name)
        with self._lock:
            asked = self._asked
            peers = self._sighted.seen(now_s).peers if self._probes else ()
            due = [
                peer
                for peer in peers
                if peer.ours
                and not peer.itself
                and peer.addresses
                and peer.advert.port
                and ((tried := self._sighted.tried_s(peer)) is None or now_s - tried >= self._pace.probe_s)
            ]
        for target in asked:
            self._begin(f"ask {target}", self._ask_given(target))
        for peer in due[:PROBED]:
            self._begin(f"probe {peer.advert.peer}{peer.advert.boot}", self._probe(peer))

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._tasks:
            work.close()
        else:
            self._tasks[name] = asyncio.create_task(work)

    async def _ask_given(self, target: str) -> None:
        """Ask once, and rest: the next question comes after this has ended."""
        why, answers = "", []
        try:
            answers = await self._asker.ask(target, self._pace.timeout_s)
        except (PeerUnreachable, AdvertError, UsageError) as error:
            why = plain(str(error), 300)
        now_s = time.monotonic()
        with self._lock:
            if target in self._asked:
                for answer in answers:
                    self._sighted.answered(answer.hello, given=target, address=shown(answer.address, answer.port), now_s=now_s)
                    self._note_answer(answer, now_s)
                if not answers:
                    self._sighted.silent(target, why)
        await asyncio.sleep(self._pace.ask_s)

    def _note_answer(self, answer: Answer, now_s: float) -> None:
        for peer in self._sighted.seen(now_s).peers:
            if (peer.advert.peer, peer.advert.boot) == (answer.hello.peer.peer, answer.hello.peer.boot):
                self._sighted.reached(
                    peer, now_s=now_s, address=answer.address, ms=answer.connect_ms, clock_off_s=answer.clock_off_s
                )

    async def _probe(self, peer: SeenPeer) -> None:
        why = ""
        for address in peer.addresses[:4]:
            try:
                answer = await ask(address, peer.advert.port, self._pace.timeout_s)
            except (PeerUnreachable, AdvertError) as error:
                why = why or plain(str(error), 300)
                continue
            with self._lock:
                now_s = time.monotonic()
                self._sighted.reached(peer, now_s=now_s, address=address, ms=answer.connect_ms, clock_off_s=answer.clock_off_s)
            return
        with self._lock:
            self._sighted.unreached(peer, why, now_s=time.monotonic())

    # ---- what is wrong

    def _note(self, name: str, words: str) -> None:
        if words:
            self._faults[name] = words
        else:
            self._faults.pop(name, None)

    def _note_said(self, said: bool, now_s: float) -> None:
        if not said:
            self.told_since_s = None
        elif self.told_since_s is None:
            self.told_since_s = now_s

    def _note_heard(self, now_s: float) -> None:
        """What is said comes back to whoever says it; where it does not, nothing else is heard either."""
        since_s = self.told_since_s
        silent = since_s is not None and now_s - max(since_s, self.heard_own_s or 0.0) > 3 * self._pace.beat_s
        self._note("deaf", words.deaf() if silent and self._radio is not None else "")


def reachable(addresses: Iterable[str], *, loopback: bool) -> tuple[str, ...]:
    """Those of a private network, IPv4 first: an advert may name any machine of the world, and this one would connect to it.
    `loopback`: machines are looked for on this one."""
    found = []
    for text in addresses:
        ip = ipaddress.ip_address(text)
        scoped = ip.version == 6 and ip.is_link_local and "%" in text
        if ip.is_global or ip.is_multicast or ip.is_unspecified or (ip.is_loopback and not loopback):
            continue
        if ip.version == 6 and ip.is_link_local and not scoped:
            continue  # of which interface, is not known
        found.append((ip.version, ip.is_link_local, text))
    return tuple(text for _, _, text in sorted(found))[:8]
