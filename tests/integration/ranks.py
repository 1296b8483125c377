"""Machines of a data-parallel job that meet over a memory mailbox, in virtual time: their agents are real, their networks and
ranks are not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from swarm.core import meeting as decisions
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.preflight import Terms
from swarm.core.ranks import Address, CheckpointAt, GenerationEnd, Link, Member, Plan
from swarm.core.records import Beat
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.parallel.generations import come
from swarm.parallel.meeting import Facts, Meeting, Placed
from swarm.parallel.register import generations, read_plan
from swarm.tape import BEATS_KEPT

BEAT_S, LEASE_S = 2.0, 8.0
PLACE = RunKeys("testrun1")


@dataclass
class Lan:
    """What all machines are attached to: who answers where, and who listens."""

    held: set[tuple[str, int]] = field(default_factory=set)  # by other programs
    taken_later: Callable[[str, int], bool] = lambda address, port: False  # by one that comes between announcement and plan
    cut: set[tuple[str, str]] = field(default_factory=set)  # (learner, address) that it does not reach
    bytes_per_s: dict[str, float] = field(default_factory=dict)  # by address
    answering: dict[str, str] = field(default_factory=dict)  # address → nonce
    listening: dict[int, tuple[str, int]] = field(default_factory=dict)  # pid → place
    knock_s: float = 0.5


@dataclass
class FakeNetwork:
    lan: Lan
    learner: str
    addresses: tuple[Address, ...]
    opened: int = 0

    async def open(self, generation: int, learner: str, incarnation: int, nonce: str) -> tuple[Address, ...]:
        self.opened += 1
        for address in self.addresses:
            self.lan.answering[address.address] = nonce
        return self.addresses

    def offer(self, generation: int, learner: str, incarnation: int, count: int) -> tuple[int, ...]:
        drawn = itertools.islice(decisions.ports(generation, learner, incarnation), 100)
        free = [p for p in drawn if all((a.address, p) not in self.lan.held for a in self.addresses)]
        return tuple(dict.fromkeys(free))[:count]

    def obstacle(self, address: str, port: int) -> str:
        held = (address, port) in self.lan.held or self.lan.taken_later(address, port)
        return f"port {port} at {address} is held by another program" if held else ""

    async def knock(self, target: Member) -> tuple[Link, ...]:
        links = []
        for address in target.addresses:
            await asyncio.sleep(self.lan.knock_s)
            reached = self.lan.answering.get(address.address) == target.nonce
            if not reached or (self.learner, address.address) in self.lan.cut:
                links.append(Link(address=address.address, error="no connection within 3 s"))
            else:
                speed = self.lan.bytes_per_s.get(address.address, 1e8)
                source = self.addresses[0].address
                links.append(Link(address=address.address, source=source, rtt_s=0.001, bytes_per_s=speed))
        return tuple(links)

    def listens(self, pid: int, address: str, port: int) -> bool:
        return self.lan.listening.get(pid) == (address, port)

    async def close(self) -> None:
        for address in self.addresses:
            self.lan.answering.pop(address.address, None)


PIDS = itertools.count(100)


class FakeRank:
    """A rank's process: it listens after a while, and is in the group once all that the plan names listen or have joined."""

    def __init__(self, lan: Lan, placed: Placed, *, listens_after_s: float = 1.0) -> None:
        self.pid, self.lan, self.placed = next(PIDS), lan, placed
        self.begun_s = asyncio.get_running_loop().time()
        self.listens_after_s = listens_after_s
        self.words = ""

    def _tick(self) -> None:
        seat = self.placed.seat
        if asyncio.get_running_loop().time() - self.begun_s >= self.listens_after_s and not self.words:
            self.lan.listening[self.pid] = (seat.address, seat.port)

    def died(self) -> str:
        self._tick()
        return self.words

    def joined(self) -> bool:
        self._tick()
        places = {(seat.address, seat.port) for seat in self.placed.plan.seats}
        return places <= set(self.lan.listening.values())


def address(ip: str, kind: Any = "ethernet", interface: str = "eth0") -> Address:
    return Address(address=ip, interface=interface, kind=kind, probe_port=30_000)


class Agent:
    """One simulated agent. Cancelling `live` is kill -9."""

    def __init__(
        self,
        store: MemoryStore,
        lan: Lan,
        name: str,
        *,
        terms: Terms,
        incarnation: int = 1,
        addresses: tuple[Address, ...] = (),
        wrap: Callable[[Mailbox], Mailbox] = lambda mailbox: mailbox,
        start: Callable[[], Awaitable[CheckpointAt | None]] | None = None,
        listens_after_s: float = 1.0,
        **facts: Any,
    ) -> None:
        self.mailbox = wrap(MemoryMailbox(store))
        self.lan, self.name, self.terms, self.incarnation = lan, name, terms, incarnation
        described = {"machine_name": name, "memory_bytes": 1 << 34, "versions": {"mlx": "0.32.0", "mlx-lm": "0.32.0"}} | facts
        self.facts = Facts(learner=name, incarnation=incarnation, **described)
        self.network = FakeNetwork(lan, name, addresses or (address(f"10.0.0.{sum(map(ord, name)) % 250}"),))
        self.apart: list[str] = []
        self.meeting: Meeting | None = None
        self.rank: FakeRank | None = None
        self.plan: Plan | None = None
        self.placed: list[Placed] = []  # in every generation that it got to start in
        self.listens_after_s = listens_after_s
        self._start = start
        self._n = 0

    def make(self, generation: int) -> Meeting:
        self.meeting = Meeting(
            self.mailbox,
            PLACE,
            generation,
            self.facts,
            self.terms,
            self.network,
            beat_s=BEAT_S,
            lease_s=LEASE_S,
            start=self._start or self._nothing,
        )
        return self.meeting

    async def _nothing(self) -> CheckpointAt | None:
        return None

    async def beat(self, phase: Any = "join") -> None:
        key, self._n = PLACE.beat(self.name, self.incarnation, self._n), self._n + 1
        await self.mailbox.put(key, [encode(Beat(phase=phase), nonce="n")])
        if self._n > BEATS_KEPT:
            await self.mailbox.delete([PLACE.beat(self.name, self.incarnation, self._n - BEATS_KEPT - 1)])

    async def beats(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(BEAT_S)

    async def live(self) -> str:
        """Until all ranks of a generation run; returns "running", or why the job is over."""
        beating = asyncio.create_task(self.beats())
        try:
            while True:
                found = await come(
                    self.mailbox,
                    PLACE,
                    learner=self.name,
                    incarnation=self.incarnation,
                    meeting=self.make,
                    apart=self.apart.append,
                )
                if isinstance(found, GenerationEnd):
                    return found.reason
                meeting, placed = found
                self.placed.append(placed)
                self.rank = FakeRank(self.lan, placed, listens_after_s=self.listens_after_s)
                try:
                    if await meeting.started(self.rank) is None:
                        self.plan = placed.plan
                        return "running"
                finally:
                    if self.plan is None:
                        self.lan.listening.pop(self.rank.pid, None)
                        await meeting.close()
        except asyncio.CancelledError:
            beating.cancel()
            raise
        finally:
            if self.plan is None:
                beating.cancel()
            self.beating = beating

    async def leave(self) -> None:
        self.beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.beating
        await self.beat("left")


def restarted(agent: Agent, store: MemoryStore, **changes: Any) -> Agent:
    """The next incarnation of a learner that was killed."""
    facts = {name: getattr(agent.facts, name) for name in ("machine_name", "memory_bytes", "versions", "hashes", "backends")}
    again = {"terms": agent.terms, "addresses": agent.network.addresses, "incarnation": agent.incarnation + 1} | facts | changes
    return Agent(store, agent.lan, agent.name, **again)


async def all_plans(mailbox: Mailbox) -> dict[int, Plan]:
    """By generation."""
    found = [await read_plan(mailbox, PLACE, generation) for generation in await generations(mailbox, PLACE)]
    return {plan.generation: plan for plan in found if isinstance(plan, Plan)}


def told(agent: Agent) -> str:
    """What it waits for."""
    assert agent.meeting is not None
    return agent.meeting.reason


def with_terms(terms: Terms, **changes: Any) -> Terms:
    return msgspec.structs.replace(terms, **changes)
