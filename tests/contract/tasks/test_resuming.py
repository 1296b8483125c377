"""What a restarted learner goes on from (contract.Resumable), in every framework."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from swarm.core.errors import StateMismatch, UsageError
from swarm.tasks import registry
from swarm.tasks.contract import Resumable, TaskState
from tests.contract.tasks.trainables import TASKS, build, parameters


def kept(state: TaskState) -> TaskState:
    """As it is after a while on a disk."""
    arrays = {name: np.array(array) for name, array in state.arrays.items()}
    return TaskState(arrays=arrays, values=json.loads(json.dumps(state.values)))


def trained(task: str, framework: str, steps: int) -> Any:
    trainable = build(task, framework)
    trainable.use_stream("a", 1)
    for _ in range(steps):
        trainable.step()
    return trainable


@pytest.mark.parametrize("before", [0, 7])
def test_a_resumed_learner_makes_the_steps_that_would_have_followed(task: str, framework: str, before: int) -> None:
    first = trained(task, framework, before)
    theta = {name: array.copy() for name, array in first.adapter.snapshot().items()}
    state = kept(first.state())
    expected = [first.step() for _ in range(5)]

    second = build(task, framework)
    second.use_stream("a", 2)
    second.adapter.apply(theta)
    second.load(state)
    assert [second.step() for _ in range(5)] == expected
    assert parameters(second) == parameters(first)
    ours, theirs = first.state(), second.state()
    assert ours.values == theirs.values
    assert {n: a.tobytes() for n, a in ours.arrays.items()} == {n: a.tobytes() for n, a in theirs.arrays.items()}


def test_without_the_state_it_would_train_otherwise(task: str, framework: str) -> None:
    """Each part counts: the test above cannot pass by chance."""
    first = trained(task, framework, 7)
    theta = {name: array.copy() for name, array in first.adapter.snapshot().items()}
    state = kept(first.state())
    first.step()
    for left_out in ("optimizer", "random"):
        other = build(task, framework)
        fresh = other.state()
        other.adapter.apply(theta)
        if left_out == "optimizer":
            other.load(TaskState(arrays=kept(fresh).arrays, values=state.values))
        else:
            other.load(TaskState(arrays=state.arrays, values=fresh.values))
        other.step()
        assert parameters(other) != parameters(first), left_out


def test_a_trained_learner_can_be_put_back(task: str, framework: str) -> None:
    """To any state, its own first one included."""
    trainable = trained(task, framework, 0)
    theta = {name: array.copy() for name, array in trainable.adapter.snapshot().items()}
    state = kept(trainable.state())
    expected = [trainable.step() for _ in range(3)]
    trainable.adapter.apply(theta)
    trainable.load(state)
    assert [trainable.step() for _ in range(3)] == expected


def test_what_was_loaded_is_the_callers_again(task: str, framework: str) -> None:
    state = kept(trained(task, framework, 2).state())
    one, other = build(task, framework), build(task, framework)
    for trainable in (one, other):
        trainable.load(state)
    for array in state.arrays.values():
        array[...] = 1
    assert one.step() == other.step()
    assert parameters(one) == parameters(other)


def test_the_arrays_are_named_by_parameter_and_hold_still(task: str, framework: str) -> None:
    trainable = trained(task, framework, 1)
    arrays = trainable.state().arrays
    names = set(trainable.adapter.snapshot())
    entries = {"torch": ("exp_avg", "exp_avg_sq", "step"), "mlx": ("m", "v")}[framework]
    shared = {"torch": set(), "mlx": {"step", "learning_rate"}}[framework]
    assert set(arrays) == {f"{name}.{entry}" for name in names for entry in entries} | shared
    assert all(array.flags.c_contiguous for array in arrays.values())
    for name, array in trainable.adapter.snapshot().items():
        # In the framework's order of the axes, which may be another than the canonical one.
        assert sorted(arrays[f"{name}.{entries[0]}"].shape) == sorted(array.shape)


def wrong(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Callable[[TaskState], TaskState]:
    def made(state: TaskState) -> TaskState:
        arrays, values = dict(state.arrays), copy.deepcopy(dict(state.values))
        change(arrays, values)
        return TaskState(arrays=arrays, values=values)

    return made


def some_moment(arrays: dict[str, Any]) -> str:
    return next(name for name, array in sorted(arrays.items()) if array.ndim)


WRONG: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Any], str]] = {
    "missing": (lambda a, v: a.pop(some_moment(a)), "is absent, and should be float32"),
    "unknown": (lambda a, v: a.update(extra=np.zeros(1, np.float32)), r"extra is float32 \(1,\), and should be absent"),
    "shape": (lambda a, v: a.update({some_moment(a): np.zeros(3, np.float32)}), r"is float32 \(3,\), and should be float32"),
    "dtype": (lambda a, v: a.update({some_moment(a): a[some_moment(a)].astype(np.float64)}), "is float64"),
    "scalar": (lambda a, v: a.update({next(n for n in a if n.endswith("step")): np.zeros(1)}), r"step is float64 \(1,\)"),
    "task": (lambda a, v: v.update(task="chess"), "has task 'chess', this learner"),
    "framework": (lambda a, v: v.update(framework="numpy"), "has framework 'numpy', this learner"),
    "optimizer": (lambda a, v: v.update(optimizer="Lion"), "has optimizer 'Lion', this learner"),
    "no values": (lambda a, v: v.clear(), "has task 'None'"),
    "no position": (lambda a, v: v.pop("random"), "no position in a random stream"),
    "another generator": (lambda a, v: v["random"].update(bit_generator="MT19937"), "no position in a random stream"),
    "half a position": (lambda a, v: v["random"]["state"].pop("key"), "no position in a random stream"),
    "short counter": (lambda a, v: v["random"]["state"].update(counter=[1, 2]), "no position in a random stream"),
    "negative": (lambda a, v: v["random"]["state"].update(key=[-1, 2]), "no position in a random stream"),
    "text": (lambda a, v: v["random"].update(buffer="abcd"), "no position in a random stream"),
    "more": (lambda a, v: v["random"].update(more=1), "no position in a random stream"),
    "beyond the buffer": (lambda a, v: v["random"].update(buffer_pos=9), "no position in a random stream"),
}


@functools.cache
def put_before(task: str, framework: str) -> tuple[Any, TaskState]:
    """A learner, which is the same after each state that it refuses, and one that it would take."""
    return trained(task, framework, 2), kept(trained(task, framework, 3).state())


@pytest.mark.parametrize("what", WRONG)
def test_a_state_that_does_not_fit_is_refused_in_one_line_and_changes_nothing(task: str, framework: str, what: str) -> None:
    change, message = WRONG[what]
    trainable, right = put_before(task, framework)
    before, theta = kept(trainable.state()), parameters(trainable)
    with pytest.raises(StateMismatch, match=message) as caught:
        trainable.load(wrong(change)(right))
    assert "\n" not in str(caught.value)
    after = trainable.state()
    assert after.values == before.values
    assert {n: a.tobytes() for n, a in after.arrays.items()} == {n: a.tobytes() for n, a in before.arrays.items()}
    assert parameters(trainable) == theta


def test_a_state_of_another_model_size_is_refused(framework: str) -> None:
    with pytest.raises(StateMismatch, match=r"pos\.weight"):
        build("charlm", framework, seq_len="24").load(trained("charlm", framework, 1).state())


@pytest.mark.usefixtures("both_frameworks")
def test_a_state_of_the_other_framework_is_refused(task: str) -> None:
    for one, other in (("torch", "mlx"), ("mlx", "torch")):
        with pytest.raises(StateMismatch, match=f"has framework '{one}', this learner '{other}'"):
            build(task, other).load(trained(task, one, 1).state())


def test_each_call_may_come_from_another_thread(task: str, framework: str) -> None:
    def on_a_new_thread(call: Callable[[], Any]) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    first, second = (on_a_new_thread(lambda: trained(task, framework, 2)) for _ in range(2))
    state = on_a_new_thread(first.state)
    on_a_new_thread(lambda: second.load(state))
    assert on_a_new_thread(second.step) == first.step()


def test_built_in_tasks_can_be_resumed(task: str, framework: str) -> None:
    assert isinstance(build(task, framework), Resumable)


# Optimizers that the built-in tasks do not use


def test_any_optimizer_of_pytorchs_is_kept() -> None:
    torch = pytest.importorskip("torch")
    from swarm.tasks.torch import TorchNet

    def net(optimizer: Callable[[Any], Any], dtype: Any) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)).to(dtype)
        loss = torch.nn.functional.mse_loss
        cast = lambda out, y: loss(out, y.to(dtype))  # noqa: E731
        net = TorchNet(model, optimizer(model), cast, device=torch.device("cpu"))
        net._put = lambda array: torch.from_numpy(array).to(dtype)
        return net

    optimizers: list[Callable[[Any], Any]] = [
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True),
        lambda model: torch.optim.AdamW(list(model[1].parameters()), lr=0.1),  # the rest is frozen
        lambda model: torch.optim.RMSprop([{"params": [*model[1].parameters()]}, {"params": [*model[0].parameters()]}], lr=0.1),
    ]
    x, y = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    for optimizer in optimizers:
        for dtype in (torch.float32, torch.bfloat16):
            first, second = net(optimizer, dtype), net(optimizer, dtype)
            for _ in range(3):
                first.train(x, y[:, :2])
            second.adapter.apply(first.adapter.snapshot())
            second.load({name: array.copy() for name, array in first.state().items()})
            for _ in range(3):
                assert first.train(x, y[:, :2]) == second.train(x, y[:, :2])
            assert [a.tobytes() for a in first.adapter.snapshot().values()] == [
                a.tobytes() for a in second.adapter.snapshot().values()
            ]


# A batch that learners share


@pytest.mark.parametrize("batch_size", [None, 3])
def test_the_batch_size_can_be_given_at_building(task: str, framework: str, batch_size: int | None) -> None:
    made = registry.get(task)
    trainable = registry.build(
        made,
        batch_size=batch_size,
        framework=framework,
        device="cpu",
        options=made.options(TASKS[task]),
        data=made.data(None),
        data_path=None,
        seed=0,
    )
    own = {"mlp": 32, "charlm": 4, "lenet5": 16}[task]
    result = trainable.step()
    assert result.samples == (batch_size or own)
    assert result.tokens == result.samples * {"mlp": 1, "charlm": 16, "lenet5": 1}[task]


@pytest.mark.parametrize("batch_size", [0, -1, 10**9])
def test_a_batch_size_that_the_task_cannot_have_is_refused(task: str, batch_size: int) -> None:
    made = registry.get(task)
    how: dict[str, Any] = {"framework": "torch", "device": "cpu", "data": made.data(None), "data_path": None, "seed": 0}
    with pytest.raises(UsageError, match="batch_size must be a whole number"):
        registry.build(made, batch_size=batch_size, options=made.options({}), **how)


def test_a_state_outlives_another_batch_size(task: str, framework: str) -> None:
    state = kept(trained(task, framework, 2).state())
    other = build(task, framework, batch_size="2")
    other.load(state)
    assert other.step().samples == 2


def test_the_optimizer_of_a_program_is_asked_without_a_step_of_its_own() -> None:
    """A scheduler puts a function of its own in the place of `step`, hooks may do anything, and a parameter may never have
    had a gradient."""
    torch = pytest.importorskip("torch")
    from swarm.learners.torch import TorchOptimizer

    def made() -> tuple[Any, Any, list[str]]:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        hooked: list[str] = []
        optimizer.register_step_pre_hook(lambda *_: hooked.append("step"))
        torch.optim.lr_scheduler.StepLR(optimizer, 10)
        return model, optimizer, hooked

    def step(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        model[1](torch.ones(1, 4)).sum().backward()
        optimizer.step()

    model, optimizer, _ = made()
    step(model, optimizer)
    saved = {name: np.array(array) for name, array in TorchOptimizer(optimizer, model).state().items()}
    assert {name.rpartition(".")[0] for name in saved} == {"1.weight", "1.bias"}
    again, other, hooked = made()
    step(again, other)  # gradients are there
    before = {name: array.detach().clone() for name, array in again.named_parameters()}
    state = TorchOptimizer(other, again)
    state.check()
    state.load(saved)
    assert hooked == ["step"]
    assert all(torch.equal(before[name], array) for name, array in again.named_parameters())
    assert {name: array.tobytes() for name, array in state.state().items()} == {n: a.tobytes() for n, a in saved.items()}


def test_numbers_that_an_optimizer_keeps_stay_numbers() -> None:
    torch = pytest.importorskip("torch")
    from swarm.learners.torch import TorchOptimizer

    class Counting(torch.optim.Optimizer):  # type: ignore[misc, name-defined]
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})
            self.rate = 0.5

        def step(self, closure: Any = None) -> None:
            for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
                self.state[p]["steps"] = self.state[p].get("steps", 0) + 1
                self.state[p]["rate"] = self.rate

    model = torch.nn.Linear(3, 2)
    optimizer = Counting(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    saved = {name: np.array(array) for name, array in TorchOptimizer(optimizer, model).state().items()}
    other = Counting(model.parameters())
    TorchOptimizer(other, model).check()
    TorchOptimizer(other, model).load(saved)
    assert other.state[model.weight] == {"steps": 1, "rate": 0.5}
    assert isinstance(other.state[model.weight]["steps"], int)


def test_an_optimizer_that_cannot_be_kept_is_told_in_one_line() -> None:
    torch = pytest.importorskip("torch")
    from swarm.learners.torch import TorchOptimizer

    model = torch.nn.Linear(3, 2)
    with pytest.raises(UsageError, match="state of the optimizer LBFGS cannot be kept"):
        TorchOptimizer(torch.optim.LBFGS(model.parameters()), model).check()
    with pytest.raises(UsageError, match="none of the model's"):
        TorchOptimizer(torch.optim.SGD(torch.nn.Linear(3, 2).parameters()), model).check()
