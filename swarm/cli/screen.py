"""`swarm tui`: the screen is another program, so that nothing here imports it."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn

import click

from swarm.cli.common import check_peers, command_words
from swarm.core.errors import UsageError
from swarm.host.children import python


@click.command()
@click.option("--mailbox", "mailboxes", multiple=True, metavar="DIR", help="Follow this mailbox; may be repeated.")
@click.option("--peer", "peers", multiple=True, metavar="HOST[:PORT]", help="A machine to ask, too: where multicast ends.")
@click.option(
    "--interface",
    "interfaces",
    multiple=True,
    metavar="NAME",
    help="Look here, as en0; by default where it is best.",
)
@click.option(
    "--notify",
    metavar="COMMAND",
    help="Run this when a run ends, stalls or loses this machine, with the news as one more argument: 'notify-send swarm'.",
)
@click.option("--ascii", "plain", is_flag=True, help="Plain ASCII only.")
@click.option("--web", "browser", is_flag=True, help="In a browser: print the address that opens it, with a token.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="With --web: the port; 0 is any that is free. [default: 8000]"
)
@click.option("--bind", metavar="ADDRESS", help="With --web: where to listen, unencrypted. [default: 127.0.0.1]")
def tui(
    *,
    mailboxes: tuple[str, ...],
    peers: tuple[str, ...],
    interfaces: tuple[str, ...],
    notify: str | None,
    plain: bool,
    browser: bool,
    port: int | None,
    bind: str | None,
) -> None:
    """Open the screen: runs, learners, rounds and losses, live."""
    check_peers(peers, None)
    arguments = [f"--mailbox={place}" for place in mailboxes]
    arguments += [f"--peer={peer}" for peer in peers]
    arguments += [f"--interface={name}" for name in interfaces]
    if notify:
        command_words(notify)
        arguments.append(f"--notify={notify}")
    if plain:
        arguments.append("--ascii")
    if browser:
        _serve(python("tui", *arguments), port=port, bind=bind)
    if port is not None or bind is not None:
        raise UsageError("--port and --bind go with --web")
    # What Textual reads from and writes to. A dumb terminal shows its control sequences as they are.
    streams = (sys.__stdin__, sys.__stderr__)
    if os.environ.get("TERM") == "dumb" or not all(stream is not None and stream.isatty() for stream in streams):
        raise UsageError("the screen needs a terminal; without one: `swarm runs`, `swarm status RUN --watch`")
    _become(python("tui", *arguments))


def _serve(screen: list[str], *, port: int | None, bind: str | None) -> NoReturn:
    if find_spec("textual_serve") is None:
        raise UsageError(
            "textual-serve, which shows the screen in a browser, is not installed here: pip install 'homeswarm[web]'"
        )
    where = [*(() if port is None else ("--port", str(port))), *(() if bind is None else (f"--bind={bind}",))]
    _become(python("tui.web", *where, "--", *screen))


def _become(command: list[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(command[0], command)
