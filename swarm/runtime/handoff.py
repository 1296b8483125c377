"""Where the training thread and the communication thread meet."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from swarm.core.records import EvalRecord

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Publication:
    """A delta to be published."""

    round: int
    fragment: int
    delta: Tensors
    base_sha256: str
    tokens: int
    steps: int
    train_loss: float | None
    seconds_s: float


@dataclass(frozen=True)
class Aligned:
    """Committed parameters to take over, up to round `newest`. The arrays are read-only and stay as they are."""

    newest: int
    fragments: Mapping[int, tuple[str, Tensors]]  # fragment → (SHA-256 of its theta payload, theta)
    evaluate: int | None = None  # the round to evaluate once this is taken over: always `newest`


@dataclass
class Telemetry:
    """The training thread's last words on its progress. Plain values; a torn read costs nothing."""

    phase: str = "join"
    round: int = 0
    step: int = 0
    steps: int = 0
    tokens_per_s: float = 0.0
    loss: float | None = None


@dataclass
class Handoff:
    telemetry: Telemetry = field(default_factory=Telemetry)
    evaluates: bool = True  # whether the training thread can evaluate
    wake: Callable[[], None] = lambda: None  # wakes the communication thread; thread-safe
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _outbox: Publication | None = None
    _inbox: deque[Aligned] = field(default_factory=deque)
    _evals: deque[EvalRecord] = field(default_factory=deque)
    _flush: bool = False
    _hurry: int = -1  # the round that is to be reported to with what there is
    _ended: str | None = None
    _error: BaseException | None = None

    # Training thread

    def publish(self, publication: Publication) -> None:
        """Replaces one that is still under way: its round has closed, or this thread would not be further."""
        with self._changed:
            self._outbox = publication
        self.wake()

    def take_aligned(self) -> Aligned | None:
        """The next one, oldest first. Raises what ended the communication thread."""
        with self._changed:
            if self._error is not None:
                raise self._error
            return self._inbox.popleft() if self._inbox else None

    def wait(self, timeout_s: float) -> None:
        """Until something may have changed, at most `timeout_s`."""
        with self._changed:
            if not self._inbox and self._ended is None and self._error is None:
                self._changed.wait(timeout_s)

    def evaluated(self, record: EvalRecord) -> None:
        with self._changed:
            self._evals.append(record)
        self.wake()

    @property
    def ended(self) -> str | None:
        """Why the run is over for this learner; None while it is not, or while something is left to take over."""
        with self._changed:
            return None if self._inbox else self._ended

    @property
    def flush(self) -> bool:
        """Whether to report at once, without waiting for the round's last step."""
        return self._flush

    def hurried(self, round: int) -> bool:
        """Whether `round` is about to close without this learner, unless it reports what it has."""
        return self._hurry == round

    # Communication thread

    def outgoing(self) -> Publication | None:
        """The publication under way: it stays until `published`, so that a failed attempt is repeated."""
        with self._changed:
            return self._outbox

    def published(self, publication: Publication) -> None:
        """It is done with. A later one, which came meanwhile, stays."""
        with self._changed:
            if self._outbox is publication:
                self._outbox = None
            self._changed.notify_all()

    def align(self, aligned: Aligned, *, ended: str | None = None) -> None:
        """Added to the last one that is not taken yet, so that a long step holds one copy of the model and not one a round;
        but what is to be evaluated stays as it is. `ended`: why the run is over with it; told at once, lest steps be made
        that nobody needs."""
        with self._changed:
            self._ended = self._ended or ended
            if self._inbox and self._inbox[-1].evaluate is None:
                before = self._inbox.pop()
                aligned = dataclasses.replace(aligned, fragments={**before.fragments, **aligned.fragments})
            self._inbox.append(aligned)
            self._changed.notify_all()

    @property
    def behind(self) -> bool:
        """Whether the training thread has something to take over yet."""
        with self._changed:
            return bool(self._inbox)

    def take_evaluated(self) -> EvalRecord | None:
        with self._changed:
            return self._evals.popleft() if self._evals else None

    def untake_evaluated(self, record: EvalRecord) -> None:
        with self._changed:
            self._evals.appendleft(record)

    def ask_hurry(self, round: int) -> None:
        with self._changed:
            self._hurry = round

    def ask_flush(self) -> None:
        with self._changed:
            self._flush = True
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        with self._changed:
            self._ended = self._ended or reason
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
