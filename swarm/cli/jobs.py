"""`swarm jobs`, `swarm logs`, `swarm leave`: what this machine trains."""

from __future__ import annotations

import time

import click

from swarm import api, launcher
from swarm.cli.common import json_option, plain, put, say, table
from swarm.core.errors import UsageError

ACTIVE = ("starting", "running")


@click.command()
@click.option("--all", "every", is_flag=True, help="Ended ones too.")
@json_option
def jobs(every: bool, as_json: bool) -> None:
    """List this machine's jobs: what it trains, and how the last ones ended."""
    found = [job for job in api.jobs() if every or job.state in (*ACTIVE, "failed")]
    if as_json:
        for job in found:
            put(job)
        return
    if not found:
        say("no job on this machine: `swarm join` or `swarm start diloco`")
        return
    rows = [(job.id, job.run_name, job.learner, job.state, job.device, job.message) for job in found]
    print(table(("JOB", "RUN", "LEARNER", "STATE", "DEVICE", "MESSAGE"), rows))


@click.command()
@click.argument("job", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows.")
@click.option("-n", "--lines", type=click.IntRange(1), default=50, show_default=True, help="Lines to begin with.")
def logs(job: str | None, follow: bool, lines: int) -> None:
    """Show what JOB said and did (any part of its id; by default the newest job)."""
    from swarm.cli.narrate import sentence

    chosen = launcher.job(job) if job else next(iter(api.jobs()), None)
    if chosen is None:
        raise UsageError("no job on this machine yet")
    said = [line for line in map(sentence, launcher.EventTail(chosen.log.with_name("events.jsonl")).read()) if line]
    for line in said[-lines:]:
        print(line)
    for line in api.log_tail(chosen.id, lines):
        print(plain(line, 500))
    if not follow:
        return
    events = launcher.EventTail(chosen.log.with_name("events.jsonl"))
    list(events.read())
    while launcher.job(chosen.id).state in ACTIVE:
        for line in filter(None, map(sentence, events.read())):
            print(line, flush=True)
        time.sleep(0.5)


@click.command()
@click.argument("run", required=False)
@click.option("--wait/--no-wait", default=True, help="Wait until the workers have left.")
def leave(run: str | None, wait: bool) -> int:
    """Let this machine leave RUN (a name, an id, the start of one, or a job's id); without RUN, everything it trains."""
    active = [job for job in api.jobs() if job.state in ACTIVE]
    chosen = [j for j in active if run is None or j.run.startswith(run) or j.run_name.startswith(run) or run in j.id]
    if not chosen:
        what = f"in {run!r}" if run else "on this machine"
        names = ", ".join(plain(j.run_name) for j in active) or "none"
        raise UsageError(f"no running job {what}; running: {names}")
    for job in chosen:
        api.leave(job.id)
        say(f"{plain(job.run_name)}: {job.learner} leaves")
    if wait:
        from swarm.cli.narrate import until

        ids = {job.id for job in chosen}
        if not until(lambda: not any(j.id in ids and j.state in ACTIVE for j in api.jobs()), 30):
            say("still leaving: `swarm jobs` shows when they have")
            return 1
    return 0
