"""A run's curves, folded round by round into bounded memory: what a plot shows of 10,000 rounds. Pure.

Every curve keeps the rounds that are multiples of one stride, which doubles whenever there are too many, and the newest one.
So curves of one run have the same rounds, and one can be drawn over another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from swarm.core.participation import mean_metrics
from swarm.core.records import Participant, RoundRecord

MOST = 1024  # points of one curve
LEARNERS = 512  # of which a curve is kept


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
    elapsed: Curve = Curve()  # seconds of training and closing up to the round's end, waits left out
    steps: Curve = Curve()  # inner steps up to there, of the learner that made most
    took_part: Mapping[str, int] = {}  # rounds in which each learner counted


def extended(curve: Curve, round: int, value: float) -> Curve:
    """`curve` with the value of a later round."""
    rounds, values, stride = curve.rounds, curve.values, curve.stride
    if rounds and rounds[-1] % stride:  # the newest one stood there for being the newest
        rounds, values = rounds[:-1], values[:-1]
    rounds, values = (*rounds, round), (*values, value)
    while len(rounds) > MOST:
        stride *= 2
        kept = [n for n, each in enumerate(rounds) if each % stride == 0 or n == len(rounds) - 1]
        rounds, values = tuple(rounds[n] for n in kept), tuple(values[n] for n in kept)
    return Curve(rounds, values, stride)


def told(series: Series, record: RoundRecord, *, hidden: bool) -> Series:
    """`series` with a round more. `hidden`: of the participants' data only counts are told."""
    round, parts = record.round, record.participants
    by_learner: dict[str, list[Participant]] = {}
    for part in parts:
        by_learner.setdefault(part.learner, []).append(part)
    took_part = dict(series.took_part)
    for learner in by_learner:
        took_part[learner] = took_part.get(learner, 0) + 1
    seconds_s = max((sum(p.seconds_s for p in own) for own in by_learner.values()), default=0.0) + record.close_s
    steps = max((sum(p.steps for p in own) for own in by_learner.values()), default=0)
    learners, metrics, train = dict(series.learners), dict(series.metrics), series.train
    if not hidden:
        train = _put(train, round, mean_loss(parts))
        for learner, own in by_learner.items():
            if learner in learners or len(learners) < LEARNERS:
                learners[learner] = _put(learners.get(learner, Curve()), round, mean_loss(own))
        for name, value in mean_metrics(parts).items():
            metrics[name] = _put(metrics.get(name, Curve()), round, value)
    cosines = [p.cosine for p in parts if p.cosine is not None and math.isfinite(p.cosine)]
    return Series(
        train=train,
        learners=learners,
        metrics=metrics,
        cosine=_put(series.cosine, round, sum(cosines) / len(cosines) if cosines else None),
        elapsed=extended(series.elapsed, round, _last(series.elapsed) + seconds_s),
        steps=extended(series.steps, round, _last(series.steps) + steps),
        took_part=took_part,
    )


def mean_loss(participants: Sequence[Participant]) -> float | None:
    """Their mean training loss, by tokens; None if none was reported, or if it is not finite."""
    known = [p for p in participants if p.train_loss is not None and p.tokens]
    tokens = sum(p.tokens for p in known)
    mean = sum((p.train_loss or 0.0) * p.tokens for p in known) / tokens if tokens else math.nan
    return mean if math.isfinite(mean) else None


def _put(curve: Curve, round: int, value: float | None) -> Curve:
    return curve if value is None or not math.isfinite(value) else extended(curve, round, value)


def _last(curve: Curve) -> float:
    return curve.values[-1] if curve.values else 0.0
