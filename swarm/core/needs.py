"""How much memory a learner of a run needs, about: from what stands in the manifest, before anything is loaded. Pure."""

from __future__ import annotations

from typing import assert_never

from swarm.core.finetune import FineTune
from swarm.core.manifest import Manifest
from swarm.core.records import Role
from swarm.core.specs import DiLoCo, FedAvg

FRAMEWORK_BYTES = 400 << 20  # a process with PyTorch or MLX, before it has a model
BARE_BYTES = 120 << 20  # one that only closes rounds
_MOMENTS = 8  # of Adam, in F32, per parameter
_WIDE = 4  # bytes of an F32
_NARROW = ("F8_E4M3", "F4")


def memory_needed(manifest: Manifest, role: Role = "both") -> int:
    """Bytes: the model, its gradients and Adam's moments, what a round keeps beside them, and the framework. What a batch takes
    is not known here and comes on top."""
    algorithm = manifest.algorithm
    held = sum(ref.size_bytes for ref in manifest.model.files) if manifest.model is not None else 0
    size = sum(tensor.size for tensor in manifest.tensors)
    own = sum(tensor.size_bytes for tensor in manifest.tensors)
    match algorithm:
        case FineTune():
            trained = 3 if algorithm.fine_tune_type == "full" else 0  # gradients and two moments, as wide as the model
            return FRAMEWORK_BYTES + held * (1 + trained) + held // 5
        case DiLoCo():
            fragments, narrow = algorithm.fragments, algorithm.delta_dtype in _NARROW
            masters = algorithm.commit_dtype is not None or own < _WIDE * size
            kept = 1 + (algorithm.error_feedback and narrow) + masters  # anchor, residual, master copy
            closing = 3 * _WIDE * size // fragments  # Θ, its momentum and the sum, of the fragment that is closed
            reported = algorithm.in_flight * _WIDE * size // fragments
        case FedAvg():
            kept, closing, reported = 1, 3 * _WIDE * size, _WIDE * size
        case _:
            assert_never(algorithm)
    if role == "syncer":
        return BARE_BYTES + closing
    if role == "learner":
        closing = 0
    return FRAMEWORK_BYTES + held + 2 * own + _MOMENTS * size + kept * _WIDE * size + reported + closing
