"""Waiting for each other."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field

from swarm.core.errors import BarrierBroken, UsageError
from swarm.core.keys import parse_arrival
from swarm.core.lines import encode
from swarm.core.work import Holder
from swarm.library.member import Joined, Member, Peers
from swarm.library.place import check_name
from swarm.library.waiting import wait_for
from swarm.mailbox.signed import anything_genuine, is_genuine
from swarm.tape import derived_nonce, nonce


class Barrier:
    """Opens when `parties` live learners have come; then the next generation begins."""

    def __init__(self, session: Joined, name: str, parties: int) -> None:
        """`name`: of the barrier in the run. Raises UsageError."""
        if parties < 1:
            raise UsageError(f"parties must be >= 1, got {parties}")
        self._session, self.name, self.parties = session, check_name(name, "barrier"), parties
        self._meeting: Meeting | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """Come, and wait for the others; returns the generation that opened, from 0. Raises BarrierBroken when `timeout_s`
        (None: no limit) is over, and when one that was live has gone and those left are too few."""
        member = self._session.member
        if self._meeting is None:
            self._meeting = Meeting(member, self.name, self.parties)
        return wait_for(self._meeting.wait(timeout_s))


@dataclass
class _Look:
    peers: Peers
    first: set[Holder] | None = None  # who had come before
    came: set[str] = field(default_factory=set)  # those who are here


class Meeting:
    """One learner at a barrier."""

    def __init__(self, member: Member, name: str, parties: int) -> None:
        self.member, self.name, self.parties = member, name, parties
        self._passed = -1  # the last generation that opened, as far as is known

    async def wait(self, timeout_s: float | None) -> int:
        loop = asyncio.get_running_loop()
        until_s = None if timeout_s is None else loop.time() + timeout_s
        generation = await self.member.through(self._arrive)
        look, known = _Look(Peers(self.member)), frozenset[str]()
        while await self.member.through(functools.partial(self._look, generation, look)):
            here = f"barrier {self.name!r}, generation {generation}: {len(look.came)} of {self.parties} came"
            live = look.peers.live()
            known |= look.peers.heard()
            if len(live) < self.parties and (gone := known - live):
                raise BarrierBroken(f"{here}, and {', '.join(sorted(gone))} is gone: only {len(live)} are live")
            if until_s is not None and loop.time() >= until_s:
                raise BarrierBroken(f"{here} within {timeout_s:g} s: {', '.join(sorted(look.came))}")
            if self.member.leaving():
                raise BarrierBroken(f"{here}, and this learner leaves")
            await asyncio.sleep(self.member.poll_s)
        self._passed = generation
        return generation

    async def _arrive(self) -> int:
        """Come to the first generation that has not opened."""
        member, mailbox = self.member, self.member.mailbox
        begun = sorted(int(name) for name in await mailbox.names(member.keys.barrier(self.name)) if name.isdecimal())
        # What somebody else made is no generation: a barrier far ahead would be one at which nobody waits.
        while begun and not await anything_genuine(mailbox, member.keys.meeting(self.name, begun[-1])):
            begun.pop()
        generation = max([*begun, self._passed + 1])
        if await self._opened(generation):
            generation += 1
        key = member.keys.arrival(self.name, generation, learner=member.learner, incarnation=member.incarnation)
        await mailbox.create(key, encode(member.holder, nonce=derived_nonce(member.holder)))
        return generation

    async def _look(self, generation: int, look: _Look) -> bool:
        """Whether to wait. One that sees that all are here opens the barrier for all: they may go on at different times.

        To be here takes a sign of life since this learner looks, so that nobody passes together with one that came and died: a
        beat, or an arrival. So it is mostly the first to come who opens it, at once when the last one does."""
        member = self.member
        if await self._opened(generation):
            return False
        came = {
            Holder(learner=named[1], incarnation=named[2])
            for key in await member.mailbox.list(member.keys.arrivals(self.name, generation))
            if (named := parse_arrival(key)) is not None and await is_genuine(member.mailbox, key)
        }
        await look.peers.observe(came)
        if look.first is None:
            look.first = came
        heard = look.peers.heard()
        look.came = {h.learner for h in came if look.peers.holds(h) and (h.learner in heard or h not in look.first)}
        if len(look.came) < self.parties:
            return True
        await member.mailbox.create(member.keys.barrier_open(self.name, generation), encode(member.holder, nonce=nonce()))
        return False

    async def _opened(self, generation: int) -> bool:
        key, mailbox = self.member.keys.barrier_open(self.name, generation), self.member.mailbox
        return key in await mailbox.list(f"{key.rsplit('/', 1)[0]}/") and await is_genuine(mailbox, key)
