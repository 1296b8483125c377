"""The model with its adapters in MLX, as it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn

from swarm.core.finetune import FineTune
from swarm.learners.mlx import device as find_device
from swarm.tasks.lm.model import load_base, make_optimizer, prepare
from swarm.tasks.lm.writer import Writer
from swarm.tasks.local_mlx import MlxLocalNet
from swarm.tasks.lora.places import UNLEARNED
from swarm.tasks.mlx import MlxNet
from swarm.tasks.net import Array
from swarm.tasks.seeding import seeded

PAD_GPU, PAD_CPU = 32, 8  # a GPU computes tiles, and compiles once a shape; a CPU computes every position


class Tuned(NamedTuple):
    net: MlxNet
    local: MlxLocalNet
    writer: Writer
    pad_to: int


class TunedNet(MlxNet):
    """A model that is in evaluation mode, but for its steps."""

    def train(self, x: Array, y: Array) -> float:
        self._model.train()
        try:
            return super().train(x, y)
        finally:
            self._model.eval()


def tuned(folder: Path, spec: FineTune, *, device: str, seed: int) -> Tuned:
    """The model of a folder, with fresh adapters that follow from the seed; all else of it is frozen. One model, as DiLoCo
    trains it and as FedAvg's clients do. Raises UsageError."""
    where = find_device(device)
    with seeded(seed), mx.stream(where):
        model, tokenizer = load_base(folder)
        prepare(model, spec)
        model.eval()
        mx.eval(model.parameters())
        optimizer = make_optimizer(spec, model)
    # A compiled step would draw the same units each time.
    compiled = False if spec.lora.dropout else None
    net = TunedNet(model, optimizer, _loss, device=where, compiled=compiled)
    local = MlxLocalNet(model, _loss, device=where, buffers=False)
    pad_to = PAD_CPU if where.type == mx.cpu else PAD_GPU
    return Tuned(net, local, Writer(model, tokenizer, where), pad_to)


def _loss(logits: mx.array, targets: mx.array) -> mx.array:
    """Mean over the learned tokens. (rows, length, vocabulary), (rows, length), of which at least one is learned."""
    learned = targets != UNLEARNED
    losses = nn.losses.cross_entropy(logits, mx.maximum(targets, 0)).astype(mx.float32)
    return mx.where(learned, losses, 0).sum() / learned.sum()
