"""The regression's net in MLX."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from swarm.learners.mlx import device as find_device
from swarm.tasks.mlp.trainable import HIDDEN, INPUTS, OUTPUTS
from swarm.tasks.mlx import MlxNet, untouched


class MLP(nn.Module):
    """(batch, 16) → (batch, 4)"""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(INPUTS, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, OUTPUTS)

    def __call__(self, x: mx.array) -> mx.array:
        return self.fc2(nn.gelu(self.norm(self.fc1(x))))


def net(device: str, *, learning_rate: float) -> MlxNet:
    """The net, its parameters not yet set to the run's."""
    where = find_device(device)
    # MLX leaves the bias correction out unless told otherwise; PyTorch always has it.
    optimizer = optim.Adam(learning_rate, bias_correction=True)
    return MlxNet(untouched(MLP, where), optimizer, nn.losses.mse_loss, device=where)
