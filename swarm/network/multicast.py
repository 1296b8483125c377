"""Whether multicast works on an interface: a question is sent as every program does that looks for services (RFC 6762), and one
listens to whether it comes back, and to whom else is heard. Every mDNS responder, of any program, answers it."""

from __future__ import annotations

import errno
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable
from uuid import uuid4

from swarm.core.adverts import PEER_SERVICE
from swarm.core.diagnosis import Multicast

GROUP, GROUP_V6, PORT = "224.0.0.251", "ff02::fb", 5353
LISTEN_S = 2.5
ASKED_AT_S = (0.0, 1.0)  # twice: the first one may get lost
ALL_SERVICES = "_services._dns-sd._udp.local."  # RFC 6763 §9
HEARD = 100  # machines that are counted
_LINUX_MULTICAST_ALL, _LINUX_MULTICAST_ALL_V6 = 49, 29  # <linux/in.h>, <linux/in6.h>; Python has no names for them


def listen(
    interfaces: Iterable[tuple[str, str]],
    *,
    own: Collection[str] = (),
    listen_s: float = LISTEN_S,
    group: str = GROUP,
    port: int = PORT,
    now: Callable[[], float] = time.monotonic,
) -> tuple[Multicast, ...]:
    """What multicast does on each of `interfaces` (name, address of IPv4 or IPv6), all at once. `own`: this machine's
    addresses. Blocks for `listen_s`."""
    ears = [_Ear(name, address, GROUP_V6 if ":" in address else group, port) for name, address in interfaces]
    try:
        for ear in ears:
            ear.open()
        began_s = now()
        to_ask = list(ASKED_AT_S)
        while (passed_s := now() - began_s) < listen_s and any(ear.socket for ear in ears):
            if to_ask and passed_s >= to_ask[0]:
                to_ask.pop(0)
                for ear in ears:
                    ear.ask()
            until_s = min([*to_ask[:1], listen_s])
            by_socket = {ear.socket: ear for ear in ears if ear.socket is not None}
            ready, _, _ = select.select(list(by_socket), [], [], max(0.0, until_s - passed_s))
            for each in ready:
                by_socket[each].take(own)
        return tuple(ear.found() for ear in ears)
    finally:
        for ear in ears:
            ear.close()


class _Ear:
    """One interface."""

    def __init__(self, name: str, address: str, group: str, port: int) -> None:
        self._name, self._address, self._group, self._port = name, address, group, port
        self._v6 = ":" in address
        self._nonce = uuid4().hex
        self.socket: socket.socket | None = None
        self._sent, self._own, self._packets = False, False, 0
        self._others: set[str] = set()
        self._error = self._code = ""

    def open(self) -> None:
        ear = _shared(self._v6)
        try:
            # Bound to the group: what is sent to this machine alone stays with the programs that wait for it. On Linux it would
            # else hear, too, what any socket of this machine has joined, on any interface.
            if self._v6:
                index = socket.if_nametoindex(self._name)
                ear.bind((self._group, self._port, 0, index))
                if sys.platform == "linux":
                    ear.setsockopt(socket.IPPROTO_IPV6, _LINUX_MULTICAST_ALL_V6, 0)
                wanted = socket.inet_pton(socket.AF_INET6, self._group) + struct.pack("@I", index)
                ear.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, wanted)
            else:
                ear.bind((self._group, self._port))
                if sys.platform == "linux":
                    ear.setsockopt(socket.IPPROTO_IP, _LINUX_MULTICAST_ALL, 0)
                wanted = socket.inet_aton(self._group) + socket.inet_aton(self._address)
                ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, wanted)
            ear.setblocking(False)
        except OSError as error:
            ear.close()
            self._failed(error)
        else:
            self.socket = ear

    def ask(self) -> None:
        if self.socket is None:
            return
        with _shared(self._v6) as mouth:
            try:
                # From this port, as otherwise whoever answers does so to this socket alone (RFC 6762 §6.7).
                if self._v6:
                    index = socket.if_nametoindex(self._name)
                    mouth.bind((self._address.partition("%")[0], self._port, 0, index))
                    for option, value in ((socket.IPV6_MULTICAST_IF, index), (socket.IPV6_MULTICAST_HOPS, 255)):
                        mouth.setsockopt(socket.IPPROTO_IPV6, option, value)
                    mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
                    mouth.sendto(question(self._nonce), (self._group, self._port, 0, index))
                else:
                    mouth.bind((self._address, self._port))
                    mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(self._address))
                    mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
                    mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
                    mouth.sendto(question(self._nonce), (self._group, self._port))
                self._sent = True
            except OSError as error:
                self._failed(error)

    def take(self, own: Collection[str]) -> None:
        assert self.socket is not None
        try:
            data, (address, *_) = self.socket.recvfrom(9000)
        except BlockingIOError:
            return
        except OSError as error:
            self._failed(error)
            self.close()
            return
        if self._nonce.encode() in data:
            self._own = True
        elif address.partition("%")[0] not in {each.partition("%")[0] for each in (self._address, *own)}:
            self._packets += 1
            if len(self._others) < HEARD:
                self._others.add(address)

    def _failed(self, error: OSError) -> None:
        self._error, self._code = error.strerror or str(error), errno.errorcode.get(error.errno or 0, "")

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def found(self) -> Multicast:
        return Multicast(
            interface=self._name,
            address=self._address,
            sent=self._sent,
            own=self._own,
            packets=self._packets,
            others=len(self._others),
            error="" if self._sent else self._error,
            code="" if self._sent else self._code,
        )


def question(nonce: str) -> bytes:
    """For other machines' swarm, for all services, and for a name that is nobody's: by it one knows one's own."""
    from zeroconf import DNSOutgoing, DNSQuestion, const  # type: ignore[attr-defined]  # as its own examples do

    packet = DNSOutgoing(const._FLAGS_QR_QUERY)
    for name in (PEER_SERVICE, ALL_SERVICES):
        packet.add_question(DNSQuestion(name, const._TYPE_PTR, const._CLASS_IN))
    packet.add_question(DNSQuestion(f"{nonce}.{PEER_SERVICE}", const._TYPE_SRV, const._CLASS_IN))
    return packet.packets()[0]


def _shared(v6: bool) -> socket.socket:
    """A UDP socket whose port other programs, which look for services too, can have as well."""
    found = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
    if v6:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return found
