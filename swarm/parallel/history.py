"""Reads a data-parallel job's generations for people: what a poll lists and reads is bounded, however old the job is."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import msgspec

from swarm.core import keys
from swarm.core.keys import SHARD, RunKeys
from swarm.core.ranks import MAX_GENERATION, JobCheckpoint, JobLog, Member, Plan, Probe, Ready, Started
from swarm.core.rankstate import Generation, Log
from swarm.mailbox.contract import Mailbox
from swarm.parallel.register import generations, read, read_end, read_plan

R = TypeVar("R", bound=msgspec.Struct)
News: TypeAlias = Generation | Log
READS_A_POLL = 2000  # of small records, so that a screen shows something soon
GENERATIONS_A_POLL = 50


class JobTape:
    """Keeps in mind what it has read: no record ever changes, and a late listing does not make one unseen.

    Three generations are looked at again and again: the newest that is known, the one before it, of which something may be
    listed late, and the next one, in which whoever comes late announces itself. Each costs one listing as long as nothing of it
    is missing. Earlier ones are read once."""

    def __init__(self, mailbox: Mailbox, place: RunKeys, *, history: bool) -> None:
        """`history`: read everything; otherwise the newest plan, its end, and the last reports."""
        self._mailbox, self._keys, self._history = mailbox, place, history
        self._at: int | None = None  # the newest one; None: not looked yet
        self._earlier: list[int] = []  # that are still to be read, the newest last
        self._read: dict[int, set[str]] = {}  # keys of those looked at again and again
        self._known: dict[int, Generation] = {}  # their plans, starts and ends
        self._parts: dict[int, int] = {}  # by generation: how many of its log were read, as long as there may be more
        self._checkpoints: dict[str, JobCheckpoint | None] = {}  # by key
        self._left = 0  # reads that this poll may still make
        self.behind = False  # whether something is there that the last poll left for the next one

    async def poll(self) -> list[News]:
        """What is new. Raises MailboxError."""
        self._left = READS_A_POLL
        news: list[News] = []
        if self._at is None:
            numbers = await generations(self._mailbox, self._keys)
            self._at = max(numbers, default=0)
            if self._history:
                self._earlier = [n for n in numbers if n < self._at - 1]
                self._parts = dict.fromkeys(self._earlier, 0)
        moved = True
        while moved and self._left > 0:
            for generation in range(max(0, self._at - 1), min(self._at + 1, MAX_GENERATION) + 1):
                news += await self._look(generation)
            moved = self._move_on()
        for generation in self._earlier[-GENERATIONS_A_POLL:][::-1]:
            if self._left > 0:
                news += await self._look(generation)
                self._earlier.pop()
                self._forget(generation)
        news += await self._logs()
        self.behind = self._left <= 0 or bool(self._earlier) or any(n < self._at - 1 for n in self._parts)
        return news

    async def checkpoints(self) -> tuple[JobCheckpoint, ...]:
        """Those that lie there now. A job keeps a few."""
        listed = {key: at for key in await self._mailbox.list(self._keys.checkpoints) if (at := keys.parse_job_checkpoint(key))}
        found: dict[str, JobCheckpoint | None] = {}
        for key, at in list(listed.items())[-SHARD:]:
            record = self._checkpoints.get(key)
            if key not in self._checkpoints:
                made = await read(self._mailbox, key, JobCheckpoint)
                if made is None:
                    continue
                record = made if isinstance(made, JobCheckpoint) and (made.generation, made.step) == at else None
            found[key] = record
        self._checkpoints = found
        return tuple(record for record in found.values() if record is not None)

    def _move_on(self) -> bool:
        """Whether another generation is the newest one now."""
        assert self._at is not None
        here, then = self._known.get(self._at), self._known.get(self._at + 1)
        ended = here is not None and here.end is not None and here.end.goes_on
        if self._at >= MAX_GENERATION or not (ended or (then is not None and then.plan is not None)):
            return False
        self._forget(self._at - 1)
        self._at += 1
        return True

    def _forget(self, generation: int) -> None:
        self._read.pop(generation, None)
        self._known.pop(generation, None)

    async def _look(self, generation: int) -> list[News]:
        place, known = self._keys, self._known.get(generation) or Generation(generation=generation)
        there = set(await self._mailbox.names(place.generation(generation)))
        seen = self._read.setdefault(generation, set())
        new = Generation(generation=generation)
        if "plan" in there and known.plan is None and place.rank_plan(generation) not in seen:
            plan = await read_plan(self._mailbox, place, generation)
            self._left -= 1
            if plan is not None:
                seen.add(place.rank_plan(generation))
            new = msgspec.structs.replace(new, plan=plan if isinstance(plan, Plan) else None)
        if "end" in there and known.end is None:
            new = msgspec.structs.replace(new, end=await read_end(self._mailbox, place, generation))
            self._left -= 1
        current = self._at is not None and generation >= self._at - 1
        if self._history and current and known.plan is None:
            members = await self._records(generation, place.members(generation), Member) if "members" in there else []
            probes = await self._records(generation, place.probes(generation), Probe) if "probes" in there else []
            new = msgspec.structs.replace(new, members=tuple(members), probes=tuple(probes))
        planned = new.plan or known.plan
        if planned is not None and known.end is None and (known.plan is None or known.lacking):
            ready = await self._records(generation, place.marks(generation, "ready"), Ready) if "ready" in there else []
            started = await self._records(generation, place.marks(generation, "started"), Started) if "started" in there else []
            marks = tuple((mark.learner, mark.incarnation) for mark in started)
            new = msgspec.structs.replace(new, ready=tuple(ready), started=marks)
        if "log" in there:
            self._parts.setdefault(generation, 0)
        if new == Generation(generation=generation):
            return []
        self._known[generation] = msgspec.structs.replace(
            known, plan=known.plan or new.plan, end=known.end or new.end, started=(*known.started, *new.started)
        )
        return [new]

    async def _records(self, generation: int, prefix: str, type: type[R]) -> list[R]:
        """Those below `prefix` that were not read yet, and are what their keys say."""
        found, seen = [], self._read[generation]
        for key in await self._mailbox.list(prefix):
            if key in seen or self._left <= 0:
                continue
            self._left -= 1
            record = await read(self._mailbox, key, type)
            if record is not None:
                seen.add(key)
            if isinstance(record, type) and _named(record) == _parsed(key):
                found.append(record)
        return found

    async def _logs(self) -> list[News]:
        assert self._at is not None
        news: list[News] = []
        for generation in sorted(self._parts, reverse=True):
            news += await (self._log(generation) if self._history else self._last(generation))
            if generation < self._at - 1 and self._left > 0:
                del self._parts[generation]  # read to its end, or all that is shown of it
        return news

    async def _log(self, generation: int) -> list[News]:
        """The parts of a generation's log that come next, without a gap."""
        first = n = self._parts[generation]
        parts: list[JobLog] = []
        while self._left > 0:
            shard = self._keys.job_log_shard(generation, n // SHARD)
            after = self._keys.job_log(generation, n - 1) if n % SHARD else ""
            listed = {named[1]: key for key in await self._mailbox.list(shard, after) if (named := keys.parse_job_log(key))}
            while n in listed and self._left > 0:
                self._left -= 1
                part = await read(self._mailbox, listed[n], JobLog)
                if part is None:  # listed, and not there to be read yet
                    break
                usable = isinstance(part, JobLog) and (part.generation, part.n) == (generation, n)
                # One that cannot be used says nothing, and what comes after it counts.
                parts.append(part if usable and isinstance(part, JobLog) else JobLog(generation=generation, n=n))
                n += 1
            if n % SHARD or n == first:
                break
            first = n
        self._parts[generation] = n
        return [Log(generation=generation, parts=tuple(parts))] if parts else []

    async def _last(self, generation: int) -> list[News]:
        """The newest part of a generation's log."""
        known = self._parts[generation]
        shard, after = known // SHARD, self._keys.job_log(generation, known - 1) if known % SHARD else ""
        if not known:
            named = [n for n in await self._mailbox.names(self._keys.job_logs(generation)) if n.isdecimal() and len(n) == 8]
            shard = int(max(named, default="0"))
        listed = await self._mailbox.list(self._keys.job_log_shard(generation, shard), after)
        found = {at[1]: key for key in listed if (at := keys.parse_job_log(key)) and at[0] == generation}
        last = max(found, default=-1)
        if last < known:
            return []
        part = await read(self._mailbox, found[last], JobLog)
        if part is None:
            return []
        self._parts[generation] = last + 1
        honest = isinstance(part, JobLog) and (part.generation, part.n) == (generation, last)
        return [Log(generation=generation, parts=(part,), alone=True)] if honest and isinstance(part, JobLog) else []


def _named(record: msgspec.Struct) -> tuple[object, ...]:
    """What a record says it is."""
    match record:
        case Probe():
            return record.generation, record.learner, record.incarnation, record.target, record.target_incarnation
        case Member() | Ready() | Started():
            return record.generation, record.learner, record.incarnation
        case _:
            return ()


def _parsed(key: str) -> tuple[object, ...] | None:
    """What a record's key says it is."""
    return keys.parse_member(key) or keys.parse_mark(key) or keys.parse_probe(key)
