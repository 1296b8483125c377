"""FedAvg's clients as a run's records tell of them: for commands and screens. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from swarm.core.clients import client_id, sampled
from swarm.core.manifest import Manifest
from swarm.core.records import Claim, EvalRecord, Participant, Rejected, RoundRecord, Snapshot
from swarm.core.specs import Algorithm, FedAvg

SHOWN = 100  # clients up to which those are listed, too, that never trained
Doing: TypeAlias = Literal["", "waiting", "training", "silent", "reported"]
"""In the open round: not sampled; claimed by nobody; by somebody live; by somebody who is not; its snapshot is there."""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What round records say of one client."""

    rounds: int  # in which it counted
    round: int  # the last of these
    last: Participant  # as it took part in that


class ClientView(msgspec.Struct, frozen=True, kw_only=True):
    client: str
    tally: Tally | None = None  # None: it never counted
    doing: Doing = ""
    by: str = ""  # the learner that trains it in the open round, or has

    @property
    def rounds(self) -> int:
        return 0 if self.tally is None else self.tally.rounds

    @property
    def samples(self) -> int | None:
        """That it was last trained on; None if it never counted."""
        return None if self.tally is None else self.tally.last.tokens


def tallied(known: Mapping[str, Tally], record: RoundRecord) -> dict[str, Tally]:
    """What is known of the clients once `record` is read, too."""
    found = dict(known)
    for p in record.participants:
        before = found.get(p.unit)
        found[p.unit] = Tally(rounds=1 if before is None else before.rounds + 1, round=record.round, last=p)
    return found


def wanted(manifest: Manifest, newest: RoundRecord | None, named: tuple[str, ...]) -> tuple[str, ...]:
    """The clients that train in the round after `newest`, sorted. `named`: private ones of a round that no round record names
    them for."""
    spec = manifest.algorithm
    if not isinstance(spec, FedAvg):
        return ()
    if spec.private:
        return (newest.clients if newest is not None else ()) or named
    return sampled(spec, manifest.seed, 0 if newest is None else newest.round + 1)


def expected(spec: Algorithm, record: RoundRecord, refused: Iterable[Rejected], before: RoundRecord | None) -> int:
    """Of how many a round counted `record.participants`, as far as records tell: of those that reported, and of FedAvg, of the
    clients that were sampled. `refused`: snapshots for that round; `before`: the round before it."""
    taken = {p.unit for p in record.participants}
    units = [r.unit for r in refused]
    match spec:
        case FedAvg(private=True):
            return max(len(taken.union(units)), len(before.clients) if before is not None else 0)
        case FedAvg():
            return max(len(taken.union(units)), spec.per_round)
        case _:
            return len(record.participants) + len(units)


def views(
    spec: Algorithm,
    tallies: Mapping[str, Tally],
    *,
    sampled: Iterable[str],
    claims: Mapping[str, Claim],
    reported: Iterable[Snapshot],
    live: frozenset[str],
) -> tuple[ClientView, ...]:
    """The clients by their ids: of a small run all of them, of a large one those that are sampled or ever counted. `sampled`,
    `claims` (the newest on each) and `reported` are the open round's; `live`: learners."""
    if not isinstance(spec, FedAvg):
        return ()
    open_ones, there = set(sampled), {s.unit: s.learner for s in reported}
    names = {*tallies, *open_ones}
    if not spec.private and spec.clients <= SHOWN:
        names |= set(map(client_id, range(spec.clients)))
    found = []
    for name in sorted(names):
        doing: Doing = ""
        by = ""
        if name in open_ones:
            claim = claims.get(name)
            by = there.get(name) or (name if spec.private else claim.learner if claim is not None else "")
            doing = "reported" if name in there else "waiting" if not by else "training" if by in live else "silent"
        found.append(ClientView(client=name, tally=tallies.get(name), doing=doing, by=by))
    return tuple(found)


def accuracy(metrics: Mapping[str, float]) -> float | None:
    """0 to 1; None of what is no classifier."""
    return metrics.get("accuracy")


def mean_metrics(participants: Iterable[Participant]) -> dict[str, float]:
    """The participants' metrics, by samples: those that all have that had any sample."""
    counted = [p for p in participants if p.tokens]
    names = set(counted[0].metrics).intersection(*(p.metrics for p in counted)) if counted else set()
    samples = sum(p.tokens for p in counted)
    return {name: sum(p.metrics[name] * p.tokens for p in counted) / samples for name in sorted(names)}


def labelled(evaluated: EvalRecord, spec: Algorithm) -> str:
    """Whose model it was that was evaluated: everybody's, or, where each learner has buffers of its own, that learner's."""
    local = isinstance(spec, FedAvg) and spec.buffers == "local"
    return f"with {evaluated.learner}'s own buffers" if local else f"evaluated by {evaluated.learner}"


def confusion_lines(matrix: tuple[tuple[int, ...], ...], *, width: int) -> list[str]:
    """The confusion matrix as aligned lines of at most `width` characters, with what part of each label was recognised; where
    that does not fit, what was mistaken for what, the most frequent first."""
    if not matrix:
        return []
    digits = max(len(str(len(matrix) - 1)), *(len(str(count)) for row in matrix for count in row))
    label = max(5, len(str(len(matrix) - 1)))
    cells = len(matrix) * (digits + 1)
    if label + cells + 6 > width:
        return _mistakes(matrix, width=width)
    lines = [f"{'label':>{label}}" + "".join(f" {n:>{digits}}" for n in range(len(matrix))) + " right"]
    for n, row in enumerate(matrix):
        total = sum(row)
        right = f"{100 * row[n] / total:>4.0f} %" if total else f"{'–':>6}"
        counts = "".join(f" {count or '·':>{digits}}" for count in row)
        lines.append(f"{n:>{label}}{counts}{right}")
    return lines


def _mistakes(matrix: tuple[tuple[int, ...], ...], *, width: int) -> list[str]:
    wrong = sorted((-count, a, b) for a, row in enumerate(matrix) for b, count in enumerate(row) if a != b and count)
    line, shown = f"{len(matrix)} labels; most often mistaken:", 0
    for count, a, b in wrong:
        word = f"{'' if not shown else ','} {a} for {b} ({-count})"
        if len(line) + len(word) > width:
            break
        line, shown = line + word, shown + 1
    return [line if wrong else f"{len(matrix)} labels; none was mistaken"]
