"""Waiting for a share that is away, and saying so."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from secrets import SystemRandom
from typing import Any, TypeVar

from swarm.core.errors import WAITED_OUT, MailboxAway, MailboxError, MailboxFull, MailboxReadOnly
from swarm.core.events import Loss, ShareBack, ShareLost, WorkerEvent
from swarm.exchange import Exchange
from swarm.mailbox.contract import Mailbox

T = TypeVar("T")
BACKOFF_S = (0.2, 5.0)  # first and longest wait before what failed is repeated
HANG_S = 5.0  # a call under way for so long counts as a lost share
AGAIN_S = 60.0  # after which a kind of loss that comes back within one outage is told again
_RANDOM = SystemRandom()  # not the module's own state, which is the caller's: a share that fails must not change what it draws


def jittered(backoff_s: float) -> float:
    """Some wait up to `backoff_s`: machines that lost a share together do not all come back to it at once."""
    return backoff_s * _RANDOM.uniform(0.5, 1.0)


def wait_while_it_moves(left: threading.Event, exchange: Exchange, *, stall_s: float) -> None:
    """Wait for the last words of a communication thread as long as they move. `stall_s`: how long a share on which nothing
    moves is waited for."""
    moved, still_since_s = -1, time.monotonic()
    while not left.wait(0.05):
        if exchange.progress_bytes != moved:
            moved, still_since_s = exchange.progress_bytes, time.monotonic()
            continue
        still_s = time.monotonic() - still_since_s
        # Small calls that are answered, one after the other, are no stall, on a slow share either.
        if still_s > stall_s and exchange.mailbox.outstanding_s() >= stall_s:
            return
        if still_s > 5 * stall_s:
            return


class Outage:
    """A share that does not serve everybody here who needs it: one that is full or read-only still answers whoever reads.

    Says once that it is lost, and once that it is back, which is when nobody is without it any more. In between it says when
    the share is lost in another way than was said last: what to do about one that is full is of no use once it is not there.
    """

    def __init__(self, emit: Callable[[WorkerEvent], None]) -> None:
        self._emit = emit
        self._lost_at_s: float | None = None
        self._how: Loss | None = None  # what was said last
        self._said_s: dict[Loss, float] = {}  # when each was: two that alternate are no burst of events
        self._without: set[Patience] = set()

    def lost(self, who: Patience, event: ShareLost) -> None:
        self._without.add(who)
        now_s = asyncio.get_running_loop().time()
        if self._lost_at_s is None:
            self._lost_at_s = now_s
        if event.how != self._how and now_s - self._said_s.get(event.how, -AGAIN_S) >= AGAIN_S:
            self._how, self._said_s[event.how] = event.how, now_s
            self._emit(event)

    def back(self, who: Patience) -> None:
        self._without.discard(who)
        if self._lost_at_s is not None and not self._without:
            self._emit(ShareBack(after_s=asyncio.get_running_loop().time() - self._lost_at_s))
            self._lost_at_s, self._how = None, None
            self._said_s.clear()

    def gives_up(self, who: Patience) -> None:
        """What it waits with is called off: whether the share would serve it is no longer asked."""
        self._without.discard(who)

    def without(self, who: Patience) -> bool:
        return who in self._without


class Patience:
    """Repeats what a lost share kept from being done. Several calls may be under way through it at the same time."""

    def __init__(
        self,
        mailbox: Mailbox,
        emit: Callable[[WorkerEvent], None],
        *,
        longest_s: float = BACKOFF_S[1],
        outage: Outage | None = None,
    ) -> None:
        """`longest_s`: the longest wait before a call is repeated. `outage`: shared with others that use the mailbox at the
        same time; None: nobody else here does, and `emit` is told."""
        self.mailbox, self.longest_s = mailbox, longest_s
        self._outage = outage or Outage(emit)
        self._emit = emit
        self._waiting = 0  # calls under way that the share did not serve so far
        self._unserved = False  # whether it did not serve the last one that ended, after all its tries

    def beside(self) -> Patience:
        """Of somebody who uses the mailbox at the same time: what is away for either is told once."""
        return Patience(self.mailbox, self._emit, longest_s=self.longest_s, outage=self._outage)

    async def through(self, call: Callable[[], Coroutine[Any, Any, T]], *, tries: int | None = None) -> T:
        """What `call` returns, called again for as long as the share is away; at most `tries` times.

        Any other error of `call` gets out, and the last of `tries`. Cancelling this cancels the call under way.
        """
        waits = False

        def lost(event: ShareLost) -> None:
            nonlocal waits
            self._waiting, waits = self._waiting + (not waits), True
            self._outage.lost(self, event)

        try:
            result = await self._repeated(call, tries, lost)
        except WAITED_OUT:  # whoever calls next finds out whether that is over
            self._waiting, self._unserved = self._waiting - waits, True
            raise
        except BaseException:  # called off; or an answer, that some other call may not get
            self._waiting -= waits
            if not self._unserved:
                self._give_up()
            raise
        self._waiting, self._unserved = self._waiting - waits, False
        if not self._waiting:
            self._outage.back(self)
        return result

    async def _repeated(
        self, call: Callable[[], Coroutine[Any, Any, T]], tries: int | None, lost: Callable[[ShareLost], None]
    ) -> T:
        backoff_s, tried = BACKOFF_S[0], 0
        while True:
            under_way = asyncio.ensure_future(call())
            tried += 1
            try:
                while not (await asyncio.wait({under_way}, timeout=1.0))[0]:
                    if self.mailbox.outstanding_s() >= HANG_S:
                        lost(ShareLost(reason=f"no answer for {HANG_S:.0f} s"))
                return under_way.result()
            except WAITED_OUT as error:
                lost(ShareLost(reason=str(error), how=_how(error)))
                if tried == tries:
                    raise
            except asyncio.CancelledError:
                under_way.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await under_way
                raise
            await asyncio.sleep(jittered(backoff_s))
            backoff_s = min(backoff_s * 2, self.longest_s)

    def end(self) -> None:
        """Nobody calls through this any more: what it was without keeps nobody from saying that the share is back."""
        self._unserved = False
        self._give_up()

    def _give_up(self) -> None:
        if not self._waiting:
            self._outage.gives_up(self)

    @property
    def away(self) -> bool:
        """Whether the share is, as far as is known here. May be asked on any thread."""
        return self._outage.without(self)


def _how(error: MailboxError) -> Loss:
    match error:
        case MailboxFull():
            return "full"
        case MailboxReadOnly():
            return "read-only"
        case MailboxAway():
            return "gone"
        case _:
            return "silent"
