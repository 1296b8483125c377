"""Adapters for a language model of MLX-LM: only they are exchanged, so that machines on slow links fine-tune it together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from swarm.core.errors import UsageError
from swarm.core.finetune import FineTune, FineTuneOptimizer, LoraParameters, Places, adapter_config
from swarm.core.manifest import DataRef, ModelRef
from swarm.core.options import check_ranges
from swarm.tasks.contract import Trainable
from swarm.tasks.lora import places
from swarm.tasks.options import parse

ADAPTERS, CONFIG = "adapters.safetensors", "adapter_config.json"  # as MLX-LM's tools look for them
_SEED_LIMIT = 10**9  # of FineTune's


class LoraOptions(msgspec.Struct, frozen=True):
    """Those of `mlx_lm.lora`, under its names and with its defaults, as far as they are no matter of the run; and of
    `lora_parameters` each by itself."""

    fine_tune_type: Annotated[
        Literal["lora", "dora"], Meta(description="low-rank adapters, or weight-decomposed low-rank ones")
    ] = "lora"
    num_layers: Annotated[int, Meta(ge=-1, description="layers that get adapters, from the last; -1: all")] = 16
    lora_rank: Annotated[int, Meta(ge=1, le=65536, description="rank of the adapters' matrices")] = 8
    lora_scale: Annotated[float, Meta(description="what an adapter's output is multiplied with")] = 20.0
    lora_dropout: Annotated[
        float, Meta(ge=0, lt=1, description="part of an adapter's input that is left out at random in a step")
    ] = 0.0
    lora_keys: Annotated[
        str, Meta(description="layers within a block, as in self_attn.q_proj,self_attn.v_proj; by default all that can")
    ] = ""
    batch_size: Annotated[int, Meta(ge=1, le=65536, description="rows per step of DiLoCo")] = 4
    max_seq_length: Annotated[int, Meta(ge=2, description="tokens of a row; what is longer is cut off")] = 2048
    mask_prompt: Annotated[bool, Meta(description="learn the answers only; for chat and completions")] = False
    learning_rate: Annotated[float, Meta(gt=0, le=1, description="of DiLoCo's inner optimizer")] = 1e-5
    optimizer: Annotated[FineTuneOptimizer, Meta(description="DiLoCo's inner one, as MLX has it")] = "adam"
    grad_checkpoint: Annotated[bool, Meta(description="save memory: compute activations twice")] = False
    val_batches: Annotated[int, Meta(ge=-1, description="batches of an evaluation; -1: all")] = 25
    sample_tokens: Annotated[int, Meta(ge=0, le=1000, description="length of the text written at each evaluation; 0: none")] = (
        32
    )
    prompt_feature: Annotated[str, Meta(description="key of a completion row's question")] = "prompt"
    completion_feature: Annotated[str, Meta(description="key of its answer")] = "completion"
    chat_feature: Annotated[str, Meta(description="key of a chat row's messages")] = "messages"
    text_feature: Annotated[str, Meta(description="key of a text row's text")] = "text"

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.val_batches == 0:
            raise ValueError("val_batches must be -1 or >= 1, got 0; `--eval-every 0` leaves evaluations out")
        self.finetune(0)

    def finetune(self, seed: int) -> FineTune:
        """As data parallel training has it. Raises ValueError."""
        same = {field.name for field in msgspec.structs.fields(type(self))} & {f.name for f in msgspec.structs.fields(FineTune)}
        keys = tuple(key.strip() for key in self.lora_keys.split(",") if key.strip())
        return FineTune(
            **{name: getattr(self, name) for name in same - {"lora_rank"}},
            lora_parameters=LoraParameters(
                rank=self.lora_rank, dropout=self.lora_dropout, scale=self.lora_scale, keys=keys or None
            ),
            seed=seed % _SEED_LIMIT,
        )


class LoraTask:
    name = "lora"
    summary = "adapters (LoRA, DoRA) that fine-tune a language model of MLX-LM, given with --model, on rows given with --data"
    frameworks = ("mlx",)
    spec = LoraOptions
    packages: Mapping[str, str] = {"mlx_lm": "mlx-lm"}

    def options(self, given: Mapping[str, str]) -> dict[str, Any]:
        return msgspec.structs.asdict(parse(LoraOptions, given, task=self.name))

    def data(self, path: Path | None) -> list[DataRef]:
        """Of the folder `path`: train.jsonl, valid.jsonl and test.jsonl."""
        return places.describe(path)

    def build(
        self,
        *,
        framework: str,
        device: str,
        options: Mapping[str, Any],
        data: list[DataRef],
        data_path: Path | None,
        seed: int,
        batch_size: int | None = None,
        private: bool = False,
        model_path: Path | None = None,
    ) -> Trainable:
        """Without any data the model is only there to write with, and as a start."""
        given = options if batch_size is None else {**options, "batch_size": batch_size}
        chosen = parse(LoraOptions, given, task=self.name)
        if framework != "mlx":
            raise UsageError(f"task {self.name} has no model for {framework!r}: mlx")
        if model_path is None:
            raise UsageError(f"task {self.name} fine-tunes a model: pass its folder with --model")
        # Before the model: rows that are missing are told within a moment, a model takes seconds to load.
        folder = places.load(data, data_path, private=private)
        from swarm.tasks.lora import mlx as backend
        from swarm.tasks.lora.trainable import Parts, Tuner

        spec = chosen.finetune(seed)
        tuned = backend.tuned(model_path, spec, device=device, seed=seed)
        parts = Parts.read(folder, data, tokenizer=tuned.writer.tokenizer, spec=spec, private=private)
        return Tuner(tuned, parts, spec=spec, seed=seed, sample_tokens=chosen.sample_tokens)

    def exported(self, options: Mapping[str, Any], *, model: ModelRef | None) -> tuple[str, Mapping[str, bytes]]:
        """An adapter's folder, as MLX-LM's tools read it."""
        spec = parse(LoraOptions, options, task=self.name).finetune(0)
        config = adapter_config(spec, Places(model=None if model is None else model.name))
        return ADAPTERS, {CONFIG: json.dumps(config, indent=4, sort_keys=True).encode()}


TASK = LoraTask()
