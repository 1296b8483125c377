"""The model that is fine-tuned: MLX-LM's own loading, adapters and files, so that its tools read what comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten

from swarm.core.errors import SchemaMismatch, UsageError
from swarm.core.finetune import FineTune, lora_config
from swarm.tasks.lm.files import written

ADAPTERS = "adapters.safetensors"
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "muon": optim.Muon,
    "sgd": optim.SGD,
    "adafactor": optim.Adafactor,
}


def load_base(folder: Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a local folder. Nothing is fetched, and no code of the model's own is run. Raises UsageError."""
    from mlx_lm.utils import load_config, load_model, load_tokenizer

    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder}: no model of MLX-LM: no config.json in it")
    try:
        if "model_file" in load_config(folder):
            raise UsageError(f"{folder}: the model brings code of its own, which swarm does not run")
        model, config = load_model(folder)
        tokenizer = load_tokenizer(
            folder, {"trust_remote_code": False, "local_files_only": True}, eos_token_ids=config.get("eos_token_id")
        )
    except UsageError:
        raise
    except Exception as error:  # of a model's files, anything may be wrong
        raise UsageError(f"{folder}: not loaded: {type(error).__name__}: {' '.join(str(error).split()):.300}") from error
    return model, tokenizer


def prepare(model: Any, spec: FineTune) -> None:
    """Freeze the model but for what is fine-tuned, with adapters where they are asked for, as `mlx_lm.lora` does: the same seed
    gives the same ones. Raises UsageError."""
    from mlx_lm.tuner.trainer import grad_checkpoint
    from mlx_lm.tuner.utils import linear_to_lora_layers

    mx.random.seed(spec.seed)
    model.freeze()
    layers = model.layers
    if spec.num_layers > len(layers):
        raise UsageError(f"num_layers is {spec.num_layers}, and the model has {len(layers)} layers")
    if spec.fine_tune_type == "full":
        for layer in layers[-max(spec.num_layers, 0) :]:
            layer.unfreeze()
    else:
        try:
            linear_to_lora_layers(model, spec.num_layers, lora_config(spec), use_dora=spec.fine_tune_type == "dora")
        except (ValueError, KeyError) as error:
            raise UsageError(f"no {spec.fine_tune_type} for this model: {error}") from error
    if not trainables(model):
        raise UsageError("nothing to fine-tune: no layer has a name that lora_parameters' keys give")
    if spec.grad_checkpoint:
        grad_checkpoint(layers[0])


def make_optimizer(spec: FineTune, model: Any) -> Any:
    """With its state complete, so that a checkpoint can be taken up and a compiled step knows it."""
    from mlx_lm.tuner.utils import build_schedule

    rate: Any = spec.learning_rate
    if spec.lr_schedule is not None:
        schedule = spec.lr_schedule
        rate = build_schedule(
            {
                "name": schedule.name,
                "arguments": list(schedule.arguments),
                "warmup": schedule.warmup,
                "warmup_init": schedule.warmup_init,
            }
        )
    try:
        optimizer = OPTIMIZERS[spec.optimizer](learning_rate=rate, **spec.optimizer_arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer_config: {spec.optimizer}: {error}") from error
    optimizer.init(model.trainable_parameters())
    mx.eval(optimizer.state)
    return optimizer


def trainables(model: Any) -> dict[str, mx.array]:
    """What is fine-tuned, by name."""
    return dict(tree_flatten(model.trainable_parameters()))


def take_up(model: Any, weights: dict[str, mx.array], *, whence: str) -> None:
    """Put saved trainables in the place of the model's. Raises SchemaMismatch with those that do not fit."""
    own = trainables(model)
    wrong = {name for name in own.keys() | weights.keys() if not _alike(own.get(name), weights.get(name))}
    if wrong:
        shown = ", ".join(sorted(wrong)[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise SchemaMismatch(wrong, advice=f"{whence} is not of this model and these adapters: {shown}")
    model.load_weights(list(weights.items()), strict=False)
    mx.eval(model.trainable_parameters())


def read_adapter(path: Path) -> dict[str, mx.array]:
    """Of `resume_adapter_file`. Raises UsageError."""
    try:
        return dict(mx.load(str(path)))  # type: ignore[arg-type]
    except (RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"{path}: no adapter: {error}") from error


def save_adapter(folder: Path, model: Any, *, config: dict[str, Any], iteration: int | None = None) -> Path:
    """Write `adapters.safetensors` and `adapter_config.json`, each whole or not at all, and with `iteration` also
    `0000100_adapters.safetensors`. Returns the newest. Raises CheckpointUnsaved."""
    weights = trainables(model)
    text = json.dumps(config, indent=4, sort_keys=True).encode()
    written(folder / "adapter_config.json", lambda path: path.write_bytes(text))
    names = [ADAPTERS] if iteration is None else [f"{iteration:07d}_{ADAPTERS}", ADAPTERS]
    for name in names:
        written(folder / name, lambda path: mx.save_safetensors(str(path), weights))
    return folder / names[0]


def _alike(mine: mx.array | None, theirs: mx.array | None) -> bool:
    return mine is not None and theirs is not None and mine.shape == theirs.shape and mine.dtype == theirs.dtype
