"""What reading a long run takes: 10,000 rounds of 300 participants in a folder, as the screen reads it.

    python -m tests.bench.longrun [ROUNDS, 10000] [PARTICIPANTS, 300] [FOLDER]

Started by tests/bench/screen.py; the last line is JSON. Times are CPU seconds of this process, and as ratios to the plainest
program that reads the same files: open, read, hash, decode.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from swarm.core.keys import RunKeys
from swarm.core.lines import body_sha256, encode
from swarm.core.manifest import Manifest
from swarm.core.records import RoundRecord
from swarm.core.specs import DiLoCo
from swarm.watch import RunWatch
from tests.bench.replayed import beat, learner, learner_record, round_record
from tests.integration.handmade import make_mailbox, make_run
from tui.feed import ROUNDS_KEPT

RUN = "abcd1234"
IDLE_POLLS, BEATING_POLLS = 20, 10
READING_RATIO = 4.0  # to the plainest program
IDLE_S = 0.10  # CPU of a poll of 300 learners that finds nothing new


def write(location: str, manifest: Manifest, rounds: int, participants: int) -> None:
    """Straight into the folder: a mailbox would make each record durable."""
    keys, parent = RunKeys(manifest.run), None
    record = round_record(0, participants)
    for n in range(rounds):
        body = msgspec.structs.replace(record, round=n, version=n, parent=parent, theta=manifest.init[0])
        data = encode(body, nonce=f"{n:032x}")
        parent = body_sha256(data)
        path = Path(location, keys.round(n))
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    for n in range(participants):
        path = Path(location, keys.learner(learner(n), 1))
        path.parent.mkdir(parents=True)
        path.write_bytes(encode(learner_record(n), nonce="0" * 32))


def write_beats(location: str, tick: int, participants: int, *, round: int) -> None:
    keys = RunKeys(RUN)
    for n in range(participants):
        path = Path(location, keys.beat(learner(n), 1, tick))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(beat(tick, n, round=round), nonce="0" * 32))
        if tick >= 3:
            Path(location, keys.beat(learner(n), 1, tick - 3)).unlink()


def plainest_s(location: str, rounds: int) -> float:
    """CPU seconds that no program can do without; of every tenth file, times ten."""
    keys, began_s = RunKeys(RUN), time.process_time()
    for n in range(0, rounds, 10):
        data = Path(location, keys.round(n)).read_bytes()
        line, _, _ = data.partition(b"\n")
        hashlib.sha256(line).hexdigest()
        msgspec.json.decode(line, type=RoundRecord)
    return 10 * (time.process_time() - began_s)


def rss_bytes() -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return 1024 * int(line.split()[1])


async def follow(location: str, rounds: int, participants: int) -> dict[str, Any]:
    watch, before_bytes = RunWatch(location, RUN, keep=ROUNDS_KEPT), rss_bytes()
    cpu_s, wall_s, polls, longest_s = time.process_time(), time.perf_counter(), 0, 0.0
    while not polls or watch.behind:
        began_s = time.perf_counter()
        await watch.poll()
        polls, longest_s = polls + 1, max(longest_s, time.perf_counter() - began_s)
    found: dict[str, Any] = {
        "cpu_s": time.process_time() - cpu_s,
        "wall_s": time.perf_counter() - wall_s,
        "polls": polls,
        "longest_poll_s": longest_s,
        "held_bytes": rss_bytes() - before_bytes,
    }
    assert watch.state.open_round == rounds
    cpu_s = time.process_time()
    for _ in range(IDLE_POLLS):
        await watch.poll()
    found["idle_s"] = (time.process_time() - cpu_s) / IDLE_POLLS
    spent_s = 0.0
    for tick in range(3, 3 + BEATING_POLLS):
        write_beats(location, tick, participants, round=rounds)
        cpu_s = time.process_time()
        await watch.poll()
        spent_s += time.process_time() - cpu_s
    found["beating_s"] = spent_s / BEATING_POLLS
    assert len(watch.state.live) == participants
    return found


def main() -> None:
    rounds, participants, folder = (*sys.argv[1:], *["10000", "300", tempfile.gettempdir()][len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory(dir=folder) as state:
        os.environ |= {"SWARM_STATE_DIR": f"{state}/state", "SWARM_CONFIG": f"{state}/settings.toml"}
        location = make_mailbox(Path(state) / "mailbox")
        manifest = make_run(location, "replayed", RUN, algorithm=DiLoCo(beat_s=5.0, lease_s=300.0))
        write(location, manifest, int(rounds), int(participants))
        for tick in range(3):
            write_beats(location, tick, int(participants), round=int(rounds))
        found = asyncio.run(follow(location, int(rounds), int(participants)))
        plain_s = plainest_s(location, int(rounds))
    found |= {"plainest_s": plain_s, "ratio": found["cpu_s"] / plain_s}
    found["holds"] = found["ratio"] <= READING_RATIO and found["idle_s"] <= IDLE_S
    cpu_s, each_s = found["cpu_s"], found["cpu_s"] / int(rounds)
    print(f"a history of {rounds} rounds of {participants} participants: {1e3 * each_s:.2f} ms of CPU for each record")
    print(f"  CPU {cpu_s:.1f} s, {found['ratio']:.1f} x the plainest program's {plain_s:.1f} s, at most {READING_RATIO:g} x")
    print(f"  wall {found['wall_s']:.1f} s in {found['polls']} polls, the longest {found['longest_poll_s']:.2f} s", end="")
    print(f"; held {found['held_bytes'] / 2**20:.0f} MiB")
    print(f"a poll that finds nothing new   {1e3 * found['idle_s']:.1f} ms of CPU, at most {1e3 * IDLE_S:.0f} ms")
    print(f"a poll that finds all beats new {1e3 * found['beating_s']:.1f} ms of CPU")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
