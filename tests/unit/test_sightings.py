"""What is seen of the machines and runs around, from what is heard: time is an argument, and a flood takes no more room."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.adverts import Hello, PeerAdvert, RunAdvert, tagged
from swarm.core.sightings import LIVES_S, MAX_SOURCES, SETTLES_S, SeenPeer, SeenRun, Sighted, Sightings
from swarm.core.trust import SwarmKey

ME, BOOT = "e" * 32, "0000beef"
KEY = SwarmKey(b"k" * 32)


def peer(name: str = "studio", *, id: str = "a", boot: str = "0badcafe", **more: Any) -> PeerAdvert:
    return PeerAdvert(peer=id * 32, name=name, boot=boot, **more)


def run(id: str = "kx7k2m", *, teller: str = "a", **more: Any) -> RunAdvert:
    return RunAdvert(run=id, peer=teller * 32, name="tiny-lm", method="diloco", task="charlm", mailbox="b" * 32, **more)


def sighted(**more: Any) -> Sighted:
    return Sighted(peer=ME, boot=BOOT, **more)


def only(seen: Sightings) -> SeenPeer:
    (found,) = seen.peers
    return found


def only_run(seen: Sightings) -> SeenRun:
    (found,) = seen.runs
    return found


def test_a_peer_is_seen_until_it_falls_silent() -> None:
    at = sighted()
    at.heard(peer(), source="s", how="network", now_s=0.0, addresses=("10.0.0.1",))
    at.heard(run(), source="r", how="network", now_s=0.0)
    assert only(at.seen(LIVES_S)).addresses == ("10.0.0.1",)
    at.heard(peer(), source="s", how="network", now_s=20.0)
    seen = at.seen(LIVES_S + 1)
    assert only(seen).heard_s == 20.0
    assert only(seen).addresses == ("10.0.0.1",)
    assert not seen.runs
    assert at.seen(20.0 + LIVES_S + 0.1).peers == ()


def test_a_goodbye_removes_at_once() -> None:
    at = sighted()
    at.heard(peer(), source="s", how="network", now_s=0.0)
    at.heard(run(), source="r", how="network", now_s=0.0)
    at.departed("s")
    at.departed("r")
    at.departed("never heard of")
    assert at.seen(0.0) == Sightings()


def test_processes_of_a_machine_are_one_peer() -> None:
    at = sighted()
    at.heard(
        peer(state="training", accelerators=("mps M2",), memory_bytes=5, mailboxes=("b" * 32,), sees=("1" * 8,)),
        source="worker",
        how="network",
        now_s=0.0,
        addresses=("10.0.0.1", "10.0.0.2"),
    )
    at.heard(
        peer(address="10.0.0.2", port=7, mailboxes=("c" * 32,), sees=("e" * 8,)), source="screen", how="network", now_s=1.0
    )
    found = only(at.seen(2.0, told_since_s=0.0))
    assert found.advert.state == "training"
    assert found.advert.accelerators == ("mps M2",)
    assert found.advert.mailboxes == ("b" * 32, "c" * 32)
    assert found.advert.port == 7
    assert found.addresses == ("10.0.0.2", "10.0.0.1")  # the one that worked comes first
    assert found.sees_us is True
    assert not found.doubled
    at.departed("worker")
    assert only(at.seen(2.0)).advert.state == "watching"


def test_a_network_and_an_address_are_one_peer_seen_twice() -> None:
    at = sighted()
    at.heard(peer(), source="s", how="network", now_s=0.0)
    at.answered(Hello(peer=peer(port=9), runs=(run(),)), given="studio.local", address="10.0.0.1:27273", now_s=1.0)
    at.heard(run(round=3), source="r", how="network", now_s=0.5)
    seen = at.seen(2.0)
    assert only(seen).how == only_run(seen).how == ("network", "address")
    assert only(seen).addresses == ("10.0.0.1",)
    at.answered(Hello(peer=peer(port=9)), given="studio.local", address="10.0.0.1:27273", now_s=2.0)
    assert only_run(at.seen(2.0)).how == ("network",)


def test_an_address_at_which_nobody_answers_is_trouble_in_words() -> None:
    at = sighted()
    at.silent("studio.local", "no answer within 2 s")
    assert at.seen(0.0, trouble=("no multicast",)).trouble == ("no multicast", "studio.local: no answer within 2 s")
    at.answered(Hello(peer=peer()), given="studio.local", address="[fe80::1%eth0]:27273", now_s=0.0)
    seen = at.seen(0.0)
    assert seen.trouble == ()
    assert only(seen).addresses == ("fe80::1%eth0",)
    at.silent("other", "refused")
    at.forget(["other"])
    assert at.seen(0.0).trouble == ()


def test_the_one_furthest_on_tells_what_a_run_is_like_and_a_mailbox_knows_better() -> None:
    at = sighted()
    at.heard(peer(), source="a", how="network", now_s=0.0)
    at.heard(peer("mbp", id="d"), source="d", how="network", now_s=0.0)
    at.heard(run(round=12, share="smb://nas/swarm"), source="ra", how="network", now_s=0.0)
    at.heard(run(round=10, teller="d"), source="rd", how="network", now_s=5.0)
    found = only_run(at.seen(5.0))
    assert (found.advert.round, found.peers, found.heard_s) == (12, ("mbp", "studio"), 5.0)
    at.heard(run(round=12, phase="paused", teller="d"), source="rd", how="network", now_s=6.0)
    assert only_run(at.seen(6.0)).advert.phase == "paused"
    assert only_run(at.seen(6.0)).location is None
    at.in_mailbox("/mnt/swarm", "b" * 32, peers=(), runs=[run(round=11, teller="e")], now_s=7.0)
    found = only_run(at.seen(7.0))
    assert (found.advert.round, found.location, found.how) == (11, "/mnt/swarm", ("network", "mailbox"))
    assert found.advert.share == "smb://nas/swarm"
    at.unmounted(())
    found = only_run(at.seen(7.0))
    assert (found.advert.round, found.location, found.how) == (12, None, ("network",))


def test_what_stands_in_a_mailbox_replaces_what_stood_there_and_does_not_age() -> None:
    at = sighted()
    at.in_mailbox("/m", "b" * 32, peers=[peer(), peer("mbp", id="d")], runs=[run()], now_s=0.0)
    assert [p.advert.name for p in at.seen(10 * LIVES_S).peers] == ["mbp", "studio"]
    at.in_mailbox("/m", "b" * 32, peers=[peer("mbp", id="d")], runs=[], now_s=1.0)
    seen = at.seen(1.0)
    assert only(seen).how == ("mailbox",)
    assert only(seen).sees_us is None
    assert seen.runs == ()


def test_a_record_of_a_machine_s_last_boot_makes_no_second_machine() -> None:
    at = sighted()
    at.in_mailbox("/m", "b" * 32, peers=[peer(boot="00000001", state="training")], runs=[], now_s=0.0)
    at.heard(peer(boot="00000002"), source="s", how="network", now_s=1.0)
    found = only(at.seen(1.0))
    assert found.how == ("network", "mailbox")
    assert (found.advert.boot, found.doubled) == ("00000002", False)


def test_two_machines_with_one_id() -> None:
    at = sighted()
    at.heard(peer(boot="00000001"), source="one", how="network", now_s=0.0)
    at.heard(peer("copy", boot="00000002"), source="two", how="network", now_s=1.0)
    assert not any(p.doubled for p in at.seen(1.0).peers)  # the first may have been started again
    at.heard(peer(boot="00000001"), source="one", how="network", now_s=2.0)
    assert [(p.advert.name, p.doubled) for p in at.seen(2.0).peers] == [("copy", True), ("studio", True)]
    at.departed("two")
    assert not only(at.seen(2.0)).doubled


def test_another_machine_with_this_one_s_id() -> None:
    at = sighted()
    at.heard(peer("me", id="e", boot=BOOT), source="me", how="network", now_s=0.0)
    assert at.double == ""
    assert only(at.seen(0.0)).itself
    at.heard(peer("copy", id="e", boot="0000dead"), source="copy", how="network", now_s=1.0)
    assert at.double == "0000dead"
    assert [(p.advert.name, p.itself, p.doubled) for p in at.seen(1.0).peers] == [("copy", False, True), ("me", True, True)]
    at.renamed("f" * 32)
    at.heard(peer("me", id="f", boot=BOOT), source="me", how="network", now_s=2.0)
    assert at.double == ""
    assert not any(p.doubled for p in at.seen(2.0).peers)


def test_this_machine_is_seen_even_if_nothing_is_heard() -> None:
    found = only(sighted().seen(3.0, here=peer("me", id="e", boot=BOOT)))
    assert (found.itself, found.how, found.heard_s) == (True, (), 3.0)


def test_a_foreign_swarm_is_kept_apart() -> None:
    at = sighted(key=KEY)
    at.heard(tagged(peer(), KEY), source="s", how="network", now_s=0.0)
    at.heard(peer("open"), source="open", how="network", now_s=0.0)  # with the same id and boot, and no tag
    at.heard(tagged(run(round=1), KEY), source="r", how="network", now_s=0.0)
    at.heard(run(round=9), source="stranger", how="network", now_s=0.0)
    at.heard(peer("open", boot="00000002"), source="other", how="network", now_s=0.0)
    seen = at.seen(1.0)
    assert [(p.advert.name, p.ours) for p in seen.peers if p.advert.boot != "00000002"] == [("open", False), ("studio", True)]
    assert not any(p.doubled and p.ours for p in seen.peers)
    assert [(r.advert.round, r.ours, r.peers) for r in seen.runs] == [(9, False, ("open",)), (1, True, ("studio",))]
    assert at.sees(1.0) == ("a" * 8,)


def test_a_passphrase_that_comes_later_judges_what_was_heard_before() -> None:
    at = sighted()
    at.heard(tagged(peer(), KEY), source="s", how="network", now_s=0.0)
    at.heard(run(), source="r", how="network", now_s=0.0)
    assert (only(at.seen(0.0)).ours, only_run(at.seen(0.0)).ours) == (False, True)
    at.keyed(KEY)
    assert (only(at.seen(0.0)).ours, only_run(at.seen(0.0)).ours) == (True, False)


@pytest.mark.parametrize(
    ("sees", "told_since_s", "expected"),
    [(("e" * 8,), None, True), (("1" * 8,), 0.0, False), ((), 0.0, False), ((), None, None), (("1" * 8,), 20.0, None)],
)
def test_whether_a_machine_sees_this_one(sees: tuple[str, ...], told_since_s: float | None, expected: bool | None) -> None:
    at = sighted()
    for now_s in (0.0, SETTLES_S):
        at.heard(peer(sees=sees), source="s", how="network", now_s=now_s)
    assert only(at.seen(SETTLES_S, told_since_s=told_since_s)).sees_us is expected


def test_a_machine_that_was_just_heard_may_not_have_heard_yet() -> None:
    at = sighted()
    at.heard(peer(), source="s", how="network", now_s=100.0)
    assert only(at.seen(100.0, told_since_s=0.0)).sees_us is None


def test_what_came_of_connections() -> None:
    at = sighted()
    at.heard(peer(), source="s", how="network", now_s=0.0, addresses=("10.0.0.1", "10.0.0.2"))
    there = only(at.seen(0.0))
    assert at.tried_s(there) is None
    at.unreached(there, "no answer within 2 s", now_s=1.0)
    assert (at.tried_s(there), only(at.seen(1.0)).unreachable) == (1.0, "no answer within 2 s")
    at.reached(there, now_s=2.0, address="10.0.0.2", ms=3.5, clock_off_s=-0.5)
    found = only(at.seen(2.0))
    assert (found.addresses[0], found.reached_ms, found.unreachable, found.clock_off_s) == ("10.0.0.2", 3.5, "", -0.5)


def test_a_flood_takes_no_more_room_and_drives_nobody_out() -> None:
    at = sighted(key=KEY)
    at.heard(tagged(peer(), KEY), source="friend", how="network", now_s=0.0)
    for n in range(3 * MAX_SOURCES):
        id = f"{n:032x}"
        at.heard(PeerAdvert(peer=id, name=str(n), boot="00000000"), source=id, how="network", now_s=1.0)
        at.heard(msgspec.structs.replace(run(f"flood{n}"), peer=id), source=id, how="network", now_s=1.0)
    seen = at.seen(1.0)
    assert (len(seen.peers), len(seen.runs)) == (MAX_SOURCES, MAX_SOURCES)
    assert seen.ignored == 4 * MAX_SOURCES + 1
    assert any(p.ours for p in seen.peers)
    late = tagged(peer("late", id="1"), KEY)
    at.heard(late, source="late", how="network", now_s=2.0)  # one of this swarm finds room
    assert sorted(p.advert.name for p in at.seen(2.0).peers if p.ours) == ["late", "studio"]


def test_in_an_open_swarm_a_flood_gives_way_to_what_a_mailbox_or_a_person_says() -> None:
    at = sighted()
    for n in range(2 * MAX_SOURCES):
        id = f"{n:032x}"
        at.heard(PeerAdvert(peer=id, name=str(n), boot="00000000"), source=id, how="network", now_s=1.0)
        at.heard(msgspec.structs.replace(run(f"flood{n}"), peer=id), source=id, how="network", now_s=1.0)
    at.in_mailbox("/m", "b" * 32, peers=[peer("written")], runs=[run()], now_s=2.0)
    at.answered(Hello(peer=peer("asked", id="d")), given="asked", address="10.0.0.1:27273", now_s=2.0)
    seen = at.seen(2.0)
    assert {"written", "asked"} <= {p.advert.name for p in seen.peers}
    assert "kx7k2m" in {r.advert.run for r in seen.runs}
    assert (len(seen.peers), len(seen.runs)) == (MAX_SOURCES, MAX_SOURCES)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["peer", "run", "bye", "answer", "silent", "mailbox", "unmounted", "reached", "unreached"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.floats(0, 20),
        st.sampled_from(["network", "address"]),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_each_machine_and_run_is_seen_once(events: list[tuple[str, int, int, float, Any]]) -> None:
    at, now_s = sighted(), 0.0
    for kind, who, boot, passes_s, how in events:
        now_s += passes_s
        told = peer(f"p{who}", id="abce"[who], boot=f"{boot:08x}")
        match kind:
            case "peer":
                at.heard(told, source=f"s{who}{boot}", how=how, now_s=now_s, addresses=("10.0.0.1",))
            case "run":
                at.heard(run(f"run{who}", teller="abce"[boot]), source=f"r{who}{boot}", how=how, now_s=now_s)
            case "bye":
                at.departed(f"s{who}{boot}")
            case "answer":
                at.answered(Hello(peer=told, runs=(run(f"run{boot}"),)), given=f"g{who}", address=f"a{who}:1", now_s=now_s)
            case "silent":
                at.silent(f"g{who}", "why")
            case "mailbox":
                at.in_mailbox(f"/m{who}", str(who) * 32, peers=[told], runs=[run(f"run{boot}")], now_s=now_s)
            case "unmounted":
                at.unmounted([str(boot) * 32])
            case "reached":
                for each in at.seen(now_s).peers:
                    at.reached(each, now_s=now_s, address="10.0.0.1", ms=1.0, clock_off_s=None)
            case "unreached":
                for each in at.seen(now_s).peers:
                    at.unreached(each, "why", now_s=now_s)
        seen = at.seen(now_s, told_since_s=0.0)
        machines = [(p.ours, p.advert.peer, p.advert.boot) for p in seen.peers]
        assert len(set(machines)) == len(machines)
        assert len({(r.ours, r.advert.run) for r in seen.runs}) == len(seen.runs)
        assert all(p.how for p in seen.peers)
        assert all(now_s - p.heard_s <= LIVES_S or p.how == ("mailbox",) for p in seen.peers)
        for p in seen.peers:
            if p.doubled:
                assert sum(q.advert.peer == p.advert.peer for q in seen.peers) > 1 or p.advert.peer == ME
    assert at.seen(now_s + 2 * LIVES_S).ignored == 0
