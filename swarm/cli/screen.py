"""`swarm tui`: the screen is another program, so that nothing here imports it."""

from __future__ import annotations

import os
import sys

import click


@click.command()
@click.option("--mailbox", "mailboxes", multiple=True, metavar="DIR", help="Follow this mailbox; may be repeated.")
@click.option("--ascii", "plain", is_flag=True, help="Plain ASCII only.")
def tui(mailboxes: tuple[str, ...], plain: bool) -> None:
    """Open the screen: runs, learners, rounds and losses, live."""
    arguments = [argument for place in mailboxes for argument in ("--mailbox", place)]
    if plain:
        arguments.append("--ascii")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tui", *arguments])
