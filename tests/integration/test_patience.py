"""Who says that a share is lost, and when it is back (swarm/runtime/patience.py): once each, however many use it at once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from swarm.core.errors import MailboxFull, PayloadMissing
from swarm.core.events import ShareBack, ShareLost, WorkerEvent
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.membership import Pulse
from swarm.runtime.patience import Patience
from tests.integration.simulation import virtually
from tests.integration.test_membership import Place, record_of


class Share:
    """Serves what is in `serves` only; anything else meets `error`."""

    def __init__(self) -> None:
        self.serves: set[str] = set()
        self.error: Exception = MailboxFull("full")
        self.told: list[WorkerEvent] = []
        self.patience = Patience(MemoryMailbox(MemoryStore()), self.told.append)

    async def call(self, what: str) -> str:
        if what not in self.serves:
            raise self.error
        return what

    def of(self, what: str) -> Callable[[], Any]:
        return functools.partial(self.call, what)

    @property
    def said(self) -> list[type]:
        return [type(event) for event in self.told]


def test_it_is_not_back_while_another_call_waits_through_the_same_patience() -> None:
    """A full share serves whoever reads."""

    async def main() -> None:
        share = Share()
        writing = asyncio.create_task(share.patience.through(share.of("write")))
        await asyncio.sleep(1)
        share.serves.add("read")
        for _ in range(3):
            assert await share.patience.through(share.of("read")) == "read"
        assert share.said == [ShareLost]
        assert share.patience.away
        share.serves.add("write")
        assert await writing == "write"
        assert share.said == [ShareLost, ShareBack]
        assert not share.patience.away

    virtually(main())


@pytest.mark.parametrize("how", ["another error", "called off", "out of tries, and nobody calls any more"])
def test_nobody_who_waits_no_longer_keeps_the_others_from_saying_that_it_is_back(how: str) -> None:
    async def main() -> None:
        share = Share()
        beside = share.patience.beside()
        waiting = asyncio.create_task(beside.through(share.of("write"), tries=3 if "tries" in how else None))
        await asyncio.sleep(0.01)
        if how == "another error":
            share.error = PayloadMissing("runs/r/blobs/x")
        elif how == "called off":
            waiting.cancel()
        [error] = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(error, BaseException)
        share.serves.add("read")
        if "tries" in how:
            await share.patience.through(share.of("read"))
            assert share.said == [ShareLost], "it may be tried once more"
            beside.end()
        await share.patience.through(share.of("read"))
        assert share.said == [ShareLost, ShareBack]
        share.error = MailboxFull("full again")
        with pytest.raises(MailboxFull):
            await share.patience.through(share.of("write"), tries=1)
        assert share.said == [ShareLost, ShareBack, ShareLost], "the next loss is told as well"

    virtually(main())


def test_beats_that_are_ended_while_the_share_takes_none_are_no_loss_any_more() -> None:
    async def main() -> None:
        place, share = await Place.of(), Share()
        pulse = Pulse(place.exchange, record_of("a"), lambda: None, patience=share.patience.beside())  # type: ignore[arg-type,return-value]
        pulse.beat = share.of("beat")  # type: ignore[method-assign]
        beating = asyncio.create_task(pulse.run())
        await asyncio.sleep(20.3)  # between two
        share.serves.add("read")
        await share.patience.through(share.of("read"))
        assert share.said == [ShareLost]
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await share.patience.through(share.of("read"))
        assert share.said == [ShareLost, ShareBack]

    virtually(main())
