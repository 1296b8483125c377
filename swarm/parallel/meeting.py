"""One machine's part in a generation of a data-parallel job: come, agree on a plan, start its rank when it is its turn.

Whoever calls keeps beating meanwhile (runtime/membership.py): beats are what the others judge it by. Only the event loop's
clock is asked, and nothing is ever awaited but the mailbox and this machine's own probes.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeAlias, TypeVar, assert_never

import msgspec

from swarm.core import meeting as decisions
from swarm.core.errors import UsageError
from swarm.core.events import WorkerEvent
from swarm.core.keys import RunKeys
from swarm.core.meeting import Action, Apart, Bury, Confirm, End, Hold, Lead, Over, Propose, Running, Start, Stay, View
from swarm.core.preflight import Terms
from swarm.core.ranks import (
    Address,
    Backend,
    CheckpointAt,
    Ending,
    GenerationEnd,
    Link,
    Member,
    Plan,
    Probe,
    Ready,
    Seat,
    Started,
    in_words,
)
from swarm.core.rounds import ClaimView
from swarm.mailbox.contract import Mailbox
from swarm.parallel.beside import cancelled
from swarm.parallel.company import Company
from swarm.parallel.register import NOBODY, Register
from swarm.runtime.patience import Patience

T = TypeVar("T")
PORTS_OFFERED = 4
AGAIN_S = 2.0  # before a machine that was not reached at all is tried once more


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine says of itself for a generation, its network aside."""

    learner: str
    incarnation: int
    machine_name: str
    memory_bytes: int
    versions: dict[str, str] = {}
    hashes: dict[str, str] = {}
    backends: tuple[Backend, ...] = ("ring",)
    tokens_per_s: float = 0.0


class Network(Protocol):
    """This machine's side of the network (parallel/network.py; tests have one of their own)."""

    async def open(self, generation: int, learner: str, incarnation: int, nonce: str) -> tuple[Address, ...]:
        """Answer probes of whoever knows `nonce`, at ports of this generation; returns where."""
        ...

    def offer(self, generation: int, learner: str, incarnation: int, count: int) -> tuple[int, ...]:
        """Ports that are free at each of these addresses."""
        ...

    def obstacle(self, address: str, port: int) -> str:
        """Why a rank cannot have this place, in words; "" if it can."""
        ...

    async def knock(self, target: Member) -> tuple[Link, ...]: ...

    def listens(self, pid: int, address: str, port: int) -> bool: ...

    async def close(self) -> None:
        """Answer nobody any more."""
        ...


class RankProcess(Protocol):
    """A rank that was started here."""

    pid: int

    def died(self) -> str:
        """Why it is no more, in words; "" while it runs."""
        ...

    def joined(self) -> bool:
        """Whether it has said that it is in the group."""
        ...


class Placed(msgspec.Struct, frozen=True):
    """Start this rank now."""

    plan: Plan
    rank: int

    @property
    def seat(self) -> Seat:
        return self.plan.seats[self.rank]


Outcome: TypeAlias = Placed | Apart | Over


class Meeting:
    """One agent at one generation. Whoever runs it closes it: its prober answers until then."""

    def __init__(
        self,
        mailbox: Mailbox,
        place: RunKeys,
        generation: int,
        facts: Facts,
        terms: Terms,
        network: Network,
        *,
        beat_s: float,
        lease_s: float,
        start: Callable[[], Awaitable[CheckpointAt | None]],
        emit: Callable[[WorkerEvent], None] = lambda event: None,
    ) -> None:
        """`start`: what this generation goes on from, asked for when it makes the plan (core/meeting.py, `start_after`)."""
        self.register = Register(mailbox, place, generation)
        self.company = Company(
            mailbox, place, learner=facts.learner, incarnation=facts.incarnation, beat_s=beat_s, lease_s=lease_s
        )
        self.generation, self.facts, self.terms, self.network = generation, facts, terms, network
        self.reason = ""  # what it waits for, for people
        self.poll_s = min(max(beat_s / 10, 0.05), 1.0)
        self._start = start
        self._patience = Patience(mailbox, emit)
        gap_s = self.company.leases.gap_s
        self._steady, self._enough, self._planned = Stay(gap_s), Stay(gap_s), Stay(gap_s)
        self._probed: set[tuple[str, int]] = set()
        self._probing: asyncio.Task[None] | None = None

    async def run(self) -> Outcome:
        """Until it is this machine's turn to start its rank, or clear that it has none in this generation: `Apart`, with the
        reason, while the others go on; `Over` when there is nothing to take part in. Raises Superseded."""
        await self._announce()
        try:
            while True:
                outcome = await self._through(self._turn)
                if outcome is not None:
                    return outcome
                await asyncio.sleep(self.poll_s)
        finally:
            await self._stop_probing()

    async def started(self, process: RankProcess) -> GenerationEnd | None:
        """See the rank that was started here, and the others', come up. None: all of them run. Else the generation has ended,
        and the process is to be killed. Raises Superseded."""
        while True:
            done, end = await self._through(functools.partial(self._starting, process))
            if done:
                return end
            await asyncio.sleep(self.poll_s)

    async def ended(self) -> GenerationEnd | None:
        """How the generation ended, looked at once; None while it goes on."""
        await self._through(self.register.look)
        return self.register.end

    def gone(self) -> list[str]:
        """Learners of the plan that were not live when this was last looked at (`observe`)."""
        plan = self.register.plan
        return [] if plan is None else [s.learner for s in plan.seats if not self.company.holds(s.learner, s.incarnation)]

    async def until_over(self) -> None:
        """Wait for the end of the generation, which goes on without this machine; or until nobody is left who could end it."""
        while await self.ended() is None:
            await self.observe()
            if self._seats and len(self.gone()) == len(self._seats):
                return
            await asyncio.sleep(self.poll_s)

    async def observe(self) -> None:
        """Look at the records and at who is live. Raises Superseded."""
        await self._through(self._look)

    async def end(self, ending: Ending, reason: str, *, checkpoint: CheckpointAt | None = None) -> GenerationEnd:
        """End the generation, unless somebody has; returns what holds."""
        end = GenerationEnd(
            generation=self.generation, ending=ending, by=self.facts.learner, reason=in_words(reason), checkpoint=checkpoint
        )
        return await self._through(functools.partial(self.register.finish, end))

    async def close(self) -> None:
        await self._stop_probing()
        await self.network.close()

    # One turn

    async def _announce(self) -> None:
        facts, generation = self.facts, self.generation
        who = (generation, facts.learner, facts.incarnation)
        nonce = secrets.token_hex(16)
        addresses = await self.network.open(*who, nonce)
        member = Member(
            generation=generation,
            addresses=addresses,
            ports=self.network.offer(*who, PORTS_OFFERED),
            nonce=nonce,
            **{name: getattr(facts, name) for name in facts.__struct_fields__},
        )
        if not await self._through(functools.partial(self.register.announce, member)):
            # It has been here before: what the others know of it, its nonce and its ports, is no longer true.
            await self.end("rendezvous", f"{facts.learner} has begun anew")

    async def _turn(self) -> Outcome | None:
        """One look, and what follows from it. None: another turn."""
        action = await self._decide()
        match action:
            case Apart() | Over():
                return action
            case Start(plan, rank):
                return Placed(plan, rank)
            case Hold(reason):
                self.reason = reason
            case Running():
                raise UsageError(f"a rank of {self.facts.learner} runs already in generation {self.generation}")
            case _:
                await self._do(action)
        return None

    async def _do(self, action: Lead | Propose | Confirm | Bury | End) -> None:
        facts = self.facts
        match action:
            case Lead(n):
                await self.register.claim(n, learner=facts.learner, incarnation=facts.incarnation)
            case Propose(plan):
                await self.register.propose(msgspec.structs.replace(plan, start=await self._start()))
            case Confirm(plan, rank):
                seat = plan.seats[rank]
                refusal = in_words(self.network.obstacle(seat.address, seat.port))
                await self.register.mark(
                    Ready(
                        generation=self.generation,
                        learner=facts.learner,
                        incarnation=facts.incarnation,
                        refusal=refusal,
                    )
                )
            case End(reason, ending):
                await self.end(ending, reason)
            case Bury(reason):
                end = GenerationEnd(generation=self.generation - 1, ending="lost", by=facts.learner, reason=in_words(reason))
                await Register(self.register.mailbox, self.register.keys, self.generation - 1).finish(end)
            case _:
                assert_never(action)

    async def _starting(self, process: RankProcess) -> tuple[bool, GenerationEnd | None]:
        """(whether the start is over, how the generation ended)."""
        facts, generation = self.facts, self.generation
        action = await self._decide()
        plan = self.register.plan
        assert plan is not None, "a rank is started by a plan"
        died = process.died()
        if died and not isinstance(action, Over):
            action = End(in_words(f"the rank of {facts.learner} has ended: {died}"))
        match action:
            case Running():
                return True, None
            case Over(end):
                return True, end
            case End(reason, ending):
                return True, await self.end(ending, reason)
            case Start(_, rank):
                seat, last = plan.seats[rank], rank == len(plan.seats) - 1
                # The last one listens for a moment only, once it is connected: it says itself when it is in the group.
                if process.joined() or (not last and self.network.listens(process.pid, seat.address, seat.port)):
                    mark = Started(generation=generation, learner=facts.learner, incarnation=facts.incarnation, pid=process.pid)
                    await self.register.mark(mark)
                    return False, None
                self.reason = f"waiting for the rank of {facts.learner} to listen"
                late = decisions.overdue(self._view(), plan, self.reason)
                return (False, None) if late is None else (True, await self.end(late.ending, late.reason))
            case Hold(reason):
                self.reason = reason
        return False, None

    async def _decide(self) -> Action:
        await self._look()
        register = self.register
        if register.before is not None and not register.before.goes_on:
            return Over(register.before)
        if register.end is not None and register.end.by == NOBODY:  # for those who come later, who would look for an end
            return Over(await register.finish(msgspec.structs.replace(register.end, by=self.facts.learner)))
        self._probe_the_next()
        return decisions.decide(self._view())

    async def _look(self) -> None:
        requests = (self.register.listing, (self.company.keys.beats, ""))
        found = await self.register.mailbox.lists(requests)  # one trip, but where the second one fails
        await self.register.look(found[0])
        beats = found[1] if len(found) > 1 else await self.register.mailbox.list(*requests[1])
        named = {
            *self.register.members,
            *((s.learner, s.incarnation) for s in self._seats),
            *(self.register.seats_before or ()),
        }
        await self.company.observe(beats, named)
        now_s = asyncio.get_running_loop().time()
        here = frozenset((m.learner, m.incarnation) for m in self._here)
        counts = not self.register.under_way
        self._steady = self._steady.observe(now_s, (counts, here))
        self._enough = self._enough.observe(now_s, counts and len(here) >= self.terms.world_size_min)
        self._planned = self._planned.observe(now_s, self.register.plan is not None)

    @property
    def _seats(self) -> tuple[Seat, ...]:
        return () if self.register.plan is None else self.register.plan.seats

    @property
    def _here(self) -> list[Member]:
        """Members whose incarnations are live, by learner."""
        return [member for who, member in sorted(self.register.members.items()) if self.company.holds(*who)]

    def _view(self) -> View:
        register, company = self.register, self.company
        planned = [(seat.learner, seat.incarnation) for seat in self._seats]
        return View(
            learner=self.facts.learner,
            incarnation=self.facts.incarnation,
            generation=self.generation,
            terms=self.terms,
            under_way=register.under_way,
            deserted=register.seats_before is not None and not any(company.holds(*who) for who in register.seats_before),
            members=tuple(self._here),
            missing=company.missing,
            probes=tuple(register.probes.values()),
            claims=self._claims,
            plan=register.plan,
            ready={who[0]: register.ready[who] for who in planned if who in register.ready},
            started=frozenset(who[0] for who in planned if who in register.started),
            gone=frozenset(who[0] for who in planned if not company.holds(*who)),
            end=register.end,
            steady_s=self._steady.same_s,
            enough_s=self._enough.same_s if self._enough.what else 0.0,
            planned_s=self._planned.same_s if self._planned.what else 0.0,
        )

    @property
    def _claims(self) -> tuple[ClaimView, ...]:
        """On leading, without a gap from 0 on: one after a gap is nobody's to outbid."""
        claims = self.register.claims
        in_turn = ((n, claims[n]) for n in itertools.takewhile(claims.__contains__, itertools.count()))
        return tuple(
            ClaimView(n=n, learner=c.learner, incarnation=c.incarnation, holder_live=self._is_here(c.learner, c.incarnation))
            for n, c in in_turn
        )

    def _is_here(self, learner: str, incarnation: int) -> bool:
        """Whether it is live, and has come to this generation: only then can it lead."""
        return (learner, incarnation) in self.register.members and self.company.holds(learner, incarnation)

    # Probes

    def _probe_the_next(self) -> None:
        """One at a time, beside the turns: while links are measured this machine sees what the others do."""
        if self._probing is not None and self._probing.done():
            self._probing.result()
            self._probing = None
        if self._probing is not None or self.register.under_way or self.register.plan is not None:
            return
        for member in self._here:
            who = (member.learner, member.incarnation)
            if member.learner != self.facts.learner and who not in self._probed:
                self._probed.add(who)
                self._probing = asyncio.create_task(self._probe(member))
                return

    async def _probe(self, target: Member) -> None:
        links = await self.network.knock(target)
        if all(link.error for link in links):  # a link that fails for a moment must not cost the machine the generation
            await asyncio.sleep(AGAIN_S)
            links = await self.network.knock(target)
        probe = Probe(
            generation=self.generation,
            learner=self.facts.learner,
            incarnation=self.facts.incarnation,
            target=target.learner,
            target_incarnation=target.incarnation,
            links=links,
        )
        await self._through(functools.partial(self.register.report, probe))

    async def _stop_probing(self) -> None:
        probing, self._probing = self._probing, None
        await cancelled(probing)

    async def _through(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._patience.through(call)
