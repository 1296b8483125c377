"""Follows a worker in the foreground: what it does goes to stderr, as lines, and on a terminal as a progress line too."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from swarm import launcher
from swarm.cli.common import put, say
from swarm.core import errors
from swarm.core.errors import INTERRUPTED
from swarm.core.events import Ended, Failed, Joined, Stepped, Transfer, WorkerEvent
from swarm.core.jobs import Learn
from swarm.core.sentences import number, plain, sentence, transferred

LOOK_S = 0.1
JOINING_S = 60.0  # a lease may have to run out before a learner id is free


class Progress:
    """A line that is painted over, on a terminal only."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def show(self, text: str) -> None:
        if self._on:
            # One that wrapped could not be painted over.
            sys.stderr.write(f"\r\x1b[K{text[: _columns() - 1]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def _columns() -> int:
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def follow(order: Learn, *, as_json: bool = False) -> int:
    """Run a worker in the foreground until it ends; its exit code. Ctrl-C lets it leave cleanly, a second one ends it."""
    worker = launcher.start(order, foreground=True)
    progress = Progress()
    failed: Failed | None = None
    last: Ended | None = None
    ended = told = False
    with _asked(worker) as asked:
        while not ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(LOOK_S)
            ended = worker.process.poll() is not None
            if asked() and not (told or ended):
                told = True
                progress.clear()
                if sys.stderr.isatty():
                    say("")  # the terminal has written ^C
                say("leaving: a snapshot already begun is finished (Ctrl-C again: at once)")
            for event in worker.events.read():
                if as_json:
                    put(event)
                if isinstance(event, Ended):
                    last = event  # said last: the worker goes on to write what it evaluated
                    continue
                if isinstance(event, Failed):
                    failed = event
                tell(event, progress)
        progress.clear()
        if last is not None and failed is None:
            tell(last, progress)
        return INTERRUPTED if asked() else _ended(worker, failed)


@contextlib.contextmanager
def _asked(worker: launcher.Worker) -> Iterator[Callable[[], int]]:
    """Meanwhile, whatever would end this process asks the worker to leave; a third time, it is killed. Gives how often."""
    times = 0

    def ask(*_: object) -> None:
        nonlocal times
        times += 1
        if times <= 2:
            worker.interrupt()
        else:
            worker.process.kill()

    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [which for which in every if signal.getsignal(which) == signal.default_int_handler]  # the others are ignored
    for which in heard:
        signal.signal(which, ask)
    try:
        yield lambda: times
    finally:
        for which in heard:
            signal.signal(which, signal.default_int_handler)


def detach(order: Learn, *, name: str, as_json: bool) -> int:
    """Start a worker in the background and see it join, or fail: its exit code. Ctrl-C before that ends it."""
    worker = launcher.start(order, foreground=False)
    progress = Progress()
    joined = ended = False
    failed: Failed | None = None
    until_s = time.monotonic() + JOINING_S
    try:
        while not (joined or ended or time.monotonic() > until_s):
            ended = worker.process.poll() is not None
            for event in worker.events.read():
                if isinstance(event, Failed):
                    failed = event
                joined = joined or isinstance(event, Joined)
                tell(event, progress)
            if not ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(LOOK_S)
    except BaseException:
        worker.interrupt()
        raise
    finally:
        progress.clear()
    if ended and worker.process.returncode != 0:
        return _ended(worker, failed)
    how = "trains" if joined else "is not joined yet: it goes on trying"
    say(f"{plain(name)} {how} in the background: `swarm jobs`, `swarm logs {worker.job.name} -f`, `swarm leave`")
    if as_json:
        put({"job": worker.job.name, "run": order.run, "name": name})
    return 0


def _ended(worker: launcher.Worker, failed: Failed | None) -> int:
    """Say why a worker ended, unless its last words did; the exit code for it."""
    code: int = worker.process.returncode
    if code != 0 and failed is None:
        words = launcher.last_words(worker.job)
        say(f"swarm: the worker {launcher.ending(code)}" + ("" if words == launcher.OUTSIDE else f": {plain(words, 300)}"))
    if code != 0 and not (failed is not None and hasattr(errors, failed.error)):  # nothing foreseen: the log says more
        say(f"its log: {worker.job / 'log.txt'}")
    return 1 if code < 0 else code


def tell(event: WorkerEvent, progress: Progress, who: str = "") -> None:
    """One event, for people. `who` names the learner where several are followed."""
    prefix = f"{who}: " if who else ""
    line = sentence(event)
    if isinstance(event, Stepped):
        loss = f"loss {number(event.loss)}  " if event.loss is not None else ""
        step = f"step {event.step}/{event.steps_before}"
        progress.show(f"{prefix}round {event.round}  {step}  {loss}{event.tokens_per_s:,.0f} tokens/s")
    elif isinstance(event, Transfer) and line is None:
        progress.show(f"{prefix}{transferred(event)}")
    elif line is not None:
        progress.clear()
        say(f"{prefix}{line}")


def until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Look until `done()`, at most `timeout_s`; whether it is."""
    started_s = time.monotonic()
    while not done():
        if time.monotonic() - started_s > timeout_s:
            return False
        time.sleep(LOOK_S)
    return True
