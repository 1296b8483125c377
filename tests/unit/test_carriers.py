"""Which interfaces are used, and why the others are not."""

from __future__ import annotations

from swarm.network.carriers import carriers, sorted_out
from swarm.network.links import Link

ADDRESSES = {
    "en0": ["192.168.1.2", "fe80::1"],
    "en1": ["192.168.1.3"],
    "lo": ["127.0.0.1", "::1"],
    "wg0": ["10.9.0.1"],
    "docker0": ["172.17.0.1"],
    "eth7": ["8.8.8.8"],
    "eth8": [],
    "eth9": ["10.1.1.1"],
    "ifb0": [],
    "awdl0": ["fe80::2"],
}
UP = set(ADDRESSES) - {"eth9", "ifb0"}
USED = [
    Link(name="en0", kind="ethernet", index=1, v4=("192.168.1.2",), v6=("fe80::1",)),
    Link(name="en1", kind="wifi", index=2, v4=("192.168.1.3",), multicast=False),
]


def test_each_is_used_or_says_why_not() -> None:
    found = sorted_out(USED, ADDRESSES, up=UP, speeds={"en0": 1000})
    assert [each.name for each in found[:2]] == ["en0", "en1"]
    assert [(each.address, each.v4, each.speed_bytes_per_s, each.multicast, each.why_not) for each in found[:2]] == [
        ("192.168.1.2", ("192.168.1.2",), 125e6, True, ""),
        ("192.168.1.3", ("192.168.1.3",), 0.0, False, ""),
    ]
    assert {each.name: each.why_not for each in found[2:]} == {
        "lo": "loopback",
        "wg0": "a VPN",
        "docker0": "of containers or virtual machines",
        "eth7": "its addresses are public",
        "eth8": "no address",
        "eth9": "down",
        "awdl0": "of this system's own",
    }


def test_of_those_asked_for_the_others_say_so() -> None:
    found = sorted_out(USED[:1], ADDRESSES, up=UP, speeds={}, names=("en0",))
    assert next(each for each in found if each.name == "en1").why_not == "not among those asked for"


def test_this_machine_has_a_loopback_that_is_not_used() -> None:
    found = carriers()
    assert any(each.kind == "loopback" and each.why_not for each in found)
    assert all(each.address for each in found if not each.why_not)
