"""Commands that steer a run: each appends to its sequence of control records, which every machine follows."""

from __future__ import annotations

import sys

import click

from swarm import api
from swarm.cli.common import asked_by, confirm, mailbox_option, say, wait_for, where
from swarm.core.errors import UsageError
from swarm.core.sentences import counted, plain


@click.command()
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
@mailbox_option
def stop(run: str, yes: bool, mailbox: str | None) -> None:
    """End RUN for everybody: its learners report what they have, and the round that this closes is the last."""
    location, now = _found(mailbox, run)
    if now.phase in ("done", "stopped"):
        say(f"{plain(now.name)} is {now.phase} already")
        return
    _ask(f"End {plain(now.name)} for everybody?", yes=yes)
    wait_for(api.stop_run(location, now.run))
    say(f"{plain(now.name)} ends with its next round, at once if nobody trains")


@click.command()
@click.argument("run")
@mailbox_option
def pause(run: str, mailbox: str | None) -> None:
    """Let all learners of RUN report what they have, and rest until `swarm resume`."""
    location, now = _going_on(mailbox, run)
    if now.effect.paused or now.effect.pausing:
        say(f"{plain(now.name)} is paused already{asked_by(now.effect.by)}")
        return
    wait_for(api.pause_run(location, now.run))
    when = "pauses after its next round" if now.live else "is paused"
    say(f"{plain(now.name)} {when}; `swarm resume {plain(now.name)}` lets it go on")


@click.command()
@click.argument("run")
@mailbox_option
def resume(run: str, mailbox: str | None) -> None:
    """Let a paused RUN go on."""
    location, now = _going_on(mailbox, run)
    if not (now.effect.paused or now.effect.pausing):
        say(f"{plain(now.name)} is not paused")
        return
    wait_for(api.resume_run(location, now.run))
    say(f"{plain(now.name)} goes on")


@click.command()
@click.argument("run")
@click.option("--rounds", type=click.IntRange(1), help="How many rounds RUN has in all.")
@click.option("--by", type=click.IntRange(1), help="How many rounds more than now.")
@click.option("--forever", is_flag=True, help="Until it is stopped.")
@mailbox_option
def extend(run: str, rounds: int | None, by: int | None, forever: bool, mailbox: str | None) -> None:
    """Give RUN more rounds. A run that is done goes on when somebody joins it; one that is to have fewer than it has
    already ends with the round under way."""
    if (rounds is not None) + (by is not None) + forever != 1:
        raise UsageError("say how far: --rounds N for N in all, --by N for N more, or --forever")
    location, now = _found(mailbox, run)
    if now.phase == "stopped":
        raise UsageError(f"{plain(now.name)} was stopped: `swarm start` another one")
    if by is not None:
        if now.asked_rounds is None:
            raise UsageError(f"{plain(now.name)} goes on until it is stopped: --rounds N gives it an end")
        rounds = now.asked_rounds + by
    had = counted(now.open_round, "round")
    if rounds is not None and rounds <= now.open_round and now.phase == "done":
        raise UsageError(f"{plain(now.name)} is done after {had}: --rounds N for more than that in all, or --by N for N more")
    wait_for(api.extend_run(location, now.run, rounds))
    if rounds is None:
        until = "goes on until it is stopped"
    elif rounds > now.open_round:
        until = f"has {counted(rounds, 'round')}"
    else:
        until = f"has had {had}: it ends with the one under way, at once if nobody trains"
    join = f"; `swarm join {plain(now.name)}` goes on with it" if now.phase == "done" and (rounds or 1) > now.open_round else ""
    say(f"{plain(now.name)} {until}{join}")


@click.command()
@click.argument("run")
@click.argument("learner")
@click.option("--yes", is_flag=True, help="Do not ask.")
@mailbox_option
def drop(run: str, learner: str, yes: bool, mailbox: str | None) -> None:
    """Ask LEARNER to leave RUN, and wait for it no more. It may join again."""
    location, now = _going_on(mailbox, run)
    known = {view.learner: view for view in now.learners}
    if learner not in known:
        names = ", ".join(plain(name) for name in sorted(known)) or "none"
        raise UsageError(f"no learner {learner!r} in {plain(now.name)}; learners there: {names}")
    _ask(f"Drop {plain(learner)} from {plain(now.name)}?", yes=yes)
    wait_for(api.drop_learner(location, now.run, learner))
    say(f"{plain(learner)} is asked to leave {plain(now.name)}, and is waited for no more")


def _found(mailbox: str | None, run: str) -> tuple[str, api.RunState]:
    """(the mailbox, what is known of the run)."""
    location = where(mailbox)
    manifest = wait_for(api.find_run(location, run))
    return location, wait_for(api.RunWatch(location, manifest.run, history=False).poll())


def _going_on(mailbox: str | None, run: str) -> tuple[str, api.RunState]:
    """The same of one that has not ended. Raises UsageError."""
    location, now = _found(mailbox, run)
    if now.phase in ("done", "stopped"):
        raise UsageError(f"{plain(now.name)} is {now.phase}")
    return location, now


def _ask(question: str, *, yes: bool) -> None:
    """A person. A script that says so means it, and nothing is deleted."""
    if sys.stdin is not None and sys.stdin.isatty():
        confirm(question, yes=yes)
