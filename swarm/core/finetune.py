"""What an MLX-LM fine-tuning is configured with: the options of `mlx_lm.lora`, under its names and with its defaults, and a few
of ours. A test compares them with the installed MLX-LM."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from swarm.core.errors import UsageError
from swarm.core.options import MAX_REAL, check_ranges
from swarm.core.plaintext import shown

FineTuneType: TypeAlias = Literal["lora", "dora", "full"]
FineTuneOptimizer: TypeAlias = Literal["adam", "adamw", "muon", "sgd", "adafactor"]
Setting: TypeAlias = int | float | bool | list[float] | None

OPTIMIZER_ARGUMENTS: dict[FineTuneOptimizer, tuple[str, ...]] = {
    "adam": ("betas", "eps", "bias_correction"),
    "adamw": ("betas", "eps", "weight_decay", "bias_correction"),
    "muon": ("momentum", "weight_decay", "nesterov", "ns_steps"),
    "sgd": ("momentum", "weight_decay", "dampening", "nesterov"),
    "adafactor": (
        "eps",
        "clip_threshold",
        "decay_rate",
        "beta_1",
        "weight_decay",
        "scale_parameter",
        "relative_step",
        "warmup_init",
    ),
}
"""What `optimizer_config` may hold for each optimizer: the arguments of the class in mlx.optimizers, but its learning rate."""

SCHEDULE_ARGUMENTS: dict[str, tuple[int, int]] = {
    "exponential_decay": (2, 2),
    "step_decay": (3, 3),
    "cosine_decay": (2, 3),
    "linear_schedule": (3, 3),
}
"""Fewest and most arguments of each schedule in mlx.optimizers; the first is the rate that it begins with."""

MAX_KEYS = 1000
MAX_RANKS = 256  # machines of one job


def _is_finite(number: float) -> bool:
    """Whether a float can hold it: a whole number in JSON may have thousands of digits."""
    return -MAX_REAL <= number <= MAX_REAL


class LoraParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MLX-LM's `lora_parameters`, of lora and dora."""

    rank: Annotated[int, Meta(ge=1, le=65536, description="rank of the adapters' matrices")] = 8
    dropout: Annotated[float, Meta(ge=0, lt=1, description="part of an adapter's input that is left out at random")] = 0.0
    scale: Annotated[float, Meta(description="what an adapter's output is multiplied with")] = 20.0
    keys: tuple[str, ...] | None = None  # names of the layers within a block; by default all that can have an adapter

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.keys is not None and not 1 <= len(self.keys) <= MAX_KEYS:
            raise ValueError(f"lora_parameters: keys must name 1 to {MAX_KEYS} layers, got {len(self.keys)}")


class LrSchedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MLX-LM's `lr_schedule`: one of MLX's schedules over the optimizer's steps, after a linear warm-up."""

    name: Literal["exponential_decay", "step_decay", "cosine_decay", "linear_schedule"]
    arguments: tuple[int | float, ...]
    warmup: Annotated[int, Meta(ge=0, description="steps over which the rate grows to the schedule's first")] = 0
    warmup_init: Annotated[float, Meta(ge=0, le=1e9, description="rate that the warm-up begins with")] = 0.0

    def __post_init__(self) -> None:
        check_ranges(self)
        fewest, most = SCHEDULE_ARGUMENTS[self.name]
        if not fewest <= len(self.arguments) <= most:
            words = f"{fewest}" if fewest == most else f"{fewest} or {most}"
            raise ValueError(f"lr_schedule: {self.name} takes {words} arguments, got {len(self.arguments)}")
        if any(isinstance(value, bool) or not _is_finite(value) for value in self.arguments):
            raise ValueError("lr_schedule: arguments must be finite numbers")


class FineTune(msgspec.Struct, frozen=True, kw_only=True, tag="mlx-lm", tag_field="method"):
    """MLX-LM fine-tuning, data parallel: each step's batch is divided among the ranks, their gradients are summed and divided
    by the tokens of all, so that any number of ranks makes the step that one machine would make."""

    fine_tune_type: Annotated[FineTuneType, Meta(description="low-rank adapters, weight-decomposed ones, or the layers")] = (
        "lora"
    )
    optimizer: Annotated[FineTuneOptimizer, Meta(description="that makes a step of the summed gradients")] = "adam"
    optimizer_config: dict[str, dict[str, Setting]] = {}  # by optimizer, arguments of its class in MLX
    mask_prompt: Annotated[bool, Meta(description="learn the answers only; for chat and completions")] = False
    num_layers: Annotated[int, Meta(ge=-1, description="layers to fine-tune, from the last; -1: all")] = 16
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000, description="rows of an iteration, over all machines")] = 4
    iters: Annotated[int, Meta(ge=1, description="iterations to train for")] = 1000
    val_batches: Annotated[int, Meta(ge=-1, description="validation batches; -1: all; 0: no validation")] = 25
    learning_rate: Annotated[float, Meta(gt=0, le=1e9, description="learning rate, without a lr_schedule")] = 1e-5
    lr_schedule: LrSchedule | None = None
    lora_parameters: LoraParameters = LoraParameters()
    steps_per_report: Annotated[int, Meta(ge=1, description="iterations between two reports of the loss")] = 10
    steps_per_eval: Annotated[int, Meta(ge=1, description="iterations between two validations")] = 200
    grad_accumulation_steps: Annotated[int, Meta(ge=1, le=100_000, description="iterations of one optimizer step")] = 1
    save_every: Annotated[int, Meta(ge=1, description="iterations after which adapter and checkpoint are saved")] = 100
    max_seq_length: Annotated[int, Meta(ge=2, description="tokens of a row; what is longer is cut off")] = 2048
    grad_checkpoint: Annotated[bool, Meta(description="save memory: compute activations twice")] = False
    clear_cache_threshold: Annotated[int, Meta(ge=0, le=10**15, description="bytes of free memory that MLX may hold on to")] = 0
    test: Annotated[bool, Meta(description="evaluate on the test rows at the end")] = False
    test_batches: Annotated[int, Meta(ge=-1, description="batches of the test; -1: all")] = 500
    seed: Annotated[int, Meta(ge=0, description="seed of adapters, order of rows and dropout")] = 0
    prompt_feature: Annotated[str, Meta(description="key of a completion row's question")] = "prompt"
    completion_feature: Annotated[str, Meta(description="key of its answer")] = "completion"
    chat_feature: Annotated[str, Meta(description="key of a chat row's messages")] = "messages"
    text_feature: Annotated[str, Meta(description="key of a text row's text")] = "text"
    lora_rank: Annotated[int, Meta(ge=1, le=65536, description="rank of the adapters; as lora_parameters' rank")] | None = None
    world_size_min: Annotated[int, Meta(ge=1, le=MAX_RANKS, description="machines that the job waits for")] = 1
    world_size_max: Annotated[int, Meta(ge=1, le=MAX_RANKS, description="machines that take part; by default all")] | None = (
        None
    )
    gradient_buckets: Annotated[
        int,
        Meta(
            ge=1, le=1000, description="parts in which gradients are summed over the machines, each while others are computed"
        ),
    ] = 1
    attach_model: Annotated[bool, Meta(description="put the base model into the run, for machines without it")] = False
    beat_s: Annotated[float, Meta(ge=0.01, le=60, description="seconds between two signs of life")] = 2.0
    lease_s: Annotated[float, Meta(gt=0, le=3600, description="seconds without one after which a machine counts as gone")] = (
        20.0
    )

    keep_s: ClassVar[float] = 600.0  # after which what nobody refers to is deleted
    weight_unit: ClassVar[Literal["tokens"]] = "tokens"

    def __post_init__(self) -> None:
        check_ranges(self)
        for name, given in self.optimizer_config.items():
            known = OPTIMIZER_ARGUMENTS.get(name)  # type: ignore[call-overload]
            if known is None:
                raise ValueError(f"optimizer_config: no optimizer {name!r:.60}; there are {', '.join(OPTIMIZER_ARGUMENTS)}")
            for argument, value in given.items():
                if argument not in known:
                    raise ValueError(f"optimizer_config: {name} has no {argument!r:.60}; it has {', '.join(known)}")
                numbers = value if isinstance(value, list) else [value]
                if not all(number is None or _is_finite(number) for number in numbers):
                    raise ValueError(f"optimizer_config: {argument} of {name} must be finite, got {value}")
        if self.lease_s < 2 * self.beat_s:
            raise ValueError(f"lease_s must be >= 2 × beat_s ({2 * self.beat_s:g}), got {self.lease_s:g}")
        if self.world_size_max is not None and self.world_size_max < self.world_size_min:
            raise ValueError(f"world_size_max must be >= world_size_min ({self.world_size_min}), got {self.world_size_max}")

    @property
    def lora(self) -> LoraParameters:
        """Of the adapters; `lora_rank` goes before what `lora_parameters` says."""
        if self.lora_rank is None:
            return self.lora_parameters
        return msgspec.structs.replace(self.lora_parameters, rank=self.lora_rank)

    @property
    def optimizer_arguments(self) -> dict[str, Setting]:
        """Of the optimizer's class, but its learning rate."""
        return self.optimizer_config.get(self.optimizer, {})

    @property
    def steps(self) -> int:
        """Optimizer steps: the last one may hold fewer iterations, and none is left out."""
        return -(-self.iters // self.grad_accumulation_steps)

    def iterations(self, steps: int) -> int:
        """Iterations of the first so many optimizer steps."""
        return min(self.iters, steps * self.grad_accumulation_steps)

    def completes(self, every: int, step: int) -> bool:
        """Whether optimizer step `step`, counted from 0, completes another `every` iterations."""
        return self.iterations(step + 1) // every > self.iterations(step) // every

    def due(self, every: int, step: int) -> bool:
        """Whether it does, or is the last one."""
        return self.completes(every, step) or self.iterations(step + 1) == self.iters

    def numbered(self, steps: int) -> bool:
        """Whether an adapter saved after so many steps keeps a name of its own: not the last one, nor what a halt left."""
        return steps > 0 and self.completes(self.save_every, steps - 1)


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where things are, as MLX-LM's config names them; they hold on this machine only, and so in no manifest."""

    model: str | None = None  # a folder, or a Hugging Face repository
    data: str | None = None
    adapter_path: str | None = None
    resume_adapter_file: str | None = None


PLACES = tuple(field.name for field in msgspec.structs.fields(Places))

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "train": ((True, None), "swarm trains; a test alone is `mlx_lm.lora --test`"),
    "config": ((None,), "a config file cannot name another one"),
    "trust_remote_code": ((False, None), "swarm never runs a model's own code"),
    "report_to": ((None,), "swarm reports to its own screens and logs"),
    "project_name": ((None,), "it belongs to report_to, which swarm does not have"),
    "hf_dataset": ((None, False), "swarm reads a folder with train.jsonl and valid.jsonl: save the dataset as such"),
    "wandb": ((None,), "swarm reports to its own screens and logs"),
}
"""Keys of MLX-LM's config that swarm has no use for, with the values that ask for nothing, and what to say to others."""


def lora_config(spec: FineTune) -> dict[str, Any]:
    """MLX-LM's `lora_parameters`."""
    lora = spec.lora
    found: dict[str, Any] = {"rank": lora.rank, "dropout": lora.dropout, "scale": lora.scale}
    if lora.keys is not None:
        found["keys"] = list(lora.keys)
    return found


def adapter_config(spec: FineTune, places: Places) -> dict[str, Any]:
    """What MLX-LM's tools read beside the adapter, and what its trainer writes for a person."""
    schedule = spec.lr_schedule
    return {
        "model": places.model,
        "data": places.data,
        "adapter_path": places.adapter_path,
        "resume_adapter_file": places.resume_adapter_file,
        "train": True,
        "test": spec.test,
        "fine_tune_type": spec.fine_tune_type,
        "num_layers": spec.num_layers,
        "lora_parameters": None if spec.fine_tune_type == "full" else lora_config(spec),
        "optimizer": spec.optimizer,
        "optimizer_config": spec.optimizer_config,
        "lr_schedule": None
        if schedule is None
        else {
            "name": schedule.name,
            "arguments": list(schedule.arguments),
            "warmup": schedule.warmup,
            "warmup_init": schedule.warmup_init,
        },
        **{
            name: getattr(spec, name)
            for name in (
                "seed",
                "batch_size",
                "iters",
                "val_batches",
                "learning_rate",
                "steps_per_report",
                "steps_per_eval",
                "save_every",
                "test_batches",
                "max_seq_length",
                "grad_checkpoint",
                "grad_accumulation_steps",
                "clear_cache_threshold",
                "mask_prompt",
            )
        },
    }


def from_config(config: Mapping[Any, Any]) -> tuple[dict[str, Any], Places]:
    """(values for FineTune by name, places) of a config file as `mlx_lm.lora -c` takes them, each value as the file has it.
    Raises UsageError for an unknown key or a value of the wrong kind, with the key."""
    known = {field.name for field in msgspec.structs.fields(FineTune)}
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for key, value in config.items():
        if key in REFUSED:
            harmless, why = REFUSED[key]
            if value not in harmless:
                raise UsageError(f"{key}: {shown(value)}: {why}")
        elif key in PLACES:
            if value is not None and not isinstance(value, str):
                raise UsageError(f"{key} must be a text, got {shown(value)}")
            if value is not None:
                places[key] = value
        elif key in known:
            if value is not None:
                values[key] = value
        else:
            close = difflib.get_close_matches(key[:60] if isinstance(key, str) else "", [*known, *PLACES], 1)
            raise UsageError(f"{shown(key)} is no option of mlx_lm.lora" + (f"; did you mean {close[0]}?" if close else ""))
    finetune(values)
    return values, Places(**places)


def finetune(values: Mapping[str, Any]) -> FineTune:
    """A spec of values as YAML, JSON or a command line have them. Raises UsageError."""
    try:
        return msgspec.convert({"method": "mlx-lm", **values}, FineTune)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(plain(error)) from error


def plain(error: Exception) -> str:
    """msgspec's words without its `$`: `Expected …, got … - at num_layers`."""
    return str(error).replace("`$.", "`").removesuffix(" - at `$`")
