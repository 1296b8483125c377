"""The machines and runs around this one, for every front end: on the network, at addresses that were given, and in mailboxes.

    near = Neighbourhood(advertises="watching")     # no I/O
    near.start()                                    # a daemon thread of its own listens and tells
    watch = HomeWatch()
    while True:
        sightings = near.poll(await watch.poll())   # core/sightings.Sightings; cheap, never blocks, from any thread
    near.add("studio.local")                        # a machine to ask, where multicast does not get through: HOST or HOST:PORT
    near.tell("paused")                             # what this process does from now on
    near.close()                                    # says goodbye; waits a moment at most

`Sightings.peers` holds this machine, too (`itself`). `SeenRun.location` says in which known mailbox the run is joined; None:
its mailbox is mounted nowhere that is known here, and `advert.share` may say what to mount. Without discovery
(SWARM_DISCOVERY=0, `discovery = false` in the settings, or `network=False`) the same is told, as far as mailboxes tell it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Literal

from swarm.advertising import Advertising, discovers
from swarm.core.adverts import PeerState
from swarm.core.sightings import Sightings
from swarm.core.telling import peer_adverts, run_advert
from swarm.core.trust import SwarmKey
from swarm.watch import Home, HomeWatch

LOOK_S = 2.5  # that one look lasts: others answer within a second, and a beat or two can be heard


class Neighbourhood:
    """May be used from any thread, by one at a time."""

    def __init__(
        self,
        *,
        advertises: PeerState | None = None,
        peers: Iterable[str] = (),
        interfaces: Iterable[str] = (),
        key: SwarmKey | Literal["own"] | None = "own",
        network: bool | None = None,
    ) -> None:
        """`advertises`: what this process tells of this machine; None: it only listens. `peers`: addresses to ask, beside
        those of the settings. `interfaces`: by name; none: those of the settings, else the best. `key`: own: of this
        machine's passphrase. `network`: None: as SWARM_DISCOVERY and the settings have it."""
        self._telling = Advertising(
            advertises, peers=peers, interfaces=interfaces, key=key, network=discovers() if network is None else network
        )

    def start(self) -> None:
        """Raises UsageError for one of `peers` that is no address; nothing else."""
        self._telling.start()

    def close(self) -> None:
        self._telling.close()

    def add(self, peer: str) -> None:
        """Ask this machine, too: HOST or HOST:PORT. Raises UsageError for what is neither."""
        self._telling.ask(peer)

    def tell(self, state: PeerState) -> None:
        self._telling.tell(state)

    def poll(self, home: Home) -> Sightings:
        """What is seen just now. `home`: what HomeWatch has read last."""
        now_s = time.monotonic()
        if home.fingerprint is not None:
            self._telling.use_passphrase(home.fingerprint)
        mounted, offered = [], []
        with self._telling.sighted() as sighted:
            for view in home.mailboxes:
                if not view.id or view.problem:
                    continue
                mounted.append(view.id)
                told = (run_advert(state, mailbox=view.id, peer=sighted.peer) for state in view.runs if not state.lost)
                runs = [run for run in told if run is not None]
                peers = peer_adverts(view.runs, mailbox=view.id)
                sighted.in_mailbox(view.location, view.id, peers=peers, runs=runs, now_s=now_s)
                offered += [run for run in runs if not run.over]
            sighted.unmounted(mounted)
        self._telling.open_mailboxes(mounted)
        self._telling.tell_runs(offered)  # whoever has not mounted the share sees them, and what to mount
        return self._telling.seen()


async def look_around(near: Neighbourhood, watch: HomeWatch, seconds: float = LOOK_S) -> Sightings:
    """What is seen after some seconds of listening to the network and to the known mailboxes: one that does not answer holds
    nobody up. `near` was started."""
    until_s = time.monotonic() + seconds
    home, polling = Home(), asyncio.ensure_future(watch.poll())
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            await asyncio.wait({polling}, timeout=min(0.25, left_s))
            if polling.done():
                home, polling = polling.result(), asyncio.ensure_future(_later(watch, 0.25))
    finally:
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    return near.poll(home)


async def _later(watch: HomeWatch, after_s: float) -> Home:
    await asyncio.sleep(after_s)
    return await watch.poll()
