"""swarm as a library: sessions over a memory mailbox on threads; queues, ranks and barriers in virtual time."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import swarm
from swarm.core import keys
from swarm.core.errors import (
    BarrierBroken,
    MailboxAway,
    RankLost,
    RanksTaken,
    RunConfigMismatch,
    RunEnded,
    RunNotFound,
    SchemaMismatch,
    Superseded,
    TaskUnknown,
    UsageError,
)
from swarm.core.events import Created, Ended, Joined, RoundClosed, Trouble, WorkerEvent
from swarm.core.manifest import Manifest
from swarm.core.naming import run_id_of
from swarm.core.records import Beat
from swarm.core.work import WorkSet
from swarm.exchange import Exchange
from swarm.library.barrier import Meeting
from swarm.library.batches import counted, outcome, repeated
from swarm.library.member import Member
from swarm.library.queues import QueueClaims, digest
from swarm.library.ranks import RankClaims
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.manifests import read_manifest
from swarm.tape import Tape
from swarm.tasks import registry
from tests.integration.simulation import model, new_run, virtually

SPEC = swarm.DiLoCo(sync_every=2, beat_s=0.05, lease_s=0.5, weight_unit="samples")
BATCHES = [(np.zeros((4, 3), np.float32), np.zeros(4)) for _ in range(3)]


@pytest.fixture(autouse=True)
def own_state_folder(state_dir: Path) -> None:
    """Of each test alone: sessions keep there what a restart goes on from."""


def session(store: MemoryStore, params: dict[str, np.ndarray] | None = None, **options: Any) -> swarm.Session:
    given: dict[str, Any] = {"algorithm": SPEC, "mailbox": MemoryMailbox(store), "run": "mine", "rounds": 3, **options}
    return swarm.Session(model(1) if params is None else params, **given)


def stepper(params: dict[str, np.ndarray], to: float = 0.0) -> Callable[[Any], float]:
    """Inner steps that pull every parameter towards one number."""

    def step(batch: Any) -> float:
        for array in params.values():
            array += np.float32(0.1) * (np.float32(to) - array)
        return float(sum(np.square(array - to).sum() for array in params.values()))

    return step


def made(store: MemoryStore) -> Manifest:
    return asyncio.run(read_manifest(MemoryMailbox(store), run_id_of("mine")))


# Sessions


def test_the_first_makes_the_run_of_its_own_model_and_trains_it_to_its_end() -> None:
    store, params, events = MemoryStore(), model(1), list[WorkerEvent]()
    before = {name: array.copy() for name, array in params.items()}
    with session(store, params, callbacks=[events.append], learner_id="a") as mine:
        assert all(np.array_equal(before[name], array) for name, array in params.items()), "Θ⁰ is this model"
        result = mine.run(stepper(params), BATCHES)
    assert (result.reason, result.rounds, result.steps, result.learner) == ("done", 3, 6, "a")
    assert any(not np.array_equal(before[name], array) for name, array in params.items())
    manifest = made(store)
    assert (manifest.name, manifest.rounds, manifest.task.name, manifest.algorithm) == ("mine", 3, "library", SPEC)
    assert isinstance(events[0], Created)
    assert isinstance(events[1], Joined)
    assert [event.round for event in events if isinstance(event, RoundClosed)] == [0, 1, 2]
    assert events[-1] == Ended(reason="done", rounds=3, params_sha256=result.params_sha256)
    record = asyncio.run(Exchange(MemoryMailbox(store), manifest).round(0))
    assert record is not None
    assert record.participants[0].tokens == 2 * 4, "two steps of four samples"


def test_two_that_start_at_once_train_one_run_and_end_with_equal_parameters() -> None:
    store, gate = MemoryStore(), threading.Barrier(2)
    spec = msgspec.structs.replace(SPEC, quorum_size=2)

    def learn(name: str) -> tuple[swarm.Result, dict[str, np.ndarray], list[WorkerEvent]]:
        params, events = model(ord(name)), list[WorkerEvent]()
        mine = session(store, params, algorithm=spec, learner_id=name, callbacks=[events.append])
        gate.wait(30)
        return mine.run(stepper(params, ord(name)), BATCHES), params, events

    with ThreadPoolExecutor(2) as pool:
        (one, mine, told), (other, theirs, also) = pool.map(learn, "ab")
    assert one.reason == other.reason == "done"
    assert one.params_sha256 == other.params_sha256
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
    assert len([event for event in told + also if isinstance(event, Created)]) == 1
    exchange = Exchange(MemoryMailbox(store), made(store))
    for round in range(3):
        record = asyncio.run(exchange.round(round))
        assert record is not None
        assert sorted(p.learner for p in record.participants) == ["a", "b"]
        assert record.rejected == ()


def test_a_run_is_found_by_its_name_whoever_made_it() -> None:
    store = MemoryStore()
    manifest = asyncio.run(new_run(store, SPEC, rounds=1))
    params = model(3)
    with session(store, params, run=manifest.name, algorithm=None, rounds=None) as mine:
        assert mine.manifest == manifest
        assert np.array_equal(params["b.bias"], model(7)["b.bias"]), "the run's Θ⁰, not this model's"
        mine.leave()


def test_without_an_algorithm_no_run_is_made() -> None:
    store = MemoryStore()
    with pytest.raises(RunNotFound, match="algorithm"), session(store, algorithm=None):
        pass
    assert not [key for key in store.objects if key.startswith("runs/")]


def test_what_does_not_fit_is_named_before_anything_is_written() -> None:
    store = MemoryStore()
    with session(store) as first:
        first.leave()
    before = dict(store.objects)
    other = {"a.weight": np.zeros((6, 5), np.float32), "b.bias": model(1)["b.bias"], "d.weight": np.zeros(2, np.float32)}
    with pytest.raises(SchemaMismatch) as schema, session(store, other):
        pass
    assert schema.value.names == ("a.weight", "c.weight", "d.weight")
    changed = msgspec.structs.replace(SPEC, sync_every=7, outer_lr=0.1)
    with pytest.raises(RunConfigMismatch) as config, session(store, algorithm=changed, rounds=9):
        pass
    assert [field.split()[0] for field in config.value.differing] == ["sync_every", "outer_lr", "rounds"]
    assert store.objects == before


def test_fragments_that_the_model_does_not_give_are_told_and_fit_the_next_time() -> None:
    store, told, again = MemoryStore(), [], []
    asked = msgspec.structs.replace(SPEC, sync_every=5, fragments=5)
    with session(store, algorithm=asked, callbacks=[told.append]) as first:
        assert first.manifest.algorithm.fragments == 3
        first.leave()
    assert [e.message for e in told if isinstance(e, Trouble)] == ["the model has 3 parameters: 3 fragments instead of 5"]
    with session(store, algorithm=asked, callbacks=[again.append]) as second:
        second.leave()
    assert not [e for e in again if isinstance(e, Trouble)]
    with pytest.raises(RunConfigMismatch), session(store, algorithm=msgspec.structs.replace(asked, fragments=2)):
        pass


def test_names_that_the_runs_payloads_need_are_told_before_anything_is_written() -> None:
    store = MemoryStore()
    params = model(1) | {"b.bias.scale": np.zeros(2, np.float32)}
    spec = msgspec.structs.replace(SPEC, delta_dtype="F4")
    with pytest.raises(UsageError, match=r"keeps 'b\.bias'"), session(store, params, algorithm=spec):
        pass
    assert not [key for key in store.objects if key.startswith("runs/")]


def test_a_run_that_has_ended_says_how_to_start_another() -> None:
    store, params = MemoryStore(), model(1)
    session(store, params).run(stepper(params), BATCHES)
    with pytest.raises(RunEnded, match="another name"), session(store):
        pass


def test_the_default_name_is_the_models_class() -> None:
    assert swarm.Session(model(1), mailbox=MemoryMailbox(MemoryStore()))._name == "dict"
    with pytest.raises(UsageError, match="no name for a run"):
        swarm.Session(model(1), run="My Run")


def test_step_by_step() -> None:
    store, params = MemoryStore(), model(1)
    with session(store, params) as mine:
        for _ in mine:
            loss = stepper(params)(None)
            mine.report(samples=1, loss=loss)
            with pytest.raises(UsageError, match="in samples"):
                mine.report(tokens=1)
    record = asyncio.run(Exchange(MemoryMailbox(store), made(store)).round(2))
    assert record is not None
    assert record.participants[0].train_loss == pytest.approx(loss, rel=0.5)


def test_a_folder_becomes_a_mailbox_only_if_that_is_asked_for(tmp_path: Path, state_dir: Path) -> None:
    folder, params = tmp_path / "box", model(1)
    options: dict[str, Any] = {"algorithm": SPEC, "rounds": 1, "run": "mine"}
    with pytest.raises(MailboxAway, match="swarm init") as error, swarm.Session(params, mailbox=folder, **options):
        pass
    assert "create_mailbox=True" in str(error.value)
    assert not folder.exists()
    assert swarm.Session(params, mailbox=folder, create_mailbox=True, **options).run(stepper(params), BATCHES).reason == "done"
    assert swarm.align(model(5), mailbox=folder, run="mine") == 0


def test_what_a_callback_raises_ends_the_session_and_gets_out() -> None:
    store, params = MemoryStore(), model(1)

    def refuse(event: WorkerEvent) -> None:
        if isinstance(event, RoundClosed):
            raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        session(store, params, rounds=None, callbacks=[refuse]).run(stepper(params), BATCHES)
    assert '"left"' in max(data.decode() for key, data in store.objects.items() if "/beats/" in key and b'"left"' in data), (
        "it has left all the same"
    )


def test_a_callback_may_leave() -> None:
    store, params, told = MemoryStore(), model(1), list[str]()

    def enough(event: WorkerEvent) -> None:
        told.append(type(event).__name__)
        if isinstance(event, RoundClosed):
            mine.leave()

    mine = session(store, params, rounds=None, callbacks=[enough])
    assert mine.run(stepper(params), BATCHES).reason == "left"
    assert told[-1] == "Ended"


def test_data_is_read_again_and_a_generator_ends_the_part_of_this_learner() -> None:
    store, params = MemoryStore(), model(1)
    result = session(store, params).run(stepper(params), iter(BATCHES))
    assert (result.reason, result.steps) == ("data", 3)
    with pytest.raises(UsageError, match="no batch"):
        session(store, params).run(stepper(params), [])
    assert session(store, params).run(stepper(params), BATCHES).reason == "done"


def test_evaluations_are_written() -> None:
    store, params = MemoryStore(), model(1)
    session(store, params, evaluate=lambda: {"loss": 0.5, "accuracy": 0.25}).run(stepper(params), BATCHES)
    tape = Tape(MemoryMailbox(store), made(store))
    assert asyncio.run(tape.evals_after(-1)) == [0, 1, 2]
    record = asyncio.run(tape.eval(2))
    assert record is not None
    assert (record.loss, record.metrics) == (0.5, {"accuracy": 0.25})


def test_one_that_cannot_evaluate_leaves_it_to_the_others() -> None:
    store, params = MemoryStore(), model(1)
    with session(store, params, learner_id="a", evaluate=lambda: 1.0) as first:
        first.leave()
    assert session(store, params, learner_id="b").run(stepper(params), BATCHES).reason == "done"
    assert not [key for key in store.objects if "/claims/" in key and "/eval/" in key]


def test_a_session_is_no_syncer() -> None:
    with pytest.raises(UsageError, match="--role syncer"):
        session(MemoryStore(), role="syncer")


def test_every_learner_and_every_return_has_a_stream_of_its_own() -> None:
    store, seeds = MemoryStore(), list[int]()
    for name in ("a", "a", "b"):
        with session(store, learner_id=name) as mine:
            seeds.append(mine.stream_seed)
            mine.leave()
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_session_that_is_not_entered_says_so() -> None:
    mine = session(MemoryStore())
    for use in (lambda: mine.learner, lambda: mine.member, lambda: mine.report(tokens=1), lambda: list(mine)):
        with pytest.raises(UsageError, match="not entered"):
            use()


def test_align_takes_the_newest_parameters_and_writes_nothing() -> None:
    store, params = MemoryStore(), model(1)
    with session(store, params) as mine:
        mine.leave()
    other = model(9)
    assert swarm.align(other, mailbox=MemoryMailbox(store), run="mine") == -1
    assert all(np.array_equal(other[name], params[name]) for name in params)
    session(store, params).run(stepper(params), BATCHES)
    before = dict(store.objects)
    assert swarm.align(other, mailbox=MemoryMailbox(store), run=run_id_of("mine")) == 2
    assert all(np.array_equal(other[name], params[name]) for name in params)
    assert store.objects == before
    with pytest.raises(SchemaMismatch, match=r"a\.weight"):
        swarm.align({"a.weight": np.zeros(3, np.float32)}, mailbox=MemoryMailbox(store), run="mine")
    with pytest.raises(RunNotFound, match="runs there: mine"):
        swarm.align(other, mailbox=MemoryMailbox(store), run="yours")


def test_align_takes_what_was_kept_after_a_round() -> None:
    store, params = MemoryStore(), model(1)
    seen: list[dict[str, np.ndarray]] = []

    def evaluate() -> float:  # called with the committed parameters, after every round
        seen.append({name: array.copy() for name, array in params.items()})
        return 1.0

    session(store, params, checkpoint_every=1, evaluate=evaluate).run(stepper(params), BATCHES)
    other = model(9)
    assert swarm.align(other, mailbox=MemoryMailbox(store), run="mine", round=1) == 1
    assert all(np.array_equal(other[name], seen[1][name]) for name in other)
    assert any(not np.array_equal(other[name], params[name]) for name in other)
    assert swarm.align(other, mailbox=MemoryMailbox(store), run="mine", round=2) == 2
    assert all(np.array_equal(other[name], params[name]) for name in other)
    with pytest.raises(UsageError, match="rounds with a checkpoint: 0, 1"):
        swarm.align(other, mailbox=MemoryMailbox(store), run="mine", round=7)


def test_such_a_run_cannot_be_joined_by_a_worker_and_one_line_says_how() -> None:
    with pytest.raises(TaskUnknown, match="starting that program here"):
        registry.get(registry.LIBRARY)


def test_a_convolution_without_a_layout_is_warned_about_and_with_one_trains() -> None:
    torch = pytest.importorskip("torch")

    events = list[WorkerEvent]()

    def learn(layout: str | None) -> str:
        net, store = torch.nn.Sequential(torch.nn.Conv1d(3, 8, 3)), MemoryStore()
        mine = swarm.Session(
            net, algorithm=SPEC, mailbox=MemoryMailbox(store), rounds=1, layout=layout, callbacks=[events.append]
        )
        reason = mine.run(lambda batch: 0.0, BATCHES).reason
        assert swarm.align(net, mailbox=MemoryMailbox(store), run="sequential", layout=layout) == 0
        return reason

    with pytest.warns(UserWarning, match="0.weight"):
        assert learn(None) == "done"
    assert not [event for event in events if isinstance(event, Trouble)], "warned of once, by Python"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert learn("auto") == "done"


# What a step says


@pytest.mark.parametrize("result", [(0.5, 7), {"loss": 0.5, "tokens": 7, "more": 1}])
def test_a_step_may_say_how_much_it_was(result: Any) -> None:
    assert outcome(result, None, "tokens") == (0.5, 7)


def test_otherwise_the_batch_is_counted() -> None:
    ids, floats = np.zeros((4, 8), np.int64), np.zeros((5, 3), np.float32)
    assert outcome(np.float32(0.5), (ids, ids), "tokens") == (0.5, 32)
    assert counted({"x": [floats]}, "samples") == 5
    for batch, unit in ((floats, "tokens"), ("text", "samples"), ([], "tokens"), (np.int64(3), "samples")):
        with pytest.raises(UsageError, match="cannot be told"):
            counted(batch, unit)
    with pytest.raises(UsageError, match="3 values"):
        outcome((1, 2, 3), ids, "tokens")


def test_repeating_stops_when_a_pass_is_empty() -> None:
    assert list(repeated(iter([1, 2]))) == [1, 2]
    endless = repeated([1, 2])
    assert [next(endless) for _ in range(5)] == [1, 2, 1, 2, 1]


# Shared work, in virtual time


class Team:
    """Learners of one run that only beat."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.manifest: Manifest
        self._beating: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Team:
        self.manifest = await new_run(self.store, swarm.DiLoCo(beat_s=1.0, lease_s=10.0), rounds=None)
        return self

    async def __aexit__(self, *_: object) -> None:
        for learner in list(self._beating):
            self.kill(learner)

    def join(self, learner: str, incarnation: int = 1) -> Member:
        tape = Tape(MemoryMailbox(self.store), self.manifest)

        async def beat() -> None:
            n = 0
            while True:
                await tape.beat(learner, incarnation, n, Beat(phase="train"))
                n += 1
                await asyncio.sleep(1.0)

        self.kill(learner)
        self._beating[learner] = asyncio.create_task(beat())
        return Member(mailbox=MemoryMailbox(self.store), manifest=self.manifest, learner=learner, incarnation=incarnation)

    def kill(self, learner: str) -> None:
        if learner in self._beating:
            self._beating.pop(learner).cancel()

    async def leave(self, learner: str, incarnation: int = 1) -> None:
        self.kill(learner)
        await Tape(MemoryMailbox(self.store), self.manifest).beat(learner, incarnation, 10**6, Beat(phase="left"))


async def work(claims: QueueClaims, *, seconds_s: float, done: list[int]) -> None:
    while (unit := await claims.next()) is not None:
        await asyncio.sleep(seconds_s)
        await claims.finish(unit)
        done.append(unit)


async def queue(member: Member, size: int, name: str = "q") -> QueueClaims:
    claims = QueueClaims(member, name)
    await claims.begin(WorkSet(size=size))
    return claims


def test_each_unit_is_done_once_by_live_learners() -> None:
    async def main() -> list[list[int]]:
        async with Team() as team:
            done: list[list[int]] = [[], [], []]
            every = [await queue(team.join(name), 20) for name in "abc"]
            await asyncio.gather(*(work(q, seconds_s=1 + i, done=done[i]) for i, q in enumerate(every)))
            return done

    done = virtually(main())
    assert sorted(unit for units in done for unit in units) == list(range(20))
    assert len(done[0]) > len(done[2]) > 0


def test_the_unit_of_one_that_is_gone_is_done_by_another_after_a_lease() -> None:
    async def main() -> None:
        async with Team() as team:
            a, b = await queue(team.join("a"), 3), await queue(team.join("b"), 3)
            assert await a.next() == 0
            team.kill("a")
            died_s, done = asyncio.get_running_loop().time(), list[int]()
            await work(b, seconds_s=0.1, done=done)
            assert done == [1, 2, 0]
            assert 9 <= asyncio.get_running_loop().time() - died_s <= 13

    virtually(main())


def test_one_that_holds_a_unit_for_many_leases_keeps_it_while_it_beats() -> None:
    async def main() -> None:
        async with Team() as team:
            a, b = await queue(team.join("a"), 2), await queue(team.join("b"), 2)
            assert await a.next() == 0
            assert await b.next() == 1
            await b.finish(1)
            waiting = asyncio.create_task(b.next())
            await asyncio.sleep(100)
            assert not waiting.done()
            await a.finish(0)
            assert await waiting is None

    virtually(main())


def test_what_is_given_back_and_what_an_earlier_incarnation_held_is_free_at_once() -> None:
    async def main() -> None:
        async with Team() as team:
            loop = asyncio.get_running_loop()
            a, b = await queue(team.join("a"), 1), await queue(team.join("b"), 1)
            assert await a.next() == 0
            await a.give_back(0)
            before_s = loop.time()
            assert await b.next() == 0
            assert loop.time() == before_s
            again = await queue(team.join("b", incarnation=2), 1)
            await asyncio.sleep(0.5)
            assert await again.next() == 0
            with pytest.raises(Superseded):
                await b.next()

    virtually(main())


def test_two_turns_of_one_learner_at_a_queue_share_it_too() -> None:
    async def main() -> None:
        async with Team() as team:
            member, done = team.join("a"), list[int]()
            turns = [await queue(member, 10) for _ in range(2)]
            await asyncio.gather(*(work(turn, seconds_s=1.0, done=done) for turn in turns))
            assert sorted(done) == list(range(10))

    virtually(main())


def test_a_queue_is_the_same_for_all() -> None:
    async def main() -> None:
        async with Team() as team:
            await queue(team.join("a"), 3)
            with pytest.raises(RunConfigMismatch, match="queues/q: size is 4 here, 3 in the run"):
                await queue(team.join("b"), 4)
            ordered = QueueClaims(team.join("a"), "files")
            await ordered.begin(WorkSet(size=2, items_sha256=digest(["x", "y"])))
            with pytest.raises(RunConfigMismatch, match="order"):
                await QueueClaims(team.join("b"), "files").begin(WorkSet(size=2, items_sha256=digest(["y", "x"])))

    virtually(main())
    assert digest([object()]) == ""


def test_a_queue_over_a_session_ends_and_gives_back_what_is_broken_off() -> None:
    store = MemoryStore()
    with session(store, rounds=None) as mine:
        names = swarm.SharedQueue(mine, "files", ["x", "y", "z"])
        assert len(names) == 3
        for name in names:
            assert name == "x"
            break
        assert list(names) == ["y", "z", "x"]
        assert list(names) == []
    marks = [key for key in store.objects if "/queues/" in key and key.endswith("done/record.json")]
    assert len(marks) == 3


async def rank_of(member: Member, world_size: int = 2, timeout_s: float | None = None) -> tuple[RankClaims, int]:
    claims = RankClaims(member, "data")
    await claims.begin(world_size)
    return claims, await claims.take(timeout_s)


def test_each_learner_has_a_rank_and_one_too_many_is_told_who_holds_them() -> None:
    async def main() -> None:
        async with Team() as team:
            a, b, c = (team.join(name) for name in "abc")
            assert sorted([(await rank_of(a))[1], (await rank_of(b))[1]]) == [0, 1]
            with pytest.raises(RanksTaken, match="0 by a, 1 by b"):
                await rank_of(c)
            with pytest.raises(RunConfigMismatch, match="slices/data: size is 3 here, 2 in the run"):
                await rank_of(c, 3)

    virtually(main())


def test_a_rank_of_one_that_is_gone_is_taken_over_and_it_is_told_so() -> None:
    async def main() -> None:
        async with Team() as team:
            (held, rank), (_, other) = await rank_of(team.join("a")), await rank_of(team.join("b"))
            await held.check(rank)
            team.kill("a")
            _, taken = await rank_of(team.join("c"))
            assert (rank, other, taken) == (0, 1, 0)
            with pytest.raises(RankLost, match="rank 0 is held by c now"):
                await held.check(rank)

    virtually(main())


def test_a_restarted_learner_has_its_own_rank_back_at_once() -> None:
    async def main() -> None:
        async with Team() as team:
            await rank_of(team.join("a"))
            old, rank = await rank_of(team.join("b"))
            before_s = asyncio.get_running_loop().time()
            _, again = await rank_of(team.join("b", incarnation=2))
            assert rank == again == 1
            assert asyncio.get_running_loop().time() == before_s
            with pytest.raises(RankLost):
                await old.check(rank)

    virtually(main())


def test_a_slice_is_every_nth_item_as_often_as_the_data_can_be_read() -> None:
    with session(MemoryStore(), rounds=None) as mine:
        rank = swarm.ranks(mine, 3)
        part = rank.slice(range(10))
        assert (rank.rank, list(part), list(part), len(part)) == (0, [0, 3, 6, 9], [0, 3, 6, 9], 4)
        assert list(rank.slice(x for x in "abcd")) == ["a", "d"]
        with pytest.raises(TypeError, match="no length"):
            len(rank.slice(iter("abcd")))


def test_a_barrier_opens_for_all_when_the_last_comes_generation_by_generation() -> None:
    async def main() -> None:
        async with Team() as team:
            loop = asyncio.get_running_loop()
            meetings = [Meeting(team.join(name), "b", 3) for name in "abc"]
            begun_s = loop.time()

            async def come(meeting: Meeting, after_s: float) -> tuple[int, float]:
                await asyncio.sleep(after_s)
                return await meeting.wait(None), loop.time() - begun_s

            for generation in range(3):
                begun_s = loop.time()
                came = await asyncio.gather(*(come(m, 20.0 * i) for i, m in enumerate(meetings)))
                assert [passed for passed, _ in came] == [generation] * 3
                assert all(39.9 < at_s < 42 for _, at_s in came)

    virtually(main())


def test_a_barrier_says_who_came_when_the_time_is_over() -> None:
    async def main() -> None:
        async with Team() as team:
            with pytest.raises(BarrierBroken, match=r"1 of 2 came within 5 s: a"):
                await Meeting(team.join("a"), "b", 2).wait(5.0)

    virtually(main())


@pytest.mark.parametrize("how", ["kill", "leave"])
def test_a_barrier_breaks_when_one_that_was_live_has_gone(how: str) -> None:
    async def main() -> None:
        async with Team() as team:
            a = Meeting(team.join("a"), "b", 2)
            team.join("b")
            waiting = asyncio.create_task(a.wait(None))
            await asyncio.sleep(20)
            assert not waiting.done(), "it is live, and may come"
            team.kill("b") if how == "kill" else await team.leave("b")
            with pytest.raises(BarrierBroken, match="b is gone"):
                await waiting

    virtually(main())


def test_one_that_came_and_died_does_not_count_and_another_may_come_for_it() -> None:
    async def main() -> None:
        async with Team() as team:
            dead = asyncio.create_task(Meeting(team.join("a"), "b", 2).wait(None))
            await asyncio.sleep(3)
            dead.cancel()
            team.kill("a")
            await asyncio.sleep(20)
            c = asyncio.create_task(Meeting(team.join("c"), "b", 2).wait(60.0))
            await asyncio.sleep(5)
            team.join("d")
            d = asyncio.create_task(Meeting(team.join("d"), "b", 2).wait(60.0))
            assert await asyncio.gather(c, d) == [0, 0]

    virtually(main())


def test_over_sessions() -> None:
    store, gate = MemoryStore(), threading.Barrier(2)

    def meet(name: str) -> list[int]:
        with session(store, rounds=None, learner_id=name) as mine:
            barrier = swarm.Barrier(mine, "start", 2)
            passed = [barrier.wait(30.0), barrier.wait(30.0)]
            gate.wait(30)
            return passed

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(meet, "ab")) == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    "key",
    ["runs/abcd/queues/q/0000000003/000001/record.json", "runs/abcd/slices/data/0000000003/000001/record.json"],
)
def test_keys_of_claims_are_read_back(key: str) -> None:
    assert keys.parse_work_claim(key) == (3, 1)
    assert keys.parse_work_claim(key.replace("000001/", "done/")) is None


def test_keys_are_what_the_format_says() -> None:
    place = keys.RunKeys("abcd")

    def every() -> Iterator[str]:
        yield keys.work_set(place.queue("q"))
        yield keys.work_claim(place.queue("q"), 3, 1)
        yield keys.work_done(place.queue("q"), 3)
        yield keys.work_claim(place.ranks("data"), 0, 0)
        yield place.arrival("b", 2, learner="a", incarnation=1)
        yield place.barrier_open("b", 2)

    assert list(every()) == [
        "runs/abcd/queues/q/set/record.json",
        "runs/abcd/queues/q/0000000003/000001/record.json",
        "runs/abcd/queues/q/0000000003/done/record.json",
        "runs/abcd/slices/data/0000000000/000000/record.json",
        "runs/abcd/barriers/b/0000000002/arrived/a/0001/record.json",
        "runs/abcd/barriers/b/0000000002/open/record.json",
    ]
    assert keys.parse_arrival(place.arrival("b", 2, learner="a", incarnation=1)) == (2, "a", 1)


# What a program may get wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"algorithm": {}}, "algorithm must be a swarm.DiLoCo"),
        ({"rounds": "3"}, "rounds must be a whole number"),
        ({"mailbox": 5}, "mailbox must be a folder"),
    ],
)
def test_an_argument_of_another_kind_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        swarm.Session({"w": np.zeros(2, np.float32)}, **arguments)


@pytest.mark.parametrize("result", [(1.0, 2.5), ("a loss", 2), {"loss": 1.0, "tokens": "many"}])
def test_what_train_step_returns_is_not_rounded(result: Any) -> None:
    with pytest.raises(UsageError, match="whole number"):
        outcome(result, None, "tokens")
