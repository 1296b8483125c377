"""FedAvg over a data set: how samples are dealt out to clients, and what training one of them asks of a net."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from swarm.core.errors import NotFinite, UsageError
from swarm.core.specs import FedAvg
from swarm.core.training import LocalTraining
from swarm.tasks.contract import ClientStep
from swarm.tasks.federated import Clients, deal

PARTITIONS = st.one_of(
    st.just("iid"),
    st.floats(1e-300, 1e6).map("dirichlet:{}".format),
    st.integers(1, 5).map("by-label:{}".format),
)


def spec(clients: int = 4, partition: str = "iid", **fields: Any) -> FedAvg:
    return FedAvg(clients=clients, per_round=1, partition=partition, **{"training_seed": 5, "batch_size": 4} | fields)


def dealt(how: FedAvg, labels: NDArray[Any], seed: int = 0) -> tuple[NDArray[np.int64], ...]:
    return deal(how, seed=seed, count=len(labels), labels=labels)


def balanced(count: int = 1000, classes: int = 10) -> NDArray[np.int64]:
    return np.arange(count) % classes


# Dealing


@settings(max_examples=200)
@given(
    clients=st.integers(1, 40),
    partition=PARTITIONS,
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60).map(np.array),
    seed=st.integers(0, 2**63 - 1),
)
def test_no_sample_is_lost_and_none_is_given_twice(clients: int, partition: str, labels: NDArray[np.int64], seed: int) -> None:
    how = spec(clients, partition)
    kind, _, each = partition.partition(":")
    classes = len(set(labels.tolist()))
    assume(kind != "by-label" or int(each) <= classes <= clients * int(each))
    parts = dealt(how, labels, seed)
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert [part.tolist() for part in parts] == [part.tolist() for part in dealt(how, labels, seed)]
    if kind == "iid":
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if kind == "by-label":
        assert all(len(set(labels[part].tolist())) <= int(each) for part in parts)


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.5", "by-label:2"])
def test_another_seed_deals_otherwise(partition: str) -> None:
    one, other = (dealt(spec(10, partition), balanced(), seed) for seed in (0, 1))
    assert any(a.tolist() != b.tolist() for a, b in zip(one, other, strict=True))
    again = dealt(spec(10, partition, training_seed=99, model_seed=98, selection_seed=97), balanced(), 0)
    assert all(a.tolist() == b.tolist() for a, b in zip(one, again, strict=True))  # by its own seed alone


def label_shares(parts: tuple[NDArray[np.int64], ...], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """[client][label]: of the label's samples."""
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    return counts / counts.sum(axis=0)


def test_the_smaller_alpha_the_fewer_clients_have_most_of_a_label() -> None:
    labels = balanced(10_000)
    parts = [dealt(spec(10, f"dirichlet:{alpha}"), labels) for alpha in (1e-9, 0.1, 0.5, 100)]
    largest = [label_shares(one, labels).max(axis=0).mean() for one in parts]
    assert largest[0] == 1  # the limit: one client has all of it
    assert largest == sorted(largest, reverse=True)
    assert largest[1] > 0.5
    assert largest[2] > 0.3
    assert largest[3] < 0.15  # each has nearly a tenth, as with iid


def test_dirichlet_of_a_large_alpha_deals_like_iid() -> None:
    labels = balanced(10_000)
    parts = dealt(spec(10, "dirichlet:100"), labels)
    np.testing.assert_allclose(label_shares(parts, labels), 0.1, atol=0.05)
    assert max(map(len, parts)) < 1.2 * min(map(len, parts))


@pytest.mark.parametrize(("clients", "each"), [(10, 1), (10, 2), (5, 2), (7, 3), (100, 2), (3, 10)])
def test_by_label_gives_each_client_its_number_of_labels_and_shares_each_label_out_equally(clients: int, each: int) -> None:
    labels = balanced(2000)
    parts = dealt(spec(clients, f"by-label:{each}"), labels)
    assert {len(set(labels[part].tolist())) for part in parts} == {each}
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for label in range(10):
        shares = counts[counts[:, label] > 0, label]
        assert shares.max() - shares.min() <= 1


def test_partitions_that_do_not_fit_the_labels_are_refused() -> None:
    with pytest.raises(UsageError, match="by-label:11: the samples have 10 labels"):
        dealt(spec(10, "by-label:11"), balanced())
    with pytest.raises(UsageError, match="by-label:2: 4 clients leave some of the 10 labels to nobody"):
        dealt(spec(4, "by-label:2"), balanced())
    with pytest.raises(UsageError, match="goes by the samples' labels, and this task's have none: iid"):
        deal(spec(4, "dirichlet:1"), seed=0, count=8, labels=None)
    assert [len(part) for part in deal(spec(4), seed=0, count=10, labels=None)] == [3, 3, 2, 2]


def test_there_may_be_more_clients_than_samples() -> None:
    assert sorted(map(len, dealt(spec(5), np.array([0, 1])))) == [0, 0, 0, 1, 1]


# Training a client


class FakeNet:
    """A LocalNet that notes what it is asked for. `flaw`: at this step, the gradient is not finite."""

    adapter: Any = None
    device = "cpu"

    def __init__(self, flaw: int = -1) -> None:
        self.begun: list[LocalTraining] = []
        self.ended = 0
        self.steps: list[tuple[list[int], float, int | None]] = []  # samples, rate, seed
        self.seed: int | None = None
        self._flaw = flaw

    @property
    def samples(self) -> list[int]:
        """As they came."""
        return [sample for samples, _, _ in self.steps for sample in samples]

    def begin(self, spec: LocalTraining) -> None:
        self.begun.append(spec)

    def step(self, x: NDArray[Any], y: NDArray[Any], *, lr: float) -> float:
        if len(self.steps) == self._flaw:
            raise NotFinite("fc1.weight")
        assert (x == 10 * y).all()
        self.steps.append((y.tolist(), lr, self.seed))
        return float(len(self.steps))

    def end(self) -> None:
        self.ended += 1

    def loss(self, x: NDArray[Any], y: NDArray[Any]) -> float:
        raise NotImplementedError

    def predict(self, x: NDArray[Any]) -> NDArray[Any]:
        raise NotImplementedError

    @contextmanager
    def seeded(self, seed: int | None) -> Iterator[None]:
        self.seed = seed
        yield
        self.seed = None


def clients(net: FakeNet, how: FedAvg, count: int = 10) -> Clients:
    made = Clients(net, lambda chosen: (10 * chosen, chosen), count=count, labels=np.zeros(count, np.uint8))
    made.deal(how, seed=0)
    return made


def trained(how: FedAvg, *, index: int = 0, unit: str = "client-0000", round: int = 0, count: int = 10) -> FakeNet:
    net = FakeNet()
    list(clients(net, how, count).train(how, index=index, unit=unit, round=round))
    return net


def test_each_epoch_takes_every_sample_once_in_an_order_of_its_own() -> None:
    how = spec(1, local_epochs=3)
    net = FakeNet()
    steps = list(clients(net, how).train(how, index=0, unit="client-0000", round=0))
    assert steps == [ClientStep(loss=n + 1.0, samples=2 if n % 3 == 2 else 4, steps=9) for n in range(9)]
    epochs = [net.samples[at : at + 10] for at in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len({seed for _, _, seed in net.steps}) == 9  # dropout draws anew in each step
    assert (net.begun, net.ended) == ([how, how], 2)  # to be told at once what cannot be done; and to train


def test_what_is_drawn_follows_from_seed_unit_round_and_epoch_alone() -> None:
    how = spec(1, local_epochs=2)
    expected = trained(how).steps
    net = FakeNet()
    made = clients(net, how)
    for unit in ("client-0003", "client-0000"):  # after another one, by the same learner
        net.steps.clear()
        list(made.train(how, index=0, unit=unit, round=0))
    assert net.steps == expected
    others = [
        trained(how, unit="client-0001").steps,
        trained(how, round=1).steps,
        trained(spec(1, local_epochs=2, training_seed=6)).steps,
        trained(spec(1, local_epochs=2, training_seed=None)).steps,
        trained(spec(1, local_epochs=2, training_seed=None)).steps,
    ]
    assert all(one != expected for one in others)
    assert others[3] != others[4]  # unseeded
    assert trained(spec(1, local_epochs=1)).steps == expected[:3]  # epochs do not depend on how many follow


def test_the_rate_goes_by_the_round_and_the_part_that_is_done() -> None:
    how = spec(1, local_epochs=2, lr=0.5, schedule="cosine", schedule_rounds=4)
    rates = [rate for _, rate, _ in trained(how, round=1).steps]
    assert rates == [how.rate(1, n / 6) for n in range(6)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] < 0.5


def test_a_client_without_samples_takes_no_step() -> None:
    how = spec(5)
    net = FakeNet()
    made = clients(net, how, count=2)
    sizes = made.deal(how, seed=0)
    assert list(made.train(how, index=sizes.index(0), unit="client-0000", round=0)) == []
    assert (net.ended, net.steps) == (2, [])


@pytest.mark.parametrize("after", [1, 4])
def test_a_client_that_is_given_up_leaves_nothing_behind(after: int) -> None:
    how = spec(1, local_epochs=2)
    net = FakeNet()
    training = iter(clients(net, how).train(how, index=0, unit="client-0000", round=0))
    for _ in range(after):
        next(training)
        assert net.seed is None  # between two steps the random states are the caller's
    training.close()  # type: ignore[attr-defined]
    assert (len(net.steps), net.ended) == (after, 2)


def test_a_gradient_that_is_not_finite_ends_the_client() -> None:
    how = spec(1)
    net = FakeNet(flaw=1)
    with pytest.raises(NotFinite, match=r"fc1\.weight"):
        list(clients(net, how).train(how, index=0, unit="client-0000", round=0))
    assert (len(net.steps), net.ended) == (1, 2)


def test_a_private_client_has_all_of_its_machines_samples() -> None:
    how = spec(10, private=True)
    assert clients(FakeNet(), how).deal(how, seed=0) == (10,)
    net = FakeNet()
    list(clients(net, how).train(how, index=0, unit="my-mac", round=0))
    assert sorted(net.samples) == list(range(10))
    with pytest.raises(UsageError, match="pass data of your own with --data"):
        clients(FakeNet(), spec(1), count=0).deal(how, seed=0)
