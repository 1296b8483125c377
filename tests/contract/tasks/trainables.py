"""Trainables of the built-in tasks, small enough to be trained in every test."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from swarm.tasks import registry

# Small enough for MLX on a CPU, whose matrix products are slow.
TASKS: dict[str, dict[str, str]] = {
    "mlp": {},
    "charlm": {"seq_len": "16", "batch_size": "4", "sample_bytes": "8"},
    "lenet5": {"batch_size": "16", "learning_rate": "0.003"},
}
FRAMEWORKS = ("torch", "mlx")
# Of a model that is only there with MLX-LM: test_lora.py has the same tests for it.
LORA = {"num_layers": "-1", "max_seq_length": "64", "learning_rate": "0.01", "sample_tokens": "4", "lora_dropout": "0.1"}


def build(task: str, framework: str, *, seed: int = 0, **options: str) -> Any:
    made = registry.get(task)
    if task == "lora":
        model, data = tiny_llama()
        return made.build(
            framework=framework,
            device="cpu",
            options=made.options(LORA | options),
            data=made.data(data),
            data_path=data,
            seed=seed,
            model_path=model,
        )
    return made.build(
        framework=framework,
        device="cpu",
        options=made.options(TASKS[task] | options),
        data=made.data(None),
        data_path=None,
        seed=seed,
    )


@functools.cache
def tiny_llama() -> tuple[Path, Path]:
    """(folder of a model, folder of rows), for as long as the tests run."""
    from tests.integration.tiny_llama import completions, make_data, make_model

    folder = Path(tempfile.mkdtemp(prefix="swarm-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = make_data(folder / "data", train=completions(60), valid=completions(12, seed=1))
    return make_model(folder / "model"), data


def parameters(trainable: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in trainable.adapter.snapshot().items()}


def write(trainable: Any, prompt: bytes = b"And ", *, n: int = 24, temperature: float = 1.0, seed: int = 0) -> bytes:
    return b"".join(trainable.generate(prompt, max_tokens=n, temperature=temperature, seed=seed))
