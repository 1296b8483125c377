"""Curves of a run stay bounded, keep the newest round, and have their rounds in common."""

from __future__ import annotations

from typing import get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.manifest import PayloadRef
from swarm.core.records import EvalRecord, Participant, RoundRecord
from swarm.core.series import METRICS, MOST, Curve, Figure, Series, evaluated, extended, measured, told


def part(learner: str, *, loss: float | None = 2.0, tokens: int = 10, cosine: float | None = None) -> Participant:
    return Participant(
        learner=learner,
        unit=learner,
        weight=1.0,
        tokens=tokens,
        steps=50,
        train_loss=loss,
        seconds_s=3.0,
        size_bytes=8,
        cosine=cosine,
    )


def record(round: int, *parts: Participant) -> RoundRecord:
    return RoundRecord(
        round=round,
        fragment=0,
        step=0,
        version=round,
        parent=None,
        participants=parts,
        rejected=(),
        theta=PayloadRef(round=round, sha256="1" * 64, size_bytes=1),
        outer=None,
        close_s=0.5,
    )


@given(rounds=st.integers(1, 9_000))
def test_a_curve_is_bounded_and_ends_with_the_newest_round(rounds: int) -> None:
    curve = Curve()
    for round in range(rounds):
        curve = extended(curve, (round, float(round)))
    assert len(curve.rounds) <= MOST
    assert curve.rounds[-1] == rounds - 1
    assert curve.values == tuple(map(float, curve.rounds))
    assert all(round % curve.stride == 0 for round in curve.rounds[:-1])
    assert len(curve.rounds) >= min(rounds, MOST // 2)


def test_what_a_round_tells() -> None:
    series = told(Series(), record(0, part("a", loss=1.0, tokens=30, cosine=0.5), part("b", loss=3.0)), hidden=False)
    series = told(series, record(1, part("a", loss=None)), hidden=False)
    assert series.train == Curve((0,), (1.5,))
    assert series.learners == {"a": Curve((0,), (1.0,)), "b": Curve((0,), (3.0,))}
    assert series.cosine == Curve((0,), (0.5,))
    assert series.elapsed.values == (3.5, 7.0)
    assert series.steps.values == (50.0, 100.0)
    assert series.took_part == {"a": 2, "b": 1}
    assert series.seconds == Curve((0, 1), (3.5, 3.5))
    assert series.rate == Curve((0, 1), (40 / 3.5, 10 / 3.5))
    assert series.sent == Curve((0, 1), (16.0, 8.0))
    assert series.tokens == 50


def test_one_learner_trains_its_clients_one_after_another() -> None:
    twice = told(Series(), record(0, part("a"), part("a"), part("b")), hidden=False)
    assert twice.seconds.values == (6.5,)
    assert twice.steps.values == (100.0,)


def test_a_round_without_participants_leaves_no_figure() -> None:
    series = told(Series(), record(0), hidden=False)
    assert all(not series.of(figure).rounds for figure in get_args(Figure))
    assert series.elapsed.values == (0.5,)


def test_the_best_evaluation_is_known_though_its_record_is_gone() -> None:
    series = Series()
    for round, (loss, right) in enumerate([(2.0, 0.5), (None, 0.9), (1.5, 0.4), (3.0, None)]):
        metrics = {} if right is None else {"accuracy": right}
        series = evaluated(series, EvalRecord(round=round, learner="a", loss=loss, metrics=metrics))
    assert (series.best_loss, series.best_accuracy) == (1.5, 0.9)
    assert told(series, record(0, part("a")), hidden=False).best_loss == 1.5


@given(figures=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=40))
def test_a_figure_of_the_whole_lies_in_its_curve(figures: list[tuple[int, int]]) -> None:
    """What a zoomed plot takes from records is what the whole one takes from the series."""
    series, records = Series(), []
    for round, (learners, tokens) in enumerate(figures):
        made = record(round, *(part("abc"[n], loss=1.0 + n, tokens=tokens, cosine=0.1 * n) for n in range(learners)))
        records.append(made)
        series = told(series, made, hidden=False)
    for figure in get_args(Figure):
        each = [(r.round, measured(figure, r.participants, close_s=r.close_s)) for r in records]
        curve = series.of(figure)
        assert list(zip(curve.rounds, curve.values, strict=True)) == [(r, v) for r, v in each if v is not None]


def test_of_private_clients_only_counts_are_told() -> None:
    metric = msgspec.structs.replace(part("a"), metrics={"accuracy": 0.5})
    series = told(Series(), record(0, metric), hidden=True)
    assert not series.train.rounds
    assert not series.learners
    assert not series.metrics
    assert not series.rate.rounds
    assert not series.seconds.rounds
    assert series.tokens == 10
    assert series.took_part == {"a": 1}


def test_names_of_metrics_without_end_fill_no_memory() -> None:
    series = Series()
    for round in range(30):
        named = msgspec.structs.replace(part("a"), metrics={f"m{round}-{n}": 0.5 for n in range(10)})
        series = told(series, record(round, named), hidden=False)
    assert len(series.metrics) == METRICS
