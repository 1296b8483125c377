"""What tests/bench/screen.py measures, each in a process of its own on a terminal of its own: the app over a run that is
replayed, and a bare Textual app.

    python -m tests.bench.replayed app LEARNERS ROUNDS EVERY_S     a snapshot every so many seconds; 0: when one is painted
    python -m tests.bench.replayed bare                            repaints all cells of the terminal every second
    python -m tests.bench.replayed first                           paints one word

Every snapshot that was painted, counted from 1, is told on the descriptor that REPLAY_TELLS names.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec

MARK = "painted-at-last"


def tell(words: object) -> None:
    os.write(int(os.environ["REPLAY_TELLS"]), f"{words}\n".encode())


def learner(n: int) -> str:
    return f"learner-{n:04d}"


def bare(*, moves: bool) -> None:
    """The least that a Textual app does to paint one word, or 120 × 36 cells a second."""
    from rich.segment import Segment
    from textual.app import App, ComposeResult
    from textual.scroll_view import ScrollView
    from textual.strip import Strip

    class Cells(ScrollView):
        n = 0

        def on_mount(self) -> None:
            if moves:
                self.set_interval(1.0, self.move)

        def move(self) -> None:
            self.n += 1
            self.refresh()
            self.call_after_refresh(tell, self.n)

        def render_line(self, y: int) -> Strip:
            words = f"{MARK} {self.n + y:<12}" * 5
            return Strip([Segment(f"{words:<{self.size.width}}"[: self.size.width])])

    class Bare(App[None]):
        def compose(self) -> ComposeResult:
            yield Cells()

    Bare().run()


class Replay:
    """Stands in for `swarm.api` before the feed: a run of so many learners, all of whom beat before every look."""

    def __init__(self, learners: int, rounds: int, *, at_once: bool) -> None:
        self.learners, self.rounds, self.at_once = learners, rounds, at_once
        self.tick = self.painted = 0
        self.behind = False
        self.state: Any = None
        self.made: Any = None

    def RunWatch(self, mailbox: str, run: str, *, keep: int) -> Replay:
        from swarm.core.state import LearnerRead, ManifestRead, RoundsRead, RunState, apply

        self.made = state = apply(RunState(run=run, keep=keep), ManifestRead(manifest()))
        record = round_record(0, self.learners)
        state = apply(state, RoundsRead(tuple(msgspec.structs.replace(record, round=n) for n in range(self.rounds))))
        for n in range(self.learners):
            state = apply(state, LearnerRead(learner_record(n)))
        self.state = state
        return self

    async def poll(self) -> Any:
        """The next snapshot: every beat is new, a round closes with every fifth, and a learner falls silent and comes back."""
        from swarm.core.lease import BeatId
        from swarm.core.state import Polled, RoundRead, apply

        while self.at_once and self.painted < self.tick:  # noqa: ASYNC110 — painted on another thread
            await asyncio.sleep(0.001)
        self.tick += 1
        if self.tick % 5 == 0:
            self.state = apply(self.state, RoundRead(round_record(self.state.open_round, self.learners)))
        beats = {
            learner(n): (BeatId(1, self.tick), beat(self.tick, n, round=self.state.open_round)) for n in range(self.learners)
        }
        now_s = 2.0 * self.tick if self.at_once else asyncio.get_running_loop().time()
        self.state = apply(self.state, Polled(now_s=now_s, beats=beats))
        return self.state

    def HomeWatch(self, mailboxes: object) -> Any:
        from types import SimpleNamespace

        from swarm.api import Home

        async def poll() -> Home:
            return Home(jobs=self.jobs())

        return SimpleNamespace(poll=poll)

    def Neighbourhood(self, *, advertises: str) -> Any:
        from types import SimpleNamespace

        from swarm.api import Sightings

        return SimpleNamespace(start=lambda: None, close=lambda: None, add=lambda peer: None, poll=lambda home: Sightings())

    def jobs(self) -> tuple[Any, ...]:
        from pathlib import Path

        from swarm.api import Job

        job = Job(
            id="job",
            mailbox="/mailbox",
            run="abcd1234",
            run_name="replayed",
            learner=learner(0),
            state="running",
            pid=os.getpid(),
            device="torch cpu",
            log=Path("/log.txt"),
        )
        return (job,)

    def log_tail(self, job: str, lines: int = 200) -> tuple[str, ...]:
        return tuple(f"12:00:00 step {n} of this machine, loss {3 - n / 1e6:.3f}" for n in range(self.tick, self.tick + lines))

    def __getattr__(self, name: str) -> Any:
        from swarm import api

        return getattr(api, name)


def manifest() -> Any:
    from swarm.core.manifest import Manifest, TaskRef
    from swarm.core.specs import DiLoCo
    from swarm.core.tensorspec import TensorSpec

    return Manifest(
        run="abcd1234",
        name="replayed",
        algorithm=DiLoCo(sync_every=100, start_learners=1),
        task=TaskRef(name="charlm"),
        tensors=(TensorSpec("w", "F32", (4, 4)),),
        schema_sha256="0" * 64,
        init=(),
        created_by="studio",
    )


def learner_record(n: int) -> Any:
    from swarm.core.records import LearnerRecord

    return LearnerRecord(
        learner=learner(n),
        incarnation=1,
        machine=f"machine-{n}",
        machine_name=learner(n),
        boot="boot",
        pid=1,
        process="1",
        version="0.1.0",
        device="torch cuda:0",
        memory_bytes=64 << 30,
    )


def round_record(round: int, learners: int) -> Any:
    from swarm.core.manifest import PayloadRef
    from swarm.core.records import Participant, RoundRecord

    parts = tuple(
        Participant(
            learner=learner(n),
            unit=learner(n),
            weight=1 / learners,
            tokens=102_400,
            steps=100,
            train_loss=1.6 + 2 / (1 + round / 300) + n / 1000,
            seconds_s=5.0 + n % 7,
            size_bytes=1 << 20,
            cosine=0.7,
            delta_norm=1.5,
        )
        for n in range(learners)
    )
    return RoundRecord(
        round=round,
        fragment=0,
        step=100 * (round + 1),
        version=round,
        parent=None,
        participants=parts,
        rejected=(),
        theta=PayloadRef(round=round, sha256="1" * 64, size_bytes=1 << 20),
        outer=None,
        closer=learner(0),
        close_s=0.4,
    )


def beat(tick: int, n: int, *, round: int) -> Any:
    from swarm.core.records import Beat

    return Beat(
        phase=("train", "train", "upload", "wait")[(tick + n) % 4],  # type: ignore[arg-type]
        round=round,
        step=(7 * tick + n) % 100,
        steps=7 * tick,
        tokens_per_s=300.0 + n + 40 * (tick * 7 % 11),
        loss=2.0 + (tick * n % 97) / 100,
        rss_bytes=(1400 + tick % 50) << 20,
        sent_bytes=tick << 16,
        received_bytes=tick << 16,
        alive_s=2.0 * tick,
        trained_s=1.7 * tick,
    )


def app(learners: int, rounds: int, every_s: float) -> None:
    from pathlib import Path

    import tui
    from tui.app import SwarmApp
    from tui.feed import Feed
    from tui.messages import RunAt

    replay = Replay(learners, rounds, at_once=not every_s)

    class Replayed(SwarmApp):
        CSS_PATH = Path(tui.__file__).parent / "swarm.tcss"

        def on_ready(self) -> None:
            self.open_run(RunAt("/mailbox", "abcd1234"))

        def _update(self) -> None:
            super()._update()
            if self.run_shown is not None:
                self.call_after_refresh(self._painted, replay.tick)

        def _painted(self, tick: int) -> None:
            replay.painted = tick
            tell(tick)

    Replayed(Feed(replay, run_s=every_s or 0.01)).run()  # type: ignore[arg-type]


def main() -> None:
    match sys.argv[1:]:
        case ["app", learners, rounds, every_s]:
            app(int(learners), int(rounds), float(every_s))
        case ["bare"]:
            bare(moves=True)
        case ["first"]:
            bare(moves=False)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
