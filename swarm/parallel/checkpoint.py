"""All that a job goes on from: trainables, optimizer state and step. Data position, schedule and dropout follow from the step.

`<folder>/<generation:06d>/<step:010d>.safetensors` (files.py), one file that appears whole or not at all. Rank 0 writes; all
ranks hold the same.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import msgspec
from mlx.utils import tree_flatten, tree_map_with_path

from swarm.core.errors import SchemaMismatch, StateMismatch
from swarm.core.finetune import FineTune
from swarm.core.lines import UNREADABLE
from swarm.parallel.group import schema
from swarm.tasks.lm.files import checkpoint_path, checkpoints, written
from swarm.tasks.lm.model import take_up, trainables

FORMAT = 1
KEPT = 2
WEIGHTS, STATE = "trainable.", "optimizer."
FREE = (
    "iters",
    "val_batches",
    "steps_per_report",
    "steps_per_eval",
    "save_every",
    "test",
    "test_batches",
    "grad_checkpoint",
    "clear_cache_threshold",
    "world_size_min",
    "world_size_max",
    "gradient_buckets",
    "attach_model",
    "beat_s",
    "lease_s",
)
"""Options that may differ from those a checkpoint was made with: they change no step that it holds."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job stands."""

    format: int = FORMAT
    step: int = 0  # optimizer steps done
    trained_tokens: int = 0
    job: str = ""  # of which options, see `fingerprint`
    data: str = ""  # SHA-256 of the training rows
    base: str = ""  # SHA-256 of the base model, as the plan says
    generation: int = 0
    size: int = 1


class Checkpoint(NamedTuple):
    path: Path
    position: Position
    weights: dict[str, mx.array]
    state: dict[str, mx.array]


def fingerprint(spec: FineTune) -> str:
    """SHA-256 over the options that decide what a step does."""
    # The last of several iterations may stand alone in a step: a job that is made longer would have other steps.
    free = FREE if spec.grad_accumulation_steps == 1 else FREE[1:]
    kept = {name: value for name, value in msgspec.to_builtins(spec).items() if name not in free}
    return hashlib.sha256(msgspec.json.encode(kept, order="sorted")).hexdigest()


def save(folder: Path, model: Any, optimizer: Any, position: Position) -> Path:
    """Write a checkpoint, and remove all but the newest two of this generation: what other generations wrote is what this one,
    or a later one, began with. Raises CheckpointUnsaved; those that were there are kept."""
    path = checkpoint_path(folder, generation=position.generation, step=position.step)
    arrays = {WEIGHTS + name: value for name, value in trainables(model).items()}
    arrays |= {STATE + name: value for name, value in tree_flatten(optimizer.state)}
    text = msgspec.json.encode(position).decode()
    written(path, lambda staged: mx.save_safetensors(str(staged), arrays, metadata={"swarm": text}))
    own = [each for each in checkpoints(folder) if each.parent == path.parent]
    for each in own[:-KEPT]:
        with contextlib.suppress(OSError):
            each.unlink()
    return path


def load(path: Path) -> Checkpoint:
    """Raises StateMismatch."""
    try:
        found: Any = mx.load(str(path), return_metadata=True)
        arrays, metadata = found
        mx.eval(arrays)
        position = msgspec.json.decode(metadata["swarm"], type=Position)
    except (RuntimeError, KeyError, OSError, *UNREADABLE) as error:
        raise StateMismatch(f"{path}: no checkpoint: {' '.join(str(error).split()):.200}") from error
    if position.format != FORMAT:
        raise StateMismatch(f"{path} has format {position.format}, this swarm reads format {FORMAT}")
    parts: tuple[dict[str, mx.array], dict[str, mx.array]] = ({}, {})
    for name, value in arrays.items():
        if name.startswith(WEIGHTS):
            parts[0][name.removeprefix(WEIGHTS)] = value
        elif name.startswith(STATE):
            parts[1][name.removeprefix(STATE)] = value
    return Checkpoint(path, position, *parts)


def restore(checkpoint: Checkpoint, model: Any, optimizer: Any, position: Position) -> None:
    """Go on from a checkpoint. `position`: where a fresh job stands here. Raises StateMismatch if it is of another job."""
    then = checkpoint.position
    for differs, words in (
        (then.job != position.job, "with other options than these"),
        (then.data != position.data, "from other training rows than these, or with another tokenizer"),
        (then.base != position.base, "from another base model than this"),
    ):
        if differs:
            raise StateMismatch(f"{checkpoint.path} was made {words}")
    state = dict(tree_flatten(optimizer.state))
    if schema(state.items()) != schema(checkpoint.state.items()):
        raise StateMismatch(f"{checkpoint.path} holds the state of another optimizer or of other layers")
    try:
        take_up(model, checkpoint.weights, whence=str(checkpoint.path))
    except SchemaMismatch as error:
        raise StateMismatch(str(error)) from error
    put_state(optimizer, model, checkpoint.state)


def put_state(optimizer: Any, model: Any, state: dict[str, mx.array]) -> None:
    """Replace values of an optimizer's state, which is complete, by those of the same names."""
    # Not tree_unflatten: layers without trainables would be missing at the end of its lists.
    optimizer.state = tree_map_with_path(lambda name, value: state.get(name, value), optimizer.state)
    optimizer.init(model.trainable_parameters())  # finds nothing missing, and says so to the optimizer
    mx.eval(optimizer.state)
