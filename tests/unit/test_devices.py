from __future__ import annotations

import contextlib
import importlib.util
import platform
import subprocess
import sys

import pytest

from swarm.core.errors import DeviceUnavailable, SwarmError, UsageError
from swarm.learners import devices
from swarm.learners.devices import installed_frameworks, resolve

BOTH = ("torch", "mlx")


@pytest.mark.parametrize(
    ("framework", "device", "offered", "installed", "apple_silicon", "chosen"),
    [
        ("auto", "auto", BOTH, BOTH, True, "mlx"),
        ("auto", "auto", BOTH, BOTH, False, "torch"),
        ("auto", "cpu", BOTH, BOTH, True, "mlx"),
        ("auto", "auto", BOTH, ("torch",), True, "torch"),
        ("auto", "auto", BOTH, ("mlx",), False, "mlx"),
        ("auto", "auto", ("torch",), BOTH, True, "torch"),
        ("auto", "auto", ("mlx",), BOTH, False, "mlx"),
        ("auto", "metal", BOTH, BOTH, True, "mlx"),
        ("auto", "mps", BOTH, BOTH, True, "torch"),
        ("auto", "cuda", BOTH, BOTH, False, "torch"),
        ("auto", "cuda:3", BOTH, BOTH, False, "torch"),
        ("torch", "mps", BOTH, BOTH, True, "torch"),
        ("mlx", "cpu", BOTH, BOTH, False, "mlx"),
        ("torch", "auto", BOTH, BOTH, True, "torch"),
    ],
)
def test_what_is_chosen(
    framework: str,
    device: str,
    offered: tuple[str, ...],
    installed: tuple[str, ...],
    apple_silicon: bool,
    chosen: str,
) -> None:
    found = resolve(framework, device, offered, installed=installed, apple_silicon=apple_silicon)
    assert found == (chosen, device)


@pytest.mark.parametrize(
    ("framework", "device", "offered", "installed", "apple_silicon", "error", "message"),
    [
        ("jax", "auto", BOTH, BOTH, True, UsageError, "'jax' is no framework: auto, torch or mlx"),
        ("auto", "gpu", BOTH, BOTH, True, UsageError, "'gpu' is no device: auto, cpu, mps, metal, cuda or cuda:N"),
        ("auto", "cuda:x", BOTH, BOTH, True, UsageError, "'cuda:x' is no device"),
        ("auto", "cuda:", BOTH, BOTH, True, UsageError, "'cuda:' is no device"),
        ("auto", "cpu\n", BOTH, BOTH, True, UsageError, "is no device"),
        ("torch", "metal", BOTH, BOTH, True, UsageError, "device metal needs framework mlx, not torch"),
        ("mlx", "cuda:0", BOTH, BOTH, False, UsageError, "device cuda:0 needs framework torch, not mlx"),
        ("auto", "metal", BOTH, BOTH, False, DeviceUnavailable, "device metal is absent: it needs a Mac"),
        ("auto", "mps", BOTH, BOTH, False, DeviceUnavailable, "device mps is absent: it needs a Mac"),
        ("auto", "metal", ("torch",), BOTH, True, UsageError, "the task has no model for mlx: it offers torch"),
        ("mlx", "auto", ("torch",), BOTH, True, UsageError, "the task has no model for mlx: it offers torch"),
        ("mlx", "auto", BOTH, ("torch",), True, UsageError, "mlx is not installed here: pip install 'homeswarm[mlx]'"),
        (
            "auto",
            "cuda",
            BOTH,
            ("mlx",),
            False,
            UsageError,
            "torch is not installed here: pip install 'homeswarm[torch]'",
        ),
        (
            "auto",
            "auto",
            BOTH,
            (),
            True,
            UsageError,
            "mlx or torch is not installed here: pip install 'homeswarm[train]'",
        ),
        (
            "auto",
            "cpu",
            ("mlx",),
            ("torch",),
            False,
            UsageError,
            "mlx is not installed here: pip install 'homeswarm[mlx]'",
        ),
        ("auto", "auto", ("jax",), BOTH, False, UsageError, "the task offers no framework of torch and mlx, only: jax"),
    ],
)
def test_what_is_refused(
    framework: str,
    device: str,
    offered: tuple[str, ...],
    installed: tuple[str, ...],
    apple_silicon: bool,
    error: type[SwarmError],
    message: str,
) -> None:
    with pytest.raises(error) as caught:
        resolve(framework, device, offered, installed=installed, apple_silicon=apple_silicon)
    assert type(caught.value) is error
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_this_machine_is_looked_at_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "installed_frameworks", lambda: BOTH)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert resolve("auto", "auto", BOTH) == ("mlx", "auto")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert resolve("auto", "auto", BOTH) == ("torch", "auto")


def test_a_framework_without_its_backend_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> object | None:
        if name == "mlx.core":
            raise ModuleNotFoundError("No module named 'mlx'")
        return object() if name == "torch" else None

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    assert installed_frameworks() == ("torch",)


def test_what_is_installed_is_found_without_importing_it() -> None:
    code = (
        "import sys\n"
        "from swarm.learners.devices import installed_frameworks\n"
        "print(*installed_frameworks())\n"
        "assert not {'torch', 'mlx.core', 'numpy'} & sys.modules.keys(), sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there = []
    for name, module in (("torch", "torch"), ("mlx", "mlx.core")):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
            there.append(name)
    assert sorted(done.stdout.split()) == sorted(there)
