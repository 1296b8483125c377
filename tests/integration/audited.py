"""Runs to be checked and cleaned up, trained in virtual time; and what checking says of them."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from typing import Any

from swarm.audit.faults import Fault, Report
from swarm.audit.verify import verify
from swarm.core.keys import RunKeys
from swarm.core.lines import decode, encode
from swarm.core.records import RoundRecord
from swarm.core.specs import Algorithm, DiLoCo, FedAvg
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.federation import ClientLearner
from tests.integration.simulation import Learner, Machines, new_run, together, virtually

KEYS = RunKeys("testrun1")
SPEC = DiLoCo(
    sync_every=2, fragments=2, quorum_size=2, start_learners=2, beat_s=1.0, lease_s=3.0, commit_dtype="BF16", keep_s=60.0
)
FED = FedAvg(clients=4, per_round=2, outer="fedavgm", training_seed=1, beat_s=1.0, lease_s=3.0)
ROUNDS = 12


def copied(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore(store.id)
    copy.objects = dict(store.objects)
    return copy


async def train(
    store: MemoryStore,
    spec: Algorithm = SPEC,
    *,
    for_s: float | None = None,
    names: str = "ab",
    pids: int = 1,
    beside: Callable[[MemoryStore], Any] | None = None,
    **fields: Any,
) -> list[Learner]:
    """A run in which `names` train, the later ones slower, to its end or for `for_s` seconds, after which they are killed.
    One that is there already goes on. `pids`: of the first process; of earlier ones none runs any more."""
    machines = Machines()
    machines._next_pid = pids
    manifest = await new_run(store, spec, **({"rounds": ROUNDS, "checkpoint_every": 2, "checkpoints_kept": 2} | fields))
    kind = ClientLearner if isinstance(spec, FedAvg) else Learner
    learners = [kind(store, manifest, name, machines, step_s=0.1 + 0.04 * n) for n, name in enumerate(names)]
    lives = [asyncio.create_task(learner.live()) for learner in learners]
    other = None if beside is None else asyncio.create_task(beside(store))
    if for_s is not None:
        await asyncio.sleep(for_s)
        for life in lives:
            life.cancel()
    for ended in await together(*lives):
        assert ended in ("done", "stopped") or (for_s is not None and isinstance(ended, asyncio.CancelledError)), ended
    if other is not None:
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        if other.done() and not other.cancelled():
            other.result()
    return learners


@functools.cache
def _half_done() -> MemoryStore:
    store = MemoryStore()
    virtually(train(store, for_s=1.8))
    return store


def half_done() -> MemoryStore:
    """A run of some rounds whose learners were killed while a round was open."""
    return copied(_half_done())


@functools.cache
def _done() -> MemoryStore:
    store = MemoryStore()
    virtually(train(store))
    return store


def done() -> MemoryStore:
    """A run with all its rounds."""
    return copied(_done())


async def checked(mailbox: Mailbox, **options: Any) -> tuple[list[Fault], Report]:
    faults: list[Fault] = []
    report = await verify(mailbox, found=faults.append, **options)
    assert report.faults == len(faults)
    return faults, report


def faults_of(store: MemoryStore) -> list[Fault]:
    return virtually(checked(MemoryMailbox(store)))[0]


def some(store: MemoryStore, prefix: str, *, last: bool = True) -> str:
    """One of the keys below `prefix` in the run."""
    found = sorted(key for key in store.objects if key.startswith(f"{KEYS.root}/{prefix}"))
    assert found, prefix
    return found[-1 if last else 0]


def newest(store: MemoryStore) -> RoundRecord:
    return decode(store.objects[some(store, "rounds/")], RoundRecord)


def rewrite(store: MemoryStore, key: str, record: Any) -> None:
    store.objects[key] = encode(record, nonce="0" * 32)


def flip(store: MemoryStore, key: str, seed: int = 0) -> None:
    data = bytearray(store.objects[key])
    at = random.Random(seed).randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8
    store.objects[key] = bytes(data)
