"""Commands on one run, or on all of a mailbox."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import click

from swarm import api, launcher
from swarm.cli import narrate
from swarm.cli.common import json_option, mailbox_option, put, say, table, wait_for, where
from swarm.core.errors import MailboxUnavailable, UsageError
from swarm.core.events import Transfer
from swarm.core.jobs import Export, Generate, Order
from swarm.core.sentences import number, plain


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
            f"{state.open_round}/{state.manifest.rounds if state.manifest and state.manifest.rounds else '∞'}",
            "no answer" if state.lost else _phase(state),
            ", ".join(v.learner for v in _heard(state)) or "–",
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
        _show(state, as_json)
        rounds, evals = state.open_round, {e.round for e in state.evals}
        while watch and state.phase not in ("done", "stopped"):
            await asyncio.sleep(min(1.0, manifest.algorithm.beat_s))
            before, state = state.lost, await follower.poll()
            if bool(before) != bool(state.lost):
                say(f"the mailbox does not answer: {plain(state.lost, 300)}" if state.lost else "the mailbox is back")
            new = [r for r in state.rounds if r.round >= rounds]
            if as_json and new:
                _show(state, as_json)
            elif not as_json:
                for line in [_round_line(state, r) for r in new] + [
                    f"round {e.round}: val {number(e.loss)}" for e in state.evals if e.round < rounds and e.round not in evals
                ]:
                    print(line, flush=True)
            rounds, evals = state.open_round, {e.round for e in state.evals}

    wait_for(read())


@click.command()
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
@mailbox_option
def stop(run: str, yes: bool, mailbox: str | None) -> None:
    """End RUN for everybody: its learners report what they have, and the round that this closes is the last."""
    location = where(mailbox)
    manifest = wait_for(api.find_run(location, run))
    ended = wait_for(api.RunWatch(location, manifest.run, history=False).poll()).phase
    if ended in ("done", "stopped"):
        say(f"{plain(manifest.name)} is {ended} already")
        return
    if sys.stdin is not None and sys.stdin.isatty():  # a script that says so means it, and nothing is deleted
        _confirm(f"End {plain(manifest.name)} for everybody?", yes)
    wait_for(api.stop_run(location, manifest.run))
    say(f"{plain(manifest.name)} ends with its next round, at once if nobody trains")


@click.command()
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Even if learners are live.")
@mailbox_option
def rm(run: str, yes: bool, force: bool, mailbox: str | None) -> None:
    """Delete RUN with its whole history."""
    location = where(mailbox)
    manifest = wait_for(api.find_run(location, run))
    if not force:
        live = wait_for(api.live_learners(location, manifest.run, told=lambda s: say(f"is anybody there? (up to {s:.0f} s)")))
        if live:
            names = ", ".join(map(plain, live))
            raise UsageError(f"{names} train in {plain(manifest.name)}: `swarm stop` it first, or --force")
    _confirm(f"Delete {plain(manifest.name)} and all its rounds?", yes)
    count = wait_for(api.remove_run(location, manifest.run))
    say(f"{plain(manifest.name)}: {count} objects deleted")


@click.command()
@click.argument("run")
@click.argument("file", type=click.Path(dir_okay=False))
@mailbox_option
def export(run: str, file: str, mailbox: str | None) -> int:
    """Write the newest committed parameters of RUN to FILE, as Safetensors."""
    location = where(mailbox)
    manifest = wait_for(api.find_run(location, run))
    return _tool(Export(mailbox=location, run=manifest.run, file=click.format_filename(file)))


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


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can be asked here: --yes says so")
    if not click.confirm(question, err=True):
        raise click.exceptions.Exit(1)


def _heard(state: api.RunState) -> tuple[api.LearnerView, ...]:
    """Live learners. After two beats in which none was heard, those whose lease still runs do not count."""
    return state.live if state.phase_is_certain else ()


def _phase(state: api.RunState) -> str:
    """The phase as far as `_heard` goes."""
    return "idle" if state.live and not _heard(state) else state.phase


def _learner_state(state: api.RunState, view: api.LearnerView) -> str:
    return "silent" if view.live and not _heard(state) else view.state


def _run_object(state: api.RunState) -> dict[str, object]:
    manifest = state.manifest
    return {
        "run": state.run,
        "name": state.name,
        "method": "diloco",
        "task": manifest.task.name if manifest else None,
        "round": state.open_round,
        "rounds": manifest.rounds if manifest else None,
        "state": _phase(state),
        "certain": state.phase_is_certain,
        "learners": [v.learner for v in _heard(state)],
    }


def _show(state: api.RunState, as_json: bool) -> None:
    manifest = state.manifest
    if as_json:
        learners = [
            {
                "learner": v.learner,
                "state": _learner_state(state, v),
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
                "rejected": [{"learner": x.learner, "reason": x.reason, "round": x.round} for x in r.rejected],
                "train_loss": api.train_loss(r),
                "val_loss": losses.get(r.round),
            }
            for r in state.rounds
        ]
        put({**_run_object(state), "members": learners, "history": rounds})
        return
    assert manifest is not None
    of = f"/{manifest.rounds}" if manifest.rounds else ""
    phase = "no answer" if state.lost else _phase(state)
    print(f"{plain(state.name)} ({state.run})  {phase}  round {state.open_round}{of}  task {plain(manifest.task.name)}")
    rows = [
        (
            v.learner,
            _learner_state(state, v),
            f"{v.beat.step}/{manifest.algorithm.sync_every}" if v.beat else "",
            f"{v.beat.tokens_per_s:,.0f}" if v.beat and v.live else "–",
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
    rejected = "".join(f"  {plain(r.learner)} {r.reason}" for r in record.rejected)
    who = ", ".join(plain(p.learner) for p in record.participants) or "nobody"
    return f"round {record.round}: {who}  train {number(api.train_loss(record))}  val {number(val)}{rejected}"
