"""`swarm init` and `swarm doctor`."""

from __future__ import annotations

import click

from swarm import api
from swarm.cli.common import json_option, mailbox_option, put, remember, say, wait_for, where
from swarm.core.errors import UsageError
from swarm.core.sentences import plain
from swarm.mailbox import init_mailbox


@click.command()
@click.argument("dir")
@json_option
def init(dir: str, as_json: bool) -> None:
    """Make the folder DIR a mailbox and remember it. A folder that is one already stays as it is.

    On every other machine, give the same share's folder: `swarm init` there remembers it.
    """
    location = where(dir)
    ident = wait_for(init_mailbox(location))
    remember(location)
    say(f"{location} is a mailbox (id {ident[:8]}…). Next: `swarm start diloco`, or `swarm tui`")
    if as_json:
        put({"mailbox": location, "id": ident})


@click.command()
@mailbox_option
@json_option
def doctor(mailbox: str | None, as_json: bool) -> int:
    """Check this machine and the mailbox: what works, what does not, and what to do about it."""
    from swarm.mailbox.probe import probe

    faults = 0
    found = [("framework", *_frameworks())]
    found += [("settings", False, fault, "mend the file") for fault in api.settings_faults()]
    try:
        location = api.mailbox_location(mailbox)
    except UsageError as error:
        found.append(("mailbox", False, str(error), ""))
    else:
        found += [(f.name, f.ok, f.detail, f.remedy) for f in wait_for(probe(location))]
    for name, ok, detail, remedy in found:
        faults += not ok
        if as_json:
            put({"check": name, "ok": ok, "detail": detail, "remedy": remedy})
        else:
            print(
                f"{'ok   ' if ok else 'FAULT'}  {name}: {plain(detail, 1000)}"
                + (f"\n       → {remedy}" if remedy and not ok else "")
            )
    return 1 if faults else 0


def _frameworks() -> tuple[bool, str, str]:
    installed = api.installed_frameworks()
    if installed:
        return True, " and ".join(installed), ""
    return False, "neither PyTorch nor MLX is installed: this machine can watch, not train", "pip install 'homeswarm[train]'"
