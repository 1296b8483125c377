"""What is estimated of a run before it is made, against what runs really move and hold."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from swarm.core.estimates import HEAD_BYTES, Link, Pace, Shape, alike, estimate, gradient_bytes, pace_of
from swarm.core.finetune import FineTune
from swarm.core.fragments import plan
from swarm.core.specs import DiLoCo, FedAvg
from swarm.core.tensorspec import TensorSpec
from swarm.exchange import Exchange
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.tensors.codec import payload_specs
from swarm.tensors.payload import header
from tests.integration.simulation import Learner, Machines, model, new_run, together, virtually

GPT = tuple(
    sorted(
        (
            TensorSpec("embed.weight", "F32", (256, 96)),
            *(TensorSpec(f"blocks.{n}.{part}.weight", "F32", (96, size)) for n in range(3) for part, size in
              (("attention", 288), ("out", 96), ("up", 384), ("down", 384))),
            TensorSpec("norm.weight", "F32", (96,)),
        ),
        key=lambda spec: spec.name,
    )
)  # fmt: skip
ITEM_BITS = {"F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F4": 4, "F8_E8M0": 8}


def packed_bytes(tensors: list[TensorSpec], dtype: str | None) -> int:
    """Of the very payload."""
    specs = payload_specs(tensors, dtype)
    return len(header(specs)) + sum(int(np.prod(shape)) * ITEM_BITS[code] // 8 for _, code, shape in specs)


@pytest.mark.parametrize("dtype", [None, "F32", "BF16", "F8_E4M3", "F4"])
@pytest.mark.parametrize("fragments", [1, 4])
def test_payloads_are_as_large_as_estimated(dtype: str | None, fragments: int) -> None:
    by_name = {tensor.name: tensor for tensor in GPT}
    parts = [[by_name[name] for name in names] for names in plan(GPT, fragments, "bytes")]
    largest = max(parts, key=lambda part: sum(tensor.size_bytes for tensor in part))
    spec = DiLoCo(fragments=fragments, delta_dtype=dtype, commit_dtype=dtype)  # type: ignore[arg-type]
    found = estimate(spec, Shape(tensors=GPT))
    assert found.fragments == fragments
    assert found.parameters == sum(tensor.size for tensor in GPT)
    assert found.up_bytes == pytest.approx(packed_bytes(largest, dtype), rel=0.02)
    assert found.down_bytes == pytest.approx(packed_bytes(largest, dtype), rel=0.02)


@pytest.mark.parametrize("fragments", [1, 2])
@pytest.mark.parametrize("checkpoints", [0, 2])
def test_a_mailbox_never_holds_more_than_estimated_and_not_much_less(fragments: int, checkpoints: int) -> None:
    spec = DiLoCo(sync_every=4, fragments=fragments, quorum_size=2, beat_s=0.5, lease_s=2.0)

    async def main() -> int:
        store, machines = MemoryStore(), Machines()
        kept = {"checkpoint_every": 1, "checkpoints_kept": checkpoints} if checkpoints else {}
        manifest = await new_run(store, spec, rounds=14, eval_every=0, **kept)
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                held = [len(data) for key, data in store.objects.items() if key.endswith(".safetensors")]
                most = max(most, sum(held))
                await asyncio.sleep(0.02)

        watching = asyncio.ensure_future(watch())
        learners = [Learner(store, manifest, name, machines) for name in "ab"]
        assert await together(*(each.live() for each in learners)) == ["done", "done"]
        watching.cancel()
        record = await Exchange(MemoryMailbox(store), manifest).round(13)
        assert record is not None
        assert record.outer is not None
        found = estimate(spec, Shape(tensors=manifest.tensors), learners=2, checkpoints_kept=checkpoints)
        # The header of so small a model is as large as its numbers.
        assert found.up_bytes == pytest.approx(max(p.size_bytes for p in record.participants), rel=0.35)
        return most

    most = virtually(main())
    found = estimate(spec, Shape(tensors=tuple(NumpyAdapter(model(1)).schema())), learners=2, checkpoints_kept=checkpoints)
    assert 0.4 * found.disk_bytes < most <= found.disk_bytes


def test_fedavg_counts_clients_and_the_outer_optimizers_moments() -> None:
    plain, moments = (
        estimate(FedAvg(clients=10, per_round=4, outer=outer), Shape(tensors=GPT), learners=2)  # type: ignore[arg-type]
        for outer in ("fedavg", "fedadam")
    )
    assert plain.fragments == 1
    assert plain.close_bytes == pytest.approx(5 * plain.up_bytes)  # four deltas are read, Θ is written
    assert moments.close_bytes == pytest.approx(7 * plain.up_bytes)


def test_times_follow_from_measured_speeds_and_are_not_known_without() -> None:
    spec, shape = DiLoCo(sync_every=50), Shape(tensors=GPT)
    unknown = estimate(spec, shape)
    assert (unknown.up_s, unknown.down_s, unknown.train_s, unknown.round_s) == (None, None, None, None)
    link = Link(write_bytes_per_s=1e6, read_bytes_per_s=2e6)
    found = estimate(spec, shape, link=link, pace=Pace(run="earlier", unit_s=0.1))
    assert found.up_s == found.up_bytes / 1e6
    assert found.down_s == found.down_bytes / 2e6
    assert found.train_s == pytest.approx(5.0)
    assert found.round_s is not None
    assert found.round_s > 5.0 + found.up_s + found.down_s
    clients = estimate(FedAvg(per_round=4), shape, learners=2, link=link, pace=Pace(run="earlier", unit_s=3.0))
    assert clients.train_s == 6.0  # two clients each


def test_buffers_are_moved_and_are_no_parameters() -> None:
    tensors = (TensorSpec("a", "F32", (100,)), TensorSpec("b", "F32", (50,), buffer=True))
    found = estimate(FedAvg(outer="fedavgm"), Shape(tensors=tensors))
    assert found.parameters == 100
    assert found.up_bytes > 600 + HEAD_BYTES
    assert gradient_bytes(Shape(tensors=tensors[:1])) == 400


def test_only_what_trained_the_same_tells_how_long_it_takes() -> None:
    options = {"size": "tiny"}
    told = [
        ("other", alike(DiLoCo(), "charlm", {"size": "base"}), 9.0),
        ("batches", alike(DiLoCo(global_batch_size=8), "charlm", options), 8.0),
        ("stopped", alike(DiLoCo(), "charlm", options), 0.0),
        ("same", alike(DiLoCo(sync_every=7, outer_lr=0.1), "charlm", options), 2.0),
    ]
    assert pace_of(DiLoCo(), "charlm", options, told) == Pace(run="same", unit_s=2.0)
    assert pace_of(FedAvg(), "charlm", options, told) is None
    assert pace_of(FineTune(), "mlx-lm", {}, told) is None
