"""Every reason for which a snapshot is refused, in a run with real closers: named on the tape, and Θ is what it would have
been without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from swarm.core.events import RoundClosed
from swarm.core.manifest import Manifest, PayloadRef
from swarm.core.records import RejectReason, RoundRecord, Snapshot
from swarm.core.sentences import REASONS, sentence
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.roles import tape, until
from tests.integration.simulation import Learner, Machines, new_run, together, virtually

SPEC = DiLoCo(sync_every=4, quorum_size=2, beat_s=0.5, lease_s=2.0)
ROUNDS = 5
BAD_ROUND = 2


class Liar:
    """Publishes for one round what no honest learner would; it is no member of the run."""

    def __init__(self, store: MemoryStore, manifest: Manifest) -> None:
        self.store, self.exchange = store, Exchange(MemoryMailbox(store), manifest)

    async def publish(self, round: int, delta: dict[str, Any] | None = None, **changes: Any) -> Snapshot:
        record = await self.exchange.round(round - 1) if round else None
        delta = honest(self.exchange) if delta is None else delta
        snapshot = Snapshot(
            round=round,
            fragment=self.exchange.schedule.fragment(round),
            learner="liar",
            incarnation=1,
            unit="liar",
            base_sha256=self.exchange.theta_ref(0, record).sha256,
            schema_sha256=self.exchange.schema.digest,
            dtype=None,
            payload=PayloadRef(round=round, sha256="0" * 64, size_bytes=0),
            tokens=10,
            steps=4,
            train_loss=1.0,
            seconds_s=1.0,
        )
        return await self.exchange.publish(msgspec.structs.replace(snapshot, **changes), delta)

    def payload_key(self, snapshot: Snapshot) -> str:
        return self.exchange.keys.snapshot_blob(snapshot.round, snapshot.learner, snapshot.payload.sha256)


def honest(exchange: Exchange) -> dict[str, Any]:
    return {spec.name: np.full(spec.shape, 1e-3, np.float32) for spec in exchange.schema}


def with_nan(exchange: Exchange) -> dict[str, Any]:
    delta = honest(exchange)
    delta["b.bias"][0] = np.nan
    return delta


async def corrupt(liar: Liar, round: int) -> None:
    key = liar.payload_key(await liar.publish(round))
    data = bytearray(liar.store.objects[key])
    data[-1] ^= 1
    liar.store.objects[key] = bytes(data)


async def missing(liar: Liar, round: int) -> None:
    del liar.store.objects[liar.payload_key(await liar.publish(round))]


async def late(liar: Liar, round: int) -> None:
    while await liar.exchange.round(round) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await liar.publish(round)


LIES: dict[RejectReason, Callable[[Liar, int], Awaitable[object]]] = {
    "stale": lambda liar, round: liar.publish(round, base_sha256="1" * 64),
    "late": late,
    "zero_steps": lambda liar, round: liar.publish(round, steps=0),
    "tokens": lambda liar, round: liar.publish(round, tokens=0),
    "schema": lambda liar, round: liar.publish(round, schema_sha256="1" * 64),
    "corrupt": corrupt,
    "missing": missing,
    "nonfinite": lambda liar, round: liar.publish(round, with_nan(liar.exchange)),
    "norm": lambda liar, round: liar.publish(
        round, {name: array * np.float32(1e38) for name, array in honest(liar.exchange).items()}
    ),
}


async def a_run(spec: DiLoCo, lie: Callable[[Liar, int], Awaitable[object]] | None) -> tuple[list[RoundRecord], list[Learner]]:
    store, machines = MemoryStore(), Machines()
    manifest = await new_run(store, spec, rounds=ROUNDS)
    a, b = Learner(store, manifest, "a", machines), Learner(store, manifest, "b", machines, step_s=0.15)
    lives = [asyncio.create_task(x.live()) for x in (a, b)]
    if lie is not None:
        await until(lambda: a.participant.newest == BAD_ROUND - 1)
        await lie(Liar(store, manifest), BAD_ROUND)
    assert await together(*lives) == ["done", "done"]
    assert a.params == b.params
    return await tape(store, manifest), [a, b]


def test_every_reason_is_produced() -> None:
    of_clients = {"unsampled"}  # test_clients.py
    assert set(LIES) | {"duplicate"} | of_clients == set(get_args(RejectReason))


@pytest.mark.parametrize("reason", LIES)
def test_what_is_refused_is_named_and_changes_nothing(reason: RejectReason) -> None:
    async def main() -> None:
        # Of two honest learners that report the same thing whatever a third one does.
        spec = msgspec.structs.replace(SPEC, max_delta_norm=1e6) if reason == "norm" else SPEC
        expected, _ = await a_run(spec, None)
        records, learners = await a_run(spec, LIES[reason])
        listed = BAD_ROUND + (reason == "late")
        for record, other in zip(records, expected, strict=True):
            assert (record.theta, record.outer) == (other.theta, other.outer)
            assert [p.learner for p in record.participants] == ["a", "b"]
            said = [(r.learner, r.reason, r.round) for r in record.rejected]
            assert said == ([("liar", reason, BAD_ROUND)] if record.round == listed else [])
        told = next(e for e in learners[0].events if isinstance(e, RoundClosed) and e.round == listed)
        assert f"rejected: liar: {REASONS[reason]}" in (sentence(told) or "")

    virtually(main())


def test_of_one_learner_s_two_snapshots_one_counts() -> None:
    async def main() -> None:
        async def again(liar: Liar, round: int) -> None:
            """An earlier incarnation of 'a' has reported too."""
            await liar.publish(round, learner="a", unit="a", incarnation=0)

        expected, _ = await a_run(SPEC, None)
        records, _ = await a_run(SPEC, again)
        assert [record.theta for record in records] == [record.theta for record in expected]
        assert [(r.learner, r.reason) for r in records[BAD_ROUND].rejected] == [("a", "duplicate")]
        assert [p.learner for p in records[BAD_ROUND].participants] == ["a", "b"]

    virtually(main())


def test_a_round_in_which_nothing_counts_changes_nothing_and_says_so() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, quorum_size=1, beat_s=0.5, lease_s=2.0), rounds=3)
        poisoned = Learner(store, manifest, "a", machines, tokens=0)
        assert await poisoned.live() == "done"
        for record in await tape(store, manifest):
            assert (record.participants, record.theta, record.outer) == ((), manifest.init[0], None)
            assert record.version == -1
            assert [(r.learner, r.reason) for r in record.rejected] == [("a", "tokens")]
        told = [sentence(event) for event in poisoned.events if isinstance(event, RoundClosed)]
        assert told[0] == "round 0 closed (1 of 3) unchanged: nothing that counts was reported  rejected: a: trained on no data"

    virtually(main())
