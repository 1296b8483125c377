"""`swarm jobs`, `swarm logs`, `swarm leave`: what this machine trains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from swarm import api, launcher
from swarm.cli import spending
from swarm.cli.common import json_option, put, say, table
from swarm.core.errors import UsageError
from swarm.core.sentences import plain
from swarm.host.machine import used_bytes

ACTIVE = ("starting", "running")
UNASKED = ("failed", "dropped")  # ends that nobody on this machine asked for
LEAVING_S = 30.0

only_option = click.option("--mailbox", metavar="DIR", help="Only jobs of this mailbox.")


def _jobs(mailbox: str | None) -> list[api.Job]:
    location = None if mailbox is None else api.mailbox_location(mailbox)
    return [job for job in api.jobs() if location in (None, job.mailbox)]


@click.command()
@click.option("--all", "every", is_flag=True, help="Ended ones too.")
@only_option
@json_option
def jobs(every: bool, mailbox: str | None, as_json: bool) -> None:
    """List this machine's jobs: what it trains, which failed, and which somebody removed from their run."""
    found = [job for job in _jobs(mailbox) if every or job.state in (*ACTIVE, *UNASKED)]
    if as_json:
        for job in found:
            put(msgspec.to_builtins(job, enc_hook=str) | spending.of_job(job, _used(job)))
        return
    if not found:
        say("no job on this machine: `swarm join` or `swarm start diloco`")
        return
    rows = [
        (
            *(job.id, job.run_name, job.learner, job.state),
            *spending.job_cells(job, _used(job), among=found),
            *(job.device, job.message),
        )
        for job in found
    ]
    print(table(("JOB", "RUN", "LEARNER", "STATE", *spending.job_heads(found), "DEVICE", "MESSAGE"), rows))


def _used(job: api.Job) -> int | None:
    """Memory of the device, in bytes; None if that is not known, as of a card."""
    return None if not job.pid or "cuda" in job.device else used_bytes(job.pid)


@click.command()
@click.argument("job", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows, until the job ends.")
@click.option("-n", "--lines", type=click.IntRange(1), default=50, show_default=True, help="Lines to begin with.")
@only_option
def logs(job: str | None, follow: bool, lines: int, mailbox: str | None) -> None:
    """Show what JOB did, and what it printed (any part of its id; by default the newest job)."""
    chosen = launcher.job(job) if job else next(iter(_jobs(mailbox)), None)
    if chosen is None:
        raise UsageError("no job on this machine yet: `swarm join` or `swarm start diloco`")
    log = _Lines(chosen.log)
    for line in list(log.read())[-lines:]:
        print(plain(line, 500))
    while follow:
        # Asked before it is read: what a job said last is not missed.
        follow = launcher.job(chosen.id).state in ACTIVE
        for line in log.read():
            print(plain(line, 500), flush=True)
        if follow:
            time.sleep(0.3)


class _Lines:
    """The lines of a log as it grows; of a long one, its end."""

    LIMIT_BYTES = 1 << 20

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> Iterator[str]:
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self._offset, size - self.LIMIT_BYTES))
                data = file.read()
                self._offset = file.tell()
        except OSError:
            return
        # Not splitlines(), which takes a few other characters for the end of a line too.
        yield from data.decode(errors="replace").removesuffix("\n").split("\n") if data else ()


@click.command()
@click.argument("run", required=False)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the workers have left.")
@only_option
def leave(run: str | None, wait: bool, mailbox: str | None) -> int:
    """Let this machine leave RUN (a name, an id, the start of one, or a job's id); without RUN, everything it trains."""
    active = [job for job in _jobs(mailbox) if job.state in ACTIVE]
    chosen = active if run is None else _fitting(active, run)
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
        if not until(lambda: not any(j.id in ids and j.state in ACTIVE for j in api.jobs()), LEAVING_S):
            say("still leaving: `swarm jobs` shows when they have; `swarm leave` once more ends them at once")
            return 1
    return 0


def _fitting(active: list[api.Job], text: str) -> list[api.Job]:
    """All jobs of the one run that `text` names, or the one job. Raises UsageError if it fits several runs."""
    exact = [j for j in active if text in (j.run, j.run_name, j.id)]
    fitting = exact or [j for j in active if text and (j.run.startswith(text) or j.run_name.startswith(text) or text in j.id)]
    if len({j.run for j in fitting}) > 1:
        raise UsageError(f"{text!r} fits several runs: {', '.join(sorted(plain(j.run_name) for j in fitting)[:5])}")
    return fitting
