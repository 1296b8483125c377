"""Names of learners, clients and runs: one grammar, safe on every file system."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import NewType

from swarm.core.errors import UsageError

LearnerId = NewType("LearnerId", str)
RunId = NewType("RunId", str)

_LEARNER = re.compile(r"[a-z0-9-]{1,64}")
_RUN = re.compile(r"[a-z0-9]{4,32}")
WINDOWS_DEVICES = frozenset({"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(10)})


def is_learner_id(text: str) -> bool:
    """Whether the grammar allows `text` as the id of a learner or a client."""
    return _LEARNER.fullmatch(text) is not None and text not in WINDOWS_DEVICES


def is_run_id(text: str) -> bool:
    """Whether the grammar allows `text` as the id of a run."""
    return _RUN.fullmatch(text) is not None and text not in WINDOWS_DEVICES


def learner_id(text: str) -> LearnerId:
    """`text` as a learner or client id. Raises UsageError if it is none."""
    if not is_learner_id(text):
        raise UsageError(f"{text!r} is no learner id: 1 to 64 of a-z, 0-9 and '-', and no Windows device name")
    return LearnerId(text)


def run_id(text: str) -> RunId:
    """`text` as a run id. Raises UsageError if it is none."""
    if not is_run_id(text):
        raise UsageError(f"{text!r} is no run id: 4 to 32 of a-z and 0-9, and no Windows device name")
    return RunId(text)


def learner_id_from_host(host: str) -> LearnerId:
    """The default learner id of a machine: its host name up to the first dot, lower-cased, other characters as '-'."""
    name = re.sub(r"[^a-z0-9]+", "-", host.lower().split(".")[0]).strip("-")[:60] or "learner"
    return LearnerId(f"{name}-1" if name in WINDOWS_DEVICES else name)


def free_learner_id(wanted: str, taken: Container[str]) -> LearnerId:
    """`wanted` if it is free, else `wanted-2`, `wanted-3`, …"""
    if wanted not in taken:
        return learner_id(wanted)
    n = 2
    while (other := f"{wanted[:58]}-{n}") in taken:
        n += 1
    return learner_id(other)
