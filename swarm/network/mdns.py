"""Multicast DNS, by zeroconf: what this process says on the chosen links, and what it hears there. One event loop.

A service's records are said anew every few seconds, and whoever is not heard for a while is gone: an answer to a question would
come too late for a machine that just lost its power. Only TXT records count; they come with the rest of their service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swarm.core.adverts import PEER_SERVICE, RUN_SERVICE
from swarm.network.links import Link

if TYPE_CHECKING:
    from zeroconf import ServiceInfo
    from zeroconf.asyncio import AsyncZeroconf

TYPES = (PEER_SERVICE, RUN_SERVICE)
ASKED_AT_S = (0.0, 1.0, 3.0)  # after the start: who is there?
TTL_S = 75  # of records: for whoever else listens; swarm goes by how long ago it heard a service
GROUP_V4, GROUP_V6, PORT = "224.0.0.251", "ff02::fb", 5353  # RFC 6762 §3
QUERY, PTR, INTERNET = 0, 12, 1  # of DNS: flags, type and class of a question (RFC 1035)
NAMES_KEPT = 20_000  # that were heard: no network at home has as many
HEARD_A_SECOND = 200  # records that are looked at, however many come


@dataclass(frozen=True)
class Said:
    """One service of this process."""

    type: str  # PEER_SERVICE or RUN_SERVICE
    txt: tuple[tuple[str, str], ...]
    port: int


@dataclass(frozen=True)
class HeardService:
    type: str
    name: str  # of the instance, in full
    txt: Mapping[str, str | None]
    port: int
    addresses: tuple[str, ...]


class Radio:
    """Opened once; for other links another one is opened. `heard`, `departed` (with an instance's name) and `dropped` (more
    came than is looked at) are called on the loop."""

    def __init__(
        self,
        links: Iterable[Link],
        *,
        host: str,
        heard: Callable[[HeardService], object],
        departed: Callable[[str], object],
        dropped: Callable[[], object] = lambda: None,
    ) -> None:
        """`host`: a name of ours, for the records' host, unlike any other process's."""
        self._links = tuple(links)
        self._host = f"{host}.local."
        self._heard, self._departed, self._dropped = heard, departed, dropped
        self._zeroconf: AsyncZeroconf | None = None
        self._said: dict[str, tuple[Said, ServiceInfo]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._budget = (0.0, 0)

    async def open(self) -> None:
        """Raises OSError if there is no multicast to be had here."""
        from zeroconf import IPVersion, RecordUpdate, RecordUpdateListener, Zeroconf
        from zeroconf.asyncio import AsyncZeroconf

        # What it would tell of a socket that fails would stand in the middle of somebody's screen; `probe` tells it better.
        logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
        where: list[str | int | tuple[tuple[str, int, int], int]] = [address for link in self._links for address in link.v4]
        where += [link.index for link in self._links if link.v6]
        v4, v6 = (any(link.v4 for link in self._links), any(link.v6 for link in self._links))
        version = IPVersion.All if v4 and v6 else IPVersion.V6Only if v6 else IPVersion.V4Only
        try:
            self._zeroconf = opened = AsyncZeroconf(interfaces=where, ip_version=version)
            await opened.zeroconf.async_wait_for_start()
        except RuntimeError as error:  # an address is gone by now
            raise OSError(str(error)) from error
        radio = self

        class Listener(RecordUpdateListener):
            def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
                radio._records([update.new for update in records], now)

            def async_update_records_complete(self) -> None:
                pass

        opened.zeroconf.async_add_listener(Listener(), None)
        self._asking = asyncio.create_task(self._ask())

    async def close(self) -> None:
        """Say goodbye, and be silent."""
        if self._asking is not None:
            self._asking.cancel()
        opened, self._zeroconf, self._said = self._zeroconf, None, {}
        if opened is not None:
            with contextlib.suppress(OSError):
                await opened.async_close()

    async def say(self, services: Mapping[str, Said]) -> None:
        """All services of this process, by instance name: new ones are announced, changed ones told, those that are no longer
        among them say goodbye. At most once a second."""
        from zeroconf import ServiceInfo

        opened = self._zeroconf
        assert opened is not None
        for gone in [name for name in self._said if name not in services]:
            await opened.async_unregister_service(self._said.pop(gone)[1])
        for name, said in services.items():
            before = self._said.get(name)
            if before is not None and before[0] == said:
                continue
            info = ServiceInfo(
                said.type,
                f"{name}.{said.type}",
                port=said.port,
                properties=dict(said.txt),
                server=self._host,
                host_ttl=TTL_S,
                other_ttl=TTL_S,
                parsed_addresses=[address for link in self._links for address in (*link.v4, *link.v6)],
            )
            self._said[name] = said, info
            if before is None:
                # Nobody else has such a name: no need to ask for it first, for a second.
                await opened.async_register_service(info, cooperating_responders=True)
            else:
                await opened.async_update_service(info)

    def say_again(self) -> None:
        """The beat: all that is said, once more."""
        opened = self._zeroconf
        assert opened is not None
        for _, info in self._said.values():
            opened.zeroconf.async_send(opened.zeroconf.generate_service_broadcast(info, None))

    @property
    def overfull(self) -> bool:
        """Whether somebody has filled the memory of what was heard: another radio begins without it."""
        return self._zeroconf is not None and len(self._zeroconf.zeroconf.cache.cache) > NAMES_KEPT

    def is_own(self, name: str) -> bool:
        """Whether an instance, by its full name, is of this process."""
        return any(info.name.lower() == name.lower() for _, info in self._said.values())

    async def _ask(self) -> None:
        from zeroconf import DNSOutgoing, DNSQuestion  # type: ignore[attr-defined]  # it has them, and does not list them

        before_s = 0.0
        for at_s in ASKED_AT_S:
            await asyncio.sleep(at_s - before_s)
            before_s = at_s
            if self._zeroconf is None:
                return
            question = DNSOutgoing(QUERY)
            for each in TYPES:
                question.add_question(DNSQuestion(each, PTR, INTERNET))
            self._zeroconf.zeroconf.async_send(question)

    def _records(self, records: list[Any], now: float) -> None:
        """`now`: in milliseconds, as zeroconf has it."""
        from zeroconf import DNSText  # type: ignore[attr-defined]

        found = []
        for record in records:
            if not isinstance(record, DNSText):
                continue
            type = next((each for each in TYPES if record.name.lower().endswith(f".{each}")), None)
            if type is None:
                continue
            if record.ttl == 0:
                self._departed(record.name)
            elif not record.is_expired(now):
                found.append((type, record.name))
        if found:  # once the rest of the packet is known, too
            asyncio.get_running_loop().call_soon(self._services, found, now)

    def _services(self, found: list[tuple[str, str]], now: float) -> None:
        from zeroconf import ServiceInfo

        for type, name in found:
            since, count = self._budget
            self._budget = (since, count + 1) if now - since < 1000 else (now, 1)
            if self._budget[1] > HEARD_A_SECOND:
                self._dropped()
                continue
            if self._zeroconf is None:
                return
            info = ServiceInfo(type, name)
            info.load_from_cache(self._zeroconf.zeroconf)
            addresses = tuple(info.parsed_scoped_addresses())[:16]
            self._heard(HeardService(type, name, info.decoded_properties, info.port or 0, addresses))


def unsent(link: Link) -> OSError | None:
    """Why no multicast can be sent on a link: an empty question, which nobody answers, goes out on it."""
    failed: OSError | None = None
    for family in ((socket.AF_INET,) if link.v4 else ()) + ((socket.AF_INET6,) if link.v6 else ()):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as tried:
                tried.setblocking(False)
                if family == socket.AF_INET:
                    tried.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
                    tried.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(link.v4[0]))
                    tried.sendto(bytes(12), (GROUP_V4, PORT))
                else:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, link.index)
                    tried.sendto(bytes(12), (GROUP_V6, PORT, 0, link.index))
            return None  # one way is enough
        except OSError as error:
            failed = failed or error
    return failed
