"""What replay to the byte hangs on, in words; and that a process can be held to it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from swarm.core.errors import DeviceUnavailable, UsageError
from swarm.core.events import Trouble, WorkerEvent
from swarm.core.specs import DiLoCo, FedAvg
from swarm.learners.devices import thread_environment
from swarm.learners.replay import difference, exactness, pin
from swarm.runtime import federation

TORCH = "torch 2.13.0+cpu, cpu x86_64 AVX2 on Linux, 1 thread"
SETTINGS = thread_environment(1).keys() | {"CUBLAS_WORKSPACE_CONFIG", "OMP_THREAD_LIMIT"}


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (TORCH, None),
        ("mlx 0.32.4, cpu x86_64 on Linux", "mlx 0.32.4 instead of torch 2.13.0+cpu"),
        ("mlx 0.32.4, metal Apple M2 on macOS 15.1", "mlx 0.32.4 instead of torch 2.13.0+cpu"),
        ("torch 2.12.1+cpu, cpu x86_64 AVX2 on Linux, 1 thread", "torch 2.12.1+cpu instead of torch 2.13.0+cpu"),
        ("torch 2.13.0+cpu, cpu x86_64 AVX2 on Linux, 4 threads", "4 threads instead of 1 thread"),
        (
            "torch 2.13.0+cpu, cpu x86_64 AVX512 on Linux, 2 threads",
            "cpu x86_64 AVX512 on Linux instead of cpu x86_64 AVX2 on Linux, and 2 threads instead of 1 thread",
        ),
        ("torch 2.13.0+cpu, cuda NVIDIA H200", f"torch 2.13.0+cpu, cuda NVIDIA H200 instead of {TORCH}"),
    ],
)
def test_a_difference_is_told_in_words(here: str, words: str | None) -> None:
    assert difference(TORCH, here) == (words and f"replay is not exact here: {words}")


def test_what_counts_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    text = exactness("torch", "cpu", threads=1)
    assert text.startswith(f"torch {torch.__version__}, cpu ")
    assert text.endswith(", 1 thread")
    assert difference(text, exactness("torch", "cpu", threads=2)) == "replay is not exact here: 2 threads instead of 1 thread"
    assert exactness("torch", "cpu", threads=None) == exactness("torch", "cpu", threads=torch.get_num_threads())


def test_what_counts_in_mlx() -> None:
    mx = pytest.importorskip("mlx.core")
    text = exactness("mlx", "cpu", threads=1)
    assert text.startswith(f"mlx {mx.__version__}, cpu ")
    assert (difference(text, exactness("mlx", "cpu", threads=2)) is None) == (sys.platform != "darwin")


@pytest.mark.parametrize("call", [exactness, pin])
def test_what_cannot_be(call: type[None], monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match="'jax' is no framework: torch or mlx"):
        call("jax", "cpu", threads=None)
    with pytest.raises(UsageError, match="is no device of PyTorch"):
        call("torch", "abacus", threads=None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable):
        call("torch", "cuda", threads=None)


def test_a_count_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=">= 1"):
        pin("torch", "cpu", threads=0)
    monkeypatch.setenv("OMP_THREAD_LIMIT", "2")
    before = dict(os.environ)
    assert pin("torch", "cpu", threads=3) == (
        "this machine cannot honour 3 threads: OMP_THREAD_LIMIT is 2, so replay is not exact here"
    )
    assert os.environ == before


# What a run of FedAvg says of it

SEEDED = FedAvg(training_seed=29)


@pytest.mark.parametrize(
    ("spec", "asked", "cpu", "threads"),
    [
        (SEEDED, None, True, 1),
        (SEEDED, 3, True, 3),
        (FedAvg(training_seed=29, threads=2), None, True, 2),
        (SEEDED, None, False, None),
        (FedAvg(), None, True, None),
    ],
    ids=["one by default", "as asked", "as configured", "not on a GPU", "not without a seed"],
)
def test_a_seeded_run_names_its_threads(
    spec: FedAvg, asked: int | None, cpu: bool, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation, "on_cpu", lambda *_: cpu)
    assert federation.with_threads(spec, framework="torch", device="auto", threads=asked).threads == threads


@pytest.mark.parametrize(
    ("asked", "flaw", "wanted", "words"),
    [
        (None, None, None, None),
        (None, None, TORCH, None),
        (2, None, TORCH, None),
        (3, None, TORCH, "replay is not exact here: 3 threads instead of 2"),
        (None, "this machine cannot honour 2 threads", TORCH, "this machine cannot honour 2 threads"),
        (None, None, TORCH.replace("AVX2", "AVX512"), "replay is not exact here: cpu x86_64 AVX2 on Linux instead of "),
    ],
    ids=["made here", "joined", "as many", "others asked for", "not to be had", "made elsewhere"],
)
def test_a_machine_that_cannot_honour_a_seeded_run_says_so(
    asked: int | None, flaw: str | None, wanted: str | None, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, told = list[int | None](), list[WorkerEvent]()

    def pins(framework: str, device: str, *, threads: int | None) -> str | None:
        pinned.append(threads)
        return flaw

    monkeypatch.setattr(federation, "pin", pins)
    monkeypatch.setattr(federation, "exactness", lambda *_, threads: TORCH)
    how = {"framework": "torch", "device": "cpu", "threads": asked, "wanted": wanted, "emit": told.append}
    spec = FedAvg(training_seed=29, threads=2)
    assert federation.hold(spec, **how) == TORCH  # type: ignore[arg-type]
    assert pinned == ([] if asked == 3 else [2])
    assert [event.message.startswith(words or "") for event in told if isinstance(event, Trouble)] == [True] * bool(words)
    told.clear()
    for other in (FedAvg(), DiLoCo()):
        assert federation.hold(other, **how) == ""  # type: ignore[arg-type]
    assert told == []


def run(code: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run([sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


TRAIN_TORCH = """
import hashlib, threading, torch
from torch import nn

def train():
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = nn.Sequential(first, nn.Linear(864, 60), nn.ReLU(), nn.Linear(60, 10))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
"""
PINNED_TORCH = """
import os
from swarm.learners.replay import exactness, pin
assert torch.get_num_threads() == 2
torch.ones(100_000).add(1)  # what runs already, is held to it as well
assert pin("torch", "cpu", threads=1) is None
assert torch.get_num_threads() == 1 and os.environ["OMP_NUM_THREADS"] == "1"
assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
assert exactness("torch", "cpu", threads=None) == exactness("torch", "cpu", threads=1)
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@pytest.mark.slow
def test_a_pinned_pytorch_has_the_bytes_of_its_thread_count() -> None:
    """After it was loaded with another one, and in a thread that did not pin it."""
    pytest.importorskip("torch")
    want = run(TRAIN_TORCH + "train()", **thread_environment(1))
    assert len(want) == 65
    assert run(TRAIN_TORCH + PINNED_TORCH, **thread_environment(2)) == want


TRAIN_MLX = """
import hashlib, numpy as np
from swarm.learners.replay import pin
assert pin("mlx", "cpu", threads={threads}) is None
import mlx.core as mx, mlx.nn as nn, mlx.optimizers as optimizers
from mlx.utils import tree_flatten
with mx.stream(mx.cpu):
    mx.random.seed(0)
    first = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(4))
    model = nn.Sequential(first, lambda x: x.reshape(x.shape[0], -1), nn.Linear(216, 10))
    optimizer = optimizers.Adam(1e-3)
    random = np.random.default_rng(0)
    x, y = mx.array(random.standard_normal((64, 28, 28, 1)).astype(np.float32)), mx.array(random.integers(0, 10, 64))
    for _ in range(3):
        _, gradients = nn.value_and_grad(model, lambda: nn.losses.cross_entropy(model(x), y, reduction="mean"))()
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
    print(hashlib.sha256(b"".join(np.array(p).tobytes() for _, p in tree_flatten(model.parameters()))).hexdigest())
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="Accelerate may share sums out")
def test_mlx_has_the_same_bytes_whatever_the_count() -> None:
    pytest.importorskip("mlx.core")
    one, two = (run(TRAIN_MLX.format(threads=threads)) for threads in (1, 2))
    assert len(one) == 65
    assert one == two
