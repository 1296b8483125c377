"""What all sessions of programs have in common: the mailbox, the run, who this learner is, callbacks, signals."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, assert_never

import msgspec
import psutil

from swarm import __version__
from swarm.core.errors import RunEnded, RunNotFound, UsageError
from swarm.core.events import Created, Ended, Trouble
from swarm.core.finetune import FineTune
from swarm.core.ids import learner_id as check_learner_id
from swarm.core.ids import learner_id_from_host
from swarm.core.manifest import Manifest
from swarm.core.records import LearnerRecord, Role
from swarm.core.sentences import fewer_fragments
from swarm.core.specs import Algorithm, ByRounds, DiLoCo, FedAvg
from swarm.host import settings
from swarm.host.accelerators import training_memory
from swarm.host.energy import metered
from swarm.host.identity import holder, identity, machine_name, process_alive, process_gone
from swarm.learners.contract import Adapter
from swarm.learners.devices import cards_of
from swarm.learners.layout import Layout
from swarm.learners.select import adapter_for
from swarm.library.batches import evaluation
from swarm.library.callbacks import Callback, Callbacks
from swarm.library.devices import device_of
from swarm.library.member import Member
from swarm.library.place import Place, check_fits, check_name, draft, looked_up, made, opened
from swarm.library.waiting import wait_for
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.threads import DaemonThreads
from swarm.tasks.contract import EvalResult


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a session's training ended."""

    reason: str  # 'done', 'stopped' (by `swarm stop`), 'left' (Ctrl-C or `leave`), 'data' (it ended, and cannot be read again)
    rounds: int  # committed ones
    steps: int  # inner steps made here
    run: str  # id
    learner: str
    params_sha256: str  # of the model's parameters: equal for all whose reason is 'done'
    clients: int = 0  # of FedAvg: trained here


class RuntimeSession(Protocol):
    """The session of swarm.runtime below one of these."""

    def __enter__(self) -> Any: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    @property
    def me(self) -> LearnerRecord: ...

    @property
    def ended(self) -> Ended | None: ...

    def leave(self) -> None: ...


R = TypeVar("R", bound=RuntimeSession)


class BaseSession(ABC, Generic[R]):
    """`takes`: the kind of algorithm whose runs this session enters."""

    takes: ClassVar[type[ByRounds]]

    def __init__(
        self,
        model: Any,
        *,
        algorithm: ByRounds | None,
        mailbox: Place,
        run: str | None,
        rounds: int | None,
        learner_id: str | None,
        role: Role,
        layout: Layout | str | None,
        evaluate: Callable[[], Any] | None,
        callbacks: Iterable[Callback],
        seed: int,
        checkpoint_every: int,
        create_mailbox: bool,
    ) -> None:
        """All arguments as for Session."""
        if algorithm is not None and not isinstance(algorithm, self.takes):
            wanted = f"algorithm must be a swarm.{self.takes.__name__}"
            if isinstance(algorithm, DiLoCo | FedAvg):
                raise UsageError(f"{wanted}: a swarm.{type(algorithm).__name__} is for {_entered_by(algorithm)}")
            raise UsageError(f"{wanted}, got {algorithm!r:.100}")
        if rounds is not None and type(rounds) is not int:
            raise UsageError(f"rounds must be a whole number or None, got {rounds!r:.100}")
        if not (mailbox is None or isinstance(mailbox, str | os.PathLike) or hasattr(mailbox, "read_part")):
            raise UsageError(f"mailbox must be a folder or a Mailbox, got {mailbox!r:.100}")
        if role == "syncer":
            raise UsageError("a session trains: `swarm join --role syncer` closes rounds without training")
        self.model = model
        self._algorithm, self._mailbox, self._rounds, self._seed = algorithm, mailbox, rounds, seed
        self._checkpoint_every = checkpoint_every
        self._name = check_name(learner_id_from_host(type(model).__name__) if run is None else run, "run")
        self._learner = None if learner_id is None else check_learner_id(learner_id)
        self._role: Role = role
        self._layout = layout
        self._create_mailbox = create_mailbox
        self._evaluate = evaluate
        self._callbacks = Callbacks(callbacks, failed=self.leave)
        self._opened: Mailbox | None = None
        self._manifest: Manifest | None = None
        self._session: R | None = None
        self._within = False
        self._leaving = False
        self._handlers: dict[int, Any] = {}
        self._metering = ExitStack()

    # What a kind of session adds

    def _check(self) -> None:
        """Raises UsageError for what can be told before the mailbox is looked at."""

    def _options(self) -> Mapping[str, int | str]:
        """What the run's description says of the program's data."""
        return {}

    def _differing(self, manifest: Manifest) -> list[str]:
        """What of this in an existing run is other than here, in words. Raises UsageError for what cannot be."""
        return []

    @abstractmethod
    def _joining(self, adapter: Adapter, common: dict[str, Any]) -> R:
        """The session below, not entered. `common`: arguments of it that do not depend on its kind."""

    # Life

    def __enter__(self) -> Self:
        if self._session is not None:
            raise UsageError("a session is entered once: make another one")
        self._callbacks.start()
        try:
            self._check()
            self._session = self._prepared()
            self._catch_signals()
            try:
                self._session.__enter__()
            except RunEnded as error:
                raise RunEnded(f"{error}: {type(self).__name__}(run=…) with another name starts another one") from None
        except BaseException:
            self._close()
            raise
        self._within = True
        return self

    def _prepared(self) -> R:
        me, process, compute = identity(), psutil.Process(), DaemonThreads(1)
        mailbox = wait_for(opened(self._mailbox, create=self._create_mailbox))
        manifest, adapter = self._found_or_made(mailbox)
        self._opened, self._manifest = mailbox, manifest
        device = device_of(self.model)
        cards = cards_of(adapter.framework, device)
        record = LearnerRecord(
            learner=self._learner or learner_id_from_host(me.machine_name),
            incarnation=1,
            machine=me.machine,
            machine_name=me.machine_name,
            boot=me.boot,
            pid=me.pid,
            process=me.process,
            version=__version__,
            device=f"{adapter.framework} {device}".strip(),
            memory_bytes=training_memory(cards),
            role=self._role,
        )
        common: dict[str, Any] = {
            "mailbox": mailbox,
            "manifest": manifest,
            "me": record,
            "gone": lambda other: process_gone(me, holder(other)),
            "alive": lambda other: process_alive(me, holder(other)),
            "may_rename": self._learner is None,
            "emit": self._callbacks.emit,
            "evaluate": None if self._evaluate is None else self._evaluated,
            "offload": compute.run,
            "rss_bytes": lambda: int(process.memory_info().rss),
            "draws": self._metering.enter_context(metered(cards, powermetrics=settings.load()[0].powermetrics)),
            "warns": False,  # as Python does
        }
        return self._joining(adapter, common)

    def _found_or_made(self, mailbox: Mailbox) -> tuple[Manifest, Adapter]:
        # The adapter is called on this thread: MLX's arrays belong to the one that made them.
        emit = self._callbacks.emit
        there = wait_for(looked_up(mailbox, self._name, emit))
        if isinstance(there, RunNotFound):
            if self._algorithm is None:
                raise RunNotFound(f"{there}; with algorithm=swarm.{self.takes.__name__}(…) it is made")
            adapter = self._adapter(self._algorithm)
            plan = draft(
                self._name,
                options={"model": type(self.model).__name__, **self._options()},
                schema=adapter.schema(),
                algorithm=self._algorithm,
                rounds=self._rounds,
                seed=self._seed,
                evaluates=self._evaluate is not None,
                checkpoint_every=self._checkpoint_every,
                created_by=machine_name(),
            )
            there, new = wait_for(made(mailbox, plan, adapter.snapshot(), emit))
            if new:
                emit(Created(run=there.run, name=there.name))
                if fewer := _fewer_fragments(self._algorithm, there.algorithm):
                    emit(Trouble(message=fewer))
                return there, adapter
        if not isinstance(there.algorithm, self.takes):
            kind, entered = type(there.algorithm).__name__, _entered_by(there.algorithm)
            raise UsageError(f"run {there.name} is a {kind}, which a program enters with {entered}, not {_name_of(type(self))}")
        adapter = self._adapter(there.by_rounds)  # as the run has it: what differs is told as a setting, not as parameters
        check_fits(
            there, schema=adapter.schema(), algorithm=self._algorithm, rounds=self._rounds, others=self._differing(there)
        )
        return there, adapter

    def _adapter(self, algorithm: ByRounds) -> Adapter:
        match algorithm:
            case DiLoCo():
                buffers = False
            case FedAvg():
                buffers = algorithm.buffers == "averaged"
            case _:
                assert_never(algorithm)
        adapter = adapter_for(self.model, self._layout, buffers=buffers)
        for warning in adapter.warnings():
            warnings.warn(warning, stacklevel=5)  # where the session is entered
        return adapter

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
        self._metering.close()
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

    # What it is

    def _runtime(self) -> R:
        if self._session is None or not self._within:
            raise UsageError(self._not_entered)
        return self._session

    @property
    def _not_entered(self) -> str:
        return f"the session is not entered: `with swarm.{type(self).__name__}(…) as session:`"

    def _ended(self, *, steps: int, clients: int = 0, reason: str | None = None) -> Result:
        """Once the iteration is over."""
        ended = self._runtime().ended
        assert ended is not None
        return Result(
            reason=reason or ended.reason,
            rounds=ended.rounds,
            steps=steps,
            run=self.manifest.run,
            learner=self.learner,
            params_sha256=ended.params_sha256,
            clients=clients,
        )

    def _evaluated(self) -> EvalResult:
        assert self._evaluate is not None
        return evaluation(self._evaluate())

    @property
    def manifest(self) -> Manifest:
        """The run's description."""
        if self._manifest is None:
            raise UsageError(self._not_entered)
        return self._manifest

    @property
    def learner(self) -> str:
        """This learner's id in the run."""
        return self._runtime().me.learner

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


def _entered_by(algorithm: Algorithm) -> str:
    """What a program enters such a run with."""
    match algorithm:
        case DiLoCo():
            return "swarm.Session"
        case FedAvg():
            return "swarm.ClientSession"
        case FineTune():
            return "`swarm join`"
        case _:
            assert_never(algorithm)


def _name_of(session: type[BaseSession[Any]]) -> str:
    return f"swarm.{session.__name__}"


def _fewer_fragments(asked: Algorithm, made: Algorithm) -> str | None:
    return fewer_fragments(asked, made) if isinstance(asked, DiLoCo) and isinstance(made, DiLoCo) else None
