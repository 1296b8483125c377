"""What the tasks make of a net: the batches it is given, by learner and by seed. No framework is needed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from swarm.learners.numpy import NumpyAdapter
from swarm.tasks.charlm.corpus import Corpus
from swarm.tasks.charlm.sizes import SIZES
from swarm.tasks.charlm.trainable import CharLM
from swarm.tasks.mlp.trainable import Regression
from swarm.tasks.streams import generator


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
