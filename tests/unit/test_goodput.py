"""For how long a learner could have trained, for how long it did, and what memory it has for that."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from swarm.core.rankjob import RankStepped
from swarm.host.accelerators import Card, training_memory
from swarm.learners.devices import cards_of
from swarm.parallel.gauges import Gauges
from swarm.runtime.activity import Uptime


def test_pauses_are_left_out() -> None:
    uptime = Uptime()
    uptime.look(100.0, resting=False)
    uptime.look(110.0, resting=False)
    assert uptime.alive_s == 10.0
    uptime.look(112.0, resting=True)  # from here on
    uptime.look(500.0, resting=True)
    uptime.look(600.0, resting=False)
    assert uptime.alive_s == 12.0
    uptime.look(601.5, resting=False)
    assert uptime.alive_s == 13.5


def test_who_joins_a_paused_run_is_not_alive_yet() -> None:
    uptime = Uptime()
    uptime.look(7.0, resting=True)
    uptime.look(9.0, resting=False)
    assert uptime.alive_s == 0.0


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def stepped(step: int, **seconds: float) -> RankStepped:
    described: dict[str, Any] = {
        "iteration": step, "tokens": 20, "own_tokens": 10, "positions": 12, "padding": 2, "microbatch_rows": 1,
        "microbatch_tokens": None, "memory_bytes": 5, "share": 0.5, "loss": 1.0,
    }  # fmt: skip
    return RankStepped(step=step, **described, **seconds)


def test_a_rank_trains_while_it_computes_and_updates_and_not_while_it_waits_or_exchanges() -> None:
    clock = Clock()
    gauges = Gauges(now=clock)
    clock.now_s += 1000  # looking for an id: it has not joined yet
    gauges.joined()
    gauges.phase = "wait"
    clock.now_s += 5
    gauges.phase = "train"
    gauges.take(stepped(1, compute_s=2.0, waiting_s=1.0, exchange_s=0.5, update_s=0.25))
    clock.now_s += 10
    beat = gauges.beat()
    assert (beat.alive_s, beat.trained_s) == (15.0, 2.25)
    gauges.phase = "paused"
    clock.now_s += 300
    beat = gauges.beat()
    assert (beat.alive_s, beat.trained_s) == (15.0, 2.25), "not while it is paused"
    gauges.phase = "wait"
    clock.now_s += 1
    gauges.take(stepped(2, compute_s=1.0, waiting_s=0.0, exchange_s=0.0, update_s=0.0))
    beat = gauges.beat()
    assert (beat.alive_s, beat.trained_s) == (16.0, 3.25), "of all its steps, and not of those since the beat before"


class Cuda:
    """Two cards, as PyTorch tells of them."""

    def get_device_properties(self, number: int) -> SimpleNamespace:
        if number > 1:
            raise AssertionError("Invalid device id")
        return SimpleNamespace(total_memory=(number + 1) << 34, uuid=f"aaaa-{number}")


def test_the_cards_that_train_and_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda()))
    assert cards_of("torch", "cuda:1") == (Card("GPU-aaaa-1", 2 << 34),)
    assert cards_of("torch", "cuda") == (Card("GPU-aaaa-0", 1 << 34),)
    assert training_memory(cards_of("torch", "cuda:0+cuda:1")) == 3 << 34
    assert cards_of("torch", "cuda:7") == (Card("", 0),)
    assert training_memory(cards_of("torch", "cuda:0+cuda:7")) == 0, "not known"


def test_a_card_of_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"device_name": "NVIDIA H200", "uuid": "GPU-bbbb", "total_memory": 150 << 30}
    monkeypatch.setitem(sys.modules, "mlx.core", SimpleNamespace(device_info=lambda: info))
    assert cards_of("mlx", "cuda") == (Card("GPU-bbbb", 150 << 30),)
    info.clear()
    assert cards_of("mlx", "cuda") == (Card("", 0),)


@pytest.mark.parametrize("device", ["cpu", "mps", "metal", ""])
def test_whatever_has_no_memory_of_its_own_has_the_machines(device: str) -> None:
    assert cards_of("torch", device) == ()
    assert training_memory(cards_of("torch", device)) == psutil.virtual_memory().total
