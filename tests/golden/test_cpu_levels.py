"""Closing a round gives the same bytes on every machine: tried with the CPU's vector instructions switched off one
level at a time."""

from __future__ import annotations

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

CLOSE = """
from swarm.tensors.delta import delta
from swarm.tensors.merge import all_finite, weighted_mean
from swarm.tensors.outer import merge_and_step, nesterov
from swarm.tensors.precision import DTYPES, from_f32

done = {}
for code, dtype in DTYPES.items():
    anchor, theta = values(1), from_f32(values(2), code)
    deltas = []
    for seed in (3, 4, 5):
        deltas.append(np.empty(anchor.shape, dtype))
        delta(anchor, values(seed), deltas[-1])
        done[f"{code}.delta{seed}"] = deltas[-1]
    kept = [d for d in deltas if all_finite(d)] or [values(6)]
    momentum = values(7)
    merge_and_step(theta, momentum, kept, [10.0**9, 3.5, 77777.0][: len(kept)], lr=0.7, beta=0.9)
    done |= {f"{code}.theta": theta, f"{code}.momentum": momentum}
"""

FOLD = """
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.codec import encode
from swarm.tensors.commit import OuterStep, commit
from swarm.tensors.fold import Fold

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
        how = OuterStep(lr=0.7, beta=0.9, momentum_dtype="BF16", commit_dtype=dtype)
        committed = commit(spec, how, theta=theta, outer=None, delta=fold.result("w"))
        done[f"{dtype}.{merge}.theta"] = committed.theta
        for kind, arrays in (("outer", committed.outer), ("update", committed.update)):
            done |= {f"{dtype}.{merge}.{kind}.{name}": array for name, array in arrays.items()}
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


@pytest.mark.process
@pytest.mark.parametrize("program", [CLOSE, FOLD], ids=["plain", "quantised"])
@pytest.mark.parametrize("level", range(len(USED)))
def test_the_same_bytes_without_vector_instructions(level: int, program: str) -> None:
    plain, features = close(program, [])
    without = USED[level:]
    assert features >= set(without)
    reduced, left = close(program, without)
    assert not left & set(without)
    assert reduced == plain


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "sha256"),
    [
        (CLOSE, "78c4aae812b2d782f6d716c227c47464aece29781f9d9e0ece6371eaa73a78b5"),
        (FOLD, "f01858e3bb07c71cb363f2a7d002c779d05763f19a4cfb04baece22df0dd6853"),
    ],
    ids=["plain", "quantised"],
)
def test_the_bytes_are_those_of_every_machine(program: str, sha256: str) -> None:
    assert close(program, [])[0] == sha256
