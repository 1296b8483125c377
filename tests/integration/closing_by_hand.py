"""Rounds that a test closes by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from swarm.core.acceptance import sort_out
from swarm.core.manifest import Manifest, PayloadRef
from swarm.core.records import LearnerRecord, RoundRecord, Snapshot
from swarm.core.specs import DiLoCo
from swarm.core.tensorspec import TensorSpec
from swarm.exchange import Exchange
from swarm.learners.contract import Adapter
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.closing import Closed, Closer
from swarm.tensors.codec import encode as encode_delta
from tests.integration.simulation import model, new_run

SPEC = DiLoCo(sync_every=4, quorum_size=1, beat_s=1.0, lease_s=4.0)


def me(name: str) -> LearnerRecord:
    return LearnerRecord(
        learner=name, incarnation=1, machine=name, machine_name=name, boot="b", pid=1, process="1", version="0"
    )


@dataclass
class Bench:
    """A run whose rounds are closed by hand."""

    store: MemoryStore
    manifest: Manifest
    exchange: Exchange = field(init=False)
    before: RoundRecord | None = None

    def __post_init__(self) -> None:
        self.exchange = Exchange(MemoryMailbox(self.store), self.manifest)

    @classmethod
    async def of(cls, spec: DiLoCo = SPEC) -> Bench:
        store = MemoryStore()
        return cls(store, await new_run(store, spec))

    def copy(self) -> Bench:
        """The same run in a mailbox of its own."""
        store = MemoryStore()
        store.objects = dict(self.store.objects)
        return Bench(store, self.manifest, before=self.before)

    @property
    def base(self) -> PayloadRef:
        return self.exchange.theta_ref(0, self.before)

    async def theta(self) -> Any:
        return await self.exchange.fetch(0, self.base)

    async def publish(self, learner: str, delta: Any = None, *, payload: Any = None, round: int = 0, **changes: Any) -> str:
        """A snapshot that is honest but for `changes` and `payload`; its payload's key."""
        snapshot = Snapshot(
            round=round,
            fragment=0,
            learner=learner,
            incarnation=1,
            unit=learner,
            base_sha256=self.base.sha256,
            schema_sha256=self.exchange.schema.digest,
            dtype=None,
            payload=PayloadRef(round=round, sha256="0" * 64, size_bytes=0),
            tokens=100,
            steps=4,
            train_loss=1.5,
            seconds_s=1.0,
        )
        snapshot = await self.exchange.publish(
            msgspec.structs.replace(snapshot, **changes), small(learner) if delta is None else delta
        )
        place = self.exchange.keys
        key = place.snapshot_blob(snapshot.round, learner, snapshot.payload.sha256)
        if payload is not None:
            self.store.objects[key] = payload(self.store.objects[key])
        return key

    async def close(self, round: int = 0, *, by: str = "closer", order: int = 1) -> Closed | None:
        snapshots = await self.exchange.snapshots(round, {})
        return await Closer(self.exchange, me(by)).close(
            round,
            sort_out(
                dict(list(snapshots.items())[::order]),
                round=round,
                fragment=self.exchange.schedule.fragment(round),
                base_sha256=self.base.sha256,
                schema_sha256=self.exchange.schema.digest,
                dtype=self.manifest.algorithm.delta_dtype,
            ),
            before=self.before,
            theta=await self.theta(),
            control=0,
            waited_s=0.0,
            quorum_waited_s=0.0,
            reason="by hand",
        )

    def payloads(self, round: int = 0) -> set[str]:
        return {key for key in self.store.objects if key.startswith(f"{self.exchange.keys.root}/blobs/rounds/{round:010d}/")}


async def run_of(adapter: Adapter, spec: DiLoCo) -> Bench:
    """A run whose Θ⁰ is what `adapter` holds."""
    store = MemoryStore()
    manifest = await new_run(store, spec, adapter=adapter)
    return Bench(store, manifest)


def small(learner: str, scale: float = 1e-3) -> dict[str, np.ndarray]:
    return {name: array * np.float32(scale) for name, array in model(sum(map(ord, learner))).items()}


def at(dtype: str | None, delta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`delta` as a payload at `dtype` holds it."""
    found: dict[str, np.ndarray] = {}
    for name, array in delta.items():
        spec = TensorSpec(name, "F32", array.shape)
        found |= encode_delta(array, np.zeros_like(array), spec=spec, dtype=dtype)
    return found
