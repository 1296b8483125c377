"""A learner's session: a context manager that joins before it trains, with a communication thread of its own.

with Session(adapter, mailbox=…, manifest=…, me=…) as session:
    for _ in session:
        loss, tokens = step()
        session.report(loss=loss, tokens=tokens)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import operator
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType

from swarm.core.errors import RunConfigMismatch, UsageError
from swarm.core.events import Ended, Stepped, Trouble, WorkerEvent
from swarm.core.options import differences
from swarm.core.records import EvalRecord, LearnerRecord, Manifest
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange, Offload, inline
from swarm.learners.contract import Adapter
from swarm.mailbox.contract import Mailbox
from swarm.runtime.handoff import Aligned, Handoff, Publication, Verdict
from swarm.runtime.inner import InnerLoop, params_sha256
from swarm.runtime.participant import Participant
from swarm.runtime.patience import wait_while_it_moves
from swarm.runtime.resuming import Keeper, LocalStore, Part, of_task
from swarm.tasks.contract import EvalResult, Resumable

STALL_S = 2.0  # leaving waits while bytes move; for so long when they do not
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
        stall_s: float = STALL_S,
        warns: bool = True,
    ) -> None:
        """`algorithm`: what the caller takes the run to be configured with; raises RunConfigMismatch if it is not.
        `evaluate`: called with the committed parameters in the model. `local`: where this learner, as it joined, keeps what a
        restart goes on from; None: nowhere. `task`: whose optimizer and position in the data are kept there too; `parts`:
        what else is. `stall_s`: how long leaving waits for a share on which nothing moves. `warns`: tell in events what the
        adapter warns of; False if the caller does. `offload` as for Exchange; the rest as for Participant."""
        differing = differences(algorithm, manifest.algorithm) if algorithm is not None else ()
        if differing:
            raise RunConfigMismatch(differing)
        self.adapter, self._emit, self._evaluate, self._stall_s = adapter, emit, evaluate, stall_s
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
        )
        self._start: Future[Aligned | None] = Future()  # None: left before it joined
        self._left = threading.Event()
        self._leaving = False
        self._shutting = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._following: asyncio.Task[None] | None = None
        self._joined = False
        self._ended: Ended | None = None
        self._stepped_at_s = 0.0
        self._told_at_s = 0.0
        self._inner: InnerLoop
        self._keeper: Keeper
        self._boundary = False  # a round was reported to or taken over since the last look

    # Life

    def __enter__(self) -> Session:
        threading.Thread(target=self._communicate, name="swarm-communication", daemon=True).start()
        try:
            while not self._start.done():  # in slices, so that Ctrl-C gets through
                concurrent.futures.wait([self._start], timeout=0.2)
                if self._leaving and not self._start.done():
                    self._shut()  # joining may take a lease, or for ever on a share that is away
                    return self
            start = self._start.result()
            if start is None:
                return self
            self._start = Future()  # nobody else needs Θ⁰, which is as large as the model
            self._start.set_result(None)
            manifest = self._exchange.manifest
            self._inner = InnerLoop(
                self.adapter, manifest.algorithm, plan=self._exchange.plan, schedule=self._exchange.schedule, start=start
            )
            store = None if self._local is None else self._local(self.me)
            self._keeper = Keeper(store, self._parts, emit=self._emit, clock=time.monotonic)
            verdicts = self._verdicts_of(self._keeper.open(self._inner))
            if verdicts is None:
                self._shut()
                return self
            self._keeper.resume(self._inner, self._handoff, verdicts)
        except BaseException:
            self._shut()  # else the beats went on, and the others would wait for this learner
            raise
        self._joined = True
        for warning in self.adapter.warnings() if self._warns else ():
            self._emit(Trouble(message=warning))
        self._stepped_at_s = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._joined and error is None:
            self._last_words()
        self._shut()
        if self._ended is not None and error is None:  # after the last words, which may tell of an evaluation
            self._emit(self._ended)

    def _shut(self) -> None:
        """Let the communication thread say its last words, as long as they move."""
        self._shutting = True
        loop, following = self._loop, self._following
        if loop is not None and following is not None:
            with contextlib.suppress(RuntimeError):  # the communication thread has ended by itself
                loop.call_soon_threadsafe(following.cancel)
        wait_while_it_moves(self._left, self._exchange, stall_s=self._stall_s)

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
        self._leaving = True

    @property
    def batch_size(self) -> int | None:
        """Samples of one inner step of this learner; None: as the task has it."""
        return self._exchange.manifest.algorithm.batch_size

    @property
    def resumed(self) -> bool:
        """Whether the task goes on where a former incarnation's stood."""
        return self._joined and self._keeper.resumed

    def _verdicts_of(self, rounds: tuple[int, ...]) -> Mapping[int, Verdict] | None:
        """What the records of committed rounds say of this learner's snapshots. None: asked to leave before it was known."""
        if not rounds:
            return {}
        assert self._loop is not None
        asked = asyncio.run_coroutine_threadsafe(self._participant.verdicts(rounds), self._loop)
        while not asked.done():
            concurrent.futures.wait([asked], timeout=0.2)
            if self._leaving and not asked.done():
                asked.cancel()
                return None
        return asked.result()

    def _last_words(self) -> None:
        """Between two steps: report what was done, if the run wants that, and keep what a restart goes on from."""
        ended = self._ended.reason if self._ended is not None else "left"  # a loop may be broken off
        if ended != "left" or self._handoff.ended is not None:
            self._keeper.remove()
            return
        if self._exchange.manifest.algorithm.flush_on_close and not self._inner.pending:
            self._publish(self._inner.due(flush=False, hurried=True))
        self._keeper.save(self._inner, self._handoff, boundary=True, leaving=True)

    def _communicate(self) -> None:
        try:
            asyncio.run(self._converse())
        except BaseException as error:
            self._handoff.fail(error)
            if not self._start.done():
                self._start.set_exception(error)
        finally:
            self._left.set()

    async def _converse(self) -> None:
        self._following = asyncio.create_task(self._follow())
        self._loop = asyncio.get_running_loop()
        if self._shutting:  # before there was anything to cancel
            self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._following
        if not self._start.done():
            self._start.set_result(None)
        await self._participant.leave()

    async def _follow(self) -> None:
        try:
            self._start.set_result(await self._participant.join())
        except Exception as error:
            self._start.set_exception(error)
            return
        try:
            await self._participant.run()
        except Exception as error:
            self._handoff.fail(error)
            return
        await asyncio.Event().wait()  # the run has ended; the session says when to leave

    # Training

    def __iter__(self) -> Iterator[int]:
        """Yields the round to make one inner step for, as long as there is something to do."""
        telemetry, silent = self._handoff.telemetry, 0
        if not self._joined:
            self._finish("left")
            return
        while True:
            self._take_over()
            if self._leaving:
                self._finish("left")
                return
            ended = self._handoff.ended
            if ended is not None:
                self._finish(ended)
                return
            if not self._handoff.paused:
                self._publish_if_due()
            self._keeper.save(self._inner, self._handoff, boundary=self._boundary)
            self._boundary = False
            telemetry.round, telemetry.step = self._inner.round, self._inner.step
            if self._handoff.paused or self._inner.waits:
                telemetry.phase = "paused" if self._handoff.paused else "wait"
                self._handoff.wait(0.2)
                self._stepped_at_s = time.monotonic()
                continue
            telemetry.phase = "train"
            told = telemetry.steps
            yield self._inner.round
            silent = silent + 1 if telemetry.steps == told else 0
            if silent == UNTOLD_STEPS and not self._leaving:
                raise UsageError(f"{silent} inner steps were asked for, and none was told: call report(…) after each")

    def report(self, *, tokens: int | None = None, samples: int | None = None, loss: float | None = None) -> None:
        """One inner step was made. `tokens`, `samples`: what it trained on; the run's weight_unit says which of them counts.
        All may be numbers of any library. Raises UsageError if the one that counts is missing."""
        unit = self._exchange.manifest.algorithm.weight_unit
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
            EvalRecord(
                round=round,
                learner=self.me.learner,
                loss=None if result.loss is None else float(result.loss),
                metrics=result.metrics,
                sample=result.sample,
                seconds_s=time.monotonic() - started_s,
            )
        )

    def _finish(self, reason: str) -> None:
        if reason != "left":
            self._inner.take_committed()
        self._ended = Ended(reason=reason, rounds=self._participant.newest + 1, params_sha256=params_sha256(self.adapter))
