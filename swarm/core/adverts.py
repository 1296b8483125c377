"""What a machine tells the network of itself and of the runs that it takes part in. Hints: anybody can send them.

An advert stands in the TXT record of an mDNS service (RFC 6763 §6): a few short `key=value` strings. What does not fit is
left out, never cut in its middle; what comes from elsewhere is bounded, and shown as plain text.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from swarm.core.checks import MAX_COUNT, MAX_ROUND
from swarm.core.errors import AdvertError
from swarm.core.ids import is_run_id
from swarm.core.lines import UNREADABLE
from swarm.core.manifest import FORMAT
from swarm.core.plaintext import plain
from swarm.core.trust import TAG_DIGITS, SwarmKey

PEER_SERVICE = "_swarm-peer._tcp.local."
RUN_SERVICE = "_swarm-run._tcp.local."
MAX_STRING_BYTES = 255  # of a TXT record's string, its key included
MAX_TXT_BYTES = 1200  # of all of them: one packet, with what else stands in it (RFC 6763 §6.2)
MAX_HELLO_BYTES = 64 << 10  # of what a machine answers on its port
NAME_CHARACTERS = 60
MAILBOXES = 4  # that a machine tells of
SEEN = 24  # peers that a machine tells it sees
SHARE_BYTES = 240

PeerState = Literal["watching", "idle", "training", "paused", "waiting"]
"""Only looks on; would train; trains; holds still for its owner, or while its run is paused; waits for a run."""


class PeerAdvert(msgspec.Struct, frozen=True, kw_only=True):
    """A machine."""

    peer: str  # stable id, 32 hex digits; reveals nothing about the machine
    name: str
    boot: str  # 8 hex digits of its boot: two machines with one id differ in it
    version: str = ""  # of swarm
    format: int = FORMAT
    accelerators: tuple[str, ...] = ()  # for people: 'mps Apple M2 Max', 'cuda RTX 3090'; none: CPU alone
    memory_bytes: int = 0  # that training can use: of the accelerator, if that has its own
    state: PeerState = "watching"
    mailboxes: tuple[str, ...] = ()  # ids of those it has open
    address: str = ""  # on which others reached it last; "": nobody has yet
    port: int = 0  # on which it answers with a Hello
    sees: tuple[str, ...] = ()  # first 8 digits of the ids of the peers it hears
    tag: str = ""  # of the swarm's key; "": open

    def told(self) -> tuple[str, ...]:
        """What the tag is over."""
        return ("peer", self.peer, self.boot)


class RunAdvert(msgspec.Struct, frozen=True, kw_only=True):
    """A run that a machine takes part in, or offers."""

    run: str
    peer: str  # who tells
    name: str
    method: str  # diloco, fedavg, mlx-lm
    task: str
    mailbox: str  # id
    phase: str = ""  # waiting, running, paused, idle, done, stopped
    round: int = 0  # committed so far; of a data-parallel job: steps
    rounds: int | None = None  # that it has; None: until it is stopped
    learners: int = 0  # live
    wanted: int = 0  # more that would help: its quorum is not reached; 0: anybody may come, nobody is waited for
    memory_bytes: int = 0  # that a learner needs, about; 0: not known
    share: str = ""  # URL of the share that holds the mailbox: smb://nas/swarm
    signed: bool = False
    format: int = FORMAT
    tag: str = ""

    @property
    def over(self) -> bool:
        """Whether nobody can join it any more."""
        return self.phase in ("done", "stopped")

    def told(self) -> tuple[str, ...]:
        """What the tag is over: who mounts the share may show it a password."""
        return ("run", self.run, self.mailbox, self.peer, self.share if _is_share(self.share) else "")


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """All that a machine tells, as it answers whoever connects to its port: where multicast does not get through."""

    peer: PeerAdvert
    runs: tuple[RunAdvert, ...] = ()
    clock_s: float = 0.0  # Unix time there, for people


Advert = PeerAdvert | RunAdvert
T = TypeVar("T", PeerAdvert, RunAdvert)


def tagged(advert: T, key: SwarmKey | None) -> T:
    """With the tag that a machine with this key gives it."""
    return advert if key is None else msgspec.structs.replace(advert, tag=key.tag(*advert.told()))


def ours(advert: Advert, key: SwarmKey | None) -> bool:
    """Whether it is of the swarm whose key this machine has: with none, an open one."""
    return not advert.tag if key is None else key.tagged(advert.tag, *advert.told())


# ---- in a TXT record

_PEER = {
    "name": "n",
    "boot": "b",
    "version": "ver",
    "format": "fmt",
    "accelerators": "acc",
    "memory_bytes": "mem",
    "state": "st",
    "mailboxes": "mb",
    "address": "ad",
    "sees": "see",
    "tag": "tag",
    "peer": "id",
}
_RUN = {
    "run": "id",
    "peer": "p",
    "name": "n",
    "method": "m",
    "task": "t",
    "mailbox": "mb",
    "phase": "ph",
    "round": "r",
    "rounds": "of",
    "learners": "l",
    "wanted": "w",
    "memory_bytes": "mem",
    "share": "url",
    "signed": "sig",
    "format": "fmt",
    "tag": "tag",
}


def peer_txt(advert: PeerAdvert) -> dict[str, str]:
    return _txt(advert, _PEER)


def run_txt(advert: RunAdvert) -> dict[str, str]:
    return _txt(advert, _RUN)


def peer_of(txt: Mapping[str, str | None], *, port: int = 0) -> PeerAdvert:
    """What a peer's TXT record says. Raises AdvertError for one that is of no use."""
    return checked_peer(_read(txt, _PEER, PeerAdvert, port=port))


def run_of(txt: Mapping[str, str | None]) -> RunAdvert:
    """Raises AdvertError."""
    return checked_run(_read(txt, _RUN, RunAdvert))


def hello_of(data: bytes) -> Hello:
    """Raises AdvertError."""
    if len(data) > MAX_HELLO_BYTES:
        raise AdvertError(f"an answer of more than {MAX_HELLO_BYTES} bytes")
    try:
        found = msgspec.json.decode(data, type=Hello)
    except UNREADABLE as error:
        raise AdvertError(f"an answer that is none: {plain(str(error), 200)}") from None
    if not -1e12 < found.clock_s < 1e12:
        raise AdvertError("a clock that is none")
    runs = [checked_run(run) for run in found.runs[:100]]
    return Hello(peer=checked_peer(found.peer), runs=tuple(runs), clock_s=found.clock_s)


def checked_peer(advert: PeerAdvert) -> PeerAdvert:
    """With all texts plain and bounded. Raises AdvertError."""
    _check(advert, hex_fields={"peer": 32, "boot": 8}, numbers={"memory_bytes": MAX_COUNT, "format": MAX_COUNT, "port": 65535})
    if advert.address and not _is_address(advert.address):
        raise AdvertError(f"no address: {plain(advert.address, 40)}")
    return msgspec.structs.replace(
        advert,
        name=plain(advert.name, NAME_CHARACTERS) or "?",
        version=plain(advert.version, 20),
        accelerators=tuple(plain(each, NAME_CHARACTERS) for each in advert.accelerators[:8]),
        mailboxes=tuple(each for each in advert.mailboxes[:MAILBOXES] if _is_hex(each, 32)),
        sees=tuple(each for each in advert.sees[:SEEN] if _is_hex(each, 8)),
        tag=plain(advert.tag, TAG_DIGITS),
    )


def checked_run(advert: RunAdvert) -> RunAdvert:
    """With all texts plain and bounded. Raises AdvertError."""
    numbers = {"round": MAX_ROUND, "learners": 10**6, "wanted": 10**6, "memory_bytes": MAX_COUNT, "format": MAX_COUNT}
    _check(advert, hex_fields={"peer": 32, "mailbox": 32}, numbers=numbers)
    if not is_run_id(advert.run):
        raise AdvertError(f"no run id: {plain(advert.run, 40)}")
    if advert.rounds is not None and not 1 <= advert.rounds <= MAX_ROUND:
        raise AdvertError("a number of rounds that no run has")
    share = advert.share if _is_share(advert.share) else ""
    return msgspec.structs.replace(
        advert,
        name=plain(advert.name, NAME_CHARACTERS) or "?",
        method=plain(advert.method, 20),
        task=plain(advert.task, NAME_CHARACTERS),
        phase=plain(advert.phase, 20),
        share=share,
        tag=plain(advert.tag, TAG_DIGITS),
    )


def _check(advert: Advert, *, hex_fields: Mapping[str, int], numbers: Mapping[str, int]) -> None:
    for field, digits in hex_fields.items():
        if not _is_hex(getattr(advert, field), digits):
            raise AdvertError(f"{field} must be {digits} hex digits, got {plain(getattr(advert, field), 40)}")
    for field, most in numbers.items():
        if not 0 <= getattr(advert, field) <= most:
            raise AdvertError(f"{field} is out of its range")


def _is_share(text: str) -> bool:
    """Whether it is taken in elsewhere: else it counts as not told."""
    return text.isprintable() and len(text.encode(errors="replace")) <= SHARE_BYTES


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and set(text) <= set("0123456789abcdef")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return len(text) <= 60 and text.isascii() and text.isprintable()  # what follows a '%' may be anything


def _txt(advert: Advert, names: Mapping[str, str]) -> dict[str, str]:
    """Short keys; what is empty or as by default is left out, and so is what has no room."""
    found: dict[str, str] = {"v": "1"}
    room = MAX_TXT_BYTES - len("v=1") - 1
    defaults = {field.name: field.default for field in msgspec.structs.fields(advert)}
    needed = [name for name in names if defaults[name] is msgspec.NODEFAULT]
    for field in [*needed, *(name for name in names if name not in needed)]:
        value = getattr(advert, field)
        if field not in needed and value == defaults[field]:
            continue
        text = _fitting(names[field], value)
        size = len(f"{names[field]}={text}".encode()) + 1
        if text and size <= min(room, MAX_STRING_BYTES + 1):
            found[names[field]] = text
            room -= size
    return found


def _fitting(key: str, value: object) -> str:
    """Of a list, as many items as fit into one string; of a name, as many characters."""
    limit = MAX_STRING_BYTES - len(key) - 1
    if isinstance(value, tuple):
        items = [str(item).replace("|", "/") for item in value]
        while len("|".join(items).encode()) > limit:
            items.pop()
        return "|".join(items)
    if isinstance(value, bool):
        return "1" if value else "0"
    text = str(value)
    if key == "n":
        text = text[:NAME_CHARACTERS]
    return text if len(text.encode()) <= limit else ""


def _read(txt: Mapping[str, str | None], names: Mapping[str, str], type: type[T], **given: object) -> T:
    values: dict[str, object] = dict(given)
    kinds = {field.name: field.type for field in msgspec.structs.fields(type)}
    for field, key in names.items():
        text = txt.get(key)
        if text is None:
            continue
        if len(text) > MAX_STRING_BYTES:
            raise AdvertError(f"{key}: {len(text)} characters")
        if kinds[field] is bool:
            values[field] = text == "1"
        elif kinds[field] == tuple[str, ...]:
            values[field] = tuple(text.split("|"))
        elif kinds[field] in (int, int | None):
            if not (text.isascii() and text.isdecimal() and len(text) <= 18):
                raise AdvertError(f"{key}: no number: {plain(text, 40)}")
            values[field] = int(text)
        else:
            values[field] = text
    try:
        return msgspec.convert(values, type)
    except UNREADABLE as error:
        raise AdvertError(plain(str(error), 200)) from None
