"""A worker's manners, kept by one thread beside it: it holds still while its machine's owner comes first, and keeps the machine
from going to sleep while it trains, and not otherwise."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from swarm.core.events import Freed, Held, OwnerFirst, Trouble, WorkerEvent
from swarm.core.owner import UNTOLD, OwnerRules, Senses, held
from swarm.host.awake import Awake
from swarm.host.owner import minute, sense

LOOK_S = 2.0
AWAKE_S = 600.0  # after the last step: others may still be waited for


class Participant(Protocol):
    """Whoever makes steps. All of it is used from another thread."""

    def hold(self, reason: str) -> None:
        """Make none from now on; '': go on."""

    @property
    def steps(self) -> int:
        """Made so far."""

    @property
    def resting(self) -> bool:
        """Whether the whole run is paused."""


class Tending:
    def __init__(
        self,
        rules: OwnerRules,
        *,
        emit: Callable[[WorkerEvent], None],
        sense: Callable[[], Senses] = sense,
        awake: Awake | None = None,
    ) -> None:
        self._rules, self._emit, self._sense, self._awake = rules, emit, sense, awake or Awake()
        self._reason = ""
        self._steps, self._stepped_s = 0, -1e9
        self._warned = False
        self._faults: set[str] = set()  # that were told

    def of(self, participant: Participant) -> None:
        """Look after it from now on, for as long as this process lives."""
        self.look(participant, time.monotonic())  # before it takes part: what it tells first is true
        threading.Thread(target=self._look_on, args=(participant,), name="swarm-owner", daemon=True).start()

    def _look_on(self, participant: Participant) -> None:
        while True:
            time.sleep(LOOK_S)
            self.look(participant, time.monotonic())

    def look(self, participant: Participant, now_s: float) -> None:
        """Once, at `now_s` on a monotonic clock. Never raises: whatever goes wrong, this is done again."""
        if self._rules:
            self._heed_owner(participant)
        try:
            self._mind_sleep(participant, now_s)
        except Exception as error:
            self._say_fault("whether this machine may go to sleep", error)

    def _mind_sleep(self, participant: Participant, now_s: float) -> None:
        steps = participant.steps
        if steps != self._steps:
            self._steps, self._stepped_s = steps, now_s
        if self._reason or participant.resting or now_s - self._stepped_s >= AWAKE_S:
            self._awake.release()
        elif words := self._awake.hold():
            self._emit(Trouble(message=f"this machine may go to sleep while it trains: {words}"))

    def _heed_owner(self, participant: Participant) -> None:
        senses, error = _sensed(self._sense)
        if error is not None:
            self._say_fault("what this machine's owner does", error)
        reason = held(self._rules, senses)
        if reason == self._reason:
            return
        self._reason = reason
        participant.hold(reason)
        self._emit(Held(reason=reason) if reason else Freed())
        if reason in UNTOLD and not self._warned:
            self._warned = True
            option = UNTOLD[reason]
            self._emit(Trouble(message=f"as long as that is so, nothing is trained here: {option} trains all the same"))

    def _say_fault(self, what: str, error: Exception) -> None:
        """Once each."""
        if what not in self._faults:
            self._faults.add(what)
            self._emit(Trouble(message=f"{what}: looking failed: {type(error).__name__}: {error}"))


def _sensed(sense: Callable[[], Senses]) -> tuple[Senses, Exception | None]:
    """With what went wrong: all but the time is untold then."""
    try:
        return sense(), None
    except Exception as error:  # of a library, or the system: the machine is its owner's all the same
        return Senses(minute=minute(time.time())), error


def held_by(rules: OwnerRules) -> Callable[[], str]:
    """What tells why this machine is to hold still now; '' if it is not."""
    return lambda: held(rules, _sensed(sense)[0])


def lower(nice: int) -> int:
    """Let other processes of this machine come first: to be called before there are threads. The nice level from now on, which
    may be higher than asked for."""
    now = os.getpriority(os.PRIO_PROCESS, 0)
    if nice > now:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
        now = nice
    return now


def manners(rules: OwnerRules, nice: int) -> OwnerFirst | None:
    """What is told of them when a worker begins; None if there is nothing to be told."""
    said = [f"nice level {nice}"] if nice > 0 else []
    said += [rules.words()] if rules else []
    return OwnerFirst(words=f"its owner comes first: {', '.join(said)}") if said else None
