"""A file that a run is to begin with: taken whole, or refused with one line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from swarm.core.errors import UsageError
from swarm.core.manifest import DataRef
from swarm.learners.numpy import Arrays, NumpyAdapter
from swarm.runtime import base_model
from swarm.runtime.base_model import take_over
from swarm.tensors.payload import Packed
from swarm.tensors.precision import BF16

Model = dict[str, np.ndarray]


def model(seed: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    return {
        "b": rng.standard_normal(3).astype(np.float32),
        "norm": rng.standard_normal((2, 2)).astype(BF16),
        "scale": np.asarray(rng.standard_normal(), np.float32),
        "w": rng.standard_normal((4, 3)).astype(np.float32),
    }


def written(path: Path, tensors: Model) -> Path:
    path.write_bytes(b"".join(Packed(tensors)))
    return path


def bits(tensors: Model) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors.items()}


@pytest.mark.parametrize("held_bytes", [1, 20, base_model.HELD_BYTES])
@pytest.mark.parametrize("ours", [True, False], ids=["packed", "safetensors"])
def test_the_model_gets_the_files_very_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool, held_bytes: int
) -> None:
    monkeypatch.setattr(base_model, "HELD_BYTES", held_bytes)
    given, mine = model(1), model(2)
    path = tmp_path / "start.safetensors"
    if ours:
        written(path, given)
    else:
        safetensors.numpy.save_file(given, path, {"format": "np"})
    data = path.read_bytes()
    (tmp_path / "link.safetensors").symlink_to(path)
    ref = take_over(tmp_path / "link.safetensors", NumpyAdapter(mine))
    assert bits(mine) == bits(given)
    assert ref == DataRef(name="link.safetensors", sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def test_buffers_of_integers_are_taken_over_too(tmp_path: Path) -> None:
    given: Any = model(1) | {"seen": np.array([3, 2**40]), "mean": np.ones(3, np.float32)}
    mine: Any = Arrays(model(2) | {"seen": np.zeros(2, np.int64), "mean": np.zeros(3, np.float32)}, buffers=["seen", "mean"])
    take_over(written(tmp_path / "start.safetensors", given), NumpyAdapter(mine, buffers=True))
    assert bits(mine) == bits(given)
    given["seen"] = given["seen"].astype(np.int32)
    with pytest.raises(UsageError, match="parameter 'seen' is I32, and the task's is I64; convert it"):
        take_over(written(tmp_path / "start.safetensors", given), NumpyAdapter(mine, buffers=True))


def without(tensors: Model, name: str) -> Model:
    return {key: array for key, array in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: without(m, "w"), "parameter 'w' is missing; pass"),
        (lambda m: m | {"head": m["b"]}, "parameter 'head' is none of the task's; pass a file without it"),
        (lambda m: m | {"w": m["w"].T.copy()}, "parameter 'w' is 3×4, and the task's is 4×3; choose"),
        (lambda m: m | {"scale": m["b"][:1]}, "parameter 'scale' is 1, and the task's is a single number; choose"),
        (lambda m: m | {"w": m["w"].astype(np.float16)}, "parameter 'w' is F16, and the task's is F32; convert it"),
        (lambda m: {"x." + name: array for name, array in m.items()}, "parameter 'b' is missing, and 7 more do not fit; pass"),
        (lambda m: {}, "parameter 'b' is missing"),
    ],
    ids=["missing", "unknown", "shape", "scalar", "dtype", "renamed", "empty"],
)
def test_another_models_parameters_are_refused_before_any_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Model], Model], words: str
) -> None:
    monkeypatch.setattr(base_model, "HELD_BYTES", 1)
    path, mine = written(tmp_path / "start.safetensors", change(model(1))), model(2)
    before = bits(mine)
    with pytest.raises(UsageError, match=words) as refused:
        take_over(path, NumpyAdapter(mine))
    assert str(refused.value).startswith(f"{path} cannot be the base model: parameter ")
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2
    assert bits(mine) == before


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["w", "norm", "scale"])
def test_what_is_not_finite_is_refused(tmp_path: Path, name: str, bad: float) -> None:
    given = model(1)
    given[name].reshape(-1)[-1] = bad
    with pytest.raises(UsageError, match=f"parameter '{name}' holds NaN or infinite numbers; pass a model"):
        take_over(written(tmp_path / "start.safetensors", given), NumpyAdapter(model(2)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "at least 8 bytes"),
        (b"\x80\x02}q\x00.", "at least 8 bytes"),
        (b"PK\x03\x04" + bytes(100), "the header claims"),
        (b"\x80\x02}q\x00." + bytes(100), "the header claims|is no JSON object"),
        ((10).to_bytes(8, "little") + b"not json!!", "no JSON object"),
        (b"".join(Packed(model()))[:-1], "ends beyond the payload"),
        (b"".join(Packed(model())) + b"!", "belong to no tensor"),
        (safetensors.numpy.save({"w": np.zeros(3)}), "dtype 'F64'"),
        (safetensors.numpy.save({"w": np.zeros(3, np.uint16)}), "dtype 'U16'"),
    ],
    ids=["empty", "short", "zip", "pickle", "text", "cut", "longer", "F64", "U16"],
)
def test_what_is_no_usable_safetensors_file_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "start.safetensors"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=words) as refused:
        take_over(path, NumpyAdapter(model()))
    assert "pass a Safetensors file, as `swarm export` writes one" in str(refused.value)


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    with path.open("wb") as file:
        file.write((1 << 33).to_bytes(8, "little"))
        file.truncate(1 << 34)
    with pytest.raises(UsageError, match="the header claims 8589934592 bytes"):
        take_over(path, NumpyAdapter(model()))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place, words in (("pipe", "it is no file"), (".", "it is no file"), ("none", "cannot read .*none: No such file")):
        with pytest.raises(UsageError, match=words):
            take_over(tmp_path / place, NumpyAdapter(model()))


def test_a_file_whose_name_no_record_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data name must be .* rename it"):
        take_over(written(tmp_path / ".hidden", model(1)), NumpyAdapter(model()))


def test_a_split_parameter_is_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Canonical parts of one packed parameter, however few come at a time."""
    from swarm.learners.adapted import adapted
    from swarm.learners.layout import Layout, Split

    monkeypatch.setattr(base_model, "HELD_BYTES", 1)
    layout = Layout((Split("qkv.weight", ("q.weight", "k.weight", "v.weight")),))
    held: Any = {"qkv.weight": np.zeros((6, 2), np.float32)}
    given = {f"{part}.weight": np.full((2, 2), n, np.float32) for n, part in enumerate("qkv", 1)}
    take_over(written(tmp_path / "start.safetensors", given), adapted(NumpyAdapter(held), layout))
    assert held["qkv.weight"].reshape(3, 4).tolist() == [[n] * 4 for n in (1, 2, 3)]
