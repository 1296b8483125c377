"""A data-parallel job as a worker meets it: it is made, or joined, and taken part in."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil

from swarm.core.errors import CacheUnusable, DataMissing, FileRefused, UsageError
from swarm.core.events import Building, WorkerEvent
from swarm.core.finetune import FineTune, Places
from swarm.core.jobs import CreateRun, Learn
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.manifest import DataRef, Manifest, TaskRef
from swarm.core.records import LearnerRecord
from swarm.files.attach import Attachment, describe
from swarm.files.cache import Cache
from swarm.host.accelerators import training_memory
from swarm.host.energy import metered
from swarm.host.identity import Identity, holder, process_alive, process_gone, started
from swarm.host.paths import cache_dir
from swarm.mailbox.contract import Mailbox
from swarm.network.interfaces import Interface, addresses
from swarm.parallel.agent import Agent
from swarm.parallel.network import LocalNetwork
from swarm.parallel.site import Site, backends, cards, free_memory, versions
from swarm.runtime.attached import attach_patiently, fetch_patiently
from swarm.runtime.model_files import attach_chosen, choose, gathered
from swarm.tape import nonce

TASK = "mlx-lm"
Emit = Callable[[WorkerEvent], None]


def make(mailbox: Mailbox, order: Learn, create: CreateRun, me: Identity, emit: Emit) -> Manifest:
    """Make the run: what it needs is named by its content, or attached, before its manifest appears. Raises UsageError."""
    assert isinstance(create.algorithm, FineTune)
    if order.model is None or order.data is None:
        raise UsageError("a fine-tuning needs --model, a folder or a Hugging Face repository, and --data, a folder")
    if order.join:
        versions()  # else the run would be there, and nobody in it
    chosen = choose(order.model, order.data, emit=emit)
    adapter = None if create.adapter is None else _adapter(Path(create.adapter))
    attach = attach_chosen(mailbox, create.run, chosen, model=create.attach_model, data=create.attach, emit=emit)
    files, base = asyncio.run(attach), None
    if adapter is not None:
        files = (*files, asyncio.run(attach_patiently(mailbox, create.run, adapter, emit)))
        base = DataRef(name=adapter.ref.name, sha256=adapter.ref.sha256, size_bytes=adapter.ref.size_bytes)
    manifest = Manifest(
        run=create.run,
        name=create.name,
        algorithm=create.algorithm,
        task=TaskRef(name=TASK, data=chosen.rows),
        seed=create.seed,
        created_by=me.machine_name,
        files=files,
        base=base,
        model=chosen.model,
        share=create.share,
    )
    asyncio.run(mailbox.create(RunKeys(create.run).manifest, encode(manifest, nonce=nonce())))
    return manifest


def take_part(
    mailbox: Mailbox,
    manifest: Manifest,
    order: Learn,
    *,
    me: Identity,
    record: LearnerRecord,
    leave: Callable[[Callable[[], None]], None],
    emit: Emit,
    tend: Callable[[Agent], None] = lambda agent: None,
    powermetrics: bool = False,
) -> None:
    """Train until the job ends, or until told to leave: `leave` is handed what does that, `tend` the agent itself;
    `powermetrics` as for energy.metered. Raises DataMissing, UsageError, and what Agent.run does."""
    _check(order)
    able, here = backends(), versions()
    with ExitStack() as stack:
        home = stack.enter_context(_home(manifest.run, me))
        emit(Building(what=f"base model and data of run {manifest.name}"))
        found = gathered(mailbox, manifest, model=order.model, data=order.data, into=home, emit=emit)
        files = stack.enter_context(found)
        start = _start_adapter(mailbox, manifest, stack.enter_context(Cache()), emit)
        adapter_path = None if order.adapter_path is None else Path(order.adapter_path)
        assert manifest.model is not None
        site = Site(
            manifest,
            files,
            home=home,
            adapter_path=adapter_path,
            start_adapter=start,
            places=Places(
                model=order.model or (manifest.model.name if manifest.model.revision else _text(files.fetched)),
                data=order.data,
                adapter_path=order.adapter_path,
            ),
            emit=emit,
        )
        process, here_on = psutil.Process(), cards()
        agent = Agent(
            mailbox,
            site,
            msgspec.structs.replace(record, memory_bytes=training_memory(here_on)),
            gone=lambda other: process_gone(me, holder(other)),
            alive=lambda other: process_alive(me, holder(other)),
            may_rename=order.may_rename,
            network=LocalNetwork(functools.partial(_interfaces, order.interface)),
            memory_bytes=free_memory,
            versions=here,
            backends=able,
            emit=emit,
            rss_bytes=lambda: process.memory_info().rss,
            draws=stack.enter_context(metered(here_on, powermetrics=powermetrics)),
        )
        leave(agent.leave)
        tend(agent)
        agent.run()


def _check(order: Learn) -> None:
    """Raises UsageError for what other methods know, and this one does not."""
    if order.role == "syncer":
        raise UsageError("an MLX-LM fine-tuning has no rounds to close: every machine trains")
    if order.interface is not None and not _interfaces(order.interface):
        there = ", ".join(dict.fromkeys(each.name for each in addresses()))
        raise UsageError(f"no interface {order.interface!r} with an address in a private network; there are: {there or 'none'}")
    if order.framework == "torch" or order.device.partition(":")[0] in ("mps", "cuda"):
        raise UsageError("an MLX-LM fine-tuning trains with MLX, on the device that MLX finds")


def _interfaces(name: str | None) -> list[Interface]:
    return [each for each in addresses() if name is None or each.name == name]


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _start_adapter(mailbox: Mailbox, manifest: Manifest, cache: Cache, emit: Emit) -> Path | None:
    """The adapter that the job begins with, which its run brings along."""
    if manifest.base is None:
        return None
    ref = next((ref for ref in manifest.files if ref.sha256 == manifest.base.sha256), None)
    if ref is None:
        raise DataMissing(f"run {manifest.name} begins with {manifest.base.name}, and does not bring it along")
    return asyncio.run(fetch_patiently(mailbox, manifest.run, ref, cache, emit))


@contextlib.contextmanager
def _home(run: str, me: Identity) -> Iterator[Path]:
    """A folder of this process's own: what it writes there is in the mailbox as well, or can be found again. Those of processes
    that are no more are removed."""
    folder = cache_dir() / "jobs" / run
    home = folder / f"{me.pid}-{me.process}"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheUnusable(f"{home} cannot be made: {error.strerror} (SWARM_CACHE_DIR moves it)") from error
    for other in folder.iterdir():
        pid, _, process = other.name.partition("-")
        if pid.isdecimal() and started(int(pid)) != process:
            shutil.rmtree(other, ignore_errors=True)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _adapter(path: Path) -> Attachment:
    try:
        return describe(path, kind="model")
    except FileRefused as error:
        raise UsageError(f"--resume-adapter-file: {error}") from error
