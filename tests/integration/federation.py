"""FedAvg learners over one memory mailbox, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np

from swarm.core.manifest import Manifest
from swarm.core.records import EvalRecord
from swarm.core.specs import FedAvg
from swarm.mailbox.memory import MemoryStore
from swarm.runtime.client import ClientLoop
from swarm.runtime.handoff import Assignment
from swarm.runtime.inner import params_sha256
from tests.integration.simulation import Learner, Machines

SAMPLES = 10  # of each client


class ClientLearner(Learner):
    """One simulated process: a step of a client pulls the parameters towards a target of that client, by an amount drawn from
    client and round."""

    def __init__(
        self,
        store: MemoryStore,
        manifest: Manifest,
        name: str,
        machines: Machines,
        *,
        samples: Mapping[str, int] | None = None,  # by client
        steps: int = 4,
        poisoned: frozenset[str] = frozenset(),  # clients whose delta is not finite
        lies: float = 0.0,  # added to what it trains
        **fields: Any,
    ) -> None:
        super().__init__(store, manifest, name, machines, **fields)
        self.samples, self.client_steps, self.poisoned, self.lies = samples or {}, steps, poisoned, lies
        self.trained: list[Assignment] = []
        self.given_up: list[Assignment] = []

    async def _live(self) -> str:
        start = await self.participant.join()
        spec = self.exchange.manifest.algorithm
        assert isinstance(spec, FedAvg)
        loop = ClientLoop(self.adapter, spec, start=start)
        following = asyncio.create_task(self.participant.run())
        try:
            reason = await self._clients(loop, following)
        except asyncio.CancelledError:
            following.cancel()
            if self.participant._beating is not None:
                self.participant._beating.cancel()
            raise
        except BaseException:
            await self.participant.leave()
            raise
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await self.participant.leave()
        loop.take_committed()
        self.params = params_sha256(self.adapter)
        return reason

    async def _clients(self, loop: ClientLoop, following: asyncio.Task[None]) -> str:
        while True:
            if following.done():
                following.result()
            while (aligned := self.handoff.take_aligned()) is not None:
                loop.align(aligned)
                if aligned.evaluate is not None:
                    self.handoff.evaluated(EvalRecord(round=aligned.evaluate, learner=self.name, loss=1.0))
            if self.leaving:
                return "left"
            if self.handoff.ended is not None:
                return self.handoff.ended
            self.handoff.telemetry.held = self.handoff.held
            client = None if self.handoff.unpublished or self.handoff.held else self.handoff.assignment()
            if client is None or not loop.begin(client):
                self.handoff.telemetry.phase = "paused" if self.handoff.paused or self.handoff.held else "wait"
                await asyncio.sleep(0.05)
                continue
            self.trained.append(client)
            self.handoff.telemetry.phase = "train"
            samples = self.samples.get(client.unit, SAMPLES)
            for step in range(self.client_steps if samples else 0):
                await asyncio.sleep(self.step_s)
                self.step_of(client, step)
                self.handoff.telemetry.trained_s += self.step_s
                loop.count(samples=samples, loss=1.0 / (1 + step))
                while self.handoff.held and not (self.leaving or self.handoff.behind or self.handoff.ended is not None):
                    self.handoff.telemetry.held, self.handoff.telemetry.phase = self.handoff.held, "paused"
                    await asyncio.sleep(0.05)
                self.handoff.telemetry.held, self.handoff.telemetry.phase = "", "train"
                if self.leaving or self.handoff.behind or self.handoff.ended is not None:
                    self.given_up.append(client)
                    break
            else:
                self.handoff.publish(loop.done(samples=samples, seconds_s=self.client_steps * self.step_s))
            self.handoff.telemetry.phase = "wait"

    def step_of(self, client: Assignment, step: int) -> None:
        rng = np.random.default_rng([sum(map(ord, client.unit)), client.round, step])
        moved = {}
        for name, array in self.adapter.snapshot().items():
            moved[name] = array + np.float32(0.1) * rng.standard_normal(array.shape, dtype=np.float32) + np.float32(self.lies)
        if client.unit in self.poisoned:
            moved["b.bias"] = moved["b.bias"] * np.float32("nan")
        self.adapter.apply(moved)
