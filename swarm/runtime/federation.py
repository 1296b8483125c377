"""What a worker does for a FedAvg run: hold its process to what replay hangs on, and train the clients that it claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from swarm.core.clients import client_index, partition_seed
from swarm.core.errors import NotFinite, UsageError
from swarm.core.events import Trouble, WorkerEvent
from swarm.core.manifest import Manifest
from swarm.core.specs import Algorithm, FedAvg
from swarm.learners.replay import difference, exactness, on_cpu, pin
from swarm.runtime.clients import ClientSession
from swarm.tasks.contract import Federated, Trainable

Emit = Callable[[WorkerEvent], None]


def with_threads(spec: FedAvg, *, framework: str, device: str, threads: int | None) -> FedAvg:
    """`spec` as it is when it is made on `device`: a seeded one names the CPU threads that its bytes hang on. `threads`: those
    that a person asked for."""
    if not spec.seeded or spec.threads is not None or not on_cpu(framework, device):
        return spec
    return msgspec.structs.replace(spec, threads=threads or 1)


def hold(spec: Algorithm, *, framework: str, device: str, threads: int | None, wanted: str | None, emit: Emit) -> str:
    """Before the model is made: hold this process to the threads and to the kernels that a seeded run replays with. Returns
    what equal bytes hang on here, '' for a run that is not seeded. That replay is not exact here is told: if this cannot be
    done, if a person asked for other `threads`, and if `wanted`, where the run was made, is something else."""
    if not isinstance(spec, FedAvg) or not spec.seeded:
        return ""
    if threads is not None and spec.threads is not None and threads != spec.threads:
        emit(Trouble(message=f"replay is not exact here: {threads} threads instead of {spec.threads}"))
        return exactness(framework, device, threads=threads)
    flaw = pin(framework, device, threads=spec.threads)
    here = exactness(framework, device, threads=spec.threads)
    flaw = flaw or (difference(wanted, here) if wanted else None)
    if flaw is not None:
        emit(Trouble(message=flaw))
    return here


def federated(trainable: Trainable, *, task: str) -> Federated:
    """`trainable`, if its data can be dealt out to clients. Raises UsageError."""
    if not isinstance(trainable, Federated):
        raise UsageError(f"task {task} has no data that can be dealt out to clients")
    return trainable


def check_new(trainable: Trainable, spec: FedAvg, *, task: str, seed: int, trains: bool) -> None:
    """Before a run is made: raises UsageError if nobody could train it, or, if this learner `trains`, if it could not. What
    only another framework can do may be left to others, but how the data is dealt out is the same for all."""
    clients = federated(trainable, task=task)
    if trains:
        clients.deal(spec, seed=partition_seed(spec, seed))
    elif not spec.private:
        plain = FedAvg(clients=spec.clients, per_round=spec.per_round, partition=spec.partition)
        clients.deal(plain, seed=partition_seed(spec, seed))


def train_clients(
    trainable: Trainable,
    leave: Callable[[Callable[[], None]], None],
    common: dict[str, Any],
    *,
    tend: Callable[[ClientSession], None] = lambda session: None,
) -> None:
    """Train the clients that this learner claims, until the run ends. `leave` is given how to make it leave, `tend` the session
    itself; `common`: what any session of this worker is made with. Raises UsageError for a task that has no clients."""
    manifest: Manifest = common["manifest"]
    spec = manifest.algorithm
    assert isinstance(spec, FedAvg)
    clients = federated(trainable, task=manifest.task.name)
    samples = clients.deal(spec, seed=partition_seed(spec, manifest.seed))
    session = ClientSession(trainable.adapter, samples=samples, evaluate=trainable.evaluate, **common)
    leave(session.leave)
    tend(session)
    with session:
        for client in session:
            index = 0 if spec.private else client_index(client.unit)
            assert index is not None
            try:
                for step in clients.train_client(spec, index=index, unit=client.unit, round=client.round):
                    if not session.report(samples=step.samples, loss=step.loss, steps=step.steps):
                        break
                else:
                    if not spec.private:  # nothing would be told of it
                        session.measured(clients.measure_client(index))
            except NotFinite as error:
                session.not_finite(error.name)
