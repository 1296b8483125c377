"""The tasks that are installed here: the built-in ones, and those that other packages announce.

A package announces a task by an entry point of the group `swarm.tasks`, named as the task, that leads to an object of
the shape of `contract.Task`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from swarm.core.errors import TaskUnknown, UsageError
from swarm.tasks.contract import Task, Trainable

GROUP = "swarm.tasks"
LIBRARY = "library"  # what a manifest names when the model is a program's own

# As text: nothing is imported before it is asked for.
_BUILT_IN = {name: f"swarm.tasks.{name}" for name in ("charlm", "lenet5", "lora", "mlp")}
_NEEDED = ("summary", "frameworks", "spec", "options", "data", "build")


def names() -> tuple[str, ...]:
    """The tasks that can be used here, sorted."""
    found, _ = _announced()
    return tuple(sorted({*_BUILT_IN, *found}))


def broken() -> dict[str, str]:
    """Announced tasks that cannot be used, with the reason."""
    return _announced()[1]


def get(name: str, *, package: str = "") -> Task:
    """Raises TaskUnknown, which names the installed ones, and the `package` that a manifest says the task comes in."""
    if name == LIBRARY:
        raise TaskUnknown("the run trains a program's own model: it is joined by starting that program here")
    if name in _BUILT_IN:
        task: Task = import_module(_BUILT_IN[name]).TASK
        return task
    found, reasons = _announced()
    if name in found:
        return found[name]
    if name in reasons:
        raise TaskUnknown(f"task {name!r} is installed here, but broken: {reasons[name]}")
    installed = sorted({*_BUILT_IN, *found})
    close = difflib.get_close_matches(name, installed, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    if package:
        hint = f"the run was made with the package {package}: if you trust that, pip install {package}; "
    raise TaskUnknown(f"no task {name!r} is installed here; {hint}installed: {', '.join(installed)}")


def package_of(name: str) -> str:
    """The package that an installed task comes in; "": swarm's own, or not known."""
    if name in _BUILT_IN:
        return ""
    points = sorted(entry_points(group=GROUP, name=name), key=lambda point: point.value)
    return next((point.dist.name for point in points if point.dist is not None), "")


def check_installed(task: Task) -> None:
    """Raises UsageError if a package is missing that the task needs beside its framework. Imports nothing."""
    packages: Mapping[str, str] = getattr(task, "packages", {})
    for package, extra in packages.items():
        if not _found(package):
            raise UsageError(f"task {task.name} needs {package}, which is not installed here: pip install 'homeswarm[{extra}]'")


def _found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # it is set to None in sys.modules
        return False


def takes_model(task: Task) -> bool:
    """Whether it fine-tunes a model that a person gives."""
    return "model_path" in inspect.signature(task.build).parameters


def build(
    task: Task,
    *,
    batch_size: int | None = None,
    buffers: bool = False,
    private: bool = False,
    model_path: Path | None = None,
    **how: Any,
) -> Trainable:
    """`task.build(**how)`, with the other arguments as far as they are wanted. Raises UsageError too for a task that has not
    one of these: but for `buffers`, since its models may have none."""
    takes = inspect.signature(task.build).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    if batch_size is not None and not (anything or "batch_size" in takes):
        raise UsageError(f"task {task.name} has a batch size of its own: its learners cannot share a global batch")
    if private and not (anything or "private" in takes):
        raise UsageError(f"task {task.name} cannot train on data that only one machine has: private clients need that")
    if model_path is not None and not takes_model(task):
        raise UsageError(f"task {task.name} fine-tunes no model that is given to it")
    wanted: dict[str, Any] = {
        "batch_size": batch_size,
        "buffers": buffers or None,
        "private": private or None,
        "model_path": model_path,
    }
    return task.build(
        **how, **{name: value for name, value in wanted.items() if value is not None and (anything or name in takes)}
    )


def _announced() -> tuple[dict[str, Task], dict[str, str]]:
    """Those of other packages, and why some of them cannot be used.

    Read anew each time: loaded modules are Python's to cache, and a package may be installed while a screen is open.
    """
    found: dict[str, Task] = {}
    reasons: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        reason = "; ".join(_refusals(point, found))
        if reason:
            reasons.setdefault(point.name, reason)
    return found, reasons


def _refusals(point: EntryPoint, found: dict[str, Task]) -> Iterator[str]:
    """Put a usable task into `found`; otherwise yield what is wrong with it."""
    if point.name in _BUILT_IN:
        yield f"{point.value} takes the name of a built-in task"
        return
    if point.name in found:
        return  # the same package seen twice on the path, or a second one: the first keeps the name
    try:
        task = point.load()
    except Exception as error:  # another package's code: whatever it raises must not take the list down
        yield f"{point.value}: {type(error).__name__}: {error}"
        return
    missing = [attribute for attribute in _NEEDED if not hasattr(task, attribute)]
    if missing:
        yield f"{point.value} is no task: it lacks {', '.join(missing)}"
    elif getattr(task, "name", None) != point.name:
        yield f"{point.value} calls itself {getattr(task, 'name', None)!r}"
    else:
        found[point.name] = task
