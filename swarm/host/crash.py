"""Where an error goes that nobody foresaw: a person gets one line, which names the file with the rest."""

from __future__ import annotations

import traceback

from swarm import __version__
from swarm.host.paths import state_dir


def note_crash() -> str:
    """Write down the error that is being handled; in words, where."""
    path = state_dir() / "crash.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"swarm {__version__}\n{traceback.format_exc()}")
    except OSError as error:
        return f"no details: {path}: {error.strerror}"
    return f"details: {path}"
