"""Whole rounds of two processes: their CPU time, and the memory of one that closes and of one that does not."""

from __future__ import annotations

import asyncio
import itertools
import resource
import sys
import time

import psutil

from swarm.bench.counting import CountingMailbox
from swarm.bench.options import Options
from swarm.bench.runs import RUN, learner_record, new_run
from swarm.core.events import RoundClosed, WorkerEvent
from swarm.learners.select import adapter_for
from swarm.mailbox.threads import DaemonThreads
from swarm.manifests import read_manifest
from swarm.runtime.session import Session
from swarm.tasks.blank import build


def create(options: Options) -> dict[str, object]:
    model, _ = build(options.framework, options.shapes, seed=0)
    asyncio.run(new_run(options, adapter_for(model), rounds=options.rounds))
    return {}


def learn(options: Options) -> dict[str, object]:
    """Take part in the run in `options.mailbox`. CPU seconds by round, without those of the inner steps; memory in bytes above
    what the imports took; the calls of the mailbox by round, besides beats and polls; how many rounds it closed."""
    build(options.framework, {"layer000.weight": (2, 2)}, seed=0)  # imports what it needs
    imported_bytes = psutil.Process().memory_info().rss
    model, scale = build(options.framework, options.shapes, seed=0)
    mailbox = CountingMailbox(options.mailbox)

    async def opened() -> object:
        await mailbox.open()
        return await read_manifest(mailbox, RUN)

    manifest = asyncio.run(opened())
    at_s: list[float] = []
    steps_s = 0.0
    closers: list[str] = []
    operations: list[int] = []

    def emit(event: WorkerEvent) -> None:
        if isinstance(event, RoundClosed):
            at_s.append(time.process_time() - steps_s)
            closers.append(event.closer)
            operations.append(mailbox.operations)

    threads = DaemonThreads(1)
    session = Session(
        adapter_for(model),
        mailbox=mailbox,
        manifest=manifest,  # type: ignore[arg-type]
        me=learner_record(options.learner, role="both" if options.closes else "learner"),
        gone=lambda other: False,
        alive=lambda other: False,
        emit=emit,
        offload=threads.run,
    )
    factor = 0.999 if options.closes else 0.998
    with session:
        for _ in session:
            started_s = time.thread_time()
            scale(factor)
            steps_s += time.thread_time() - started_s
            session.report(tokens=100, loss=None)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return {
        "cpu_s": [after - before for before, after in itertools.pairwise(at_s)],
        "operations": [after - before for before, after in itertools.pairwise(operations)],
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - imported_bytes,
        "closed": sum(closer == options.learner for closer in closers),
    }
