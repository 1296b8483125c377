"""How a share is mounted: from its URL to what a person types, or one key runs. Pure.

A URL comes from a manifest or an advert, so anybody may have written it. It is taken apart by a strict grammar and put together
again from what that allows; nothing of it ever reaches a shell, and what people may copy into one is quoted.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shlex
import unicodedata
from collections.abc import Iterable
from typing import Literal
from urllib.parse import quote, unquote_to_bytes, urlsplit

import msgspec

from swarm.core.buckets import canonical, is_objects, place_of
from swarm.core.errors import UsageError
from swarm.core.sentences import plain

Scheme = Literal["smb", "nfs", "afp"]
MAX_URL_BYTES = 240  # as much as an advert holds
MAX_TOLD = 200  # characters that a manifest holds
MAX_DEPTH = 8  # components of its path

_URL = re.compile(
    r"(?P<scheme>[a-z]{3,4})://(?P<host>\[[0-9a-f:.]+\]|[^/:\[\]]+)(?::(?P<port>\d{1,5}))?(?P<path>/.*)?", re.DOTALL
)
_HOST = re.compile(r"(?!.*[.-]\.)[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?")  # no leading '-': it is no option to anybody
_COMPONENT = re.compile(r"\w(?:[\w .$()+-]{0,78}[\w$()+-])?")  # \w: letters and digits of any script, and '_'
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that a machine serves to others: `smb://nas/swarm`."""

    scheme: Scheme
    host: str  # lower case; an IPv6 address without brackets
    path: tuple[str, ...]  # of SMB and AFP: the share's name, then folders in it; of NFS: the exported path
    port: int | None = None

    @property
    def url(self) -> str:
        """Of characters that no shell takes for anything, but for the brackets of an IPv6 address."""
        return f"{self.scheme}://{self._authority}/{'/'.join(quote(part, safe='') for part in self.path)}"

    @property
    def volume(self) -> Share:
        """What is mounted as a whole: SMB and AFP know only shares."""
        return self if self.scheme == "nfs" else msgspec.structs.replace(self, path=self.path[:1])

    @property
    def below(self) -> str:
        """Where in that the shared folder is, as 'a/b'; '' at its top."""
        return "/".join(self.path[len(self.volume.path) :])

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def server(self) -> str:
        """As mount(8) writes it."""
        return f"[{self.host}]" if ":" in self.host and self.scheme == "nfs" else self.host


def parse_share(text: str) -> Share:
    """Raises UsageError, which says what is wrong."""
    shown = plain(text, 80)
    if len(text.encode(errors="replace")) > MAX_URL_BYTES:
        raise UsageError(f"{shown}: a share's URL has at most {MAX_URL_BYTES} bytes")
    if text.startswith(("\\\\", "//")):
        raise UsageError(
            f"{shown} is no URL of a share: write smb://{plain(text.strip(chr(92) + '/').replace(chr(92), '/'), 80)}"
        )
    found = _URL.fullmatch(text if "/" not in text[6:] else _lower_authority(text))
    scheme = {"smb": "smb", "cifs": "smb", "nfs": "nfs", "afp": "afp"}.get(found["scheme"]) if found else None
    if found is None or scheme is None:
        raise UsageError(f"{shown} is no URL of a share, as smb://nas/swarm, nfs://nas/export/swarm or afp://nas/swarm")
    if "@" in found["host"]:
        raise UsageError(f"{shown}: leave out the user: every machine has its own, and everybody on the network reads this")
    host, port = _host(found["host"]), found["port"]
    if host is None:
        raise UsageError(f"{shown}: {plain(found['host'], 80)!r} is no name and no address of a machine")
    if port is not None and not 1 <= int(port) <= 65535:
        raise UsageError(f"{shown}: {port} is no port")
    path = _path(found["path"] or "")
    if path is None:
        raise UsageError(
            f"{shown}: a share's path is 1 to {MAX_DEPTH} names of letters, digits, blanks and any of . _ - + $ ( ), "
            "none of which begins with a dot or a dash"
        )
    return Share(scheme=scheme, host=host, path=path, port=None if port is None else int(port))  # type: ignore[arg-type]


def told_place(text: str) -> str:
    """A share's URL, or that of a mailbox in an object store, as it is told to other machines. Raises UsageError."""
    if not is_objects(text):
        return parse_share(text).url
    url = canonical(text)
    if len(url) > MAX_TOLD:
        raise UsageError(f"{plain(text, 80)}: what is told to other machines has at most {MAX_TOLD} characters")
    return url


def told_of(location: str) -> str:
    """What other machines are told of a mailbox at `location` unless somebody says otherwise: the URL of an object store, if it
    means the same to them; '' for a folder, which is mounted elsewhere on each."""
    if not is_objects(location) or len(location) > MAX_TOLD:
        return ""
    host = urlsplit(place_of(location).endpoint).hostname or ""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return ""
    return "" if host == "localhost" else location


def objects_in_words(told: str, run: str) -> tuple[str, ...]:
    """What to do so that a run is joined whose mailbox is in an object store; nothing if that is not what is told."""
    try:
        if not is_objects(told):
            return ()
        url = canonical(told)
    except UsageError:
        return ()
    return (
        "its mailbox is in an object store; with credentials for that in the environment, and only if you know who runs it:",
        f"  {shlex.join(('swarm', 'join', run, '--mailbox', url))}",
    )


def share_of(text: str) -> Share | None:
    """What a manifest or an advert says; None if it says nothing, or nothing that can be used."""
    try:
        return parse_share(text) if text else None
    except UsageError:
        return None


def _lower_authority(text: str) -> str:
    """Scheme and host are the same in capitals; a path is not."""
    end = text.index("/", 6)
    return text[:end].lower() + text[end:]


def _host(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text[1:-1] if text.startswith("[") else text))
    except ValueError:
        return text if _HOST.fullmatch(text) and not re.fullmatch(r"[\d.]+", text) else None


def _path(text: str) -> tuple[str, ...] | None:
    parts = text.removesuffix("/").split("/")[1:]
    if not 1 <= len(parts) <= MAX_DEPTH or re.search(r"%(?![0-9A-Fa-f]{2})", text):
        return None
    try:
        names = tuple(unicodedata.normalize("NFC", unquote_to_bytes(part).decode()) for part in parts)
    except UnicodeDecodeError:
        return None
    return names if all(_COMPONENT.fullmatch(name) for name in names) else None


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a share is mounted on one system."""

    words: tuple[str, ...]  # for people: what to do, a line each; commands are indented by two blanks
    argv: tuple[str, ...] | None = None  # what one key runs: it needs no root and no shell
    asks: bool = False  # that command may ask for a password in the terminal
    appears: str = ""  # where the share is then found, for people


class Desktop(msgspec.Struct, frozen=True, kw_only=True):
    """What of a system decides how shares are mounted."""

    system: str  # sys.platform
    gio: bool = False  # GNOME's `gio mount` is there, and a session that it can mount into
    user: str = ""
    uid: int = 0
    taken: tuple[str, ...] = ()  # mount points that are in use


def way(share: Share, desktop: Desktop) -> Way:
    whole = share.volume
    argv: tuple[str, ...]
    if desktop.system == "darwin":
        argv = ("open", whole.url)
        return Way(
            words=("in a terminal, or with Finder's Go ▸ Connect to Server:", f"  {shlex.join(argv)}"),
            argv=argv,
            appears=f"/Volumes/{whole.path[-1]}",
        )
    if desktop.gio and share.scheme != "nfs":  # GNOME's own NFS client is not the kernel's: few servers let it in
        argv = ("gio", "mount", whole.url)
        appears = f"/run/user/{desktop.uid}/gvfs/{_gvfs(whole)}"
        return Way(
            words=("in a terminal, or in the file manager:", f"  {shlex.join(argv)}"), argv=argv, asks=True, appears=appears
        )
    if share.scheme == "afp":
        return Way(words=("Linux has no AFP of its own: let the machine that serves it serve it by SMB, too, and mount that",))
    point = _free_point(whole.path[-1], desktop.taken)
    if share.scheme == "nfs":
        port = () if share.port is None else ("-o", f"port={share.port}")
        mount = ("sudo", "mount", "-t", "nfs", *port, f"{share.server}:/{'/'.join(share.path)}", point)
        package = "(it needs the package nfs-common, or nfs-utils)"
    else:
        options = [f"username={desktop.user if _USER.fullmatch(desktop.user) else 'YOU'}", f"uid={desktop.uid}"]
        options += [] if share.port is None else [f"port={share.port}"]
        mount = ("sudo", "mount", "-t", "cifs", f"//{share.server}/{whole.path[0]}", point, "-o", ",".join(options))
        package = "(it needs the package cifs-utils; the username is the one on the machine that serves the share)"
    return Way(
        words=("in a terminal:", f"  {shlex.join(('sudo', 'mkdir', '-p', point))}", f"  {shlex.join(mount)}", package),
        appears=point,
    )


def ways_in_words(mailbox: str, share: Share | None, how: Way | None) -> tuple[str, ...]:
    """What to do so that the mailbox with this id is found here."""
    if share is None or how is None:
        return (
            f"mount the share that holds mailbox {mailbox[:8]}…; where it is, whoever started the run knows",
            "(`swarm start --share URL` tells it to everybody); elsewhere than usual, --mailbox names its folder",
        )
    inside = f"; the mailbox is in its folder {share.below}" if share.below else ""
    return (f"mount {share.volume.url}{inside}", *how.words)


def _gvfs(share: Share) -> str:
    """The folder's name in GNOME's FUSE mount."""
    port = "" if share.port is None else f",port={share.port}"
    if share.scheme == "afp":
        return f"afp-volume:host={share.host}{port},volume={share.path[0]}"
    return f"smb-share:server={share.host}{port},share={share.path[0].lower()}"


def _free_point(name: str, taken: Iterable[str]) -> str:
    """A folder below /mnt that nothing is mounted at."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "swarm"
    used = set(taken)
    points = (f"/mnt/{slug}" + (f"-{n}" if n > 1 else "") for n in range(1, len(used) + 2))
    return next(point for point in points if point not in used)
