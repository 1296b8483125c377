"""A page for strangers: what it says, and what it never says."""

from __future__ import annotations

import pytest

from swarm.core.adverts import PeerAdvert
from swarm.core.bugreport import LINE, LINES, Hide, page, scrubbed
from swarm.core.sightings import SeenPeer, Sightings
from swarm.core.ticks import failed, ok, warning

HIDE = Hide(home="/home/ann", users=("ann",), machines=("anns-studio", "linux-3090"))
NOBODY = Sightings()
TOKEN = "hf_" + "abcDEF0123456789xyz"


def shown(*ticks: object, sightings: Sightings = NOBODY, hide: Hide = HIDE) -> str:
    return page(
        ticks, sightings=sightings, now_s=100.0, packages={"torch": "2.9", "mlx": ""}, variables=["SWARM_CONFIG"], hide=hide
    )


def test_it_says_what_was_found_by_topic() -> None:
    text = shown(
        ok("memory", "much", topic="this machine"),
        failed("folder", "gone", "mount it", topic="share"),
        warning("x", "y", topic="share"),
    )
    assert text.splitlines()[0].startswith("swarm doctor: 1 failed, 1 warning; format ")
    assert "packages: torch 2.9\nset: SWARM_CONFIG\n" in text
    assert "\nthis machine\n  ok       memory: much\n\nshare\n  FAILED   folder: gone\n  WARNING  x: y\n" in text


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("/home/ann/box is not there", "~/box is not there"),
        ("/home/ann: full", "~: full"),
        ("/home/annabel/box", "~/box"),
        ("/Users/bob/Library/x", "~/Library/x"),
        ("//ann:pw@nas/swarm", "//nas/swarm"),
        ("smb://bob@nas/swarm", "smb://nas/swarm"),
        ("held by ann, not by annabel", "held by USER, not by annabel"),
        ("Anns-Studio and linux-3090 and anns-studio.local", "machine-1 and machine-2 and machine-1.local"),
        ("username=joe,password=x,vers=3", "username=(hidden),password=(hidden),vers=3"),
        (f"key {TOKEN}", "key (hidden)"),
        ("at 10.0.0.2, 192.168.1.7 and 8.8.8.8", "at 10.0.0.2, 192.168.1.7 and (public address)"),
        ("at fe80::1c2b:3dff:fe4e:5f60%en0 and ::1", "at (IPv6 address) and ::1"),
        ("02:42:ac:11:00:02", "(hardware address)"),
        ("torch 2.13.0+cpu, Python 3.11.7, 12:04:05", "torch 2.13.0+cpu, Python 3.11.7, 12:04:05"),
        ("--checkpoint-every-many-rounds stays", "--checkpoint-every-many-rounds stays"),
    ],
)
def test_what_is_left_of_it(said: str, left: str) -> None:
    assert scrubbed(said, HIDE) == left


def test_what_is_secret_is_hidden_whatever_it_looks_like() -> None:
    assert scrubbed("said open sesame!", Hide(secrets=("open sesame", ""))) == "said (hidden)!"


def test_nothing_to_hide_hides_nothing() -> None:
    assert scrubbed("/ is full, said bob", Hide(home="/", users=("",), machines=("",))) == "/ is full, said bob"


def test_a_value_in_the_settings_is_not_shown() -> None:
    fault = failed("settings", "/home/ann/s.toml: passphrase = 'open sesame': unknown", "mend it", topic="settings")
    text = shown(fault)
    assert "sesame" not in text
    assert "~/s.toml: passphrase = (hidden)" in text


def test_peers_have_numbers_in_place_of_names() -> None:
    advert = PeerAdvert(peer="c" * 32, name="anns-studio", boot="b" * 8, version="0.1.0")
    peer = SeenPeer(advert=advert, how=("network",), addresses=("10.0.0.9",), heard_s=97.0, sees_us=False, clock_off_s=-0.3)
    text = shown(sightings=Sightings(peers=(peer, SeenPeer(advert=advert, how=("network",), itself=True))))
    assert "machine-1: swarm 0.1.0" in text
    assert "3 s ago" in text
    assert "clock 0.3 s behind" in text
    assert "anns" not in text
    assert "c" * 32 not in text


def test_it_is_bounded_and_plain() -> None:
    text = shown(*(failed(f"check {n}", "x" * 5000 + "\x1b[31m", topic="share") for n in range(1000)))
    lines = text.splitlines()
    assert len(lines) == LINES + 1
    assert max(map(len, lines)) <= LINE
    assert "\x1b" not in text
