"""What `swarm doctor` found, as a page that can be shown to strangers: bounded, and without names of users and machines,
tokens, hardware addresses and public ones. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from swarm.core.diagnosis import SETTINGS, clock_words
from swarm.core.manifest import FORMAT
from swarm.core.sentences import counted, plain
from swarm.core.sightings import SeenPeer, Sightings
from swarm.core.ticks import Tick, wrong

LINES, LINE = 200, 400  # of the page, and characters of one
PEERS = 30
_MARKS = {"ok": "ok", "warning": "WARNING", "failed": "FAILED", "checking": "?"}

_LOGIN = re.compile(r"//[^/@\s]+@")
_HOMES = re.compile(r"/(?:home|Users|var/home)/[^/\s:;,'\"]+")
_OPTION = re.compile(r"\b(user|username|password|pass|credentials|domain|token|secret|key)=[^\s,;]+", re.IGNORECASE)
_HARDWARE = re.compile(r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b")
_V4 = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_V6 = re.compile(r"(?<![\w:])(?=[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:)[0-9A-Fa-f:]{3,39}(?:%\w+)?(?![\w:])")
_LONG = re.compile(r"[A-Za-z0-9_+=-]{20,}")
_VALUE = re.compile(r"(: [\w-]{1,40}) = .*", re.DOTALL)  # of a fault in the settings


class Hide(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine's owner need not show."""

    home: str = ""  # becomes ~
    users: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()  # become machine-1, machine-2, …: the first one is this machine


def page(
    ticks: Sequence[Tick],
    *,
    sightings: Sightings,
    now_s: float,
    packages: Mapping[str, str],
    variables: Iterable[str],
    hide: Hide,
) -> str:
    """`packages`: versions by name; "": not installed. `variables`: names of those set in the environment."""
    lines = list(_lines(ticks, sightings, now_s, packages, variables))
    shown = [plain(scrubbed(line, hide), LINE) for line in lines[:LINES]]
    if len(lines) > LINES:
        shown.append(f"… and {len(lines) - LINES} more lines")
    return "\n".join(line.rstrip() for line in shown) + "\n"


def _lines(
    ticks: Sequence[Tick], sightings: Sightings, now_s: float, packages: Mapping[str, str], variables: Iterable[str]
) -> Iterable[str]:
    failures, warnings = wrong(ticks)
    yield f"swarm doctor: {failures} failed, {counted(warnings, 'warning')}; format {FORMAT}"
    yield "packages: " + ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    yield "set: " + (", ".join(sorted(variables)) or "no SWARM_ variable")
    topic = ""
    for tick in ticks:
        if tick.topic != topic:
            topic = tick.topic
            yield ""
            yield topic
        detail = _VALUE.sub(r"\1 = (hidden)", tick.detail) if topic == SETTINGS else tick.detail
        yield f"  {_MARKS[tick.verdict]:<8} {tick.name}: {detail}"
    others = [peer for peer in sightings.peers if not peer.itself]
    if others:
        yield ""
        yield "peers, as they are seen"
    for peer in others[:PEERS]:
        yield f"  {_peer(peer, now_s)}"
    if len(others) > PEERS:
        yield f"  … and {len(others) - PEERS} more"


def _peer(peer: SeenPeer, now_s: float) -> str:
    advert = peer.advert
    reached = "not tried" if peer.reached_ms is None else f"{peer.reached_ms:.1f} ms"
    said = [
        f"{advert.name}: swarm {advert.version or '?'}",
        f"format {advert.format}",
        advert.state,
        f"by {' and '.join(peer.how)}",
        f"{now_s - peer.heard_s:.0f} s ago",
        f"ours {peer.ours}",
        f"doubled {peer.doubled}",
        f"sees us {peer.sees_us}",
        f"addresses {len(peer.addresses)}",
        f"reached {peer.unreachable or reached}",
    ]
    if peer.clock_off_s is not None:
        said.append(f"clock {clock_words(peer.clock_off_s)}")
    return ", ".join(said)


def scrubbed(text: str, hide: Hide) -> str:
    """Without what identifies a person or a machine, and without what looks like a secret."""
    for secret in hide.secrets:
        if secret:
            text = text.replace(secret, "(hidden)")
    text = _LOGIN.sub("//", text)
    if len(hide.home) > 1:
        text = re.sub(rf"{re.escape(hide.home)}(?=$|[/\s:;,'\"])", "~", text)
    text = _HOMES.sub("~", text)
    numbered: dict[str, str] = {}
    for name in hide.machines:
        if name:
            numbered.setdefault(name.lower(), f"machine-{len(numbered) + 1}")
    for name in sorted(numbered, key=len, reverse=True):
        text = _word(name).sub(numbered[name], text)
    for name in sorted({user for user in hide.users if len(user) > 1}, key=len, reverse=True):
        text = _word(name).sub("USER", text)
    text = _OPTION.sub(r"\1=(hidden)", text)
    text = _HARDWARE.sub("(hardware address)", text)
    text = _V4.sub(_private_only, text)
    text = _V6.sub(_private_only, text)
    return _LONG.sub(_unless_word, text)


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE)


def _private_only(found: re.Match[str]) -> str:
    """An IPv6 address may be made from the hardware's, or be known in the whole world."""
    try:
        address = ipaddress.ip_address(found[0])
    except ValueError:
        return found[0]
    if address.version == 6:
        return found[0] if address.is_loopback or address.is_unspecified else "(IPv6 address)"
    return found[0] if address.is_private else "(public address)"


def _unless_word(found: re.Match[str]) -> str:
    """Long and with digits in it: an id, a token. Words and the names of options have none."""
    return "(hidden)" if any(c.isdigit() for c in found[0]) and any(c.isalpha() for c in found[0]) else found[0]
