"""Python processes that swarm starts for itself, and how they ended."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

_RUN = (
    "import runpy, sys; root, module = sys.argv[1:3]; del sys.argv[1:3]; root in sys.path or sys.path.insert(0, root); "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def python(module: str, *arguments: str) -> list[str]:
    """The command line that runs one of our modules in this interpreter. As `python -m` does, but without the current
    folder on the path: that may be the mailbox, and no code is ever taken from there."""
    return [sys.executable, "-P", "-c", _RUN, str(Path(__file__).parents[2]), module, *arguments]


def ending(code: int) -> str:
    """How a process ended, from its exit code, in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}" + (" (by a person, or for lack of memory)" if name == "SIGKILL" else "")
