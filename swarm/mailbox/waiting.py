"""How long a person waits for a mailbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from swarm.core.buckets import where_silent
from swarm.core.errors import MailboxUnavailable
from swarm.mailbox.contract import Mailbox

T = TypeVar("T")
SILENT_S = 5.0  # after which a person is told that somebody waits
PATIENCE_S = 20.0  # for an answer: a disk that sleeps takes some seconds
LOOK_S = 0.5
on_silence: ContextVar[Callable[[str], None] | None] = ContextVar("on_silence", default=None)
"""Called with the mailbox's location each time that it has not answered for SILENT_S."""


async def in_time(mailbox: Mailbox, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Raises MailboxUnavailable once a call has not been answered for PATIENCE_S."""
    task = asyncio.ensure_future(work)
    tell, told = on_silence.get(), False
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            silent_s = mailbox.outstanding_s()
            if silent_s >= SILENT_S and not told and tell is not None:
                told = True
                tell(mailbox.location)
            if silent_s >= PATIENCE_S:
                words = f"has not answered for {PATIENCE_S:.0f} s: {where_silent(mailbox.location)}"
                raise MailboxUnavailable(f"{mailbox.location} {words}")
    finally:
        task.cancel()
    return task.result()
