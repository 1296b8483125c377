"""Whether an object store can hold a mailbox: of several that create one object, exactly one must win."""

from __future__ import annotations

import threading
from contextlib import suppress
from uuid import uuid4

from swarm.core.errors import MailboxError, UsageError
from swarm.mailbox.objects_put import TMP
from swarm.mailbox.objects_store import Stores, foreign

RACERS = 8
LIAR = "this store lets two machines win the same record, it pays no heed to If-None-Match: it cannot hold a mailbox"


def check_exclusive(stores: Stores, racers: int = RACERS) -> None:
    """Raises UsageError if the store lets two through. That it does not, here and now, is a sign and no proof."""
    key = f"{TMP}/{uuid4().hex}"
    bids = [uuid4().hex.encode() for _ in range(racers + 1)]
    won: list[int] = []
    errors: list[MailboxError] = []

    def bid(n: int) -> None:
        try:
            with foreign(stores.where, writing=True, answers=(FileExistsError,)):
                stores.obstore.put(stores.small, key, bids[n], mode="create")
            won.append(n)
        except FileExistsError:
            pass
        except MailboxError as error:
            errors.append(error)

    threads = [threading.Thread(target=bid, args=(n,), daemon=True) for n in range(racers)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bid(racers)  # and one that comes late
        if errors:
            raise errors[0]
        with foreign(stores.where, answers=(FileNotFoundError,)):
            found = bytes(stores.obstore.get(stores.small, key).bytes())
    except FileNotFoundError:
        found = b""
    finally:
        with suppress(MailboxError), foreign(stores.where):
            stores.obstore.delete(stores.small, key)
    # Several at once may all be told to come again; then the late one wins. One whose reply is lost asks again, and is told
    # that it comes too late: then what is there says who won.
    if len(won) > 1 or found not in ([bids[won[0]]] if won else bids):
        raise UsageError(f"{stores.where}: {LIAR}")
