"""The communication thread of a session: it joins, takes part, and says its last words, while another thread trains."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from swarm.exchange import Exchange
from swarm.runtime.handoff import Aligned, Handoff
from swarm.runtime.participant import Participant
from swarm.runtime.patience import wait_while_it_moves
from swarm.tensors.blocks import forget

T = TypeVar("T")
STALL_S = 2.0  # leaving waits while bytes move; for so long when they do not


class Conversation:
    def __init__(self, exchange: Exchange, participant: Participant, handoff: Handoff, *, stall_s: float = STALL_S) -> None:
        """`stall_s`: how long leaving waits for a share on which nothing moves."""
        self.participant = participant
        self._exchange, self._handoff, self._stall_s = exchange, handoff, stall_s
        self._start: Future[Aligned | None] = Future()  # None: left before it joined
        self._left = threading.Event()
        self._shutting = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._following: asyncio.Task[None] | None = None
        self.leaving = False  # set by any thread, or a signal handler: stop as soon as that is clean

    def open(self) -> Aligned | None:
        """Join; what to start from, None if it was to leave before it joined: then this is closed already. Raises what joining
        raises."""
        threading.Thread(target=self._communicate, name="swarm-communication", daemon=True).start()
        while not self._start.done():  # in slices, so that Ctrl-C gets through
            concurrent.futures.wait([self._start], timeout=0.2)
            if self.leaving and not self._start.done():
                self.close()  # joining may take a lease, or for ever on a share that is away
                return None
        start = self._start.result()
        self._start = Future()  # nobody else needs Θ⁰, which is as large as the model
        self._start.set_result(None)
        return start

    def ask(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of a coroutine that the communication thread runs. None: asked to leave before it was there, or that
        thread has ended."""
        assert self._loop is not None
        try:
            asked = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # its loop is closed
            work.close()
            return None
        while not asked.done():
            concurrent.futures.wait([asked], timeout=0.2)
            if (self.leaving or self._left.is_set()) and not asked.done():
                asked.cancel()
                return None
        return asked.result()

    def close(self) -> None:
        """Let the communication thread say its last words, as long as they move."""
        self._shutting = True
        loop, following = self._loop, self._following
        if loop is not None and following is not None:
            with contextlib.suppress(RuntimeError):  # the communication thread has ended by itself
                loop.call_soon_threadsafe(following.cancel)
        wait_while_it_moves(self._left, self._exchange, stall_s=self._stall_s)
        forget()

    def _communicate(self) -> None:
        try:
            asyncio.run(self._converse())
        except BaseException as error:
            self._handoff.fail(error)
            if not self._start.done():
                self._start.set_exception(error)
        finally:
            self._left.set()

    async def _converse(self) -> None:
        self._following = asyncio.create_task(self._follow())
        self._loop = asyncio.get_running_loop()
        if self._shutting:  # before there was anything to cancel
            self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._following
        if not self._start.done():
            self._start.set_result(None)
        await self.participant.leave()

    async def _follow(self) -> None:
        try:
            self._start.set_result(await self.participant.join())
        except Exception as error:
            self._start.set_exception(error)
            return
        try:
            await self.participant.run()
        except Exception as error:
            self._handoff.fail(error)
            return
        await asyncio.Event().wait()  # the run has ended; the session says when to leave
