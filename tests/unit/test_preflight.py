"""Who may take part in a data-parallel job, where each rank stands, and who is refused in which words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.preflight import Terms, Verdict, best_address, links_of, preflight, unmeasured
from swarm.core.ranks import Address, Link, Member, Probe

TRAIN, MODEL = "train.jsonl", "model.safetensors"


def member(name: str, *addresses: Address, **fields: Any) -> Member:
    n = sum(map(ord, name)) % 200 + 1
    described: dict[str, Any] = {
        "generation": 0,
        "learner": name,
        "incarnation": 1,
        "machine_name": name,
        "addresses": addresses or (at(f"10.0.0.{n}"),),
        "ports": (21_001, 21_002),
        "nonce": "0" * 16,
        "memory_bytes": 8 * 10**9,
        "versions": {"mlx": "0.32.0", "mlx-lm": "0.32.0"},
        "hashes": {TRAIN: "a" * 64, MODEL: "b" * 64},
        "backends": ("ring",),
    }
    return Member(**described | fields)


def at(ip: str, kind: Any = "ethernet", interface: str = "en0") -> Address:
    return Address(address=ip, interface=interface, kind=kind, probe_port=21_000)


def probes(
    members: Sequence[Member], *, cut: Sequence[tuple[str, str]] = (), speeds: dict[str, float] | None = None
) -> list[Probe]:
    """All of them reach each other, but those in `cut`: (prober, address). `speeds`: by the target's address."""
    return [
        Probe(
            generation=0,
            learner=a.learner,
            incarnation=a.incarnation,
            target=b.learner,
            target_incarnation=b.incarnation,
            links=tuple(
                Link(address=way.address, error="timed out")
                if (a.learner, way.address) in cut
                else Link(
                    address=way.address,
                    source=next((own.address for own in a.addresses if own.kind == way.kind), ""),
                    rtt_s=0.001,
                    bytes_per_s=(speeds or {}).get(way.address, 1e8),
                )
                for way in b.addresses
            ),
        )
        for a, b in itertools.permutations(members, 2)
    ]


def judged(*members: Member, terms: Terms | None = None, **ways: Any) -> Verdict:
    return preflight(members, probes(members, **ways), terms or Terms())


def words(verdict: Verdict) -> list[str]:
    return [str(refusal) for refusal in verdict.refused]


A, B, C = member("air"), member("mini"), member("pro")


def changed(of: Member, **fields: Any) -> Member:
    return msgspec.structs.replace(of, **fields)


def test_equal_machines_all_get_a_seat_in_the_order_of_their_names() -> None:
    verdict = judged(C, A, B)
    assert [(seat.learner, seat.address, seat.port) for seat in verdict.seats] == [
        (each.learner, each.addresses[0].address, 21_001) for each in (A, B, C)
    ]
    assert verdict.refused == ()
    assert verdict.backend == "ring"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"versions": {"mlx": "0.31.0", "mlx-lm": "0.32.0"}}, ["mini: has mlx 0.31.0, the others 0.32.0"]),
        ({"versions": {"mlx": "0.32.0"}}, ["mini: has no mlx-lm, the others 0.32.0"]),
        ({"hashes": {MODEL: "b" * 64}}, ["mini: train.jsonl is missing"]),
        (
            {"hashes": {TRAIN: "a" * 64, MODEL: "c" * 64}},
            ["mini: model.safetensors differs: SHA-256 cccccccccccc… there, bbbbbbbbbbbb… on the others"],
        ),
        (
            {"hashes": {TRAIN: "a" * 64, MODEL: "b" * 64, "test.jsonl": "d" * 64}},
            ["mini: test.jsonl is there, and not on the others"],
        ),
        ({"memory_bytes": 10**9}, ["mini: 1.00 GB of memory are free, a rank needs 2.00 GB"]),
        ({"ports": ()}, ["mini: it found no free port"]),
        ({"addresses": ()}, ["mini: it has no address in a private network"]),
        ({"backends": ()}, ["mini: cannot do ring; its mlx.distributed can do: none"]),
        (
            {"versions": {"mlx": "0.31.0", "mlx-lm": "0.32.0"}, "hashes": {TRAIN: "c" * 64, MODEL: "b" * 64}},
            [
                "mini: has mlx 0.31.0, the others 0.32.0",
                "mini: train.jsonl differs: SHA-256 cccccccccccc… there, aaaaaaaaaaaa… on the others",
            ],
        ),
    ],
)
def test_what_one_machine_lacks_is_said_and_the_others_go_on(fields: dict[str, Any], said: list[str]) -> None:
    verdict = judged(A, changed(B, **fields), C, terms=Terms(memory_bytes=2 * 10**9))
    assert words(verdict) == said
    assert [seat.learner for seat in verdict.seats] == ["air", "pro"]


def test_what_the_run_says_holds_against_all() -> None:
    verdict = judged(A, B, changed(C, hashes={TRAIN: "c" * 64, MODEL: "b" * 64}), terms=Terms(hashes={TRAIN: "c" * 64}))
    assert [seat.learner for seat in verdict.seats] == ["pro"]
    assert [refusal.learner for refusal in verdict.refused] == ["air", "mini"]
    assert "in the run" in verdict.refused[0].reason


def test_of_two_that_differ_the_first_by_name_is_right() -> None:
    verdict = judged(A, changed(B, versions={"mlx": "0.33.0", "mlx-lm": "0.32.0"}))
    assert words(verdict) == ["mini: has mlx 0.33.0, the others 0.32.0"]


def test_very_many_files_are_counted_not_listed() -> None:
    many = {f"part-{n:02d}": "c" * 64 for n in range(20)}
    verdict = judged(A, changed(B, hashes=many), C)
    of_files = [refusal for refusal in verdict.refused if refusal.learner == "mini"]
    assert len(of_files) == 6
    assert of_files[-1].reason.endswith("and 16 more files")


# The network


def test_one_address_of_each_that_all_others_reach() -> None:
    machines = [member(name, at(f"10.1.0.{n}", "thunderbolt"), at(f"10.2.0.{n}", "wifi")) for n, name in enumerate("abc", 1)]
    fast = {f"10.1.0.{n}": 2e9 for n in (1, 2, 3)} | {f"10.2.0.{n}": 4e7 for n in (1, 2, 3)}
    assert {seat.address[:5] for seat in judged(*machines, speeds=fast).seats} == {"10.1."}
    verdict = judged(*machines, speeds=fast, cut=[("c", "10.1.0.1")])
    assert [seat.address for seat in verdict.seats] == ["10.2.0.1", "10.1.0.2", "10.1.0.3"]


@pytest.mark.parametrize(("wire", "wifi", "chosen"), [(1e8, 1.9e8, "10.1.0.2"), (1e7, 9e7, "10.2.0.2"), (9e7, 1e7, "10.1.0.2")])
def test_the_faster_one_wins_and_the_wire_where_they_are_alike(wire: float, wifi: float, chosen: str) -> None:
    machines = [member(name, at(f"10.2.0.{n}", "wifi"), at(f"10.1.0.{n}")) for n, name in enumerate("ab", 1)]
    speeds = {"10.1.0.1": wire, "10.1.0.2": wire, "10.2.0.1": wifi, "10.2.0.2": wifi}
    assert best_address(machines[1], machines, links_of(probes(machines, speeds=speeds), machines)) == chosen


def test_alone_it_stays_at_home() -> None:
    assert judged(member("a", at("10.0.0.1"), at("127.0.0.1", "loopback", "lo"))).seats[0].address == "127.0.0.1"


def test_one_that_is_not_reached_is_refused_with_the_addresses_that_were_tried() -> None:
    place = B.addresses[0].address
    verdict = judged(A, B, C, cut=[("air", place), ("pro", place)])
    assert words(verdict) == [f"mini: air does not reach mini at {place}"]
    # One way suffices: what it cannot reach, it cannot send to.
    verdict = judged(A, B, C, cut=[("mini", A.addresses[0].address), ("mini", C.addresses[0].address)])
    assert words(verdict) == [f"mini: mini does not reach air at {A.addresses[0].address}"]


def test_pairs_without_a_probe_are_known_and_count_as_not_reached() -> None:
    found = [probe for probe in probes([A, B, C]) if (probe.learner, probe.target) != ("pro", "air")]
    assert unmeasured(found, [A, B, C]) == [("pro", "air")]
    verdict = preflight([A, B, C], found, Terms())
    assert len(verdict.seats) == 2
    assert words(verdict) in (
        ["air: pro has not measured how it reaches air"],
        ["pro: pro has not measured how it reaches air"],
    )


def test_what_another_incarnation_found_does_not_count() -> None:
    again = changed(B, incarnation=2)
    assert unmeasured(probes([A, B]), [A, again]) == [("air", "mini"), ("mini", "air")]


def test_a_link_to_an_address_that_was_not_announced_does_not_count() -> None:
    strange = [changed_links(probe, "10.9.9.9") for probe in probes([A, B])]
    assert preflight([A, B], strange, Terms()).seats[0].learner == "air"
    assert len(preflight([A, B], strange, Terms()).seats) == 1


def changed_links(probe: Probe, address: str) -> Probe:
    return msgspec.structs.replace(probe, links=tuple(msgspec.structs.replace(link, address=address) for link in probe.links))


def test_agents_on_one_machine_get_different_ports() -> None:
    here = (at("127.0.0.1", "loopback", "lo"),)
    verdict = judged(*(member(name, *here) for name in "abc"))
    assert [(seat.learner, seat.port) for seat in verdict.seats] == [("a", 21_001), ("b", 21_002)]
    assert words(verdict) == ["c: all ports that it offers are others' at 127.0.0.1"]
    prober = member("b", *here, ports=(21_000, 21_009))
    assert judged(member("a", *here), prober).seats[1].port == 21_009, "not a port at which probes are answered"


def test_of_more_than_are_wanted_the_fastest() -> None:
    fast = [changed(each, tokens_per_s=speed) for each, speed in ((A, 0.0), (B, 300.0), (C, 100.0))]
    verdict = judged(*fast, terms=Terms(world_size_min=2, world_size_max=2))
    assert [(seat.learner, seat.share) for seat in verdict.seats] == [("mini", 1000), ("pro", 333)]
    assert words(verdict) == ["air: all 2 places are taken by faster machines"]


def test_an_unknown_speed_counts_as_the_middle_of_the_known_ones() -> None:
    speeds = [changed(each, tokens_per_s=speed) for each, speed in ((A, 0.0), (B, 300.0), (C, 100.0))]
    assert [seat.share for seat in judged(*speeds).seats] == [1000, 1000, 333]
    assert [seat.share for seat in judged(A, B).seats] == [1, 1]


# Backends


def mac(name: str, n: int, backends: tuple[Any, ...] = ("jaccl", "ring")) -> Member:
    return member(name, at(f"10.1.{n}.1", "thunderbolt", "en5"), at(f"10.2.0.{n}", "wifi", "en1"), backends=backends)


def test_the_best_backend_that_all_can_do() -> None:
    verdict = judged(mac("a", 1), mac("b", 2))
    assert verdict.backend == "jaccl"
    assert [seat.rdma for seat in verdict.seats] == [("", "rdma_en5"), ("rdma_en5", "")]
    assert judged(mac("a", 1), mac("b", 2), mac("c", 3, ("ring",))).backend == "ring"
    assert judged(mac("a", 1, ("nccl", "ring")), mac("b", 2, ("nccl", "ring"))).backend == "nccl"
    assert judged(mac("a", 1, ("ring", "mpi")), mac("b", 2, ("ring", "mpi"))).backend == "ring"


def test_jaccl_needs_a_cable_between_each_two() -> None:
    cut = [("a", "10.1.2.1"), ("b", "10.1.1.1")]
    assert judged(mac("a", 1), mac("b", 2), cut=cut).backend == "ring"
    verdict = judged(mac("a", 1), mac("b", 2), cut=cut, terms=Terms(backend="jaccl"))
    assert verdict.seats == ()
    assert words(verdict)[0] == "a: jaccl: no Thunderbolt link with RDMA to b"


def test_a_backend_that_was_asked_for_is_needed_by_all() -> None:
    verdict = judged(mac("a", 1), mac("b", 2, ("ring",)), terms=Terms(backend="jaccl"))
    assert words(verdict) == ["b: cannot do jaccl; its mlx.distributed can do: ring"]


# All of it


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Member], list[Probe], Terms]:
    members = []
    for n, name in enumerate(draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)), 1):
        kinds = draw(st.lists(st.sampled_from(["ethernet", "wifi", "thunderbolt"]), max_size=2, unique=True))
        members.append(
            member(
                name,
                incarnation=draw(st.integers(1, 2)),
                addresses=tuple(at(f"10.{k}.0.{n}", kind) for k, kind in enumerate(kinds)),
                ports=tuple(draw(st.sets(st.integers(21_000, 21_003), max_size=2))),
                memory_bytes=draw(st.integers(0, 2)),
                hashes={TRAIN: draw(st.sampled_from("aab")) * 64},
                backends=tuple(sorted(draw(st.sets(st.sampled_from(["jaccl", "ring"]))))),
                tokens_per_s=draw(st.sampled_from([0.0, 1.0, 2.0])),
            )
        )
    places = [way.address for each in members for way in each.addresses]
    cuts = draw(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(places)), max_size=6)) if places else []
    found = probes(members, cut=cuts)
    kept = draw(st.lists(st.sampled_from(found), unique=True)) if found and draw(st.booleans()) else found
    least = draw(st.integers(1, 3))
    terms = Terms(world_size_min=least, world_size_max=draw(st.none() | st.integers(least, 4)), memory_bytes=1)
    return members, kept, terms


@given(worlds(), st.randoms())
def test_each_has_a_seat_or_a_reason_and_the_order_of_what_is_seen_is_nothing(world: Any, random: Any) -> None:
    members, found, terms = world
    verdict = preflight(members, found, terms)
    seated, refused = {seat.learner for seat in verdict.seats}, {refusal.learner for refusal in verdict.refused}
    assert not seated & refused
    assert seated | refused == {each.learner for each in members}
    assert terms.world_size_max is None or len(seated) <= terms.world_size_max
    assert len({(seat.address, seat.port) for seat in verdict.seats}) == len(verdict.seats)
    links = links_of(found, members)
    for seat in verdict.seats:
        for other in seated - {seat.learner}:
            assert seat.address in links[other, seat.learner], "each reaches each at its one address"
    random.shuffle(members)
    random.shuffle(found)
    assert preflight(members, found, terms) == verdict


def test_terms_have_their_bounds() -> None:
    for bad in (
        {"world_size_min": 0},
        {"world_size_min": 3, "world_size_max": 2},
        {"start_s": -1.0},
        {"gather_s": float("nan")},
    ):
        with pytest.raises(ValueError, match="must be"):
            Terms(**bad)  # type: ignore[arg-type]
