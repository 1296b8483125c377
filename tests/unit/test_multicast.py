"""What is sent comes back, others are counted, and what goes wrong is named. On loopback, with a group of the tests' own."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from zeroconf import DNSIncoming

from swarm.core.adverts import PEER_SERVICE
from swarm.core.diagnosis import Multicast
from swarm.network.multicast import ALL_SERVICES, listen, question

GROUP = "239.255.71.3"


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 0))
        return int(taken.getsockname()[1])


def heard(
    *,
    address: str = "127.0.0.1",
    port: int | None = None,
    own: tuple[str, ...] = (),
    begun: Callable[[int], object] = lambda port: None,
) -> Multicast:
    """`begun`: called with the port once listening has begun. The clock goes by steps, however long they take."""
    port = free_port() if port is None else port
    clock = iter([0.0, *(n / 10 for n in range(1, 100))])

    def now() -> float:
        now_s = next(clock)
        if now_s == 0.1:
            begun(port)
        return now_s

    [found] = listen([("lo", address)], own=own, group=GROUP, port=port, listen_s=0.9, now=now)
    return found


@pytest.fixture
def loopback() -> None:
    """Some machines pass no multicast on there."""
    if not heard().own:
        pytest.skip("loopback passes no multicast on here")


def say(address: str, port: int, *words: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as voice:
        voice.bind((address, 0))
        voice.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        for each in words:
            voice.sendto(each, (GROUP, port))


def test_the_question_is_one_of_mdns() -> None:
    packet = DNSIncoming(question("a" * 32))
    assert packet.valid
    assert packet.is_query()
    assert {each.name for each in packet.questions} == {PEER_SERVICE, ALL_SERVICES, f"{'a' * 32}.{PEER_SERVICE}"}
    assert not any(each.unicast for each in packet.questions), "others answer by multicast, which is to be tried"


def test_what_is_sent_comes_back_and_counts_as_nobody_elses(loopback: None) -> None:
    found = heard()
    assert (found.sent, found.own, found.packets, found.others, found.error) == (True, True, 0, 0, "")


def test_others_are_counted_and_this_machines_other_addresses_are_not(loopback: None) -> None:
    try:
        found = heard(
            own=("127.0.0.4",),
            begun=lambda port: [say("127.0.0.2", port, b"a", b"b"), say("127.0.0.3", port, b"c"), say("127.0.0.4", port, b"d")],
        )
    except OSError:
        pytest.skip("this system's loopback has one address")
    assert found.own
    assert (found.packets, found.others) == (3, 2)


def test_a_port_that_is_held_alone_is_named() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind(("", 0))
        found = heard(port=held.getsockname()[1])
    assert (found.sent, found.own, found.code) == (False, False, "EADDRINUSE")
    assert found.error


@pytest.mark.parametrize("address", ["192.0.2.199", "fe80::dead%lo"])
def test_an_address_that_is_gone_is_named(address: str) -> None:
    found = heard(address=address)
    assert not found.sent
    assert found.error
    assert found.code.startswith("E")


def test_without_interfaces_nothing_is_waited_for() -> None:
    assert listen([], now=lambda: 0.0) == ()
