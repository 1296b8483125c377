"""`python -m tui`: the screens. `swarm tui` starts this."""

from __future__ import annotations

import argparse
import sys

from swarm import api
from tui.app import SwarmApp
from tui.feed import Feed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="swarm tui", description="Watch, start and join runs on a screen.")
    parser.add_argument(
        "--mailbox", metavar="DIR", action="append", help="mailbox to follow, may be repeated; by default those of the settings"
    )
    parser.add_argument("--ascii", action="store_true", help="draw with plain ASCII characters only")
    given = parser.parse_args(arguments)
    feed = Feed(api, tuple(given.mailbox) if given.mailbox else None)
    app = SwarmApp(feed, ascii=given.ascii)
    app.run()
    sys.exit(app.return_code)


if __name__ == "__main__":
    main()
