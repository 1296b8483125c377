"""What every task promises, in every framework (swarm/tasks/contract.py), and what two frameworks owe each other."""

from __future__ import annotations

import importlib
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swarm.core.errors import DataMissing, UsageError
from swarm.core.records import DataRef
from swarm.learners.numpy import NumpyAdapter
from swarm.tasks import registry
from swarm.tasks.charlm.corpus import Corpus
from swarm.tasks.charlm.sizes import SIZES, Size
from swarm.tasks.charlm.trainable import CharLM
from swarm.tasks.charlm.trainable import initial as charlm_initial
from swarm.tasks.mlp.trainable import Regression
from swarm.tasks.streams import generator

# Small enough for MLX on a CPU, whose matrix products are slow.
TASKS = {"mlp": {}, "charlm": {"seq_len": "16", "batch_size": "4", "sample_bytes": "8"}}
FRAMEWORKS = ("torch", "mlx")

needs_both = pytest.mark.usefixtures("both_frameworks")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch's threads spin while they wait: next to anything else on a small machine, two are far slower than one."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    pytest.importorskip({"torch": "torch", "mlx": "mlx.core"}[request.param])
    return str(request.param)


@pytest.fixture
def both_frameworks() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mlx.core")


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def build(task: str, framework: str, *, seed: int = 0, **options: str) -> Any:
    made = registry.get(task)
    return made.build(
        framework=framework,
        device="cpu",
        options=made.options(TASKS[task] | options),
        data=made.data(None),
        data_path=None,
        seed=seed,
    )


def parameters(trainable: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in trainable.adapter.snapshot().items()}


def global_random_states() -> list[Any]:
    """Of everything that is loaded: Python, NumPy, PyTorch, MLX."""
    states: list[Any] = [random.getstate(), repr(np.random.get_state())]
    if "torch" in sys.modules:
        states.append(sys.modules["torch"].get_rng_state().tolist())
    if "mlx.core" in sys.modules:
        states.append(np.array(sys.modules["mlx.core"].random.state[0]).tolist())
    return states


def test_it_says_what_it_is(task: str, framework: str) -> None:
    trainable = build(task, framework)
    assert (trainable.framework, trainable.device) == (framework, "cpu")
    assert trainable.adapter.framework == framework


def test_the_initial_model_comes_from_the_seed_alone(task: str, framework: str) -> None:
    one = build(task, framework, seed=3)
    one.use_stream("a", 1)
    one.step()
    again, other = build(task, framework, seed=3), build(task, framework, seed=4)
    again.use_stream("b", 2)
    fresh = parameters(again)
    assert fresh == parameters(build(task, framework, seed=3)) != parameters(one)
    weights = {name for name in fresh if name.endswith("weight") and "norm" not in name}
    assert {name for name, data in parameters(other).items() if data != fresh[name]} >= weights


def test_no_global_random_state_is_touched(task: str, framework: str) -> None:
    before = global_random_states()
    trainable = build(task, framework)
    assert framework in str(sorted(sys.modules))
    trainable.use_stream("a", 1)
    trainable.step()
    trainable.evaluate()
    if task == "charlm":
        list(trainable.generate(b"In", max_tokens=3, temperature=1.0, seed=0))
    after = global_random_states()
    assert after[: len(before)] == before


def test_training_lowers_the_loss_on_the_held_out_part(task: str, framework: str) -> None:
    trainable = build(task, framework)
    trainable.use_stream("a", 1)
    before = trainable.evaluate()
    results = [trainable.step() for _ in range(60)]
    after = trainable.evaluate()
    assert {result.tokens for result in results} == {32 if task == "mlp" else 4 * 16}
    assert after.loss < {"mlp": 0.2, "charlm": 3.4}[task]
    assert np.mean([r.loss for r in results[-10:]]) < np.mean([r.loss for r in results[:10]])
    if task == "mlp":
        assert before.loss > 0.9  # explains nothing
        assert after.metrics == {"r2": pytest.approx(1 - after.loss)}
    else:
        assert before.loss == pytest.approx(np.log(256), abs=0.05)  # knows nothing: all bytes alike
        assert after.metrics == {"bits_per_byte": pytest.approx(after.loss / np.log(2))}


def test_evaluating_changes_neither_model_nor_optimizer_nor_stream(task: str, framework: str) -> None:
    undisturbed, evaluated = build(task, framework), build(task, framework)
    losses: list[list[float]] = [[], []]
    for _ in range(3):
        losses[0].append(undisturbed.step().loss)
        losses[1].append(evaluated.step().loss)
        before = parameters(evaluated)
        assert evaluated.evaluate() == evaluated.evaluate()
        assert parameters(evaluated) == before
    assert losses[0] == losses[1]
    assert parameters(undisturbed) == parameters(evaluated)


def test_a_stream_starts_anew_and_differs_by_learner_and_incarnation(task: str, framework: str) -> None:
    trainable = build(task, framework)
    theta = {name: array.copy() for name, array in trainable.adapter.snapshot().items()}

    def losses(learner: str, incarnation: int) -> tuple[float, ...]:
        """Of the same model on the first two batches of a stream."""
        trainable.use_stream(learner, incarnation)
        found = []
        for _ in range(2):
            trainable.adapter.apply(theta)
            found.append(trainable.step().loss)
        return tuple(found)

    names = [("a", 1), ("a", 2), ("b", 1), ("a1", 1)]
    seen = [losses(*name) for name in names]
    assert len(set(seen)) == len(names)
    assert losses("a", 2) == seen[1]


def test_what_is_applied_is_what_is_trained_on(task: str, framework: str) -> None:
    """An optimizer or a compiled step that held on to the old parameters would not see a committed round."""
    trainable, other = build(task, framework), build(task, framework, seed=9)
    trainable.step()
    trainable.adapter.apply(other.adapter.snapshot())
    before = parameters(trainable)
    assert before == parameters(other)
    trainable.step()
    after = parameters(trainable)
    moved = [np.abs(np.frombuffer(after[name], np.float32) - np.frombuffer(before[name], np.float32)).max() for name in before]
    assert 0 < max(moved) < 0.1  # one step away from what was applied


def test_each_call_may_come_from_another_thread(task: str, framework: str) -> None:
    def on_a_new_thread(call: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    here, moving = build(task, framework), on_a_new_thread(lambda: build(task, framework))
    threads = threading.active_count()
    for _ in range(2):
        assert on_a_new_thread(moving.step).loss == pytest.approx(here.step().loss, rel=1e-5)
        state = on_a_new_thread(moving.adapter.snapshot)
        on_a_new_thread(lambda state=state: moving.adapter.apply(state))
    assert on_a_new_thread(moving.evaluate).loss == pytest.approx(here.evaluate().loss, rel=1e-5)
    assert threading.active_count() == threads


def test_a_framework_or_device_that_there_is_not_is_a_usage_error(task: str, framework: str) -> None:
    made = registry.get(task)
    how = {"options": made.options({}), "data": made.data(None), "data_path": None, "seed": 0}
    with pytest.raises(UsageError, match="no model for 'jax'"):
        made.build(framework="jax", device="cpu", **how)
    with pytest.raises(UsageError, match="'toaster' is no device"):
        made.build(framework=framework, device="toaster", **how)


@pytest.mark.parametrize("options", [{"batch_size": 10**9}, {"layers": 10**6}, {"learning_rate": -1.0}, {"batch_size": "x"}])
def test_a_strangers_options_are_checked(task: str, options: dict[str, Any]) -> None:
    made = registry.get(task)
    with pytest.raises(UsageError, match=next(iter(options))):
        made.build(framework="torch", device="cpu", options=options, data=made.data(None), data_path=None, seed=0)


def test_data_that_does_not_fit_the_task_is_refused(tmp_path: Path) -> None:
    ref = DataRef(name="mine.txt", sha256="ab" * 32, size_bytes=5)
    how: dict[str, Any] = {"framework": "torch", "device": "cpu", "options": {}, "data_path": None, "seed": 0}
    mlp, charlm = registry.get("mlp"), registry.get("charlm")
    with pytest.raises(UsageError, match="makes its own data"):
        mlp.data(tmp_path / "x.txt")
    with pytest.raises(UsageError, match="makes its own data"):
        mlp.build(data=[ref], **how)
    with pytest.raises(UsageError, match="trains on one text"):
        charlm.build(data=[], **how)
    with pytest.raises(DataMissing, match="starts with abababababab"):
        charlm.build(data=[ref], **how)


def test_a_text_that_is_too_short_is_a_usage_error(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_bytes(b"too short")
    charlm = registry.get("charlm")
    with pytest.raises(UsageError, match="9 bytes, and seq_len 64 needs at least 650"):
        charlm.build(framework="torch", device="cpu", options={}, data=charlm.data(short), data_path=short, seed=0)


# Two frameworks, one model


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
    else:
        x, y = drawn.integers(0, 256, (2, 3, length)).astype(np.uint8)
    for net in nets:
        net.adapter.apply(theta)
    outputs = [net.predict(x) for net in nets]
    assert outputs[0].shape == ((length, 4) if task == "mlp" else (3, length, 256))
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


# Writing


@pytest.fixture
def writer(framework: str) -> Any:
    trainable = build("charlm", framework)
    for _ in range(10):
        trainable.step()
    return trainable


def write(trainable: Any, prompt: bytes = b"And ", *, n: int = 24, temperature: float = 1.0, seed: int = 0) -> bytes:
    return b"".join(trainable.generate(prompt, max_tokens=n, temperature=temperature, seed=seed))


def test_writing_depends_on_prompt_temperature_and_seed_alone(writer: Any) -> None:
    before = parameters(writer)
    text = write(writer)
    assert len(text) == 24
    writer.use_stream("z", 9)
    assert write(writer) == text
    assert len({text, write(writer, seed=1), write(writer, temperature=3.0)}) == 3
    assert write(writer, temperature=0, seed=0) == write(writer, temperature=0, seed=1)
    assert write(writer, n=10) == text[:10]
    assert parameters(writer) == before


def test_a_prompt_may_be_empty_or_longer_than_the_model_sees(writer: Any) -> None:
    assert write(writer, b"", temperature=0) == write(writer, b"\n", temperature=0)
    tail = b"sixteen bytes at"
    assert len(tail) == 16
    assert write(writer, b"x" * 1000 + tail) == write(writer, tail)


def test_text_is_yielded_byte_by_byte_as_it_is_made(writer: Any) -> None:
    endless = writer.generate(b"And ", max_tokens=10**9, temperature=1.0, seed=0)
    assert b"".join(next(endless) for _ in range(5)) == write(writer)[:5]
    assert all(len(next(endless)) == 1 for _ in range(3))
    assert write(writer, n=0) == b""


def test_wrong_arguments_are_refused_before_the_first_byte(writer: Any) -> None:
    for wrong in ({"max_tokens": -1}, {"temperature": -0.1}, {"temperature": float("nan")}, {"temperature": float("inf")}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            writer.generate(b"And ", **({"max_tokens": 1, "temperature": 1.0, "seed": 0} | wrong))


@needs_both
def test_both_frameworks_write_the_same_text() -> None:
    torch, mlx = (build("charlm", framework) for framework in FRAMEWORKS)
    for _ in range(10):
        torch.step()
    mlx.adapter.apply(torch.adapter.snapshot())
    assert write(torch, temperature=0.8) == write(mlx, temperature=0.8)


@pytest.mark.parametrize("length", [0, 5])
def test_the_sample_is_as_long_as_asked(framework: str, length: int) -> None:
    sample = build("charlm", framework, sample_bytes=str(length)).evaluate().sample
    assert len(sample) <= length
    assert sample.isprintable()


# Without a framework: what the tasks make of a net


class Recorder:
    """A net that trains nothing and keeps the batches that it was given."""

    device = "cpu"

    def __init__(self, *names: str) -> None:
        self.adapter = NumpyAdapter({name: np.zeros(2, np.float32) for name in names})
        self.batches: list[tuple[np.ndarray, np.ndarray]] = []

    def train(self, x: np.ndarray, y: np.ndarray) -> float:
        self.batches.append((x, y))
        return 0.0

    def loss(self, x: np.ndarray, y: np.ndarray) -> float:
        self.batches.append((x, y))
        return float(len(self.batches))

    def predict(self, x: np.ndarray) -> np.ndarray:
        return np.zeros((*x.shape, 256), np.float32)


def charlm_over(net: Recorder, *, batch_size: int = 4) -> CharLM:
    import msgspec

    size = msgspec.structs.replace(SIZES["tiny"], seq_len=8, batch_size=batch_size)
    text = generator(1, "text").bytes(20_000)
    return CharLM(net, Corpus(text, seq_len=8, eval_windows=10), size=size, sample_bytes=0, seed=0)


def test_no_two_streams_of_the_regression_share_a_sample() -> None:
    net = Recorder("norm.bias")
    trainable = Regression(net, batch_size=16, seed=0)
    for learner, incarnation in (("a", 1), ("a", 2), ("b", 1)):
        trainable.use_stream(learner, incarnation)
        for _ in range(20):
            trainable.step()
    trainable.evaluate()
    rows = np.concatenate([x for x, _ in net.batches])
    assert len(np.unique(rows, axis=0)) == len(rows) == 3 * 20 * 16 + 1024


def test_the_regression_is_the_same_for_all_learners_and_another_for_another_seed() -> None:
    held_out = []
    for seed in (0, 0, 1):
        net = Recorder("norm.bias")
        Regression(net, batch_size=16, seed=seed).evaluate()
        held_out.append(net.batches[0])
    (x, y), same, other = held_out
    assert np.array_equal(x, same[0])
    assert np.array_equal(y, same[1])
    assert not np.array_equal(x, other[0])
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(y.var(axis=0), 1, atol=1e-5)


def test_learners_read_the_text_in_different_orders() -> None:
    net = Recorder("embed.weight")
    trainable = charlm_over(net)
    orders = []
    for learner, incarnation in (("a", 1), ("a", 2), ("b", 1), ("a", 1)):
        trainable.use_stream(learner, incarnation)
        net.batches.clear()
        for _ in range(10):
            trainable.step()
        orders.append(np.concatenate([x for x, _ in net.batches]).tobytes())
    assert orders[0] == orders[3]
    assert len(set(orders)) == 3


def test_the_held_out_loss_is_weighted_by_tokens() -> None:
    net = Recorder("embed.weight")
    result = charlm_over(net, batch_size=4).evaluate()
    assert [len(x) for x, _ in net.batches] == [4, 4, 2]
    assert result.loss == pytest.approx((4 * 1 + 4 * 2 + 2 * 3) / 10)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_compiled_step_is_the_step() -> None:
    """As on a GPU. On a CPU, MLX compiles by a C++ compiler."""
    mx = pytest.importorskip("mlx.core")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    import mlx.optimizers as optim

    from swarm.tasks.charlm import mlx as charlm
    from swarm.tasks.mlx import MlxNet, untouched

    size = Size(width=8, layers=1, heads=1, seq_len=8, batch_size=2, learning_rate=0.01, eval_windows=1)
    device = mx.Device(mx.cpu)
    x, y = np.random.default_rng(0).integers(0, 256, (2, 2, 8)).astype(np.uint8)
    outcomes = []
    for compiled in (False, True):
        model = untouched(lambda: charlm.GPT(size), device)
        optimizer = charlm.DecayMatrices(0.01, bias_correction=True)
        assert isinstance(optimizer, optim.AdamW)
        net = MlxNet(model, optimizer, charlm._loss, device=device, max_norm=1.0, compiled=compiled)
        losses = []
        for seed in (0, 1):  # the second time, after the step was compiled, as a committed round is applied
            net.adapter.apply(charlm_initial(net.adapter.schema(), seed, layers=1))
            losses += [net.train(x, y) for _ in range(3)]
        outcomes.append((losses, net.adapter.snapshot()["blocks.0.mlp.up.weight"].copy()))
    np.testing.assert_allclose(outcomes[0][0], outcomes[1][0], rtol=1e-4)
    np.testing.assert_allclose(outcomes[0][1], outcomes[1][1], atol=1e-4)
