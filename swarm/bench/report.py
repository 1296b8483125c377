"""All of it, with what it is held to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from swarm.bench.options import Options
from swarm.core.errors import WorkerFailed

HISTORIES = (10, 9_999)
OPERATIONS = 25.0  # of a round and learner; more fragments share what is asked once a turn


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that is held to something."""

    name: str
    value: float | None  # None: it cannot be measured here
    bound: float
    what: str

    @property
    def holds(self) -> bool | None:
        """To two decimals: three models in memory have their names, too."""
        return None if self.value is None else round(self.value, 2) <= self.bound


def measure(options: Options, say: Callable[[str], None]) -> dict[str, object]:
    """Everything that was measured, as JSON has it; the figures stand under `figures`."""
    with _folder(options) as folder:
        options = msgspec.structs.replace(options, folder=folder)
        say("the limits of this machine: memory, SHA-256, files")
        limits = _part("limits", options)
        say("the phases of a round")
        phases = _part("phases", options)
        say(f"{options.rounds} rounds of two processes")
        rounds = _rounds(options)
        say("training beside it")
        rate = _part("rate", options)
        say("an idle poll, and joining")
        histories = [_part("history", msgspec.structs.replace(options, rounds=n)) for n in HISTORIES]
    figures = list(_figures(limits, phases, rounds, rate, histories))
    return {
        "options": msgspec.to_builtins(msgspec.structs.replace(options, folder="")),
        "limits": limits,
        "phases": phases,
        "rounds": rounds,
        "rate": rate,
        "histories": histories,
        "figures": [msgspec.to_builtins(figure) | {"holds": figure.holds} for figure in figures],
    }


def _figures(
    limits: dict[str, Any], phases: dict[str, Any], rounds: dict[str, Any], rate: dict[str, Any], histories: list[Any]
) -> Iterator[Figure]:
    size, memcpy_s = limits["size_bytes"], limits["memcpy_s"]
    publish = phases["publish_s"]
    young, old = histories

    def figure(name: str, value: float | None, bound: float, what: str) -> Figure:
        return Figure(name=name, value=value, bound=bound, what=what)

    yield figure("round", rounds["cpu_s"] / limits["floor_s"], 1.6, "CPU of a round, both processes, in floors")
    every = [count for learner in rounds["operations"] for count in learner]
    what = "calls of the mailbox a round and learner, besides beats and polls"
    yield figure("operations", sum(every) / max(1, len(every)), OPERATIONS, what)
    yield figure("closer_memory", rounds["closer_bytes"] / size, 4.0, "peak memory of a learner that closes, in models")
    yield figure("follower_memory", rounds["follower_bytes"] / size, 3.0, "peak memory of one that does not, in models")
    yield figure(
        "mean", phases["merge_s"]["mean"] / memcpy_s, 12.0, "merging two deltas by mean and the outer step, in memcpys"
    )
    yield figure("rda", phases["merge_s"]["rda"] / memcpy_s, 30.0, "the same by RDA, in memcpys")
    for code in ("F8_E4M3", "F4"):
        yield figure(f"publish_{code}", publish[code] / publish["F32"], 2.0, f"CPU of publishing at {code}, beside F32")
    yield figure("rate", rate["lost"], 0.02, "part of the step rate that an exchange costs, if a core is free for it")
    yield figure("rate_beyond", rate["beyond"], 0.02, "part that it costs beyond what it would in a process of its own")
    for found in histories:
        rounds_ = found["rounds"]
        yield figure(f"poll_{rounds_}", found["poll_s"] * 1000, 1.0, f"CPU of an idle poll at {rounds_} rounds, in ms")
        lists = sum(found["poll_calls"].get(op, 0) for op in ("list", "names"))
        yield figure(f"lists_{rounds_}", lists, 4.0, f"lists of an idle poll at {rounds_} rounds")
    yield figure(
        "join", old["join_s"] / young["join_s"], 3.0, f"CPU of joining at {old['rounds']} rounds, beside {young['rounds']}"
    )


@contextmanager
def _folder(options: Options) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="swarm-bench-", dir=options.folder or None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rounds(options: Options) -> dict[str, Any]:
    shared = msgspec.structs.replace(options, mailbox=os.path.join(options.folder, "rounds"))
    _part("create", shared)
    closer = msgspec.structs.replace(shared, learner="closer", closes=True)
    follower = msgspec.structs.replace(shared, learner="follower")
    running = [_start("learn", each) for each in (closer, follower)]
    try:
        closing, following = (_ended(process) for process in running)
    finally:
        for process in running:  # one that waits for the other, which failed
            process.kill()
            process.wait()
    cpu_s = [a + b for a, b in zip(closing["cpu_s"], following["cpu_s"], strict=False)]
    return {
        "cpu_s": min(cpu_s),
        "cpu_s_by_round": cpu_s,
        "operations": [closing["operations"], following["operations"]],
        "closer_bytes": closing["memory_bytes"],
        "follower_bytes": following["memory_bytes"],
        "closed": [closing["closed"], following["closed"]],
    }


def _part(name: str, options: Options) -> dict[str, Any]:
    return _ended(_start(name, options))


def _start(name: str, options: Options) -> subprocess.Popen[bytes]:
    # One thread: what is measured is ours, not the framework's pool.
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM")}
    return subprocess.Popen(
        [sys.executable, "-m", "swarm.bench", name, msgspec.json.encode(options).decode()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | threads,
    )


def _ended(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode != 0:
        raise WorkerFailed(f"a measurement ended with exit code {process.returncode}")
    found: dict[str, Any] = msgspec.json.decode(output)
    return found
