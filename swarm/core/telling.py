"""What stands in a mailbox of a run and of the machines in it, as adverts: seen there, it needs no multicast. Pure."""

from __future__ import annotations

import contextlib
import hashlib

from swarm.core.adverts import PeerAdvert, PeerState, RunAdvert, checked_peer, checked_run
from swarm.core.errors import AdvertError
from swarm.core.finetune import FineTune
from swarm.core.needs import memory_needed
from swarm.core.rankview import progress
from swarm.core.rounds import starters
from swarm.core.state import LearnerView, RunState


def boot_digits(boot: str) -> str:
    """A boot's id as adverts have it."""
    return hashlib.sha256(boot.encode()).hexdigest()[:8]


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
    advert = RunAdvert(
        run=manifest.run,
        peer=peer,
        name=manifest.name,
        method=str(type(algorithm).__struct_config__.tag),
        task=manifest.task.name,
        mailbox=mailbox,
        phase="idle" if state.phase in ("running", "waiting") and not heard(state) else state.phase,
        round=done,
        rounds=total,
        learners=len(live),
        wanted=max(0, needed - len(live)) if state.phase in ("waiting", "idle") else 0,
        memory_bytes=memory_needed(manifest),
        share=manifest.share,
        format=manifest.format,
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
    match view.state:
        case "paused":
            return "paused"
        case "join" | "joining" | "wait":
            return "waiting"
        case _:
            return "training"
