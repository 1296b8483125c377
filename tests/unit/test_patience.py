"""What is said of a share that is away: once that it is lost, again when it is lost otherwise, once that it is back."""

from __future__ import annotations

import asyncio

from swarm.core.errors import MailboxAway, MailboxError, MailboxFull, MailboxUnavailable
from swarm.core.events import ShareBack, ShareLost, WorkerEvent
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.patience import AGAIN_S, Patience
from tests.integration.simulation import virtually

SILENT = MailboxUnavailable("no route to host")
FULL = MailboxFull("no space left")
AWAY = MailboxAway("no mailbox there")


def told(*met: MailboxError) -> list[str]:
    """What is said while one call meets these errors, one after the other, and then succeeds."""
    events, waiting = list[WorkerEvent](), list(met)

    async def call() -> None:
        if waiting:
            raise waiting.pop(0)

    async def main() -> None:
        await Patience(MemoryMailbox(MemoryStore()), events.append).through(call)

    virtually(main())
    for event in events:
        assert isinstance(event, ShareLost | ShareBack)
    return [event.how if isinstance(event, ShareLost) else "back" for event in events]


def test_a_share_that_stays_away_is_told_once_and_told_when_it_is_back() -> None:
    assert told() == []
    assert told(*[SILENT] * 20) == ["silent", "back"]


def test_what_a_share_is_lost_by_is_told_when_it_becomes_another() -> None:
    """A server that comes back with an empty disk: who is told of a refused connection only looks in the wrong place."""
    assert told(SILENT, SILENT, AWAY, AWAY, AWAY) == ["silent", "gone", "back"]
    assert told(FULL, SILENT, AWAY) == ["full", "silent", "gone", "back"]


def test_two_kinds_that_alternate_are_no_burst() -> None:
    assert told(*[SILENT, AWAY] * 3) == ["silent", "gone", "back"]
    many = told(*[SILENT, AWAY] * 100)  # at most 5 s each
    assert many[-1] == "back"
    assert 4 < len(many) <= 2 + 2 * 200 * 5 / AGAIN_S


def test_an_outage_after_another_is_told_like_the_first() -> None:
    events, waiting = list[WorkerEvent](), [SILENT]
    patience = Patience(MemoryMailbox(MemoryStore()), events.append)

    async def call() -> None:
        if waiting:
            raise waiting.pop()

    async def main() -> None:
        await patience.through(call)
        waiting.append(SILENT)
        await asyncio.sleep(0)
        await patience.through(call)

    virtually(main())
    assert [type(event) for event in events] == [ShareLost, ShareBack, ShareLost, ShareBack]
