"""What the operating system's errors mean for a mailbox: the one place where they are mapped."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.core.errors import MailboxCorrupt, MailboxError, MailboxFull, MailboxReadOnly, MailboxUnavailable

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
READ_ONLY = frozenset({errno.EROFS})
CORRUPT = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR})  # a link or a file where a folder should be, or the reverse
ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})

AGAIN = frozenset(
    {
        errno.ESTALE,  # NFS: what the client remembers is gone; it asks anew the next time
        errno.ENOENT,  # a folder on the way was pruned just now
        errno.EACCES,  # SMB: somebody has it open
        errno.EPERM,
        errno.EBUSY,
        errno.ETXTBSY,
        errno.EAGAIN,
        errno.EINVAL,
        errno.EEXIST,
        errno.ENOTEMPTY,  # a record that was seen, and deleted before it could be read
    }
)
"""Often over within a second: tried again on the spot, a few times. The rest is the caller's to retry."""


def mapped(error: OSError, where: str) -> MailboxError:
    """The error of ours that says what to do about `error`. Whatever is not known to be lasting counts as transient."""
    name = errno.errorcode.get(error.errno or 0, "")
    text = f"{where}: {error.strerror or error}" + (f" ({name})" if name else "")
    if error.errno in FULL:
        return MailboxFull(text)
    if error.errno in READ_ONLY:
        return MailboxReadOnly(text)
    if error.errno in CORRUPT:
        return MailboxCorrupt(text)
    return MailboxUnavailable(text)


@contextmanager
def foreign(where: str) -> Iterator[None]:
    """No OSError gets out of this block, only its meaning."""
    try:
        yield
    except OSError as error:
        raise mapped(error, where) from error
