"""Whether an object store can hold a mailbox: of several that create one object, exactly one must win."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import uuid4

from swarm.core.errors import MailboxError, UsageError
from swarm.mailbox.objects_put import TMP
from swarm.mailbox.objects_store import Stores, foreign

RACERS = 8
LIAR = "this store lets two machines win the same record, it pays no heed to If-None-Match: it cannot hold a mailbox"


async def check_exclusive(stores: Stores, location: str, racers: int = RACERS) -> None:
    """Raises UsageError if the store lets two through. That it does not, here and now, is a sign and no proof."""
    key = f"{TMP}/{uuid4().hex}"
    bids = [uuid4().hex.encode() for _ in range(racers + 1)]

    async def bid(n: int) -> bool:
        try:
            with foreign(location, writing=True):
                await stores.obstore.put_async(stores.small, key, bids[n], mode="create")
        except FileExistsError:
            return False
        return True

    try:
        won = await asyncio.gather(*(bid(n) for n in range(racers)))
        won.append(await bid(racers))  # and one that comes late
        with foreign(location):
            found = bytes(await (await stores.obstore.get_async(stores.small, key)).bytes_async())
    finally:
        with suppress(MailboxError, FileNotFoundError), foreign(location):
            await stores.obstore.delete_async(stores.small, key)
    # Several at once may all be told to come again; then the late one wins.
    if won.count(True) != 1 or found != bids[won.index(True)]:
        raise UsageError(f"{location}: {LIAR}")
