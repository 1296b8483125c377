"""`swarm tui`: the screen is another program, so that nothing here imports it."""

from __future__ import annotations

import os
import sys

import click

from swarm.core.errors import UsageError
from swarm.host.children import python


@click.command()
@click.option("--mailbox", "mailboxes", multiple=True, metavar="DIR", help="Follow this mailbox; may be repeated.")
@click.option("--ascii", "plain", is_flag=True, help="Plain ASCII only.")
def tui(mailboxes: tuple[str, ...], plain: bool) -> None:
    """Open the screen: runs, learners, rounds and losses, live."""
    arguments = [argument for place in mailboxes for argument in ("--mailbox", place)]
    if plain:
        arguments.append("--ascii")
    # What Textual reads from and writes to. A dumb terminal shows its control sequences as they are.
    streams = (sys.__stdin__, sys.__stderr__)
    if os.environ.get("TERM") == "dumb" or not all(stream is not None and stream.isatty() for stream in streams):
        raise UsageError("the screen needs a terminal; without one: `swarm runs`, `swarm status RUN --watch`")
    sys.stdout.flush()
    command = python("tui", *arguments)
    os.execv(command[0], command)
