"""How long a person waits for a mailbox."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from swarm.core.buckets import where_silent
from swarm.core.errors import MailboxUnavailable
from swarm.mailbox.contract import Mailbox

T = TypeVar("T")
PATIENCE_S = 20.0  # for an answer: a disk that sleeps takes some seconds
LOOK_S = 0.5


async def in_time(mailbox: Mailbox, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Raises MailboxUnavailable once a call has not been answered for PATIENCE_S."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            if mailbox.outstanding_s() >= PATIENCE_S:
                words = f"has not answered for {PATIENCE_S:.0f} s: {where_silent(mailbox.location)}"
                raise MailboxUnavailable(f"{mailbox.location} {words}")
    finally:
        task.cancel()
    return task.result()
