"""What several commands say of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from swarm import api
from swarm.cli.common import asked_by, say
from swarm.core.sentences import plain


def heard(state: api.RunState) -> tuple[api.LearnerView, ...]:
    """Live learners. After two beats in which none was heard, those whose lease still runs do not count."""
    return state.live if state.phase_is_certain else ()


def phase(state: api.RunState) -> str:
    """The phase as far as `_heard` goes."""
    unheard = state.phase in ("running", "waiting") and not heard(state)
    return "idle" if unheard else state.phase


def say_lost(state: api.RunState) -> None:
    """Why a run is shown as 'no answer': the share, or a record in it that is damaged. And what was forged, and is ignored."""
    if state.lost:
        say(f"{plain(state.name)} could not be read to its end: {plain(state.lost, 500)}")
    elif state.trust.ignored:
        say(f"{plain(state.name)}: {plain(state.trust.ignored, 300)}")


def say_here(run: str, before: Mapping[str, str] | None = None) -> dict[str, str]:
    """What is in the way of this machine's learners of the run, by learner; said where it is another than `before`."""
    now = {job.learner: job.trouble for job in api.jobs() if job.run == run and job.trouble}
    before = before or {}
    for learner in sorted({*before, *now}):
        if now.get(learner) != before.get(learner):
            say(f"{learner} on this machine{f': {plain(now[learner], 500)}' if learner in now else ' goes on'}")
    return now


def state_words(state: api.RunState) -> str:
    """The phase, with whom it waits for or who asked for it."""
    if state.lost:
        return "halted" if state.halted else "no answer"
    now = state.effect
    match said := phase(state):
        case "waiting":
            return plain(state.waiting, 200)
        case "paused":
            return f"paused{asked_by(now.by)}"
        case "running" if now.ending:
            return f"{said}, {'stop' if now.stopping else 'pause'} asked for{asked_by(now.by)}"
        case _:
            return said


def method(state: api.RunState) -> str:
    """As the command line names it; '' while the manifest is not known."""
    return str(type(state.manifest.algorithm).__struct_config__.tag) if state.manifest else ""


def learner_state(state: api.RunState, view: api.LearnerView) -> str:
    dropped = state.dropped_by(view)
    if dropped is not None:
        return f"{'leaving, ' if view.live and heard(state) else ''}dropped{asked_by(dropped)}"
    if view.live and not heard(state):
        return "silent"
    if view.held:
        return f"{view.state}: {plain(view.held, 100)}"
    return "syncer" if view.role == "syncer" and view.live else view.state


def run_object(state: api.RunState) -> dict[str, object]:
    """The run for --json."""
    manifest, now, there, forged = state.manifest, state.effect, heard(state), state.trust.forged
    found = {
        "run": state.run,
        "name": state.name,
        "method": method(state),
        "task": manifest.task.name if manifest else None,
        "round": state.open_round,
        "rounds": state.total_rounds,
        "state": phase(state),
        "certain": state.phase_is_certain,
        "waits_for": state.waits_for if there else "",
        "asked": "stop" if now.stopping else "pause" if now.pausing else None,
        "by": now.by or None,
        "learners": [v.learner for v in there if v.role != "syncer"],
        "syncers": [v.learner for v in there if v.role == "syncer"],
        "checkpoint_every": manifest.checkpoint_every if manifest else None,
        "checkpoints_kept": manifest.checkpoints_kept if manifest else None,
        "base": msgspec.to_builtins(manifest.base) if manifest else None,
        "signed": state.trust.signed,
        "fingerprint": state.trust.fingerprint or None,
        "forged": {"count": forged.count, "kinds": forged.kinds, "newest": forged.newest or None},
        "halted": state.halted,
    }
    return found | _job_object(state)


def progress_words(state: api.RunState) -> str:
    """How far a run is: 'ROUNDS/OF', or of a data-parallel job its iterations."""
    at = api.progress(state)
    if at is not None:
        return f"{at.iteration}/{at.iters} it"
    return f"{state.open_round}/{'∞' if state.total_rounds is None else state.total_rounds}"


def _job_object(state: api.RunState) -> dict[str, Any]:
    """More of a run for --json: how far it is. Nothing of other runs."""
    at = api.progress(state)
    if at is None:
        return {}
    planned, trains = state.ranks.planned, bool(heard(state)) and state.phase == "running"
    return {
        "round": None,
        "rounds": None,
        "model": state.manifest.model.name if state.manifest is not None and state.manifest.model is not None else None,
        "step": at.step,
        "steps": at.steps,
        "iteration": at.iteration,
        "iters": at.iters,
        "epoch": at.epoch,
        "epochs": at.epochs,
        "tokens_per_s": at.tokens_per_s if trains else None,
        "train_loss": at.train_loss,
        "val_loss": at.val_loss,
        "test_loss": at.test_loss,
        "eta_s": at.eta_s if trains else None,
        "generation": None if planned is None else planned.generation,
        "world_size": None if planned is None else len(planned.seats),
    }
