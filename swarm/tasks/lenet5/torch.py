"""The nets for digits in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swarm.learners.torch import device as find_device
from swarm.tasks.lenet5.images import CLASSES, SMALL
from swarm.tasks.lenet5.sizes import CONV1, CONV2, DENSE1, DENSE2, HIDDEN, KERNEL, MAP, Model
from swarm.tasks.local_torch import TorchLocalNet
from swarm.tasks.torch import TorchNet, empty


class LeNet5(nn.Module):
    """(batch, 28, 28) → (batch, 10): after LeCun et al. 1998, with ReLU and the maximum in place of sigmoids and means."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, CONV1, KERNEL, padding=KERNEL // 2)
        self.conv2 = nn.Conv2d(CONV1, CONV2, KERNEL)
        if model.batch_norm:
            self.norm1, self.norm2 = nn.BatchNorm2d(CONV1), nn.BatchNorm2d(CONV2)
        self.batch_norm = model.batch_norm
        self.fc1 = nn.Linear(CONV2 * MAP * MAP, DENSE1)
        self.fc2 = nn.Linear(DENSE1, DENSE2)
        self.fc3 = nn.Linear(DENSE2, CLASSES)
        self.dropout = nn.Dropout(model.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x.unsqueeze(1))
        x = F.max_pool2d(F.relu(self.norm1(x) if self.batch_norm else x), 2)
        x = self.conv2(x)
        x = F.max_pool2d(F.relu(self.norm2(x) if self.batch_norm else x), 2)
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))
        y: Tensor = self.fc3(self.dropout(F.relu(self.fc2(x))))
        return y


class MLP(nn.Module):
    """(batch, 8, 8) → (batch, 10)"""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.fc1 = nn.Linear(SMALL * SMALL, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, CLASSES)
        self.dropout = nn.Dropout(model.dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(self.dropout(F.relu(self.fc1(x.flatten(1)))))
        return y


def nets(device: str, model: Model, *, learning_rate: float, buffers: bool) -> tuple[TorchNet, TorchLocalNet]:
    """One model as DiLoCo trains it and as FedAvg's clients do. Its parameters are not yet set; its buffers are."""
    where = find_device(device)
    made: nn.Module = empty(lambda: LeNet5(model) if model.convolutions else MLP(model), where)
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    optimizer = torch.optim.Adam(made.parameters(), lr=learning_rate)
    net = TorchNet(made, optimizer, _loss, device=where)
    return net, TorchLocalNet(made, _loss, device=where, buffers=buffers)


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels.long())
