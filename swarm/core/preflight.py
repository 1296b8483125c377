"""What must hold before any rank of a data-parallel job starts, and where each rank is to stand. Pure: members and probes in,
seats and refusals out."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import msgspec

from swarm.core.ranks import Backend, Kind, Link, Member, Probe, Refusal, Seat, in_words
from swarm.core.sentences import amount

FILES_NAMED = 5  # of one machine that differ
Wanted: TypeAlias = Backend | Literal["auto"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
_LIKED: tuple[Kind, ...] = ("thunderbolt", "ethernet", "loopback", "other", "wifi", "vpn")  # where bandwidths are alike


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks of the machines that take part; the same for all of them."""

    world_size_min: int = 1
    world_size_max: int | None = None  # None: all that come
    memory_bytes: int = 0  # that a rank needs
    backend: Wanted = "auto"  # auto: the best that all can do, MPI aside, which needs a launcher of its own
    seed: int = 0
    hashes: dict[str, str] = {}  # by file, where the run says them; other files are compared among the members
    gather_s: float = 10.0  # how long to wait for more once there are enough
    probe_s: float = 30.0  # how long to wait for the links to be measured
    start_s: float = 120.0  # how long a rendezvous may take once there are enough

    def __post_init__(self) -> None:
        if self.world_size_min < 1:
            raise ValueError(f"world_size_min must be >= 1, got {self.world_size_min}")
        if self.world_size_max is not None and self.world_size_max < self.world_size_min:
            raise ValueError(f"world_size_max must be >= world_size_min, {self.world_size_min}, got {self.world_size_max}")
        for name in ("gather_s", "probe_s", "start_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number >= 0, got {getattr(self, name)}")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Who can take part, in the order of ranks, and who cannot and why."""

    seats: tuple[Seat, ...]
    refused: tuple[Refusal, ...]
    backend: Backend


def links_of(probes: Iterable[Probe], members: Iterable[Member]) -> dict[tuple[str, str], dict[str, Link]]:
    """(prober, target) → by address, the link there, if it was reached. What other incarnations found does not count."""
    here = {(member.learner, member.incarnation): member for member in members}
    found: dict[tuple[str, str], dict[str, Link]] = {}
    for probe in probes:
        target = here.get((probe.target, probe.target_incarnation))
        if (probe.learner, probe.incarnation) in here and target is not None:
            announced = {address.address for address in target.addresses}
            ways = {link.address: link for link in probe.links if not link.error and link.address in announced}
            found[probe.learner, probe.target] = ways
    return found


def unmeasured(probes: Iterable[Probe], members: Sequence[Member]) -> list[tuple[str, str]]:
    """Pairs (prober, target) of which nothing is known yet, sorted."""
    known = links_of(probes, members)
    return sorted(pair for pair in itertools.permutations((member.learner for member in members), 2) if pair not in known)


def preflight(members: Sequence[Member], probes: Sequence[Probe], terms: Terms) -> Verdict:
    """Seats for as many as can run together, and a refusal, in words, for each other one. The largest group is looked for:
    those that reach most others come first, then the fast ones.

    Whoever differs from what the run says, or from most of the others, is refused, not the others."""
    members = sorted(members, key=lambda member: member.learner)
    wanted = _wanted_backend(members, terms.backend)
    refused = [refusal for member in members for refusal in _of_machine(member, members, terms, wanted)]
    out = {refusal.learner for refusal in refused}
    fit = [member for member in members if member.learner not in out]
    links = links_of(probes, members)
    group, apart = _group(fit, links)
    refused += apart
    limit = len(group) if terms.world_size_max is None else terms.world_size_max
    over, group = group[limit:], group[:limit]
    refused += [
        Refusal(learner=member.learner, subject="place", reason=f"all {limit} places are taken by faster machines")
        for member in over
    ]
    group.sort(key=lambda member: member.learner)
    seats, portless = _seats(group, links)
    if portless:
        without = {refusal.learner for refusal in portless}
        again = preflight([m for m in members if m.learner not in without], probes, terms)
        return Verdict(seats=again.seats, refused=_sorted([*portless, *again.refused]), backend=again.backend)
    backend, devices = _backend(group, links, terms.backend, wanted)
    if devices is not None:
        seats = [msgspec.structs.replace(seat, rdma=row) for seat, row in zip(seats, devices, strict=True)]
    elif backend == "jaccl":  # asked for by name: nothing else will do
        pairs = [(a, b) for a, b in itertools.permutations(group, 2) if not _device(a, b, links)]
        refused += [
            Refusal(learner=a.learner, subject="backend", reason=f"jaccl: no Thunderbolt link with RDMA to {b.learner}")
            for a, b in pairs
        ]
        seats = []
    return Verdict(seats=tuple(seats), refused=_sorted(refused), backend=backend)


def _sorted(refused: Iterable[Refusal]) -> tuple[Refusal, ...]:
    return tuple(sorted(refused, key=lambda refusal: (refusal.learner, refusal.subject)))


# One machine


def _of_machine(member: Member, members: Sequence[Member], terms: Terms, wanted: Backend) -> list[Refusal]:
    found = [*_versions(member, members), *_files(member, members, terms)]
    if member.memory_bytes < terms.memory_bytes:
        words = f"{amount(member.memory_bytes)} of memory are free, a rank needs {amount(terms.memory_bytes)}"
        found.append(_refusal(member, "memory", words))
    if not member.addresses:
        found.append(_refusal(member, "network", "it has no address in a private network"))
    elif not member.ports:
        found.append(_refusal(member, "ports", "it found no free port"))
    if wanted not in member.backends:
        can = ", ".join(member.backends) or "none"
        found.append(_refusal(member, "backend", f"cannot do {wanted}; its mlx.distributed can do: {can}"))
    return found


def _refusal(member: Member, subject: str, words: str) -> Refusal:
    return Refusal(learner=member.learner, subject=subject, reason=in_words(words))


def _versions(member: Member, members: Sequence[Member]) -> list[Refusal]:
    found = []
    for package in sorted({name for each in members for name in each.versions}):
        usual = _usual({each.learner: each.versions.get(package, "") for each in members})
        mine = member.versions.get(package, "")
        if mine != usual:
            there = f"{package} {mine}" if mine else f"no {package}"
            found.append(_refusal(member, package, f"has {there}, the others {usual or 'none'}"))
    return found


def _files(member: Member, members: Sequence[Member], terms: Terms) -> list[Refusal]:
    found = []
    for name in sorted({*terms.hashes, *(name for each in members for name in each.hashes)}):
        usual = terms.hashes.get(name) or _usual({each.learner: each.hashes.get(name, "") for each in members})
        mine, where = member.hashes.get(name, ""), "in the run" if name in terms.hashes else "on the others"
        if mine == usual:
            continue
        if not mine:
            words = f"{name} is missing"
        elif not usual:
            words = f"{name} is there, and not on the others"
        else:
            words = f"{name} differs: SHA-256 {mine[:12]}… there, {usual[:12]}… {where}"
        found.append(_refusal(member, name, words))
    if len(found) > FILES_NAMED:
        words = f"{found[FILES_NAMED].reason}; and {len(found) - FILES_NAMED - 1} more files"
        found = [*found[:FILES_NAMED], _refusal(member, found[FILES_NAMED].subject, words)]
    return found


def _usual(values: Mapping[str, str]) -> str:
    """What most learners have; of several, what the first one has, by id."""
    counts = Counter(values.values())
    most = max(counts.values())
    return next(values[learner] for learner in sorted(values) if counts[values[learner]] == most)


# The network


def _group(fit: Sequence[Member], links: Mapping[tuple[str, str], Mapping[str, Link]]) -> tuple[list[Member], list[Refusal]]:
    """Those that can all reach each other, each at one address of its own, the best first; the others, with what they miss."""
    degree = Counter(a for a, b in links if links[a, b] and links.get((b, a)))
    order = sorted(fit, key=lambda member: (-degree[member.learner], -member.tokens_per_s, member.learner))
    group: list[Member] = []
    refused: list[Refusal] = []
    for member in order:
        together = [*group, member]
        blocked = [each for each in together if not _common(each, together, links)]
        if blocked:
            refused.append(_refusal(member, "network", _unreached(member, group, links)))
        else:
            group = together
    group.sort(key=lambda member: (-member.tokens_per_s, member.learner))
    return group, refused


def _common(
    target: Member, group: Sequence[Member], links: Mapping[tuple[str, str], Mapping[str, Link]]
) -> list[tuple[str, list[Link]]]:
    """Addresses of `target` at which all others of `group` reach it, with their links."""
    others = [links.get((each.learner, target.learner), {}) for each in group if each.learner != target.learner]
    return [
        (each.address, [found[each.address] for found in others])
        for each in target.addresses
        if all(each.address in found for found in others)
    ]


def _unreached(member: Member, group: Sequence[Member], links: Mapping[tuple[str, str], Mapping[str, Link]]) -> str:
    """Why `member` cannot be of the group, in words."""
    for each in group:
        for one, other in ((each, member), (member, each)):
            if (one.learner, other.learner) not in links:
                return f"{one.learner} has not measured how it reaches {other.learner}"
            if not links[one.learner, other.learner]:
                tried = ", ".join(address.address for address in other.addresses)
                return f"{one.learner} does not reach {other.learner} at {tried}"
    return f"no single address at which each of {', '.join(each.learner for each in group)} and it reach the other"


def best_address(target: Member, group: Sequence[Member], links: Mapping[tuple[str, str], Mapping[str, Link]]) -> str | None:
    """The address of `target` that all others reach, and whose slowest link is the fastest. Among those that are at least half
    as fast the kind of interface decides, since a measurement is no more exact than that."""
    if len(group) == 1:  # nobody else is to reach it
        return next((a.address for a in target.addresses if a.kind == "loopback"), target.addresses[0].address)
    kinds = {address.address: address.kind for address in target.addresses}
    common = dict(_common(target, group, links))
    slowest = {address: min(way.bytes_per_s for way in ways) for address, ways in common.items()}

    def worth(address: str) -> tuple[int, float, float, str]:
        return -_LIKED.index(kinds[address]), slowest[address], -max(way.rtt_s for way in common[address]), address

    return max((a for a in slowest if slowest[a] >= max(slowest.values()) / 2), key=worth, default=None)


def _seats(group: Sequence[Member], links: Mapping[tuple[str, str], Mapping[str, Link]]) -> tuple[list[Seat], list[Refusal]]:
    seats: list[Seat] = []
    refused: list[Refusal] = []
    shares = _shares(group)
    taken = {(address.address, address.probe_port) for member in group for address in member.addresses}
    for member in group:
        address = best_address(member, group, links)
        assert address is not None, "a group has an address for each"
        port = next((port for port in member.ports if (address, port) not in taken), None)
        if port is None:  # several agents on one machine that offer the same ones
            refused.append(_refusal(member, "ports", f"all ports that it offers are others' at {address}"))
            continue
        taken.add((address, port))
        seats.append(
            Seat(
                learner=member.learner,
                incarnation=member.incarnation,
                address=address,
                port=port,
                share=shares[member.learner],
            )
        )
    return seats, refused


def _shares(group: Sequence[Member]) -> dict[str, int]:
    """In proportion to measured speeds, the fastest machine's being 1000; a speed that is not known counts as the middle of
    those that are."""
    known = sorted(member.tokens_per_s for member in group if member.tokens_per_s > 0)
    if not known:
        return {member.learner: 1 for member in group}
    speeds = {member.learner: member.tokens_per_s or known[len(known) // 2] for member in group}
    return {learner: max(1, round(1000 * (speed / known[-1]))) for learner, speed in speeds.items()}


# The backend


def _wanted_backend(members: Sequence[Member], wanted: Wanted) -> Backend:
    """What each must be able to do: what was asked for, else what most can do, the best of several."""
    if wanted != "auto":
        return wanted
    able = Counter(backend for member in members for backend in member.backends if backend != "mpi")
    most = max(able.values(), default=0)
    return next((backend for backend in BACKENDS if backend != "mpi" and able[backend] == most > 0), "ring")


def _backend(
    group: Sequence[Member], links: Mapping[tuple[str, str], Mapping[str, Link]], asked: Wanted, wanted: Backend
) -> tuple[Backend, list[tuple[str, ...]] | None]:
    """What the group talks with; with JACCL, each one's devices towards each other one. None: there are none."""
    if wanted != "jaccl":
        return wanted, None
    rows = [tuple("" if a is b else _device(a, b, links) for b in group) for a in group]
    if all(device or a is b for a, row in zip(group, rows, strict=True) for b, device in zip(group, row, strict=True)):
        return "jaccl", rows
    if asked == "auto" and all("ring" in member.backends for member in group):
        return "ring", None
    return "jaccl", None


def _device(a: Member, b: Member, links: Mapping[tuple[str, str], Mapping[str, Link]]) -> str:
    """The RDMA device of `a` that leads to `b`: macOS names it after the Thunderbolt interface. "" if there is none."""
    mine = {address.address: address for address in a.addresses}
    for link in sorted(links.get((a.learner, b.learner), {}).values(), key=lambda link: -link.bytes_per_s):
        source = mine.get(link.source)
        if source is not None and source.kind == "thunderbolt" and not source.interface.startswith("bridge"):
            return f"rdma_{source.interface}"
    return ""
