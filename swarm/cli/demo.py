"""`swarm demo`: one learner per installed framework train a small model together, on this machine alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from swarm import api, launcher
from swarm.cli import INTERRUPTS
from swarm.cli.common import json_option, put, say, table, wait_for
from swarm.cli.narrate import Progress
from swarm.core.errors import UsageError, WorkerFailed
from swarm.core.events import Created, Ended, Evaluated, Failed, Joined, RoundClosed, Stepped, Trouble
from swarm.core.sentences import plain, sentence
from swarm.core.specs import DiLoCo
from swarm.host.children import ending
from swarm.mailbox import init_mailbox

STEPS = {"mlp": 20, "charlm": 20}  # inner steps a round that show progress and end within a minute on two cores
LIMIT_S = 600.0  # no demo on a machine that works takes so long


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=6, show_default=True, help="Rounds to train.")
@click.option("--task", type=click.Choice(["charlm", "mlp"]), default="charlm", show_default=True, help="What to train.")
@click.option("--keep", is_flag=True, help="Keep the mailbox, and say where it is.")
@json_option
def demo(rounds: int, task: str, keep: bool, as_json: bool) -> int:
    """Train a small model on this machine: one learner per installed framework, together, through a folder."""
    frameworks = api.installed_frameworks()
    if not frameworks:
        raise UsageError("neither PyTorch nor MLX is installed: pip install 'homeswarm[train]'")
    try:
        folder = Path(tempfile.mkdtemp(prefix="swarm-demo-"))
    except OSError as error:
        raise WorkerFailed(f"no temporary folder can be made: {error.strerror}: TMPDIR names another place") from error
    workers: dict[str, launcher.Worker] = {}
    try:
        # Its jobs are no jobs of this machine: they go with the folder.
        os.environ["SWARM_STATE_DIR"] = str(folder / "state")
        os.environ["SWARM_DISCOVERY"] = "0"  # nobody else can join what is gone in a moment
        result = _Demo(folder, workers, task=task, rounds=rounds, frameworks=frameworks).run()
    finally:
        with _undisturbed():
            for worker in workers.values():
                worker.process.kill()
            for worker in workers.values():
                worker.process.wait()  # else it could still write into what is deleted
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
        if keep:
            say(f"kept: {folder / 'mailbox'} (look at it: swarm tui --mailbox {folder / 'mailbox'})")
    if as_json:
        put(result)
    return 0 if result["identical"] else 1


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Nobody's second Ctrl-C leaves a process or a folder behind."""
    before = [signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS]
    try:
        yield
    finally:
        for number, handler in zip(INTERRUPTS, before, strict=True):
            signal.signal(number, handler)


class _Demo:
    def __init__(
        self, folder: Path, workers: dict[str, launcher.Worker], *, task: str, rounds: int, frameworks: tuple[str, ...]
    ) -> None:
        """`workers`: where those that it starts are noted, by learner."""
        self.mailbox = str(folder / "mailbox")
        self.task, self.rounds, self.frameworks = task, rounds, frameworks
        self.workers = workers
        self.closed: dict[int, RoundClosed] = {}
        self.losses: dict[int, float] = {}
        self.params: dict[str, str] = {}
        self.progress = Progress()

    def run(self) -> dict[str, object]:
        wait_for(init_mailbox(self.mailbox))
        algorithm = DiLoCo(sync_every=STEPS[self.task], quorum_size=len(self.frameworks), beat_s=0.5, lease_s=20.0)
        create = api.new_run(
            task=self.task, options={}, algorithm=algorithm, rounds=self.rounds, seed=0, name=f"demo-{self.task}"
        )
        names = " and ".join(self.frameworks)
        say(f"{self.rounds} rounds of {algorithm.sync_every} steps of task {self.task}, with {names}, through {self.mailbox}")
        try:
            for i, framework in enumerate(self.frameworks):
                order = api.learn_order(
                    self.mailbox,
                    create.run,
                    create=create if i == 0 else None,
                    learner_id=framework,
                    framework=framework,
                    device="auto",
                    threads=max(1, (os.cpu_count() or 2) // len(self.frameworks)),
                )
                self.workers[framework] = launcher.start(order, foreground=True)
                if i == 0:
                    self._follow_until_created()
            self._follow_until_ended()
        finally:
            self.progress.clear()
        return self._result()

    def _follow_until_created(self) -> None:
        while not self._look():
            time.sleep(0.1)

    def _follow_until_ended(self) -> None:
        until_s = time.monotonic() + LIMIT_S
        while any(worker.process.poll() is None for worker in self.workers.values()):
            self._look()
            if time.monotonic() > until_s:
                raise WorkerFailed(f"not done after {LIMIT_S:.0f} s; logs: {self.workers[self.frameworks[0]].job.parent}")
            time.sleep(0.1)
        self._look()

    def _look(self) -> bool:
        """Tell what is new; whether the run has been made."""
        created = False
        for learner, worker in self.workers.items():
            for event in worker.events.read():
                match event:
                    case Created():
                        created = True
                    case Joined():
                        say(f"{learner}: {sentence(event)}")
                    case RoundClosed() if event.round not in self.closed:
                        self.closed[event.round] = event
                        self.progress.clear()
                        say(f"{sentence(event)}")
                    case Evaluated():
                        if event.loss is not None:
                            self.losses[event.round] = event.loss
                        self.progress.clear()
                        say(f"{sentence(event)}")
                    case Ended():
                        self.params[learner] = event.params_sha256
                    case Trouble():
                        say(f"{learner}: {plain(event.message, 300)}")
                    case Stepped():
                        self.progress.show(f"{learner}: round {event.round}, step {event.step}/{event.steps_before}")
                    case Failed():
                        raise WorkerFailed(f"{learner}: {event.message}")
                    case _:
                        pass
            code = worker.process.poll()
            if code not in (None, 0):
                words = plain(launcher.last_words(worker.job), 300)
                raise WorkerFailed(f"{learner}: the worker {ending(code)}: {words}")
        return created

    def _result(self) -> dict[str, object]:
        taken = {name: sum(name in r.participants for r in self.closed.values()) for name in self.frameworks}
        rejected = sum(len(r.rejected) for r in self.closed.values())
        first, last = (self.losses.get(r) for r in (min(self.losses, default=0), max(self.losses, default=0)))
        digests = set(self.params.values())
        identical = len(digests) == 1 and len(self.params) == len(self.frameworks)
        rows = [(name, f"{count}/{len(self.closed)}", self.params.get(name, "")[:12]) for name, count in taken.items()]
        say(table(("LEARNER", "ROUNDS", "PARAMETERS"), rows))
        fell = f"validation loss {first:.4f} → {last:.4f}" if first is not None and last is not None else "no evaluation"
        say(f"{fell}; {rejected} rejected; the learners hold {'the same' if identical else 'DIFFERENT'} parameters")
        return {
            "rounds": len(self.closed),
            "participants": taken,
            "rejected": rejected,
            "val_loss_first": first,
            "val_loss_last": last,
            "identical": identical,
        }
