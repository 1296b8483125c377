"""A learner's session: a context manager that joins before it trains, with a communication thread of its own.

with Session(adapter, mailbox=…, manifest=…, me=…) as session:
    for _ in session:
        loss, tokens = step()
        session.report(loss=loss, tokens=tokens)
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from swarm.core.errors import MailboxCorrupt, PayloadCorrupt, PayloadMissing, RunConfigMismatch, UsageError
from swarm.core.events import Ended, Stepped, Trouble, WorkerEvent
from swarm.core.manifest import Manifest
from swarm.core.options import differences
from swarm.core.records import LearnerRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange, Offload, inline
from swarm.host.energy import Draws, untold
from swarm.learners.contract import Adapter
from swarm.mailbox.contract import Mailbox
from swarm.runtime.conversation import STALL_S, Conversation
from swarm.runtime.handoff import Handoff, Publication
from swarm.runtime.inner import InnerLoop, params_sha256
from swarm.runtime.participant import Participant
from swarm.runtime.reports import eval_record
from swarm.runtime.resuming import Keeper, LocalStore, Part, of_task
from swarm.tasks.contract import EvalResult, Resumable

UNTOLD_STEPS = 1000  # a program may leave out some, such as a batch that is no good
RATE_S = 5.0  # throughput is averaged over about so long


class Session:
    def __init__(
        self,
        adapter: Adapter,
        *,
        mailbox: Mailbox,
        manifest: Manifest,
        algorithm: DiLoCo | None = None,
        me: LearnerRecord,
        gone: Callable[[LearnerRecord], bool],
        alive: Callable[[LearnerRecord], bool],
        may_rename: bool = False,
        emit: Callable[[WorkerEvent], None] = lambda event: None,
        evaluate: Callable[[], EvalResult] | None = None,
        local: Callable[[LearnerRecord], LocalStore] | None = None,
        task: Resumable | None = None,
        parts: Iterable[Part] = (),
        offload: Offload = inline,
        rss_bytes: Callable[[], int] = lambda: 0,
        draws: Draws = untold,
        stall_s: float = STALL_S,
        warns: bool = True,
    ) -> None:
        """`algorithm`: what the caller takes the run to be configured with; raises RunConfigMismatch if it is not.
        `evaluate`: called with the committed parameters in the model. `local`: where this learner, as it joined, keeps what a
        restart goes on from; None: nowhere. `task`: whose optimizer and position in the data are kept there too; `parts`:
        what else is. `stall_s`: how long leaving waits for a share on which nothing moves. `warns`: tell in events what the
        adapter warns of; False if the caller does. `offload` as for Exchange; the rest as for Participant."""
        spec = manifest.algorithm
        if not isinstance(spec, DiLoCo):
            raise UsageError(f"run {manifest.name} is a FedAvg, whose learners train clients: see swarm.ClientSession")
        differing = differences(algorithm, manifest.algorithm) if algorithm is not None else ()
        if differing:
            raise RunConfigMismatch(differing)
        self.adapter, self._spec, self._emit, self._evaluate = adapter, spec, emit, evaluate
        self._local, self._warns = local, warns
        self._parts = [*([] if task is None else [of_task(task)]), *parts]
        self._handoff = Handoff(evaluates=evaluate is not None)
        self._exchange = Exchange(mailbox, manifest, offload=offload)
        self._participant = Participant(
            self._exchange,
            me,
            self._handoff,
            schema=adapter.schema(),
            gone=gone,
            alive=alive,
            may_rename=may_rename,
            emit=emit,
            rss_bytes=rss_bytes,
            draws=draws,
        )
        self._conversation = Conversation(self._exchange, self._participant, self._handoff, stall_s=stall_s)
        self._joined = False
        self._ended: Ended | None = None
        self._stepped_at_s = 0.0
        self._apart_s = 0.0  # since then, on a delta or on keeping the state: no step took it
        self._told_at_s = 0.0
        self._inner: InnerLoop
        self._keeper: Keeper
        self._boundary = False  # a round was reported to or taken over since the last look

    # Life

    def __enter__(self) -> Session:
        try:
            start = self._conversation.open()
            if start is None:
                return self
            self._inner = InnerLoop(
                self.adapter,
                self._spec,
                plan=self._exchange.plan,
                schedule=self._exchange.schedule,
                start=start,
                owns=self._participant.gives_away,
            )
            store = None if self._local is None else self._local(self.me)
            self._keeper = Keeper(store, self._parts, emit=self._emit, clock=time.monotonic)
            rounds = self._keeper.open(self._inner)
            verdicts = self._conversation.ask(self._participant.verdicts(rounds)) if rounds else {}
            if verdicts is None:
                self._conversation.close()
                return self
            self._keeper.resume(self._inner, self._handoff, verdicts)
        except BaseException:
            self._conversation.close()  # else the beats went on, and the others would wait for this learner
            raise
        self._joined = True
        for warning in self.adapter.warnings() if self._warns else ():
            self._emit(Trouble(message=warning))
        self._stepped_at_s = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._joined and error is None:
            self._last_words()
        self._conversation.close()
        if self._ended is not None and error is None:  # after the last words, which may tell of an evaluation
            self._emit(self._ended)

    @property
    def me(self) -> LearnerRecord:
        """This learner as it joined."""
        return self._participant.me

    @property
    def ended(self) -> Ended | None:
        """How it ended, once the iteration is over."""
        return self._ended

    def leave(self) -> None:
        """Stop after the step under way, or give up joining. May be called from any thread, and from a signal handler."""
        self._conversation.leaving = True

    def hold(self, reason: str) -> None:
        """Make no step more, for this machine's owner comes first, until called with ''. May be called from any thread."""
        self._handoff.hold(reason)

    @property
    def steps(self) -> int:
        """Made so far by this incarnation. May be asked for on any thread."""
        return self._handoff.telemetry.steps

    @property
    def resting(self) -> bool:
        """Whether the run is paused."""
        return self._handoff.paused

    @property
    def batch_size(self) -> int | None:
        """Samples of one inner step of this learner; None: as the task has it."""
        return self._spec.batch_size

    @property
    def resumed(self) -> bool:
        """Whether the task goes on where a former incarnation's stood."""
        return self._joined and self._keeper.resumed

    def _last_words(self) -> None:
        """Between two steps: report what was done, if the run wants that, and keep what a restart goes on from."""
        ended = self._ended.reason if self._ended is not None else "left"  # a loop may be broken off
        if ended != "left" or self._handoff.ended is not None:
            self._keeper.remove()
            return
        if self._spec.flush_on_close and not self._inner.pending:
            self._publish(self._inner.due(flush=False, hurried=True))
        self._keeper.save(self._inner, self._handoff, boundary=True, leaving=True)

    # Training

    def __iter__(self) -> Iterator[int]:
        """Yields the round to make one inner step for, as long as there is something to do."""
        telemetry, silent = self._handoff.telemetry, 0
        if not self._joined:
            self._finish("left")
            return
        while True:
            self._take_over()
            if self._conversation.leaving:
                self._finish("left")
                return
            ended = self._handoff.ended
            if ended is not None:
                self._finish(ended)
                return
            if not self._handoff.paused:
                self._publish_if_due()
            if self._keeper.save(self._inner, self._handoff, boundary=self._boundary) or self._boundary:
                self._apart_s = time.monotonic() - self._stepped_at_s
            self._boundary = False
            telemetry.round, telemetry.step = self._inner.round, self._inner.step
            telemetry.held = self._handoff.held
            if self._handoff.paused or telemetry.held or self._inner.waits:
                telemetry.phase = "paused" if self._handoff.paused or telemetry.held else "wait"
                self._handoff.wait(0.2)
                self._stepped_at_s, self._apart_s = time.monotonic(), 0.0
                continue
            telemetry.phase = "train"
            told = telemetry.steps
            yield self._inner.round
            silent = silent + 1 if telemetry.steps == told else 0
            if silent == UNTOLD_STEPS and not self._conversation.leaving:
                raise UsageError(f"{silent} inner steps were asked for, and none was told: call report(…) after each")

    def report(self, *, tokens: int | None = None, samples: int | None = None, loss: float | None = None) -> None:
        """One inner step was made. `tokens`, `samples`: what it trained on; the run's weight_unit says which of them counts.
        All may be numbers of any library. Raises UsageError if the one that counts is missing."""
        unit = self._spec.weight_unit
        counted = tokens if unit == "tokens" else samples
        if counted is None:
            raise UsageError(f"this run counts a learner's work in {unit}: report({unit}=…)")
        amount, loss = operator.index(counted), None if loss is None else float(loss)
        if amount < 0:
            raise ValueError(f"{unit} must be >= 0, got {amount}")
        now_s = time.monotonic()
        elapsed_s = max(now_s - self._stepped_at_s, 1e-9)
        self._stepped_at_s = now_s
        telemetry = self._handoff.telemetry
        share = min(1.0, elapsed_s / RATE_S) if telemetry.steps else 1.0
        telemetry.tokens_per_s += share * (amount / elapsed_s - telemetry.tokens_per_s)
        telemetry.steps += 1
        telemetry.trained_s += max(0.0, elapsed_s - self._apart_s)
        self._apart_s = 0.0
        telemetry.loss = loss
        self._inner.count(tokens=amount, loss=loss, seconds_s=elapsed_s)
        telemetry.round, telemetry.step = self._inner.round, self._inner.step
        if now_s - self._told_at_s >= 1.0:
            self._told_at_s = now_s
            self._emit(
                Stepped(
                    round=self._inner.round,
                    step=self._inner.step,
                    steps_before=self._inner.steps_before,
                    loss=loss,
                    tokens_per_s=telemetry.tokens_per_s,
                    spent=telemetry.spent(),
                )
            )

    def _publish_if_due(self) -> None:
        self._publish(self._inner.due(flush=self._handoff.flush, hurried=self._handoff.hurried(self._inner.round)))

    def _publish(self, publication: Publication | None) -> None:
        if publication is None:
            return
        self._boundary = True
        self._handoff.publish(publication)
        if publication.flaw:
            with contextlib.suppress(PayloadMissing, PayloadCorrupt, MailboxCorrupt):  # then the next commit mends it
                self._take_committed()
            self._emit(
                Trouble(
                    message=f"the delta of round {publication.round} is not finite ({publication.flaw}): local steps are "
                    f"given up, {self._keeper.mend()}"
                )
            )

    def _take_over(self) -> None:
        while (aligned := self._handoff.take_aligned()) is not None:
            self._inner.align(aligned)
            self._boundary = True
            if aligned.evaluate is not None and self._evaluate is not None:
                self._evaluate_round(aligned.evaluate)
            self._stepped_at_s = time.monotonic()

    def _evaluate_round(self, round: int) -> None:
        """Evaluate the committed parameters; the local ones come back afterwards."""
        assert self._evaluate is not None
        self._handoff.telemetry.phase = "evaluate"
        started_s = time.monotonic()
        with self._inner.as_committed():
            result = self._evaluate()
        self._handoff.evaluated(
            eval_record(result, round=round, learner=self.me.learner, seconds_s=time.monotonic() - started_s)
        )

    def _take_committed(self) -> bool:
        """Every parameter as it was last committed; those that are lacking are fetched. False: asked to leave before they were
        there."""
        lacking = self._inner.lacking
        theta = self._conversation.ask(self._participant.parameters(lacking)) if lacking else {}
        if theta is not None:
            self._inner.take_committed(theta)
        return theta is not None

    def _finish(self, reason: str) -> None:
        if reason != "left" and not self._take_committed():
            reason = "left"
        self._ended = Ended(reason=reason, rounds=self._participant.newest + 1, params_sha256=params_sha256(self.adapter))
