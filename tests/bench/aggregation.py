"""What merging a round of FedAvg costs: its peak memory as a ratio to the parameters, and its CPU time as a ratio to what no
program can do without, which is to read the contributions, to hash them, and to multiply and add each number once.

Run by hand, on Linux, with 2.1 GB of room in the folder of temporary files:

    python -m tests.bench.aggregation [CLIENTS of the mean, 100] [CLIENTS of the others, 16] [folder]

Every client's payload is a file with other numbers than every other's: 20 tensors, 5 M parameters in fp32, 20 MB. A folder is
the mailbox, and all of the closer's part is measured: opening the run, fetching Θ, merging, the outer step, writing the new Θ.
Memory is what the process takes at its peak above what it took after its imports, Θ included. The last line is the same as
JSON. A ratio is good to a tenth or so where other programs compete for the cores.

Measured on two cores that were shared by others:

              clients        memory      CPU  at least  ratio
    mean          100  2.51 x 20 MB   2.88 s    2.90 s   0.99
    fedadam        16  2.69 x 20 MB   0.75 s    0.54 s   1.40
    median         16  3.02 x 20 MB   1.31 s    0.56 s   2.33
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from swarm.core.manifest import Manifest, PayloadRef, TaskRef
from swarm.core.records import Snapshot
from swarm.core.specs import FedAvg
from swarm.core.tensorspec import TensorSpec
from swarm.exchange import Exchange, create_run
from swarm.mailbox.contract import PART_BYTES
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.threads import DaemonThreads
from swarm.manifests import read_manifest
from swarm.runtime.merging import Merger
from swarm.tensors.blocks import BLOCK, spans
from swarm.tensors.payload import CHUNK_BYTES
from swarm.tensors.schema import Schema

RUN = "aggregat"
TENSORS, PARAMETERS = 20, 5_000_000
SPECS = [TensorSpec(f"layer{k:02}.weight", "F32", (500, PARAMETERS // TENSORS // 500)) for k in range(TENSORS)]
PARAMETERS_BYTES = 4 * PARAMETERS
MEMORY_BOUND, CPU_BOUND = 4.0, 1.5  # of the mean


async def write(folder: str, spec: FedAvg, clients: int) -> None:
    """A run, and the snapshots of its first round."""
    await FolderMailbox.init(folder)
    mailbox = FolderMailbox(folder)
    await mailbox.open()
    schema = Schema(SPECS)
    draft = Manifest(
        run=RUN,
        name=RUN,
        algorithm=spec,
        task=TaskRef(name="none"),
        tensors=tuple(schema),
        schema_sha256=schema.digest,
        init=(),
    )
    random = np.random.default_rng(0)
    theta = {s.name: random.standard_normal(s.shape, dtype=np.float32) for s in SPECS}
    manifest, _ = await create_run(mailbox, draft, [theta])
    exchange = Exchange(mailbox, manifest)
    for k in range(clients):
        for name in theta:
            theta[name] *= np.float32(1 + 2.0**-10)  # other numbers than the last one's
        snapshot = Snapshot(
            round=0,
            fragment=0,
            learner="learner",
            incarnation=1,
            unit=f"c{k:05}",
            base_sha256=manifest.init[0].sha256,
            schema_sha256=schema.digest,
            dtype=None,
            payload=PayloadRef(round=0, sha256="0" * 64, size_bytes=0),
            tokens=10 + k,
            steps=1,
            train_loss=None,
            seconds_s=0.0,
        )
        await exchange.publish(snapshot, theta)


async def merge(folder: str) -> dict[str, float]:
    """CPU seconds and bytes of the closer's part."""
    before_bytes = memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
    started_s, wall_s = time.process_time(), time.perf_counter()
    mailbox = FolderMailbox(folder)
    await mailbox.open()
    exchange = Exchange(mailbox, await read_manifest(mailbox, RUN), offload=DaemonThreads(1).run)
    snapshots = await exchange.snapshots(0, {})
    theta = await exchange.fetch(0, exchange.theta_ref(0, None))
    merger = Merger(exchange, round=0, theta=theta, before=None)
    merged = await merger.merge(sorted((s for s in snapshots.values() if s is not None), key=lambda s: s.unit))
    assert merged is not None
    assert len(merged.counted) == len(snapshots)
    return {
        "clients": len(snapshots),
        "cpu_s": time.process_time() - started_s,
        "wall_s": time.perf_counter() - wall_s,
        "peak_bytes": memory_bytes("VmHWM") - before_bytes,
    }


def least_s(folder: str) -> float:
    """CPU seconds for reading every delta, hashing it, and adding it up with a weight: by parts, in place, in cache."""
    paths = sorted(Path(folder).glob(f"runs/{RUN}/blobs/snapshots/**/*.safetensors"))
    buffer = np.empty(PART_BYTES, np.uint8)
    total, term, weight = np.zeros(PARAMETERS + BLOCK, np.float32), np.empty(BLOCK, np.float32), np.float32(1 / len(paths))
    started_s = time.process_time()
    for path in paths:
        sha, at = hashlib.sha256(), 0
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer.data):
                for chunk in range(0, size, CHUNK_BYTES):
                    sha.update(buffer.data[chunk : min(chunk + CHUNK_BYTES, size)])
                numbers = buffer[: size // 4 * 4].view(np.float32)
                for span in spans(numbers.size):
                    x = numbers[span]
                    found, product = total[at : at + x.size], term[: x.size]
                    with np.errstate(all="ignore"):  # the header is no numbers
                        np.multiply(x, weight, out=product)
                        np.add(found, product, out=found)
                    at += x.size
        sha.hexdigest()
    return time.process_time() - started_s


def memory_bytes(field: str) -> int:
    """Of this process: VmRSS, what it takes; VmHWM, the most that it took."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def measured(folder: str, spec: FedAvg, clients: int) -> dict[str, float]:
    """In processes of their own: what one leaves in memory is not the next one's."""
    asyncio.run(write(folder, spec, clients))
    found: dict[str, float] = {}
    for what in ("least", "merge"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.aggregation", what, folder], stdout=subprocess.PIPE, text=True, check=True
        )
        found |= json.loads(done.stdout)
    found["memory_ratio"] = found["peak_bytes"] / PARAMETERS_BYTES
    found["cpu_ratio"] = found["cpu_s"] / found["least_s"]
    return found


def table(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield f"{'':10}{'clients':>8}{'memory':>14}{'CPU':>9}{'at least':>10}{'ratio':>7}{'wall':>8}"
    for name, row in found.items():
        memory = f"{row['memory_ratio']:.2f} x {PARAMETERS_BYTES / 1e6:.0f} MB"
        times = f"{row['cpu_s']:7.2f} s{row['least_s']:8.2f} s{row['cpu_ratio']:7.2f}{row['wall_s']:6.1f} s"
        yield f"{name:10}{row['clients']:8}{memory:>14}{times}"


def main() -> None:
    match sys.argv[1:]:
        case ["merge", folder]:
            print(json.dumps(asyncio.run(merge(folder))))
            return
        case ["least", folder]:
            print(json.dumps({"least_s": least_s(folder)}))
            return
    arguments = sys.argv[1:] + ["100", "16", tempfile.gettempdir()][len(sys.argv) - 1 :]
    found = {}
    many, few = int(arguments[0]), int(arguments[1])
    rows: dict[str, tuple[int, dict[str, Any]]] = {
        "mean": (many, {}),
        "fedadam": (few, {"outer": "fedadam"}),
        "median": (few, {"merge": "median"}),
    }
    for name, (clients, how) in rows.items():
        spec = FedAvg(clients=clients, per_round=clients, **how)
        with tempfile.TemporaryDirectory(dir=arguments[2]) as folder:
            found[name] = measured(f"{folder}/mailbox", spec, clients)
    print("\n".join(table(found)))
    print(json.dumps(found))
    mean = found["mean"]
    if mean["memory_ratio"] > MEMORY_BOUND or mean["cpu_ratio"] > CPU_BOUND:
        sys.exit(f"above the bounds of the mean: {MEMORY_BOUND:g} x the parameters, {CPU_BOUND:g} x the CPU")


if __name__ == "__main__":
    main()
