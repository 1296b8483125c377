"""A learner among others, as queues, slices and barriers see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from swarm.core.errors import MailboxCorrupt, RecordError, RunConfigMismatch, Superseded
from swarm.core.events import WorkerEvent
from swarm.core.keys import RunKeys, parse_work_claim, work_claim, work_claims, work_done, work_set
from swarm.core.lease import BeatId, leases
from swarm.core.lines import decode, encode
from swarm.core.manifest import Manifest
from swarm.core.records import Beat
from swarm.core.work import NOBODY, Holder, WorkSet
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.signed import is_genuine
from swarm.runtime.patience import Patience
from swarm.tape import Tape, derived_nonce, nonce

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True)
class Member:
    """`leaving`: whether this learner was asked to leave the run, which ends all waiting."""

    mailbox: Mailbox
    manifest: Manifest
    learner: str
    incarnation: int
    emit: Callable[[WorkerEvent], None] = lambda event: None
    leaving: Callable[[], bool] = lambda: False

    @property
    def keys(self) -> RunKeys:
        return RunKeys(self.manifest.run)

    @property
    def holder(self) -> Holder:
        return Holder(learner=self.learner, incarnation=self.incarnation)

    @property
    def poll_s(self) -> float:
        return min(max(self.manifest.algorithm.beat_s / 10, 0.05), 1.0)

    async def through(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `call` returns, called again for as long as the share is away."""
        return await Patience(self.mailbox, self.emit).through(call)

    async def read(self, key: str, type: type[R]) -> R | None:
        """None if there is none, or none that can be used."""
        try:
            data = await self.mailbox.read(key)
            return None if data is None else decode(data, type, where=key)
        except (RecordError, MailboxCorrupt):
            return None


class Joined(Protocol):
    """What has a Member: a session that is entered."""

    @property
    def member(self) -> Member: ...


class Peers:
    """Who is live, judged on this thread's own clock alone (core/lease.py). A claim of an incarnation that was taken over
    counts for nobody."""

    def __init__(self, member: Member) -> None:
        spec = member.manifest.algorithm
        self._member = member
        self._tape = Tape(member.mailbox, member.manifest)
        self._beats: dict[str, tuple[BeatId, Beat]] = {}
        self._leases = leases(lease_s=spec.lease_s, beat_s=spec.beat_s)
        self._first: dict[str, BeatId] = {}  # each one's newest beat when it was first seen

    async def observe(self, holders: Iterable[Holder] = ()) -> None:
        """Look once. `holders`: those that matter, whose beats may be gone with them. Raises Superseded."""
        self._beats = await self._tape.beats(self._beats)
        newest = {learner: ident for learner, (ident, _) in self._beats.items()}
        for holder in holders:
            if holder.learner:
                newest.setdefault(holder.learner, BeatId(holder.incarnation, -1))
        released = frozenset(learner for learner, (_, beat) in self._beats.items() if beat.phase == "left")
        self._leases = self._leases.observe(asyncio.get_running_loop().time(), newest, released)
        for learner, ident in newest.items():
            self._first.setdefault(learner, ident)
        mine = newest.get(self._member.learner)
        if mine is not None and mine.incarnation > self._member.incarnation:
            raise Superseded(self._member.learner, mine.incarnation)

    def holds(self, holder: Holder) -> bool:
        """Whether a claim of `holder` counts. This learner never judges itself."""
        me = self._member
        return (holder.learner, holder.incarnation) == (me.learner, me.incarnation) or self._leases.holds(
            holder.learner, holder.incarnation
        )

    def live(self) -> frozenset[str]:
        return self._leases.live() | {self._member.learner}

    def heard(self) -> frozenset[str]:
        """The live ones of whom a new beat came since this looks: one that died a while ago counts as live for a lease."""
        news = {k for k, lease in self._leases.by_learner.items() if lease.newest > self._first[k]}
        return (self._leases.live() & news) | {self._member.learner}


class Units:
    """Numbered units below one prefix, each with claims 0, 1, …: the newest claim's holder has it."""

    def __init__(self, member: Member, prefix: str) -> None:
        self.member, self.prefix = member, prefix
        self._claims: dict[tuple[int, int], Holder] = {}
        self._newest: dict[int, int] = {}  # by unit, the newest claim that was seen; a listing may leave out one before it

    async def agree(self, wanted: WorkSet) -> None:
        """What the units are is written once. Raises RunConfigMismatch if others have written something else."""
        key = work_set(self.prefix)
        there = await self.member.read(key, WorkSet)
        if there is None:
            if await self.member.mailbox.create(key, encode(wanted, nonce=nonce())):
                return
            there = await self.member.read(key, WorkSet)
        if there is None:
            raise MailboxCorrupt(f"{key}: cannot be read")
        differing = [f"size is {wanted.size} here, {there.size} in the run"] if wanted.size != there.size else []
        if not differing and wanted.items_sha256 and there.items_sha256 and wanted.items_sha256 != there.items_sha256:
            differing = ["the items, or their order, are other ones here than in the run"]
        if differing:
            raise RunConfigMismatch(f"{self.prefix.split('/', 2)[2].rstrip('/')}: {text}" for text in differing)

    async def begun(self) -> frozenset[int]:
        """Units that somebody has claimed, or is about to claim."""
        return frozenset(int(name) for name in await self.member.mailbox.names(self.prefix) if name.isdecimal())

    async def look(self, unit: int) -> tuple[int, Holder, bool]:
        """(number of the newest claim, -1 for none; its holder; whether the unit is done). A damaged claim is nobody's. One
        after a gap does not count: else an absurd number would leave none to claim with."""
        listed = await self.member.mailbox.list(work_claims(self.prefix, unit))
        numbers = {named[1] for named in map(parse_work_claim, listed) if named is not None}
        n = self._newest.get(unit, -1)
        while n + 1 in numbers:
            n += 1
        self._newest[unit] = n
        mark = work_done(self.prefix, unit)
        done = mark in listed and await is_genuine(self.member.mailbox, mark)
        if n < 0:
            return n, NOBODY, done
        if (unit, n) not in self._claims:
            self._claims[unit, n] = await self.member.read(work_claim(self.prefix, unit, n), Holder) or NOBODY
        return n, self._claims[unit, n], done

    async def claim(self, unit: int, n: int, holder: Holder) -> bool:
        """Whether claim `n` is `holder`'s. Asked again after a lost reply, the answer is the same."""
        return await self.member.mailbox.create(
            work_claim(self.prefix, unit, n), encode(holder, nonce=derived_nonce(holder) if holder.learner else nonce())
        )

    async def finish(self, unit: int, holder: Holder) -> None:
        await self.member.mailbox.create(work_done(self.prefix, unit), encode(holder, nonce=nonce()))
