"""A FedAvg learner's session: a context manager that joins, claims clients one at a time, and reports what came of each.

with ClientSession(adapter, samples=(…), mailbox=…, manifest=…, me=…) as session:
    for client in session:
        for step in train(client):
            if not session.report(loss=step.loss, samples=step.samples):
                break
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

from swarm.core.clients import client_index
from swarm.core.errors import UsageError
from swarm.core.events import Ended, Stepped, Trained, Training, Trouble, WorkerEvent
from swarm.core.manifest import Manifest
from swarm.core.records import LearnerRecord
from swarm.core.specs import FedAvg
from swarm.exchange import Exchange, Offload, inline
from swarm.host.energy import Draws, untold
from swarm.learners.contract import Adapter
from swarm.mailbox.contract import Mailbox
from swarm.runtime.client import ClientLoop
from swarm.runtime.conversation import STALL_S, Conversation
from swarm.runtime.handoff import Assignment, Handoff
from swarm.runtime.inner import params_sha256
from swarm.runtime.participant import Participant
from swarm.runtime.reports import eval_record
from swarm.tasks.contract import EvalResult


class ClientSession:
    def __init__(
        self,
        adapter: Adapter,
        *,
        samples: Sequence[int],
        mailbox: Mailbox,
        manifest: Manifest,
        me: LearnerRecord,
        gone: Callable[[LearnerRecord], bool],
        alive: Callable[[LearnerRecord], bool],
        may_rename: bool = False,
        emit: Callable[[WorkerEvent], None] = lambda event: None,
        evaluate: Callable[[], EvalResult] | None = None,
        offload: Offload = inline,
        rss_bytes: Callable[[], int] = lambda: 0,
        draws: Draws = untold,
        stall_s: float = STALL_S,
        warns: bool = True,
    ) -> None:
        """`samples`: how many each logical client has; of private clients, how many this learner has. `evaluate`: called with
        the committed parameters in the model. `stall_s`: how long leaving waits for a share on which nothing moves. `warns`:
        tell in events what the adapter warns of; False if the caller does. `offload` as for Exchange; the rest as for
        Participant. Raises UsageError if the run is no FedAvg."""
        spec = manifest.algorithm
        if not isinstance(spec, FedAvg):
            raise UsageError(f"run {manifest.name} is no FedAvg: it has no clients to train")
        self.adapter, self._spec, self._samples = adapter, spec, samples
        self._emit, self._evaluate, self._warns = emit, evaluate, warns
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
        self._begun_at_s = self._stepped_at_s = self._told_at_s = 0.0
        self._trained = 0  # samples of the client under way, over its epochs
        self._flaw = ""
        self._metrics: Mapping[str, float] = {}
        self._loop: ClientLoop

    def __enter__(self) -> ClientSession:
        try:
            start = self._conversation.open()
            if start is None:
                return self
            self._loop = ClientLoop(self.adapter, self._spec, start=start)
        except BaseException:
            self._conversation.close()  # else the beats went on, and the others would wait for this learner
            raise
        self._joined = True
        for warning in self.adapter.warnings() if self._warns else ():
            self._emit(Trouble(message=warning))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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

    def samples_of(self, client: Assignment) -> int:
        index = 0 if self._spec.private else client_index(client.unit)
        assert index is not None
        return self._samples[index]

    def __iter__(self) -> Iterator[Assignment]:
        """Yields a client to train, as long as the run goes on. When it is asked for the next one, the former is done, unless
        `report` said that it is not wanted any more."""
        telemetry = self._handoff.telemetry
        if not self._joined:
            self._finish("left")
            return
        while True:
            self._take_over()
            ended = "left" if self._conversation.leaving else self._handoff.ended
            if ended is not None:
                self._finish(ended)
                return
            telemetry.round, telemetry.step = self._loop.newest + 1, 0
            telemetry.held = self._handoff.held
            client = None if self._handoff.unpublished or telemetry.held else self._handoff.assignment()
            if client is None:
                telemetry.phase = "paused" if self._handoff.paused or telemetry.held else "wait"
                self._handoff.wait(0.2)
                continue
            if not self._loop.begin(client):
                continue
            telemetry.phase = "train"
            self._begun_at_s, self._trained, self._flaw, self._metrics = time.monotonic(), 0, "", {}
            self._stepped_at_s = self._begun_at_s
            self._emit(Training(round=client.round, unit=client.unit, claim=client.claim, samples=self.samples_of(client)))
            yield client
            self._hand_in()

    def report(self, *, samples: int, loss: float | None = None, steps: int | None = None) -> bool:
        """One step was made, of `steps` that the client takes. Whether to go on: not if its round is closed, or this learner is
        to leave."""
        now_s = time.monotonic()
        loop, telemetry = self._loop, self._handoff.telemetry
        loop.count(samples=samples, loss=loss)
        self._trained += samples
        telemetry.steps += 1
        telemetry.trained_s += now_s - self._stepped_at_s
        self._stepped_at_s = now_s
        telemetry.step, telemetry.loss = loop.steps, None if self._spec.private else loss
        telemetry.tokens_per_s = self._trained / max(now_s - self._begun_at_s, 1e-9)
        if now_s - self._told_at_s >= 1.0:
            self._told_at_s = now_s
            self._emit(
                Stepped(
                    round=loop.newest + 1,
                    step=loop.steps,
                    steps_before=steps or loop.steps,
                    loss=loss,
                    tokens_per_s=telemetry.tokens_per_s,
                    spent=telemetry.spent(),
                )
            )
        self._hold_still()
        return self.wanted

    def _hold_still(self) -> None:
        """In the midst of a client, for as long as this machine's owner comes first. It stays begun: whoever takes it over
        meanwhile trains it to the same."""
        telemetry, since_s = self._handoff.telemetry, time.monotonic()
        while self.wanted and (reason := self._handoff.held):
            telemetry.held, telemetry.phase = reason, "paused"
            self._handoff.wait(0.2)
        if telemetry.held:
            telemetry.held, telemetry.phase = "", "train"
            self._stepped_at_s = time.monotonic()
            self._begun_at_s += self._stepped_at_s - since_s

    @property
    def wanted(self) -> bool:
        """Whether the client under way is: not if its round is closed, or this learner is to leave."""
        return not (self._conversation.leaving or self._handoff.behind or self._handoff.ended is not None)

    def measured(self, metrics: Mapping[str, float]) -> None:
        """What the client under way was found to be worth, for people."""
        self._metrics = metrics

    def not_finite(self, name: str) -> None:
        """The client under way has a gradient that is not finite, of the parameter `name`: nothing of it counts."""
        self._flaw = name

    def _hand_in(self) -> None:
        client = self._loop.client
        assert client is not None  # committed parameters are taken over between two clients only
        steps, seconds_s = self._loop.steps, time.monotonic() - self._begun_at_s
        if not self.wanted:
            self._loop.client = None
            self._tell(client, steps=steps, seconds_s=seconds_s, given_up=True)
            return
        train_loss = self._loop.train_loss  # of a private client nobody else hears it
        publication = self._loop.done(
            samples=self.samples_of(client), seconds_s=seconds_s, flaw=self._flaw, metrics=self._metrics
        )
        self._handoff.publish(publication)
        self._tell(client, steps=steps, seconds_s=seconds_s, train_loss=train_loss, flaw=publication.flaw)
        if publication.flaw:
            where = f"{client.unit} in round {client.round}"
            self._emit(Trouble(message=f"{where}: numbers that are not finite ({publication.flaw}): it does not count"))

    def _tell(
        self,
        client: Assignment,
        *,
        steps: int,
        seconds_s: float,
        train_loss: float | None = None,
        given_up: bool = False,
        flaw: str = "",
    ) -> None:
        """The client is done with."""
        self._emit(
            Trained(
                round=client.round,
                unit=client.unit,
                claim=client.claim,
                samples=self.samples_of(client),
                steps=steps,
                train_loss=train_loss,
                seconds_s=seconds_s,
                given_up=given_up,
                flaw=flaw,
            )
        )

    def _take_over(self) -> None:
        while (aligned := self._handoff.take_aligned()) is not None:
            self._loop.align(aligned)
            if aligned.evaluate is not None and self._evaluate is not None:
                self._evaluate_round(self._evaluate, aligned.evaluate)

    def _evaluate_round(self, evaluate: Callable[[], EvalResult], round: int) -> None:
        self._handoff.telemetry.phase = "evaluate"
        started_s = time.monotonic()
        self._handoff.evaluated(
            eval_record(evaluate(), round=round, learner=self.me.learner, seconds_s=time.monotonic() - started_s)
        )

    def _finish(self, reason: str) -> None:
        if self._joined:
            self._loop.take_committed()
        self._ended = Ended(reason=reason, rounds=self._participant.newest + 1, params_sha256=params_sha256(self.adapter))
