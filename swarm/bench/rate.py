"""How much slower training steps become while a payload is published and fetched beside them."""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time

import numpy as np

from swarm.bench.options import Options
from swarm.bench.runs import new_run
from swarm.exchange import Exchange
from swarm.learners.select import adapter_for
from swarm.mailbox.threads import DaemonThreads
from swarm.tasks.blank import build

WINDOW_S, TURNS = 1.5, 5
SMALL = 5_000_000  # parameters; with fewer it is a trial, and short
SIZE = 640  # of the matrices that a step multiplies, on one thread: some 5 to 20 ms


def rate(options: Options) -> dict[str, object]:
    """The part of the step rate that is lost, 0 to 1; None on a machine without a spare core."""
    if (os.cpu_count() or 1) < 2:
        return {"lost": None}
    model, _ = build(options.framework, options.shapes, seed=0)
    mailbox, manifest = asyncio.run(new_run(options, adapter_for(model)))
    exchange = Exchange(mailbox, manifest, offload=DaemonThreads(1).run)
    tensors = {name: np.array(array) for name, array in adapter_for(model).snapshot().items()}
    go, end = threading.Event(), threading.Event()

    async def exchange_on() -> None:
        round = 0
        while not end.is_set():
            if not go.is_set():
                await asyncio.sleep(0.01)
                continue
            ref = await exchange.store(round, tensors)
            if options.fragments == 1:
                await exchange.fetch(0, ref)
            await mailbox.delete([exchange.key_of(0, ref)])
            round += 1

    communication = threading.Thread(target=lambda: asyncio.run(exchange_on()), daemon=True)
    communication.start()
    one = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    out = np.empty_like(one)

    window_s = WINDOW_S if options.params >= SMALL else WINDOW_S / 10

    def steps_per_s() -> float:
        done, started_s = 0, time.perf_counter()
        while time.perf_counter() - started_s < window_s:
            for _ in range(3):  # a few operations a step, as a model has them
                np.matmul(one, one, out=out)
            np.add(out, one, out=out)
            done += 1
        return done / (time.perf_counter() - started_s)

    steps_per_s()
    lost = []
    for _ in range(TURNS):  # in turns, so that a machine that slows down slows both
        alone = steps_per_s()
        go.set()
        beside = steps_per_s()
        go.clear()
        time.sleep(window_s / 3)  # what was begun ends
        again = steps_per_s()
        lost.append(1 - beside / ((alone + again) / 2))
    end.set()
    communication.join()
    return {"lost": statistics.median(lost), "least_lost": min(lost)}
