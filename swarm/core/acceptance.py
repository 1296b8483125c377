"""Which of a round's snapshots may count, as far as their records tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from swarm.core import keys
from swarm.core.records import Rejected, RejectReason, RoundRecord, Snapshot
from swarm.core.rounds import objection


def sort_out(
    snapshots: Mapping[str, Snapshot | None],
    *,
    round: int,
    fragment: int,
    base_sha256: str,
    schema_sha256: str,
    dtype: str | None,
    clients: frozenset[str] | None = None,
    replays: bool = False,
) -> tuple[list[Snapshot], list[Rejected]]:
    """(acceptable ones sorted by unit, rejected ones). `snapshots` by key, None where the record cannot be used.

    A unit counts once: of several incarnations the highest. `clients`: those of a FedAvg that were sampled for the round; of
    several snapshots of one the lowest claim counts, and the highest incarnation that has it. `replays`: with equal bytes for
    equal clients, so that it is told if they differ.
    """
    rank = _seniority if clients is None else _precedence
    best: dict[str, Snapshot] = {}
    rejected: list[Rejected] = []
    for key in sorted(snapshots):
        named = keys.parse_snapshot(key)
        if named is None:
            continue
        _, unit, learner, _, _ = named
        snapshot = snapshots[key]
        reason: RejectReason | None = "corrupt"
        if snapshot is not None:
            reason = objection(
                snapshot,
                round=round,
                fragment=fragment,
                base_sha256=base_sha256,
                schema_sha256=schema_sha256,
                dtype=dtype,
                clients=clients,
            )
        if snapshot is None or reason is not None:
            rejected.append(Rejected(learner=learner, unit=unit, reason=reason or "corrupt", round=round))
            continue
        other = best.get(unit)
        if other is not None:
            snapshot, other = max(snapshot, other, key=rank), min(snapshot, other, key=rank)
            differs = replays and snapshot.payload.sha256 != other.payload.sha256
            rejected.append(Rejected(learner=other.learner, unit=unit, reason="duplicate", round=round, differs=differs))
        best[unit] = snapshot
    return [best[unit] for unit in sorted(best)], rejected


def late(snapshots: Iterable[str], committed: RoundRecord) -> list[Rejected]:
    """Snapshots, by key, that `committed` does not list: they came after it. Of several incarnations of a learner, each is
    listed for itself."""
    listed = Counter((p.unit, p.learner) for p in committed.participants)
    listed.update((r.unit, r.learner) for r in committed.rejected if r.round == committed.round)
    found = []
    for key in sorted(set(snapshots)):
        named = keys.parse_snapshot(key)
        if named is None:
            continue
        _, unit, learner, _, _ = named
        if listed[unit, learner]:
            listed[unit, learner] -= 1
        else:
            found.append(Rejected(learner=learner, unit=unit, reason="late", round=committed.round))
    return found


def _seniority(snapshot: Snapshot) -> tuple[int, int, str]:
    return 0, snapshot.incarnation, snapshot.learner


def _precedence(snapshot: Snapshot) -> tuple[int, int, str]:
    return -snapshot.claim, snapshot.incarnation, snapshot.learner
