"""What one machine brings to a data-parallel job, and where it keeps its part of it."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from swarm import __version__
from swarm.core.errors import UsageError
from swarm.core.events import WorkerEvent
from swarm.core.finetune import FineTune, Places, adapter_config
from swarm.core.manifest import Manifest
from swarm.core.rankjob import RankPlan
from swarm.core.ranks import Backend, CheckpointAt, Plan
from swarm.host.accelerators import Card
from swarm.learners.devices import cards_of
from swarm.parallel.store import Store
from swarm.runtime.model_files import Gathered
from swarm.tasks.lm.files import written

ADAPTERS = "adapters.safetensors"
USABLE = 0.8  # of the memory that is free: what is left is for whoever sits there


class Site:
    def __init__(
        self,
        manifest: Manifest,
        files: Gathered,
        *,
        home: Path,
        adapter_path: Path | None,
        start_adapter: Path | None,
        places: Places,
        emit: Callable[[WorkerEvent], None],
    ) -> None:
        """`home`: a folder of this job's own. `adapter_path`: where a person wants the adapter; None: nobody does here.
        `places`: what `adapter_config.json` says of model and data."""
        assert isinstance(manifest.algorithm, FineTune)
        assert manifest.model is not None
        self.manifest, self.files, self.home, self.emit = manifest, files, home, emit
        self.spec, self.model = manifest.algorithm, manifest.model
        self.adapter_path, self.start_adapter, self.places = adapter_path, start_adapter, places

    def told(self, plan: Plan, rank: int, *, start: Path | None) -> RankPlan:
        """What the rank here is told. `start`: the checkpoint that rank 0 goes on from."""
        names = {"model": self.places.model, "data": self.places.data, "adapter_path": self.places.adapter_path}
        return RankPlan(
            rank=rank,
            size=len(plan.seats),
            generation=plan.generation,
            backend=plan.backend,
            spec=self.spec,
            model=str(self.files.model),
            data=str(self.files.data),
            adapter_path=str(self.adapter_path or self.home / "adapters"),
            checkpoints=str(self.checkpoints),
            start=None if start is None else str(start),
            start_adapter=str(self.start_adapter) if self.start_adapter and plan.start is None and rank == 0 else None,
            base=self.model.sha256,
            names={name: value for name, value in names.items() if value is not None},
            shares=tuple(seat.share for seat in plan.seats),
            memory_bytes=float(free_memory()),
            meet_s=plan.start_s,
            leash=True,
        )

    @property
    def checkpoints(self) -> Path:
        return self.home / "checkpoints"

    def checkpoint(self, at: CheckpointAt) -> Path:
        """Where a rank here would have written it (parallel/checkpoint.py)."""
        return self.checkpoints / f"{at.generation:06d}" / f"{at.step:010d}.safetensors"

    async def deliver(self, store: Store, at: CheckpointAt, *, numbered: bool) -> Path | None:
        """Write the adapter of a checkpoint to where a person wants it, as MLX-LM does; None if nobody does, or if the
        checkpoint is not there. Raises CheckpointUnsaved, PayloadMissing, PayloadCorrupt."""
        record = None if self.adapter_path is None else await store.record(at)
        if self.adapter_path is None or record is None:
            return None
        found = await store.fetch(at, record.adapter, self.home / ADAPTERS)
        text = json.dumps(adapter_config(self.spec, self.places), indent=4, sort_keys=True).encode()
        written(self.adapter_path / "adapter_config.json", lambda path: path.write_bytes(text))
        numbered = numbered and self.spec.numbered(record.step)
        names = [f"{record.iteration:07d}_{ADAPTERS}", ADAPTERS] if numbered else [ADAPTERS]
        for name in names:
            written(self.adapter_path / name, lambda path: shutil.copyfile(found, path))
        return self.adapter_path / ADAPTERS

    @property
    def chat(self) -> str:
        """The command that tries out what was learned here."""
        if self.adapter_path is None:
            return ""
        model = self.places.model or str(self.files.model)
        return f"mlx_lm.chat --model {shlex.quote(model)} --adapter-path {shlex.quote(str(self.adapter_path))}"


def free_memory() -> int:
    """Bytes that a rank may take."""
    return int(USABLE * psutil.virtual_memory().available)


def cards() -> tuple[Card, ...]:
    """NVIDIA's card that MLX trains on here; () if it trains on none."""
    import mlx.core as mx

    on_card = mx.default_device() == mx.Device(mx.gpu) and not mx.metal.is_available()
    return cards_of("mlx", "cuda") if on_card else ()


def versions() -> dict[str, str]:
    """Raises UsageError where MLX-LM is not installed."""
    try:
        return {"swarm": __version__, "mlx": version("mlx"), "mlx-lm": version("mlx-lm")}
    except PackageNotFoundError as error:
        raise UsageError(f"{error.name} is not installed here: pip install 'homeswarm[mlx-lm]'") from error


def backends() -> tuple[Backend, ...]:
    """What mlx.distributed can do here. Raises UsageError."""
    try:
        import mlx.core as mx
    except ImportError as error:
        raise UsageError(f"MLX cannot be loaded here (pip install 'homeswarm[mlx-lm]'): {error}") from error
    every: tuple[Backend, ...] = ("jaccl", "nccl", "ring", "mpi")
    return tuple(name for name in every if mx.distributed.is_available(name))
