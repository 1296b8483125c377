"""What is odd about a run's machines, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.core.adverts import PeerAdvert
from swarm.core.oddities import oddities
from swarm.core.records import Beat, LearnerRecord
from swarm.core.sightings import SeenPeer, Sightings
from swarm.core.state import LearnerView, RunState
from swarm.core.telling import boot_digits
from swarm.core.ticks import Tick


def view(learner: str, *, live: bool = True, held: str = "", role: Any = "both", **record: Any) -> LearnerView:
    here = {"machine": f"id-{learner}", "machine_name": learner, "boot": f"boot-{learner}", "version": "0.2.0"} | record
    found = LearnerRecord(learner=learner, incarnation=1, pid=1, process="1", role=role, **here)
    return LearnerView(learner=learner, record=found, beat=Beat(phase="train", role=role, held=held), live=live)


def seen(learner: str, *, id: str = "", boot: str = "", version: str = "0.2.0", **peer: Any) -> SeenPeer:
    advert = PeerAdvert(peer=id or f"id-{learner}", name=learner, boot=boot or boot_digits(f"boot-{learner}"), version=version)
    return SeenPeer(advert=advert, how=("network",), **peer)


def found(*views: LearnerView, peers: tuple[SeenPeer, ...] = ()) -> tuple[Tick, ...]:
    return oddities(RunState(run="r", learners=views), Sightings(peers=peers))


def one(*views: LearnerView, peers: tuple[SeenPeer, ...] = ()) -> Tick:
    (tick,) = found(*views, peers=peers)
    assert tick.verdict == "warning"
    assert tick.detail
    assert tick.remedy
    return tick


def test_nothing_is_odd_about_machines_that_are_alike() -> None:
    peers = (seen("mac", clock_off_s=1.0), seen("pc", clock_off_s=-119.0), seen("here", itself=True))
    assert found(view("mac", device="mlx metal"), view("pc", device="torch cuda:0"), peers=peers) == ()
    assert found() == ()


def test_versions_are_named_with_their_machines_and_the_older_ones_are_to_change() -> None:
    tick = one(view("mac", version="0.10.0"), view("pc", version="0.9.1"), view("nas", version="0.9.1", role="syncer"))
    assert tick.name == "versions differ"
    assert tick.detail == "swarm 0.10.0 on mac; swarm 0.9.1 on nas and pc"
    assert tick.remedy.startswith("pip install --upgrade homeswarm on nas and pc")


def test_this_machine_counts_if_it_only_watches() -> None:
    tick = one(view("mac"), peers=(seen("here", version="0.1.0", itself=True),))
    assert tick.detail == "swarm 0.2.0 on mac; swarm 0.1.0 on here"
    assert found(peers=(seen("here", version="0.1.0", itself=True), seen("mac"))) == (), "nobody trains"


def test_whoever_has_left_has_no_version() -> None:
    assert found(view("mac"), view("pc", version="0.1.0", live=False)) == ()
    assert found(view("mac"), view("pc", version="")) == ()


def test_a_clock_that_is_off_is_told_with_what_it_affects() -> None:
    views = view("mac"), view("pc")
    tick = one(*views, peers=(seen("mac", clock_off_s=0.2), seen("pc", clock_off_s=-600.0)))
    assert tick.name == "clock odd"
    assert tick.detail.startswith("pc's clock is 10 min behind this machine's; ")
    assert "the run does not mind" in tick.detail
    assert "`hours`" in tick.detail
    assert "timedatectl set-ntp true" in tick.remedy


def test_where_all_others_agree_it_is_this_machines() -> None:
    views = view("mac"), view("pc")
    tick = one(*views, peers=(seen("mac", clock_off_s=3601.0), seen("pc", clock_off_s=3600.0)))
    assert "this machine's clock is 1 h 0 min behind those of mac and pc; " in tick.detail
    assert tick.remedy.startswith("here, ")
    apart = found(*views, peers=(seen("mac", clock_off_s=3600.0), seen("pc", clock_off_s=7200.0)))
    assert len(apart) == 2, "nobody knows whose is right"
    alone = one(view("mac"), peers=(seen("mac", clock_off_s=3600.0),))
    assert "mac's clock is 1 h 0 min ahead of this machine's; " in alone.detail
    assert alone.remedy.startswith("on the one that is wrong, ")


@pytest.mark.parametrize(
    "other",
    [
        seen("stranger", clock_off_s=9000.0),  # of no learner of the run
        seen("pc", clock_off_s=9000.0, ours=False),
        seen("pc", clock_off_s=9000.0, boot="0badcafe"),  # it was before its boot, or is another machine
        seen("pc", clock_off_s=None),
    ],
)
def test_clocks_of_others_are_not_the_runs(other: SeenPeer) -> None:
    assert found(view("pc"), peers=(other,)) == ()


def test_two_learners_on_one_device() -> None:
    on_mac = {"machine": "m", "machine_name": "studio", "boot": "b"}
    tick = one(view("a", device="mlx metal", **on_mac), view("b", device="torch mps", **on_mac))
    assert tick.detail == "a and b train on studio and share its GPU: each is slower than it would be alone"
    assert "swarm leave" in tick.remedy
    assert "its processor" in one(view("a", device="torch cpu", **on_mac), view("b", device="mlx cpu", **on_mac)).detail


@pytest.mark.parametrize(
    ("device", "changes"),
    [
        ("torch cuda:0", {}),  # CUDA_VISIBLE_DEVICES may give each its own
        ("torch cpu", {"held": "on battery"}),
        ("torch cpu", {"role": "syncer"}),
        ("torch cpu", {"live": False}),
        ("torch cpu", {"boot": "another"}),
        ("mlx metal", {}),
        ("", {}),
    ],
)
def test_what_is_not_certain_is_not_told(device: str, changes: dict[str, Any]) -> None:
    here = {"machine": "m", "machine_name": "studio", "boot": "b"}
    first = view("a", device=device if device.startswith("torch cuda") else "torch cpu", **here)
    assert found(first, view("b", **{**here, "device": device, **changes})) == ()


def test_two_machines_with_one_id() -> None:
    tick = one(view("pc"), peers=(seen("pc", doubled=True),))
    assert tick.name == "two machines, one id"
    assert "machine-id" in tick.remedy


def test_nothing_of_a_peer_steers_the_terminal() -> None:
    ticks = found(view("a", version="\x1b[2J1", machine_name="m\x1b]0;x\x07"), view("b", version="2"))
    assert not any(char < " " for tick in ticks for char in tick.detail + tick.remedy)
