"""Making a folder a mailbox: the only code that makes tmp/, trash/ and runs/."""

from __future__ import annotations

import os
from contextlib import suppress
from uuid import uuid4

from swarm.core.errors import MailboxMoved, UsageError
from swarm.core.keys import MARKER
from swarm.core.lines import encode
from swarm.core.manifest import Marker
from swarm.core.mounts import REFUSED
from swarm.mailbox import disk
from swarm.mailbox.cloud import synchronised
from swarm.mailbox.errnos import ABSENT, foreign
from swarm.mailbox.folder_read import RUNS, TMP, TRASH
from swarm.mailbox.folder_write import FolderFiles, Staged

IGNORED = frozenset(
    {"lost+found", "Thumbs.db", "desktop.ini", "System Volume Information", "$RECYCLE.BIN", "@eaDir", "#recycle"}
)
"""What systems and NAS boxes put into an empty folder by themselves; and all names that start with a dot."""


def init_folder(root: str) -> str:
    """Make `root`, an absolute path, a mailbox, if it is none yet; the mailbox's id. Raises UsageError: also for a folder that
    is copied to other machines later, a mailbox or not.

    The marker comes last: what is interrupted before is completed by the next init. Of several at once one makes it.
    """
    with foreign(root):
        if reason := synchronised(root):
            raise UsageError(f"{reason}: {REFUSED}")
        try:
            os.mkdir(root)
        except FileExistsError:
            if not os.path.isdir(root):
                raise UsageError(f"{root} is not a folder") from None
        except OSError as error:
            if error.errno in ABSENT:
                raise UsageError(f"{root}: there is no folder {os.path.dirname(root)}") from error
            raise
        with suppress(MailboxMoved):
            return FolderFiles(root).open()
        if others := others_in(root):
            with suppress(MailboxMoved):  # made by another machine meanwhile, and in use already
                return FolderFiles(root).open()
            raise UsageError(f"{root} is no mailbox and not empty: {', '.join(others[:3])}{', …' * (len(others) > 3)}")
        for name in (TMP, TRASH, RUNS):
            with suppress(FileExistsError):
                os.mkdir(f"{root}/{name}")
                with suppress(OSError):  # other machines' users may write here as far as they may in the folder itself
                    os.chmod(f"{root}/{name}", os.stat(root).st_mode & 0o777)
        disk.sync_folder(root)
        files = FolderFiles(root)
        staged = Staged(root)
        files.stage_record(staged, encode(Marker(id=uuid4().hex), nonce=uuid4().hex))
        try:
            staged.move(os.path.dirname(f"{root}/{MARKER}"))
        except OSError:  # made by another machine, or by this one with the reply lost: look
            files.discard(f"{TMP}/{staged.name}")
            with suppress(MailboxMoved):
                return files.open()
            raise
        disk.sync_folder(root)
        return files.open()


def others_in(root: str) -> list[str]:
    """Names in `root` that an interrupted init cannot have left, sorted."""
    names = sorted(name for name in os.listdir(root) if not name.startswith(".") and name not in IGNORED)
    others = [name for name in names if name not in (TMP, TRASH, RUNS)]
    if not others and RUNS in names:
        others = [f"{RUNS}/{name}" for name in sorted(os.listdir(f"{root}/{RUNS}"))]
    return others
