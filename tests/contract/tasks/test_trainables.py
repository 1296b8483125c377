"""What every task promises, in every framework (swarm/tasks/contract.py)."""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swarm.core.errors import DataMissing, UsageError
from swarm.core.manifest import DataRef
from swarm.tasks import registry
from swarm.tasks.charlm.sizes import Size
from swarm.tasks.charlm.trainable import initial as charlm_initial
from tests.contract.tasks.trainables import build, parameters, write


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
    trainable.load(trainable.state())
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
    assert {result.tokens for result in results} == {{"mlp": 32, "charlm": 4 * 16, "lenet5": 16}[task]}
    assert after.loss < {"mlp": 0.2, "charlm": 3.4, "lenet5": 1.0}[task]
    assert np.mean([r.loss for r in results[-10:]]) < np.mean([r.loss for r in results[:10]])
    if task == "mlp":
        assert before.loss > 0.9  # explains nothing
        assert after.metrics == {"r2": pytest.approx(1 - after.loss)}
    elif task == "lenet5":
        assert before.loss == pytest.approx(np.log(10), abs=0.1)  # knows nothing: all digits alike
        right = sum(row[label] for label, row in enumerate(after.confusion))
        assert after.metrics == {"accuracy": right / sum(map(sum, after.confusion))}
        assert after.metrics["accuracy"] > 0.6
    else:
        assert before.loss == pytest.approx(np.log(256), abs=0.05)  # knows nothing: all bytes alike
        assert after.metrics == {"bits_per_byte": pytest.approx(after.loss / np.log(2))}


@pytest.mark.slow
def test_evaluating_changes_neither_model_nor_optimizer_nor_stream(task: str, framework: str) -> None:
    undisturbed, evaluated = build(task, framework), build(task, framework)
    losses: list[list[float]] = [[], []]
    for _ in range(2):
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
    threads = set(threading.enumerate())
    for _ in range(2):
        assert on_a_new_thread(moving.step).loss == pytest.approx(here.step().loss, rel=1e-5)
        state = on_a_new_thread(moving.adapter.snapshot)
        on_a_new_thread(lambda state=state: moving.adapter.apply(state))
    assert on_a_new_thread(moving.evaluate).loss == pytest.approx(here.evaluate().loss, rel=1e-5)
    # Those of other tests may end meanwhile; none of ours may be left.
    assert set(threading.enumerate()) <= threads


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


# Writing


@pytest.fixture
def writer(framework: str) -> Any:
    trainable = build("charlm", framework)
    for _ in range(10):
        trainable.step()
    return trainable


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


@pytest.mark.parametrize("length", [0, 5])
def test_the_sample_is_as_long_as_asked(framework: str, length: int) -> None:
    sample = build("charlm", framework, sample_bytes=str(length)).evaluate().sample
    assert len(sample) <= length
    assert sample.isprintable()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_compiled_step_is_the_step() -> None:
    """As on a GPU. On a CPU, MLX compiles by a C++ compiler."""
    mx = pytest.importorskip("mlx.core")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("no C++ compiler")
    from swarm.tasks.charlm import mlx as charlm
    from swarm.tasks.mlx import MlxNet, untouched

    size = Size(width=8, layers=1, heads=1, seq_len=8, batch_size=2, learning_rate=0.01, eval_windows=1)
    device = mx.Device(mx.cpu)
    x, y = np.random.default_rng(0).integers(0, 256, (2, 2, 8)).astype(np.uint8)
    outcomes = []
    for compiled in (False, True):
        model = untouched(lambda: charlm.GPT(size), device)
        optimizer = charlm.DecayMatrices(0.01, bias_correction=True)
        net = MlxNet(model, optimizer, charlm._loss, device=device, max_norm=1.0, compiled=compiled)
        losses = []
        for seed in (0, 1):  # the second time, after the step was compiled, as a committed round is applied
            net.adapter.apply(charlm_initial(net.adapter.schema(), seed, layers=1))
            losses += [net.train(x, y) for _ in range(3)]
            state = {name: array.copy() for name, array in net.state().items()}
            losses.append(net.train(x, y))
            net.load(state)  # a compiled step must see it too
            losses.append(net.train(x, y))
        outcomes.append((losses, net.adapter.snapshot()["blocks.0.mlp.up.weight"].copy()))
    np.testing.assert_allclose(outcomes[0][0], outcomes[1][0], rtol=1e-4)
    np.testing.assert_allclose(outcomes[0][1], outcomes[1][1], atol=1e-4)
