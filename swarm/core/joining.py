"""What stands between a machine and a run that it would join: facts in, ticks out, each with its reason and remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, assert_never

import msgspec

from swarm.core.adverts import RunAdvert
from swarm.core.finetune import FineTune
from swarm.core.manifest import FORMAT, Manifest
from swarm.core.needs import memory_needed
from swarm.core.records import Role
from swarm.core.sentences import amount, counted, plain
from swarm.core.specs import FedAvg
from swarm.core.state import RunPhase
from swarm.core.ticks import Tick, checking, failed, ok, warning

Passphrase = Literal["open", "right", "missing", "wrong", "unasked"]
"""The run is open, and this machine has none; signed with this machine's; signed, and this machine has none; signed with
another one; the run is open, and this machine has one."""

SEEN, MOUNTED, WRITABLE, OPEN, TASK = "seen", "share mounted here", "share writable", "run open", "task installed"
SCHEMA, DATA, VERSION, PASSPHRASE, MEMORY = (
    "schema matches",
    "data",
    "version matches",
    "passphrase right",
    "enough memory",
)
GENERATION = "next generation"
_MOUNT_FIRST = "known once the share is mounted"


class Fault(msgspec.Struct, frozen=True):
    """What is wrong, and what to do about it."""

    detail: str
    remedy: str = ""


class JoinFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known so far. None: it was not looked at yet."""

    name: str  # of the run, or what a person called it
    mailbox: str = ""  # its id; "": not known
    # of the network
    listened: bool = False
    told_by: tuple[str, ...] = ()  # names of the machines that tell of the run
    advert: RunAdvert | None = None
    # of the share
    looked: bool = False  # whether the mailbox was looked for
    location: str | None = None  # where it is on this machine
    hanging: tuple[str, ...] = ()  # mounts that did not answer
    mounting: tuple[str, ...] = ()  # how it is mounted, in words
    share_fault: Fault | None = None  # why the mailbox cannot be used
    share_warning: Fault | None = None
    share_words: str | None = None  # how well it works; None: not tried
    # of the run
    manifest: Manifest | None = None
    run_fault: Fault | None = None  # why it cannot be read
    their_format: int | None = None
    phase: RunPhase | None = None
    phase_words: str = ""
    ended: bool = False
    trains: bool = False  # somebody does, just now
    their_versions: tuple[str, ...] = ()  # of swarm, on the machines that take part
    passphrase: Passphrase | None = None
    passphrase_fault: str = ""  # why the file with this machine's cannot be used
    fingerprint: str = ""  # of this machine's passphrase
    # of this machine
    version: str
    role: Role = "both"
    task_fault: Fault | None = None
    task_words: str | None = None  # what it trains with; None: not looked at
    options_fault: str = ""
    data_fault: str = ""  # why the task's data is not on this machine
    own_data: bool = False  # a person has given some
    own_model: bool = False
    free_bytes: int | None = None
    total_bytes: int | None = None


def join_ticks(facts: JoinFacts) -> tuple[Tick, ...]:
    """In the order in which they are shown."""
    return tuple(_ticks(facts))


def kept_out(ticks: Iterable[Tick]) -> str:
    """What this machine lacks to join, for the others to read; '' if it is nothing of the machine, or nothing that it can tell
    them: its share does not work, it has not their passphrase, or the run is over."""
    faults = [tick for tick in ticks if tick.verdict == "failed"]
    if {tick.name for tick in faults} & {MOUNTED, WRITABLE, OPEN, PASSPHRASE}:
        return ""
    if len(faults) == 1 and faults[0].remedy:
        return f"{faults[0].detail}; {faults[0].remedy.splitlines()[0]}"
    return "; ".join(tick.detail for tick in faults)


def _ticks(facts: JoinFacts) -> Iterator[Tick]:
    yield _seen(facts)
    yield _mounted(facts)
    yield _writable(facts)
    yield _open(facts)
    if facts.role != "syncer":
        yield _task(facts)
    yield _schema(facts)
    if facts.role != "syncer" and facts.manifest is not None:
        yield _data(facts, facts.manifest)
    yield _version(facts)
    yield _passphrase(facts)
    yield _memory(facts)
    if facts.manifest is not None and isinstance(facts.manifest.algorithm, FineTune):
        yield _generation(facts)


def _seen(facts: JoinFacts) -> Tick:
    if facts.told_by:
        shown = ", ".join(plain(name, 40) for name in facts.told_by[:4]) + (", …" if len(facts.told_by) > 4 else "")
        return ok(SEEN, f"{shown} {'tells' if len(facts.told_by) == 1 else 'tell'} of it")
    if not facts.listened:
        return checking(SEEN) if facts.location is None else ok(SEEN, "found in a mailbox")
    found = "it was found in a mailbox, which is enough" if facts.location else "it was heard of before"
    return warning(SEEN, f"no machine on the network tells of it just now; {found}")


def _mounted(facts: JoinFacts) -> Tick:
    if facts.location is not None:
        return ok(MOUNTED, facts.location)
    if not facts.looked:
        return checking(MOUNTED, "looking among the mounted shares")
    hangs = (
        f"; {', '.join(facts.hanging[:3])} {'does' if len(facts.hanging) == 1 else 'do'} not answer" if facts.hanging else ""
    )
    which = f"mailbox {facts.mailbox[:8]}…" if facts.mailbox else "its mailbox"
    return failed(MOUNTED, f"{which} is not mounted here{hangs}", "\n".join(facts.mounting))


def _writable(facts: JoinFacts) -> Tick:
    if facts.location is None:
        return _later(WRITABLE, facts)
    if facts.share_fault is not None:
        return failed(WRITABLE, facts.share_fault.detail, facts.share_fault.remedy)
    if facts.share_words is None:
        return checking(WRITABLE, "trying it out")
    if facts.share_warning is not None:
        return warning(WRITABLE, facts.share_warning.detail, facts.share_warning.remedy)
    return ok(WRITABLE, facts.share_words)


def _open(facts: JoinFacts) -> Tick:
    name = plain(facts.name, 40)
    if facts.run_fault is not None:
        return checking(OPEN, "the run cannot be read")
    if facts.ended:
        return failed(OPEN, f"{name} {facts.phase_words}", "`swarm export` takes what it learned; `swarm start` begins another")
    if facts.phase is None and facts.passphrase in ("wrong", "unasked"):
        return checking(OPEN, "known once the passphrase is right")
    if facts.phase is None:
        advert = facts.advert
        if advert is not None and advert.phase in ("done", "stopped"):
            return failed(OPEN, f"{name} is {advert.phase}, as {_who(facts)} tells", "`swarm start` begins another one")
        return _later(OPEN, facts)
    return ok(OPEN, facts.phase_words or facts.phase)


def _task(facts: JoinFacts) -> Tick:
    if facts.task_fault is not None:
        return failed(TASK, facts.task_fault.detail, facts.task_fault.remedy)
    if facts.task_words is None:
        return checking(TASK) if facts.manifest is not None else _later(TASK, facts)
    return ok(TASK, facts.task_words)


def _schema(facts: JoinFacts) -> Tick:
    if facts.run_fault is not None and facts.their_format not in (None, FORMAT):
        return checking(SCHEMA, "known once the versions match")
    if facts.run_fault is not None:
        return failed(SCHEMA, facts.run_fault.detail, facts.run_fault.remedy)
    manifest = facts.manifest
    if manifest is None:
        return _later(SCHEMA, facts)
    if facts.options_fault:
        words = f"task {plain(manifest.task.name, 40)} takes other options here: {plain(facts.options_fault, 200)}"
        return warning(SCHEMA, words, "install the version of the task that the other machines have")
    if manifest.model is not None and not manifest.tensors:
        return ok(SCHEMA, plain(manifest.model.name, 60))
    size = sum(tensor.size for tensor in manifest.tensors)
    return ok(SCHEMA, f"{counted(size, 'parameter')} in {counted(len(manifest.tensors), 'tensor')}")


def _data(facts: JoinFacts, manifest: Manifest) -> Tick:
    name = plain(manifest.name, 40)
    if isinstance(manifest.algorithm, FedAvg) and manifest.algorithm.private and not facts.own_data:
        return failed(
            DATA, "its clients are private: each machine brings its own data", f"swarm join {name} --data FILE, in a terminal"
        )
    if manifest.files:
        size = amount(sum(ref.size_bytes for ref in manifest.files))
        names = ", ".join(plain(ref.name, 40) for ref in manifest.files[:3]) + (", …" if len(manifest.files) > 3 else "")
        return ok(DATA, f"{name} brings {names} along, {size}: fetched before training, unless it is here")
    if manifest.model is not None and not facts.own_model:
        words = f"{plain(manifest.model.name, 60)} is not attached: it is looked for in the Hugging Face cache here"
        return warning(DATA, words, f"elsewhere: swarm join {name} --model FOLDER, in a terminal")
    if facts.own_data:
        return ok(DATA, "this machine's own")
    if facts.data_fault:
        return failed(DATA, plain(facts.data_fault, 300), f"swarm join {name} --data FILE, in a terminal")
    return ok(DATA, "none is needed" if not manifest.task.data else "it is on this machine")


def _version(facts: JoinFacts) -> Tick:
    theirs = facts.their_format
    if theirs is None and facts.advert is not None:
        theirs = facts.advert.format
    versions = tuple(v for v in dict.fromkeys(plain(v, 20) for v in facts.their_versions) if v)
    there = f"swarm {' and '.join(versions)}" if versions else "swarm"
    if theirs is None and facts.manifest is None:
        return _later(VERSION, facts)
    if theirs is not None and theirs != FORMAT:
        where = "here" if theirs > FORMAT else "on the machines that made it"
        words = f"swarm {facts.version} here reads format {FORMAT}, {there} there wrote format {theirs}"
        return failed(VERSION, words, f"upgrade swarm {where}: pip install --upgrade homeswarm")
    if any(v != facts.version for v in versions):
        return warning(VERSION, f"swarm {facts.version} here, {there} there; both have format {FORMAT}")
    return ok(VERSION, f"swarm {facts.version}, format {FORMAT}")


def _passphrase(facts: JoinFacts) -> Tick:
    mine = f"this machine's passphrase ({facts.fingerprint})" if facts.fingerprint else "this machine's passphrase"
    if facts.passphrase_fault:
        return failed(PASSPHRASE, plain(facts.passphrase_fault, 300), "`swarm key --help` tells more")
    match facts.passphrase:
        case None:
            return _later(PASSPHRASE, facts)
        case "open":
            return ok(PASSPHRASE, "none: the run is open to whoever reaches the share")
        case "right":
            return ok(PASSPHRASE, f"signed with {mine}")
        case "missing":
            return failed(
                PASSPHRASE,
                "the run is signed, and this machine has no passphrase",
                "swarm key import, with the one of the other machines",
            )
        case "wrong":
            return failed(
                PASSPHRASE,
                f"the run is signed with another one than {mine}",
                "swarm key import, with the one of the other machines",
            )
        case "unasked":
            return failed(
                PASSPHRASE,
                f"the run is open, and {mine} would take none of its records",
                "start it anew with the passphrase, or join it without: SWARM_KEY_FILE= swarm join",
            )
        case _:
            assert_never(facts.passphrase)


def _memory(facts: JoinFacts) -> Tick:
    if facts.manifest is not None:
        needed = memory_needed(facts.manifest, facts.role)
    elif facts.advert is not None and facts.advert.memory_bytes:
        needed = facts.advert.memory_bytes
    else:
        return _later(MEMORY, facts)
    if facts.free_bytes is None or facts.total_bytes is None:
        return checking(MEMORY)
    words = f"about {amount(needed)} needed, and what a batch takes; {amount(facts.free_bytes)} free"
    if needed > facts.total_bytes:
        words = f"about {amount(needed)} needed; this machine has {amount(facts.total_bytes)}"
        return failed(
            MEMORY, words, "join with a machine that has more: this one can still close rounds, swarm join --role syncer"
        )
    if needed > facts.free_bytes:
        return warning(MEMORY, words, "close other programs first")
    return ok(MEMORY, words)


def _generation(facts: JoinFacts) -> Tick:
    if facts.trains:
        return ok(GENERATION, "the others train: this machine waits for the next generation, which begins at a checkpoint")
    return ok(GENERATION, "nobody trains: it begins as soon as enough machines are there")


def _later(name: str, facts: JoinFacts) -> Tick:
    return checking(name, _MOUNT_FIRST if facts.looked and facts.location is None else "")


def _who(facts: JoinFacts) -> str:
    return plain(facts.told_by[0], 40) if facts.told_by else "the network"
