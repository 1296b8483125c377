"""FedAvg over a data set of arrays: dealing its samples out to clients, and training one of them (contract.Federated)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import UsageError
from swarm.core.specs import FedAvg, dealing
from swarm.tasks.contract import ClientStep
from swarm.tasks.local import LocalNet
from swarm.tasks.net import Array
from swarm.tasks.streams import generator

Indices: TypeAlias = NDArray[np.int64]
Batch: TypeAlias = Callable[[Indices], tuple[Array, Array]]
"""The samples with these numbers, as the net wants them."""

_SEED_BITS = 63


class Clients:
    """The clients of a data set of `count` samples. `labels`: the class of each, for the partitions that go by it. What is
    drawn comes from streams of NumPy, so that it is the same in every framework."""

    def __init__(self, net: LocalNet, batch: Batch, *, count: int, labels: NDArray[Any] | None = None) -> None:
        self._net = net
        self._batch = batch
        self._count = count
        self._labels = labels
        self._dealt: tuple[Indices, ...] = ()

    def deal(self, spec: FedAvg, *, seed: int) -> tuple[int, ...]:
        """contract.Federated.deal"""
        if spec.private:
            if not self._count:
                raise UsageError("the clients of this run are private: pass data of your own with --data")
            self._dealt = (np.arange(self._count),)
        else:
            self._dealt = deal(spec, seed=seed, count=self._count, labels=self._labels)
        # An optimizer that cannot be made is told before the run is, and not by the first client.
        self._net.begin(spec)
        self._net.end()
        return tuple(map(len, self._dealt))

    def of(self, index: int) -> Indices:
        """The numbers of a client's samples, ascending, after `deal`."""
        return self._dealt[index]

    def train(self, spec: FedAvg, *, index: int, unit: str, round: int) -> Iterator[ClientStep]:
        """contract.Federated.train_client, after `deal`. A client without samples takes no step."""
        mine = self._dealt[index]
        if not len(mine):
            return
        total, done = -(-len(mine) // spec.batch_size) * spec.local_epochs, 0
        self._net.begin(spec)
        try:
            for epoch in range(spec.local_epochs):
                random = _stream(spec, unit, round, epoch)
                order = mine[random.permutation(len(mine))]
                for start in range(0, len(order), spec.batch_size):
                    x, y = self._batch(order[start : start + spec.batch_size])
                    # A seed for each step: a `with` around the yield would leave the caller with our random state.
                    with self._net.seeded(int(random.integers(1 << _SEED_BITS))):
                        loss = self._net.step(x, y, lr=spec.rate(round, done / total))
                    done += 1
                    yield ClientStep(loss=loss, samples=len(y), steps=total)
        finally:
            self._net.end()


def _stream(spec: FedAvg, unit: str, round: int, epoch: int) -> np.random.Generator:
    if spec.training_seed is None:
        return np.random.Generator(np.random.Philox())
    return generator(spec.training_seed, "client", unit, round, epoch)


def deal(spec: FedAvg, *, seed: int, count: int, labels: NDArray[Any] | None) -> tuple[Indices, ...]:
    """The numbers of each client's samples, ascending: every one of 0 … count−1 is some client's, and no other's.

        iid             equal shares
        dirichlet:ALPHA each label's samples in shares that are drawn from Dirichlet(ALPHA), one for each client: the smaller
                        ALPHA, the fewer clients have most of a label (after arXiv:1909.06335)
        by-label:K      each client gets K labels; a label's samples are shared out equally among the clients that got it

    Raises UsageError if a label would be nobody's, and for labels that there are not."""
    kind, amount = dealing(spec.partition)
    if kind == "iid":
        parts = np.array_split(generator(seed, "deal", "iid").permutation(count), spec.clients)
        return tuple(np.sort(part) for part in parts)
    if labels is None:
        raise UsageError(f"partition {spec.partition} goes by the samples' labels, and this task's have none: iid")
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    if kind == "dirichlet":
        shares = [_dirichlet(spec.clients, amount, generator(seed, "deal", kind, n)) for n in range(len(classes))]
    else:
        shares = _by_label(spec, int(amount), len(classes), generator(seed, "deal", kind))
    dealt: list[list[Indices]] = [[] for _ in range(spec.clients)]
    for n, (samples, share) in enumerate(zip(classes, shares, strict=True)):
        mixed = samples[generator(seed, "deal", "order", n).permutation(len(samples))]
        # The last bound is all of them, whatever the sum of the shares was rounded to.
        bounds = np.floor(np.cumsum(share)[:-1] * len(samples) + 0.5).astype(np.int64)
        for client, part in enumerate(np.split(mixed, np.minimum(bounds, len(samples)))):
            dealt[client].append(part)
    return tuple(np.sort(np.concatenate(parts)) for parts in dealt)


def _dirichlet(clients: int, alpha: float, random: np.random.Generator) -> NDArray[np.float64]:
    """Shares of one label, by client."""
    shares = random.dirichlet(np.full(clients, alpha))
    if not np.isfinite(shares).all() or not np.isclose(shares.sum(), 1):  # of a tiny alpha: its limit is one client
        shares = np.zeros(clients)
        shares[random.integers(clients)] = 1
    return shares


def _by_label(spec: FedAvg, each: int, classes: int, random: np.random.Generator) -> list[NDArray[np.float64]]:
    """Shares of each label, by client: in a random order, a client gets the labels that the fewest have so far."""
    if each > classes:
        raise UsageError(f"partition {spec.partition}: the samples have {classes} labels")
    if spec.clients * each < classes:
        raise UsageError(f"partition {spec.partition}: {spec.clients} clients leave some of the {classes} labels to nobody")
    holders: list[list[int]] = [[] for _ in range(classes)]
    for client in random.permutation(spec.clients):
        mixed = random.permutation(classes)
        for label in sorted(mixed, key=lambda label: len(holders[label]))[:each]:  # stable: ties are in random order
            holders[label].append(int(client))
    shares = np.zeros((classes, spec.clients))
    for label, clients in enumerate(holders):
        shares[label, clients] = 1 / len(clients)
    return list(shares)
