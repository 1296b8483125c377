"""Convolutions, attention and the rest in both frameworks: equal bytes are equal outputs, and what cannot be is said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from swarm.core.errors import SchemaMismatch, UsageError
from swarm.learners.adapted import adapted
from swarm.learners.layout import Layout, Permute, Rename
from swarm.learners.modules import layout_of, warnings_for
from swarm.learners.select import adapter_for
from swarm.tensors.precision import DTYPES
from swarm.tensors.schema import check_equal

torch = pytest.importorskip("torch")
mx = pytest.importorskip("mlx.core")
nn = pytest.importorskip("mlx.nn")

F32 = np.float32


@pytest.fixture(autouse=True)
def _cpu() -> Iterator[None]:
    """Metal rounds matrix products to tens of thousandths."""
    with mx.stream(mx.cpu):
        yield


class Pair(NamedTuple):
    """One model in both frameworks, fed with channels first: (batch, channels, …)."""

    torch: Any
    mlx: Any
    shape: tuple[int, ...]

    def outputs(self) -> tuple[Any, Any]:
        x = np.random.default_rng(1).standard_normal(self.shape).astype(F32)
        last = self.mlx(mx.array(np.ascontiguousarray(np.moveaxis(x, 1, -1))))
        return self.torch(torch.from_numpy(x)).detach().numpy(), np.moveaxis(np.array(last), -1, 1)


def conv(name: str, *arguments: int, length: int = 7, **options: Any) -> Pair:
    spatial = (length,) * int(name[-2])
    return Pair(
        getattr(torch.nn, name)(*arguments, **options),
        getattr(nn, name)(*arguments, **options),
        (2, arguments[0], *spatial),
    )


CONVS = {
    "Conv1d": lambda: conv("Conv1d", 3, 8, 3),
    "Conv1d, no bias": lambda: conv("Conv1d", 5, 4, 3, bias=False),
    "Conv1d, groups": lambda: conv("Conv1d", 4, 6, 2, groups=2),
    "Conv2d": lambda: conv("Conv2d", 3, 8, 5),
    "Conv2d, groups": lambda: conv("Conv2d", 4, 6, 3, groups=2, stride=2, padding=1),
    "Conv3d": lambda: conv("Conv3d", 2, 3, 2, length=4),
    "ConvTranspose1d": lambda: conv("ConvTranspose1d", 3, 5, 4, stride=2, padding=1),
    "ConvTranspose2d": lambda: conv("ConvTranspose2d", 3, 5, 3, stride=2, output_padding=1),
    "ConvTranspose3d": lambda: conv("ConvTranspose3d", 2, 3, 2, length=3),
    "Sequential": lambda: Pair(
        torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Conv2d(4, 5, 1), torch.nn.BatchNorm2d(5))
        ).eval(),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 5, 1), nn.BatchNorm(5))).eval(),
        (2, 3, 6, 6),
    ),
}


def same(one: Any, other: Any, *, layout: Any = "auto", seed: int = 0) -> None:
    """Give both models the same canonical parameters."""
    adapters = adapter_for(one, layout), adapter_for(other, layout)
    check_equal(adapters[0].schema(), adapters[1].schema())
    random = np.random.default_rng(seed)
    theta = {spec.name: (0.3 * random.standard_normal(spec.shape)).astype(F32) for spec in adapters[0].schema()}
    for adapter in adapters:
        adapter.apply(theta)
        assert {n: a.tobytes() for n, a in adapter.snapshot().items()} == {n: a.tobytes() for n, a in theta.items()}


@pytest.mark.parametrize("name", CONVS)
def test_equal_bytes_are_equal_outputs(name: str) -> None:
    pair = CONVS[name]()
    same(pair.torch, pair.mlx)
    ours, theirs = pair.outputs()
    assert ours.shape == theirs.shape
    assert np.abs(ours).max() > 0.1
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)


def test_without_a_layout_they_are_not_and_shapes_do_not_show_it() -> None:
    pair = CONVS["Conv1d"]()
    same(pair.torch, pair.mlx, layout=None)
    ours, theirs = pair.outputs()
    assert np.abs(ours - theirs).max() > 0.1


def test_the_canonical_order_is_pytorchs() -> None:
    pair = CONVS["Sequential"]()
    shapes = {spec.name: spec.shape for spec in adapter_for(pair.mlx, "auto").schema()}
    assert shapes == {name: tuple(p.shape) for name, p in pair.torch.named_parameters()}
    assert adapter_for(pair.torch, "auto").snapshot()["0.weight"].ctypes.data == pair.torch[0].weight.data_ptr()


def test_layers_that_are_no_sequential_keep_their_name() -> None:
    model = nn.Module()
    model.layers = [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))]
    other = torch.nn.Module()
    other.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))])
    check_equal(adapter_for(model, "auto").schema(), adapter_for(other, "auto").schema())


def test_a_bilinear_layer() -> None:
    one, other = torch.nn.Bilinear(3, 4, 5), nn.Bilinear(3, 4, 5)
    same(one, other)
    x, y = (np.random.default_rng(i).standard_normal((2, n)).astype(F32) for i, n in enumerate((3, 4)))
    ours = one(torch.from_numpy(x), torch.from_numpy(y)).detach().numpy()
    np.testing.assert_allclose(np.array(other(mx.array(x), mx.array(y))), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("widths", [None, (6, 10)], ids=["packed", "three widths"])
@pytest.mark.parametrize("bias", [True, False])
def test_attention(causal: bool, widths: tuple[int, int] | None, bias: bool) -> None:
    key, value = widths or (8, 8)
    one = torch.nn.MultiheadAttention(8, 2, kdim=key, vdim=value, bias=bias, batch_first=True)
    other = nn.MultiHeadAttention(8, 2, key_input_dims=key, value_input_dims=value, bias=bias)
    assert ("in_proj_weight" in adapter_for(one).schema()) == (widths is None)
    same(one, other)
    shapes = {spec.name: spec.shape for spec in adapter_for(one, "auto").schema() if spec.name.endswith("weight")}
    assert shapes == {
        "query_proj.weight": (8, 8),
        "key_proj.weight": (8, key),
        "value_proj.weight": (8, value),
        "out_proj.weight": (8, 8),
    }
    q, k, v = (np.random.default_rng(i).standard_normal((2, 5, n)).astype(F32) for i, n in enumerate((8, key, value)))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5) if causal else None
    ours, _ = one(*map(torch.from_numpy, (q, k, v)), attn_mask=mask)
    added = nn.MultiHeadAttention.create_additive_causal_mask(5) if causal else None
    theirs = np.array(other(*map(mx.array, (q, k, v)), mask=added))
    np.testing.assert_allclose(theirs, ours.detach().numpy(), rtol=0, atol=1e-5)


def test_a_linear_layer_over_flattened_maps_by_hand() -> None:
    one = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 5, 6))
    other = nn.Sequential(nn.Conv2d(2, 3, 2), lambda x: x.reshape(len(x), -1), nn.Linear(4 * 5 * 3, 6))
    kept = tuple(rule for rule in layout_of(other).rules if getattr(rule, "parameter", "") != "layers.2.weight")
    flat = Permute("layers.2.weight", to="2.weight", view=(-1, 4, 5, 3), axes=(0, 3, 1, 2))
    theta = {n: a + 0 for n, a in adapter_for(one, "auto").snapshot().items()}
    adapter_for(other, Layout((*kept, flat))).apply(theta)
    x = np.random.default_rng(3).standard_normal((2, 2, 5, 6)).astype(F32)
    theirs = np.array(other(mx.array(np.ascontiguousarray(np.moveaxis(x, 1, -1)))))
    np.testing.assert_allclose(theirs, one(torch.from_numpy(x)).detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("code", ["F32", "F16", "BF16"])
def test_all_bytes_survive(code: str) -> None:
    """Every upper half of an fp32 value or every 16-bit one, through a convolution and packed attention, and back."""
    bits = np.arange(65_536, dtype=np.uint16)
    every = bits.view(DTYPES[code]) if code != "F32" else ((bits.astype(np.uint32) << 16) | 0x8001).view(F32)
    for framework in ("torch", "mlx"):
        if framework == "torch":
            model: Any = torch.nn.Module()
            model.conv, model.attention = torch.nn.Conv1d(32, 64, 32), torch.nn.MultiheadAttention(64, 2)
            model.to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[code])
        else:
            model = nn.Module()
            model.conv, model.attention = nn.Conv1d(32, 64, 32), nn.MultiHeadAttention(64, 2, bias=True)
            model.set_dtype({"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}[code])
        adapter = adapter_for(model, "auto")
        theta = {
            "conv.weight": every.reshape(64, 32, 32),
            "attention.query_proj.weight": every[:4096].reshape(64, 64),
            "attention.key_proj.weight": every[30_000:34_096].reshape(64, 64),
            "attention.value_proj.weight": every[-4096:].reshape(64, 64),
        }
        for name, array in theta.items():
            adapter.apply({name: array})
        snapshot = adapter.snapshot()
        assert {name: snapshot[name].tobytes() for name in theta} == {name: array.tobytes() for name, array in theta.items()}


# Warnings


def test_a_convolution_that_shapes_cannot_tell_apart_is_warned_about_until_a_layout_is_declared() -> None:
    pair = CONVS["Conv1d"]()
    for model, other in ((pair.torch, "MLX"), (pair.mlx, "PyTorch")):
        (line,) = adapter_for(model).warnings()
        assert line == (
            f"weight 8×3×3: {other} has the axes of Conv1d in another order, and the shape does not show it; "
            "declare a layout ('auto' maps these) if the run may have learners in both"
        )
        assert warnings_for(model) == (line,)
        assert adapter_for(model, "auto").warnings() == ()
        assert adapter_for(model, Layout((Permute("weight", axes=(0, 2, 1)),))).warnings() == ()
        assert adapter_for(model, Layout((Rename("weight", to="weight"),))).warnings() == ()


def test_in_mlx_every_convolution_and_a_layout_that_leaves_one_out_are_warned_about() -> None:
    model = nn.Module()
    model.first, model.second, model.bilinear = nn.Conv2d(3, 8, 5), nn.Conv2d(8, 8, 5), nn.Bilinear(3, 3, 2)
    two, one = adapter_for(model).warnings()[::-1]
    assert two.startswith(
        "first.weight 8×5×5×3, second.weight 8×5×5×8: PyTorch has the axes of Conv2d in another order, and the"
    )
    assert one.startswith("bilinear.weight 2×3×3: PyTorch has the axes of Bilinear")
    assert "the shapes differ" in two
    partly = Layout((Permute("first.weight", axes=(0, 3, 1, 2)), Permute("bilinear.weight", axes=(0, 2, 1))))
    (line,) = adapter_for(model, partly).warnings()
    assert line.startswith("second.weight 8×5×5×8: ")
    torch_model = torch.nn.Conv2d(3, 8, 5)
    assert adapter_for(torch_model).warnings() == (), "another shape is a mismatch that is seen"
    assert adapter_for(torch.nn.ConvTranspose1d(3, 8, 8)).warnings() == ()
    assert len(adapter_for(torch.nn.ConvTranspose1d(3, 3, 3)).warnings()) == 1


def test_a_second_layout_leaves_what_the_first_has_declared() -> None:
    pair = CONVS["Conv1d"]()
    assert adapted(adapter_for(pair.mlx, "auto"), Layout((Rename("bias", to="b"),))).warnings() == ()
    assert adapted(adapter_for(pair.mlx), Layout((Permute("weight", axes=(0, 2, 1)),))).warnings() == ()
    inner = adapted(adapter_for(pair.mlx), Layout((Rename("bias", to="b"),)))
    assert len(inner.warnings()) == 1
    assert adapted(inner, Layout((Permute("weight", axes=(0, 2, 1)),))).warnings() == ()


def test_many_are_one_line() -> None:
    (line,) = adapter_for(nn.Sequential(*[nn.Conv1d(3, 8, 3) for _ in range(20)])).warnings()
    assert line.startswith("layers.0.weight 8×3×3, layers.1.weight 8×3×3, layers.10.weight 8×3×3 and 17 more: ")


def test_frozen_convolutions_are_not_exchanged_and_not_warned_about() -> None:
    pair = CONVS["Conv1d"]()
    pair.torch.weight.requires_grad_(False)
    pair.mlx.freeze(keys="weight")
    for model in (pair.torch, pair.mlx):
        assert adapter_for(model).warnings() == ()
        assert adapter_for(model, "auto").schema().names == ("bias",)


def test_what_has_no_counterpart_is_said_when_a_layout_is_asked_for() -> None:
    one = torch.nn.Module()
    one.rnn, one.attention = torch.nn.LSTM(3, 4), torch.nn.MultiheadAttention(8, 2, add_bias_kv=True)
    assert adapter_for(one).warnings() == (), "other names are a mismatch that is seen"
    attention, rnn = adapter_for(one, "auto").warnings()
    assert attention.startswith("attention.bias_k, attention.bias_v: MLX's MultiheadAttention has other parameters")
    assert rnn.startswith("rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0 and 1 more: MLX's LSTM has other parameters")
    other = nn.Module()
    other.rnn = nn.GRU(3, 4)
    (line,) = adapter_for(other, "auto").warnings()
    assert "PyTorch's GRU has other parameters, and no layout is known" in line
    by_hand = Layout(tuple(Rename(f"rnn.{name}", to=f"rnn.{name}") for name in ("Wx", "Wh", "b", "bhn")))
    assert adapter_for(other, by_hand).warnings() == ()


def test_subclasses_are_known_and_modules_of_the_same_name_are_not() -> None:
    class Mine(nn.Conv1d):  # type: ignore[misc, name-defined]
        pass

    class Conv1d(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = mx.zeros((8, 3, 3))

    assert layout_of(Mine(3, 8, 3)).rules == (Permute("weight", axes=(0, 2, 1)),)
    assert layout_of(Conv1d()).rules == ()


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_convolution_has_nothing_to_say_yet() -> None:
    model = torch.nn.LazyConv1d(8, 3)
    assert warnings_for(model) == ()
    with pytest.raises(SchemaMismatch, match="initialised"):
        adapter_for(model, "auto").schema()


def test_arrays_are_canonical_and_what_is_no_model_is_refused() -> None:
    assert layout_of({"w": np.zeros((8, 3, 3), F32)}) == Layout()
    assert adapter_for({"w": np.zeros((8, 3, 3), F32)}, "auto").warnings() == ()
    for call in (layout_of, warnings_for):
        with pytest.raises(UsageError, match="no adapter for a"):
            call(object())


@pytest.mark.parametrize(("module", "other"), [pytest.param("torch", "mlx.core", marks=pytest.mark.slow), ("mlx", "torch")])
def test_the_other_framework_is_not_imported(module: str, other: str) -> None:
    code = (
        f"import sys, {module}.nn as nn\n"
        "from swarm.learners.select import adapter_for\n"
        "adapter = adapter_for(nn.Conv1d(3, 8, 3), 'auto')\n"
        "adapter.schema(), adapter.warnings()\n"
        f"assert {other!r} not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
