"""What stands under a key: which kind of object, which record, and what that must say of itself (FORMAT.md, "Tree").

A key counts only as its builder writes it: what no builder of `swarm.core.keys` gives is unknown here, and somebody else's.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from swarm.core import keys
from swarm.core.errors import InvalidKey
from swarm.core.ids import is_run_id
from swarm.core.keys import RunKeys
from swarm.core.manifest import Manifest
from swarm.core.ranks import GenerationEnd, JobCheckpoint, JobLog, Member, Plan, Probe, Ready, Started
from swarm.core.records import (
    Beat,
    Checkpoint,
    Claim,
    Control,
    EvalRecord,
    JoinRefusal,
    LearnerRecord,
    RoundRecord,
    Sample,
    Snapshot,
)
from swarm.core.work import Holder, WorkSet

Kind: TypeAlias = Literal[
    "manifest",
    "round",
    "snapshot",
    "claim",
    "sample",
    "learner",
    "beat",
    "refusal",
    "control",
    "evaluation",
    "checkpoint",
    "generation",
    "log",
    "job-checkpoint",
    "work",
    "init",
    "round-blob",
    "delta",
    "checkpoint-blob",
    "job-file",
    "hashes",
    "chunk",
]
"""Up to `work` records; the others are known by hashes."""

SWEPT: frozenset[Kind] = frozenset({"snapshot", "claim", "beat", "refusal", "checkpoint", "job-checkpoint"})
"""Records that go when they are old. All others are the run's history and stay as long as it does."""


class Place(NamedTuple):
    """What stands under a key."""

    key: str
    kind: Kind
    record: type[msgspec.Struct] | None = None
    """What it decodes to; None: it is no record."""
    said: dict[str, Any] = {}  # noqa: RUF012  # never written to: fields of the record that follow from the key
    number: int = 0
    """The round, generation, chunk or control record that it is of."""
    second: int = 0
    """The fragment, the step, or the part of a log."""
    sha256: str = ""
    """That its key tells: of the object; of a chunk, and of hashes, the file's."""


def place_of(key: str) -> Place | None:
    """None: no swarm writes there. Never raises."""
    parts = key.split("/")
    if len(parts) < 4 or parts[0] != "runs" or not is_run_id(parts[1]):
        return None
    for read in (_record, _rank_record, _work, _blob):
        try:
            found = read(RunKeys(parts[1]), parts[2:])
        except InvalidKey:
            continue
        if found is not None and found.key == key:
            return found
    return None


def _n(text: str) -> int:
    """Raises InvalidKey for what is no number, or of more than 18 digits: int() takes its time over very long ones."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidKey(f"{text[:40]!r} is no number")
    return int(text)


def _sha(name: str) -> str:
    return name.removesuffix(".safetensors")


def _record(run: RunKeys, parts: list[str]) -> Place | None:
    """Of a run in rounds, and what every run has."""
    match parts:
        case ["manifest", _]:
            return Place(run.manifest, "manifest", Manifest, {"run": run.root.removeprefix("runs/")})
        case ["rounds", _, r, _]:
            return Place(run.round(_n(r)), "round", RoundRecord, {"round": _n(r)}, _n(r))
        case ["snapshots", r, unit, name] if len(named := name.removesuffix(".json").split(".")) == 3:
            said: dict[str, Any] = {"unit": unit, "learner": named[0], "incarnation": _n(named[1]), "claim": _n(named[2])}
            return Place(run.snapshot(_n(r), **said), "snapshot", Snapshot, {"round": _n(r), **said}, _n(r))
        case ["claims", r, "eval", _]:
            return Place(run.eval_claim(_n(r)), "claim", Claim, {"round": _n(r)}, _n(r))
        case ["claims", r, n, _]:
            return Place(run.claim(_n(r), _n(n)), "claim", Claim, {"round": _n(r)}, _n(r))
        case ["clients", r, client, n, _]:
            return Place(run.client_claim(_n(r), client, _n(n)), "claim", Claim, {"round": _n(r)}, _n(r))
        case ["samples", r, _]:
            return Place(run.sample(_n(r)), "sample", Sample, {"round": _n(r)}, _n(r))
        case ["learners", learner, k, _]:
            said = {"learner": learner, "incarnation": _n(k)}
            return Place(run.learner(learner, _n(k)), "learner", LearnerRecord, said)
        case ["beats", learner, name]:
            k, _, n = name.removesuffix(".json").partition("-")
            return Place(run.beat(learner, _n(k), _n(n)), "beat", Beat)
        case ["refused", machine, name] if len(named := name.removesuffix(".json").split(".")) == 2:
            return Place(run.refusal(machine, _n(named[0]), named[1]), "refusal", JoinRefusal, {"machine": machine})
        case ["control", n, _]:
            return Place(run.control_record(_n(n)), "control", Control, {}, _n(n))
        case ["evals", _, r, _]:
            return Place(run.eval(_n(r)), "evaluation", EvalRecord, {"round": _n(r)}, _n(r))
        case ["checkpoints", r, _]:
            return Place(run.checkpoint(_n(r)), "checkpoint", Checkpoint, {"round": _n(r)}, _n(r))
        case ["checkpoints", g, step, _]:
            said = {"generation": _n(g), "step": _n(step)}
            return Place(run.job_checkpoint(_n(g), _n(step)), "job-checkpoint", JobCheckpoint, said, _n(g), _n(step))
    return None


def _rank_record(run: RunKeys, parts: list[str]) -> Place | None:
    """Of a generation of a data-parallel job."""
    if parts[0] != "ranks" or len(parts) < 4:
        return None
    g, who, said = _n(parts[1]), dict[str, Any](), dict[str, Any]()
    of: dict[str, Any] = {"generation": g}
    match parts[2:]:
        case ["members", learner, k, _]:
            who = {"learner": learner, "incarnation": _n(k)}
            return Place(run.member(g, **who), "generation", Member, of | who, g)
        case ["probes", learner, k, name] if len(named := name.removesuffix(".json").split(".")) == 2:
            said = {"learner": learner, "incarnation": _n(k), "target": named[0], "target_incarnation": _n(named[1])}
            return Place(run.probe(g, **said), "generation", Probe, of | said, g)
        case ["claims", n, _]:
            return Place(run.lead_claim(g, _n(n)), "generation", Claim, {"round": g}, g)
        case ["plan", _]:
            return Place(run.rank_plan(g), "generation", Plan, of, g)
        case ["ready", learner, k, _]:
            who = {"learner": learner, "incarnation": _n(k)}
            return Place(run.mark(g, "ready", **who), "generation", Ready, of | who, g)
        case ["started", learner, k, _]:
            who = {"learner": learner, "incarnation": _n(k)}
            return Place(run.mark(g, "started", **who), "generation", Started, of | who, g)
        case ["end", _]:
            return Place(run.generation_end(g), "generation", GenerationEnd, of, g)
        case ["log", _, name]:
            part = _n(name.removesuffix(".json"))
            return Place(run.job_log(g, part), "log", JobLog, of | {"n": part}, g, part)
    return None


def _work(run: RunKeys, parts: list[str]) -> Place | None:
    """Queues, slices and barriers."""
    prefix = {"queues": run.queue, "slices": run.ranks}
    match parts:
        case ["queues" | "slices", name, "set", _]:
            return Place(keys.work_set(prefix[parts[0]](name)), "work", WorkSet)
        case ["queues", name, unit, "done", _]:
            return Place(keys.work_done(run.queue(name), _n(unit)), "work", Holder)
        case ["queues" | "slices", name, unit, n, _]:
            return Place(keys.work_claim(prefix[parts[0]](name), _n(unit), _n(n)), "work", Holder)
        case ["barriers", name, g, "arrived", learner, k, _]:
            return Place(
                run.arrival(name, _n(g), learner=learner, incarnation=_n(k)),
                "work",
                Holder,
                {"learner": learner, "incarnation": _n(k)},
            )
        case ["barriers", name, g, "open", _]:
            return Place(run.barrier_open(name, _n(g)), "work", Holder)
    return None


def _blob(run: RunKeys, parts: list[str]) -> Place | None:
    match parts:
        case ["blobs", "init", fragment, name]:
            return Place(run.init_blob(_n(fragment), _sha(name)), "init", second=_n(fragment), sha256=_sha(name))
        case ["blobs", "rounds", r, name]:
            return Place(run.round_blob(_n(r), _sha(name)), "round-blob", number=_n(r), sha256=_sha(name))
        case ["blobs", "snapshots", r, learner, name]:
            return Place(run.snapshot_blob(_n(r), learner, _sha(name)), "delta", number=_n(r), sha256=_sha(name))
        case ["blobs", "checkpoints", a, b, name]:
            number, second, sha256 = _n(a), _n(b), _sha(name)
            if len(b) >= 10:  # a generation and a step; else a round and a fragment
                return Place(run.job_file(number, second, sha256), "job-file", None, {}, number, second, sha256)
            key = run.checkpoint_blob(number, second, sha256)
            return Place(key, "checkpoint-blob", None, {}, number, second, sha256)
        case ["files", sha256, "hashes"]:
            return Place(run.file_hashes(sha256), "hashes", sha256=sha256)
        case ["files", sha256, n]:
            return Place(run.file_chunk(sha256, _n(n)), "chunk", number=_n(n), sha256=sha256)
    return None
