"""This machine's side of a rendezvous: its addresses and ports, and its prober."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import islice

from swarm.core import meeting as decisions
from swarm.core.ranks import MAX_ADDRESSES, Address, Link, Member
from swarm.network import interfaces, ports
from swarm.network.interfaces import Interface
from swarm.parallel import probing

PROBE_PORTS_TRIED = 50


class LocalNetwork:
    """Constructing it opens nothing."""

    def __init__(self, look: Callable[[], Sequence[Interface]] = interfaces.addresses) -> None:
        """`look`: the interfaces at which other machines may reach this one."""
        self._look = look
        self._answering: probing.Answering | None = None

    async def open(self, generation: int, learner: str, incarnation: int, nonce: str) -> tuple[Address, ...]:
        await self.close()
        tried = list(islice(decisions.ports(generation, learner, incarnation), PROBE_PORTS_TRIED))
        self._answering = await probing.answer(self._look()[:MAX_ADDRESSES], tried, nonce)
        return self._answering.addresses

    def offer(self, generation: int, learner: str, incarnation: int, count: int) -> tuple[int, ...]:
        here = [] if self._answering is None else [address.address for address in self._answering.addresses]
        return ports.free_ports(here, decisions.ports(generation, learner, incarnation), count) if here else ()

    def obstacle(self, address: str, port: int) -> str:
        return ports.obstacle(address, port)

    async def knock(self, target: Member) -> tuple[Link, ...]:
        return await probing.knock(target)

    def listens(self, pid: int, address: str, port: int) -> bool:
        return ports.listens(pid, address, port)

    async def close(self) -> None:
        answering, self._answering = self._answering, None
        if answering is not None:
            with contextlib.suppress(OSError):
                await answering.close()
