"""What can be said of a run before it is made: who can take part, what it moves and holds, and how long a round may take.

`preview` answers from what is known; `measure` finds out more, which takes seconds and a process: ask again after it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, assert_never

import msgspec
import psutil

from swarm import __version__
from swarm.api.fitness import check_named
from swarm.api.planning import orders
from swarm.core.buckets import where_silent
from swarm.core.errors import DataMissing, MailboxError, SwarmError, UsageError, WorkerFailed
from swarm.core.estimates import Estimate, Link, Pace, Shape, Sized, alike, estimate, gradient_bytes, pace_of
from swarm.core.finetune import FineTune
from swarm.core.form import MAILBOX, TASK, TaskForm, blamed, fields, problems, request_of
from swarm.core.joboptions import Method
from swarm.core.jobs import CreateRun
from swarm.core.lines import UNREADABLE
from swarm.core.manifest import DataRef, Manifest, ModelRef, TaskRef
from swarm.core.needs import memory_needed
from swarm.core.outlook import Fit, Needs, fits
from swarm.core.records import RoundRecord
from swarm.core.request import RunRequest
from swarm.core.sentences import amount, plain
from swarm.core.sightings import Sightings
from swarm.core.specs import DiLoCo, FedAvg
from swarm.core.ticks import Tick, failed, ok, warning
from swarm.host import settings
from swarm.host.asking import asked
from swarm.mailbox.speed import measure as measure_link
from swarm.mailbox.threads import DaemonThreads
from swarm.tasks import registry
from swarm.watch import Home

__all__ = ["Estimate", "Fit", "Link", "Pace", "Preview", "Tick", "amount", "forget", "measure", "preview"]

SIZING_S = 90.0  # that a framework gets to come up and build the model
LINK_S = 6.0  # after which a mailbox counts as too slow to be measured
MAILBOX_S = 4.0  # that a mailbox gets to answer
KEPT = 64  # shapes, links and data that are remembered in this process
_REPO = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_NO_HASH = "0" * 64


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    problems: dict[str, str] = {}  # by key of the field; '' of no single one: while there is any, nothing is started
    location: str = ""  # of the mailbox
    fits: tuple[Fit, ...] = ()
    memory_bytes: int | None = None  # that a learner needs, about
    estimate: Estimate | None = None
    gradient_bytes: int | None = None  # of a data-parallel step
    parameters: int | None = None
    link: Link | None = None
    pace: Pace | None = None
    no_shape: str = ""  # why nothing is known of the sizes
    no_link: str = ""  # why nothing is known of the mailbox's speed
    measured: bool = True  # False: `measure` would tell more


_shapes: dict[bytes, Sized] = {}
_links: dict[str, Link | str] = {}
_data: dict[tuple[str, str | None, float], str] = {}
_threads = DaemonThreads(2)


async def preview(
    method: Method,
    task: TaskForm | None,
    values: Mapping[str, str],
    *,
    mailbox: str = "",
    home: Home | None = None,
    sightings: Sightings | None = None,
) -> Preview:
    """From what is known by now. Never raises for what is wrong with the values or the mailbox."""
    home, sightings = home or Home(), sightings or Sightings()
    found = problems(method, task, values)
    location, ident, fault = await _mailbox(values.get(MAILBOX, "").strip() or mailbox, home)
    if fault:
        found.setdefault(MAILBOX, fault)
    try:
        request = request_of(method, task, values)
    except UsageError:
        return Preview(problems=found, location=location)
    try:
        request = _absolute(request)
        if request.task != "mlx-lm":
            registry.get(request.task).options(request.options)
    except SwarmError as error:
        key, words = blamed(str(error), fields(method, task))
        found.setdefault(key, words)
        return Preview(problems=found, location=location)
    known = fields(method, task)
    name = request.run.name
    if name is not None and any(
        state.name == name for view in home.mailboxes if view.location == location for state in view.runs
    ):
        found.setdefault("run.name", f"a run {name} exists in this mailbox: choose another name")
    if words := await _threads.run(_data_fault, request):
        found.setdefault(next(field.key for field in known if field.option.name == "data"), words)
    if words := _model_fault(request):
        found.setdefault(next(field.key for field in known if field.option.name == "model"), words)
    sized = _shapes.get(_shape_key(request))
    if sized is not None and sized.problem:
        key, words = blamed(sized.problem, known)
        found.setdefault(key or TASK, words)
    shape = sized.shape if sized is not None else None
    needed = _memory(request, shape)
    fault_here, here = await _threads.run(_this_machine, request, needed, location, fault)
    if fault_here:
        found.setdefault("here.framework" if method != "mlx-lm" else "", fault_here)
    needs = Needs(
        method=method,
        task=request.task,
        frameworks=("mlx",) if method == "mlx-lm" else task.frameworks if task is not None else (),
        package=task.package if task is not None else "",
        memory_bytes=needed,
        mailbox=ident,
        share=request.run.share or "",
    )
    everybody = fits(sightings, needs, version=__version__, here=here)
    link = _links.get(location)
    pace = _pace(request, home)
    said = None
    if shape is not None and not isinstance(request.algorithm, FineTune):
        said = estimate(
            request.algorithm,
            shape,
            learners=max(1, request.run.workers * request.join, _needed_learners(request)),
            checkpoints_kept=request.run.keep_checkpoints if request.run.checkpoint_every else 0,
            link=link if isinstance(link, Link) else None,
            pace=pace,
        )
    return Preview(
        problems=found,
        location=location,
        fits=everybody,
        memory_bytes=needed,
        estimate=said,
        gradient_bytes=gradient_bytes(shape) if shape is not None and isinstance(request.algorithm, FineTune) else None,
        parameters=sum(tensor.size for tensor in shape.tensors if not tensor.buffer) if shape is not None else None,
        link=link if isinstance(link, Link) else None,
        pace=pace,
        no_shape="" if sized is None else plain(sized.unknown or sized.problem, 200),
        no_link=link if isinstance(link, str) else "",
        measured=(sized is not None or bool(fault_here)) and (link is not None or bool(fault)),
    )


async def measure(method: Method, task: TaskForm | None, values: Mapping[str, str], *, mailbox: str = "") -> None:
    """Find out what `preview` does not know yet: what is trained, in a process of its own, and how fast the mailbox is."""
    try:
        location = settings.mailbox_location(values.get(MAILBOX, "").strip() or mailbox or None)
    except UsageError:
        location = ""
    try:
        request: RunRequest | None = _absolute(request_of(method, task, values))
    except UsageError:
        request = None
    await asyncio.gather(_measure_link(location), _measure_shape(request))


def forget() -> None:
    """What was measured: it may be another by now."""
    _shapes.clear()
    _links.clear()
    _data.clear()


async def _measure_link(location: str) -> None:
    if not location or location in _links:
        return
    try:
        async with asyncio.timeout(LINK_S):
            link: Link | str = await DaemonThreads(1).run(measure_link, location)  # of its own: one that hangs is left behind
    except TimeoutError:
        link = f"no answer within {LINK_S:.0f} s"
    except (MailboxError, UsageError) as error:
        link = plain(str(error), 200)
    _remember(_links, location, link)


async def _measure_shape(request: RunRequest | None) -> None:
    if request is None or (key := _shape_key(request)) in _shapes:
        return
    try:
        answer = await asked("swarm.runtime.sizing", msgspec.json.encode(request), limit_s=SIZING_S)
        sized = msgspec.json.decode(answer, type=Sized)
    except (WorkerFailed, *UNREADABLE) as error:
        sized = Sized(unknown=str(error))
    _remember(_shapes, key, sized)


def _remember(where: dict[Any, Any], key: Any, value: Any) -> None:
    where[key] = value
    while len(where) > KEPT:
        del where[next(iter(where))]


def _shape_key(request: RunRequest) -> bytes:
    """Equal for requests whose parameters are the same, as far as can be told."""
    algorithm, learner = request.algorithm, request.learner
    what: object
    match algorithm:
        case DiLoCo():
            what = algorithm.batch_size
        case FedAvg():
            what = algorithm
        case FineTune():
            what = (algorithm.fine_tune_type, algorithm.num_layers, algorithm.lora)
        case _:
            assert_never(algorithm)
    stamps = [_changed_s(path) for path in (learner.data, learner.model)]
    where = (learner.framework, learner.device, learner.data, learner.model, stamps, request.join)
    return msgspec.json.encode((request.task, request.options, what, where))


def _changed_s(path: str | None) -> float:
    try:
        return 0.0 if path is None else os.stat(path).st_mtime
    except OSError:
        return 0.0


def _absolute(request: RunRequest) -> RunRequest:
    """With places on this machine as a worker gets them, which may run elsewhere. Raises UsageError."""
    nowhere = CreateRun(run="none", name="none", task="", options={}, algorithm=request.algorithm, rounds=None, seed=0)
    order = orders(request, "", nowhere)[0]
    learner = msgspec.structs.replace(request.learner, data=order.data, model=order.model)
    return msgspec.structs.replace(request, learner=learner)


async def _mailbox(text: str, home: Home) -> tuple[str, str, str]:
    """(location, id, what is wrong with it)"""
    try:
        location = settings.mailbox_location(text or None)
    except UsageError as error:
        return "", "", str(error)
    view = next((view for view in home.mailboxes if view.location == location), None)
    if view is not None:
        fault = f"{view.problem}{f': {view.remedy}' if view.remedy else ''}" if view.problem else ""
        lost = next((state.lost for state in view.runs if state.lost and not state.halted), None)
        return location, view.id, fault or (f"share lost: {lost}" if lost else "")
    from swarm.api.finding import opened

    try:
        async with asyncio.timeout(MAILBOX_S):
            store = await opened(location)
            return location, await store.open(), ""
    except TimeoutError:
        return location, "", f"{location} does not answer: {where_silent(location)}"
    except SwarmError as error:
        return location, "", str(error)


def _data_fault(request: RunRequest) -> str:
    """Reads the data, once for each state of it."""
    if request.task == "mlx-lm":
        folder = Path(request.learner.data or "")
        return "" if (folder / "train.jsonl").is_file() else f"{folder} holds no train.jsonl"
    private = isinstance(request.algorithm, FedAvg) and request.algorithm.private
    data = request.learner.data
    if private:
        missing = request.join and data is None and request.learner.role != "syncer"
        return "the clients of this run are private: this machine's own data is needed" if missing else ""
    key = (request.task, data, _changed_s(data))
    if key not in _data:
        words = ""
        try:
            registry.get(request.task).data(None if data is None else Path(data))
        except (UsageError, DataMissing) as error:
            words = str(error)
        except Exception as error:  # a task is other people's code
            words = f"{type(error).__name__}: {error}"
        _remember(_data, key, plain(words, 300))
    return _data[key]


def _model_fault(request: RunRequest) -> str:
    model = request.learner.model
    takes = request.task == "mlx-lm" or registry.takes_model(registry.get(request.task))
    if model is None:
        return f"task {request.task} fine-tunes a model: its folder, or a Hugging Face repository" if takes else ""
    if not takes:
        return f"task {request.task} fine-tunes no model that is given to it: leave it out"
    if os.path.isdir(model):
        return "" if any(Path(model).glob("*.safetensors")) else f"{model} holds no *.safetensors"
    if _REPO.fullmatch(model):
        return ""
    return "neither a folder here nor the name of a Hugging Face repository"


def _memory(request: RunRequest, shape: Shape | None) -> int | None:
    """Bytes that a learner needs."""
    model = None
    folder = Path(request.learner.model) if request.learner.model is not None else None
    if folder is not None and folder.is_dir():
        size = sum(each.stat().st_size for each in folder.glob("*.safetensors"))
        model = ModelRef(name="model", files=(DataRef(name="model", sha256=_NO_HASH, size_bytes=size),))
    fine_tunes = isinstance(request.algorithm, FineTune)
    if (fine_tunes and model is None) or (not fine_tunes and shape is None):
        return None
    try:
        manifest = Manifest(
            run="none",
            name="none",
            algorithm=request.algorithm,
            task=TaskRef(name=request.task),
            tensors=() if fine_tunes or shape is None else shape.tensors,
            schema_sha256="" if fine_tunes else _NO_HASH,
            model=model,
        )
    except ValueError:
        return None
    return memory_needed(manifest, request.learner.role)


def _this_machine(request: RunRequest, needed: int | None, location: str, fault: str) -> tuple[str, tuple[Tick, ...]]:
    """(what keeps this machine from making the run, what was found)"""
    ticks: list[Tick] = []
    method = "mlx-lm" if isinstance(request.algorithm, FineTune) else ""
    checked = check_named(request.task, method, framework=request.learner.framework, device=request.learner.device)
    problem = ""
    if checked.fault is not None:
        ticks.append(failed("framework", checked.fault.detail, checked.fault.remedy))
        problem = f"{checked.fault.detail}{f': {checked.fault.remedy}' if checked.fault.remedy else ''}"
    else:
        ticks.append(ok("framework", checked.words or ""))
    ticks.extend(_own_memory(needed))
    if fault:
        ticks.append(failed("share", plain(fault, 200)))
    elif location:
        ticks.append(ok("share", plain(location, 100)))
    return problem, tuple(ticks)


def _own_memory(needed: int | None) -> Iterator[Tick]:
    memory = psutil.virtual_memory()
    if needed is None:
        yield ok("memory", f"{amount(memory.available)} free")
    elif needed > memory.total:
        remedy = "a smaller model; this machine can still close rounds: role syncer"
        yield failed("memory", f"about {amount(needed)} needed, it has {amount(memory.total)}", remedy)
    elif needed > memory.available:
        yield warning("memory", f"about {amount(needed)} needed, {amount(memory.available)} free", "close other programs first")
    else:
        yield ok("memory", f"about {amount(needed)} needed, {amount(memory.available)} free")


def _needed_learners(request: RunRequest) -> int:
    return request.algorithm.starters if isinstance(request.algorithm, DiLoCo) else 1


def _pace(request: RunRequest, home: Home) -> Pace | None:
    """From the newest rounds of runs that this machine took part in and that trained the same."""
    if isinstance(request.algorithm, FineTune):
        return None
    options = registry.get(request.task).options(request.options)
    return pace_of(request.algorithm, request.task, options, list(_told(home)))


def _told(home: Home) -> Iterator[tuple[str, object, float]]:
    mine = {(job.run, job.learner) for job in home.jobs}
    for view in home.mailboxes:
        for state in view.runs:
            manifest = state.manifest
            if manifest is None or isinstance(manifest.algorithm, FineTune):
                continue
            like = alike(manifest.algorithm, manifest.task.name, manifest.task.options)
            for record in reversed(state.rounds):
                if unit_s := _unit_s(record, state.run, mine, by_client=isinstance(manifest.algorithm, FedAvg)):
                    yield state.name, like, unit_s
                    break


def _unit_s(record: RoundRecord, run: str, mine: set[tuple[str, str]], *, by_client: bool) -> float | None:
    """Seconds of a step, or of a client, on this machine."""
    own = [p for p in record.participants if (run, p.learner) in mine and p.steps and p.seconds_s > 0]
    if not own:
        return None
    if by_client:
        return sum(p.seconds_s for p in own) / len(own)
    return sum(p.seconds_s for p in own) / sum(p.steps for p in own)
