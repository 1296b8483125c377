"""Commands on a mailbox's runs: to list them, to let one write, to delete one."""

from __future__ import annotations

import asyncio

import click

from swarm import api
from swarm.cli.common import check_peers, confirm, json_option, mailbox_option, peers_option, put, say, table, wait_for, where
from swarm.cli.peers import others_table, run_row, runs_around
from swarm.cli.tools import run_tool
from swarm.cli.words import heard, method, progress_words, run_object, say_lost, state_words
from swarm.core.errors import NoMailboxNamed, UsageError
from swarm.core.jobs import Generate
from swarm.core.sentences import plain


@click.command()
@mailbox_option
@peers_option
@json_option
def runs(mailbox: str | None, peers: tuple[str, ...], as_json: bool) -> None:
    """List the runs of the mailbox, and without --mailbox those that the network and the other known mailboxes tell of.

    Whether somebody trains is listened for: up to two beats.
    """
    check_peers(peers, mailbox)
    around = mailbox is None and api.discovers()
    try:
        location = where(mailbox)
    except NoMailboxNamed:
        if not around:
            raise
        location = ""  # no mailbox yet: the network may tell of some

    async def read() -> tuple[list[api.RunState], list[str], str]:
        if not location:
            return [], [], ""
        survey = await api.surveyed(location)
        watches = [api.RunWatch(location, m.run, history=False) for m in survey.runs]
        return list(await asyncio.gather(*(api.settled(watch) for watch in watches))), survey.faults, survey.foreign

    async def read_all() -> tuple[tuple[list[api.RunState], list[str], str], api.Sightings]:
        return await asyncio.gather(read(), runs_around(api.HomeWatch(None), peers))

    (found, faults, foreign), seen = wait_for(read_all()) if around else (wait_for(read()), api.Sightings())
    for fault in faults:
        say(f"a run that cannot be read: {plain(fault, 300)}")
    if foreign:
        say(f"{foreign}: this machine's passphrase did not sign them")
    states = sorted(found, key=lambda state: state.name)
    others = [run for run in seen.runs if run.advert.run not in {state.run for state in states}]
    for state in states:
        say_lost(state)
    if as_json:
        for state in states:
            put(run_object(state))
        for run in others:
            put(run_row(run))
        return
    for line in seen.trouble:
        say(plain(line, 300))
    if not states and not others:
        if not location:
            where(mailbox)  # says that there is none, and how to make one
        say(f"no run in {location}: `swarm start diloco` starts one")
        return
    rows = [
        (
            state.name,
            state.run,
            method(state),
            state.manifest.task.name if state.manifest else "",
            progress_words(state),
            state_words(state),
            state.trust.word.removeprefix("signed "),
            ", ".join(v.learner + (" (syncer)" if v.role == "syncer" else "") for v in heard(state)) or "–",
        )
        for state in states
    ]
    if states:
        print(table(("NAME", "RUN", "METHOD", "TASK", "ROUND", "STATE", "SIGNED", "LEARNERS"), rows))
    if states and others:
        print()
    if others:
        print(others_table(others))


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
            train = f"{', '.join(map(plain, live))} {'trains' if len(live) == 1 else 'train'}"
            raise UsageError(f"{train} in {plain(name)}: `swarm stop` it first, or --force")
    confirm(f"Delete {plain(name)} and all its rounds?", yes=yes)
    count = wait_for(api.remove_run(location, run))
    say(f"{plain(name)}: {count} objects deleted")


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
@click.option(
    "--model",
    metavar="DIR|REPO",
    help="The base model of a run that fine-tunes one: a folder, or a Hugging Face repository; by default it is looked for in "
    "the Hugging Face cache and in the run.",
)
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
    model: str | None,
    mailbox: str | None,
) -> int:
    """Let the newest committed model of RUN go on from a prompt, without joining."""
    location = where(mailbox)
    manifest = wait_for(api.find_run(location, run))
    return run_tool(
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
            model=model,
        )
    )
