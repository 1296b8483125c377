"""One machine of a test: a process that advertises itself, hears the others, and prints what it sees, a JSON object a line.

It is told who it is: a network namespace has the identity, the name and the boot of the machine that it is made on.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import select
import sys
from pathlib import Path

import msgspec

from swarm import advertising
from swarm.advertising import Advertising
from swarm.core.adverts import RunAdvert
from swarm.core.trust import SwarmKey
from swarm.host.identity import identity
from swarm.network.discovery import Pace

PACE = Pace(tick_s=0.1, say_s=0.3, beat_s=1.0, links_s=0.3, again_s=0.5, ask_s=0.5, probe_s=1.0, timeout_s=1.0, lives_s=4.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--state", default="watching")
    parser.add_argument("--boot", default="boot")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--interface", action="append", default=[])
    parser.add_argument("--key", default="")
    parser.add_argument("--run", default="")
    parser.add_argument("--lives", type=float, default=4.0)  # longer, to hear processes that speak as rarely as they do
    given = parser.parse_args()
    here = identity()  # by the file in its state folder
    changed = {"machine_name": given.name, "boot": given.boot}
    advertising.identity = lambda: msgspec.structs.replace(here, machine=identity().machine, **changed)  # type: ignore[attr-defined]
    near = Advertising(
        given.state,
        peers=given.peer,
        interfaces=given.interface,
        key=SwarmKey(given.key.encode().ljust(32)) if given.key else None,
        pace=dataclasses.replace(PACE, lives_s=given.lives),
    )
    near.start()
    if given.run:
        near.tell_runs(
            [RunAdvert(run=given.run, peer=here.machine, name="tiny-lm", method="diloco", task="charlm", mailbox="c" * 32)]
        )
    while not select.select([sys.stdin], [], [], 0.2)[0]:  # until whoever started it has seen enough
        sys.stdout.write(msgspec.json.encode(near.seen()).decode() + "\n")
        sys.stdout.flush()
    near.close()


if __name__ == "__main__":
    Path(os.environ["SWARM_STATE_DIR"]).mkdir(parents=True, exist_ok=True)
    main()
