"""Workers that answer on stdout: they touch tensors, so that this process need not."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from swarm import launcher
from swarm.cli import narrate
from swarm.cli.common import say
from swarm.core.events import Transfer
from swarm.core.jobs import Export, Order
from swarm.core.sentences import plain
from swarm.host.children import ending


def run_tool(order: Order) -> int:
    """Run a worker that answers on our stdout."""
    sys.stdout.flush()
    worker = launcher.start(order, foreground=True, stdout=sys.stdout.fileno())
    try:
        code = _waited(worker)
    except KeyboardInterrupt:
        worker.process.kill()
        raise
    if code == 0 and isinstance(order, Export):  # where to, and how much
        for line in launcher.log_tail(worker.job / "log.txt", 1):
            say(plain(line, 300))
    if code != 0:
        how = f"the worker {ending(code)}: " if code < 0 else ""
        say(f"swarm: {how}{plain(launcher.last_words(worker.job), 500)}")
    return 1 if code < 0 else code


def _waited(worker: launcher.Worker) -> int:
    """Its exit code, once it has ended; what it has to fetch first is told meanwhile."""
    progress = narrate.Progress()
    ended = False
    while not ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(narrate.LOOK_S)
        ended = worker.process.poll() is not None
        for event in worker.events.read():
            if isinstance(event, Transfer) and event.how == "fetch":
                narrate.tell(event, progress)
    progress.clear()
    return int(worker.process.returncode)
