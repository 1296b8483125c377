"""What whoever closed the last round of a turn through the fragments does after it: keep a checkpoint, and sweep.

It is owed from the commit on: a share that fails only delays it, and it is done before leaving a run that has ended. What a
closer owed that died is made up for by whoever closes the next turn: the parameters are still there.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from swarm.core.errors import PayloadCorrupt, PayloadMissing
from swarm.core.events import Trouble, WorkerEvent
from swarm.exchange import Exchange
from swarm.refusals import Expiry
from swarm.runtime.committed import Committed
from swarm.runtime.handoff import Tensors
from swarm.runtime.watch import Watch

LOOKS = 10  # at what lies in tmp/ and trash/, in the time for which it must lie there


class Upkeep:
    def __init__(self, exchange: Exchange, committed: Committed, watch: Watch, *, emit: Callable[[WorkerEvent], None]) -> None:
        self.exchange, self.emit = exchange, emit
        self._committed, self._watch = committed, watch
        self._refusals = Expiry(exchange.mailbox, exchange.manifest.run)
        self._swept_s: float | None = None  # when tmp/ and trash/ were looked at last
        self._owed: list[Callable[[], Awaitable[None]]] = []

    def owe(self, round: int) -> None:
        """`round` was closed here."""
        fragments = len(self.exchange.plan)
        if (round + 1) % fragments == 0:
            work = [(self._make_up, round - fragments), (self._keep, round), (self._sweep, round)]
            self._owed = [functools.partial(do, of) for do, of in work]

    async def settle(self) -> None:
        """Do what is owed, if anything is; what fails stays owed."""
        while self._owed:
            await self._owed[0]()
            self._owed.pop(0)

    def _is_kept(self, round: int) -> bool:
        manifest = self.exchange.manifest
        every = manifest.checkpoint_every if manifest.checkpoints_kept else 0
        return round >= 0 and every > 0 and (round + 1) // len(self.exchange.plan) % every == 0

    async def _make_up(self, round: int) -> None:
        if self._is_kept(round) and round not in await self.exchange.checkpoints():
            await self._keep(round)

    async def _keep(self, round: int) -> None:
        if not self._is_kept(round):
            return
        records = await self.exchange.newest_records(round)

        async def theta(fragment: int) -> Tensors:
            return await self._committed.parameters(fragment, self.exchange.theta_ref(fragment, records[fragment]))

        try:
            await self.exchange.keep_checkpoint(round, theta)
        except (PayloadMissing, PayloadCorrupt) as error:  # it will not come back: nobody is to try for ever
            self.emit(Trouble(message=f"the parameters after round {round} cannot be kept: {error}"))

    async def _sweep(self, round: int) -> None:
        await self.exchange.sweep(round, fetching=self._watch.fetching)
        keep_s, now_s = self.exchange.manifest.by_rounds.keep_s, asyncio.get_running_loop().time()
        if self._swept_s is None or now_s - self._swept_s >= keep_s / LOOKS:
            await self.exchange.mailbox.sweep(keep_s)
            self._swept_s = now_s
        await self._refusals.look(now_s)
