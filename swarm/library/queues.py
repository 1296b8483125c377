"""Work that the learners of a run share out: each unit is claimed once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from swarm.core.errors import SwarmError
from swarm.core.work import NOBODY, Holder, WorkSet
from swarm.library.member import Joined, Member, Peers, Units
from swarm.library.place import check_name
from swarm.library.waiting import wait_for
from swarm.tape import nonce

T = TypeVar("T")


class SharedQueue(Generic[T]):
    """`items`, each given to one learner of the run: files to read, shards to evaluate, seeds to try.

    Iterating claims a unit, gives it, and marks it done when the next one is asked for. A unit whose holder left, or was not
    heard of for a lease, is given again: so each is done at least once, and never by two live learners at a time. The
    iteration ends when all units are done, by whomever. One that is broken off gives its unit back.
    """

    def __init__(self, session: Joined, name: str, items: Sequence[T]) -> None:
        """`name`: of the queue in the run. `items`: the same for all learners, in the same order; where JSON can hold them that
        is checked (RunConfigMismatch when the iteration begins)."""
        self._session, self.name, self._items = session, check_name(name, "queue"), items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        claims = QueueClaims(self._session.member, self.name)
        wait_for(claims.begin(WorkSet(size=len(self._items), items_sha256=digest(self._items))))
        while (unit := wait_for(claims.next())) is not None:
            try:
                yield self._items[unit]
            except GeneratorExit:
                with contextlib.suppress(SwarmError, RuntimeError):  # a lease will do as well
                    wait_for(claims.give_back(unit))
                raise
            wait_for(claims.finish(unit))


def digest(items: Sequence[object]) -> str:
    """SHA-256 of the items as JSON; "" if it cannot hold them."""
    try:
        return hashlib.sha256(msgspec.json.encode(list(items))).hexdigest()
    except (TypeError, ValueError, msgspec.MsgspecError):
        return ""


class QueueClaims:
    """One learner's claims on a queue."""

    def __init__(self, member: Member, name: str) -> None:
        self.member = member
        self._me = Holder(learner=member.learner, incarnation=member.incarnation, stint=nonce())
        self._units = Units(member, member.keys.queue(name))
        self._peers = Peers(member)
        self._size = 0
        self._done: set[int] = set()

    async def begin(self, wanted: WorkSet) -> None:
        self._size = wanted.size
        await self.member.through(functools.partial(self._units.agree, wanted))

    async def next(self) -> int | None:
        """A unit that is this learner's now; None once all are done, or this learner is to leave. Waits for units that
        others have, since these may not finish them. Raises Superseded."""
        while not self.member.leaving() and len(self._done) < self._size:
            unit = await self.member.through(self._try)
            if unit is not None:
                return unit
            if len(self._done) < self._size:
                await asyncio.sleep(self.member.poll_s)
        return None

    async def _try(self) -> int | None:
        begun = await self._units.begun()
        for unit in range(self._size):
            if unit not in begun and unit not in self._done and await self._units.claim(unit, 0, self._me):
                return unit
        held = {}
        for unit in sorted(set(range(self._size)) - self._done):
            n, holder, done = await self._units.look(unit)
            if done:
                self._done.add(unit)
            else:
                held[unit] = n, holder
        await self._peers.observe(holder for _, holder in held.values())
        for unit, (n, holder) in held.items():
            if holder == self._me:  # claimed with the reply lost: nobody asks for the next one while it does one
                return unit
            if not self._peers.holds(holder) and await self._units.claim(unit, n + 1, self._me):
                return unit
        return None

    async def finish(self, unit: int) -> None:
        await self.member.through(functools.partial(self._units.finish, unit, self._me))
        self._done.add(unit)

    async def give_back(self, unit: int) -> None:
        n, holder, done = await self._units.look(unit)
        if holder == self._me and not done:
            await self._units.claim(unit, n + 1, NOBODY)
