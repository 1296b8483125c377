"""Whether this machine can train what a run trains, found without loading a framework; and whether it has its passphrase."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec

import msgspec

from swarm.core.errors import DataMissing, DeviceUnavailable, TaskUnknown, UsageError
from swarm.core.finetune import FineTune
from swarm.core.joining import Fault, Passphrase
from swarm.core.keys import RunKeys
from swarm.core.lines import UNREADABLE, Envelope
from swarm.core.manifest import Manifest
from swarm.core.sentences import plain
from swarm.core.trust import SwarmKey
from swarm.learners.devices import resolve
from swarm.tasks import registry


class TaskCheck(msgspec.Struct, frozen=True):
    fault: Fault | None = None
    words: str | None = None
    options: str = ""  # what is wrong with them
    data: str = ""


def check_task(manifest: Manifest, *, framework: str = "auto", device: str = "auto") -> TaskCheck:
    """Whether what a run trains can be trained on this machine."""
    method = "mlx-lm" if isinstance(manifest.algorithm, FineTune) else ""
    found = check_named(manifest.task.name, method, package=manifest.task.package, framework=framework, device=device)
    if found.fault is not None or method:
        return found
    task = registry.get(manifest.task.name)
    options = data = ""
    try:
        task.options(
            {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in manifest.task.options.items()}
        )
    except UsageError as error:
        options = str(error)
    if manifest.task.data and not manifest.files and manifest.model is None:
        data = _data_fault(manifest)
    return msgspec.structs.replace(found, options=options, data=data)


def check_named(task: str, method: str, *, package: str = "", framework: str = "auto", device: str = "auto") -> TaskCheck:
    """`package`: that the task came in where the run was made, as its manifest says."""
    if method == "mlx-lm":
        missing = [name for name in ("mlx", "mlx_lm") if not _installed(name)]
        if missing:
            words = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here"
            return TaskCheck(Fault(words, "pip install 'homeswarm[mlx-lm]'"))
        return TaskCheck(None, "MLX-LM")
    name = plain(task, 60)
    if task == registry.LIBRARY:
        return TaskCheck(Fault("the run trains a program's own model", "start that program here: it joins by itself"))
    try:
        found = registry.get(task)
        registry.check_installed(found)
        chosen, place = resolve(framework, device, found.frameworks)
    except TaskUnknown as error:
        remedy = f"install the package that brings the task {name!r}, as on the other machines (pip install …)"
        if package:
            remedy = f"the run was made with the package {package}: if you trust that, pip install {package}"
        return TaskCheck(Fault(plain(str(error), 300), remedy))
    except (UsageError, DeviceUnavailable) as error:
        words, _, remedy = str(error).partition(": ")
        return TaskCheck(Fault(plain(words, 300), plain(remedy, 200)))
    return TaskCheck(None, f"{name}, with {chosen}" + ("" if place == "auto" else f" on {place}"))


def _data_fault(manifest: Manifest) -> str:
    wanted = [(ref.sha256, ref.size_bytes) for ref in manifest.task.data]
    names = ", ".join(f"{plain(ref.name, 40)} (SHA-256 {ref.sha256[:12]}…)" for ref in manifest.task.data[:3])
    with contextlib.suppress(DataMissing, UsageError):
        here = registry.get(manifest.task.name).data(None)
        if [(ref.sha256, ref.size_bytes) for ref in here] == wanted:
            return ""
    return f"the run trains on {names}, which is neither attached to it nor part of the task here"


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def passphrase_of(run: str, data: bytes, key: SwarmKey | None) -> tuple[Passphrase, str]:
    """(how a run's manifest record fits this machine's passphrase, the fingerprint of that)."""
    body, _, rest = data.partition(b"\n")
    try:
        signature = msgspec.json.decode(rest, type=Envelope).signature
    except UNREADABLE:
        signature = None
    mine = key.fingerprint if key is not None else ""
    if signature is None:
        return ("open" if key is None else "unasked"), mine
    if key is None:
        return "missing", ""
    right = key.verifies(signature, run=run, key=RunKeys(run).manifest, body=body)
    return ("right" if right else "wrong"), mine
