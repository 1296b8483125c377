"""What keeps a machine from seeing others, in words, with what to do about it."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable

from swarm.core.sentences import plain
from swarm.network.hello import LOCAL_NETWORK
from swarm.network.links import Link, Links
from swarm.network.mdns import unsent

OTHER_WAYS = "other machines are seen through a mailbox, or by --peer HOST"


def no_links(links: Links, found: Iterable[Link]) -> str:
    """After a look at them; "" if there is one, and none that was named is missing."""
    if links.missing:
        named = ", ".join(plain(name, 40) for name in links.missing)
        return f"no interface {named} is up here: there are {', '.join(links.up) or 'none'}"
    if not any(True for _ in found):
        return (
            "no private network: is this machine connected? --interface NAME, or `interfaces` in the settings, takes any other"
        )
    return ""


def no_radio(error: OSError) -> str:
    return f"no multicast here: {why_unsent(error)}: {OTHER_WAYS}"


def no_multicast(links: Iterable[Link]) -> str:
    """What the links say of themselves, and what comes of an attempt; "" if one of them carries it."""
    bad = []
    for link in links:
        failed = unsent(link)
        if failed is None and link.multicast:
            return ""
        bad.append(f"{link.name} {'carries no multicast' if failed is None else f'sends no multicast ({why_unsent(failed)})'}")
    return f"{'; '.join(bad)}: {OTHER_WAYS}" if bad else ""


def deaf() -> str:
    return "this machine does not hear what it sends by multicast: does a firewall here keep UDP port 5353 closed?"


def why_unsent(error: OSError, *, platform: str = sys.platform) -> str:
    if platform == "darwin" and error.errno in (errno.EHOSTUNREACH, errno.EPERM, errno.EACCES):
        return LOCAL_NETWORK
    if error.errno == errno.EADDRINUSE:
        return "another program holds port 5353 for itself"
    return error.strerror or plain(str(error), 200)
