"""A small net that learns to read handwritten digits, of 13 people or of MNIST."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from swarm.core.errors import UsageError
from swarm.core.manifest import DataRef
from swarm.tasks.contract import Trainable
from swarm.tasks.lenet5 import idx, places
from swarm.tasks.lenet5.sizes import Model
from swarm.tasks.options import parse


class LeNet5Options(msgspec.Struct, frozen=True):
    model: Annotated[
        Literal["lenet5", "mlp"], Meta(description="LeNet-5 on images of 28×28 pixels, or an MLP of 64 units on 8×8")
    ] = "lenet5"
    norm: Annotated[Literal["none", "batch"], Meta(description="batch: a BatchNorm after each convolution")] = "none"
    dropout: Annotated[float, Meta(ge=0, lt=1, description="part of the dense layers' units left out in a step")] = 0.0
    batch_size: Annotated[int, Meta(ge=1, le=65536, description="images per step of DiLoCo")] = 32
    learning_rate: Annotated[float, Meta(gt=0, le=1, description="of DiLoCo's inner Adam")] = 0.001

    def __post_init__(self) -> None:
        if self.norm == "batch" and self.model == "mlp":
            raise ValueError("norm batch stands after convolutions, and model mlp has none")

    def built(self) -> Model:
        return Model(convolutions=self.model == "lenet5", batch_norm=self.norm == "batch", dropout=self.dropout)


class LeNet5Task:
    name = "lenet5"
    summary = "LeNet-5, or an MLP, that learns to read handwritten digits; brings 1,797 of them along, or takes MNIST"
    frameworks = ("torch", "mlx")
    spec = LeNet5Options

    def options(self, given: Mapping[str, str]) -> dict[str, Any]:
        return msgspec.structs.asdict(parse(LeNet5Options, given, task=self.name))

    def data(self, path: Path | None) -> list[DataRef]:
        """`path`: None or `digits` for the shipped images, `mnist:DIR` or DIR for a folder with MNIST's four files, or an .npz
        file (places.py)."""
        kind, where = places.place(path)
        if kind == "folder":
            return places.refs(idx.folder(where))
        if kind == "shipped":
            return [places.ref(where.name, places.archive(where))]
        from swarm.tasks.lenet5.images import LARGE, read

        return read(where, side=LARGE)[1]

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
        buffers: bool = False,
        private: bool = False,
    ) -> Trainable:
        given = options if batch_size is None else {**options, "batch_size": batch_size}
        chosen = parse(LeNet5Options, given, task=self.name)
        from swarm.tasks.lenet5.images import LARGE, SMALL, load, own
        from swarm.tasks.lenet5.trainable import Reader

        # Before the model: images that are missing are told within a moment, a framework takes seconds to load.
        side = LARGE if chosen.built().convolutions else SMALL
        parts = own(data_path, side=side) if private else load(data, data_path, side=side)
        match framework:
            case "torch":
                from swarm.tasks.lenet5 import torch as backend
            case "mlx":
                from swarm.tasks.lenet5 import mlx as backend  # type: ignore[no-redef]
            case _:
                raise UsageError(f"task {self.name} has no model for {framework!r}: torch or mlx")
        net, local = backend.nets(device, chosen.built(), learning_rate=chosen.learning_rate, buffers=buffers)
        return Reader(net, local, parts, batch_size=chosen.batch_size, seed=seed)


TASK = LeNet5Task()
