"""What a machine that stands by sees: the mailboxes that it knows, and those that are mounted here as the network tells."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from swarm import api
from swarm.core.adverts import PeerState
from swarm.core.mounting import share_of
from swarm.core.sightings import SeenRun
from swarm.host.mounts import Finder
from swarm.watch import Home, HomeWatch

FIND_S = 20.0  # between two looks for a mailbox among what is mounted
FINDS = 3  # mailboxes that are looked for at a time


@dataclass(frozen=True)
class Seen:
    home: Home
    elsewhere: tuple[SeenRun, ...] = ()  # runs whose mailbox is not mounted here, as far as is known


class Around:
    def __init__(self, mailbox: str | None, *, finder: Finder | None = None) -> None:
        """`mailbox`: the only one to look at, and the network is not asked; None: all that are known."""
        self._watch = HomeWatch(None if mailbox is None else (mailbox,))
        self._network = mailbox is None
        self._near: api.Neighbourhood | None = None
        self._finder = finder or Finder()
        self._find_at_s = 0.0

    def start(self) -> None:
        """Listen to the network, and tell it of this machine."""
        self._near = api.Neighbourhood(advertises="waiting")
        self._near.start()

    def close(self) -> None:
        """Say goodbye."""
        if self._near is not None:
            self._near.close()

    def tell(self, state: PeerState) -> None:
        """What this machine does from now on."""
        if self._near is not None:
            self._near.tell(state)

    async def look(self) -> Seen:
        """What there is now. Never raises for a mailbox that does not answer."""
        home = await self._watch.poll()
        if self._near is None:
            return Seen(home)
        sightings = self._near.poll(home)
        if not self._network:
            return Seen(home)
        elsewhere = tuple(seen for seen in sightings.runs if seen.ours and seen.location is None and not seen.advert.over)
        now_s = asyncio.get_running_loop().time()
        if elsewhere and now_s >= self._find_at_s:
            self._find_at_s = now_s + FIND_S
            await self._find(elsewhere, [view.location for view in home.mailboxes])
        return Seen(home, elsewhere)

    async def _find(self, runs: tuple[SeenRun, ...], known: list[str]) -> None:
        shares = {seen.advert.mailbox: seen.advert.share for seen in runs}
        for mailbox, url in list(shares.items())[:FINDS]:
            share = share_of(url)
            found = await self._finder.find(mailbox, known, below=share.below if share is not None else "")
            if found.location is not None:
                self._watch.also = (*self._watch.also, found.location)
