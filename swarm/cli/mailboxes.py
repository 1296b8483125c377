"""`swarm init`."""

from __future__ import annotations

import click

from swarm.cli.common import json_option, put, remember, say, wait_for, where
from swarm.mailbox import init_mailbox


@click.command()
@click.argument("dir")
@json_option
def init(dir: str, as_json: bool) -> None:
    """Make the folder DIR a mailbox and remember it. A folder that is one already stays as it is.

    DIR may be a place in a bucket: s3://bucket/prefix?endpoint=https://HOST:PORT. On every other machine, give the same share's
    folder, or the same URL: `swarm init` there remembers it.
    """
    location = where(dir)
    ident = wait_for(init_mailbox(location), asks=location)
    remember(location)
    say(f"{location} is a mailbox (id {ident[:8]}…). Next: `swarm start diloco`, or `swarm tui`")
    if as_json:
        put({"mailbox": location, "id": ident})
