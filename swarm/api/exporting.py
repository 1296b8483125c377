"""Exporting for screens: in a process of its own, since parameters are read."""

from __future__ import annotations

import subprocess
from pathlib import Path

from swarm.core.errors import UsageError
from swarm.core.sentences import plain
from swarm.host.children import ending, python

HISTORIES = (".csv", ".jsonl")
"""What the names of files with a run's history end in."""


def export_run(mailbox: str, run: str, file: str) -> str:
    """Do what `swarm export` does, and return its last words. A name that ends in .csv or .jsonl gets the history of the
    rounds, any other one the newest parameters. Blocks until it is done. Raises UsageError."""
    history = Path(file).suffix.lower() in HISTORIES
    what = (f"--history={file}", "--", run) if history else ("--", run, file)
    done = subprocess.run(
        python("swarm", "export", f"--mailbox={mailbox}", *what),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,  # ctrl+c in the terminal is the screen's
        check=False,
    )
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    last = plain(said[-1], 500) if said else ""
    if done.returncode:
        raise UsageError(last.removeprefix("swarm: ") or f"the export {ending(done.returncode)}")
    return last
