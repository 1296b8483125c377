"""A run's curves, folded round by round into bounded memory: what a plot shows of 10,000 rounds. Pure.

Every curve keeps the rounds that are multiples of one stride, which doubles whenever there are too many, and the newest one.
So curves of one run have the same rounds, and one can be drawn over another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, assert_never

import msgspec

from swarm.core.participation import accuracy, mean_metrics
from swarm.core.records import EvalRecord, Participant, RoundRecord

MOST = 1024  # points of one curve
LEARNERS = 512  # of which a curve is kept
METRICS = 100  # likewise: each round may name others
Figure: TypeAlias = Literal["train", "rate", "sent", "seconds", "cosine"]
"""Of some participants of a round: their mean training loss, by tokens; their work (tokens or samples) per second, training and
closing; bytes published; seconds of training and closing, waits left out; their mean cosine with the merged delta."""
HIDDEN: frozenset[Figure] = frozenset({"train", "rate", "seconds"})
"""What is not told of private clients: of the participants' data only counts are."""


class Curve(msgspec.Struct, frozen=True):
    """Values by round, oldest first."""

    rounds: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    stride: int = 1


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Curves of the records read so far."""

    train: Curve = Curve()  # the participants' mean training loss, by tokens
    learners: Mapping[str, Curve] = {}  # the same of each one
    metrics: Mapping[str, Curve] = {}  # means of what the participants measured in training
    cosine: Curve = Curve()  # mean of the participants', with the merged delta
    rate: Curve = Curve()  # tokens or samples per second, all participants together
    sent: Curve = Curve()  # bytes published
    seconds: Curve = Curve()  # of training and closing, waits left out
    elapsed: Curve = Curve()  # the same up to the round's end
    steps: Curve = Curve()  # inner steps up to there, of the learner that made most
    tokens: int = 0  # trained on so far, all participants together; in the run's weight_unit
    took_part: Mapping[str, int] = {}  # rounds in which each learner counted
    best_loss: float | None = None  # of all evaluations, however few of their records are kept
    best_accuracy: float | None = None

    def of(self, figure: Figure) -> Curve:
        match figure:
            case "train":
                return self.train
            case "rate":
                return self.rate
            case "sent":
                return self.sent
            case "seconds":
                return self.seconds
            case "cosine":
                return self.cosine
            case _:
                assert_never(figure)


def extended(curve: Curve, *points: tuple[int, float]) -> Curve:
    """`curve` with the values of later rounds: (round, value)."""
    rounds, values, stride = list(curve.rounds), list(curve.values), curve.stride
    for round, value in points:
        if rounds and rounds[-1] % stride:  # the newest one stood there for being the newest
            rounds[-1], values[-1] = round, value
        else:
            rounds.append(round)
            values.append(value)
        while len(rounds) > MOST:
            stride *= 2
            kept = [n for n, each in enumerate(rounds) if each % stride == 0 or n == len(rounds) - 1]
            rounds, values = [rounds[n] for n in kept], [values[n] for n in kept]
    return Curve(tuple(rounds), tuple(values), stride)


def told(series: Series, *records: RoundRecord, hidden: bool) -> Series:
    """`series` with later rounds. `hidden`: of the participants' data only counts are told. Of a long history many rounds
    are told at a time: every learner's curve is copied once for all of them."""
    points: dict[str, list[tuple[int, float]]] = {}
    took_part = dict(series.took_part)
    for record in records:
        by_learner: dict[str, list[Participant]] = {}
        for part in record.participants:
            by_learner.setdefault(part.learner, []).append(part)
        for learner, own in by_learner.items():
            took_part[learner] = took_part.get(learner, 0) + 1
            if not hidden and (loss := mean_loss(own)) is not None:
                points.setdefault(learner, []).append((record.round, loss))
        series = _told(series, record, hidden=hidden)
    learners = dict(series.learners)
    for learner, new in points.items():
        if learner in learners or len(learners) < LEARNERS:
            learners[learner] = extended(learners.get(learner, Curve()), *new)
    return msgspec.structs.replace(series, learners=learners, took_part=took_part)


def _told(series: Series, record: RoundRecord, *, hidden: bool) -> Series:
    """With what is told of all participants together."""
    round, parts = record.round, record.participants
    seconds_s = longest_s(parts) + record.close_s
    metrics = dict(series.metrics)
    if not hidden:
        for name, value in mean_metrics(parts).items():
            if name in metrics or len(metrics) < METRICS:
                metrics[name] = _put(metrics.get(name, Curve()), round, value)

    def put(figure: Figure) -> Curve:
        known = series.of(figure)
        return known if hidden and figure in HIDDEN else _put(known, round, measured(figure, parts, close_s=record.close_s))

    return msgspec.structs.replace(
        series,
        train=put("train"),
        metrics=metrics,
        cosine=put("cosine"),
        rate=put("rate"),
        sent=put("sent"),
        seconds=put("seconds"),
        elapsed=extended(series.elapsed, (round, _last(series.elapsed) + seconds_s)),
        steps=extended(series.steps, (round, _last(series.steps) + steps_made(parts))),
        tokens=series.tokens + sum(p.tokens for p in parts),
    )


def evaluated(series: Series, record: EvalRecord) -> Series:
    """`series` with an evaluation more."""
    losses = [loss for loss in (series.best_loss, record.loss) if loss is not None and math.isfinite(loss)]
    right = [each for each in (series.best_accuracy, accuracy(record.metrics)) if each is not None]
    best, most = min(losses, default=None), max(right, default=None)
    if (best, most) == (series.best_loss, series.best_accuracy):
        return series
    return msgspec.structs.replace(series, best_loss=best, best_accuracy=most)


def measured(figure: Figure, participants: Sequence[Participant], *, close_s: float = 0.0) -> float | None:
    """What a round tells of `participants`; None if it does not. `close_s`: what closing it took, which all wait for."""
    if not participants:
        return None
    match figure:
        case "train":
            return mean_loss(participants)
        case "rate":
            seconds_s = longest_s(participants) + close_s
            return sum(p.tokens for p in participants) / seconds_s if seconds_s > 0 else None
        case "sent":
            return float(sum(p.size_bytes for p in participants))
        case "seconds":
            return longest_s(participants) + close_s
        case "cosine":
            cosines = [p.cosine for p in participants if p.cosine is not None and math.isfinite(p.cosine)]
            return sum(cosines) / len(cosines) if cosines else None
        case _:
            assert_never(figure)


def longest_s(participants: Sequence[Participant]) -> float:
    """What a round's training took: one learner trains its clients one after another, others do so meanwhile."""
    return max(_by_learner(participants, "seconds_s").values(), default=0.0)


def steps_made(participants: Sequence[Participant]) -> int:
    """Inner steps of the learner that made most."""
    return int(max(_by_learner(participants, "steps").values(), default=0))


def _by_learner(participants: Sequence[Participant], field: Literal["seconds_s", "steps"]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for p in participants:
        sums[p.learner] = sums.get(p.learner, 0) + getattr(p, field)
    return sums


def mean_loss(participants: Sequence[Participant]) -> float | None:
    """Their mean training loss, by tokens; None if none was reported, or if it is not finite."""
    known = [p for p in participants if p.train_loss is not None and p.tokens]
    tokens = sum(p.tokens for p in known)
    mean = sum((p.train_loss or 0.0) * p.tokens for p in known) / tokens if tokens else math.nan
    return mean if math.isfinite(mean) else None


def _put(curve: Curve, round: int, value: float | None) -> Curve:
    return curve if value is None or not math.isfinite(value) else extended(curve, (round, value))


def _last(curve: Curve) -> float:
    return curve.values[-1] if curve.values else 0.0
