"""The smallest task: a regression on numbers made on the spot. It trains anywhere within a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from swarm.core.errors import UsageError
from swarm.core.manifest import DataRef
from swarm.tasks.contract import Trainable
from swarm.tasks.options import parse


class MlpOptions(msgspec.Struct, frozen=True):
    batch_size: Annotated[int, Meta(ge=1, le=65536, description="samples per step")] = 32
    learning_rate: Annotated[float, Meta(gt=0, le=1, description="of the inner Adam")] = 0.01


class Mlp:
    name = "mlp"
    summary = "a small net that learns a random function; needs no data, trains in seconds"
    frameworks = ("torch", "mlx")
    spec = MlpOptions

    def options(self, given: Mapping[str, str]) -> dict[str, Any]:
        return msgspec.structs.asdict(parse(MlpOptions, given, task=self.name))

    def data(self, path: Path | None) -> list[DataRef]:
        if path is not None:
            raise UsageError(f"task {self.name} makes its own data: leave --data out")
        return []

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
    ) -> Trainable:
        given = options if batch_size is None else {**options, "batch_size": batch_size}
        chosen = parse(MlpOptions, given, task=self.name)
        if data:
            raise UsageError(f"task {self.name} makes its own data, and the run names {data[0].name!r}")
        from swarm.tasks.mlp.trainable import Regression

        match framework:
            case "torch":
                from swarm.tasks.mlp import torch as backend
            case "mlx":
                from swarm.tasks.mlp import mlx as backend  # type: ignore[no-redef]
            case _:
                raise UsageError(f"task {self.name} has no model for {framework!r}: torch or mlx")
        net = backend.net(device, learning_rate=chosen.learning_rate)
        return Regression(net, batch_size=chosen.batch_size, seed=seed)


TASK = Mlp()
