"""The session: a training loop in one thread, the share in another. Real time; threads wait for each other by events."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from swarm.core import keys
from swarm.core.errors import (
    CheckpointUnsaved,
    LearnerIdTaken,
    MailboxMoved,
    MailboxUnavailable,
    RunEnded,
    SchemaMismatch,
    StateMismatch,
    Superseded,
    UsageError,
)
from swarm.core.events import Ended, Evaluated, Joined, Restored, RoundClosed, Trouble
from swarm.core.lines import decode, encode
from swarm.core.manifest import Manifest
from swarm.core.records import Beat, Control, LearnerRecord, Role, Snapshot
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.inner import params_sha256
from swarm.runtime.local import LocalCheckpoint
from swarm.runtime.session import Session
from swarm.tasks.contract import EvalResult, TaskState
from tests.integration.simulation import FakeStore, model, new_run
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
        self,
        mailbox: Mailbox | None = None,
        *,
        adapter: NumpyAdapter | None = None,
        learner: str = "a",
        role: Role = "both",
        **options: Any,
    ) -> Session:
        me = LearnerRecord(
            learner=learner,
            incarnation=1,
            machine="m",
            machine_name="m",
            boot="b",
            pid=1,
            process="1",
            version="0",
            role=role,
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
    assert session._conversation._left.is_set()
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
    assert session._conversation._left.wait(LONG_S)


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
    session._participant._patience._outage._emit = lambda event: lost.set()
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


def test_a_loop_that_never_reports_is_told_so() -> None:
    turns = 0

    def loop(session: Session) -> None:
        nonlocal turns
        for _ in session:
            turns += 1
            if turns % 900 == 0 and turns < 2000:  # once in a while is enough
                session.report(tokens=1, loss=None)

    with Run().session() as session, pytest.raises(UsageError, match="call report"):
        loop(session)
    assert 2000 < turns < 4000


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


def test_a_stop_while_a_report_is_pending_leaves_what_was_committed() -> None:
    """Nobody closes the round; and a learner that never does has made its delta in the place of what was committed."""
    run = Run()
    adapter = NumpyAdapter(model(1))
    with run.session(adapter=adapter, role="learner") as session:
        committed = {n: a.copy() for n, a in adapter.snapshot().items()}
        for _ in session:
            adapter.apply({n: a + np.float32(1) for n, a in adapter.snapshot().items()})
            session.report(tokens=10, loss=1.0)
            if session._inner.step == 2:
                asyncio.run(run.exchange.control(Control(action="stop")))
    assert run.keys("/snapshots/0000000000/a/"), "it has reported"
    assert session.ended == run.events[-1] == Ended(reason="stopped", rounds=0, params_sha256=params_sha256(adapter))
    assert all(np.array_equal(committed[n], a) for n, a in adapter.snapshot().items())


def test_the_runs_unit_is_what_counts_and_a_missing_one_is_named() -> None:
    run = Run(rounds=1, spec=msgspec.structs.replace(SPEC, weight_unit="samples", global_batch_size=8))
    with run.session() as session:
        assert session.batch_size == 8
        for _ in session:
            with pytest.raises(UsageError, match=r"counts a learner's work in samples: report\(samples=…\)"):
                session.report(tokens=100)
            with pytest.raises(ValueError, match="samples must be >= 0"):
                session.report(samples=-1)
            session.report(tokens=100, samples=4, loss=1.0)
    record = asyncio.run(run.exchange.round(0))
    assert record is not None
    assert [p.tokens for p in record.participants] == [8]
    run = Run()
    with run.session() as session:
        assert session.batch_size is None
        for _ in session:
            with pytest.raises(UsageError, match="tokens"):
                session.report(samples=4)
            session.leave()


@pytest.mark.parametrize("how", ["leave", "break"])
@pytest.mark.parametrize("flush", [True, False])
def test_a_learner_that_leaves_reports_the_steps_it_has_made_if_the_run_says_so(flush: bool, how: str) -> None:
    run = Run(spec=msgspec.structs.replace(SPEC, sync_every=10**6, flush_on_close=flush))
    with run.session() as session:
        for _ in session:
            session.report(tokens=10, loss=1.0)
            if session._handoff.telemetry.steps == 3:
                if how == "break":
                    break
                session.leave()
    (key,) = run.keys("testrun1/snapshots/0000000000/") or [""]
    assert bool(key) == flush
    if flush:
        snapshot = decode(run.store.objects[key], Snapshot)
        assert (snapshot.steps, snapshot.tokens) == (3, 30)
    assert run.last_beat().phase == "left"


def test_nothing_is_reported_of_steps_that_ended_in_an_error() -> None:
    run = Run(spec=msgspec.structs.replace(SPEC, sync_every=10**6, flush_on_close=True))
    store = FakeStore()

    def fails() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), run.session(local=lambda me: store) as session:
        train(session, until=fails)
    assert not run.keys("/snapshots/")
    assert store.saves == 0, "the parameters may be torn"


class Counter:
    """A Resumable whose optimizer counts its steps, and its data."""

    def __init__(self) -> None:
        self.momentum, self.position = np.zeros(4, np.float32), 0

    def step(self) -> None:
        self.momentum += 1
        self.position += 1

    def state(self) -> TaskState:
        return TaskState(arrays={"momentum": self.momentum}, values={"position": self.position})

    def load(self, state: TaskState) -> None:
        if state.arrays["momentum"].shape != (4,):
            raise StateMismatch("momentum has another shape")
        self.momentum, self.position = np.array(state.arrays["momentum"]), state.values["position"]


def checkpoint(run: Run, folder: Path) -> Callable[[LearnerRecord], LocalCheckpoint]:
    return lambda me: LocalCheckpoint(
        folder,
        run=run.manifest.run,
        manifest_sha256="cd" * 32,
        learner=me.learner,
        incarnation=me.incarnation,
        schema_sha256=run.manifest.schema_sha256,
    )


def test_a_restarted_learner_goes_on_where_it_was_and_says_so(tmp_path: Path) -> None:
    run = Run(rounds=2, spec=msgspec.structs.replace(SPEC, sync_every=5))
    adapter, task = NumpyAdapter(model(1)), Counter()
    local = checkpoint(run, tmp_path)
    with run.session(adapter=adapter, task=task, local=local) as session:
        assert not session.resumed
        for _ in session:
            task.step()
            adapter.apply({n: a + np.float32(0.1) for n, a in adapter.snapshot().items()})
            session.report(tokens=10, loss=1.0)
            if session._handoff.telemetry.steps == 3:
                session.leave()
    left = {n: a.copy() for n, a in adapter.snapshot().items()}
    run.events.clear()
    again, other = NumpyAdapter(model(2)), Counter()
    with run.session(adapter=again, task=other, local=local, gone=lambda other: True) as session:
        assert session.me.incarnation == 2
        assert session.resumed
        assert (other.position, other.momentum.tolist()) == (3, [3.0] * 4)
        assert all(np.array_equal(left[n], a) for n, a in again.snapshot().items())
        assert train(session) == 2 + 5
    assert [(e.round, e.step, e.what) for e in run.events if isinstance(e, Restored)] == [
        (0, 3, "3 local steps, the inner optimizer and the position in the data")
    ]
    record = asyncio.run(run.exchange.round(0))
    assert record is not None
    assert [(p.steps, p.tokens) for p in record.participants] == [(5, 50)]
    assert local(session.me).load() is None, "the run is over"


def test_what_cannot_be_resumed_is_told_in_one_line_and_training_starts_from_the_newest_commit(tmp_path: Path) -> None:
    for damage, words in (("arrays.safetensors", "damaged|bytes"), ("values.json", "values|damaged"), ("", "another shape")):
        run = Run(rounds=2)
        folder = tmp_path / (damage or "task")
        local = checkpoint(run, folder)
        with run.session(task=Counter(), local=local) as session:
            train(session, until=lambda: True)
        if damage:
            (file,) = folder.rglob(damage)
            file.write_bytes(file.read_bytes()[:-1] + b"x")
        run.events.clear()
        task = Counter()
        if not damage:

            def refuse(state: TaskState) -> None:
                raise StateMismatch("momentum has another shape")

            task.load = refuse  # type: ignore[method-assign]
        with run.session(task=task, local=local, gone=lambda other: True) as session:
            assert not session.resumed
            assert train(session) > 0
        (trouble,) = [e for e in run.events if isinstance(e, Trouble)]
        assert re.search(f"nothing is resumed, and training starts from the newest commit: .*({words})", trouble.message)
        assert not any(isinstance(e, Restored) for e in run.events)


@pytest.mark.parametrize("warns", [True, False])
def test_what_the_adapter_warns_of_is_told_once_after_joining(warns: bool) -> None:
    class Warning(NumpyAdapter):
        def warnings(self, mapped: Any = None) -> tuple[str, ...]:
            return ("conv.weight lies otherwise elsewhere", "so does fc.weight")

    run = Run(rounds=2)
    with run.session(adapter=Warning(model(1)), warns=warns) as session:
        train(session)
    told = [e for e in run.events if isinstance(e, Joined | Trouble)]
    assert isinstance(told[0], Joined)
    lines = ["conv.weight lies otherwise elsewhere", "so does fc.weight"]
    assert [e.message for e in told if isinstance(e, Trouble)] == (lines if warns else [])


def test_a_full_disk_is_told_once_and_training_goes_on() -> None:
    run = Run(rounds=4)
    store = FakeStore()
    store.fails = CheckpointUnsaved("/home/x: cannot be saved: No space left on device")
    with run.session(local=lambda me: store) as session:
        assert train(session) == 8
    assert [e.message for e in run.events if isinstance(e, Trouble)] == [
        "/home/x: cannot be saved: No space left on device: a restart would lose more, training goes on"
    ]


class Told(list[Any]):
    """Events, each of which is looked at when it comes."""

    def __init__(self, look: Callable[[Any], None]) -> None:
        super().__init__()
        self.look = look

    def append(self, event: Any) -> None:
        super().append(event)
        self.look(event)


@pytest.mark.parametrize("fragments", [1, 2])
def test_an_anchor_that_was_lost_to_a_delta_that_is_not_finite_is_fetched(fragments: int) -> None:
    """Nobody closes the round, so that nothing else brings the committed parameters back."""
    run = Run(spec=msgspec.structs.replace(SPEC, fragments=fragments))
    adapter = NumpyAdapter(model(1))
    seen: list[dict[str, bytes]] = []

    def held() -> dict[str, bytes]:
        return {name: array.tobytes() for name, array in adapter.snapshot().items()}

    def look(event: Any) -> None:
        if isinstance(event, Trouble):
            seen.append(held())
            session.leave()

    run.events = Told(look)
    with run.session(adapter=adapter, role="learner") as session:
        committed = held()
        for _ in session:
            adapter.apply({n: np.full_like(a, np.nan) for n, a in adapter.snapshot().items()})
            session.report(tokens=10, loss=1.0)
    assert seen == [committed], "it had them when it said so"
    assert session.ended is not None
    assert session.ended.reason == "left"


def test_whoever_leaves_does_not_wait_for_an_anchor_that_cannot_be_fetched() -> None:
    run = Run()
    joined = False
    gate = Gate(run.store, lambda op, key: joined and op == "read_part" and "/blobs/init/" in key)
    adapter = NumpyAdapter(model(1))
    with run.session(gate, adapter=adapter, role="learner") as session:
        joined = True
        leaver = threading.Thread(target=lambda: gate.reached.wait(LONG_S) and session.leave())
        leaver.start()
        for _ in session:
            adapter.apply({n: np.full_like(a, np.nan) for n, a in adapter.snapshot().items()})
            session.report(tokens=10, loss=1.0)
        leaver.join()
        gate.opened.set_result(None)
    assert gate.reached.is_set()
    assert session.ended is not None
    assert session.ended.reason == "left"


def test_a_communication_thread_that_has_ended_answers_nothing() -> None:
    run = Run(rounds=1)
    with run.session() as session:
        train(session)
    assert session._conversation.ask(session._participant.parameters((0,))) is None


def test_numbers_that_are_not_finite_are_given_up_with_the_optimizers_state(tmp_path: Path) -> None:
    run = Run(rounds=3)
    adapter, task = NumpyAdapter(model(1)), Counter()
    with run.session(adapter=adapter, task=task) as session:
        for _ in session:
            task.step()
            if session._handoff.telemetry.steps == 2:
                adapter.apply({"b.bias": np.full(6, np.nan, np.float32)})
                task.momentum[1] = np.inf
            session.report(tokens=10, loss=1.0)
    messages = [e.message for e in run.events if isinstance(e, Trouble)]
    assert messages == [
        "the delta of round 1 is not finite (b.bias): local steps are given up, the inner optimizer starts afresh"
    ]
    records = [asyncio.run(run.exchange.round(round)) for round in range(3)]
    assert [[r.reason for r in record.rejected] for record in records if record is not None] == [[], ["nonfinite"], []]
    assert task.momentum.tolist() == [2.0] * 4, "and went on from zero"
    assert task.position == 6
    assert all(np.isfinite(a).all() for a in adapter.snapshot().values())
