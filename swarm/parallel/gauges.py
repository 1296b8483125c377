"""What this machine tells of its rank: in its beats, and for rank 0 in the job's log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from swarm.core.events import Spent
from swarm.core.rankjob import RankEvent, RankReady, RankStepped, Reported, Validated
from swarm.core.ranks import MAX_POINTS, EvalPoint, Plan, TrainPoint, in_words
from swarm.core.records import Beat, LearnerPhase, RankBeat
from swarm.host.energy import Drawn, Draws, untold
from swarm.runtime.activity import Uptime

SPEED_STEPS = 20  # that a machine's speed is measured over


class _Worked(NamedTuple):
    tokens: int
    compute_s: float


class Gauges:
    """Read and written on one thread. `now`: a monotonic clock, in seconds."""

    def __init__(
        self,
        *,
        rss_bytes: Callable[[], int] = lambda: 0,
        now: Callable[[], float] = time.monotonic,
        draws: Draws = untold,
    ) -> None:
        self._phase: LearnerPhase = "join"
        self._uptime, self._joined = Uptime(), False
        self._trained_s = 0.0
        self._draws, self._drawn = draws, Drawn(None, None)
        self.doing = ""  # what the phase is about
        self.held = ""  # why this machine holds still for its owner
        self.step = 0  # the job's, done
        self.points: tuple[TrainPoint, ...] = ()
        self.evals: tuple[EvalPoint, ...] = ()
        self.shares: tuple[int, ...] = ()
        """Of each rank in a batch, where they have changed since they were told."""
        self.moved_bytes: Callable[[], int] = lambda: 0
        self._placed = False
        self._rank = RankBeat(generation=0, rank=0, size=1)
        self._loss: float | None = None
        self._steps = self._own_tokens = 0
        self._since_s, self._now, self._rss_bytes = now(), now, rss_bytes
        self._worked: deque[_Worked] = deque(maxlen=SPEED_STEPS)
        self._tokens: deque[int] = deque(maxlen=SPEED_STEPS)
        self._steps_s: deque[float] = deque(maxlen=SPEED_STEPS)

    @property
    def phase(self) -> LearnerPhase:
        return self._phase

    @phase.setter
    def phase(self, phase: LearnerPhase) -> None:
        self._phase = phase
        self._look(self._now())

    def joined(self) -> None:
        """From now on time counts."""
        self._joined = True
        self._look(self._now())

    def _look(self, now_s: float) -> None:
        if self._joined:
            self._uptime.look(now_s, resting=self._phase == "paused")

    def placed(self, plan: Plan, rank: int) -> None:
        """A rank starts here."""
        self._placed, share = True, plan.seats[rank].share
        self._rank = RankBeat(generation=plan.generation, rank=rank, size=len(plan.seats), share=share)
        self._own_tokens, self._since_s = 0, self._now()

    def unplaced(self) -> None:
        self._placed = False

    @property
    def tokens_per_s(self) -> float:
        """Tokens that this machine learns in a second of computing; 0 as long as it is not known."""
        compute_s = sum(each.compute_s for each in self._worked)
        return sum(each.tokens for each in self._worked) / compute_s if compute_s > 0 else 0.0

    @property
    def together_per_s(self) -> float:
        """Tokens that all ranks learn in a second."""
        elapsed_s = sum(self._steps_s)
        return sum(self._tokens) / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def steps(self) -> int:
        """Of a rank here, so far."""
        return self._steps

    @property
    def memory_bytes(self) -> int:
        return self._rank.memory_bytes

    def take(self, event: RankEvent) -> None:
        rank = self._rank
        match event:
            case RankReady():
                self.step = event.step
            case RankStepped():
                self.step, self._loss = event.step, event.loss
                self._steps += 1
                self._trained_s += event.compute_s + event.update_s
                self._own_tokens += event.own_tokens
                self._worked.append(_Worked(event.own_tokens, event.compute_s))
                self._tokens.append(event.tokens)
                self._steps_s.append(event.compute_s + event.waiting_s + event.exchange_s + event.update_s)
                self._rank = msgspec.structs.replace(
                    rank,
                    compute_s=rank.compute_s + event.compute_s,
                    waiting_s=rank.waiting_s + event.waiting_s,
                    exchange_s=rank.exchange_s + event.exchange_s,
                    update_s=rank.update_s + event.update_s,
                    share=round(1000 * event.share),
                    microbatch_rows=event.microbatch_rows,
                    memory_bytes=event.memory_bytes,
                )
            case Reported():
                point = TrainPoint(
                    step=self.step,
                    iteration=event.iteration,
                    train_loss=event.train_loss,
                    learning_rate=event.learning_rate,
                    tokens_per_s=event.tokens_per_s,
                    trained_tokens=event.trained_tokens,
                    epoch=event.epoch,
                )
                self.points = (*self.points, point)[-MAX_POINTS:]
            case Validated():
                point_of = EvalPoint(
                    part=event.part,
                    step=self.step,
                    iteration=event.iteration,
                    loss=event.loss,
                    tokens=event.tokens,
                    seconds_s=event.seconds_s,
                    sample=event.sample,
                )
                self.evals = (*self.evals, point_of)[-MAX_POINTS:]
            case _:
                pass

    def spent(self) -> Spent:
        """As of the last beat, or the last phase that began."""
        alive_s = max(self._uptime.alive_s, self._trained_s)  # of its last steps this may hear later
        power_w, energy_wh = self._drawn
        return Spent(alive_s=round(alive_s, 3), trained_s=round(self._trained_s, 3), power_w=power_w, energy_wh=energy_wh)

    def beat(self) -> Beat:
        """Since the one before."""
        now_s = self._now()
        self._look(now_s)
        self._drawn = self._draws(self._uptime.resting)
        spent = self.spent()
        elapsed_s, self._since_s = now_s - self._since_s, now_s
        rate = self._own_tokens / elapsed_s if elapsed_s > 0 else 0.0
        running = self._placed
        rank, self._own_tokens = self._rank if running else None, 0
        self._rank = msgspec.structs.replace(self._rank, compute_s=0.0, waiting_s=0.0, exchange_s=0.0, update_s=0.0)
        return Beat(
            phase=self.phase,
            step=self.step,
            steps=self._steps,
            tokens_per_s=round(rate, 3) if running else 0.0,
            loss=self._loss,
            rss_bytes=self._rss_bytes(),
            progress_bytes=self.moved_bytes(),
            rank=rank,
            doing=in_words(self.doing),
            held=in_words(self.held),
            alive_s=spent.alive_s,
            trained_s=spent.trained_s,
            power_w=spent.power_w,
            energy_wh=spent.energy_wh,
        )
