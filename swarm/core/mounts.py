"""What the way in which a folder is mounted means for a mailbox in it. Pure: what the system tells of a mount in, ticks out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from swarm.core.ticks import Tick, failed, ok, warning

TOPIC = "share"
REFUSED = "use a folder that the machines mount by SMB or NFS: copies that are synchronised later let two machines win"
LATE_S = 5  # caches that keep a listing for longer hold up every round

_NFS = ("nfs", "nfs4")
_SMB = ("cifs", "smb3", "smbfs")
_NEGATIVE = "negnamecache"  # macOS's NFS: names that are missing are remembered (mount_nfs(8)); on, unless it is told not to
_PASSING = {
    "tmpfs": "a memory disk: it is empty after the next start",
    "ramfs": "a memory disk: it is empty after the next start",
    "overlay": "a container's own layer: it goes with the container, and no other machine sees it",
}
_PLACES_OF_SHARES = ("/mnt/", "/media/", "/Volumes/", "/run/media/", "/net/")


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """The file system that a folder is in."""

    point: str
    device: str  # '//nas/swarm', 'nas:/export', '/dev/sda1'
    kind: str  # 'cifs', 'nfs4', 'ext4'
    options: str = ""  # as the system tells them, comma-separated: 'rw,hard,vers=4.2'


def innermost(path: str, mounts: Iterable[Mount]) -> Mount:
    """Of all mounts, the one that holds `path`, which is absolute and without links. Of several at one point the last one,
    which covers the others."""
    found = Mount(point="/", device="", kind="unknown")
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and len(mount.point) >= len(found.point):
            found = mount
    return found


def mount_ticks(path: str, mount: Mount) -> tuple[Tick, ...]:
    """What is to be said of the mailbox's folder `path` (absolute, without links) for being in this mount. The first tick is on
    the file system; one that failed means that a mailbox must not be there."""
    options = _parsed(mount.options)
    if "rclone" in mount.kind or "rclone" in mount.device:
        return (failed("file system", f"{mount.point} is an rclone mount", REFUSED, topic=TOPIC),)
    if "ro" in options:
        remedy = "mount it again with the right to write; a disk that was found damaged is mounted so, too"
        return (failed("file system", f"{where(mount)} is mounted read-only", remedy, topic=TOPIC),)
    return _file_system(path, mount), *_options(mount, options)


def where(mount: Mount) -> str:
    """In words; without the user's name, which the device of an SMB share may begin with."""
    return f"{mount.kind} at {mount.point}"


def with_parameters(mount: Mount, nfsstat: str) -> Mount:
    """`mount`, of NFS on macOS, whose table of mounts tells no options of NFS, with what `nfsstat -m` prints of it: the
    parameters that count now come last."""
    lines = [line.partition("NFS parameters:") for line in nfsstat.splitlines()]
    told = [after.strip() for _, found, after in lines if found]
    return msgspec.structs.replace(mount, options=f"{mount.options},{told[-1]}") if told else mount


def with_smb_settings(mount: Mount, settings: Iterable[str]) -> Mount:
    """`mount`, of SMB on macOS, whose table of mounts tells no options of SMB, with those of nsmb.conf(5) that count for it.
    `settings`: what such files say, the system's before the user's, which wins over it; a server's section over [default]."""
    server = mount.device.rpartition("@")[2].strip("/").partition("/")[0].lower()
    found = {"dir_cache_max": "60", "dir_cache_min": "30", "soft": "no"}  # as nsmb.conf(5) has them
    for text in settings:
        sections: dict[str, dict[str, str]] = {}
        section: dict[str, str] = {}
        for line in text.splitlines():
            name, equals, value = line.partition("#")[0].strip().partition("=")
            if name.startswith("["):
                section = sections.setdefault(name.strip("[]").strip().lower(), {})
            elif equals:
                section[name.strip()] = value.strip()
        for where in ("default", server):
            found |= {name: value for name, value in sections.get(where, {}).items() if name in found}
    told = [f"{name}={value}" for name, value in found.items()]
    return msgspec.structs.replace(mount, options=",".join([mount.options, *told]))


def is_share(kind: str) -> bool:
    """Whether another machine serves file systems of this type."""
    return kind in (*_NFS, *_SMB, "afpfs", "9p", "virtiofs", "webdav", "ceph", "glusterfs") or "sshfs" in kind


def _file_system(path: str, mount: Mount) -> Tick:
    if mount.kind in _PASSING:
        remedy = "for more than a trial, put the mailbox on a disk, or on a share that the other machines mount"
        return warning("file system", f"{where(mount)}, {_PASSING[mount.kind]}", remedy, topic=TOPIC)
    if mount.point == "/" and path.startswith(_PLACES_OF_SHARES):
        words = f"{path} is a plain folder on this machine's own disk, where shares are usually mounted"
        return warning(
            "file system", words, "is the share mounted? Other machines do not see what is written here", topic=TOPIC
        )
    if is_share(mount.kind):
        return ok("file system", where(mount), topic=TOPIC)
    return ok("file system", f"{where(mount)}, a disk of this machine: others see it if it is served to them", topic=TOPIC)


def _options(mount: Mount, options: Mapping[str, str]) -> list[Tick]:
    """At most one tick, with all advice: what was measured on such mounts, and what the system does not tell."""
    advice: list[tuple[str, str]] = []  # what is so, what to mount with instead
    by_macos = _NEGATIVE in options or f"no{_NEGATIVE}" in options
    if mount.kind == "smbfs" and "dir_cache_max" in options:
        return _smb_of_macos(options)
    if by_macos:
        if "soft" in options:
            advice.append(("soft: calls fail with an error when the server is away for a while", "hard"))
        if _NEGATIVE in options:
            advice.append((f"{_NEGATIVE}: a name that was missing a moment ago stays so for a while", f"no{_NEGATIVE}"))
    elif mount.kind in _NFS and ("hard" in options or "soft" in options or "softerr" in options):  # Linux tells one of them
        if "hard" not in options:
            advice.append(("soft: calls fail with an error when the server is away for a while", "hard"))
        if options.get("lookupcache") not in ("pos", "positive", "none"):
            advice.append(
                ("lookupcache=all: a name that was missing a moment ago stays so for up to 30 s", "lookupcache=positive")
            )
    elif mount.kind in ("cifs", "smb3"):  # of Linux; what macOS mounts tells no options
        if options.get("cache") == "loose":
            advice.append(("cache=loose: what other machines write may never be seen", "cache=strict"))
        if options.get("closetimeo", "1") != "0":
            words = "closetimeo is not 0: files stay open on the server after they were read, and cannot be deleted meanwhile"
            advice.append((words, "closetimeo=0"))
    elif "sshfs" in mount.kind:
        advice.append(("sshfs: what other machines write is seen up to 21 s late", "dir_cache=no"))
    if not by_macos and (kept_s := _longest_cache_s(options)) > LATE_S:  # there it lists anew, however long it keeps them
        advice.append((f"attributes are cached for {kept_s} s: rounds are seen late", f"actimeo={LATE_S}"))
    if not advice:
        told = _told(options) if is_share(mount.kind) else ""
        return [ok("mount options", told, topic=TOPIC)] if told else []
    place = "on a Mac also in /etc/nfs.conf, as nfs.client.mount.options" if by_macos else "on Linux, also in /etc/fstab"
    remedy = f"mount it with -o {','.join(wanted for _, wanted in advice)} ({place})"
    return [warning("mount options", "; ".join(words for words, _ in advice), remedy, topic=TOPIC)]


def _smb_of_macos(options: Mapping[str, str]) -> list[Tick]:
    """By nsmb.conf(5) and mount_smbfs(8) alone: none of it was measured."""
    wanted, words = [], []
    late = [name for name in ("dir_cache_max", "dir_cache_min") if _seconds(options[name]) > LATE_S]
    if late:
        told = ", ".join(f"{name}={options[name]}" for name in late)
        words.append(f"{told}: macOS may keep a folder's listing for so many seconds, and rounds are seen late")
        wanted += [f"{name}={LATE_S if name == 'dir_cache_max' else 1}" for name in late]
    if options["soft"] == "yes":
        words.append("soft=yes: calls fail with an error when the server is away for a while")
        wanted.append("soft=no")
    if not wanted:
        return [ok("mount options", _told(options), topic=TOPIC)]
    lines = f"below a line [default]: {', '.join(wanted)}, each on a line of its own"
    remedy = f"on this Mac, in /etc/nsmb.conf {lines}; then mount the share again"
    return [warning("mount options", "; ".join(words), remedy, topic=TOPIC)]


def _seconds(text: str) -> float:
    """inf: it is no number of seconds that can be judged."""
    return int(text) if text.isdecimal() else math.inf


_KNOWN = (
    "vers", "hard", "soft", "softerr", "timeo", "retrans", "lookupcache", "noac", "actimeo", "acregmax", "acdirmax", "cache",
    "closetimeo", "proto", "local_lock", "nolock", "seal", "sign", "multichannel", "negnamecache", "nonegnamecache", "intr",
    "dir_cache_max", "dir_cache_min",
)  # fmt: skip


def _told(options: Mapping[str, str]) -> str:
    """Those that mean something to a mailbox; others may name a user."""
    told = [name + (f"={options[name]}" if options[name] else "") for name in _KNOWN if name in options]
    return ", ".join(told)


def _longest_cache_s(options: Mapping[str, str]) -> int:
    """For folders: CIFS has one second, NFS up to a minute but compares the folder's time of change when it lists, which is why
    only what somebody asked for counts."""
    asked = [options[name] for name in ("actimeo", "acdirmax") if options.get(name, "").isdecimal()]
    return max(map(int, asked), default=0)


def _parsed(text: str) -> dict[str, str]:
    pairs = (each.strip().partition("=") for each in text.split(",") if each.strip())
    return {name: value for name, _, value in pairs}
