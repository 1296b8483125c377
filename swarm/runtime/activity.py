"""What a participant is doing, as its beats tell the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from swarm.core.manifest import PayloadRef
from swarm.core.records import Beat, Role
from swarm.exchange import Exchange
from swarm.host.energy import Draws, untold
from swarm.runtime.handoff import Handoff


class Uptime:
    """For how long an incarnation could have trained: pauses are left out. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self.alive_s = 0.0
        self.resting = False
        self._since_s: float | None = None

    def look(self, now_s: float, *, resting: bool) -> None:
        """`resting`: whether it does from now on. The first look is when it joined."""
        if self._since_s is not None and not self.resting:
            self.alive_s += max(0.0, now_s - self._since_s)
        self._since_s, self.resting = now_s, resting


class Activity:
    def __init__(
        self,
        exchange: Exchange,
        handoff: Handoff,
        *,
        role: Role,
        rss_bytes: Callable[[], int],
        draws: Draws = untold,
    ) -> None:
        self.exchange, self.handoff, self.role = exchange, handoff, role
        self._rss_bytes, self._draws, self._uptime = rss_bytes, draws, Uptime()
        self.phase: str | None = None  # overrides the training thread's while something is under way on this side
        self._fetching: tuple[str, ...] = ()

    @contextlib.contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        self.phase, before = phase, self.phase
        try:
            yield
        finally:
            self.phase = before

    @contextlib.contextmanager
    def pulling(self, *refs: PayloadRef) -> Iterator[None]:
        """The beats say so: what is being fetched must not be deleted."""
        with self.doing("join" if self.phase == "join" else "pull"):
            self._fetching = tuple(ref.sha256 for ref in refs)
            try:
                yield
            finally:
                self._fetching = ()

    def look(self, now_s: float, *, paused: bool) -> None:
        """Count the time up to `now_s`, on a monotonic clock. A pause begins once the step under way is done."""
        rests = paused or (bool(self.handoff.held) and self.role != "syncer")
        seen = self.handoff.telemetry
        self._uptime.look(now_s, resting=rests and seen.phase not in ("train", "evaluate"))
        seen.alive_s = self._uptime.alive_s
        seen.power_w, seen.energy_wh = self._draws(self._uptime.resting)

    def beat(self, now_s: float, *, paused: bool) -> Beat:
        self.look(now_s, paused=paused)
        seen, exchange = self.handoff.telemetry, self.exchange
        spent = seen.spent()
        # Not before what was done is reported: from then on nobody waits for it.
        still = self.role != "syncer" and self.phase is None and not self.handoff.unpublished
        held = (self.handoff.held if seen.phase == "join" else seen.held) if still else ""
        phase: Any = self.phase or ("paused" if paused or held else seen.phase)
        if phase == "join" and self.phase is None:  # joined, and about to begin
            phase = "wait" if self.role == "syncer" else "train"
        return Beat(
            phase=phase,
            role=self.role,
            round=seen.round,
            step=seen.step,
            steps=seen.steps,
            tokens_per_s=round(seen.tokens_per_s, 3),
            loss=seen.loss,
            rss_bytes=self._rss_bytes(),
            sent_bytes=exchange.sent_bytes,
            received_bytes=exchange.received_bytes,
            progress_bytes=exchange.progress_bytes,
            fetching=self._fetching,
            held=held[:200],
            alive_s=spent.alive_s,
            trained_s=spent.trained_s,
            power_w=spent.power_w,
            energy_wh=spent.energy_wh,
        )
