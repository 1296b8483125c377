"""What hundreds of rounds of FedAvg do to a machine: the memory of a worker, the disk of the mailbox, the time of a round.

Run by hand:

    python -m tests.bench.fedavg [ROUNDS, 200] [FRAMEWORKS, mlx torch]

`swarm start fedavg` trains an MLP of 4,810 parameters on the shipped digits in a folder of temporary files: 10 clients, 3 a
round. After each round the worker's memory (RSS) is looked at, and the bytes in the mailbox by their kind: payloads, of which
those of old rounds are deleted, and records, which are the run's history and stay. Slopes are those of the lines that fit all
but the first quarter of the rounds (least squares). The last line is the same as JSON.

Measured on two cores that were shared by others, bytes a round: of 200 rounds the memory grew by 5,700 in MLX and 6,700 in
PyTorch (caches that are bounded, and fill: of 500 rounds in MLX by 2,400), payloads by 27 at most, never more than 0.25 MB of
them, and records by 2,000; 0.3 s and 0.7 s a round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import psutil

from swarm import launcher

RSS_BOUND, PAYLOADS_BOUND = 10_000, 20 * 4_810 * 4  # bytes a round; bytes at any time, as a multiple of the model's
ARGV = "--task lenet5 -o model=mlp --clients 10 --per-round 3 --batch-size 32 --lr 0.1 --device cpu --learner-id a --name long"


def disk(mailbox: Path) -> tuple[int, int]:
    """(bytes of payloads, bytes of records)."""
    payloads = records = 0
    for folder, _, names in os.walk(mailbox):
        for name in names:
            try:
                size = os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # deleted meanwhile
                continue
            if name.endswith(".json"):
                records += size
            else:
                payloads += size
    return payloads, records


def measure(rounds: int, framework: str, folder: Path) -> dict[str, Any]:
    mailbox = folder / "mailbox"
    os.environ.update({"SWARM_STATE_DIR": str(folder / "state"), "SWARM_CONFIG": str(folder / "settings.toml")})
    os.environ.update({"SWARM_CACHE_DIR": str(folder / "cache"), "SWARM_MAILBOX": str(mailbox)})
    swarm = [sys.executable, "-m", "swarm"]
    subprocess.run([*swarm, "init", str(mailbox)], check=True, stderr=subprocess.DEVNULL)
    argv = ["start", "fedavg", *ARGV.split(), "--framework", framework, "--rounds", str(rounds), "--json"]
    seen: list[tuple[float, int, int, int]] = []  # after each round: when, RSS, payloads, records
    worker: psutil.Process | None = None
    with subprocess.Popen([*swarm, *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as command:
        assert command.stdout is not None
        for line in command.stdout:
            if json.loads(line)["event"] != "RoundClosed":
                continue
            if worker is None:
                worker = psutil.Process(next(job.pid for job in launcher.jobs() if job.pid))
            try:
                seen.append((time.monotonic(), worker.memory_info().rss, *disk(mailbox)))
            except psutil.NoSuchProcess:  # it was the last round
                break
    if command.returncode:
        raise SystemExit(f"swarm start ended with {command.returncode}")
    steady = seen[len(seen) // 4 :]
    at = [float(n) for n in range(len(steady))]
    times, rss, payloads, records = zip(*steady, strict=True)
    return {
        "framework": framework,
        "rounds": rounds,
        "round_s": round(median(b - a for a, b in pairwise(times)), 3),
        "rss_bytes": rss[-1],
        "rss_bytes_a_round": round(linear_regression(at, rss).slope),
        "payload_bytes": max(payloads),
        "payload_bytes_a_round": round(linear_regression(at, payloads).slope),
        "record_bytes_a_round": round(linear_regression(at, records).slope),
    }


def main(argv: list[str]) -> None:
    rounds = int(argv[0]) if argv else 200
    every = []
    for framework in argv[1:] or ["mlx", "torch"]:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(rounds, framework, Path(folder))
        every.append(found)
        print(
            f"{framework:6}{rounds} rounds of {found['round_s']} s: RSS {found['rss_bytes'] / 1e6:.0f} MB, "
            f"{found['rss_bytes_a_round']:+,} bytes a round; payloads at most {found['payload_bytes'] / 1e6:.2f} MB, "
            f"{found['payload_bytes_a_round']:+,} bytes a round; records {found['record_bytes_a_round']:+,} bytes a round"
        )
    print(json.dumps(every))
    if any(found["rss_bytes_a_round"] > RSS_BOUND or found["payload_bytes"] > PAYLOADS_BOUND for found in every):
        sys.exit(f"above the bounds: {RSS_BOUND:,} bytes of memory a round, {PAYLOADS_BOUND / 1e6:.2f} MB of payloads")


if __name__ == "__main__":
    main(sys.argv[1:])
