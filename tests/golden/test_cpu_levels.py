"""Closing a round gives the same bytes on every machine: tried with the CPU's vector instructions switched off one
level at a time."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

try:
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
except ImportError:  # private to NumPy
    pytest.skip("this NumPy does not tell its CPU features", allow_module_level=True)

USED = [feature for feature in __cpu_dispatch__ if __cpu_features__.get(feature)]
"""What NumPy finds here and can leave out, lowest level first."""

VALUES = """
import numpy as np

def values(seed):
    # From integers alone: every sign and mantissa, exponents from the subnormals up to 2^40.
    n = np.arange(150_001, dtype=np.uint64)
    n = (n + np.uint64(seed)) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    n ^= n >> np.uint64(29)
    n *= np.uint64(0xBF58476D1CE4E5B9)
    bits = (n >> np.uint64(32)).astype(np.uint32)
    exponents = (bits >> 23 & 0xFF) % 168
    return (bits & 0x807FFFFF | exponents << 23).view(np.float32)
"""

PLAIN = """
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.codec import encode
from swarm.tensors.commit import OuterStep, commit
from swarm.tensors.fold import Fold
from swarm.tensors.outer import Nesterov
from swarm.tensors.precision import DTYPES

done = {}
small = [values(seed) * np.float32(2.0**-30) for seed in range(6)]  # also F16 holds them
for code in DTYPES:
    spec = TensorSpec("w", code, (150_001,))
    anchor, theta = (small[seed].astype(DTYPES[code]) for seed in (1, 2))
    for dtype in DTYPES:
        fold = Fold([spec], [10.0**9, 3.5, 77777.0], merge="mean", dtype=dtype)
        for seed in (3, 4, 5):
            delta = encode(anchor, small[seed].astype(DTYPES[code]), spec=spec, dtype=dtype)
            done[f"{code}.{dtype}.delta{seed}"] = delta["w"]
            fold.add("w", delta)
        how = OuterStep(Nesterov(0.7, 0.9), momentum_dtype=dtype, master_dtype=None if dtype == "F16" else "F32")
        outer = None
        for round in range(2):
            committed = commit(spec, how, theta=theta, outer=outer, delta=fold.result("w") if not round else small[0].copy())
            theta, outer = committed.theta, committed.outer
        done[f"{code}.{dtype}.theta"] = theta
        done |= {f"{code}.{dtype}.{name}": array for name, array in outer.items()}
"""

FOLD = """
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.codec import encode
from swarm.tensors.commit import OuterStep, commit
from swarm.tensors.fold import Fold
from swarm.tensors.outer import Nesterov

done = {}
spec = TensorSpec("w", "F32", (150_001,))
theta = values(1)
for dtype in ("BF16", "F8_E4M3", "F4"):
    deltas = []
    for seed in (3, 4, 5):
        kept = np.empty(theta.shape, np.float32)
        delta = encode(theta, values(seed), spec=spec, dtype=dtype, residual=values(6), kept=kept)
        deltas.append(delta)
        done |= {f"{dtype}.{seed}.{name}": array for name, array in delta.items()} | {f"{dtype}.{seed}.kept": kept}
    for merge in ("mean", "rda"):
        fold = Fold([spec], [10.0**9, 3.5, 77777.0], merge=merge, dtype=dtype, norms=True)
        for delta in deltas:
            fold.add("w", delta)
        done[f"{dtype}.{merge}.norms"] = np.array(fold.norms).view(np.float32)
        how = OuterStep(Nesterov(0.7, 0.9), momentum_dtype="BF16", commit_dtype=dtype)
        committed = commit(spec, how, theta=theta, outer=None, delta=fold.result("w"))
        done[f"{dtype}.{merge}.theta"] = committed.theta
        for kind, arrays in (("outer", committed.outer), ("update", committed.update)):
            done |= {f"{dtype}.{merge}.{kind}.{name}": array for name, array in arrays.items()}
"""

FEDAVG = """
from swarm.core.specs import FedAvg
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.codec import encode
from swarm.tensors.commit import OuterStep, commit
from swarm.tensors.fold import Fold
from swarm.tensors.robust import Robust

done = {}
theta = values(1)
specs = [TensorSpec("w", "F32", theta.shape), TensorSpec("v", "F32", theta.shape, buffer=True)]
n = TensorSpec("n", "I64", (1000,), buffer=True)
clients = [{"w": values(seed), "v": np.abs(values(seed + 10)), "n": values(seed)[:2000].view("<i8")} for seed in range(2, 8)]
merged = {}
for statistic in ("mean", "median", "trimmed"):
    sums = Fold([*specs, n], [10.0, 3.0, 7777.0, 0.0, 1.0, 2.0**50], merge="mean", dtype="BF16", norms=True)
    if statistic != "mean":
        sums = Robust([*specs, n], len(clients), trim=None if statistic == "median" else 0.2, dtype="BF16")
    for spec in (*specs, n):
        payloads = [encode(client[spec.name], client[spec.name], spec=spec, dtype="BF16") for client in clients]
        if not spec.buffer:
            payloads = [encode(theta, client[spec.name], spec=spec, dtype="BF16") for client in clients]
        for k, payload in enumerate(payloads):
            sums.add(spec.name, payload) if statistic == "mean" else sums.look(k, spec.name, payload)
        if statistic != "mean":
            sums.add(spec.name, payloads)
    done[f"{statistic}.norms"] = np.array(sums.norms).view(np.float32)
    merged[statistic] = {spec.name: sums.result(spec.name) for spec in (*specs, n)}
    done |= {f"{statistic}.{name}": array for name, array in merged[statistic].items()}
for outer in ("fedavg", "fedavgm", "fedadam", "fedyogi"):
    how, at, kept = OuterStep.of(FedAvg(outer=outer, outer_lr=0.7)), theta, None
    for statistic in merged:
        committed = commit(specs[0], how, theta=at, outer=kept, delta=merged[statistic]["w"].copy())
        at, kept = committed.theta, committed.outer
    done |= {f"{outer}.theta": at} | {f"{outer}.{name}": array for name, array in kept.items()}
"""

HASH = """
from numpy._core._multiarray_umath import __cpu_features__
from swarm.tensors.payload import Packed

packed = Packed(done)
for _ in packed:
    pass
print(packed.sha256, *sorted(name for name, there in __cpu_features__.items() if there))
"""


def close(program: str, without: list[str]) -> tuple[str, set[str]]:
    """The payload's hash, and the CPU features that NumPy used, with those of `without` switched off."""
    env = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(without), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", VALUES + program + HASH], env=env, capture_output=True, text=True, check=True)
    sha256, *features = done.stdout.split()
    return sha256, set(features)


@functools.cache
def plainly(program: str) -> tuple[str, set[str]]:
    return close(program, [])


@pytest.mark.process
@pytest.mark.parametrize("program", [PLAIN, FOLD, FEDAVG], ids=["plain", "quantised", "fedavg"])
@pytest.mark.parametrize("level", range(len(USED)))
def test_the_same_bytes_without_vector_instructions(level: int, program: str) -> None:
    plain, features = plainly(program)
    without = USED[level:]
    assert features >= set(without)
    reduced, left = close(program, without)
    assert not left & set(without)
    assert reduced == plain


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "sha256"),
    [
        (PLAIN, "6b72c1bad19b87d07f031c0981021960686eb9d510f9256232c3b7b0c7fd6678"),
        (FOLD, "f01858e3bb07c71cb363f2a7d002c779d05763f19a4cfb04baece22df0dd6853"),
        (FEDAVG, "aa7be30e2c2dc4b6bcf61b66c0ef92671723ee4377cdc7e1d742e1d44d6d070a"),
    ],
    ids=["plain", "quantised", "fedavg"],
)
def test_the_bytes_are_those_of_every_machine(program: str, sha256: str) -> None:
    assert plainly(program)[0] == sha256
