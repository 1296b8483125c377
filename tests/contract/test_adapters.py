"""One suite for every adapter: each must hand over and take back the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from swarm.core.errors import SchemaMismatch
from swarm.learners.contract import Adapter
from swarm.learners.layout import Join, Layout, Permute, Rename, Split
from swarm.learners.select import adapter_for
from swarm.tensors.payload import Packed, unpack
from swarm.tensors.precision import BF16, DTYPES
from swarm.tensors.schema import Schema, TensorSpec, check_equal

pytestmark = pytest.mark.filterwarnings("error")

Shapes = Mapping[str, tuple[int, ...]]
MLP: Shapes = {
    "fc1.bias": (32,),
    "fc1.weight": (32, 16),
    "fc2.bias": (4,),
    "fc2.weight": (4, 32),
    "norm.bias": (32,),
    "norm.weight": (32,),
}


class Framework(NamedTuple):
    """How the suite makes models, by framework."""

    name: str
    mlp: Callable[[str], Any]
    """The demo model with that dtype."""
    bag: Callable[[Shapes, str], Any]
    """A model with just these parameters, all zero."""
    strided: Callable[[], Any]
    """A model whose one parameter 'w', (3, 2), is the transpose of 0…5 in memory."""
    float64: Callable[[], Any]
    """A model with a parameter 'w' of a dtype that is not exchanged, and one 'fine'."""
    adapter: Callable[[Any], Adapter] = adapter_for
    copied: frozenset[str] = frozenset()
    """What a snapshot of the demo model on the CPU has to copy."""


def numpy_framework() -> Framework:
    def bag(shapes: Shapes, code: str) -> Any:
        return {name: np.zeros(shape, DTYPES[code]) for name, shape in shapes.items()}

    return Framework(
        name="numpy",
        mlp=lambda code: bag(MLP, code),
        bag=bag,
        strided=lambda: {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T},
        float64=lambda: {"w": np.zeros(3), "fine": np.zeros(3, np.float32)},
    )


def torch_framework() -> Framework:
    torch = pytest.importorskip("torch")
    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

    class MLPModel(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = torch.nn.Linear(16, 32)
            self.norm = torch.nn.LayerNorm(32)
            self.fc2 = torch.nn.Linear(32, 4)

    def bag(shapes: Shapes, code: str) -> Any:
        model = torch.nn.Module()
        for name, shape in shapes.items():
            model.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtypes[code])))
        return model

    def strided() -> Any:
        model = torch.nn.Module()
        model.w = torch.nn.Parameter(torch.arange(6, dtype=torch.float32).reshape(2, 3).T)
        return model

    def float64() -> Any:
        model = bag({"fine": (3,)}, "F32")
        model.w = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        return model

    return Framework("torch", lambda code: MLPModel().to(dtypes[code]), bag, strided, float64)


def mlx_framework() -> Framework:
    mx = pytest.importorskip("mlx.core")
    nn = pytest.importorskip("mlx.nn")
    dtypes = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}

    class MLPModel(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(16, 32)
            self.norm = nn.LayerNorm(32)
            self.fc2 = nn.Linear(32, 4)

    def mlp(code: str) -> Any:
        model = MLPModel()
        model.set_dtype(dtypes[code])
        return model

    def bag(shapes: Shapes, code: str) -> Any:
        model = nn.Module()
        for name, shape in shapes.items():
            model[name] = mx.zeros(shape, dtype=dtypes[code])
        return model

    def strided() -> Any:
        model = nn.Module()
        model.w = mx.arange(6, dtype=mx.float32).reshape(2, 3).T
        return model

    def float64() -> Any:
        model = bag({"fine": (3,)}, "F32")
        model.w = mx.zeros(3, dtype=mx.complex64)
        return model

    return Framework("mlx", mlp, bag, strided, float64)


class Mapped(NamedTuple):
    model: Any
    layout: Layout


def mapped(made: Callable[[], Framework]) -> Callable[[], Framework]:
    """The same models, of which nothing is in the framework as it is outside: every rule has its part in them."""

    def framework() -> Framework:
        plain = made()

        def mlp(code: str) -> Mapped:
            shapes = {"w1": (16, 32), "packed": (96,), "top": (2, 32), "low": (2, 32), "last": (4,)}
            rules = (
                Permute("w1", axes=(1, 0), to="fc1.weight"),
                Split("packed", to=("fc1.bias", "norm.bias", "norm.weight")),
                Join(("top", "low"), to="fc2.weight"),
                Rename("last", to="fc2.bias"),
            )
            return Mapped(plain.bag(shapes, code), Layout(rules))

        def bag(shapes: Shapes, code: str) -> Mapped:
            back = {name: tuple(reversed(range(len(shape)))) for name, shape in shapes.items()}
            layout = Layout(tuple(Permute(name, axes=axes) for name, axes in back.items()))
            return Mapped(plain.bag({name: tuple(reversed(shape)) for name, shape in shapes.items()}, code), layout)

        def strided() -> Mapped:
            made = bag({"w": (3, 2)}, "F32")
            adapter_for(made.model).apply({"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
            return made

        return Framework(
            plain.name,
            mlp,
            bag,
            strided,
            float64=lambda: Mapped(plain.float64(), Layout()),
            adapter=lambda made: adapter_for(*made),
            copied=frozenset({"fc1.weight", "fc2.weight"}),
        )

    return framework


PLAIN = {"numpy": numpy_framework, "torch": torch_framework, "mlx": mlx_framework}
FRAMEWORKS = PLAIN | {f"{name}, mapped": mapped(made) for name, made in PLAIN.items()}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Framework:
    return FRAMEWORKS[request.param]()


@pytest.fixture(params=["F32", "F16", "BF16"])
def code(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def every_pattern(code: str) -> NDArray[Any]:
    """All 16-bit patterns; of F32 all upper halves with several lower ones. Subnormals and NaN payloads are in."""
    patterns = np.arange(65_536, dtype=np.uint16)
    if code != "F32":
        return patterns.view(DTYPES[code]).reshape(256, 256)
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return ((patterns.astype(np.uint32) << 16)[:, None] | lower).view(np.float32)


def values(schema: Schema, seed: int = 0) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(seed)
    return {spec.name: random.standard_normal(spec.shape).astype(np.float32).astype(DTYPES[spec.dtype]) for spec in schema}


def held(adapter: Adapter) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in adapter.snapshot().items()}


def payload(adapter: Adapter) -> bytes:
    return b"".join(Packed(adapter.snapshot()))


def test_the_demo_models_schema(framework: Framework, code: str) -> None:
    adapter = framework.adapter(framework.mlp(code))
    assert adapter.framework == framework.name
    assert list(adapter.schema()) == [TensorSpec(name, code, shape) for name, shape in MLP.items()]


def test_a_snapshot_is_read_only_contiguous_and_as_the_schema_says(framework: Framework, code: str) -> None:
    adapter = framework.adapter(framework.mlp(code))
    snapshot = adapter.snapshot()
    schema = adapter.schema()
    assert sorted(snapshot) == list(schema.names)
    for name, array in snapshot.items():
        assert (array.dtype, array.shape) == (DTYPES[code], schema[name].shape)
        assert array.flags.c_contiguous
        assert not array.flags.writeable


def test_a_snapshot_on_the_cpu_is_no_copy(framework: Framework, code: str) -> None:
    adapter = framework.adapter(framework.mlp(code))
    once, again = adapter.snapshot(), adapter.snapshot()
    for name, array in once.items():
        assert (array.ctypes.data == again[name].ctypes.data) == (name not in framework.copied), name


def test_what_is_applied_reads_back_unchanged(framework: Framework, code: str) -> None:
    pattern = every_pattern(code)
    adapter = framework.adapter(framework.bag({"w": pattern.shape}, code))
    assert held(adapter)["w"] == bytes(pattern.nbytes)
    adapter.apply({"w": pattern})
    assert held(adapter)["w"] == pattern.tobytes()


def test_scalars_and_empty_tensors(framework: Framework, code: str) -> None:
    adapter = framework.adapter(framework.bag({"s": (), "none": (0, 3), "w": (2,)}, code))
    assert [(spec.name, spec.shape) for spec in adapter.schema()] == [("none", (0, 3)), ("s", ()), ("w", (2,))]
    assert {name: array.shape for name, array in adapter.snapshot().items()} == {"s": (), "none": (0, 3), "w": (2,)}
    new = values(adapter.schema())
    adapter.apply(new)
    assert held(adapter) == {name: array.tobytes() for name, array in new.items()}
    assert {name: array.shape for name, array in adapter.snapshot().items()} == {"s": (), "none": (0, 3), "w": (2,)}


def test_a_part_may_be_applied(framework: Framework, code: str) -> None:
    adapter = framework.adapter(framework.mlp(code))
    adapter.apply(values(adapter.schema()))
    before = held(adapter)
    new = values(adapter.schema(), seed=1)["fc2.weight"]
    adapter.apply({"fc2.weight": new})
    assert held(adapter) == before | {"fc2.weight": new.tobytes()}
    adapter.apply({})
    assert held(adapter) == before | {"fc2.weight": new.tobytes()}
    for name, array in values(adapter.schema(), seed=2).items():
        before = held(adapter)
        adapter.apply({name: array})
        assert held(adapter) == before | {name: array.tobytes()}


def test_a_part_may_be_asked_for(framework: Framework, code: str) -> None:
    adapter = framework.adapter(framework.mlp(code))
    adapter.apply(values(adapter.schema()))
    whole = held(adapter)
    part = adapter.snapshot({"norm.bias", "fc2.weight", "fc3.weight"})
    assert {name: array.tobytes() for name, array in part.items()} == {n: whole[n] for n in ("norm.bias", "fc2.weight")}
    assert dict(adapter.snapshot(())) == {}


def test_the_callers_arrays_are_its_own_afterwards(framework: Framework, code: str) -> None:
    adapter = framework.adapter(framework.mlp(code))
    new = values(adapter.schema())
    want = {name: array.tobytes() for name, array in new.items()}
    adapter.apply(new)
    for array in new.values():
        array[...] = 7
    assert held(adapter) == want


def test_any_memory_layout_may_be_applied(framework: Framework, code: str) -> None:
    """Read-only views into a payload, misaligned ones, strided ones, backward ones."""
    adapter = framework.adapter(framework.mlp(code))
    new = values(adapter.schema())
    want = {name: array.tobytes() for name, array in new.items()}
    data = b"\0" + b"".join(Packed(new))
    views = unpack(memoryview(data)[1:])
    assert any(not array.flags.aligned for array in views.values())
    adapter.apply(views)
    assert held(adapter) == want
    for strided in (np.asfortranarray, lambda array: np.flip(np.flip(array).copy())):
        adapter.apply({name: np.zeros_like(array) for name, array in new.items()})
        adapter.apply({name: strided(array) for name, array in new.items()})
        assert held(adapter) == want


@pytest.mark.parametrize(
    ("name", "shape", "code"),
    [
        ("fc1.weight", (1, 16), "F32"),  # would broadcast
        ("fc1.weight", (16, 32), "F32"),
        ("fc1.weight", (512,), "F32"),
        ("fc1.bias", (), "F32"),
        ("fc1.bias", (32,), "BF16"),  # would be cast
        ("fc1.bias", (32,), "F16"),
        ("fc3.bias", (32,), "F32"),
        ("fc1", (32,), "F32"),
        ("", (32,), "F32"),
    ],
)
def test_a_mismatch_is_raised_before_anything_changes(
    framework: Framework, name: str, shape: tuple[int, ...], code: str
) -> None:
    adapter = framework.adapter(framework.mlp("F32"))
    before = held(adapter)
    good = {"norm.bias": np.full(32, 5, np.float32), "fc2.bias": np.full(4, 5, np.float32)}
    with pytest.raises(SchemaMismatch) as caught:
        adapter.apply(good | {name: np.full(shape, 5, DTYPES[code])})
    assert caught.value.names == (name,)
    assert held(adapter) == before
    adapter.apply(good)
    assert held(adapter) != before


@pytest.mark.parametrize("dtype", [">f4", "f8", "i4"])
def test_other_dtypes_are_not_converted(framework: Framework, dtype: str) -> None:
    adapter = framework.adapter(framework.mlp("F32"))
    with pytest.raises(SchemaMismatch):
        adapter.apply({"fc1.bias": np.ones(32, dtype)})


def test_a_strided_parameter(framework: Framework) -> None:
    adapter = framework.adapter(framework.strided())
    assert adapter.schema()["w"].shape == (3, 2)
    snapshot = adapter.snapshot()["w"]
    assert snapshot.flags.c_contiguous
    assert snapshot.tolist() == [[0, 3], [1, 4], [2, 5]]
    adapter.apply({"w": np.array([[9, 8], [7, 6], [5, 4]], np.float32)})
    assert adapter.snapshot()["w"].tolist() == [[9, 8], [7, 6], [5, 4]]


def test_a_dtype_that_is_not_exchanged(framework: Framework) -> None:
    with pytest.raises(SchemaMismatch, match="F32, F16 and BF16") as caught:
        framework.adapter(framework.float64()).schema()
    assert caught.value.names == ("w",)


@pytest.mark.parametrize("source", FRAMEWORKS)
@pytest.mark.parametrize("target", FRAMEWORKS)
def test_bytes_of_one_applied_to_another_read_back_unchanged(source: str, target: str, code: str) -> None:
    one, other = (framework.adapter(framework.mlp(code)) for framework in (FRAMEWORKS[source](), FRAMEWORKS[target]()))
    check_equal(one.schema(), other.schema())
    assert one.schema().digest == other.schema().digest
    one.apply(values(one.schema()))
    sent = payload(one)
    assert payload(other) != sent
    other.apply(unpack(sent))
    assert payload(other) == sent
    assert one.snapshot()["fc1.weight"][31, 2] == other.snapshot()["fc1.weight"][31, 2]


def test_any_text_may_name_a_parameter() -> None:
    name = 'é\n"\\\x00日'
    for framework in (made() for made in FRAMEWORKS.values()):
        model = framework.bag({name: (2,), "0": (1,)}, "F32")
        adapter = framework.adapter(model)
        adapter.apply({name: np.ones(2, np.float32), "0": np.ones(1, np.float32)})
        assert {n: a.tolist() for n, a in unpack(payload(adapter)).items()} == {name: [1, 1], "0": [1]}


def test_subnormals_survive_beside_the_frameworks() -> None:
    """Neither framework leaves this thread's floating point unit flushing subnormals, which would change our sums."""
    for framework in (torch_framework(), mlx_framework()):
        adapter = framework.adapter(framework.mlp("F32"))
        adapter.apply(values(adapter.schema()))
        adapter.snapshot()
        assert float(np.float32(1e-39) + np.float32(1e-40)) != 0
        assert (np.full(100, 1e-39, np.float32) * np.float32(0.5) != 0).all()
    assert BF16.itemsize == 2
