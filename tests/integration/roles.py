"""A simulated syncer, and what tests of several roles share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarm.core.events import WorkerEvent
from swarm.core.manifest import Manifest
from swarm.core.records import LearnerRecord, RoundRecord
from swarm.exchange import Exchange
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.handoff import Handoff
from swarm.runtime.participant import Participant
from tests.integration.simulation import Machines


class Syncer:
    """One simulated process that only closes rounds."""

    def __init__(
        self,
        store: MemoryStore,
        manifest: Manifest,
        name: str,
        machines: Machines,
        *,
        wrap: Callable[[Mailbox], Mailbox] = lambda mailbox: mailbox,
    ) -> None:
        self.name, self.machines, self.pid = name, machines, machines.start()
        self.events: list[WorkerEvent] = []
        self.handoff = Handoff()
        self.exchange = Exchange(wrap(MemoryMailbox(store)), manifest)
        machine = f"machine-{name}"
        self.participant = Participant(
            self.exchange,
            LearnerRecord(
                learner=name,
                incarnation=1,
                machine=machine,
                machine_name=machine,
                boot="boot",
                pid=self.pid,
                process=str(self.pid),
                version="0",
                role="syncer",
            ),
            self.handoff,
            schema=self.exchange.schema,
            gone=lambda other: other.machine == machine and other.pid not in machines.running,
            alive=lambda other: other.machine == machine and other.pid in machines.running,
            emit=self.events.append,
        )
        self.leaving = False

    async def live(self) -> str:
        """Close rounds until the run ends; returns why. Cancelling this task is kill -9."""
        try:
            return await self._live()
        finally:
            self.machines.running.discard(self.pid)

    async def _live(self) -> str:
        await self.participant.join()
        working = asyncio.create_task(self.participant.run())
        try:
            while not (await asyncio.wait({working}, timeout=0.1))[0]:
                if self.leaving:
                    working.cancel()
            if not working.cancelled():
                working.result()
        except asyncio.CancelledError:
            working.cancel()
            if self.participant._beating is not None:
                self.participant._beating.cancel()
            raise
        except BaseException:
            await self.participant.leave()
            raise
        await self.participant.leave()
        return self.handoff.ended or "left"


async def tape(store: MemoryStore, manifest: Manifest) -> list[RoundRecord]:
    """All records, read as a newcomer does: the chain of parents is checked on the way."""
    exchange = Exchange(MemoryMailbox(store), manifest)
    found = [await exchange.round(round) for round in range(await exchange.newest_round() + 1)]
    assert all(found)
    return [record for record in found if record is not None]


async def until(condition: Callable[[], bool], *, at_most_s: float = 3600.0) -> None:
    """Until `condition`, looked at often. Fails after `at_most_s` of the loop's time."""
    until_s = asyncio.get_running_loop().time() + at_most_s
    while not condition():
        assert asyncio.get_running_loop().time() < until_s, "it never came"
        await asyncio.sleep(0.05)
