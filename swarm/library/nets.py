"""The local training of swarm's own FedAvg tasks, for a program's model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, assert_never

from swarm.core.errors import UsageError
from swarm.learners.parts import framework_of
from swarm.tasks.local import LocalNet


def local_net(model: Any, loss: Callable[[Any, Any], Any]) -> LocalNet:
    """Trains clients with the optimizer, clipping, FedProx term and precision that their run says, which mean the same in
    PyTorch and MLX (swarm/tasks/local.py):

        net = swarm.local_net(model, loss)

        def train_client(client):
            net.begin(session.algorithm)  # a fresh optimizer
            for x, y in batches(client):
                yield net.step(x, y, lr=session.algorithm.rate(client.round, 0)), len(y)

    `loss(outputs, y)`: a batch's mean, as a scalar of the framework. `x` and `y` are NumPy arrays with the batch as first axis;
    they go to where the model lies: for PyTorch the device of its parameters, for MLX the default device. Raises UsageError for
    a model of neither."""
    match framework_of(model):
        case "torch":
            from swarm.tasks.local_torch import TorchLocalNet

            first = next(iter(model.parameters()), None)
            if first is None:
                raise UsageError(f"a {type(model).__name__} has no parameters to train")
            return TorchLocalNet(model, loss, device=first.device, buffers=False)
        case "mlx":
            from swarm.tasks.local_mlx import MlxLocalNet

            return MlxLocalNet(model, loss, device=sys.modules["mlx.core"].default_device(), buffers=False)
        case "numpy":
            raise UsageError("local_net trains a torch.nn.Module or an mlx.nn.Module: arrays alone have no gradients")
        case other:
            assert_never(other)
