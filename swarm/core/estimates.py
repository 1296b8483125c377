"""What a run would move and hold, before it is made: sizes from the parameters' shapes, times from measured speeds. All of it
is estimated: what compresses, caches or computes meanwhile is not known. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec

from swarm.core.fragments import fitted, plan
from swarm.core.specs import Algorithm, ByRounds, DiLoCo, FedAvg
from swarm.core.tensorspec import TensorSpec

HEAD_BYTES = 8  # of a payload
ENTRY_BYTES = 90  # of a tensor in a payload's header, beside its name
_BITS = {"F32": 32.0, "F16": 16.0, "BF16": 16.0, "F8_E4M3": 8.0, "F4": 4.0 + 8 / 32}
"""Of one number, block scales included."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a task trains, as far as its size goes."""

    tensors: tuple[TensorSpec, ...]
    model_bytes: int = 0  # of a base model that stays as it is


class Sized(msgspec.Struct, frozen=True, kw_only=True):
    """What came of asking for a shape."""

    shape: Shape | None = None
    problem: str = ""  # why the run cannot be made as it is asked for
    unknown: str = ""  # why nothing can be said before it is made


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a mailbox takes and gives, measured here."""

    write_bytes_per_s: float
    read_bytes_per_s: float


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast this machine trained the same before."""

    run: str  # name of the run
    unit_s: float  # seconds of one inner step of DiLoCo, of one client of FedAvg


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Of one round, as a rule of the largest fragment; sizes in bytes."""

    parameters: int
    fragments: int
    up_bytes: int  # what a learner publishes (of FedAvg: for one client)
    down_bytes: int  # what a learner fetches
    close_bytes: int  # what whoever closes the round reads and writes besides
    disk_bytes: int  # in the mailbox at the most, but for attached files
    up_s: float | None = None  # None: the mailbox's speed is not known
    down_s: float | None = None
    train_s: float | None = None  # None: this machine's speed is not known
    close_s: float | None = None

    @property
    def round_s(self) -> float | None:
        """From one round to the next, where nobody waits for another machine; None where a part is not known."""
        parts = (self.train_s, self.up_s, self.close_s, self.down_s)
        return None if any(part is None for part in parts) else sum(part for part in parts if part is not None)


def estimate(
    algorithm: ByRounds,
    shape: Shape,
    *,
    learners: int = 1,
    checkpoints_kept: int = 0,
    link: Link | None = None,
    pace: Pace | None = None,
) -> Estimate:
    """`learners`: that take part; `checkpoints_kept`: 0: none is."""
    algorithm = fitted(algorithm, shape.tensors)
    by_name = {tensor.name: tensor for tensor in shape.tensors}
    parts = [[by_name[name] for name in names] for names in _plan(algorithm, shape.tensors)]
    largest = max(parts, key=lambda part: sum(tensor.size_bytes for tensor in part))
    sent, theta, update, outer = (_payload(algorithm, largest, what) for what in ("delta", "theta", "update", "outer"))
    whole = sum(_payload(algorithm, part, "theta") for part in parts)
    held = sum(_payload(algorithm, part, what) for part in parts for what in ("theta", "update", "outer"))
    match algorithm:
        case DiLoCo():
            units, in_flight = learners, algorithm.in_flight
            steps = algorithm.sync_every / algorithm.fragments
            train_s = None if pace is None else steps * pace.unit_s
        case FedAvg():
            units, in_flight = (learners if algorithm.private else algorithm.per_round), 1
            train_s = None if pace is None else math.ceil(units / max(1, learners)) * pace.unit_s
        case _:
            assert_never(algorithm)
    down = update or theta
    read, written = units * sent, theta + outer + update
    up_s = down_s = close_s = None
    if link is not None:
        turns = math.ceil(units / max(1, learners)) if isinstance(algorithm, FedAvg) else 1
        up_s, down_s = turns * sent / link.write_bytes_per_s, down / link.read_bytes_per_s
        close_s = read / link.read_bytes_per_s + written / link.write_bytes_per_s
    # A sweep once a cycle leaves two cycles of rounds: before the next one there are three, and the round under way. A
    # checkpoint is kept before an older one goes.
    whole_sent = sum(_payload(algorithm, part, "delta") for part in parts)
    disk = 3 * (held + units * whole_sent) + written + in_flight * units * sent
    disk += (checkpoints_kept + 1) * whole if checkpoints_kept else 0
    return Estimate(
        parameters=sum(tensor.size for tensor in shape.tensors if not tensor.buffer),
        fragments=len(parts),
        up_bytes=sent,
        down_bytes=down,
        close_bytes=read + written,
        disk_bytes=disk,
        up_s=up_s,
        down_s=down_s,
        train_s=train_s,
        close_s=close_s,
    )


def gradient_bytes(shape: Shape) -> int:
    """What each machine of a data-parallel job exchanges in a step: gradients in F32."""
    return sum(4 * tensor.size for tensor in shape.tensors)


def _plan(algorithm: ByRounds, tensors: Sequence[TensorSpec]) -> tuple[tuple[str, ...], ...]:
    match algorithm:
        case DiLoCo(fragments=fragments, partition=partition):
            return plan(tensors, fragments, partition)
        case FedAvg():
            return plan(tensors, 1, "bytes")
        case _:
            assert_never(algorithm)


def _payload(algorithm: ByRounds, part: Sequence[TensorSpec], what: str) -> int:
    """Bytes of a payload of these tensors; 0 if there is none."""
    match what:
        case "delta":
            return _packed(part, algorithm.delta_dtype)
        case "theta":
            return _packed(part, None)
        case "update":
            return 0 if algorithm.commit_dtype is None else _packed(part, algorithm.commit_dtype)
        case _:
            return _outer(algorithm, part)


def _outer(algorithm: ByRounds, part: Sequence[TensorSpec]) -> int:
    trained = [tensor for tensor in part if not tensor.buffer]
    match algorithm:
        case DiLoCo():
            momentum = _packed(trained, algorithm.momentum_dtype) if algorithm.outer_momentum else 0
            narrow = any(tensor.dtype != "F32" for tensor in trained)
            master = _packed(trained, algorithm.master_dtype) if narrow or algorithm.commit_dtype is not None else 0
            return momentum + master
        case FedAvg():
            moments = {"fedavg": 0, "fedavgm": 1, "fedadam": 2, "fedyogi": 2}[algorithm.outer]
            return moments * _packed(trained, "F32")
        case _:
            assert_never(algorithm)


def _packed(part: Sequence[TensorSpec], dtype: str | None) -> int:
    """Bytes of a payload. `dtype`: of its parameters; None: their own. Buffers always have their own."""
    size = 0.0
    for tensor in part:
        entries = 1
        if dtype is None or tensor.buffer:
            size += tensor.size_bytes
        else:
            size += tensor.size * _BITS[dtype] / 8
            entries += dtype in ("F8_E4M3", "F4")  # its scales
        size += entries * (ENTRY_BYTES + len(tensor.name))
    return HEAD_BYTES + math.ceil(size)


def pace_of(
    algorithm: Algorithm, task: str, options: Mapping[str, object], told: Sequence[tuple[str, object, float]]
) -> Pace | None:
    """Of (name of a run, (algorithm, task, options) as `alike` has them, seconds) the first that trained the same."""
    wanted = alike(algorithm, task, options)
    return next((Pace(run=run, unit_s=unit_s) for run, like, unit_s in told if like == wanted and unit_s > 0), None)


def alike(algorithm: Algorithm, task: str, options: Mapping[str, object]) -> object:
    """Equal for runs in which a step, or a client, takes the same work."""
    match algorithm:
        case DiLoCo():
            return "diloco", task, dict(options), algorithm.batch_size
        case FedAvg():
            local = (algorithm.local_epochs, algorithm.batch_size, algorithm.optimizer, algorithm.local_dtype)
            return "fedavg", task, dict(options), algorithm.private or algorithm.clients, algorithm.partition, local
        case _:
            return "mlx-lm", task, dict(options)
