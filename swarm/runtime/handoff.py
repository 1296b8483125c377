"""Where the training thread and the communication thread meet."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from swarm.core.events import Spent
from swarm.core.records import EvalRecord, Participant, RoundRecord

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Publication:
    """A delta to be published, as it stands in its payload."""

    round: int
    fragment: int
    delta: Tensors  # empty if `flaw` is not
    base_sha256: str
    tokens: int  # in the run's weight_unit
    steps: int
    train_loss: float | None
    seconds_s: float
    flaw: str = ""  # the parameter whose delta is not finite
    unit: str = ""  # whose it is; "": the learner's own
    claim: int = 0  # on the unit
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Assignment:
    """A client that is to be trained by this learner."""

    round: int
    unit: str
    claim: int


@dataclass(frozen=True)
class Verdict:
    """What a round's record says of this learner's snapshots for it."""

    counted: Participant | None = None  # the one that was accepted; a former incarnation's, perhaps
    refused: bool = False  # for its numbers, not for when it came: they would be refused again


def verdict(record: RoundRecord, learner: str) -> Verdict | None:
    """None: nothing of `learner` was counted, and nothing was refused for its numbers."""
    counted = next((p for p in record.participants if p.learner == learner), None)
    refused = any(
        r.learner == learner and r.round == record.round and r.reason in ("norm", "nonfinite") for r in record.rejected
    )
    return Verdict(counted, refused) if counted is not None or refused else None


@dataclass(frozen=True)
class Aligned:
    """Committed parameters to take over, up to round `newest`. The arrays are read-only and stay as they are."""

    newest: int
    fragments: Mapping[int, tuple[str, Tensors]]  # fragment → (SHA-256 of its theta payload, theta)
    evaluate: int | None = None  # the round to evaluate once this is taken over: always `newest`
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)  # by round


@dataclass
class Telemetry:
    """The training thread's last words on its progress. Plain values; a torn read costs nothing."""

    phase: str = "join"
    round: int = 0
    step: int = 0
    steps: int = 0
    trained_s: float = 0.0  # in inner steps of this incarnation,
    alive_s: float = 0.0  # and the time that it had for them; this and the next two as the communication thread knows them
    power_w: float | None = None
    energy_wh: float | None = None
    tokens_per_s: float = 0.0
    loss: float | None = None
    held: str = ""  # why no step is made, while that is for this machine's owner

    def spent(self) -> Spent:
        # A step may end after the pause was asked for.
        alive_s = max(self.alive_s, self.trained_s)
        return Spent(
            alive_s=round(alive_s, 3), trained_s=round(self.trained_s, 3), power_w=self.power_w, energy_wh=self.energy_wh
        )


@dataclass
class Handoff:
    telemetry: Telemetry = field(default_factory=Telemetry)
    evaluates: bool = True  # whether the training thread can evaluate
    wake: Callable[[], None] = lambda: None  # wakes the communication thread; thread-safe
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _outbox: deque[Publication] = field(default_factory=deque)
    _awaited: set[int] = field(default_factory=set)  # rounds that were reported to, and whose outcome was not told yet
    _inbox: deque[Aligned] = field(default_factory=deque)
    _evals: deque[EvalRecord] = field(default_factory=deque)
    _flush: bool = False
    _paused: bool = False
    _held: str = ""
    _free: bool = False  # the training thread waits for a client to train
    _assigned: Assignment | None = None
    _hurry: int = -1  # the round that is to be reported to with what there is
    _ended: str | None = None
    _error: BaseException | None = None

    # Training thread

    def publish(self, publication: Publication) -> None:
        """Added to those that are still under way."""
        with self._changed:
            self._outbox.append(publication)
            self._awaited.add(publication.round)
        self.wake()

    @property
    def unpublished(self) -> tuple[Publication, ...]:
        """Those that are still under way, oldest first."""
        with self._changed:
            return tuple(self._outbox)

    def expect(self, rounds: Iterable[int]) -> None:
        """A former incarnation has reported to these rounds: their outcome is to be told too."""
        with self._changed:
            self._awaited.update(rounds)

    def take_aligned(self) -> Aligned | None:
        """The next one, oldest first. Raises what ended the communication thread."""
        with self._changed:
            if self._error is not None:
                raise self._error
            return self._inbox.popleft() if self._inbox else None

    def wait(self, timeout_s: float) -> None:
        """Until something may have changed, at most `timeout_s`."""
        with self._changed:
            to_train = self._assigned is not None and not self._held
            if not (self._inbox or to_train) and self._ended is None and self._error is None:
                self._changed.wait(timeout_s)

    def assignment(self) -> Assignment | None:
        """A client to train; if there is none yet, one is asked for."""
        with self._changed:
            assigned, self._assigned = self._assigned, None
            asked, self._free = self._free, assigned is None
        if assigned is None and not asked:
            self.wake()
        return assigned

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

    @property
    def paused(self) -> bool:
        """Whether no inner step is to be made for now. What was committed is taken over all the same."""
        return self._paused

    @property
    def held(self) -> str:
        """Why no inner step is to be made here, for this machine's owner comes first; '' if that is not so."""
        return self._held

    def hurried(self, round: int) -> bool:
        """Whether `round` is about to close without this learner, unless it reports what it has."""
        return self._hurry == round

    # Any thread

    def hold(self, reason: str) -> None:
        """This machine's owner comes first from now on; '': not any more."""
        with self._changed:
            self._held = reason
            if not reason:
                self._hurry = -1  # what was done before was asked for; what is done now is not
            self._changed.notify_all()
        self.wake()

    # Communication thread

    @property
    def free(self) -> bool:
        """Whether the training thread waits for a client, and has taken over all that was committed."""
        with self._changed:
            return self._free and not self._inbox and self._assigned is None

    def assign(self, assignment: Assignment) -> None:
        with self._changed:
            self._assigned, self._free = assignment, False
            self._changed.notify_all()

    def outgoing(self) -> Publication | None:
        """The next publication: it stays until `published`, so that a failed attempt is repeated."""
        with self._changed:
            return self._outbox[0] if self._outbox else None

    def published(self, publication: Publication) -> None:
        """It is done with."""
        with self._changed:
            if self._outbox and self._outbox[0] is publication:
                self._outbox.popleft()
            self._changed.notify_all()

    @property
    def awaited(self) -> tuple[int, ...]:
        """Rounds that the training thread has reported to, and whose outcome it was not told yet."""
        with self._changed:
            return tuple(sorted(self._awaited))

    def align(self, aligned: Aligned, *, ended: str | None = None) -> None:
        """Added to the last one that is not taken yet, so that a long step holds one copy of the model and not one a round;
        but what is to be evaluated stays as it is. Publications for rounds up to it are of no use any more. `ended`: why the
        run is over with it; told at once, lest steps be made that nobody needs."""
        with self._changed:
            self._ended = self._ended or ended
            self._outbox = deque(publication for publication in self._outbox if publication.round > aligned.newest)
            self._awaited = {round for round in self._awaited if round > aligned.newest}
            if self._inbox and self._inbox[-1].evaluate is None:
                before = self._inbox.pop()
                aligned = dataclasses.replace(
                    aligned,
                    fragments={**before.fragments, **aligned.fragments},
                    verdicts={**before.verdicts, **aligned.verdicts},
                )
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

    def ask_flush(self, wanted: bool = True) -> None:
        with self._changed:
            self._flush = wanted
            self._changed.notify_all()

    def pause(self, paused: bool) -> None:
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        with self._changed:
            self._ended = self._ended or reason
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
