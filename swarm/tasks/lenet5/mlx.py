"""The nets for digits in MLX."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from swarm.learners.layout import Layout, Permute
from swarm.learners.mlx import device as find_device
from swarm.tasks.lenet5.images import CLASSES, SMALL
from swarm.tasks.lenet5.sizes import CONV1, CONV2, DENSE1, DENSE2, HIDDEN, KERNEL, MAP, Model
from swarm.tasks.local_mlx import MlxLocalNet
from swarm.tasks.mlx import MlxNet, untouched

LAYOUT = Layout(
    (
        Permute("conv1.weight", axes=(0, 3, 1, 2)),
        Permute("conv2.weight", axes=(0, 3, 1, 2)),
        # Over flattened maps, which have their channels last here.
        Permute("fc1.weight", axes=(0, 3, 1, 2), view=(-1, MAP, MAP, CONV2)),
    )
)


class LeNet5(nn.Module):
    """(batch, 28, 28) → (batch, 10): after LeCun et al. 1998, with ReLU and the maximum in place of sigmoids and means."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, CONV1, KERNEL, padding=KERNEL // 2)
        self.conv2 = nn.Conv2d(CONV1, CONV2, KERNEL)
        if model.batch_norm:
            self.norm1, self.norm2 = nn.BatchNorm(CONV1), nn.BatchNorm(CONV2)
        self.batch_norm = model.batch_norm
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(CONV2 * MAP * MAP, DENSE1)
        self.fc2 = nn.Linear(DENSE1, DENSE2)
        self.fc3 = nn.Linear(DENSE2, CLASSES)
        self.dropout = nn.Dropout(model.dropout)

    def __call__(self, x: mx.array) -> mx.array:
        x = self.conv1(x[..., None])
        x = self.pool(nn.relu(self.norm1(x) if self.batch_norm else x))
        x = self.conv2(x)
        x = self.pool(nn.relu(self.norm2(x) if self.batch_norm else x))
        x = self.dropout(nn.relu(self.fc1(mx.flatten(x, 1))))
        return self.fc3(self.dropout(nn.relu(self.fc2(x))))


class MLP(nn.Module):
    """(batch, 8, 8) → (batch, 10)"""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fc1 = nn.Linear(SMALL * SMALL, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, CLASSES)
        self.dropout = nn.Dropout(model.dropout)

    def __call__(self, x: mx.array) -> mx.array:
        return self.fc2(self.dropout(nn.relu(self.fc1(mx.flatten(x, 1)))))


def nets(device: str, model: Model, *, learning_rate: float, buffers: bool) -> tuple[MlxNet, MlxLocalNet]:
    """One model as DiLoCo trains it and as FedAvg's clients do. Its parameters are not yet set to the run's."""
    where = find_device(device)
    made: nn.Module = untouched(lambda: LeNet5(model) if model.convolutions else MLP(model), where)
    layout = LAYOUT if model.convolutions else None
    optimizer = optim.Adam(learning_rate, bias_correction=True)
    # A compiled step would draw the same units each time.
    compiled = False if model.dropout else None
    net = MlxNet(made, optimizer, _loss, device=where, compiled=compiled, layout=layout)
    return net, MlxLocalNet(made, _loss, device=where, layout=layout, buffers=buffers)


def _loss(outputs: mx.array, labels: mx.array) -> mx.array:
    return nn.losses.cross_entropy(outputs, labels.astype(mx.int32), reduction="mean")
