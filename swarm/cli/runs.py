"""Commands on one run, or on all of a mailbox."""

from __future__ import annotations

import asyncio
import sys

import click

from swarm import api, launcher
from swarm.cli.common import json_option, mailbox_option, number, plain, put, say, table, wait_for
from swarm.core.errors import UsageError
from swarm.core.jobs import Export, Generate, Order


@click.command()
@mailbox_option
@json_option
def runs(mailbox: str | None, as_json: bool) -> None:
    """List the runs of the mailbox. Whether somebody trains is listened for: up to two beats."""
    location = api.mailbox_location(mailbox)

    async def read() -> list[api.RunState]:
        watches = [api.RunWatch(location, m.run, history=False) for m in await api.manifests(location)]
        return list(await asyncio.gather(*(api.settled(watch) for watch in watches)))

    states = sorted(wait_for(read()), key=lambda state: state.name)
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
            _phase(state),
            ", ".join(v.learner for v in state.live) or "–",
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
    location = api.mailbox_location(mailbox)

    async def read() -> None:
        manifest = await api.find_run(location, run)
        follower = api.RunWatch(location, manifest.run)
        state = await api.settled(follower)
        _show(state, as_json)
        told = state.open_round
        while watch and state.phase not in ("done", "stopped"):
            await asyncio.sleep(min(1.0, manifest.algorithm.beat_s))
            state = await follower.poll()
            if state.open_round > told:
                told = state.open_round
                _show(state, as_json) if as_json else print(_round_line(state, state.rounds[-1]), flush=True)

    wait_for(read())


@click.command()
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
@mailbox_option
def stop(run: str, yes: bool, mailbox: str | None) -> None:
    """End RUN for everybody: its learners report what they have, and the round that this closes is the last."""
    location = api.mailbox_location(mailbox)
    manifest = wait_for(api.find_run(location, run))
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
    location = api.mailbox_location(mailbox)
    manifest = wait_for(api.find_run(location, run))
    live = wait_for(api.settled(api.RunWatch(location, manifest.run, history=False))).live
    if live and not force:
        names = ", ".join(plain(v.learner) for v in live)
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
    location = api.mailbox_location(mailbox)
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
    location = api.mailbox_location(mailbox)
    manifest = wait_for(api.find_run(location, run))
    return _tool(
        Generate(
            mailbox=location,
            run=manifest.run,
            prompt=prompt,
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
        code = worker.process.wait()
    except KeyboardInterrupt:
        worker.process.kill()
        raise
    for line in launcher.log_tail(worker.job / "log.txt", 5) if code == 0 else ():
        say(plain(line, 300))
    if code != 0:
        say(f"swarm: {plain(launcher.last_words(worker.job), 500)}")
    return 1 if code < 0 else code


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Not a terminal: --yes says so")
    if not click.confirm(question, err=True):
        raise click.exceptions.Exit(1)


def _phase(state: api.RunState) -> str:
    if state.lost:
        return "no answer"
    return state.phase if state.phase_is_certain or not state.live else f"{state.phase}?"


def _run_object(state: api.RunState) -> dict[str, object]:
    manifest = state.manifest
    return {
        "run": state.run,
        "name": state.name,
        "method": "diloco",
        "task": manifest.task.name if manifest else None,
        "round": state.open_round,
        "rounds": manifest.rounds if manifest else None,
        "state": state.phase,
        "certain": state.phase_is_certain,
        "learners": [v.learner for v in state.live],
    }


def _show(state: api.RunState, as_json: bool) -> None:
    manifest = state.manifest
    if as_json:
        learners = [
            {
                "learner": v.learner,
                "state": v.state,
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
    print(f"{plain(state.name)} ({state.run})  {_phase(state)}  round {state.open_round}{of}  task {plain(manifest.task.name)}")
    rows = [
        (
            v.learner,
            v.state,
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
