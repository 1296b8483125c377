"""A session: a model of one's own, trained together with others.

    with swarm.Session(model, algorithm=swarm.DiLoCo(sync_every=20), mailbox="/mnt/nas/swarm", rounds=100) as session:
        result = session.run(train_step, batches)

or, step by step:

    with swarm.Session(model, algorithm=…, mailbox=…) as session:
        for _ in session:
            loss = …  # one inner step
            session.report(tokens=batch.numel(), loss=loss)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from swarm.core.records import Role
from swarm.core.specs import DiLoCo
from swarm.host.paths import checkpoints_dir
from swarm.learners.contract import Adapter
from swarm.learners.layout import Layout
from swarm.library.base import BaseSession, Result
from swarm.library.batches import outcome, repeated
from swarm.library.callbacks import Callback
from swarm.library.place import Place, mark_of
from swarm.library.resuming import Steps, parts
from swarm.library.waiting import wait_for
from swarm.runtime.local import local_of
from swarm.runtime.resuming import Part
from swarm.runtime.session import Session as RuntimeSession
from swarm.tasks.contract import Resumable

B = TypeVar("B")


class Session(BaseSession[RuntimeSession]):
    """A learner of a DiLoCo run, with a model of the program's own: a torch.nn.Module, an mlx.nn.Module or a dict of NumPy
    arrays.

    Making one does nothing yet. Entering it finds the run or makes it, joins it, and sets the model's parameters to the
    committed ones; leaving it reports what was begun and says goodbye. Use it from one thread.
    """

    takes = DiLoCo

    def __init__(
        self,
        model: Any,
        *,
        algorithm: DiLoCo | None = None,
        mailbox: Place = None,
        run: str | None = None,
        rounds: int | None = None,
        learner_id: str | None = None,
        role: Role = "both",
        layout: Layout | str | None = None,
        optimizer: Any = None,
        state: Resumable | None = None,
        evaluate: Callable[[], Any] | None = None,
        callbacks: Iterable[Callback] = (),
        seed: int = 0,
        checkpoint_every: int = 0,
        create_mailbox: bool = False,
    ) -> None:
        """`algorithm`: how the run is configured; None: as it is. `mailbox`: a folder or a Mailbox; None: SWARM_MAILBOX, else
        the one last used on this machine. `run`: its name, by default that of the model's class in lower case; who comes first
        makes the run, and `rounds` (None: until it is stopped), `seed`, `checkpoint_every` (turns through all fragments after
        which the parameters are kept for good; 0: never) and its model's parameters are then the run's.
        `learner_id`: by default the host's name. `role`: whether this learner also closes rounds. `layout`: how the parameters
        map to the canonical ones of the run (swarm.Layout), for models that differ between the frameworks; 'auto': found from
        the types of the modules. `optimizer`: the torch.optim.Optimizer or mlx.optimizers.Optimizer that train_step uses;
        `state`: anything else that goes on after a restart, such as a scheduler or a position in the data, with state(), which
        returns a swarm.TaskState, and load(state). Both are kept on this machine together with the parameters, the counts of
        steps and what was not reported yet: a program that is started again as the same learner of the same run goes on from
        there, and an event (Restored) says with what. PyTorch's learning rates stay the program's, MLX's belong to the
        optimizer's state. `evaluate`: returns the loss of the parameters in the model on held-out data,
        or a mapping of that and other metrics; called after the rounds that this learner evaluates. `callbacks`: each is
        called with every event (swarm.events), one at a time, on a thread of their own; what one raises ends the session.
        `create_mailbox`: make an empty or missing folder a mailbox, as `swarm init` does.

        Entering raises MailboxAway if there is no mailbox, SchemaMismatch and RunConfigMismatch, naming every parameter and
        field, before anything is written; RunEnded, LearnerIdTaken."""
        super().__init__(
            model,
            algorithm=algorithm,
            mailbox=mailbox,
            run=run,
            rounds=rounds,
            learner_id=learner_id,
            role=role,
            layout=layout,
            evaluate=evaluate,
            callbacks=callbacks,
            seed=seed,
            checkpoint_every=checkpoint_every,
            create_mailbox=create_mailbox,
        )
        self._optimizer, self._state = optimizer, state
        self._steps = Steps()
        self._kept: list[Part] = []

    def _check(self) -> None:
        self._kept = parts(self.model, steps=self._steps, optimizer=self._optimizer, state=self._state)

    def _joining(self, adapter: Adapter, common: dict[str, Any]) -> RuntimeSession:
        manifest = self.manifest
        sha256 = wait_for(mark_of(common["mailbox"], manifest.run, self._callbacks.emit))
        local = local_of(checkpoints_dir(), manifest, manifest_sha256=sha256, now_s=time.time())
        return RuntimeSession(adapter, local=local, parts=self._kept, **common)

    # Training

    def run(self, train_step: Callable[[B], Any], data: Iterable[B]) -> Result:
        """Train until the run ends or this learner leaves; enters and leaves the session if that was not done.

        `train_step(batch)` makes one inner step and returns its loss, or (loss, amount), or a mapping with 'loss' and 'tokens'
        or 'samples'. The amount, in the run's weight_unit, is what the step trained on; left out, it is counted from the
        batch's first array.
        `data`: any iterable of batches, read again when it ends. A learner that comes back reads it from its beginning: data
        that can go on where it stood is passed as the session's `state` too, and `steps_before` says how much was read.
        """
        if not self._within:
            with self:
                return self.run(train_step, data)
        unit, reason = self.manifest.algorithm.weight_unit, None
        with contextlib.closing(repeated(data)) as batches:
            for _ in self:
                try:
                    batch = next(batches)
                except StopIteration:
                    reason = "data"
                    self.leave()
                    continue
                loss, amount = outcome(train_step(batch), batch, unit)
                self.report(**{unit: amount}, loss=loss)
        return self._ended(steps=self._steps.made, reason=reason)

    def __iter__(self) -> Iterator[int]:
        """Yields the round to make one inner step for, until the run ends or this learner leaves. Tell each with `report`."""
        session = self._runtime()
        for round in session:
            self._callbacks.check()
            yield round

    def report(self, *, tokens: int | None = None, samples: int | None = None, loss: float | None = None) -> None:
        """One inner step was made, on so many tokens or samples: the run's weight_unit says which of them counts. Raises
        UsageError if that one is missing."""
        self._runtime().report(tokens=tokens, samples=samples, loss=loss)
        self._steps.made += 1

    @property
    def steps_before(self) -> int:
        """Inner steps that this learner made before this process, as far as it goes on from them; 0 for a fresh start."""
        self._runtime()
        return self._steps.before
