"""How much slower training steps become while a payload is published and fetched beside them: on a thread of the same process,
as in training, and for comparison in a process of its own, which costs what the machine makes it cost and no more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgspec
import numpy as np

from swarm.bench.options import Options
from swarm.bench.runs import new_run
from swarm.core.manifest import Manifest
from swarm.exchange import Exchange
from swarm.learners.select import adapter_for
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.threads import DaemonThreads
from swarm.tasks.blank import build

WINDOW_S, TURNS = 1.5, 5  # the window for a payload of 50 million parameters; smaller ones are through sooner
SPARE = 0.02  # a machine on which a process of its own costs more than this has no spare core for it
SIZE = 640  # of the matrices that a step multiplies, on one thread: some 5 to 20 ms


def rate(options: Options) -> dict[str, object]:
    """Parts of the step rate, 0 to 1: `lost`, None on a machine without a spare core; `beyond`, what is lost beyond what the
    same in a process of its own costs; `to_a_process`, that."""
    if (os.cpu_count() or 1) < 2:
        return {"lost": None, "beyond": None, "to_a_process": None}
    model, _ = build(options.framework, options.shapes, seed=0)
    mailbox, manifest = asyncio.run(new_run(options, adapter_for(model)))
    go, end = threading.Event(), threading.Event()
    window_s = min(WINDOW_S, max(0.1, WINDOW_S * options.params / 50e6))
    communication = threading.Thread(target=lambda: asyncio.run(_exchange_on(options, mailbox, manifest, go, end)), daemon=True)
    communication.start()
    alone, beside, process = [], [], []
    with _another_process(options) as other:
        _steps_per_s(window_s)
        for _ in range(TURNS):  # in turns, so that a machine that slows down slows all
            alone.append(_steps_per_s(window_s))
            go.set()
            beside.append(_steps_per_s(window_s))
            go.clear()
            time.sleep(window_s / 3)  # what was begun ends
            other.send_signal(signal.SIGCONT)
            process.append(_steps_per_s(window_s))
            other.send_signal(signal.SIGSTOP)
    end.set()
    communication.join()
    to_a_process = 1 - statistics.median(process) / statistics.median(alone)
    lost = 1 - statistics.median(beside) / statistics.median(alone)
    return {
        "lost": lost if min(lost, to_a_process) <= SPARE else None,
        "beyond": 1 - statistics.median(beside) / statistics.median(process),
        "to_a_process": to_a_process,
        "steps_per_s": {"alone": alone, "beside": beside, "process": process},
    }


def busy(options: Options) -> dict[str, object]:
    """What the process of its own does, until it is ended."""
    model, _ = build(options.framework, options.shapes, seed=0)
    mailbox, manifest = asyncio.run(new_run(options, adapter_for(model)))
    go = threading.Event()
    go.set()
    print("ready", flush=True)
    asyncio.run(_exchange_on(options, mailbox, manifest, go, threading.Event()))
    return {}


@contextlib.contextmanager
def _another_process(options: Options) -> Iterator[subprocess.Popen[bytes]]:
    """It exchanges, and is stopped."""
    command = [sys.executable, "-m", "swarm.bench", "busy", msgspec.json.encode(options).decode()]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait()


async def _exchange_on(
    options: Options, mailbox: Mailbox, manifest: Manifest, go: threading.Event, end: threading.Event
) -> None:
    """Publish and fetch while `go` is set."""
    exchange = Exchange(mailbox, manifest, offload=DaemonThreads(1).run)
    model, _ = build(options.framework, options.shapes, seed=0)
    tensors = {name: np.array(array) for name, array in adapter_for(model).snapshot().items()}
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


def _steps_per_s(window_s: float) -> float:
    one = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    out = np.empty_like(one)
    done, started_s = 0, time.perf_counter()
    while time.perf_counter() - started_s < window_s:
        for _ in range(3):  # a few operations a step, as a model has them
            np.matmul(one, one, out=out)
        np.add(out, one, out=out)
        done += 1
    return done / (time.perf_counter() - started_s)
