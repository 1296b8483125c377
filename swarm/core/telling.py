"""What adverts say of a run and of the machines in it: as a worker knows it, and as it stands in a mailbox, which needs no
multicast. Pure."""

from __future__ import annotations

import contextlib
import hashlib
import re

import msgspec

from swarm.core.adverts import PeerAdvert, PeerState, RunAdvert, checked_peer, checked_run
from swarm.core.errors import AdvertError
from swarm.core.events import (
    Ended,
    Freed,
    Gathering,
    Held,
    JobStepped,
    Joined,
    Paused,
    RankPlaced,
    Resumed,
    RoundClosed,
    Stepped,
    Trained,
    Training,
    Waiting,
    WorkerEvent,
)
from swarm.core.finetune import FineTune
from swarm.core.manifest import Manifest
from swarm.core.needs import memory_needed
from swarm.core.rankview import progress
from swarm.core.rounds import starters
from swarm.core.state import LearnerView, RunState


def boot_digits(boot: str) -> str:
    """A boot's id as adverts have it."""
    return hashlib.sha256(boot.encode()).hexdigest()[:8]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker tells of its part in a run."""

    run: RunAdvert
    state: PeerState = "waiting"


def part_in(manifest: Manifest, *, mailbox: str, peer: str, signed: bool = False) -> Part:
    """Before the worker has joined. `mailbox`: its id."""
    algorithm = manifest.algorithm
    rounds = algorithm.iters if isinstance(algorithm, FineTune) else manifest.rounds
    run = _bare(manifest, mailbox=mailbox, peer=peer, rounds=rounds)
    return Part(run=msgspec.structs.replace(run, signed=signed))


def after(part: Part, event: WorkerEvent) -> Part:
    """The part once `event` has happened; most of them change nothing."""
    match event:
        case Joined():
            return _part(part, "training", round=event.round, phase="running", learners=max(1, part.run.learners))
        case Waiting() if event.reason.startswith("waiting"):
            more = re.search(r"\d+(?= more learner)", event.reason)
            return _part(part, "waiting", round=event.round, phase="waiting", wanted=int(more[0]) if more else 0)
        case Held():
            return _part(part, "paused")  # this machine, not the run
        case Freed():
            return _part(part, "training")
        case Stepped() | Training() | Trained() | Resumed():
            return _part(part, "training", round=event.round, phase="running", wanted=0)
        case Paused():
            return _part(part, "paused", round=event.round, phase="paused")
        case RoundClosed():
            who = {each.learner for each in event.clients} or set(event.participants)
            changes = {"learners": len(who)} if who else {}  # a round may close without anything that counts
            return _part(part, part.state, round=event.round + 1, rounds=event.rounds, wanted=0, **changes)
        case Gathering():
            return _part(part, "waiting", phase="waiting")
        case RankPlaced():
            return _part(part, "training", phase="running", learners=event.size)
        case JobStepped():
            return _part(part, "training", phase="running", round=event.iteration)
        case Ended(reason="done" | "stopped"):
            return _part(part, "idle", phase=event.reason)
        case _:
            return part


def _part(part: Part, state: PeerState, **changes: object) -> Part:
    return Part(run=msgspec.structs.replace(part.run, **changes), state=state)


def _bare(manifest: Manifest, *, mailbox: str, peer: str, rounds: int | None) -> RunAdvert:
    return RunAdvert(
        run=manifest.run,
        peer=peer,
        name=manifest.name,
        method=str(type(manifest.algorithm).__struct_config__.tag),
        task=manifest.task.name,
        mailbox=mailbox,
        rounds=rounds,
        share=manifest.share,
        memory_bytes=memory_needed(manifest),
        format=manifest.format,
    )


def heard(state: RunState) -> tuple[LearnerView, ...]:
    """Live learners, once it is certain that somebody is: a lease may still run of one that was killed."""
    return state.live if state.phase_is_certain else ()


def run_advert(state: RunState, *, mailbox: str, peer: str) -> RunAdvert | None:
    """Of a run as it stands in the mailbox with that id, told by machine `peer`. None while its manifest is not read, and for
    one of which nothing can be told."""
    manifest = state.manifest
    if manifest is None:
        return None
    algorithm, job = manifest.algorithm, progress(state)
    live = [view for view in heard(state) if view.role != "syncer"]
    done, total = (state.open_round, state.total_rounds) if job is None else (job.iteration, job.iters)
    needed = algorithm.world_size_min if isinstance(algorithm, FineTune) else 0 if state.rounds else starters(algorithm)
    advert = msgspec.structs.replace(
        _bare(manifest, mailbox=mailbox, peer=peer, rounds=total),
        phase="idle" if state.phase in ("running", "waiting") and not heard(state) else state.phase,
        round=done,
        learners=len(live),
        signed=state.trust.signed,
        wanted=max(0, needed - len(live)) if state.phase in ("waiting", "idle") else 0,
    )
    with contextlib.suppress(AdvertError):
        return checked_run(advert)
    return None


def peer_adverts(states: tuple[RunState, ...], *, mailbox: str) -> tuple[PeerAdvert, ...]:
    """Of the machines with a live learner in these runs, which stand in the mailbox with that id."""
    found: dict[tuple[str, str], PeerAdvert] = {}
    for view in (view for state in states for view in heard(state)):
        record = view.record
        if record is None:
            continue
        boot = boot_digits(record.boot)
        before = found.get((record.machine, boot))
        devices = (record.device,) if record.device else ()
        if before is not None:
            state = before.state if before.state == "training" else _peer_state(view)
            devices = tuple(dict.fromkeys((*before.accelerators, *devices)))[:8]
        else:
            state = _peer_state(view)
        advert = PeerAdvert(
            peer=record.machine,
            name=record.machine_name,
            boot=boot,
            version=record.version,
            accelerators=devices,
            state=state,
            mailboxes=(mailbox,),
        )
        with contextlib.suppress(AdvertError):  # a record may hold anything
            found[record.machine, boot] = checked_peer(advert)
    return tuple(found.values())


def _peer_state(view: LearnerView) -> PeerState:
    if view.held:
        return "paused"
    match view.state:
        case "paused":
            return "paused"
        case "join" | "joining" | "wait":
            return "waiting"
        case _:
            return "training"
