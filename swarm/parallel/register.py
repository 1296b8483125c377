"""The records of one generation, read and written. Nothing of any other generation is read here, but whether the one before has
ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

from swarm.core import keys
from swarm.core.errors import MailboxCorrupt, RecordError
from swarm.core.keys import RunKeys
from swarm.core.lines import decode, encode
from swarm.core.ranks import MAX_GENERATION, GenerationEnd, Member, Plan, Probe, Ready, Started
from swarm.core.records import Claim
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.signed import anything_genuine
from swarm.tape import derived_nonce, nonce

R = TypeVar("R", bound=msgspec.Struct)
Mark = Literal["ready", "started"]
NOBODY = "nobody"  # writes an end that only its reader knows of


class Register:
    """Keeps what it has read: no record ever changes, and a late listing does not make one unseen. A look costs one listing,
    and one read of each record that is new."""

    def __init__(self, mailbox: Mailbox, place: RunKeys, generation: int) -> None:
        self.mailbox, self.keys, self.generation = mailbox, place, generation
        self.members: dict[tuple[str, int], Member] = {}
        self.probes: dict[str, Probe] = {}  # by key
        self.claims: dict[int, Claim] = {}
        self.ready: dict[tuple[str, int], Ready] = {}
        self.started: dict[tuple[str, int], Started] = {}
        self.plan: Plan | None = None
        self.end: GenerationEnd | None = None
        self.before: GenerationEnd | None = None  # of the generation before, once it is seen
        self.seats_before: frozenset[tuple[str, int]] | None = None  # of its plan, while its end is not seen; None: unknown
        self._seen: set[str] = set()

    @property
    def under_way(self) -> bool:
        """Whether the generation before has not ended, as far as is known."""
        return self.generation > 0 and self.before is None

    @property
    def listing(self) -> tuple[str, str]:
        """What `look` lists, as Mailbox.lists wants it."""
        return self.keys.generation(self.generation), ""

    async def look(self, listed: Sequence[str] | None = None) -> None:
        """Read what is new. A record that cannot be used, or says that it is another's, is nobody's. `listed`: what `listing`
        gave, if that was asked for already."""
        if self.under_way:
            await self._look_before()
        for key in await self.mailbox.list(*self.listing) if listed is None else listed:
            if key not in self._seen and await self._take(key):
                self._seen.add(key)

    async def _look_before(self) -> None:
        """Whether the generation before has ended; if not, who is of it."""
        self.before = await read_end(self.mailbox, self.keys, self.generation - 1)
        if self.before is None and self.seats_before is None:
            plan = await read_plan(self.mailbox, self.keys, self.generation - 1)
            if plan is not None:
                seats = plan.seats if isinstance(plan, Plan) else ()
                self.seats_before = frozenset((seat.learner, seat.incarnation) for seat in seats)

    async def _take(self, key: str) -> bool:
        """Whether it need not be read again."""
        if (member := keys.parse_member(key)) is not None:
            record = await self._read(key, Member)
            if isinstance(record, Member) and (record.generation, record.learner, record.incarnation) == member:
                self.members[member[1:]] = record
        elif (probe := keys.parse_probe(key)) is not None:
            found = await self._read(key, Probe)
            if isinstance(found, Probe) and _named(found) == probe:
                self.probes[key] = found
        elif (claim := keys.parse_lead_claim(key)) is not None:
            bid = await self._read(key, Claim)
            honest = isinstance(bid, Claim) and bid.round == self.generation
            self.claims[claim[1]] = bid if honest and isinstance(bid, Claim) else Claim(round=0, learner="", incarnation=0)
        elif (mark := keys.parse_mark(key)) is not None:
            await self._take_mark(key, mark)
        elif key == self.keys.rank_plan(self.generation):
            plan = await read_plan(self.mailbox, self.keys, self.generation)
            if plan == "bad":
                reason = "its plan cannot be read"
                self.end = self.end or GenerationEnd(generation=self.generation, ending="rendezvous", by=NOBODY, reason=reason)
            elif plan is not None:
                self.plan = plan
            return plan is not None
        elif key == self.keys.generation_end(self.generation):
            end = await read_end(self.mailbox, self.keys, self.generation)
            self.end = end or self.end
            return end is not None
        return True

    async def _take_mark(self, key: str, mark: tuple[int, str, int]) -> None:
        if key.startswith(self.keys.marks(self.generation, "ready")):
            ready = await self._read(key, Ready)
            if isinstance(ready, Ready) and (ready.generation, ready.learner, ready.incarnation) == mark:
                self.ready[mark[1:]] = ready
        else:
            started = await self._read(key, Started)
            if isinstance(started, Started) and (started.generation, started.learner, started.incarnation) == mark:
                self.started[mark[1:]] = started

    async def _read(self, key: str, type: type[R]) -> R | Literal["bad"] | None:
        return await read(self.mailbox, key, type)

    async def announce(self, member: Member) -> bool:
        """False if this incarnation has announced something else here."""
        key = self.keys.member(self.generation, learner=member.learner, incarnation=member.incarnation)
        return await self.mailbox.create(key, encode(member, nonce=derived_nonce(member)))

    async def report(self, probe: Probe) -> None:
        key = self.keys.probe(
            self.generation,
            learner=probe.learner,
            incarnation=probe.incarnation,
            target=probe.target,
            target_incarnation=probe.target_incarnation,
        )
        await self.mailbox.put(key, [encode(probe, nonce=derived_nonce(probe))])

    async def claim(self, n: int, *, learner: str, incarnation: int) -> None:
        claim = Claim(round=self.generation, learner=learner, incarnation=incarnation)
        await self.mailbox.create(self.keys.lead_claim(self.generation, n), encode(claim, nonce=derived_nonce(claim)))

    async def propose(self, plan: Plan) -> None:
        """Write the plan, unless there is one."""
        await self.mailbox.create(self.keys.rank_plan(self.generation), encode(plan, nonce=nonce()))

    async def mark(self, record: Ready | Started) -> None:
        what: Mark = "ready" if isinstance(record, Ready) else "started"
        key = self.keys.mark(self.generation, what, learner=record.learner, incarnation=record.incarnation)
        await self.mailbox.create(key, encode(record, nonce=derived_nonce(record)))

    async def finish(self, end: GenerationEnd) -> GenerationEnd:
        """End the generation, unless somebody has; returns what holds."""
        await self.mailbox.create(self.keys.generation_end(self.generation), encode(end, nonce=nonce()))
        self.end = await read_end(self.mailbox, self.keys, self.generation) or end
        return self.end


def _named(probe: Probe) -> tuple[int, str, int, str, int]:
    return probe.generation, probe.learner, probe.incarnation, probe.target, probe.target_incarnation


async def read(mailbox: Mailbox, key: str, type: type[R]) -> R | Literal["bad"] | None:
    """None: it is not there. "bad": it cannot be used."""
    try:
        data = await mailbox.read(key)
        return None if data is None else decode(data, type, where=key)
    except (RecordError, MailboxCorrupt):
        return "bad"


async def read_end(mailbox: Mailbox, place: RunKeys, generation: int) -> GenerationEnd | None:
    """How a generation ended; None while it has not. One whose record cannot be read has ended, and another one follows."""
    key = place.generation_end(generation)
    end = await _listed(mailbox, key, GenerationEnd)
    if isinstance(end, GenerationEnd) and end.generation == generation:
        return end
    if end is None:
        return None
    return GenerationEnd(generation=generation, ending="rendezvous", by=NOBODY, reason="its end cannot be read")


async def read_plan(mailbox: Mailbox, place: RunKeys, generation: int) -> Plan | Literal["bad"] | None:
    """The plan of a generation; None while there is none. "bad": it cannot be used, or is another generation's."""
    plan = await _listed(mailbox, place.rank_plan(generation), Plan)
    return plan if not isinstance(plan, Plan) or plan.generation == generation else "bad"


async def _listed(mailbox: Mailbox, key: str, type: type[R]) -> R | Literal["bad"] | None:
    """Listed first: opening a name that is not there can make a client deny for a while that it exists."""
    return await read(mailbox, key, type) if key in await mailbox.list(key.removesuffix(keys.RECORD)) else None


async def generations(mailbox: Mailbox, place: RunKeys) -> list[int]:
    """That anybody of the swarm has written to, ascending; forged records make none."""
    names = await mailbox.names(place.generations)
    found = sorted(int(name) for name in names if name.isdecimal() and int(name) <= MAX_GENERATION)
    while found and not await anything_genuine(mailbox, place.generation(found[-1])):
        found.pop()
    return found


async def newest_plan(mailbox: Mailbox, place: RunKeys) -> Plan | None:
    """Of the newest generation that had one: one without wrote nothing that counts."""
    for generation in reversed(await generations(mailbox, place)):
        if isinstance(plan := await read_plan(mailbox, place, generation), Plan):
            return plan
    return None


async def waiting(mailbox: Mailbox, place: RunKeys, generation: int) -> frozenset[str]:
    """Learners that have announced themselves for `generation`, as one does that comes while the one before is under way."""
    named = map(keys.parse_member, await mailbox.list(place.members(generation)))
    return frozenset(name[1] for name in named if name is not None)


async def next_generation(mailbox: Mailbox, place: RunKeys, *, learner: str, incarnation: int) -> int:
    """The generation that this incarnation is to come to: the newest one, or the one after it if that has ended or its plan is
    made without it."""
    every = await generations(mailbox, place)
    if not every:
        return 0
    last = every[-1]
    if await read_end(mailbox, place, last) is not None:
        return last + 1
    plan = await read_plan(mailbox, place, last)
    if plan is None or (isinstance(plan, Plan) and plan.rank(learner, incarnation) is not None):
        return last
    return last + 1
