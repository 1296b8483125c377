"""What the two frameworks' models of a task owe each other: names, shapes, initial bytes, outputs, training, text."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from swarm.tasks.charlm.sizes import SIZES, Size
from swarm.tasks.charlm.trainable import initial as charlm_initial
from swarm.tasks.lenet5.sizes import Model
from tests.contract.tasks.trainables import FRAMEWORKS, build, parameters, write

needs_both = pytest.mark.usefixtures("both_frameworks")


MLP_SCHEMA = [
    ("fc1.bias", "F32", (32,)),
    ("fc1.weight", "F32", (32, 16)),
    ("fc2.bias", "F32", (4,)),
    ("fc2.weight", "F32", (4, 32)),
    ("norm.bias", "F32", (32,)),
    ("norm.weight", "F32", (32,)),
]


def charlm_schema(size: Size) -> list[tuple[str, str, tuple[int, ...]]]:
    d = size.width
    block: dict[str, tuple[int, ...]] = {f"attn.{name}.weight": (d, d) for name in "qkvo"}
    block |= {f"{norm}.{kind}": (d,) for norm in ("norm1", "norm2") for kind in ("weight", "bias")}
    block |= {"mlp.up.weight": (4 * d, d), "mlp.up.bias": (4 * d,), "mlp.down.weight": (d, 4 * d), "mlp.down.bias": (d,)}
    tensors: dict[str, tuple[int, ...]] = {"embed.weight": (256, d), "pos.weight": (size.seq_len, d)}
    tensors |= {"norm.weight": (d,), "norm.bias": (d,)}
    tensors |= {f"blocks.{i}.{name}": shape for i in range(size.layers) for name, shape in block.items()}
    return sorted((name, "F32", shape) for name, shape in tensors.items())


def net_of(task: str, framework: str, size: Size = SIZES["tiny"]) -> Any:
    backend = importlib.import_module(f"swarm.tasks.{task}.{framework}")
    if task == "lenet5":
        model = Model(convolutions=True, batch_norm=False, dropout=0.0)
        return backend.nets("cpu", model, learning_rate=0.01, buffers=False)[1]
    return backend.net("cpu", learning_rate=0.01) if task == "mlp" else backend.net(size, "cpu")


def literal(net: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(spec.name, spec.dtype, spec.shape) for spec in net.adapter.schema()]


def test_the_regressions_schema(framework: str) -> None:
    assert literal(net_of("mlp", framework)) == MLP_SCHEMA


@pytest.mark.parametrize("size", SIZES)
def test_the_language_models_schema(framework: str, size: str) -> None:
    assert literal(net_of("charlm", framework, SIZES[size])) == charlm_schema(SIZES[size])


@needs_both
def test_the_initial_model_has_the_same_bytes_in_both_frameworks(task: str) -> None:
    assert parameters(build(task, "torch")) == parameters(build(task, "mlx"))


@needs_both
@pytest.mark.parametrize("length", [1, 7, 64])
def test_the_same_bytes_give_the_same_outputs_in_both_frameworks(task: str, length: int) -> None:
    nets = [net_of(task, framework) for framework in FRAMEWORKS]
    drawn = np.random.default_rng(0)
    # Far from the initial values, where biases of 0 and norms of 1 would hide a mistake.
    theta = {spec.name: drawn.normal(0.1, 0.3, spec.shape).astype(np.float32) for spec in nets[0].adapter.schema()}
    if task == "mlp":
        x = drawn.standard_normal((length, 16), dtype=np.float32)
        y: np.ndarray = drawn.standard_normal((length, 4), dtype=np.float32)
    elif task == "lenet5":
        x, y = drawn.random((length, 28, 28), dtype=np.float32), drawn.integers(0, 10, length).astype(np.uint8)
    else:
        x, y = drawn.integers(0, 256, (2, 3, length)).astype(np.uint8)
    for net in nets:
        net.adapter.apply(theta)
    outputs = [net.predict(x) for net in nets]
    assert outputs[0].shape == {"mlp": (length, 4), "lenet5": (length, 10), "charlm": (3, length, 256)}[task]
    assert np.std(outputs[0]) > 0.1
    np.testing.assert_allclose(*outputs, atol=1e-4, rtol=1e-4)
    assert nets[0].loss(x, y) == pytest.approx(nets[1].loss(x, y), rel=1e-5)


@needs_both
def test_one_frameworks_trained_model_is_the_others(task: str) -> None:
    torch, mlx = (build(task, framework) for framework in FRAMEWORKS)
    for _ in range(5):
        torch.step()
    mlx.adapter.apply(torch.adapter.snapshot())
    assert parameters(mlx) == parameters(torch)
    assert mlx.evaluate().loss == pytest.approx(torch.evaluate().loss, abs=1e-4)


@needs_both
def test_both_frameworks_train_alike(task: str) -> None:
    """Same seed and stream: the same initial model, batches, loss, clipping and optimizer."""
    trainables = [build(task, framework, learning_rate="0.01") for framework in FRAMEWORKS]
    for trainable in trainables:
        trainable.use_stream("a", 1)
    losses = [[trainable.step().loss for _ in range(8)] for trainable in trainables]
    np.testing.assert_allclose(*losses, rtol=1e-3)
    ours, theirs = (trainable.adapter.snapshot() for trainable in trainables)
    initial = build(task, "torch").adapter.snapshot()
    for name in ours:
        moved = np.abs(ours[name] - initial[name]).mean()
        assert np.abs(ours[name] - theirs[name]).mean() < 0.05 * moved, name


def test_a_model_sees_only_what_came_before(framework: str) -> None:
    net = net_of("charlm", framework)
    schema = net.adapter.schema()
    net.adapter.apply(charlm_initial(schema, 0, layers=2))
    x = np.random.default_rng(0).integers(0, 256, (1, 12)).astype(np.uint8)
    changed = x.copy()
    changed[0, 8:] ^= 1
    before, after = net.predict(x), net.predict(changed)
    np.testing.assert_allclose(before[0, :8], after[0, :8], atol=1e-6)
    assert np.abs(before[0, 8:] - after[0, 8:]).max() > 1e-3


def test_the_residual_stream_starts_small() -> None:
    size = SIZES["small"]
    theta = charlm_initial(net_specs(size), 1, layers=size.layers)
    assert theta["blocks.0.attn.q.weight"].std() == pytest.approx(0.02, rel=0.05)
    assert theta["blocks.3.mlp.down.weight"].std() == pytest.approx(0.02 / 8**0.5, rel=0.05)
    assert theta["blocks.3.attn.o.weight"].std() == pytest.approx(0.02 / 8**0.5, rel=0.05)
    assert not theta["blocks.3.mlp.down.bias"].any()
    assert (theta["norm.weight"] == 1).all()


def net_specs(size: Size) -> Iterator[Any]:
    from swarm.core.tensorspec import TensorSpec

    return (TensorSpec(name, dtype, shape) for name, dtype, shape in charlm_schema(size))


@needs_both
def test_both_frameworks_write_the_same_text() -> None:
    torch, mlx = (build("charlm", framework) for framework in FRAMEWORKS)
    for _ in range(10):
        torch.step()
    mlx.adapter.apply(torch.adapter.snapshot())
    assert write(torch, temperature=0.8) == write(mlx, temperature=0.8)
