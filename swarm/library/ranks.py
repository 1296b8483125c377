"""Fixed slices of the data, each trained by one learner."""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Generic, TypeVar

from swarm.core.errors import RankLost, RanksTaken, UsageError
from swarm.core.work import Holder, WorkSet
from swarm.library.member import Joined, Member, Peers, Units
from swarm.library.place import check_name
from swarm.library.waiting import wait_for

T = TypeVar("T")


def ranks(session: Joined, world_size: int, *, name: str = "data", timeout_s: float | None = None) -> Rank:
    """One of the ranks 0 … `world_size` − 1 of the run, held for as long as this learner lives.

    A learner that was restarted gets its own one back. A rank is free when nobody has claimed it, or its holder left or was
    not heard of for a lease, for which this waits; by default two leases, then RanksTaken names the holders. `name`: of this
    partition in the run; RunConfigMismatch if others cut it into another number of slices.
    """
    if world_size < 1:
        raise UsageError(f"world_size must be >= 1, got {world_size}")
    claims = RankClaims(session.member, check_name(name, "slice of data"))
    wait_for(claims.begin(world_size))
    return Rank(claims, wait_for(claims.take(timeout_s)), world_size)


class Rank:
    """A rank that this learner holds."""

    def __init__(self, claims: RankClaims, rank: int, world_size: int) -> None:
        self._claims = claims
        self.rank, self.world_size = rank, world_size
        self._checked_at_s = time.monotonic()

    def check(self) -> None:
        """Raises RankLost if another learner holds the rank now: this one had not been heard of for a lease."""
        wait_for(self._claims.check(self.rank))
        self._checked_at_s = time.monotonic()

    def check_now_and_then(self) -> None:
        """`check`, at most once a beat."""
        if time.monotonic() - self._checked_at_s >= self._claims.member.manifest.algorithm.beat_s:
            self.check()

    def slice(self, data: Iterable[T]) -> Slice[T]:
        """The items rank, rank + world_size, rank + 2·world_size, … of `data`, which must come in the same order everywhere.
        Can be iterated as often as `data` can."""
        return Slice(self, data)


class Slice(Generic[T]):
    """One rank's items. Iterating checks now and then that the rank is still held, and raises RankLost."""

    def __init__(self, rank: Rank, data: Iterable[T]) -> None:
        self._rank, self._data = rank, data

    def __iter__(self) -> Iterator[T]:
        rank = self._rank
        rank.check()
        for item in itertools.islice(self._data, rank.rank, None, rank.world_size):
            rank.check_now_and_then()
            yield item

    def __len__(self) -> int:
        if not isinstance(self._data, Sized):
            raise TypeError(f"a {type(self._data).__name__} has no length")
        return len(range(self._rank.rank, len(self._data), self._rank.world_size))


class RankClaims:
    """One learner's claims on the slices of some data."""

    def __init__(self, member: Member, name: str) -> None:
        self.member = member
        self._units = Units(member, member.keys.ranks(name))
        self._peers = Peers(member)
        self._size = 0

    async def begin(self, world_size: int) -> None:
        self._size = world_size
        await self.member.through(functools.partial(self._units.agree, WorkSet(size=world_size)))

    async def take(self, timeout_s: float | None) -> int:
        """A rank that is this learner's now. Raises RanksTaken, Superseded."""
        loop = asyncio.get_running_loop()
        patience_s = 2 * self.member.manifest.algorithm.lease_s if timeout_s is None else timeout_s
        until_s = loop.time() + patience_s
        while True:
            rank, holders = await self.member.through(self._try)
            if rank is not None:
                return rank
            if loop.time() >= until_s or self.member.leaving():
                held = ", ".join(f"{rank} by {holder.learner}" for rank, holder in holders.items())
                raise RanksTaken(f"all {self._size} ranks are held after {patience_s:.0f} s: {held}")
            await asyncio.sleep(self.member.poll_s)

    async def _try(self) -> tuple[int | None, dict[int, Holder]]:
        me = self.member.holder
        begun = await self._units.begun()
        newest = {rank: await self._units.look(rank) for rank in range(self._size) if rank in begun}
        for rank, (n, holder, _) in newest.items():
            if holder == me or (holder.learner == me.learner and await self._units.claim(rank, n + 1, me)):
                return rank, {}
        for rank in range(self._size):
            if newest.get(rank, (-1,))[0] < 0 and await self._units.claim(rank, 0, me):
                return rank, {}
        await self._peers.observe(holder for _, holder, _ in newest.values())
        for rank, (n, holder, _) in newest.items():
            if not self._peers.holds(holder) and await self._units.claim(rank, n + 1, me):
                return rank, {}
        return None, {rank: holder for rank, (_, holder, _) in newest.items()}

    async def check(self, rank: int) -> None:
        """Raises RankLost."""
        n, holder, _ = await self.member.through(functools.partial(self._units.look, rank))
        if n >= 0 and holder != self.member.holder:
            raise RankLost(rank, holder.learner or "nobody")
