"""What only MLX can get wrong."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from swarm.core.errors import DeviceUnavailable, SchemaMismatch, UsageError

mx = pytest.importorskip("mlx.core")
nn = pytest.importorskip("mlx.nn")
optimizers = pytest.importorskip("mlx.optimizers")

from swarm.learners.mlx import MlxAdapter, device  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")


def train(model: Any, optimizer: Any, seed: int) -> None:
    x = mx.array(np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32))
    _, gradients = nn.value_and_grad(model, lambda: model(x).square().mean())()
    optimizer.update(model, gradients)
    mx.eval(model.parameters(), optimizer.state)


def linear() -> Any:
    mx.random.seed(0)
    return nn.Linear(4, 3)


def test_adams_state_survives_an_apply() -> None:
    def trained(*, applied: bool, fresh: bool) -> bytes:
        model = linear()
        adapter = MlxAdapter(model)
        optimizer = optimizers.Adam(learning_rate=0.1)
        for step in range(3):
            train(model, optimizer, step)
            if applied:
                adapter.apply({name: array.copy() for name, array in adapter.snapshot().items()})
            if fresh:
                optimizer = optimizers.Adam(learning_rate=0.1)
        return b"".join(array.tobytes() for _, array in sorted(adapter.snapshot().items()))

    assert trained(applied=True, fresh=False) == trained(applied=False, fresh=False)
    assert trained(applied=False, fresh=True) != trained(applied=False, fresh=False)


def test_a_snapshot_outlives_its_model() -> None:
    """The view holds the array, so that MLX does not give its memory to another one."""
    model = linear()
    model.set_dtype(mx.bfloat16)
    view = MlxAdapter(model).snapshot()["weight"]
    before = view.tobytes()
    model.update({"weight": mx.zeros((3, 4), dtype=mx.bfloat16)})
    del model
    gc.collect()
    mx.eval([mx.full((3, 4), n, dtype=mx.bfloat16) for n in range(50)])
    assert view.tobytes() == before


class Tied(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_an_identity_tie_is_rejected_by_name() -> None:
    model = Tied()
    adapter = MlxAdapter(model)
    before = np.array(model.embed.weight)
    for call in (adapter.schema, lambda: adapter.apply({"embed.weight": np.zeros((5, 3), np.float32)})):
        with pytest.raises(SchemaMismatch, match=r"embed\.as_linear") as caught:
            call()
        assert caught.value.names == ("embed.weight", "head.weight")
    assert (np.array(model.embed.weight) == before).all()


def test_a_tie_to_a_frozen_parameter_breaks_too() -> None:
    model = Tied()
    model.embed.freeze()
    with pytest.raises(SchemaMismatch):
        MlxAdapter(model).schema()
    model.head.freeze()
    assert len(MlxAdapter(model).schema()) == 0


def test_frozen_parameters_are_not_exchanged() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm(2))
    model.layers[0].freeze(keys="bias")
    adapter = MlxAdapter(model)
    assert adapter.schema().names == tuple(sorted(adapter.snapshot()))
    assert adapter.schema().names == ("layers.0.weight", "layers.1.bias", "layers.1.weight")
    with pytest.raises(SchemaMismatch):
        adapter.apply({"layers.0.bias": np.zeros(2, np.float32)})


def test_lists_and_dicts_of_layers_keep_their_structure() -> None:
    model = nn.Module()
    model.layers = [nn.Linear(2, 2), {"0": nn.Linear(2, 2), "x": [nn.Linear(2, 2)]}]
    adapter = MlxAdapter(model)
    before = {name: array.tobytes() for name, array in adapter.snapshot().items()}
    assert "layers.1.0.weight" in before
    adapter.apply({"layers.1.0.weight": np.ones((2, 2), np.float32), "layers.1.x.0.bias": np.ones(2, np.float32)})
    after = {name: array.tobytes() for name, array in adapter.snapshot().items()}
    assert {name for name in after if after[name] != before[name]} == {"layers.1.0.weight", "layers.1.x.0.bias"}
    assert type(model.layers[1]) is dict
    assert (np.array(model.layers[1]["0"].weight) == 1).all()


def test_applied_subnormals_are_not_flushed() -> None:
    model = linear()
    tiny = np.full((3, 4), 1e-40, np.float32)
    MlxAdapter(model).apply({"weight": tiny})
    assert MlxAdapter(model).snapshot()["weight"].tobytes() == tiny.tobytes()


@pytest.mark.parametrize("name", ["", "gpu", "mps", "cuda", "cuda:0", "metal:0", "CPU"])
def test_what_is_no_device(name: str) -> None:
    with pytest.raises(UsageError, match="auto, cpu or metal"):
        device(name)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device("cpu") == mx.Device(mx.cpu)
    assert device("auto") == mx.default_device()
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match="device metal is absent: "):
        device("metal")
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert device("metal") == mx.Device(mx.gpu)
