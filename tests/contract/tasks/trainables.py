"""Trainables of the built-in tasks, small enough to be trained in every test."""

from __future__ import annotations

from typing import Any

from swarm.tasks import registry

# Small enough for MLX on a CPU, whose matrix products are slow.
TASKS: dict[str, dict[str, str]] = {
    "mlp": {},
    "charlm": {"seq_len": "16", "batch_size": "4", "sample_bytes": "8"},
    "lenet5": {"batch_size": "16", "learning_rate": "0.003"},
}
FRAMEWORKS = ("torch", "mlx")


def build(task: str, framework: str, *, seed: int = 0, **options: str) -> Any:
    made = registry.get(task)
    return made.build(
        framework=framework,
        device="cpu",
        options=made.options(TASKS[task] | options),
        data=made.data(None),
        data_path=None,
        seed=seed,
    )


def parameters(trainable: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in trainable.adapter.snapshot().items()}


def write(trainable: Any, prompt: bytes = b"And ", *, n: int = 24, temperature: float = 1.0, seed: int = 0) -> bytes:
    return b"".join(trainable.generate(prompt, max_tokens=n, temperature=temperature, seed=seed))
