"""Saving a learner's state on its own machine, between two steps, and going on from it after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import CheckpointUnsaved, StateMismatch
from swarm.core.events import Restored, Trouble, WorkerEvent
from swarm.runtime.handoff import Handoff, Verdict
from swarm.runtime.inner import InnerLoop
from swarm.runtime.local import Loaded, Saver, Unusable
from swarm.runtime.saved import Saved, save
from swarm.tasks.contract import Resumable, TaskState

if TYPE_CHECKING:
    from swarm.runtime.saved import Sections


class LocalStore(Protocol):
    """What swarm.runtime.local.LocalCheckpoint offers."""

    def save(self, sections: Sections, values: Mapping[str, Any]) -> None: ...

    def load(self) -> Loaded | Unusable | None: ...

    def remove(self) -> None: ...


@dataclass(frozen=True)
class Part:
    """What is kept beside the inner loop."""

    name: str  # of its arrays and values on the disk: any but the inner loop's
    kept: Resumable
    words: tuple[str, ...] = ()  # what is taken up with it
    optimizer: bool = False  # its arrays are an inner optimizer's
    needed: bool = True  # if it does not fit, nothing is resumed


def of_task(task: Resumable) -> Part:
    return Part("task", task, ("the inner optimizer", "the position in the data"), optimizer=True)


class Keeper:
    """One thread's: the one that trains."""

    def __init__(
        self,
        store: LocalStore | None,
        parts: Iterable[Part] = (),
        *,
        emit: Callable[[WorkerEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._store, self._parts, self._emit, self._clock = store, tuple(parts), emit, clock
        self._saver = Saver(began_s=clock())
        self._failing = False
        self._found: Loaded | None = None
        self._saved: Saved | None = None
        self.resumed = False
        """Whether a part stands where a former incarnation's stood."""
        # Moments begin with zeros in every optimizer; of anything small, like a step count or a rate, a copy is kept.
        self._optimizer = next((part.kept for part in self._parts if part.optimizer), None)
        arrays = {} if self._optimizer is None else self._optimizer.state().arrays
        self._fresh = {name: np.array(a) if a.size <= 1 else (a.shape, a.dtype) for name, a in arrays.items()}

    # Going on

    def open(self, inner: InnerLoop) -> tuple[int, ...]:
        """Look for what was saved. `inner` is fresh from the newest commit. Returns the rounds whose verdicts `resume` must
        be given. If it cannot be used, an event says so, and there is nothing to resume."""
        found = self._store.load() if self._store is not None else None
        match found:
            case None:
                return ()
            case Unusable(reason=reason):
                self._refuse(reason)
                return ()
            case Loaded(passed_over=str(reason)):
                self._emit(Trouble(message=f"an older local checkpoint is resumed: {reason}"))
        try:
            self._saved = Saved(inner, found.sections, found.values.get("loop"))
        except StateMismatch as error:
            self._refuse(error)
            return ()
        self._found = found
        return self._saved.rounds or ()

    def resume(self, inner: InnerLoop, handoff: Handoff, verdicts: Mapping[int, Verdict]) -> None:
        """Go on from it, if there is anything, and say in an event what was taken up. `verdicts`: what the records of the
        rounds that `open` named say of this learner."""
        if self._saved is None or self._found is None:
            return
        saved, found, self._saved, self._found = self._saved, self._found, None, None
        what: list[str] = []
        for part in self._parts:
            values = found.values.get(part.name)
            if not isinstance(values, dict):
                continue
            try:
                part.kept.load(TaskState(arrays=found.sections.get(part.name, {}), values=values))
            except StateMismatch as error:
                if part.needed:
                    self._refuse(error)
                    return
                if part.words:
                    self._emit(Trouble(message=f"{_listed(part.words)} cannot be resumed: {error}"))
            else:
                self.resumed = True
                what += part.words
        if saved.rounds is None:
            self._emit(Trouble(message="many rounds were committed meanwhile: local steps of before are given up"))
        else:
            publications = saved.take_up(verdicts)
            steps = max(part.local.steps for part in inner.parts)
            if steps or not what:
                what.insert(0, f"{steps} local step{'s' if steps != 1 else ''}")
            if any(part.residual for part in inner.parts):
                what.append("what rounding has kept back")
            if publications:
                what.append("a snapshot that is published again")
            # The former incarnation may have published more after it last saved.
            handoff.expect(range(inner.newest + 1, inner.newest + 1 + len(inner.plan)))
            for publication in publications:
                handoff.publish(publication)
        if what:
            self._emit(Restored(round=inner.round, step=inner.step, what=_listed(what)))

    def _refuse(self, reason: object) -> None:
        self._emit(Trouble(message=f"nothing is resumed, and training starts from the newest commit: {reason}"))

    # Saving

    def save(self, inner: InnerLoop, handoff: Handoff, *, boundary: bool, leaving: bool = False) -> bool:
        """If it is time for it, and whether it was. Never fails: the first of several failures in a row is told."""
        began_s = self._clock()
        if self._store is None or not self._saver.due(began_s, boundary=boundary, leaving=leaving):
            return False
        sections, loop = save(inner, handoff.unpublished)
        values: dict[str, Any] = {"loop": loop}
        for part in self._parts:
            state = part.kept.state()
            sections[part.name], values[part.name] = dict(state.arrays), dict(state.values)
        try:
            self._store.save(sections, values)
        except CheckpointUnsaved as error:
            if not self._failing:
                self._emit(Trouble(message=f"{error}: a restart would lose more, training goes on"))
            self._failing = True
        else:
            self._failing = False
        self._saver.tried(began_s=began_s, now_s=self._clock())
        return True

    def remove(self) -> None:
        """The run has ended: nothing is to be resumed any more."""
        if self._store is not None:
            self._store.remove()

    # Repairing

    def mend(self) -> str:
        """What becomes of the inner optimizer when the parameters were not finite: a fresh one, if its state is not finite
        either. In words."""
        if self._optimizer is None:
            return "the inner optimizer keeps its state"
        state = self._optimizer.state()
        if all(_finite(array) for array in state.arrays.values()):
            return "the inner optimizer keeps its state, which is finite"
        fresh: dict[str, NDArray[Any]] = {
            name: kept if isinstance(kept, np.ndarray) else np.zeros(*kept) for name, kept in self._fresh.items()
        }
        self._optimizer.load(TaskState(arrays=fresh, values=state.values))
        return "the inner optimizer starts afresh"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _finite(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "biu" or bool(np.isfinite(array).all())
