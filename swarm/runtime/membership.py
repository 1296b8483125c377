"""Holding a learner id: incarnations and beats."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable

import msgspec

from swarm.core.errors import WAITED_OUT, LearnerIdTaken, MailboxCorrupt
from swarm.core.ids import free_learner_id
from swarm.core.records import Beat, LearnerRecord
from swarm.exchange import Exchange
from swarm.refusals import withdraw
from swarm.runtime.patience import Patience
from swarm.tape import nonce


async def take(
    exchange: Exchange,
    record: LearnerRecord,
    *,
    gone: Callable[[LearnerRecord], bool],
    alive: Callable[[LearnerRecord], bool],
    may_rename: bool,
    patience: Patience,
) -> LearnerRecord:
    """Register the next incarnation of `record.learner`; returns the record as written. What its machine told of why it cannot
    take part is removed.

    The holder before must be gone: provably (`gone`, as for a killed process of this machine), or it has left, or its
    beat stays the same for a lease. A live one raises LearnerIdTaken with a free id, or, if `may_rename`, that id is taken.
    """
    wanted, mark = record.learner, nonce()
    taken: set[str] = set()
    while True:
        incarnations = await patience.through(functools.partial(exchange.incarnations, record.learner))
        newest = incarnations[-1] if incarnations else 0
        if newest and not await patience.through(
            functools.partial(_vacant, exchange, record.learner, newest, gone=gone, alive=alive)
        ):
            taken |= {record.learner, *await patience.through(functools.partial(_names, exchange))}
            free = free_learner_id(wanted, taken)
            if not may_rename:
                raise LearnerIdTaken(record.learner, free)
            record = msgspec.structs.replace(record, learner=free)
            continue
        record = msgspec.structs.replace(record, incarnation=newest + 1)
        # Repeated with the same nonce: after a lost reply this process recognises its own record.
        if await patience.through(functools.partial(exchange.register, record, nonce=mark)):
            await withdraw(exchange.mailbox, exchange.manifest.run, record.machine)
            return record


async def _names(exchange: Exchange) -> set[str]:
    return set(await exchange.mailbox.names(exchange.keys.learners))


async def _vacant(
    exchange: Exchange,
    learner: str,
    incarnation: int,
    *,
    gone: Callable[[LearnerRecord], bool],
    alive: Callable[[LearnerRecord], bool],
) -> bool:
    try:
        holder = await exchange.learner(learner, incarnation)
    except MailboxCorrupt:  # nobody can be told from it; beats still tell whether somebody is there
        holder = None
    beat = (await exchange.beats({})).get(learner)
    if beat is not None and beat[0].incarnation == incarnation and beat[1].phase == "left":
        return True
    if holder is not None and gone(holder):
        return True
    if holder is not None and alive(holder):
        return False
    spec = exchange.manifest.algorithm
    loop = asyncio.get_running_loop()
    until_s, polled_s = loop.time() + spec.lease_s, loop.time()
    while loop.time() < until_s:
        await asyncio.sleep(min(spec.beat_s / 2, spec.lease_s / 4))
        try:
            now_beat = (await exchange.beats({})).get(learner)
        except WAITED_OUT:
            until_s = loop.time() + spec.lease_s  # nobody could be heard meanwhile
            continue
        if now_beat is not None and (beat is None or now_beat[0] != beat[0]):
            return now_beat[1].phase == "left"
        if loop.time() - polled_s > max(spec.beat_s, spec.lease_s / 3):
            until_s = loop.time() + spec.lease_s  # the share hung, or this machine slept
        polled_s = loop.time()
    return True


class Pulse:
    """The beats of one incarnation."""

    def __init__(self, exchange: Exchange, record: LearnerRecord, telemetry: Callable[[], Beat], *, patience: Patience) -> None:
        """`patience`: of its own, since a share that takes no beat may still answer whoever reads."""
        self.exchange, self.record, self.telemetry, self._patience = exchange, record, telemetry, patience
        self._n = 0
        self._tidy = False  # whether nothing older than the last few beats can be left

    async def beat(self, **changes: object) -> None:
        """Write one now. Its number is used up even if it fails: a reply may have been lost."""
        n, self._n = self._n, self._n + 1
        beat = self.telemetry()
        if changes:
            beat = msgspec.structs.replace(beat, **changes)
        tidy, self._tidy = self._tidy, False
        await self.exchange.beat(self.record.learner, self.record.incarnation, n, beat, tidy=not tidy)
        self._tidy = True

    async def run(self, *, at_once: bool = True) -> None:
        """Beat until cancelled. A share that takes none is told, and tried again at the next beat."""
        beat_s = self.exchange.manifest.algorithm.beat_s
        try:
            if not at_once:
                await asyncio.sleep(beat_s)
            while True:
                with contextlib.suppress(*WAITED_OUT):
                    await self._patience.through(self.beat, tries=1)
                await asyncio.sleep(beat_s)
        finally:
            self._patience.end()
