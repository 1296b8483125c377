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
import hashlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import psutil

from swarm import __version__
from swarm.core.errors import RunEnded, RunNotFound, UsageError
from swarm.core.events import Created, Trouble
from swarm.core.ids import learner_id as check_learner_id
from swarm.core.ids import learner_id_from_host
from swarm.core.records import LearnerRecord, Manifest, Role
from swarm.core.sentences import fewer_fragments
from swarm.core.specs import DiLoCo
from swarm.host.identity import holder, identity, machine_name, process_alive, process_gone
from swarm.host.paths import checkpoints_dir
from swarm.learners.contract import Adapter
from swarm.learners.layout import Layout
from swarm.learners.select import adapter_for
from swarm.library.batches import evaluation, outcome, repeated
from swarm.library.callbacks import Callback, Callbacks
from swarm.library.devices import device_of
from swarm.library.member import Member
from swarm.library.place import Place, check_fits, check_name, draft, looked_up, made, mark_of, opened
from swarm.library.resuming import Steps, parts
from swarm.library.waiting import wait_for
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.threads import DaemonThreads
from swarm.runtime.local import local_of
from swarm.runtime.session import Session as RuntimeSession
from swarm.tasks.contract import EvalResult, Resumable

B = TypeVar("B")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a session's training ended."""

    reason: str  # 'done', 'stopped' (by `swarm stop`), 'left' (Ctrl-C or `leave`), 'data' (it ended, and cannot be read again)
    rounds: int  # committed ones
    steps: int  # inner steps made here
    run: str  # id
    learner: str
    params_sha256: str  # of the model's parameters: equal for all whose reason is 'done'


class Session:
    """A learner of a run, with a model of the program's own: a torch.nn.Module, an mlx.nn.Module or a dict of NumPy arrays.

    Making one does nothing yet. Entering it finds the run or makes it, joins it, and sets the model's parameters to the
    committed ones; leaving it reports what was begun and says goodbye. Use it from one thread.
    """

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
        if algorithm is not None and not isinstance(algorithm, DiLoCo):
            raise UsageError(f"algorithm must be a swarm.DiLoCo, got {algorithm!r:.100}")
        if rounds is not None and type(rounds) is not int:
            raise UsageError(f"rounds must be a whole number or None, got {rounds!r:.100}")
        if not (mailbox is None or isinstance(mailbox, str | os.PathLike) or hasattr(mailbox, "read_part")):
            raise UsageError(f"mailbox must be a folder or a Mailbox, got {mailbox!r:.100}")
        self.model = model
        self._algorithm, self._mailbox, self._rounds, self._seed = algorithm, mailbox, rounds, seed
        self._checkpoint_every = checkpoint_every
        self._name = check_name(learner_id_from_host(type(model).__name__) if run is None else run, "run")
        self._learner = None if learner_id is None else check_learner_id(learner_id)
        if role == "syncer":
            raise UsageError("a session trains: `swarm join --role syncer` closes rounds without training")
        self._role: Role = role
        self._layout = layout
        self._optimizer, self._state = optimizer, state
        self._create_mailbox = create_mailbox
        self._evaluate = evaluate
        self._callbacks = Callbacks(callbacks, failed=self.leave)
        self._opened: Mailbox | None = None
        self._manifest: Manifest | None = None
        self._session: RuntimeSession | None = None
        self._within = False
        self._leaving = False
        self._steps = Steps()
        self._handlers: dict[int, Any] = {}

    # Life

    def __enter__(self) -> Session:
        if self._session is not None:
            raise UsageError("a session is entered once: make another one")
        self._callbacks.start()
        try:
            adapter = adapter_for(self.model, self._layout)
            for warning in adapter.warnings():
                warnings.warn(warning, stacklevel=2)
            self._session = self._prepared(adapter)
            self._catch_signals()
            try:
                self._session.__enter__()
            except RunEnded as error:
                raise RunEnded(f"{error}: Session(run=…) with another name starts another one") from None
        except BaseException:
            self._close()
            raise
        self._within = True
        return self

    def _prepared(self, adapter: Adapter) -> RuntimeSession:
        me, process, compute = identity(), psutil.Process(), DaemonThreads(1)
        kept = parts(self.model, steps=self._steps, optimizer=self._optimizer, state=self._state)
        mailbox = wait_for(opened(self._mailbox, create=self._create_mailbox))
        manifest = self._found_or_made(mailbox, adapter)
        self._opened, self._manifest = mailbox, manifest
        sha256 = wait_for(mark_of(mailbox, manifest.run, self._callbacks.emit))
        record = LearnerRecord(
            learner=self._learner or learner_id_from_host(me.machine_name),
            incarnation=1,
            machine=me.machine,
            machine_name=me.machine_name,
            boot=me.boot,
            pid=me.pid,
            process=me.process,
            version=__version__,
            device=f"{adapter.framework} {device_of(self.model)}".strip(),
            role=self._role,
        )
        return RuntimeSession(
            adapter,
            mailbox=mailbox,
            manifest=manifest,
            me=record,
            gone=lambda other: process_gone(me, holder(other)),
            alive=lambda other: process_alive(me, holder(other)),
            may_rename=self._learner is None,
            emit=self._callbacks.emit,
            evaluate=None if self._evaluate is None else self._evaluated,
            local=local_of(checkpoints_dir(), manifest, manifest_sha256=sha256, now_s=time.time()),
            parts=kept,
            offload=compute.run,
            rss_bytes=lambda: int(process.memory_info().rss),
            warns=False,  # as Python does
        )

    def _found_or_made(self, mailbox: Mailbox, adapter: Adapter) -> Manifest:
        # The adapter is called on this thread: MLX's arrays belong to the one that made them.
        emit, schema = self._callbacks.emit, adapter.schema()
        there = wait_for(looked_up(mailbox, self._name, emit))
        new = False
        if isinstance(there, RunNotFound):
            if self._algorithm is None:
                raise RunNotFound(f"{there}; with algorithm=swarm.DiLoCo(…) it is made")
            plan = draft(
                self._name,
                model=type(self.model).__name__,
                schema=schema,
                algorithm=self._algorithm,
                rounds=self._rounds,
                seed=self._seed,
                evaluates=self._evaluate is not None,
                checkpoint_every=self._checkpoint_every,
                created_by=machine_name(),
            )
            there, new = wait_for(made(mailbox, plan, adapter.snapshot(), emit))
        check_fits(there, schema=schema, algorithm=self._algorithm, rounds=self._rounds)
        if new:
            emit(Created(run=there.run, name=there.name))
            if self._algorithm is not None and (fewer := fewer_fragments(self._algorithm, there.algorithm)):
                emit(Trouble(message=fewer))
        return there

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._within = False
        assert self._session is not None
        try:
            self._session.__exit__(kind, error, trace)
        finally:
            self._close()
        if error is None:
            self._callbacks.check()

    def _close(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
        self._callbacks.stop()

    def _catch_signals(self) -> None:
        """Ctrl-C and SIGTERM leave the run; a second one interrupts. Only where the program has no handler of its own."""
        if threading.current_thread() is not threading.main_thread():
            return

        def on_signal(number: int, frame: object) -> None:
            if self._leaving:
                raise KeyboardInterrupt
            self.leave()

        for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is default:
                self._handlers[number] = signal.signal(number, on_signal)

    def leave(self) -> None:
        """Leave after the step under way. May be called from any thread, from a callback and from a signal handler."""
        self._leaving = True
        if self._session is not None:
            self._session.leave()

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
        return self._result(reason)

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

    def _result(self, reason: str | None) -> Result:
        ended = self._runtime().ended
        assert ended is not None  # the iteration is over
        return Result(
            reason=reason or ended.reason,
            rounds=ended.rounds,
            steps=self._steps.made,
            run=self.manifest.run,
            learner=self.learner,
            params_sha256=ended.params_sha256,
        )

    def _evaluated(self) -> EvalResult:
        assert self._evaluate is not None
        return evaluation(self._evaluate())

    # What it is

    def _runtime(self) -> RuntimeSession:
        if self._session is None or not self._within:
            raise UsageError("the session is not entered: `with swarm.Session(…) as session:`")
        return self._session

    @property
    def manifest(self) -> Manifest:
        """The run's description."""
        if self._manifest is None:
            raise UsageError("the session is not entered: `with swarm.Session(…) as session:`")
        return self._manifest

    @property
    def learner(self) -> str:
        """This learner's id in the run."""
        return self._runtime().me.learner

    @property
    def steps_before(self) -> int:
        """Inner steps that this learner made before this process, as far as it goes on from them; 0 for a fresh start."""
        self._runtime()
        return self._steps.before

    @property
    def stream_seed(self) -> int:
        """A seed for this learner's data, 0 to 2⁶³ − 1: another one for every learner of the run and for every time that it
        comes back, so that no two train on the same batches."""
        me = self._runtime().me
        digest = hashlib.sha256(f"{self.manifest.seed} {me.learner} {me.incarnation}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    @property
    def member(self) -> Member:
        """Who this is in the run: for queues, slices and barriers."""
        session = self._runtime()
        assert self._opened is not None
        return Member(
            mailbox=self._opened,
            manifest=self.manifest,
            learner=session.me.learner,
            incarnation=session.me.incarnation,
            emit=self._callbacks.emit,
            leaving=lambda: self._leaving,
        )
