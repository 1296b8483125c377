"""What a program's data and its train_step say, in whatever framework."""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterable, Mapping
from typing import Any, TypeVar

from swarm.core.errors import UsageError
from swarm.tasks.contract import EvalResult

B = TypeVar("B")


def repeated(data: Iterable[B]) -> Generator[B, None, None]:
    """The batches of `data`, again from the start when they end. Ends itself when a pass has none: a generator can be read
    only once. Raises UsageError if there is none at all."""
    passes = 0
    while True:
        some = False
        for batch in data:
            some = True
            yield batch
        if not some and not passes:
            raise UsageError("the data has no batch: pass an iterable that gives at least one, such as a DataLoader")
        if not some:
            return
        passes += 1


def outcome(result: Any, batch: Any, unit: str) -> tuple[float | None, int]:
    """(loss, amount in `unit`) of a step, from what train_step returned: a loss, (loss, amount) or a mapping of 'loss' and
    `unit`. An amount that is not given is counted from the batch. Raises UsageError."""
    loss, amount = _parted(result, unit, "train_step returned")
    return _numbers(loss, counted(batch, unit) if amount is None else amount, unit, "train_step must return")


def told(result: Any) -> tuple[float | None, int]:
    """(loss, samples) of a step on a client, from what train_client yielded: (loss, samples) or a mapping of 'loss' and
    'samples'. Raises UsageError."""
    loss, samples = _parted(result, "samples", "train_client yielded")
    if samples is None:
        raise UsageError("train_client must yield (loss, samples) after each step: how many samples it was cannot be told")
    return _numbers(loss, samples, "samples", "train_client must yield")


def _parted(result: Any, unit: str, did: str) -> tuple[Any, Any]:
    if isinstance(result, Mapping):
        return result.get("loss"), result.get(unit)
    if isinstance(result, tuple):
        if len(result) != 2:
            raise UsageError(f"{did} {len(result)} values: it is (loss, {unit}) or a mapping")
        return result[0], result[1]
    return result, None


def _numbers(loss: Any, amount: Any, unit: str, must: str) -> tuple[float | None, int]:
    try:
        return None if loss is None else float(loss), operator.index(amount)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{must} a loss, and {unit} as a whole number: {error}") from None


def counted(batch: Any, unit: str) -> int:
    """How much `batch` is, in the run's `unit`: samples lie along the first axis of its first array; tokens are the elements
    of a first array of whole numbers with two axes. Raises UsageError if that cannot be told."""
    array = _first_array(batch)
    shape = None if array is None else tuple(map(int, array.shape))
    if shape and unit == "samples":
        return shape[0]
    if shape and len(shape) == 2 and "int" in str(array.dtype):
        return shape[0] * shape[1]
    advice = f"return (loss, {unit}) from train_step"
    if unit == "tokens" and shape:
        advice += ", or make the run with DiLoCo(weight_unit='samples')"
    raise UsageError(f"how many {unit} a batch has cannot be told from a {type(batch).__name__}: {advice}")


def _first_array(batch: Any) -> Any:
    while not hasattr(batch, "shape") or not hasattr(batch, "dtype"):
        if isinstance(batch, Mapping) and batch:
            batch = next(iter(batch.values()))
        elif isinstance(batch, (tuple, list)) and batch:
            batch = batch[0]
        else:
            return None
    return batch


def evaluation(result: Any) -> EvalResult:
    """From what `evaluate` returned: an EvalResult, a loss, or a mapping of a loss and other metrics."""
    if isinstance(result, EvalResult):
        return result
    if isinstance(result, Mapping):
        metrics = {str(name): float(value) for name, value in result.items() if name != "loss"}
        return EvalResult(loss=float(result.get("loss", float("nan"))), metrics=metrics)
    return EvalResult(loss=float(result))
