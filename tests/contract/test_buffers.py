"""What a model keeps beside its parameters, in every adapter: exchanged like them, or not touched at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from swarm.core.errors import SchemaMismatch
from swarm.learners.contract import Adapter
from swarm.learners.layout import Join, Layout, Permute, Rename, Split
from swarm.learners.numpy import Arrays
from swarm.learners.select import adapter_for
from swarm.tensors.payload import Packed, unpack
from swarm.tensors.schema import TensorSpec

pytestmark = pytest.mark.filterwarnings("error")

F32 = np.float32
PARAMETERS = {"fc.bias": (4,), "fc.weight": (4, 3), "norm.bias": (4,), "norm.weight": (4,)}
STATISTICS = {"norm.running_mean": (4,), "norm.running_var": (4,)}
SCHEMA = [
    TensorSpec(name, "F32", shape, buffer=name in STATISTICS) for name, shape in sorted((PARAMETERS | STATISTICS).items())
]


def numpy_model() -> Any:
    values = np.random.default_rng(0)
    made = {name: values.random(shape, F32) for name, shape in (PARAMETERS | STATISTICS).items()}
    return Arrays(made, buffers=STATISTICS)


def torch_model() -> Any:
    torch = pytest.importorskip("torch")
    model = torch.nn.Module()
    model.fc, model.norm = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)
    model.register_buffer("cached", torch.zeros(2), persistent=False)
    return model


def mlx_model() -> Any:
    nn, mx = pytest.importorskip("mlx.nn"), pytest.importorskip("mlx.core")
    model = nn.Module()
    model.fc, model.norm = nn.Linear(3, 4), nn.BatchNorm(4)
    model._cached = mx.zeros(2)
    return model


MODELS: dict[str, Callable[[], Any]] = {"numpy": numpy_model, "torch": torch_model, "mlx": mlx_model}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def everything(model: Any) -> dict[str, bytes]:
    """Every tensor of `model`, read without an adapter."""
    if isinstance(model, Arrays):
        return {name: array.tobytes() for name, array in model.items()}
    if hasattr(model, "state_dict"):
        return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}
    from mlx.utils import tree_flatten

    return {name: np.array(array).tobytes() for name, array in tree_flatten(model.parameters())}


def values(adapter: Adapter, seed: int = 0) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    kinds = {"I32": np.int32, "I64": np.int64}
    return {
        spec.name: random.integers(-(2**31), 2**31, spec.shape).astype(kinds[spec.dtype])
        if spec.dtype in kinds
        else random.standard_normal(spec.shape).astype(F32)
        for spec in adapter.schema()
    }


def held(adapter: Adapter) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in adapter.snapshot().items()}


def raw(tensors: Mapping[str, NDArray[Any]]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors.items()}


def test_the_schema_says_which_they_are(model: Any) -> None:
    assert list(adapter_for(model, buffers=True).schema()) == SCHEMA
    assert list(adapter_for(model).schema()) == [spec for spec in SCHEMA if not spec.buffer]


def test_they_are_read_and_written_like_parameters(model: Any) -> None:
    adapter = adapter_for(model, buffers=True)
    new = values(adapter)
    want = raw(new)
    adapter.apply(new)
    for array in new.values():
        array[...] = 7
    assert held(adapter) == want
    assert want.items() <= everything(model).items()
    snapshot = adapter.snapshot()
    for name, array in snapshot.items():
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        assert array.ctypes.data == adapter.snapshot()[name].ctypes.data  # no copy
    adapter.apply({"norm.running_var": np.full(4, 5, F32)})
    assert held(adapter) == want | {"norm.running_var": np.full(4, 5, F32).tobytes()}
    assert adapter.snapshot({"norm.running_mean"}).keys() == {"norm.running_mean"}


def test_without_them_nothing_touches_them(model: Any) -> None:
    adapter_for(model, buffers=True).apply(values(adapter_for(model, buffers=True)))
    before = everything(model)
    adapter = adapter_for(model)
    assert adapter.snapshot().keys() == PARAMETERS.keys()
    new = values(adapter, seed=1)
    adapter.apply(new)
    assert everything(model) == before | raw(new)
    for name in STATISTICS:
        with pytest.raises(SchemaMismatch) as caught:
            adapter.apply({"fc.bias": np.zeros(4, F32), name: np.zeros(4, F32)})
        assert caught.value.names == (name,)
    assert everything(model) == before | raw(new)


@pytest.mark.parametrize(
    "wrong", [np.zeros(3, F32), np.zeros((4, 1), F32), np.zeros(4, np.float16), np.zeros(4, np.int32)], ids=str
)
def test_a_mismatch_is_raised_before_anything_changes(model: Any, wrong: NDArray[Any]) -> None:
    adapter = adapter_for(model, buffers=True)
    before = everything(model)
    with pytest.raises(SchemaMismatch) as caught:
        adapter.apply({"fc.bias": np.full(4, 3, F32), "norm.running_var": wrong})
    assert caught.value.names == ("norm.running_var",)
    assert everything(model) == before


@pytest.mark.parametrize("source", MODELS)
@pytest.mark.parametrize("target", MODELS)
def test_equal_bytes_in_every_framework(source: str, target: str) -> None:
    one, other = (adapter_for(MODELS[name](), "auto", buffers=True) for name in (source, target))
    assert list(one.schema()) == list(other.schema())
    assert one.schema().digest == other.schema().digest
    new = values(one, seed=2)
    new["norm.running_var"][:3] = np.array([0x7FC01234, 1, 0x80000000], np.uint32).view(F32)
    one.apply(new)
    sent = b"".join(Packed(one.snapshot()))
    other.apply(unpack(sent))
    assert b"".join(Packed(other.snapshot())) == sent


def test_a_layout_moves_them_too(model: Any) -> None:
    rules = (
        Permute("fc.weight", axes=(1, 0), to="w"),
        Rename("*.bias", to="*.b"),
        Rename("norm.weight", to="norm.w"),
        Join(("norm.running_mean", "norm.running_var"), to="statistics"),
    )
    adapter = adapter_for(model, Layout(rules), buffers=True)
    specs = {spec.name: (spec.shape, spec.buffer) for spec in adapter.schema()}
    assert specs == {
        "w": ((3, 4), False),
        "fc.b": ((4,), False),
        "norm.b": ((4,), False),
        "norm.w": ((4,), False),
        "statistics": ((8,), True),
    }
    new = values(adapter)
    adapter.apply(new)
    assert held(adapter) == raw(new)
    assert everything(model)["norm.running_var"] == new["statistics"][4:].tobytes()
    split = adapter_for(model, Layout((Split("norm.running_mean", to=("low", "high")),)), buffers=True)
    split.apply({"high": np.array([8, 9], F32)})
    assert split.snapshot()["low"].tobytes() == new["statistics"][:2].tobytes()
    assert everything(model)["norm.running_mean"] == np.array([*new["statistics"][:2], 8, 9], F32).tobytes()
    with pytest.raises(SchemaMismatch, match="a parameter and a buffer cannot be joined"):
        adapter_for(model, Layout((Join(("norm.weight", "norm.running_var"), to="both"),)), buffers=True).schema()


def test_a_layout_with_rules_for_them_serves_where_they_are_local(model: Any) -> None:
    rules = (Rename("norm.running_mean", to="mean"), Rename("fc.bias", to="b"))
    adapter = adapter_for(model, Layout(rules))
    assert set(adapter.schema().names) == {"b", "fc.weight", "norm.bias", "norm.weight"}
    with pytest.raises(SchemaMismatch, match="matches no"):
        adapter_for(model, Layout((*rules, Rename("norm.nothing", to="n")))).schema()


def test_of_a_plain_model_all_is_as_before() -> None:
    model = {"w": np.zeros(3, F32)}
    assert list(adapter_for(model, buffers=True).schema()) == [TensorSpec("w", "F32", (3,))]
    assert adapter_for(model, buffers=True).warnings() == ()


# Built-in modules in both frameworks


@pytest.fixture
def cpu() -> Iterator[None]:
    mx = pytest.importorskip("mlx.core")
    with mx.stream(mx.cpu):
        yield


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_means_the_same_in_both(cpu: None, rank: int, affine: bool) -> None:
    torch, nn, mx = (pytest.importorskip(name) for name in ("torch", "mlx.nn", "mlx.core"))
    kind = f"{rank}d"
    one = torch.nn.Sequential(
        getattr(torch.nn, f"Conv{kind}")(3, 4, 2),
        torch.nn.Sequential(getattr(torch.nn, f"BatchNorm{kind}")(4, affine=affine)),
        torch.nn.GroupNorm(2, 4),
    )
    other = nn.Sequential(
        getattr(nn, f"Conv{kind}")(3, 4, 2),
        nn.Sequential(nn.BatchNorm(4, affine=affine)),
        nn.GroupNorm(2, 4, pytorch_compatible=True),
    )
    adapters = [adapter_for(model, "auto", buffers=True) for model in (one, other)]
    assert list(adapters[0].schema()) == list(adapters[1].schema())
    assert [spec.name for spec in adapters[0].schema() if spec.buffer] == ["1.0.running_mean", "1.0.running_var"]
    new = {name: np.abs(array) for name, array in values(adapters[0]).items()}
    for adapter in adapters:
        adapter.apply(new)
        assert held(adapter) == raw(new)
    x = np.random.default_rng(1).standard_normal((5, 3, *(6,) * rank)).astype(F32)

    def outputs() -> tuple[NDArray[Any], NDArray[Any]]:
        last = np.array(other(mx.array(np.ascontiguousarray(np.moveaxis(x, 1, -1)))))
        return one(torch.from_numpy(x)).detach().numpy(), np.moveaxis(last, -1, 1)

    one.eval(), other.eval()
    np.testing.assert_allclose(*outputs(), rtol=0, atol=1e-4)
    one.train(), other.train()
    np.testing.assert_allclose(*outputs(), rtol=0, atol=1e-4)
    ours, theirs = (adapter.snapshot() for adapter in adapters)
    for name in ("1.0.running_mean", "1.0.running_var"):
        assert ours[name].tobytes() != new[name].tobytes()
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["torch", "mlx"])
def test_what_a_person_froze_is_no_buffer_and_is_told(name: str) -> None:
    model = MODELS[name]()
    parameter = model.fc.weight
    if name == "torch":
        model.fc.requires_grad_(False)
    else:
        model.fc.freeze()
    adapter = adapter_for(model, buffers=True)
    assert set(adapter.schema().names) == {"norm.bias", "norm.weight", *STATISTICS}
    before = everything(model)
    adapter.apply(values(adapter))
    assert {n: everything(model)[n] for n in ("fc.weight", "fc.bias")} == {n: before[n] for n in ("fc.weight", "fc.bias")}
    assert model.fc.weight is parameter
    (line,) = adapter.warnings()
    assert "fc.weight" in line
    assert "fc.bias" in line
    assert "frozen, so neither trained nor exchanged" in line
    assert adapter_for(model).warnings() == ()


# Counters, and what cannot be exchanged

COUNTERS = [TensorSpec("fixed", "I32", (), buffer=True), TensorSpec("steps", "I64", (2,), buffer=True)]


def counting(model: Any) -> Any:
    """`model` with two counters, and a buffer of a dtype that is not exchanged."""
    fixed, steps, flags = np.array(3, np.int32), np.array([5, 2**40], np.int64), np.array([True, False])
    if isinstance(model, Arrays):
        return Arrays(
            {**model, "fixed": fixed, "steps": steps, "flags": flags}, buffers={*STATISTICS, "fixed", "steps", "flags"}
        )
    if hasattr(model, "register_buffer"):
        torch = pytest.importorskip("torch")
        for name, array in (("fixed", fixed), ("steps", steps), ("flags", flags)):
            model.register_buffer(name, torch.from_numpy(array.copy()))
        return model
    mx, nn = pytest.importorskip("mlx.core"), pytest.importorskip("mlx.nn")

    class Counting(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = model.fc, model.norm
            self.fixed, self.steps, self.flags = mx.array(fixed), mx.array(steps), mx.array(flags)
            self.unfreeze()

        def unfreeze(self, **options: Any) -> None:
            super().unfreeze(**options)
            self.norm.unfreeze()
            self.freeze(keys=["fixed", "steps", "flags"], recurse=False)

    return Counting()


def test_integers_keep_their_type(model: Any) -> None:
    adapter = adapter_for(counting(model), "auto", buffers=True)
    assert list(adapter.schema()) == sorted([*SCHEMA, *COUNTERS], key=lambda spec: spec.name)
    assert adapter.snapshot()["steps"].tolist() == [5, 2**40]
    assert adapter.snapshot()["fixed"].shape == ()
    new = values(adapter) | {"steps": np.array([-1, 2**53 + 1])}
    adapter.apply(new)
    assert held(adapter) == raw(new)
    with pytest.raises(SchemaMismatch):
        adapter.apply({"steps": np.zeros(2, np.int32)})
    with pytest.raises(SchemaMismatch):
        adapter.apply({"fixed": np.zeros(1, np.int32)})
    assert held(adapter) == raw(new)
    split = adapter_for(counting(model), Layout((Split("steps", to=("a", "b")),)), buffers=True)
    split.apply({"b": np.array([9])})
    assert split.snapshot()["b"].dtype == np.int64
    assert split.snapshot()["b"].tolist() == [9]


def test_what_cannot_be_exchanged_stays_local_and_is_told(model: Any) -> None:
    made = counting(model)
    adapter = adapter_for(made, buffers=True)
    assert adapter.warnings() == (
        "flags (bool): every learner keeps its own, as only dense F32, F16, BF16, I32 and I64 buffers are exchanged",
    )
    assert adapter_for(made, "auto", buffers=True).warnings() == adapter.warnings()
    assert adapter_for(made).warnings() == ()
    before = everything(made)["flags"]
    adapter.apply(values(adapter))
    assert everything(made)["flags"] == before
    with pytest.raises(SchemaMismatch):
        adapter.apply({"flags": np.zeros(2, np.bool_)})


# What only PyTorch, or only MLX, can get wrong


def test_torch_buffers_are_written_and_not_replaced() -> None:
    torch = pytest.importorskip("torch")
    model = torch_model()
    model.alias = model.norm
    ran = torch.compile(model.norm, backend="eager")
    model.eval()
    x = torch.ones(2, 4)
    ran(x)
    var, counted, cached = model.norm.running_var, model.norm.num_batches_tracked, model.cached
    adapter = adapter_for(model, buffers=True)
    adapter.apply({"norm.running_var": np.full(4, 100, F32), "norm.running_mean": np.ones(4, F32)})
    assert model.norm.running_var is var
    assert not var.requires_grad
    assert (ran(x) == 0).all()  # at the mean: the compiled model sees it
    assert (model.norm.num_batches_tracked is counted, model.cached is cached) == (True, True)
    assert [name for name in adapter.schema().names if "tracked" in name or "cached" in name or "alias" in name] == []


@pytest.mark.parametrize("kind", ["BatchNorm3d", "SyncBatchNorm", "InstanceNorm2d"])
def test_torch_counts_batches_for_itself(kind: str) -> None:
    torch = pytest.importorskip("torch")
    model = getattr(torch.nn, kind)(3, track_running_stats=True)
    assert "num_batches_tracked" in dict(model.named_buffers())
    assert {s.name for s in adapter_for(model, buffers=True).schema() if s.buffer} == {"running_mean", "running_var"}
    model.steps = torch.nn.Buffer(torch.zeros((), dtype=torch.int64))
    assert "steps" in adapter_for(model, buffers=True).schema()


def test_torch_buffers_without_a_shape_or_memory_of_their_own() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(SchemaMismatch, match="initialised"):
        adapter_for(torch.nn.LazyBatchNorm1d(affine=False), buffers=True).schema()
    model = torch.nn.Linear(2, 2)
    model.register_buffer("wide", torch.zeros(1).expand(3))
    model.register_buffer("turned", torch.arange(6.0).reshape(2, 3).T)
    adapter = adapter_for(model, buffers=True)
    assert [spec.name for spec in adapter.schema() if spec.buffer] == ["turned"]
    adapter.apply({"turned": np.array([[9, 8], [7, 6], [5, 4]], F32)})
    assert model.turned.tolist() == [[9, 8], [7, 6], [5, 4]]
    assert len(adapter.warnings()) == 1


def test_mlx_statistics_are_no_parameters_after_a_whole_model_was_unfrozen() -> None:
    """MLX's unfreeze of a whole model forgets that BatchNorm's are frozen."""
    model = mlx_model()
    model.freeze()
    assert [spec.name for spec in adapter_for(model, buffers=True).schema()] == sorted(STATISTICS)
    model.unfreeze()
    assert "running_var" in model.trainable_parameters()["norm"]
    assert list(adapter_for(model, buffers=True).schema()) == SCHEMA
    assert list(adapter_for(model, "auto").schema()) == [spec for spec in SCHEMA if not spec.buffer]


def test_mlx_quantised_weights_are_frozen_parameters() -> None:
    nn = pytest.importorskip("mlx.nn")
    model = nn.Sequential(nn.QuantizedLinear(64, 32), nn.Linear(32, 4))
    adapter = adapter_for(model, "auto", buffers=True)
    assert adapter.schema().names == ("1.bias", "1.weight")
    (line,) = adapter.warnings()
    assert line.startswith("layers.0.")
    assert "frozen" in line


def test_mlx_a_step_that_is_compiled_sees_what_was_applied() -> None:
    mx, nn = pytest.importorskip("mlx.core"), pytest.importorskip("mlx.nn")
    with mx.stream(mx.cpu):
        model = nn.BatchNorm(4)

        def forward(x: Any) -> Any:
            return model(x)

        ran = mx.compile(forward, inputs=model.state, outputs=model.state)
        x = mx.array(np.random.default_rng(0).standard_normal((3, 4)).astype(F32))
        mx.eval(ran(x))
        adapter = adapter_for(model, buffers=True)
        adapter.apply({"running_mean": np.full(4, 10, F32)})
        mx.eval(ran(x))
        assert (adapter.snapshot()["running_mean"] > 8).all()  # 0.9 of it, and 0.1 of the batch's
