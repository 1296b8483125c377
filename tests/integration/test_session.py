"""The session: a training loop in one thread, the share in another. Real time; threads wait for each other by events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from swarm.core import keys
from swarm.core.errors import (
    LearnerIdTaken,
    MailboxMoved,
    MailboxUnavailable,
    RunEnded,
    SchemaMismatch,
    Superseded,
)
from swarm.core.events import Ended, Evaluated, Joined, RoundClosed
from swarm.core.records import Beat, Control, LearnerRecord, Manifest, decode, encode
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.inner import params_sha256
from swarm.runtime.session import Session
from swarm.tasks.contract import EvalResult
from tests.integration.simulation import model, new_run
from tests.integration.wrappers import Wrapped

SPEC = DiLoCo(sync_every=2, beat_s=0.05, lease_s=0.5)
LONG_S = 60.0  # for what must come; nothing waits for so long unless the test fails


class Run:
    def __init__(self, *, rounds: int | None = None, spec: DiLoCo = SPEC) -> None:
        self.store = MemoryStore()
        self.manifest: Manifest = asyncio.run(new_run(self.store, spec, rounds=rounds))
        self.exchange = Exchange(MemoryMailbox(self.store), self.manifest)
        self.events: list[Any] = []

    def session(
        self, mailbox: Mailbox | None = None, *, adapter: NumpyAdapter | None = None, learner: str = "a", **options: Any
    ) -> Session:
        me = LearnerRecord(
            learner=learner, incarnation=1, machine="m", machine_name="m", boot="b", pid=1, process="1", version="0"
        )
        return Session(
            NumpyAdapter(model(1)) if adapter is None else adapter,
            mailbox=MemoryMailbox(self.store) if mailbox is None else mailbox,
            manifest=self.manifest,
            me=me,
            emit=self.events.append,
            **{"gone": lambda other: False, "alive": lambda other: False, **options},
        )

    def keys(self, part: str) -> list[str]:
        return sorted(key for key in tuple(self.store.objects) if part in key)

    def last_beat(self, learner: str = "a") -> Beat:
        newest = max(self.keys(f"/beats/{learner}/"), key=lambda key: keys.parse_beat(key) or ())
        return decode(self.store.objects[newest], Beat)


class Gate(Wrapped):
    """A call that `stops` names waits until the gate is opened; `reached` is set when one does."""

    def __init__(self, store: MemoryStore, stops: Callable[[str, str], bool]) -> None:
        super().__init__(MemoryMailbox(store))
        self.stops, self.reached, self.opened = stops, threading.Event(), Future[None]()

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if not self.opened.done() and self.stops(op, key):
            self.reached.set()
            await asyncio.shield(asyncio.wrap_future(self.opened))
        return await call()


def train(session: Session, *, until: Callable[[], bool] = lambda: False) -> int:
    steps = 0
    for _ in session:
        session.report(tokens=10, loss=1.0)
        steps += 1
        if until():
            session.leave()
    return steps


def test_a_run_is_trained_to_its_end() -> None:
    run = Run(rounds=3)
    adapter = NumpyAdapter(model(1))
    evaluated: list[str] = []

    def evaluate() -> EvalResult:
        evaluated.append(params_sha256(adapter))
        return EvalResult(loss=0.5, metrics={"accuracy": 0.25})

    with run.session(adapter=adapter, evaluate=evaluate) as session:
        assert run.keys("/learners/a/0001/"), "joined before it trains"
        assert run.keys("/beats/a/")
        before = {k: v.copy() for k, v in session._inner.committed().items()}
        assert all(np.array_equal(before[k], v) for k, v in adapter.snapshot().items()), "Θ⁰ is in the model"
        assert train(session) == 6
    ended = run.events[-1]
    assert ended == Ended(reason="done", rounds=3, params_sha256=params_sha256(adapter))
    assert evaluated[-1] == ended.params_sha256, "the committed parameters were evaluated"
    assert isinstance(run.events[0], Joined)
    assert [e.round for e in run.events if isinstance(e, RoundClosed)] == [0, 1, 2]
    assert sorted(e.round for e in run.events if isinstance(e, Evaluated)) == [0, 1, 2]
    assert asyncio.run(run.exchange.evals_after(-1)) == [0, 1, 2]
    assert run.last_beat().phase == "left"


def test_an_error_while_joining_comes_out_of_with() -> None:
    run = Run(rounds=5)
    wrong = NumpyAdapter({"other": np.zeros(3, np.float32)})
    with pytest.raises(SchemaMismatch), run.session(adapter=wrong):
        raise AssertionError("not reached")
    box = FaultyMailbox(MemoryMailbox(run.store), [Fault("fail", count=None, error=MailboxMoved)])
    with pytest.raises(MailboxMoved), run.session(box):
        raise AssertionError("not reached")
    with run.session() as first:
        with pytest.raises(LearnerIdTaken, match="a-2"), run.session(alive=lambda other: True):
            raise AssertionError("not reached")
        assert train(first) > 0
    with pytest.raises(RunEnded), run.session():
        raise AssertionError("not reached")
    stopped = Run()
    asyncio.run(stopped.exchange.control(Control(action="stop")))
    with pytest.raises(RunEnded, match="stopped"), stopped.session():
        raise AssertionError("not reached")


def test_a_time_out_while_joining_is_an_error_like_any_other() -> None:
    run = Run()

    class Late(Wrapped):
        async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
            raise TimeoutError("late")

    with pytest.raises(TimeoutError, match="late"), run.session(Late(MemoryMailbox(run.store))):
        raise AssertionError("not reached")


def test_a_model_that_refuses_the_first_parameters_leaves_no_live_learner_behind() -> None:
    class Broken(NumpyAdapter):
        def apply(self, tensors: Mapping[str, Any]) -> None:
            raise RuntimeError("out of memory")

    run = Run()
    session = run.session(adapter=Broken(model(1)))
    with pytest.raises(RuntimeError, match="out of memory"), session:
        raise AssertionError("not reached")
    assert session._left.is_set()
    assert run.last_beat().phase == "left"


def test_an_error_in_the_training_loop_comes_out_and_the_lease_is_released() -> None:
    run = Run()

    def fails() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), run.session() as session:
        train(session, until=fails)
    assert run.last_beat().phase == "left"


def test_leaving_finishes_a_snapshot_that_was_begun_and_then_releases_the_lease() -> None:
    run = Run()
    order: list[str] = []

    class Order(Wrapped):
        async def put(self, key: Any, source: Any) -> str:
            name = await super().put(key, source)
            if keys.parse_beat(name) is not None:
                order.append(decode(run.store.objects[name], Beat).phase)
            elif keys.parse_snapshot(name) is not None:
                order.append("snapshot")
            return name

    gate = Gate(run.store, lambda op, key: op == "put" and key == "")
    gate.inner = Order(MemoryMailbox(run.store))
    with run.session(gate) as session:
        for _ in session:
            session.report(tokens=10, loss=None)
            if session._inner.step == 2:
                session._publish_if_due()
                assert gate.reached.wait(LONG_S)
                gate.stops = lambda op, key: False
                session.leave()
    assert order.index("left") > order.index("snapshot")
    assert order[-1] == "left"
    assert order.count("left") == 1


class Dies(Wrapped):
    """Raises `error` in the first call of `op` that comes after `armed`."""

    def __init__(self, store: MemoryStore, error: BaseException, key: str = "") -> None:
        super().__init__(MemoryMailbox(store))
        self.error, self.key, self.armed = error, key, False

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.armed and self.key in key:
            raise self.error
        return await call()


@pytest.mark.parametrize("key", ["", "/beats/"], ids=["every call", "beats"])
@pytest.mark.parametrize("error", [RuntimeError("boom"), MailboxMoved("boom")], ids=["unforeseen", "named"])
def test_a_communication_thread_that_dies_raises_in_the_training_loop(error: Exception, key: str) -> None:
    run = Run(spec=msgspec.structs.replace(SPEC, sync_every=10**6))
    box = Dies(run.store, error, key)

    def arm() -> bool:
        box.armed = True
        return False

    with pytest.raises(type(error), match="boom"), run.session(box) as session:
        train(session, until=arm)
    assert session._left.wait(LONG_S)


def test_a_thread_that_cannot_beat_any_more_does_not_train_on_unseen() -> None:
    """The telemetry is made of numbers that a training loop reports."""
    run = Run(spec=msgspec.structs.replace(SPEC, sync_every=10**6))
    with pytest.raises(ValueError, match="rss_bytes"), run.session(rss_bytes=lambda: -len(run.events)) as session:
        train(session)


def test_a_process_that_was_superseded_stops_training() -> None:
    run = Run(spec=msgspec.structs.replace(SPEC, sync_every=10**6))

    def take_over() -> bool:
        key = run.exchange.keys.beat("a", 2, 0)
        run.store.objects.setdefault(key, encode(Beat(phase="train"), nonce="x"))
        return False

    with pytest.raises(Superseded), run.session() as session:
        train(session, until=take_over)


def test_leaving_a_share_that_hangs_takes_no_longer_than_it_is_given() -> None:
    run = Run(spec=msgspec.structs.replace(SPEC, sync_every=10**6))
    gate = Gate(run.store, lambda op, key: False)
    with run.session(gate, stall_s=0.05) as session:
        for _ in session:
            session.report(tokens=1, loss=None)
            gate.stops = lambda op, key: True
            if gate.reached.is_set():
                session.leave()
    assert run.last_beat().phase != "left", "it could not be said"
    assert isinstance(run.events[-1], Ended)


def test_leaving_while_joining() -> None:
    for registered in (False, True):
        run = Run()
        gate = Gate(run.store, lambda op, key, registered=registered: not registered or "/beats/" in key)  # type: ignore[misc]
        session = run.session(gate, stall_s=0.05)
        threading.Thread(target=lambda gate=gate, session=session: gate.reached.wait(LONG_S) and session.leave()).start()  # type: ignore[misc]
        with session:
            assert train(session) == 0
        assert run.events == [Ended(reason="left", rounds=0, params_sha256=params_sha256(session.adapter))]
        assert bool(run.keys("/learners/")) == registered


def test_joining_waits_for_a_share_that_is_away_and_can_be_left() -> None:
    run = Run()
    box = FaultyMailbox(MemoryMailbox(run.store), [Fault("fail", count=None, error=MailboxUnavailable)])
    session = run.session(box)
    lost = threading.Event()
    session._participant._patience.emit = lambda event: lost.set()
    threading.Thread(target=lambda: lost.wait(LONG_S) and session.leave()).start()
    with session:
        assert train(session) == 0
    assert not run.keys("/learners/")


def test_numbers_of_any_library_are_reported_and_wrong_ones_refused() -> None:
    run = Run(rounds=1)
    with run.session() as session:
        for _ in session:
            session.report(tokens=np.int64(10), loss=np.float32(1.5))  # type: ignore[arg-type]
    record = asyncio.run(run.exchange.round(0))
    assert record is not None
    assert [(p.tokens, p.train_loss) for p in record.participants] == [(20, 1.5)]
    run = Run()
    with run.session() as session:
        for _ in session:
            with pytest.raises(ValueError, match="tokens must be >= 0"):
                session.report(tokens=-1, loss=None)
            with pytest.raises(TypeError):
                session.report(tokens=1.5, loss=None)  # type: ignore[arg-type]
            session.report(tokens=1, loss=float("nan"))
            session.leave()
    assert run.last_beat().loss is None


def test_a_stop_ends_a_run_in_which_nobody_has_reported() -> None:
    run = Run(spec=msgspec.structs.replace(SPEC, sync_every=10**6))
    with run.session() as session:
        for _ in session:
            session.report(tokens=1, loss=2.0)
            if session._handoff.telemetry.steps == 3:
                asyncio.run(run.exchange.control(Control(action="stop")))
    ended = run.events[-1]
    assert (ended.reason, ended.rounds) == ("stopped", 1)
    record = asyncio.run(run.exchange.round(0))
    assert record is not None
    assert record.control == 1
    assert not run.keys("/snapshots/0000000001/"), "nothing is published for a round that will not be"
