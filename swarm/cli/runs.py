"""Commands on one run, or on all of a mailbox."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import click
import msgspec

from swarm import api, launcher
from swarm.cli import narrate
from swarm.cli.common import asked_by, confirm, json_option, mailbox_option, put, say, table, wait_for, where
from swarm.core.errors import MailboxUnavailable, UsageError
from swarm.core.events import Transfer
from swarm.core.jobs import Export, Generate, Order
from swarm.core.sentences import amount, number, plain


@click.command()
@mailbox_option
@json_option
def runs(mailbox: str | None, as_json: bool) -> None:
    """List the runs of the mailbox. Whether somebody trains is listened for: up to two beats."""
    location = where(mailbox)

    async def read() -> tuple[list[api.RunState], list[str]]:
        manifests, faults = await api.survey(location)
        watches = [api.RunWatch(location, m.run, history=False) for m in manifests]
        return list(await asyncio.gather(*(api.settled(watch) for watch in watches))), faults

    found, faults = wait_for(read())
    for fault in faults:
        say(f"a run that cannot be read: {plain(fault, 300)}")
    states = sorted(found, key=lambda state: state.name)
    for state in states:
        _say_lost(state)
    if as_json:
        for state in states:
            put(_run_object(state))
        return
    if not states:
        say(f"no run in {location}: `swarm start diloco` starts one")
        return
    rows = [
        (
            state.name,
            state.run,
            "diloco",
            state.manifest.task.name if state.manifest else "",
            f"{state.open_round}/{'∞' if state.total_rounds is None else state.total_rounds}",
            _state_words(state),
            ", ".join(v.learner + (" (syncer)" if v.role == "syncer" else "") for v in _heard(state)) or "–",
        )
        for state in states
    ]
    print(table(("NAME", "RUN", "METHOD", "TASK", "ROUND", "STATE", "LEARNERS"), rows))


@click.command()
@click.argument("run")
@click.option("--watch", is_flag=True, help="Go on, a line for each round, until the run ends.")
@mailbox_option
@json_option
def status(run: str, watch: bool, mailbox: str | None, as_json: bool) -> None:
    """Show one run: its learners, its last rounds, its losses."""
    location = where(mailbox)

    async def read() -> None:
        manifest = await api.find_run(location, run)
        follower = api.RunWatch(location, manifest.run)
        state = await api.settled(follower)
        if state.manifest is None:
            raise MailboxUnavailable(state.lost or f"{location} does not answer")
        _say_lost(state)
        kept = await _checkpoints(location, state)
        _show(state, as_json, kept)
        rounds, evals = state.open_round, {e.round for e in state.evals}
        while watch and state.phase not in ("done", "stopped"):
            await asyncio.sleep(min(1.0, manifest.algorithm.beat_s))
            before, state = state.lost, await follower.poll()
            if bool(before) != bool(state.lost):
                say(f"the mailbox does not answer: {plain(state.lost, 300)}" if state.lost else "the mailbox is back")
            new = [r for r in state.rounds if r.round >= rounds]
            if as_json and new:
                kept = await _checkpoints(location, state)
                _show(state, as_json, kept)
            elif not as_json:
                for line in [_round_line(state, r) for r in new] + [
                    f"round {e.round}: val {number(e.loss)}" for e in state.evals if e.round < rounds and e.round not in evals
                ]:
                    print(line, flush=True)
            rounds, evals = state.open_round, {e.round for e in state.evals}

    wait_for(read())


async def _checkpoints(location: str, state: api.RunState) -> list[int]:
    """Rounds whose parameters are kept. A run that keeps none is not asked."""
    if state.manifest is None or not state.manifest.checkpoint_every:
        return []
    return await api.checkpoints(location, state.run)


@click.command()
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Even if learners are live.")
@mailbox_option
def rm(run: str, yes: bool, force: bool, mailbox: str | None) -> None:
    """Delete RUN with its whole history. One that cannot be read goes by its id and --force."""
    location = where(mailbox)
    try:
        manifest = wait_for(api.find_run(location, run))
        name, run = manifest.name, manifest.run
    except api.RunNotFound as error:
        if not force:
            raise api.RunNotFound(f"{error}; one that cannot be read: `swarm rm ID --force`") from None
        name = run
    if not force:
        live = wait_for(api.live_learners(location, run, told=lambda s: say(f"is anybody there? (up to {s:.0f} s)")))
        if live:
            names = ", ".join(map(plain, live))
            raise UsageError(f"{names} train in {plain(name)}: `swarm stop` it first, or --force")
    confirm(f"Delete {plain(name)} and all its rounds?", yes=yes)
    count = wait_for(api.remove_run(location, run))
    say(f"{plain(name)}: {count} objects deleted")


@click.command()
@click.argument("run")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--round", "round_", type=click.IntRange(0), metavar="N", help="Those after round N: the newest, or one with a checkpoint."
)
@mailbox_option
def export(run: str, file: str, round_: int | None, mailbox: str | None) -> int:
    """Write the newest committed parameters of RUN to FILE, as Safetensors; with --round, older ones that were kept."""
    location = where(mailbox)
    target = Path(file)
    if target.exists() and not target.is_file():  # the finished file takes the place of what is there: of a device, too
        raise UsageError(f"cannot write {file}: a pipe or a device would be replaced by the file")
    manifest = wait_for(api.find_run(location, run))
    return _tool(Export(mailbox=location, run=manifest.run, file=click.format_filename(file), round=round_))


@click.command()
@click.argument("run")
@click.option("--prompt", required=True, help="The text to go on from.")
@click.option("--max-tokens", type=click.IntRange(1), default=200, show_default=True, help="How much to write.")
@click.option("--temp", type=click.FloatRange(0), default=0.8, show_default=True, help="0: always the likeliest.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed writes the same text.")
@click.option(
    "--framework", type=click.Choice(["auto", "torch", "mlx"]), default="auto", show_default=True, help="What to use."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, mps, metal, cuda or cuda:N.")
@click.option("--data", metavar="FILE", help="The task's data, if it is not the shipped one.")
@mailbox_option
def generate(
    run: str,
    prompt: str,
    max_tokens: int,
    temp: float,
    seed: int,
    framework: str,
    device: str,
    data: str | None,
    mailbox: str | None,
) -> int:
    """Let the newest committed model of RUN go on from a prompt, without joining."""
    location = where(mailbox)
    manifest = wait_for(api.find_run(location, run))
    return _tool(
        Generate(
            mailbox=location,
            run=manifest.run,
            prompt=prompt.encode(errors="surrogateescape").decode(errors="replace"),  # a command line may be no UTF-8
            max_tokens=max_tokens,
            temperature=temp,
            seed=seed,
            framework=framework,
            device=device,
            data=data,
        )
    )


def _tool(order: Order) -> int:
    """Run a worker that answers on our stdout."""
    sys.stdout.flush()
    worker = launcher.start(order, foreground=True, stdout=sys.stdout.fileno())
    try:
        code = _waited(worker)
    except KeyboardInterrupt:
        worker.process.kill()
        raise
    if code == 0 and isinstance(order, Export):  # where to, and how much
        for line in launcher.log_tail(worker.job / "log.txt", 1):
            say(plain(line, 300))
    if code != 0:
        how = f"the worker {launcher.ending(code)}: " if code < 0 else ""
        say(f"swarm: {how}{plain(launcher.last_words(worker.job), 500)}")
    return 1 if code < 0 else code


def _waited(worker: launcher.Worker) -> int:
    """Its exit code, once it has ended; what it has to fetch first is told meanwhile."""
    progress = narrate.Progress()
    ended = False
    while not ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(narrate.LOOK_S)
        ended = worker.process.poll() is not None
        for event in worker.events.read():
            if isinstance(event, Transfer) and event.how == "fetch":
                narrate.tell(event, progress)
    progress.clear()
    return int(worker.process.returncode)


def _heard(state: api.RunState) -> tuple[api.LearnerView, ...]:
    """Live learners. After two beats in which none was heard, those whose lease still runs do not count."""
    return state.live if state.phase_is_certain else ()


def _phase(state: api.RunState) -> str:
    """The phase as far as `_heard` goes."""
    unheard = state.phase in ("running", "waiting") and not _heard(state)
    return "idle" if unheard else state.phase


def _say_lost(state: api.RunState) -> None:
    """Why a run is shown as 'no answer': the share, or a record in it that is damaged."""
    if state.lost:
        say(f"{plain(state.name)} could not be read to its end: {plain(state.lost, 300)}")


def _state_words(state: api.RunState) -> str:
    """The phase, with whom it waits for or who asked for it."""
    if state.lost:
        return "no answer"
    phase, now = _phase(state), state.effect
    match phase:
        case "waiting":
            return f"waiting for {state.waits_for}"
        case "paused":
            return f"paused{asked_by(now.by)}"
        case "running" if now.ending:
            return f"{phase}, {'stop' if now.stopping else 'pause'} asked for{asked_by(now.by)}"
        case _:
            return phase


def _learner_state(state: api.RunState, view: api.LearnerView) -> str:
    dropped = state.dropped_by(view)
    if dropped is not None:
        return f"{'leaving, ' if view.live and _heard(state) else ''}dropped{asked_by(dropped)}"
    if view.live and not _heard(state):
        return "silent"
    return "syncer" if view.role == "syncer" and view.live else view.state


def _run_object(state: api.RunState) -> dict[str, object]:
    manifest, now, heard = state.manifest, state.effect, _heard(state)
    return {
        "run": state.run,
        "name": state.name,
        "method": "diloco",
        "task": manifest.task.name if manifest else None,
        "round": state.open_round,
        "rounds": state.total_rounds,
        "state": _phase(state),
        "certain": state.phase_is_certain,
        "waits_for": state.waits_for if heard else "",
        "asked": "stop" if now.stopping else "pause" if now.pausing else None,
        "by": now.by or None,
        "learners": [v.learner for v in heard if v.role != "syncer"],
        "syncers": [v.learner for v in heard if v.role == "syncer"],
        "checkpoint_every": manifest.checkpoint_every if manifest else None,
        "checkpoints_kept": manifest.checkpoints_kept if manifest else None,
        "base": msgspec.to_builtins(manifest.base) if manifest else None,
    }


def _show(state: api.RunState, as_json: bool, checkpoints: list[int]) -> None:
    manifest = state.manifest
    if as_json:
        learners = [
            {
                "learner": v.learner,
                "role": v.role,
                "state": v.state if _heard(state) or not v.live else "silent",
                "dropped_by": state.dropped_by(v),
                "round": v.beat.round if v.beat else None,
                "step": v.beat.step if v.beat else None,
                "tokens_per_s": v.beat.tokens_per_s if v.beat else None,
                "loss": v.beat.loss if v.beat else None,
                "rounds": api.participants(state, v.learner),
                "device": v.record.device if v.record else None,
            }
            for v in state.learners
        ]
        losses = {e.round: e.loss for e in state.evals}
        rounds = [
            {
                "round": r.round,
                "participants": [p.learner for p in r.participants],
                "changed": r.version == r.round,
                "rejected": [{"learner": x.learner, "reason": x.reason, "round": x.round} for x in r.rejected],
                "train_loss": api.train_loss(r),
                "val_loss": losses.get(r.round),
                "delta_norms": {p.learner: p.delta_norm for p in r.participants if p.delta_norm is not None},
                "sent_bytes": sum(p.size_bytes for p in r.participants),
            }
            for r in state.rounds
        ]
        put({**_run_object(state), "checkpoints": checkpoints, "members": learners, "history": rounds})
        return
    assert manifest is not None
    of = "" if state.total_rounds is None else f"/{state.total_rounds}"
    task, settings = plain(manifest.task.name), api.settings_words(manifest.algorithm)
    print(f"{plain(state.name)} ({state.run})  {_state_words(state)}  round {state.open_round}{of}  task {task}  {settings}")
    if (base := manifest.base) is not None:
        print(f"began with {plain(base.name)}, {amount(base.size_bytes)}, SHA-256 {base.sha256[:12]}…")
    if checkpoints:
        print(f"checkpoints of round {', '.join(map(str, checkpoints))}")
    rows = [
        (
            v.learner,
            _learner_state(state, v),
            f"{v.beat.step}/{manifest.algorithm.sync_every}" if v.beat and v.role != "syncer" else "",
            f"{v.beat.tokens_per_s:,.0f}" if v.beat and v.live and v.state != "paused" and v.role != "syncer" else "–",
            number(v.beat.loss if v.beat else None),
            str(api.participants(state, v.learner)),
            v.record.device if v.record else "",
        )
        for v in state.learners
    ]
    if rows:
        print(table(("LEARNER", "STATE", "STEP", "TOKENS/S", "LOSS", "ROUNDS", "DEVICE"), rows))
    for record in state.rounds[-5:]:
        print(_round_line(state, record))


def _round_line(state: api.RunState, record: api.RoundRecord) -> str:
    val = next((e.loss for e in state.evals if e.round == record.round), None)
    who = ", ".join(plain(p.learner) for p in record.participants) or "nobody"
    words = [f"round {record.round}: {who}", f"train {number(api.train_loss(record))}", f"val {number(val)}"]
    if record.version != record.round:
        words.append("unchanged")
    if norms := api.norms(record):
        words.append(f"Δ {norms}")
    if sent_bytes := sum(p.size_bytes for p in record.participants):
        words.append(f"up {_size(sent_bytes)}")
    lines = ["  ".join(words)]
    for refused in record.rejected:
        earlier = f", for round {refused.round}" if refused.round != record.round else ""
        lines.append(f"  {api.refusal(refused)}{earlier}")
    return "\n".join(lines)


def _size(count_bytes: int) -> str:
    size = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
