"""A training process: `python -m swarm.worker JOB_DIR`. The only module that pulls in a framework at run time.

JOB_DIR holds order.json (what to do); this process adds process.json (who does it) and events.jsonl (how it goes).
SIGINT or SIGTERM, or the end of a piped standard input, asks it to leave cleanly; a second one makes it leave at once.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import psutil

from swarm import __version__, refusals
from swarm.advertising import advertised
from swarm.core.errors import INTERRUPTED, SwarmError, UsageError
from swarm.core.events import Building, Created, Failed, Joined, Trouble, WorkerEvent, level
from swarm.core.finetune import FineTune
from swarm.core.fragments import fitted
from swarm.core.jobs import CreateRun, Export, Generate, Learn, Order
from swarm.core.manifest import Manifest, TaskRef
from swarm.core.records import LearnerRecord
from swarm.core.sentences import fewer_fragments, sentence
from swarm.core.specs import Algorithm, DiLoCo, FedAvg
from swarm.host import paths, settings
from swarm.host.accelerators import training_memory
from swarm.host.energy import metered
from swarm.host.identity import Identity, holder, identity, note_process, process_alive, process_gone
from swarm.host.opening import mailbox_at
from swarm.host.tending import Tending, lower, manners
from swarm.learners.devices import cards_of
from swarm.manifests import manifest_sha256, read_manifest, read_to_write, run_ids

if TYPE_CHECKING:
    from swarm.mailbox.contract import Mailbox
    from swarm.tasks.contract import Task, Trainable

Places: TypeAlias = tuple[Path | None, Path | None]
_INTERRUPTED = Failed(error="KeyboardInterrupt", message="interrupted", exit_code=INTERRUPTED)


class EventFile:
    """Appends events to the job's events.jsonl, a line each, and in words to its log.txt. May be called from several
    threads, and from a signal handler."""

    def __init__(self, job: Path) -> None:
        self._job, self._lock = job, threading.RLock()
        self.also: list[Callable[[WorkerEvent], None]] = []  # called with each event, after it was written

    def __call__(self, event: WorkerEvent) -> None:
        words = sentence(event)
        with self._lock:
            self._append("events.jsonl", msgspec.json.encode(event))
            if words is not None:
                mark = "" if (severity := level(event)) == "INFO" else f"{severity} "
                self._append("log.txt", f"{time.strftime('%H:%M:%S')} {mark}{words}".encode())
        for each in tuple(self.also):
            try:
                each(event)
            except Exception as error:  # training, which this may be called from, goes on without it
                with contextlib.suppress(ValueError):  # another thread has noted it
                    self.also.remove(each)
                    self(Trouble(message=f"other machines are told no more of this one: {type(error).__name__}: {error}"))

    def _append(self, name: str, line: bytes) -> None:
        # A full disk here must not end the training.
        with contextlib.suppress(OSError), (self._job / name).open("ab") as file:
            file.write(line + b"\n")


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("usage: python -m swarm.worker JOB_DIR", file=sys.stderr)
        return 2
    job = Path(arguments[0])
    emit = EventFile(job)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until it can leave cleanly, this ends it with a word
    joined: list[Joined] = []
    emit.also.append(lambda event: joined.append(event) if isinstance(event, Joined) else None)
    order: Order | None = None
    try:
        me = identity()
        note_process(job, me.pid)
        order = msgspec.json.decode((job / "order.json").read_bytes(), type=Order)
        match order:
            case Learn():
                with contextlib.ExitStack() as part:
                    return learn(order, me, emit, part)
            case Export():
                return export(order)
            case Generate():
                return generate(order, emit)
    except SwarmError as error:
        emit(Failed(error=type(error).__name__, message=str(error), exit_code=error.exit_code))
        if not joined:
            _tell_others(order, error)
        return error.exit_code
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):  # once more: it is leaving already
            signal.signal(number, signal.SIG_IGN)
        emit(_INTERRUPTED)
        return INTERRUPTED
    except Exception as error:
        # The traceback goes to the log; a person gets one line and the way to it.
        emit(Failed(error=type(error).__name__, message=f"{type(error).__name__}: {error}"))
        if not joined:
            _tell_others(order, error)
        raise


def _tell_others(order: Order | None, error: Exception) -> None:
    """Why this machine does not come to take part, after it was said here."""
    if isinstance(order, Learn) and order.join and (reason := refusals.reason_of(error)):
        device = refusals.device_words(order.framework, order.device)
        run = order.run if order.create is None else order.create.run
        asyncio.run(refusals.tell(order.mailbox, run, reason=reason, role=order.role, device=device))


def learn(order: Learn, me: Identity, emit: EventFile, part: contextlib.ExitStack) -> int:
    """`part`: ended with this machine's part in the run."""
    from swarm.runtime.task_files import joined_files
    from swarm.tasks import registry

    leave = _leave_on_signals(emit)
    if (told := manners(order.owner, lower(order.nice))) is not None:
        emit(told)
    tending = Tending(order.owner, emit=emit)
    mailbox = mailbox_at(order.mailbox)
    ident = asyncio.run(mailbox.open())
    trainable: Trainable | None = None
    if order.create is None:
        manifest = asyncio.run(read_to_write(mailbox, order.run))
    else:
        if isinstance(order.create.algorithm, FineTune):
            from swarm.parallel.job import make

            manifest = make(mailbox, order, order.create, me, emit)
        else:
            manifest, trainable = _create(order, order.create, me, mailbox, emit)
        emit(Created(run=manifest.run, name=manifest.name))
        if asyncio.run(has_namesakes(mailbox, manifest)):  # two machines may start one at once
            name, run = manifest.name, manifest.run
            emit(Trouble(message=f"another run is called {name}, too: commands tell this one by its id, {run}"))
        if not order.join:
            return 0
    interfaces = () if order.interface is None else (order.interface,)
    telling = advertised(manifest, mailbox=ident, trouble=lambda why: emit(Trouble(message=why)), interfaces=interfaces)
    emit.also.append(part.enter_context(telling))
    fine_tunes = isinstance(manifest.algorithm, FineTune)
    if trainable is None and order.role != "syncer" and not fine_tunes:
        _check_own_data(manifest.algorithm, order)
        registry.get(manifest.task.name, package=manifest.task.package)  # before anything of the run's is fetched
        emit(Building(what=f"{manifest.task.name} for run {manifest.name}"))
        _hold(manifest.algorithm, manifest.task.name, order, wanted=manifest.replay, emit=emit)
        with joined_files(mailbox, manifest, data=order.data, model=order.model, emit=emit) as places:
            trainable = _build(manifest.task, manifest.seed, order, places, algorithm=manifest.algorithm)
    cards = () if trainable is None else cards_of(trainable.framework, trainable.device)
    record = LearnerRecord(
        learner=order.learner,
        incarnation=1,
        machine=me.machine,
        machine_name=me.machine_name,
        boot=me.boot,
        pid=me.pid,
        process=me.process,
        version=__version__,
        device=f"{trainable.framework} {trainable.device}" if trainable is not None else "mlx" if fine_tunes else "",
        memory_bytes=0 if trainable is None else training_memory(cards),
        role=order.role,
    )
    allowed = settings.load()[0].powermetrics
    if fine_tunes:
        from swarm.parallel.job import take_part

        take_part(mailbox, manifest, order, me=me, record=record, leave=leave, emit=emit, tend=tending.of, powermetrics=allowed)
        return 0
    process = psutil.Process()
    from swarm.mailbox.threads import DaemonThreads

    compute = DaemonThreads(1)
    common: dict[str, Any] = {
        "mailbox": mailbox,
        "manifest": manifest,
        "me": record,
        "gone": lambda other: process_gone(me, holder(other)),
        "alive": lambda other: process_alive(me, holder(other)),
        "may_rename": order.may_rename,
        "emit": emit,
        "offload": compute.run,
        "rss_bytes": lambda: process.memory_info().rss,
    }
    if order.role == "syncer":
        from swarm.runtime.syncer import Syncer

        syncer = Syncer(**common)
        leave(syncer.leave)
        if order.owner:
            emit(Trouble(message="closing rounds goes on, whoever is at this machine: only training holds still"))
        trainable = None  # what Θ⁰ was made with
        syncer.run()
        return 0
    assert trainable is not None
    common["draws"] = part.enter_context(metered(cards, powermetrics=allowed))
    if isinstance(manifest.algorithm, FedAvg):
        from swarm.runtime.federation import train_clients

        train_clients(trainable, leave, common, tend=tending.of)
        return 0
    from swarm.runtime.local import local_of
    from swarm.runtime.session import Session
    from swarm.tasks.contract import Resumable

    sha256 = asyncio.run(manifest_sha256(mailbox, manifest.run))
    session = Session(
        trainable.adapter,
        evaluate=trainable.evaluate,
        local=local_of(paths.checkpoints_dir(), manifest, manifest_sha256=sha256, now_s=time.time()),
        task=trainable if isinstance(trainable, Resumable) else None,
        **common,
    )
    leave(session.leave)
    tending.of(session)
    with session:
        if not session.resumed:
            trainable.use_stream(session.me.learner, session.me.incarnation)
        for _ in session:
            result = trainable.step()
            session.report(tokens=result.tokens, samples=result.samples, loss=result.loss)
    return 0


def _create(order: Learn, create: CreateRun, me: Identity, mailbox: Mailbox, emit: EventFile) -> tuple[Manifest, Trainable]:
    """Make the run: its Θ⁰ is the base model, or else this machine's freshly initialised one."""
    from swarm.exchange import check_payloads, create_run
    from swarm.runtime.base_model import take_over
    from swarm.runtime.task_files import new_files
    from swarm.tasks import registry

    task = registry.get(create.task)
    registry.check_installed(task)
    if order.join:
        _check_own_data(create.algorithm, order)
    files = new_files(task, create, order, emit)
    named = TaskRef(name=create.task, options=create.options, data=files.data, package=registry.package_of(create.task))
    base_path = None if create.base_model is None else Path(create.base_model)
    begins = "" if base_path is None else f", which begins with {base_path.name}"
    emit(Building(what=f"{create.task} for a new run{begins}"))
    algorithm = create.algorithm
    if isinstance(algorithm, FedAvg):
        from swarm.runtime.federation import check_new, with_threads

        framework, device = _place(order, task)
        algorithm = with_threads(algorithm, framework=framework, device=device, threads=order.threads)
    replay = _hold(algorithm, create.task, order, wanted=None, emit=emit)
    with files.seen() as places:
        trainable = _build(named, create.seed, order, places, algorithm=algorithm)
    if isinstance(algorithm, FedAvg):
        trains = order.join and order.role != "syncer"
        check_new(trainable, algorithm, task=create.task, seed=create.seed, trains=trains)
    base = None if base_path is None else take_over(base_path, trainable.adapter)
    schema = trainable.adapter.schema()
    asked, algorithm = algorithm, fitted(algorithm, schema)
    if fewer := fewer_fragments(asked, algorithm):
        emit(Trouble(message=fewer))
    manifest = Manifest(
        run=create.run,
        name=create.name,
        algorithm=algorithm,
        task=named,
        tensors=tuple(schema),
        schema_sha256=schema.digest,
        init=(),
        rounds=create.rounds,
        seed=create.seed,
        eval_every=0 if files.unseen else create.eval_every,
        checkpoint_every=create.checkpoint_every,
        checkpoints_kept=create.checkpoints_kept,
        created_by=me.machine_name,
        base=base,
        model=files.model,
        replay=replay,
        share=create.share,
    )
    check_payloads(manifest)  # before a file is attached
    theta = trainable.adapter.snapshot()
    init = [{name: theta[name] for name in names} for names in manifest.plan]
    manifest = msgspec.structs.replace(manifest, files=asyncio.run(files.attached(mailbox, create, emit)))
    manifest, _ = asyncio.run(create_run(mailbox, manifest, init))
    return manifest, trainable


async def has_namesakes(mailbox: Mailbox, manifest: Manifest) -> bool:
    for run in await run_ids(mailbox):
        with contextlib.suppress(SwarmError):
            if run != manifest.run and (await read_manifest(mailbox, run)).name == manifest.name:
                return True
    return False


def _build(
    named: TaskRef, seed: int, order: Learn | Generate, places: Places, *, algorithm: Algorithm | None = None
) -> Trainable:
    """`places`: of the task's data and of its base model."""
    from swarm.tasks import registry

    task = registry.get(named.name, package=named.package)
    framework, device = _place(order, task)
    how: dict[str, Any] = {}
    match algorithm:
        case DiLoCo():
            how = {"batch_size": algorithm.batch_size}
        case FedAvg():
            how = {"buffers": algorithm.buffers == "averaged", "private": algorithm.private}
    return registry.build(
        task,
        **how,
        framework=framework,
        device=device,
        options=named.options,
        data=list(named.data),
        data_path=places[0],
        model_path=places[1],
        seed=seed,
    )


def _place(order: Learn | Generate, task: Task) -> tuple[str, str]:
    """(framework, device)"""
    from swarm.learners.devices import resolve
    from swarm.tasks import registry

    registry.check_installed(task)
    return resolve(order.framework, order.device, task.frameworks)


def _hold(algorithm: Algorithm, task: str, order: Learn, *, wanted: str | None, emit: EventFile) -> str:
    """Hold this process to what a seeded run replays with (runtime/federation.py)."""
    from swarm.runtime.federation import hold
    from swarm.tasks import registry

    framework, device = _place(order, registry.get(task))
    return hold(algorithm, framework=framework, device=device, threads=order.threads, wanted=wanted, emit=emit)


def _check_own_data(algorithm: Algorithm, order: Learn) -> None:
    """Raises UsageError if a private client would have none."""
    if isinstance(algorithm, FedAvg) and algorithm.private and order.data is None and order.role != "syncer":
        raise UsageError("the clients of this run are private: pass this machine's own data with --data")


def export(order: Export) -> int:
    import numpy as np

    from swarm.runtime.exporting import place_of, write_whole
    from swarm.tensors.payload import Packed

    manifest, theta = asyncio.run(_committed(order.mailbox, order.run, order.round))
    packed = Packed({name: np.ascontiguousarray(array) for name, array in theta.items()})
    target, beside = place_of(manifest, order.file)
    for path, data in beside.items():
        write_whole(path, [data])
    write_whole(target, packed)
    print(f"{manifest.name}: {len(theta)} parameters, {packed.size_bytes} bytes, SHA-256 {packed.sha256}", file=sys.stderr)
    return 0


def generate(order: Generate, emit: EventFile) -> int:
    from swarm.runtime.task_files import joined_files, to_write_with

    manifest, theta = asyncio.run(_committed(order.mailbox, order.run))
    manifest = to_write_with(manifest)
    mailbox = mailbox_at(order.mailbox)
    asyncio.run(mailbox.open())
    with joined_files(mailbox, manifest, data=order.data, model=order.model, emit=emit) as places:
        trainable = _build(manifest.task, manifest.seed, order, places)
    write = getattr(trainable, "generate", None)
    if write is None:
        raise UsageError(f"task {manifest.task.name} of run {manifest.name} writes no text")
    trainable.adapter.apply(theta)
    out = sys.stdout.buffer
    try:
        pieces = write(order.prompt.encode(), max_tokens=order.max_tokens, temperature=order.temperature, seed=order.seed)
        for piece in harmless(pieces) if out.isatty() else pieces:
            out.write(piece)
            out.flush()
        out.write(b"\n")
        out.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        os._exit(0)
    return 0


def harmless(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Text for a terminal: a model writes what its parameters say, which come from other machines."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        text = decoder.decode(piece)
        yield "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text).encode()
    yield decoder.decode(b"", final=True).encode()


async def _committed(location: str, run: str, round: int | None = None) -> tuple[Manifest, Mapping[str, Any]]:
    """The newest committed parameters; those after `round`, which are the newest or were kept, if it is given."""
    from swarm.exchange import Exchange
    from swarm.runtime.parameters import committed

    mailbox = mailbox_at(location)
    await mailbox.open()
    exchange = Exchange(mailbox, await read_manifest(mailbox, run))
    return exchange.manifest, (await committed(exchange, round))[1]


def _leave_on_signals(emit: EventFile) -> Callable[[Callable[[], None]], None]:
    """Install the handlers; what is returned tells them how to leave. Before that, the first signal ends the process."""
    how: list[Callable[[], None]] = []
    asked = threading.Lock()  # once: by a signal, or by the thread below

    def on_signal(*_: object) -> None:
        if not how or not asked.acquire(blocking=False):
            emit(_INTERRUPTED)
            os._exit(INTERRUPTED)
        how[0]()

    def watch_parent() -> None:
        while os.read(0, 1):
            pass
        # Whoever started this process in the foreground is gone, or asks once more.
        on_signal()

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    if os.environ.get("SWARM_WORKER_PIPED") == "1":
        threading.Thread(target=watch_parent, daemon=True).start()
    return how.append


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a share that hangs, or of a framework, must not hold up the end.
    os._exit(code)
