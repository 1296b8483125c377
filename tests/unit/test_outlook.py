"""Who of the machines that are seen can take part in a run that is not made yet, and why not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swarm.core.adverts import PeerAdvert
from swarm.core.manifest import FORMAT
from swarm.core.outlook import MAX_SHOWN, Fit, Needs, fits
from swarm.core.sightings import SeenPeer, Sightings
from swarm.core.ticks import ok

BOX = "b" * 32
NEEDS = Needs(method="diloco", task="charlm", frameworks=("torch", "mlx"), memory_bytes=8 << 30, mailbox=BOX)


def peer(name: str = "mbp", *, seen: dict[str, Any] | None = None, **advert: Any) -> SeenPeer:
    told = {"memory_bytes": 20 << 30, "accelerators": ("mps Apple M3",), "mailboxes": (BOX,), "version": "0.2.0", **advert}
    made = PeerAdvert(peer=name.encode().hex().ljust(32, "0")[:32], name=name, boot="0" * 8, **told)
    return SeenPeer(advert=made, how=("network",), **(seen or {}))


def only(one: SeenPeer, needs: Needs = NEEDS) -> Fit:
    here, found = fits(Sightings(peers=(one,)), needs, version="0.2.0")
    assert here.itself
    assert not found.itself
    return found


def test_a_machine_with_all_that_is_needed_can_take_part() -> None:
    found = only(peer())
    assert found.verdict == "ok"
    assert [tick.detail for tick in found.ticks] == ["21.5 GB", "mps Apple M3", "has this mailbox open"]


@pytest.mark.parametrize(
    ("one", "needs", "verdict", "words", "remedy"),
    [
        (peer(seen={"ours": False}), {}, "failed", "another passphrase", "swarm key import"),
        (peer(format=FORMAT + 1), {}, "failed", f"writes format {FORMAT + 1}", "upgrade swarm on this machine"),
        (peer(version="0.1.0"), {}, "warning", "swarm 0.1.0 there, 0.2.0 here", ""),
        (peer(memory_bytes=4 << 30), {}, "failed", "4.29 GB, and about 8.59 GB are needed", "--role syncer"),
        (peer(accelerators=("cuda RTX 3090",)), {"frameworks": ("mlx",)}, "warning", "cuda RTX 3090: MLX", "homeswarm[mlx]"),
        (peer(mailboxes=()), {}, "warning", "has not opened this mailbox", "the field share"),
        (peer(mailboxes=()), {"share": "smb://nas/swarm"}, "warning", "has not opened", "Join screen"),
        (peer(), {"package": "protein-task"}, "warning", "a package of its own", "pip install protein-task"),
        (peer(seen={"unreachable": "no route"}), {"method": "mlx-lm"}, "failed", "cannot be connected to: no route", "doctor"),
        (peer(state="training"), {}, "warning", "trains another run", ""),
    ],
)
def test_what_speaks_against_it_is_said_with_the_remedy(
    one: SeenPeer, needs: dict[str, Any], verdict: str, words: str, remedy: str
) -> None:
    found = only(one, msgspec.structs.replace(NEEDS, **needs))
    assert found.verdict == verdict
    [tick] = [tick for tick in found.ticks if tick.verdict != "ok"]
    assert words in tick.detail
    assert remedy in tick.remedy


def test_what_is_not_told_speaks_against_nobody() -> None:
    silent = peer(memory_bytes=0, version="", mailboxes=("a" * 32, "c" * 32, "d" * 32, "e" * 32))  # its list is full
    assert only(silent).verdict == "ok"
    assert only(peer(mailboxes=()), msgspec.structs.replace(NEEDS, mailbox="", memory_bytes=None)).verdict == "ok"


def test_this_machine_comes_first_then_those_that_can() -> None:
    crowd = (peer("bad", memory_bytes=1), peer("good"), peer("doubtful", version="9"), peer("me", seen={"itself": True}))
    found = fits(Sightings(peers=crowd), NEEDS, version="0.2.0", here=(ok("framework", "torch"),))
    assert [fit.name for fit in found] == ["me", "good", "doubtful", "bad"]
    assert [tick.detail for tick in found[0].ticks] == ["torch"]
    many = tuple(peer(f"m{n}") for n in range(50))
    assert len(fits(Sightings(peers=many), NEEDS, version="0.2.0")) == MAX_SHOWN + 1
