"""`swarm status`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from swarm import api
from swarm.cli import clients, ranks, spending
from swarm.cli.common import json_option, mailbox_option, put, say, table, wait_for, where
from swarm.cli.words import heard, learner_state, run_object, say_here, say_lost, state_words
from swarm.core.errors import MailboxUnavailable
from swarm.core.sentences import amount, number, plain


@click.command()
@click.argument("run")
@click.option("--watch", is_flag=True, help="Go on, a line for each round or report, until the run ends.")
@mailbox_option
@json_option
def status(run: str, watch: bool, mailbox: str | None, as_json: bool) -> int:
    """Show one run: its learners, its last rounds, its losses; of a data-parallel job its ranks, and why others have none."""
    location = where(mailbox)

    async def read() -> int:
        manifest = await api.find_run(location, run)
        follower = api.RunWatch(location, manifest.run)
        state = await api.settled(follower)
        if state.manifest is None:
            raise MailboxUnavailable(state.lost or f"{location} does not answer")
        say_lost(state)
        here = say_here(manifest.run)
        kept = await _checkpoints(location, state)
        show(state, as_json, kept, here)
        rounds, evals, shown = state.open_round, {e.round for e in state.evals}, state
        while watch and state.phase not in ("done", "stopped"):
            await asyncio.sleep(min(1.0, manifest.algorithm.beat_s))
            told, here = here, say_here(manifest.run, here)
            before, state = state.lost, await follower.poll()
            if bool(before) != bool(state.lost):
                trouble = "the run cannot go on" if state.halted else "the mailbox does not answer"
                say(f"{trouble}: {plain(state.lost, 500)}" if state.lost else "the mailbox is back")
            new = [r for r in state.rounds if r.round >= rounds]
            if as_json:
                if new or here != told or ranks.changed(shown, state):
                    kept = await _checkpoints(location, state)
                    show(state, as_json, kept, here)
            elif api.progress(state) is not None:
                for line in ranks.news(shown, state):
                    print(line, flush=True)
            else:
                late = [e for e in state.evals if e.round < rounds and e.round not in evals]
                for line in [_round_line(state, r) for r in new] + [f"round {e.round}: {_eval_words(e)}" for e in late]:
                    print(line, flush=True)
            rounds, evals, shown = state.open_round, {e.round for e in state.evals}, state
        return 1 if state.halted else 0

    return wait_for(read())


async def _checkpoints(location: str, state: api.RunState) -> list[int]:
    """Rounds whose parameters are kept. A run that keeps none is not asked."""
    if state.manifest is None or not state.manifest.checkpoint_every:
        return []
    return await api.checkpoints(location, state.run)


def show(state: api.RunState, as_json: bool, checkpoints: list[int], here: Mapping[str, str] | None = None) -> None:
    """A run that was read, on stdout. `here`: what is in the way of this machine's learners."""
    manifest = state.manifest
    if as_json:
        put(_object(state, checkpoints) | {"troubles": dict(here or {})})
        return
    assert manifest is not None
    if api.progress(state) is not None:
        print(f"{plain(state.name)} ({state.run})  {state_words(state)}  {ranks.headline(state)}  {state.trust.word}")
        for line in (*ranks.lines(state), *_refused_lines(state)):
            print(line)
        for line in spending.lines(state):
            print(line)
        return
    of = "" if state.total_rounds is None else f"/{state.total_rounds}"
    task, settings = plain(manifest.task.name), api.settings_words(manifest.algorithm)
    head = f"{plain(state.name)} ({state.run})  {state_words(state)}  round {state.open_round}{of}  task {task}  {settings}"
    print(f"{head}  {state.trust.word}")
    if (base := manifest.base) is not None:
        print(f"began with {plain(base.name)}, {amount(base.size_bytes)}, SHA-256 {base.sha256[:12]}…")
    if manifest.replay:
        print(f"replays on {plain(manifest.replay, 200)}")
    if checkpoints:
        print(f"checkpoints of round {', '.join(map(str, checkpoints))}")
    for line in clients.evaluation_lines(state):
        print(line)
    for line in spending.lines(state):
        print(line)
    rows = [_learner_row(state, manifest, view) for view in state.learners]
    if rows:
        work = manifest.algorithm.weight_unit.upper() if isinstance(manifest.algorithm, api.FedAvg) else "TOKENS"
        heads = ("LEARNER", "STATE", "STEP", f"{work}/S", "LOSS", "ROUNDS", *spending.heads(state), "DEVICE")
        print(table(heads, rows))
    for line in _refused_lines(state):
        print(line)
    for line in clients.table_lines(state):
        print(line)
    for record in state.rounds[-5:]:
        print(_round_line(state, record))
    for line in clients.confusion_lines(state):
        print(line)


def _learner_row(state: api.RunState, manifest: api.Manifest, view: api.LearnerView) -> tuple[str, ...]:
    beat, spec = view.beat, manifest.algorithm
    trains = view.role != "syncer"
    of = f"/{spec.sync_every}" if isinstance(spec, api.DiLoCo) else ""
    return (
        view.learner,
        learner_state(state, view),
        f"{beat.step}{of}" if beat and trains else "",
        f"{beat.tokens_per_s:,.0f}" if beat and view.live and view.state != "paused" and trains else "–",
        number(beat.loss if beat and not api.private(spec) else None),
        str(api.participants(state, view.learner)),
        *spending.cells(state, view),
        view.record.device if view.record else "",
    )


def _refused_lines(state: api.RunState) -> list[str]:
    """Machines that would take part and cannot."""
    return [f"✗ refused  {plain(each.machine_name, 64)}: {plain(each.reason, 300)}" for each in state.refused]


def _refused(state: api.RunState) -> dict[str, Any]:
    said = [
        {"machine": r.machine_name, "reason": r.reason, "role": r.role, "device": r.device or None, "version": r.version}
        for r in state.refused
    ]
    return {"refused": said}


def _object(state: api.RunState, checkpoints: list[int]) -> dict[str, Any]:
    if api.progress(state) is not None:
        return run_object(state) | spending.of_run(state) | ranks.objects(state) | _refused(state)
    hidden = state.manifest is not None and api.private(state.manifest.algorithm)
    learners = [
        {
            "learner": v.learner,
            "role": v.role,
            "state": v.state if heard(state) or not v.live else "silent",
            "held": v.held or None,
            "dropped_by": state.dropped_by(v),
            "round": v.beat.round if v.beat else None,
            "step": v.beat.step if v.beat else None,
            "tokens_per_s": v.beat.tokens_per_s if v.beat else None,
            "loss": v.beat.loss if v.beat and not hidden else None,
            "rounds": api.participants(state, v.learner),
            "device": v.record.device if v.record else None,
        }
        | spending.of_learner(v)
        for v in state.learners
    ]
    losses = {e.round: e.loss for e in state.evals}
    rounds = [
        {
            "round": r.round,
            "participants": [p.learner for p in r.participants],
            "changed": r.version == r.round,
            "rejected": [{"learner": x.learner, "reason": x.reason, "round": x.round} for x in r.rejected],
            "train_loss": None if hidden else api.train_loss(r),
            "val_loss": losses.get(r.round),
            "delta_norms": {p.learner: p.delta_norm for p in r.participants if p.delta_norm is not None and not hidden},
            "cosines": {p.learner: p.cosine for p in r.participants if p.cosine is not None and not hidden},
            "sent_bytes": sum(p.size_bytes for p in r.participants),
        }
        for r in state.rounds
    ]
    run = run_object(state) | spending.of_run(state) | _refused(state)
    found = {**run, "checkpoints": checkpoints, "members": learners, "history": rounds}
    return found | clients.objects(state, rounds)


def _round_line(state: api.RunState, record: api.RoundRecord) -> str:
    assert state.manifest is not None
    spec = state.manifest.algorithm
    evaluated = next((e for e in state.evals if e.round == record.round), None)
    if isinstance(spec, api.FedAvg):
        who = api.trained((p.unit, p.tokens, p.learner) for p in record.participants)
    else:
        who = ", ".join(plain(p.learner) for p in record.participants)
    words = [f"round {record.round}: {who or 'nobody'}"]
    if not api.private(spec):
        words.append(f"train {number(api.train_loss(record))}")
    words.append(_eval_words(evaluated))
    if record.version != record.round:
        words.append("unchanged")
    if (norms := api.norms(record)) and not api.private(spec):
        words.append(f"Δ {norms}")
    if (agree := spending.agreement([p.cosine for p in record.participants])) and not api.private(spec):
        words.append(agree)
    if sent_bytes := sum(p.size_bytes for p in record.participants):
        words.append(f"up {_size(sent_bytes)}")
    if (why := record.reason) not in api.ORDINARY:
        words.append(plain(why, 200))
    lines = ["  ".join(words)]
    for refused in record.rejected:
        earlier = f", for round {refused.round}" if refused.round != record.round else ""
        lines.append(f"  {api.refusal(refused)}{earlier}")
    return "\n".join(lines)


def _eval_words(evaluated: api.EvalRecord | None) -> str:
    accuracy = None if evaluated is None else api.accuracy(evaluated.metrics)
    loss = f"val {number(evaluated.loss if evaluated else None)}"
    return loss if accuracy is None else f"{loss}  accuracy {number(accuracy)}"


def _size(count_bytes: int) -> str:
    size = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
