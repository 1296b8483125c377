"""A byte-level GPT that learns to write like a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from swarm.core.errors import UsageError
from swarm.core.manifest import DataRef
from swarm.tasks.charlm import text
from swarm.tasks.charlm.sizes import SIZES, Size
from swarm.tasks.contract import Trainable
from swarm.tasks.options import parse


class CharLMOptions(msgspec.Struct, frozen=True):
    size: Annotated[Literal["tiny", "small", "base"], Meta(description="of the model: 0.12, 0.84 or 10.8 M parameters")] = (
        "tiny"
    )
    seq_len: (
        Annotated[int, Meta(ge=8, le=4096, description="bytes that the model sees at once; by default from the size")] | None
    ) = None
    batch_size: Annotated[int, Meta(ge=1, le=4096, description="sequences per step; by default from the size")] | None = None
    learning_rate: Annotated[float, Meta(gt=0, le=1, description="of the inner AdamW; by default from the size")] | None = None
    sample_bytes: Annotated[int, Meta(ge=0, le=1000, description="length of the text written at each evaluation; 0: none")] = 64

    def applied(self) -> Size:
        """The size with what is set here in place of its own."""
        given = {name: getattr(self, name) for name in ("seq_len", "batch_size", "learning_rate")}
        set_here = {name: value for name, value in given.items() if value is not None}
        return msgspec.structs.replace(SIZES[self.size], **set_here)


class CharLMTask:
    name = "charlm"
    summary = "a small language model that learns to write like a text, byte by byte; brings a text along"
    frameworks = ("torch", "mlx")
    spec = CharLMOptions

    def options(self, given: Mapping[str, str]) -> dict[str, Any]:
        chosen = parse(CharLMOptions, given, task=self.name)
        size = chosen.applied()
        # A run keeps its numbers when a later version changes what a size means.
        return msgspec.structs.asdict(chosen) | {
            "seq_len": size.seq_len,
            "batch_size": size.batch_size,
            "learning_rate": size.learning_rate,
        }

    def data(self, path: Path | None) -> list[DataRef]:
        return [text.describe(text.shipped() if path is None else path)]

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
        chosen = parse(CharLMOptions, given, task=self.name)
        if len(data) != 1:
            raise UsageError(f"task {self.name} trains on one text, and the run names {len(data)}")
        size = chosen.applied()
        from swarm.tasks.charlm.corpus import Corpus
        from swarm.tasks.charlm.trainable import CharLM

        # Before the model: a text that is missing is told within a moment, a framework takes seconds to load.
        corpus = Corpus(text.load(data[0], data_path), seq_len=size.seq_len, eval_windows=size.eval_windows)
        match framework:
            case "torch":
                from swarm.tasks.charlm import torch as backend
            case "mlx":
                from swarm.tasks.charlm import mlx as backend  # type: ignore[no-redef]
            case _:
                raise UsageError(f"task {self.name} has no model for {framework!r}: torch or mlx")
        return CharLM(backend.net(size, device), corpus, size=size, sample_bytes=chosen.sample_bytes, seed=seed)


TASK = CharLMTask()
