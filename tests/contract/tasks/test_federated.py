"""What a task owes FedAvg (contract.Federated), in every framework: clients that can be trained again to the same bytes."""

from __future__ import annotations

import gc
import importlib
import random
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from swarm.core.clients import client_id
from swarm.core.errors import UsageError
from swarm.core.specs import FedAvg
from swarm.learners.contract import Adapter
from swarm.tasks import registry
from swarm.tasks.contract import Federated
from swarm.tasks.lenet5.images import CLASSES, LARGE, SMALL
from swarm.tasks.lenet5.sizes import Model
from swarm.tasks.local import LocalNet
from tests.contract.tasks.trainables import FRAMEWORKS

EVERYTHING = {"norm": "batch", "dropout": "0.3"}  # all that a client draws, and all that it keeps beside its parameters
SPEC = FedAvg(clients=40, per_round=2, batch_size=16, optimizer="adam", lr=0.001, training_seed=29)


def build(framework: str, *, buffers: bool = True, private: bool = False, **options: str) -> Any:
    task = registry.get("lenet5")
    return registry.build(
        task,
        buffers=buffers,
        private=private,
        framework=framework,
        device="cpu",
        options=task.options(options),
        data=task.data(None),
        data_path=None,
        seed=17,
    )


def kept(adapter: Adapter) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in adapter.snapshot().items()}


def as_bytes(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def trained(learner: Any, clients: Sequence[int], spec: FedAvg = SPEC, *, round: int = 0) -> dict[int, dict[str, bytes]]:
    """What each client makes of the parameters that the learner holds, by client."""
    learner.deal(spec, seed=3)
    theta = kept(learner.adapter)
    made = {}
    for index in clients:
        learner.adapter.apply(theta)
        for _ in learner.train_client(spec, index=index, unit=client_id(index), round=round):
            pass
        made[index] = as_bytes(kept(learner.adapter))
    learner.adapter.apply(theta)
    return made


def states() -> list[str]:
    found: list[Any] = [random.getstate(), np.random.get_state()]
    if "torch" in sys.modules:
        found.append(sys.modules["torch"].get_rng_state().tolist())
    if "mlx.core" in sys.modules:
        found.append(np.array(sys.modules["mlx.core"].random.state[0]).tolist())
    return [repr(one) for one in found]


def test_lenet5_can_be_dealt_out(framework: str) -> None:
    learner = build(framework)
    assert isinstance(learner, Federated)
    samples = learner.deal(SPEC, seed=3)
    assert (len(samples), sum(samples)) == (40, 1435)


def test_a_client_is_trained_again_to_the_same_bytes(framework: str) -> None:
    """By another process, after other clients, whatever the global random states are."""
    first = trained(build(framework, **EVERYTHING), [4, 5])
    random.seed(1)
    np.random.seed(1)
    if framework == "torch":
        sys.modules["torch"].manual_seed(1)
    other = build(framework, **EVERYTHING)
    assert trained(other, [5, 9, 4]) == first | {9: trained(other, [9])[9]}
    assert first[4] != first[5]


def test_what_is_drawn_differs_by_round_and_seed(framework: str) -> None:
    learner = build(framework, model="mlp", dropout="0.3")
    unseeded = FedAvg(clients=40, per_round=2, batch_size=16)
    made = [
        trained(learner, [4])[4],
        trained(learner, [4], round=1)[4],
        trained(learner, [4], msgspec.structs.replace(SPEC, training_seed=1))[4],
        trained(learner, [4], unseeded)[4],
        trained(learner, [4], unseeded)[4],
    ]
    assert all(made[n] != made[m] for n in range(5) for m in range(n))


def test_dropout_is_drawn_from_the_clients_stream(framework: str) -> None:
    """The order of the samples alone is no proof: with one batch an epoch, all of the difference is dropout's."""
    spec = FedAvg(clients=40, per_round=2, batch_size=100, training_seed=29)
    deterministic, drawing = (build(framework, model="mlp", dropout=part) for part in ("0", "0.5"))
    for learner, same in ((deterministic, True), (drawing, False)):
        learner.deal(spec, seed=3)
        theta = kept(learner.adapter)
        losses = []
        for round in (0, 1):
            learner.adapter.apply(theta)
            losses.append(next(learner.train_client(spec, index=4, unit="client-0004", round=round)).loss)
        assert (losses[0] == pytest.approx(losses[1], rel=1e-5)) == same


def test_random_states_and_modes_are_the_callers_between_steps(framework: str) -> None:
    learner = build(framework, **EVERYTHING)
    learner.deal(SPEC, seed=3)
    before = states()
    assert len(before) > 2
    training = learner.train_client(SPEC, index=4, unit="client-0004", round=0)
    for _ in training:
        assert states() == before
    training = learner.train_client(SPEC, index=4, unit="client-0004", round=0)
    next(training)
    training.close()
    del training
    gc.collect()
    assert states() == before


def test_evaluating_between_two_steps_changes_nothing(framework: str) -> None:
    disturbed, undisturbed = (build(framework, **EVERYTHING) for _ in range(2))
    for learner in (disturbed, undisturbed):
        learner.deal(SPEC, seed=3)
        for _ in learner.train_client(SPEC, index=4, unit="client-0004", round=0):
            if learner is disturbed:
                assert learner.evaluate() == learner.evaluate()
    assert as_bytes(kept(disturbed.adapter)) == as_bytes(kept(undisturbed.adapter))


def test_buffers_are_exchanged_if_they_are_asked_for(framework: str) -> None:
    statistics = {f"norm{n}.running_{kind}" for n in (1, 2) for kind in ("mean", "var")}
    with_them, without = (build(framework, buffers=buffers, norm="batch") for buffers in (True, False))
    assert set(with_them.adapter.snapshot()) - set(without.adapter.snapshot()) == statistics
    before = kept(with_them.adapter)
    assert all((before[name] == name.endswith("var")).all() for name in statistics)
    after = trained(with_them, [4])[4]
    assert all(after[name] != before[name].tobytes() for name in statistics)


def test_the_confusion_tells_what_was_read_as_what(framework: str) -> None:
    learner = build(framework, model="mlp")
    spec = FedAvg(clients=10, per_round=2, optimizer="adam", lr=0.01, training_seed=29)
    learner.deal(spec, seed=3)
    for index in range(3):
        for _ in learner.train_client(spec, index=index, unit=client_id(index), round=0):
            pass
    result = learner.evaluate()
    matrix = np.array(result.confusion)
    assert matrix.shape == (CLASSES, CLASSES)
    assert matrix.sum(axis=1).tolist() == [36, 37, 36, 37, 36, 37, 36, 36, 35, 36]  # of each label
    assert result.metrics == {"accuracy": np.trace(matrix) / 362}
    assert result.metrics["accuracy"] > 0.5


def test_a_private_client_without_data_is_told_to_bring_some(framework: str) -> None:
    learner = build(framework, private=True, model="mlp")
    with pytest.raises(UsageError, match="pass data of your own with --data"):
        learner.deal(FedAvg(private=True), seed=3)
    assert learner.evaluate().metrics["accuracy"] < 0.3


def test_a_task_without_a_data_set_is_not_federated(framework: str) -> None:
    task = registry.get("mlp")
    how: dict[str, Any] = {"options": {}, "data": [], "data_path": None, "seed": 0}
    assert not isinstance(task.build(framework=framework, device="cpu", **how), Federated)


# Both frameworks

needs_both = pytest.mark.usefixtures("both_frameworks")
MODELS = {
    "lenet5": Model(convolutions=True, batch_norm=False, dropout=0.0),
    "with norms": Model(convolutions=True, batch_norm=True, dropout=0.3),
    "mlp": Model(convolutions=False, batch_norm=False, dropout=0.3),
}


@needs_both
@pytest.mark.parametrize("name", MODELS)
def test_equal_parameters_and_buffers_give_equal_outputs(name: str) -> None:
    model = MODELS[name]
    nets: list[LocalNet] = []
    for framework in FRAMEWORKS:
        backend = importlib.import_module(f"swarm.tasks.lenet5.{framework}")
        nets.append(backend.nets("cpu", model, learning_rate=0.01, buffers=True)[1])
    schemas = [[(spec.name, spec.dtype, spec.shape, spec.buffer) for spec in net.adapter.schema()] for net in nets]
    assert schemas[0] == schemas[1]
    drawn = np.random.default_rng(0)
    # Far from the initial values, in sizes that keep the outputs of order one.
    theta = {}
    for spec in nets[0].adapter.schema():
        values = drawn.normal(0.05, np.prod(spec.shape[1:], initial=1.0) ** -0.5, spec.shape)
        theta[spec.name] = (np.abs(values) if spec.name.endswith("var") else values).astype(np.float32)
    side = LARGE if model.convolutions else SMALL
    x = drawn.random((9, side, side), dtype=np.float32)
    for net in nets:
        net.adapter.apply(theta)
    ours, theirs = (net.predict(x) for net in nets)
    assert np.std(ours) > 0.1
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)


@needs_both
def test_both_frameworks_deal_alike_and_train_a_client_alike() -> None:
    """In another order or with other samples, they would not."""
    learners = [build(framework, norm="batch") for framework in FRAMEWORKS]
    theta = kept(learners[0].adapter)
    assert as_bytes(theta) == as_bytes(kept(learners[1].adapter))
    spec = FedAvg(clients=40, per_round=2, partition="dirichlet:0.5", batch_size=16, lr=0.05, training_seed=29)
    assert learners[0].deal(spec, seed=3) == learners[1].deal(spec, seed=3)
    losses = [[step.loss for step in one.train_client(spec, index=4, unit="client-0004", round=0)] for one in learners]
    assert len(losses[0]) > 1
    np.testing.assert_allclose(*losses, rtol=1e-4)
    ours, theirs = (kept(learner.adapter) for learner in learners)
    for name in ours:
        moved = np.abs(ours[name] - theta[name]).max()
        # A bias before a norm has a gradient of rounding errors only.
        assert np.abs(ours[name] - theirs[name]).max() < 1e-2 * moved + 1e-6, name
