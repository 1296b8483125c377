"""How fast a mailbox's folder takes and gives payloads: measured with one file, within about two seconds."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from uuid import uuid4

from swarm.core.buckets import is_objects
from swarm.core.errors import MailboxUnavailable
from swarm.core.estimates import Link
from swarm.mailbox import disk
from swarm.mailbox.folder import absolute
from swarm.mailbox.folder_read import TMP

if sys.platform == "darwin":
    import fcntl

LIMIT_S = 2.0
FIRST_BYTES, MOST_BYTES = 256 << 10, 64 << 20  # of a block; of the file
ROOM_BYTES = 1 << 30  # below which nothing is tried


def measure(location: str, *, limit_s: float = LIMIT_S, now: Callable[[], float] = time.monotonic) -> Link:
    """Blocks for about `limit_s` where the share answers. Leaves nothing behind; a sweep of the mailbox takes what a killed
    process leaves. Raises MailboxUnavailable if it cannot be tried; of an object store, whatever error of ours that gives."""
    if is_objects(location):
        from swarm.mailbox.objects_probe import speed

        written, read = speed(location, limit_s=limit_s, now=now)
        return Link(write_bytes_per_s=written, read_bytes_per_s=read)
    root = absolute(location)
    path = f"{root}/{TMP}/{uuid4().hex}"
    try:
        found = os.statvfs(f"{root}/{TMP}")
        if found.f_bavail * found.f_frsize < ROOM_BYTES:
            raise MailboxUnavailable(f"{location} is nearly full")
        try:
            written, write_s = _write(path, limit_s / 2, now)
            read, read_s = _read(path, limit_s / 2, now)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
    except OSError as error:
        raise MailboxUnavailable(f"{location}: {error.strerror or error}") from error
    return Link(write_bytes_per_s=written / max(write_s, 1e-9), read_bytes_per_s=read / max(read_s, 1e-9))


def _write(path: str, limit_s: float, now: Callable[[], float]) -> tuple[int, float]:
    """(bytes, seconds), each block synced, as a payload is. Blocks grow while there is time for a larger one."""
    fd = os.open(path, disk.CREATE, 0o666)
    try:
        block, size, began_s = os.urandom(FIRST_BYTES), 0, now()
        while True:
            before_s = now()
            size += disk.write_all(fd, block)
            disk.sync(fd)
            after_s = now()
            if after_s - began_s + 2 * (after_s - before_s) > limit_s or size + 2 * len(block) > MOST_BYTES:
                return size, after_s - began_s
            block += block
    finally:
        os.close(fd)


def _read(path: str, limit_s: float, now: Callable[[], float]) -> tuple[int, float]:
    """(bytes, seconds), past this machine's cache where the system can be asked for that."""
    fd = os.open(path, disk.READ)
    try:
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_NOCACHE, 1)
        elif hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        size, began_s = 0, now()
        while part := os.read(fd, FIRST_BYTES):
            size += len(part)
            if now() - began_s > limit_s:
                break
        return size, now() - began_s
    finally:
        os.close(fd)
