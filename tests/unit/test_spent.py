"""What a training takes, in figures and in words."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.core import spent
from swarm.core.events import Spent
from swarm.core.records import Beat, LearnerRecord, RankBeat
from swarm.core.series import Curve, Series
from swarm.core.state import LearnerView, RunState


def view(learner: str = "a", *, device: str = "torch cpu", role: Any = "both", **beat: Any) -> LearnerView:
    here = {"machine": "m", "machine_name": "m", "boot": "b", "pid": 1, "process": "1", "version": "0"}
    record = LearnerRecord(learner=learner, incarnation=1, device=device, role=role, **here)  # type: ignore[arg-type]
    return LearnerView(learner=learner, record=record, beat=Beat(phase="train", role=role, **beat), live=True)


def test_goodput_is_the_share_of_the_time_that_was_trained() -> None:
    assert spent.goodput(Beat(phase="train", alive_s=100.0, trained_s=75.0)) == 0.75
    assert spent.goodput(Spent(alive_s=10.0, trained_s=10.5)) == 1.0, "the last step was told of before its time"
    assert spent.goodput(Beat(phase="join")) is None
    assert spent.goodput(None) is None


def test_memory_that_is_used_is_of_the_device_that_trains() -> None:
    assert spent.used_bytes(view(rss_bytes=5)) == 5
    assert spent.used_bytes(view(device="torch cuda:0", rss_bytes=5)) is None, "the card's is another one"
    rank = RankBeat(generation=0, rank=0, size=1, memory_bytes=9)
    assert spent.used_bytes(view(device="mlx", rss_bytes=5, rank=rank)) == 9
    assert spent.used_bytes(LearnerView(learner="a")) is None


def test_what_machines_tell_is_added_up() -> None:
    views = (view("a", energy_wh=1.5), view("b"), view("c", energy_wh=0.5), view("s", role="syncer"))
    assert spent.drawn(RunState(run="r", learners=views)) == spent.Drawn(energy_wh=2.0, told=2, learners=3)
    assert spent.drawn(RunState(run="r", learners=views[1:2])) is None


def test_the_mean_cosine_of_the_last_rounds() -> None:
    curve = Curve(rounds=(0, 1, 2), values=(0.1, 0.5, 0.7))
    assert spent.cosine(RunState(run="r", series=Series(cosine=curve)), 2) == pytest.approx(0.6)
    assert spent.cosine(RunState(run="r", series=Series(cosine=curve)), 10) == pytest.approx(1.3 / 3)
    assert spent.cosine(RunState(run="r"), 2) is None


def test_in_words() -> None:
    assert [spent.energy_words(wh) for wh in (None, 0.0, 0.84, 12.34, 1240.0)] == [
        "–",
        "0 mWh",
        "840 mWh",
        "12.3 Wh",
        "1.24 kWh",
    ]
    assert [spent.power_words(w) for w in (None, 0.0, 4.25, 310.0)] == ["–", "0.0 W", "4.2 W", "310 W"]
    assert [spent.percent(part) for part in (None, 0.934)] == ["–", "93%"]
    assert spent.memory_words(None, 0) == "–"
    assert spent.memory_words(2 * 10**9, 64 * 10**9) == "2.00 GB/64.0 GB"
    assert spent.memory_words(None, 24 * 10**9) == "–/24.0 GB"
    assert spent.memory_words(2 * 10**9, 0) == "2.00 GB/–"
    assert spent.cost(12.0, 0.5) == pytest.approx(0.006)
    assert spent.cost(12.0, None) is None
    assert spent.cost(None, 0.5) is None
    costs = [spent.cost_words(money, "€") for money in (None, 0.0, 0.0001, 0.042, 3.456)]
    assert costs == ["–", "0.00 €", "< 0.001 €", "0.042 €", "3.46 €"]
    found = spent.Drawn(energy_wh=12.3, told=2, learners=4)
    assert spent.drawn_words(found) == "12.3 Wh, of 2/4 learners"
    assert spent.drawn_words(spent.Drawn(energy_wh=12.3, told=4, learners=4), price_per_kwh=0.4) == "12.3 Wh, 0.005"
