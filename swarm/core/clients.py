"""FedAvg's clients: their names, which of them train in a round, and who trains one next."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from swarm.core.specs import FedAvg

_PREFIX = "client-"


def client_id(index: int) -> str:
    """The unit of a logical client: names sort as their numbers do."""
    return f"{_PREFIX}{index:04d}"


def client_index(unit: str) -> int | None:
    """The number of a logical client; None for another unit."""
    digits = unit.removeprefix(_PREFIX)
    known = unit.startswith(_PREFIX) and digits.isascii() and digits.isdecimal() and len(digits) < 6
    return int(digits) if known and client_id(int(digits)) == unit else None


def sampled(spec: FedAvg, seed: int, round: int) -> tuple[str, ...]:
    """The logical clients that train in `round`, sorted. `seed`: the manifest's, for a run without a selection seed."""
    return draw(map(client_id, range(spec.clients)), spec.per_round, seed=selection_seed(spec, seed), round=round)


def draw(units: Iterable[str], count: int, *, seed: int, round: int) -> tuple[str, ...]:
    """`count` of the units, all of them if there are fewer, sorted: drawn without replacement, each with the same chance, the
    same ones wherever it is asked. The rank of each is a hash of seed, round and its name."""

    def rank(unit: str) -> bytes:
        return hashlib.sha256(f"selection/{seed}/{round}/{unit}".encode()).digest()

    return tuple(sorted(sorted(set(units), key=rank)[:count]))


def selection_seed(spec: FedAvg, seed: int) -> int:
    """`seed`: the manifest's."""
    return seed if spec.selection_seed is None else spec.selection_seed


def partition_seed(spec: FedAvg, seed: int) -> int:
    """`seed`: the manifest's. All learners must deal the data out in the same way, so there always is one."""
    return seed if spec.partition_seed is None else spec.partition_seed


def in_turn(units: Sequence[str], learner: str) -> list[str]:
    """The order in which `learner` bids for clients: each learner begins elsewhere, so that few bid for the same one."""
    first = int.from_bytes(hashlib.sha256(learner.encode()).digest()[:8], "big") % max(1, len(units))
    return [*units[first:], *units[:first]]
