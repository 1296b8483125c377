"""Bytes to and from the disk: whole, synced, and without copies in between."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from swarm.mailbox.contract import Buffer

if sys.platform == "darwin":
    import fcntl

NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a file system says that cannot sync. It has nothing better to offer: go on. Any other error says that it could not."""
NO_FOLDER_SYNC = NO_SYNC | {errno.EBADF, errno.EACCES, errno.EPERM}

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK_BYTES = 4 << 20


def as_bytes(buffer: Buffer) -> memoryview:
    """The same memory as bytes. A view must be C-contiguous."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


def writable(buffer: bytearray | memoryview, offset: int) -> memoryview:
    """`buffer` as bytes, to be filled with an object's from `offset` on. Raises TypeError, ValueError."""
    view = as_bytes(buffer)
    if offset < 0:
        raise ValueError(f"an offset must be >= 0, got {offset}")
    if view.readonly and len(view):
        raise TypeError("a part is read into a writable buffer")
    return view


def write_all(fd: int, buffer: Buffer) -> int:
    """Write all of `buffer`, however the system cuts it; its size in bytes."""
    view = as_bytes(buffer)
    done = 0
    while done < len(view):
        done += os.write(fd, view[done:])
    return done


def read_all(fd: int, size: int, progressed: Callable[[], None] = lambda: None) -> bytes:
    """The file's `size` bytes. Raises OSError (ESTALE) if it is shorter or longer: not what was opened."""
    parts = []
    while part := os.read(fd, CHUNK_BYTES):
        parts.append(part)
        progressed()
    if sum(map(len, parts)) != size:
        raise OSError(errno.ESTALE, f"{sum(map(len, parts))} bytes read of {size}")
    return b"".join(parts)


def read_into(fd: int, view: memoryview, progressed: Callable[[], None], *, offset: int = 0) -> None:
    """Fill `view` from the file's byte `offset` on, straight into its memory. Raises OSError (ESTALE) if it is shorter."""
    if offset:
        os.lseek(fd, offset, os.SEEK_SET)
    done = 0
    while done < len(view):
        n = os.readv(fd, [view[done : done + CHUNK_BYTES]])
        if n == 0:
            raise OSError(errno.ESTALE, f"{done} bytes read of {len(view)}")
        done += n
        progressed()


def sync(fd: int) -> None:
    """What was written is on the disk when this returns, as far as the system can say."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync leaves the data in the drive's cache
        except OSError:
            pass  # most shares cannot: fsync is what there is
        else:
            return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)
