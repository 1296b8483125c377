"""Runs written record by record, without anybody who trains: what commands and screens read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np

from swarm.core.clients import sampled
from swarm.core.keys import RunKeys
from swarm.core.lines import body_sha256, encode
from swarm.core.manifest import FORMAT, Manifest, TaskRef
from swarm.core.records import Beat, Claim, Control, EvalRecord, LearnerRecord, Participant, Rejected, RoundRecord
from swarm.core.specs import Algorithm, DiLoCo, FedAvg
from swarm.core.trust import SwarmKey
from swarm.exchange import create_run
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox import init_mailbox, open_mailbox
from swarm.manifests import read_manifest
from swarm.tape import Tape, nonce
from tests.integration.simulation import draft_of

QUICK = DiLoCo(sync_every=10, beat_s=0.2, lease_s=2.0)
FEDERATED = FedAvg(clients=4, per_round=2, optimizer="adam", partition="dirichlet:0.5", beat_s=0.2, lease_s=2.0)


def make_mailbox(folder: Path) -> str:
    asyncio.run(init_mailbox(folder))
    return str(folder)


def make_run(
    location: str,
    name: str,
    run: str,
    *,
    rounds: int | None = None,
    algorithm: Algorithm = QUICK,
    task: str = "mlp",
    checkpoint_every: int = 0,
    key: SwarmKey | None = None,
) -> Manifest:
    adapter = NumpyAdapter({"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    described = {"run": run, "name": name, "task": TaskRef(name=task), "rounds": rounds, "checkpoint_every": checkpoint_every}
    draft = draft_of(adapter, algorithm, **described)

    async def write() -> Manifest:
        mailbox = open_mailbox(location, key=key)
        await mailbox.open()
        return (await create_run(mailbox, *draft))[0]

    return asyncio.run(write())


def round_records(manifest: Manifest, count: int) -> list[bytes]:
    """Rounds 0 to `count` - 1, whose Θ is Θ⁰, as one learner 'studio' would close them."""
    found: list[bytes] = []
    for round in range(count):
        record = RoundRecord(
            round=round,
            fragment=0,
            step=10 * (round + 1),
            version=-1,
            parent=body_sha256(found[-1]) if found else None,
            participants=(
                Participant(
                    learner="studio",
                    unit="studio",
                    weight=1.0,
                    tokens=10,
                    steps=10,
                    train_loss=1 / (round + 1),
                    seconds_s=1.0,
                    size_bytes=24,
                ),
            ),
            rejected=(),
            theta=manifest.init[0],
            outer=None,
            closer="studio",
        )
        found.append(encode(record, nonce=f"{round:032x}"))
    return found


def fed_records(manifest: Manifest, count: int, *, rejected: tuple[Rejected, ...] = (), reason: str = "") -> list[RoundRecord]:
    """Rounds 0 to `count` - 1 of a FedAvg run, as 'studio' and 'mbp' would train them; the last one has `rejected` and
    `reason`. Of a private run, each of the two is the client of all rounds."""
    spec = manifest.algorithm
    assert isinstance(spec, FedAvg)
    found: list[RoundRecord] = []
    for round in range(count):
        units = ("mbp", "studio") if spec.private else sampled(spec, manifest.seed, round)
        last = round == count - 1
        parts = tuple(
            Participant(
                learner=unit if spec.private else ("studio", "mbp")[n % 2],
                unit=unit,
                weight=80.0 + n,
                tokens=80 + n,
                steps=3,
                train_loss=1 / (round + 1 + n),
                seconds_s=1.5,
                size_bytes=24,
                metrics={"accuracy": 0.5 + 0.1 * round},
            )
            for n, unit in enumerate(units)
        )
        found.append(
            RoundRecord(
                round=round,
                fragment=0,
                step=round + 1,
                version=-1,
                parent=None if not found else body_sha256(encode(found[-1], nonce=f"{round - 1:032x}")),
                participants=parts,
                rejected=rejected if last else (),
                theta=manifest.init[0],
                outer=None,
                closer="studio",
                waited_s=2.5,
                close_s=0.25,
                reason=reason if last else "every client has reported",
                clients=("mbp", "studio") if spec.private else (),
            )
        )
    return found


def write_fed_rounds(location: str, manifest: Manifest, count: int, **last: object) -> None:
    for round, record in enumerate(fed_records(manifest, count, **last)):  # type: ignore[arg-type]
        path = Path(location, RunKeys(manifest.run).round(round))
        path.parent.mkdir(parents=True)
        path.write_bytes(encode(record, nonce=f"{round:032x}"))


def evaluate(location: str, run: str, round: int, *, accuracy: float | None = 0.9, confusion: bool = True) -> None:
    """What 'studio' found out about a round, of a classifier of three labels."""
    record = EvalRecord(
        round=round,
        learner="studio",
        loss=0.25,
        metrics={} if accuracy is None else {"accuracy": accuracy},
        confusion=((30, 2, 0), (0, 31, 1), (4, 0, 29)) if confusion else (),
    )
    path = Path(location, RunKeys(run).eval(round))
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(record, nonce=f"{round:032x}"))


def claim_client(location: str, run: str, round: int, client: str, learner: str) -> None:
    claim = Claim(round=round, learner=learner, incarnation=1)
    on(location, run, lambda tape: tape.claim_client(round, client, 0, claim))


def write_rounds(location: str, manifest: Manifest, count: int) -> None:
    """Straight into the folder: a mailbox would make each of them durable."""
    for round, data in enumerate(round_records(manifest, count)):
        path = Path(location, RunKeys(manifest.run).round(round))
        path.parent.mkdir(parents=True)
        path.write_bytes(data)


def on(location: str, run: str, do) -> object:
    """What the coroutine function `do` gives for the run's tape."""

    async def work() -> object:
        mailbox = open_mailbox(location)
        await mailbox.open()
        return await do(Tape(mailbox, await read_manifest(mailbox, run)))

    return asyncio.run(work())


def stop(location: str, run: str) -> None:
    on(location, run, lambda tape: tape.control(Control(action="stop", by="test")))


def beat(location: str, run: str, learner: str, n: int, *, phase: str = "train", **process: object) -> None:
    """One beat of `learner`'s first incarnation; the first one registers it, as a process of another machine by default."""

    async def write(tape: Tape) -> None:
        if n == 0:
            fields = {"machine": "elsewhere", "boot": "b", "pid": 1, "process": "p"} | process
            record = LearnerRecord(learner=learner, incarnation=1, machine_name="elsewhere", version="0", **fields)
            await tape.register(record, nonce=nonce())
        await tape.beat(learner, 1, n, Beat(phase=phase, round=0, step=n, steps=n, tokens_per_s=10.0, loss=1.0))

    on(location, run, write)


def manifest_of_another_format(location: str, manifest: Manifest) -> None:
    """Make the run's manifest one of a later version."""
    path = Path(location, RunKeys(manifest.run).manifest)
    path.write_bytes(encode(msgspec.structs.replace(manifest, format=FORMAT + 1), nonce="0" * 32))
