"""The regression's net in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swarm.learners.torch import device as find_device
from swarm.tasks.mlp.trainable import HIDDEN, INPUTS, OUTPUTS
from swarm.tasks.torch import TorchNet, empty


class MLP(nn.Module):
    """(batch, 16) → (batch, 4)"""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(INPUTS, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(F.gelu(self.norm(self.fc1(x))))
        return y


def net(device: str, *, learning_rate: float) -> TorchNet:
    """The net, its parameters not yet set."""
    where = find_device(device)
    model = empty(MLP, where)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    return TorchNet(model, optimizer, F.mse_loss, device=where)
