"""A syncer: closes the rounds of a run for those who train. It holds no model, and needs no framework."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from swarm.core.events import Ended, WorkerEvent
from swarm.core.manifest import Manifest
from swarm.core.records import LearnerRecord
from swarm.exchange import Exchange, Offload, inline
from swarm.host.energy import Draws, untold
from swarm.mailbox.contract import Mailbox
from swarm.runtime.handoff import Handoff
from swarm.runtime.participant import Participant
from swarm.runtime.patience import wait_while_it_moves

STALL_S = 2.0  # leaving waits while bytes move; for so long when they do not


class Syncer:
    def __init__(
        self,
        *,
        mailbox: Mailbox,
        manifest: Manifest,
        me: LearnerRecord,
        gone: Callable[[LearnerRecord], bool],
        alive: Callable[[LearnerRecord], bool],
        may_rename: bool = False,
        emit: Callable[[WorkerEvent], None] = lambda event: None,
        offload: Offload = inline,
        rss_bytes: Callable[[], int] = lambda: 0,
        draws: Draws = untold,
        stall_s: float = STALL_S,
    ) -> None:
        """`me` has the role 'syncer'. `stall_s`: how long leaving waits for a share on which nothing moves. `offload` as for
        Exchange; the rest as for Participant."""
        if me.role != "syncer":
            raise ValueError(f"role must be 'syncer', got {me.role!r}")
        self._emit, self._stall_s = emit, stall_s
        self._exchange = Exchange(mailbox, manifest, offload=offload)
        self._handoff = Handoff()
        self._participant = Participant(
            self._exchange,
            me,
            self._handoff,
            schema=self._exchange.schema,
            gone=gone,
            alive=alive,
            may_rename=may_rename,
            emit=emit,
            rss_bytes=rss_bytes,
            draws=draws,
        )
        self._left = threading.Event()
        self._leaving = threading.Event()
        self._error: BaseException | None = None

    @property
    def me(self) -> LearnerRecord:
        """This syncer as it joined."""
        return self._participant.me

    def leave(self) -> None:
        """Release the lease and return from `run`. May be called from any thread, and from a signal handler."""
        self._leaving.set()

    def run(self) -> None:
        """Take part until the run ends, or until told to leave. Raises what a Participant does."""
        # A thread of its own: a share that hangs must not hold up whoever asks this one to leave.
        threading.Thread(target=self._communicate, name="swarm-communication", daemon=True).start()
        while not (self._left.wait(0.1) or self._leaving.is_set()):
            pass
        wait_while_it_moves(self._left, self._exchange, stall_s=self._stall_s)
        if self._error is not None:
            raise self._error
        self._emit(Ended(reason=self._handoff.ended or "left", rounds=self._participant.newest + 1))

    def _communicate(self) -> None:
        try:
            asyncio.run(self._converse())
        except BaseException as error:
            self._error = error
        finally:
            self._left.set()

    async def _converse(self) -> None:
        work = asyncio.create_task(self._take_part())
        try:
            while not (await asyncio.wait({work}, timeout=0.1))[0]:
                if self._leaving.is_set():
                    work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                work.result()
        finally:
            await self._participant.leave()

    async def _take_part(self) -> None:
        await self._participant.join()
        await self._participant.run()
