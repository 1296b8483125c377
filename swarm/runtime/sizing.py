"""What a task trains, told without training it: `python -m swarm.runtime.sizing`, a process of its own, since only its
framework knows. Takes a RunRequest as a JSON line on stdin, and answers with a line on stdout."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from swarm.core.errors import SwarmError, UsageError
from swarm.core.estimates import Shape, Sized
from swarm.core.finetune import FineTune
from swarm.core.request import RunRequest
from swarm.core.sentences import amount
from swarm.core.specs import DiLoCo, FedAvg

MOST_MODEL_BYTES = 4 << 30  # of a base model that is loaded to be looked at


def main() -> int:
    line = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_input, daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(10)  # whoever fills in a form waits for nothing of this
    stdout, sys.stdout = sys.stdout, sys.stderr  # a task is other people's code, and may print
    try:
        answer = answered(msgspec.json.decode(line, type=RunRequest))
    except SwarmError as error:
        answer = Sized(problem=str(error))
    except Exception as error:  # whatever a framework or a task has to say
        answer = Sized(unknown=f"{type(error).__name__}: {error}"[:500])
    stdout.write(msgspec.json.encode(answer).decode() + "\n")
    stdout.flush()
    return 0


def answered(request: RunRequest) -> Sized:
    """Raises UsageError and the like for what cannot be made."""
    algorithm, model = request.algorithm, _folder(request.learner.model)
    model_bytes = sum(each.stat().st_size for each in model.glob("*.safetensors")) if model is not None else 0
    if request.learner.model is not None and model is None:
        return Sized(unknown="the model is not on this machine yet")
    if model_bytes > MOST_MODEL_BYTES:
        return Sized(unknown=f"the model has {amount(model_bytes)}, and is loaded then only")
    adapter = _tuned(algorithm, model) if isinstance(algorithm, FineTune) else _built(request, model)
    return Sized(shape=Shape(tensors=tuple(adapter.schema()), model_bytes=model_bytes))


def _tuned(spec: FineTune, model: Path | None) -> Any:
    from swarm.tasks.lora.mlx import tuned

    if model is None:
        raise UsageError("a fine-tuning needs a model")
    return tuned(model, spec, device="cpu", seed=0).net.adapter


def _built(request: RunRequest, model: Path | None) -> Any:
    """The adapter of the task's model, as the worker that makes the run builds it, on the CPU."""
    from swarm.learners.devices import resolve
    from swarm.runtime.federation import check_new
    from swarm.tasks import registry

    algorithm, learner = request.algorithm, request.learner
    task = registry.get(request.task)
    registry.check_installed(task)
    framework, _ = resolve(learner.framework, learner.device, task.frameworks)
    path = Path(learner.data) if learner.data is not None and os.path.exists(learner.data) else None
    how: dict[str, Any] = {}
    private = False
    match algorithm:
        case DiLoCo():
            how = {"batch_size": algorithm.batch_size}
        case FedAvg():
            private = algorithm.private and path is not None
            how = {"buffers": algorithm.buffers == "averaged", "private": private}
    given = learner.data if path is None else path
    takes_model = registry.takes_model(task)
    data = [] if takes_model or private else task.data(None if given is None else Path(given))
    trainable = registry.build(
        task,
        **how,
        framework=framework,
        device="cpu",
        options=task.options(request.options),
        data=data,
        data_path=None if takes_model or given is None else Path(given),
        model_path=model,
        seed=0,
    )
    if isinstance(algorithm, FedAvg) and not takes_model:
        check_new(trainable, algorithm, task=request.task, seed=0, trains=request.join and (private or not algorithm.private))
    return trainable.adapter


def _folder(model: str | None) -> Path | None:
    """Nothing is fetched to be looked at."""
    path = None if model is None else Path(model).expanduser()
    return path if path is not None and path.is_dir() else None


def _end_with_input() -> None:
    """Whoever asked is gone when the input ends."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
