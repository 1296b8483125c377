"""What a participant is doing, as its beats tell the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from swarm.core.manifest import PayloadRef
from swarm.core.records import Beat, Role
from swarm.exchange import Exchange
from swarm.runtime.handoff import Handoff


class Activity:
    def __init__(self, exchange: Exchange, handoff: Handoff, *, role: Role, rss_bytes: Callable[[], int]) -> None:
        self.exchange, self.handoff, self.role, self._rss_bytes = exchange, handoff, role, rss_bytes
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

    def beat(self, *, paused: bool) -> Beat:
        seen, exchange = self.handoff.telemetry, self.exchange
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
        )
