"""What only PyTorch can get wrong."""

from __future__ import annotations

import numpy as np
import pytest

from swarm.core.errors import DeviceUnavailable, SchemaMismatch, UsageError
from swarm.tensors.schema import check_equal

torch = pytest.importorskip("torch")

from swarm.learners.torch import TorchAdapter, device  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def test_adams_state_survives_an_apply() -> None:
    def trained(*, applied: bool, fresh: bool) -> bytes:
        model = linear()
        adapter = TorchAdapter(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for step in range(3):
            train(model, optimizer, step)
            if applied:
                adapter.apply({name: array.copy() for name, array in adapter.snapshot().items()})
            if fresh:
                optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return b"".join(array.tobytes() for array in adapter.snapshot().values())

    assert trained(applied=True, fresh=False) == trained(applied=False, fresh=False)
    assert trained(applied=False, fresh=True) != trained(applied=False, fresh=False)


def test_parameters_are_written_and_not_replaced() -> None:
    model = linear()
    weight, address = model.weight, model.weight.data_ptr()
    TorchAdapter(model).apply({"weight": np.full((3, 4), 2, np.float32)})
    assert model.weight is weight
    assert weight.data_ptr() == address
    assert weight.requires_grad
    assert weight.is_leaf
    assert (weight == 2).all()


def test_a_snapshot_is_the_parameters_memory() -> None:
    model = linear()
    assert TorchAdapter(model).snapshot()["weight"].ctypes.data == model.weight.data_ptr()


def test_apply_is_seen_by_autograd() -> None:
    """A write behind autograd's back would give wrong gradients silently."""
    model = linear()
    loss = (model.weight * model.weight).sum()
    TorchAdapter(model).apply({"weight": np.zeros((3, 4), np.float32)})
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_a_tied_parameter_is_listed_once_and_stays_tied() -> None:
    model = Tied()
    adapter = TorchAdapter(model)
    assert adapter.schema().names == ("embed.weight",)
    adapter.apply({"embed.weight": np.full((5, 3), 3, np.float32)})
    assert model.head.weight is model.embed.weight
    assert (model.head.weight == 3).all()
    with pytest.raises(SchemaMismatch):
        adapter.apply({"head.weight": np.zeros((5, 3), np.float32)})


def test_frozen_parameters_and_buffers_are_not_exchanged() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    adapter = TorchAdapter(model)
    assert adapter.schema().names == tuple(sorted(adapter.snapshot())) == ("0.weight", "1.bias", "1.weight")
    with pytest.raises(SchemaMismatch):
        adapter.apply({"0.bias": np.zeros(2, np.float32)})


@pytest.mark.filterwarnings("ignore:Lazy modules")  # of older versions
def test_a_lazy_parameter_has_no_schema_yet() -> None:
    model = torch.nn.LazyLinear(3)
    with pytest.raises(SchemaMismatch, match="initialised"):
        TorchAdapter(model).schema()
    model(torch.zeros(1, 4))
    assert TorchAdapter(model).schema()["weight"].shape == (3, 4)


def test_the_sequential_of_each_framework_names_its_layers_differently() -> None:
    nn = pytest.importorskip("mlx.nn")
    from swarm.learners.mlx import MlxAdapter

    run = TorchAdapter(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))).schema()
    model = MlxAdapter(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))).schema()
    with pytest.raises(SchemaMismatch) as caught:
        check_equal(model, run)
    assert str(caught.value) == (
        "model does not match the run's schema: 0.bias, 0.weight, 1.bias, 1.weight, "
        "layers.0.bias, layers.0.weight, layers.1.bias, layers.1.weight"
    )


def test_a_tie_in_torch_equals_a_structural_tie_in_mlx() -> None:
    nn = pytest.importorskip("mlx.nn")
    from swarm.learners.mlx import MlxAdapter

    class Structural(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)

    check_equal(MlxAdapter(Structural()).schema(), TorchAdapter(Tied()).schema())


@pytest.mark.parametrize(
    "name", ["", "gpu", "cpu:0", "mps:1", "cuda:", "cuda:-1", "cuda:x", "cuda:²", "auto:0", "metal", "CPU"]
)
def test_what_is_no_device(name: str) -> None:
    with pytest.raises(UsageError, match="cuda:N"):
        device(name)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device("cpu") == device("auto") == torch.device("cpu")
    for absent in ("cuda", "cuda:0", "mps"):
        with pytest.raises(DeviceUnavailable, match=f"device {absent} is absent: "):
            device(absent)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device("mps") == device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device("cuda") == device("auto") == torch.device("cuda:0")
    assert device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(DeviceUnavailable, match="sees 2 CUDA devices"):
        device("cuda:2")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_cuda_models_bytes(dtype: torch.dtype) -> None:
    host, card = linear().to(dtype), linear().to("cuda", dtype)
    want = {name: array.tobytes() for name, array in TorchAdapter(host).snapshot().items()}
    adapter = TorchAdapter(card)
    adapter.apply({name: np.zeros_like(array) for name, array in TorchAdapter(host).snapshot().items()})
    adapter.apply(TorchAdapter(host).snapshot())
    assert {name: array.tobytes() for name, array in adapter.snapshot().items()} == want
    assert card.weight.device.type == "cuda"
