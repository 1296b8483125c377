"""What an idle poll and joining cost in a run with some history."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec

from swarm.bench.counting import CountingMailbox
from swarm.bench.options import Options
from swarm.bench.runs import learner_record, new_run
from swarm.core.lines import body_sha256, encode
from swarm.core.manifest import Manifest
from swarm.core.records import Participant, RoundRecord
from swarm.exchange import Exchange
from swarm.learners.select import adapter_for
from swarm.mailbox.folder import FolderMailbox
from swarm.runtime.handoff import Handoff
from swarm.runtime.participant import Participant as Learner
from swarm.tasks.blank import build

POLLS, BATCHES = 100, 8


def history(options: Options) -> dict[str, object]:
    """Joins a small model's run with `options.rounds` committed rounds and polls it. CPU and wall seconds."""
    small = msgspec.structs.replace(options, params=min(options.params, 10_000), tensors=min(options.tensors, 10), fragments=1)
    model, _ = build("numpy", small.shapes, seed=0)
    adapter = adapter_for(model)
    mailbox, manifest = asyncio.run(new_run(small, adapter))
    _write_rounds(mailbox.location, manifest, options.rounds)
    return asyncio.run(_measure(mailbox.location, manifest, adapter))


async def _measure(location: str, manifest: Manifest, adapter: Any) -> dict[str, object]:
    mailbox = CountingMailbox(location)
    started = time.process_time(), time.perf_counter()
    await mailbox.open()
    learner = Learner(
        Exchange(mailbox, manifest),
        learner_record("bench"),
        Handoff(),
        schema=adapter.schema(),
        gone=lambda other: False,
        alive=lambda other: False,
    )
    await learner.join()
    joined = time.process_time() - started[0], time.perf_counter() - started[1]
    await learner.poll()
    mailbox.calls.clear()
    batches = []
    for _ in range(BATCHES):
        started_s = time.process_time()
        for _ in range(POLLS):
            await learner.poll()
        batches.append((time.process_time() - started_s) / POLLS)
    poll_s = min(batches)  # what else the machine does can only add to it
    calls = {op: round(n / (BATCHES * POLLS), 2) for op, n in mailbox.calls.items()}
    newest = learner.newest
    await learner.leave()
    return {"join_s": joined[0], "join_wall_s": joined[1], "poll_s": poll_s, "poll_calls": calls, "rounds": newest + 1}


def _write_rounds(location: str, manifest: Manifest, rounds: int) -> None:
    """Straight into the folder, as closers would have written them: a mailbox would make each of them durable."""
    place, parent = Exchange(FolderMailbox(location), manifest).keys, None
    for n in range(rounds):
        taken = tuple(
            Participant(
                learner=name, unit=name, weight=1.0, tokens=100, steps=10, train_loss=1.0, seconds_s=1.0, size_bytes=1000
            )
            for name in ("ann", "bob")
        )
        record = RoundRecord(
            round=n,
            fragment=0,
            step=n + 1,
            version=-1,
            parent=parent,
            participants=taken,
            rejected=(),
            theta=manifest.init[0],
            outer=None,
            closer="ann",
        )
        data = encode(record, nonce=f"{n:032x}")
        path = os.path.join(location, place.round(n))
        os.makedirs(os.path.dirname(path))
        with open(path, "wb") as file:
            file.write(data)
        parent = body_sha256(data)
