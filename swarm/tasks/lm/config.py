"""What lies beside an adapter, for MLX-LM's tools. Needs neither MLX nor MLX-LM."""

from __future__ import annotations

from typing import Any

from swarm.core.finetune import FineTune, Places

ADAPTERS, CONFIG = "adapters.safetensors", "adapter_config.json"


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
        "lora_parameters": None if spec.fine_tune_type == "full" else lora_parameters(spec),
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


def lora_parameters(spec: FineTune) -> dict[str, Any]:
    """MLX-LM's, of lora and dora."""
    lora = spec.lora
    found: dict[str, Any] = {"rank": lora.rank, "dropout": lora.dropout, "scale": lora.scale}
    if lora.keys is not None:
        found["keys"] = list(lora.keys)
    return found
