"""`python -m tui`: the screens. `swarm tui` starts this."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from swarm import api
from tui.app import SwarmApp
from tui.later import Later

if TYPE_CHECKING:
    from tui.feed import Feed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="swarm tui", description="Watch, start and join runs on a screen.")
    parser.add_argument(
        "--mailbox", metavar="DIR", action="append", help="mailbox to follow, may be repeated; by default those of the settings"
    )
    parser.add_argument("--peer", metavar="HOST[:PORT]", action="append", default=[], help="a machine to ask for runs, too")
    parser.add_argument(
        "--interface", metavar="NAME", action="append", default=[], help="look here for machines; by default where it is best"
    )
    parser.add_argument(
        "--notify", metavar="COMMAND", default="", help="run when a run ends, stalls or loses this machine, with the news added"
    )
    parser.add_argument("--ascii", action="store_true", help="draw with plain ASCII characters only")
    given = parser.parse_args(arguments)
    try:
        notify = shlex.split(given.notify)
    except ValueError as error:
        parser.error(f"--notify: {error}")
    settings, faults = api.load_settings()

    def feed() -> Feed:
        from tui.feed import Feed

        mailboxes = tuple(given.mailbox) if given.mailbox else None
        return Feed(api, mailboxes, peers=given.peer, interfaces=given.interface, notify=notify)

    app = SwarmApp(
        Later(feed), ascii=given.ascii, settings=settings, faults=faults, welcome=not given.mailbox and api.first_start()
    )
    app.run()
    sys.exit(app.return_code)


if __name__ == "__main__":
    main()
