"""Machines that sleep, shares that go away under everybody at once, fetches that take long: in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from swarm.core.errors import MailboxUnavailable, PayloadCorrupt, PayloadMissing, RunNotFound, UsageError
from swarm.core.events import Trouble
from swarm.core.manifest import Manifest
from swarm.core.records import Control, RoundRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.contract import KeyOf, Mailbox, Source
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.inner import params_sha256
from swarm.runtime.parameters import committed, newest
from tests.integration.roles import Syncer, tape, until
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.wrappers import Counting, Mortal, Stopped, Wrapped
from tests.sampling import sampled

SPEC = DiLoCo(sync_every=4, quorum_size=1, start_learners=3, beat_s=0.5, lease_s=2.0)


async def claims(store: MemoryStore, manifest: Manifest, records: list[RoundRecord]) -> list[int]:
    """How many claims were made on each round whose claims were not swept yet."""
    exchange = Exchange(MemoryMailbox(store), manifest)
    found = [len(await exchange.claims(record.round)) for record in records]
    return [n for n in found if n]


@pytest.mark.parametrize("with_syncer", [False, True])
@pytest.mark.parametrize("at_s", sampled([0.35, 0.8, 1.15, 1.9]))
def test_when_everybody_loses_the_share_at_once_nobody_takes_over_and_nobody_goes_on_alone(
    at_s: float, with_syncer: bool
) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=12)
        boxes: list[FaultyMailbox] = []

        def wrap(inner: Mailbox) -> FaultyMailbox:
            boxes.append(FaultyMailbox(inner))
            return boxes[-1]

        role: Any = "learner" if with_syncer else "both"
        every: list[Learner | Syncer] = [Learner(store, manifest, name, machines, wrap=wrap, role=role) for name in "abc"]
        if with_syncer:
            every.append(Syncer(store, manifest, "nas", machines, wrap=wrap))
        lives = [asyncio.create_task(x.live()) for x in every]
        await asyncio.sleep(at_s)
        for box in boxes:
            box.plan.append(Fault("fail", count=None))
        await asyncio.sleep(60)
        for box in boxes:
            box.plan.clear()
        assert await together(*lives) == ["done"] * len(every)
        records = await tape(store, manifest)
        assert all([p.learner for p in record.participants] == ["a", "b", "c"] for record in records)
        assert not any(record.rejected for record in records)
        assert set(await claims(store, manifest, records)) == {1}

    virtually(main())


@pytest.mark.parametrize("victim", ["a", "nas"])
@pytest.mark.parametrize("at_s", sampled([0.4, 0.75, 1.0, 1.45, 2.05]))
def test_one_that_is_stopped_for_longer_than_a_lease_is_overtaken_and_then_takes_part_again(victim: str, at_s: float) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, quorum_size=1, start_learners=2, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=30)
        boxes: dict[str, Stopped] = {}

        def box(name: str) -> Callable[[Mailbox], Mailbox]:
            def wrap(inner: Mailbox) -> Stopped:
                boxes[name] = Stopped(inner)
                return boxes[name]

            return wrap

        a, b = (Learner(store, manifest, name, machines, wrap=box(name), role="either") for name in "ab")
        syncer = Syncer(store, manifest, "nas", machines, wrap=box("nas"))
        lives = [asyncio.create_task(x.live()) for x in (a, b, syncer)]
        await asyncio.sleep(at_s)
        boxes[victim].runs.clear()
        await asyncio.sleep(3 * spec.lease_s)
        newest = b.participant.newest
        assert newest >= 2, "the others go on"
        boxes[victim].runs.set()
        assert await together(*lives) == ["done"] * 3
        assert a.params == b.params
        records = await tape(store, manifest)
        assert len(records) == 30
        assert all([p.learner for p in record.participants] == ["a", "b"] for record in records[-5:])
        assert {record.closer for record in records[-5:]} == {"nas"}

    virtually(main())


class SlowReads(Wrapped):
    """Reading a payload takes `takes_s`; what it then finds is what is there then."""

    def __init__(self, inner: Mailbox, takes_s: float) -> None:
        super().__init__(inner)
        self.takes_s, self.reads = takes_s, 0

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if op == "read_part":
            self.reads += 1
            await asyncio.sleep(self.takes_s)
        return await call()


ROUND_S = 0.4 + 0.2  # about what one takes in these runs


@pytest.mark.parametrize("fragments", [1, 3])
def test_what_a_slow_newcomer_fetches_is_kept_for_it(fragments: int) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4 * fragments, fragments=fragments, quorum_size=1, grace_s=0.5, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=None)
        quick = Learner(store, manifest, "a", machines)
        lives = [asyncio.create_task(quick.live())]
        await until(lambda: quick.participant.newest >= 10)
        boxes: list[SlowReads] = []

        def wrap(inner: Mailbox) -> SlowReads:
            boxes.append(SlowReads(inner, 8 * fragments * ROUND_S))
            return boxes[-1]

        slow = Learner(store, manifest, "b", machines, wrap=wrap)
        before = quick.participant.newest
        lives.append(asyncio.create_task(slow.live()))
        await until(lambda: slow.inner is not None, at_most_s=fragments * 8 * fragments * ROUND_S + 10)
        assert quick.participant.newest > before + 5, "nobody waits for one that only joins"
        # At the first attempt, though several turns of rounds were committed meanwhile; the next one is under way.
        assert boxes[0].reads <= fragments + 1
        boxes[0].takes_s = 0.0
        await until(lambda: slow.participant.newest >= quick.participant.newest - 1)
        for learner in (quick, slow):
            learner.leaving = True
        assert await together(*lives) == ["left", "left"]
        # What it fetched goes once it has it.
        assert len({key.split("/")[4] for key in store.objects if "/blobs/rounds/" in key}) <= 3 * fragments + 1

    virtually(main())


def test_a_fetch_whose_payload_was_swept_all_the_same_starts_over_and_ends() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        # Nothing is kept for a reader: what is fetched is deleted after two turns, over and over.
        spec = DiLoCo(sync_every=4, fragments=2, quorum_size=1, grace_s=0.5, beat_s=0.5, lease_s=2.0, keep_s=0.1)
        manifest = await new_run(store, spec, rounds=None)
        quick = Learner(store, manifest, "a", machines)
        lives = [asyncio.create_task(quick.live())]
        await until(lambda: quick.participant.newest >= 10)
        boxes: list[SlowReads] = []

        def wrap(inner: Mailbox) -> SlowReads:
            boxes.append(SlowReads(inner, 4.5 * ROUND_S))
            return boxes[-1]

        slow = Learner(store, manifest, "b", machines, wrap=wrap)
        lives.append(asyncio.create_task(slow.live()))
        await asyncio.sleep(30)
        boxes[0].takes_s = 0.5 * ROUND_S  # the share is quicker now
        await until(lambda: slow.inner is not None, at_most_s=30)
        assert boxes[0].reads > 4
        for learner in (quick, slow):
            learner.leaving = True
        assert await together(*lives) == ["left", "left"]

    virtually(main())


def test_one_that_falls_behind_with_every_round_still_takes_over_the_newest() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, quorum_size=1, grace_s=0.2, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=60)
        quick = Learner(store, manifest, "a", machines)
        slow = Learner(store, manifest, "b", machines, wrap=lambda inner: SlowReads(inner, 5 * ROUND_S))
        assert await together(quick.live(), slow.live()) == ["done", "done"]
        assert quick.params == slow.params
        assert not any(isinstance(event, Trouble) for event in slow.events)

    virtually(main())


def test_parameters_that_vanished_stop_a_newcomer_by_name_and_nothing_is_written_over() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, fragments=2, quorum_size=1, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=6)
        assert await Learner(store, manifest, "a", machines).live() == "done"
        exchange = Exchange(MemoryMailbox(store), manifest)
        await exchange.control(Control(action="extend"))
        record = await exchange.round(4)
        assert record is not None
        key = exchange.key_of(record.fragment, record.theta)
        del store.objects[key]
        before = dict(store.objects)
        with pytest.raises(PayloadMissing, match=f"{key}: no such payload; .*no checkpoint is kept"):
            await Learner(store, manifest, "b", machines).live()
        assert {k: store.objects.get(k) for k in before} == before
        assert await exchange.newest_round() == 5

    virtually(main())


def damage(store: MemoryStore, key: str) -> None:
    data = bytearray(store.objects[key])
    data[-3] ^= 0x40
    store.objects[key] = bytes(data)


@pytest.mark.parametrize("every", [0, 1])
def test_a_newcomer_that_meets_damaged_parameters_is_told_what_to_do_and_the_next_rounds_repair_them(every: int) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=40, fragments=2, quorum_size=1, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=None, checkpoint_every=every)
        holder = Learner(store, manifest, "a", machines)
        life = asyncio.create_task(holder.live())
        await until(lambda: holder.participant.newest >= 5)
        await asyncio.sleep(0.5)
        exchange = Exchange(MemoryMailbox(store), manifest)
        records = await tape(store, manifest)
        broken = exchange.key_of(records[-1].fragment, records[-1].theta)
        damage(store, broken)
        kept = (
            r"or go on from a checkpoint \(1, 3, 5\): `swarm export test-run FILE --round 5`" if every else "no checkpoint is"
        )
        with pytest.raises(PayloadCorrupt, match=f"{broken}: SHA-256 .* A learner that trains holds them.*; {kept}"):
            await Learner(store, manifest, "b", machines).live()
        with pytest.raises(PayloadCorrupt, match=f"{broken}: .*; {kept}"):
            await newest(exchange)
        assert holder.participant.newest == records[-1].round, "told while the damage was newest"
        if every:
            await exchange.fetch_checkpoint(5)
        await until(lambda: holder.participant.newest >= records[-1].round + 2)
        late = Learner(store, manifest, "c", machines)
        also = asyncio.create_task(late.live())
        await until(lambda: late.steps > 0)
        await exchange.control(Control(action="stop"))
        assert await together(life, also) == ["stopped", "stopped"]
        assert late.params == holder.params == params_sha256(NumpyAdapter(dict((await newest(exchange))[1])))

    virtually(main())


def test_a_damaged_momentum_is_told_from_damaged_parameters() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, quorum_size=1, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=2)
        assert await Learner(store, manifest, "a", machines).live() == "done"
        exchange = Exchange(MemoryMailbox(store), manifest)
        await exchange.control(Control(action="extend"))
        record = (await tape(store, manifest))[-1]
        assert record.outer is not None
        damage(store, exchange.key_of(0, record.outer))
        with pytest.raises(PayloadCorrupt, match=r"momentum, without which no round .*`swarm export test-run FILE`"):
            await Learner(store, manifest, "b", machines).live()
        assert (await newest(exchange))[0] == 1, "the parameters are there"

    virtually(main())


def test_checkpoints_are_kept_at_the_end_of_every_nth_turn_and_bounded() -> None:
    async def main(role: Any) -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, fragments=2, quorum_size=2, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=20, checkpoint_every=3, checkpoints_kept=2)
        every: list[Learner | Syncer] = [Learner(store, manifest, name, machines, role=role) for name in "ab"]
        if role == "learner":
            every.append(Syncer(store, manifest, "nas", machines))
        assert await together(*(x.live() for x in every)) == ["done"] * len(every)
        exchange = Exchange(MemoryMailbox(store), manifest)
        assert await exchange.checkpoints() == [11, 17]
        records = await tape(store, manifest)
        kept = await exchange.checkpoint(17)
        assert kept is not None
        assert [ref.sha256 for ref in kept.theta] == [records[16].theta.sha256, records[17].theta.sha256]
        theta = await exchange.fetch_checkpoint(17)
        assert sorted(theta) == [tensor.name for tensor in manifest.tensors]

    virtually(main("both"))
    virtually(main("learner"))


CHECKPOINTED = DiLoCo(sync_every=4, fragments=2, quorum_size=1, start_learners=2, beat_s=0.5, lease_s=2.0)


class SlowCheckpoints(Wrapped):
    """Every part of a checkpoint takes a while to write; the share fails at the first `failing` of them."""

    def __init__(self, inner: Mailbox, *, failing: int = 0) -> None:
        super().__init__(inner)
        self.failing = failing

    async def put(self, key: KeyOf, source: Source) -> str:
        if isinstance(key, str):
            return await super().put(key, source)

        def named() -> str:
            self.name = key()
            return self.name

        found = await super().put(named, source)
        if "/blobs/checkpoints/" in self.name:
            await asyncio.sleep(1.0)
            self.failing -= 1
            if self.failing >= 0:
                raise MailboxUnavailable("gone for a moment")
        return found


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_checkpoint_that_takes_long_is_finished_before_the_run_is_left(failing: int) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, CHECKPOINTED, rounds=8, checkpoint_every=2, checkpoints_kept=2)
        boxes: list[SlowCheckpoints] = []

        def wrap(inner: Mailbox) -> SlowCheckpoints:
            boxes.append(SlowCheckpoints(inner))
            return boxes[-1]

        a = Learner(store, manifest, "a", machines, wrap=wrap)
        b = Learner(store, manifest, "b", machines, role="learner", wrap=wrap)
        lives = [asyncio.create_task(x.live()) for x in (a, b)]
        await until(lambda: a.participant.newest >= 5)
        for box in boxes:
            box.failing = failing
        assert await together(*lives) == ["done", "done"]
        exchange = Exchange(MemoryMailbox(store), manifest)
        assert await exchange.checkpoints() == [3, 7]
        for round in (3, 7):
            await exchange.fetch_checkpoint(round)
        assert not [key for key in store.objects if f"/blobs/rounds/{3:010d}/" in key], "swept, too"

    virtually(main())


class DiesAfter(Mortal):
    """Kills at the `calls`-th call after `key` was created."""

    def __init__(self, inner: Mailbox, key: str, calls: int) -> None:
        super().__init__(inner, at=-1, when="before")
        self.key, self.left = key, calls

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        result = await super().around(op, key, call)
        if (op, key) == ("create", self.key):
            self.at = self.calls + self.left
        return result


@pytest.mark.parametrize("calls", range(1, 9))
def test_the_checkpoint_that_a_closer_owed_when_it_died_is_kept_by_the_next_one(calls: int) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, CHECKPOINTED, rounds=8, checkpoint_every=2, checkpoints_kept=5)
        exchange = Exchange(MemoryMailbox(store), manifest)
        box = DiesAfter(MemoryMailbox(store), exchange.keys.round(3), calls)
        nas = Syncer(store, manifest, "nas", machines, wrap=lambda _: box)
        box.victim = asyncio.create_task(nas.live())
        lives = [asyncio.create_task(Learner(store, manifest, name, machines, role="either").live()) for name in "ab"]
        assert await together(*lives) == ["done", "done"]
        assert box.dead
        records = await tape(store, manifest)
        assert records[3].closer == "nas"
        assert await exchange.checkpoints() == [3, 7]
        for round in (3, 7):
            kept = await exchange.checkpoint(round)
            assert kept is not None
            assert [ref.sha256 for ref in kept.theta] == [r.theta.sha256 for r in records[round - 1 : round + 1]]
            await exchange.fetch_checkpoint(round)

    virtually(main())


@pytest.mark.parametrize("calls", range(1, 5))
def test_the_last_rounds_parameters_are_there_though_its_closer_died_and_are_kept_once_the_run_goes_on(calls: int) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, CHECKPOINTED, rounds=8, checkpoint_every=2, checkpoints_kept=5)
        exchange = Exchange(MemoryMailbox(store), manifest)
        box = DiesAfter(MemoryMailbox(store), exchange.keys.round(7), calls)
        nas = Syncer(store, manifest, "nas", machines, wrap=lambda _: box)
        box.victim = asyncio.create_task(nas.live())
        every = [Learner(store, manifest, name, machines, role="either") for name in "ab"]
        assert await together(*(x.live() for x in every)) == ["done", "done"]
        assert box.dead
        assert await exchange.checkpoints() == [3]
        round, theta = await committed(exchange, 7)
        assert (round, params_sha256(NumpyAdapter(dict(theta)))) == (7, every[0].params)
        with pytest.raises(UsageError, match="after round 6 of test-run; rounds with a checkpoint: 3; the newest round is 7"):
            await committed(exchange, 6)
        await exchange.control(Control(action="extend", rounds=10))
        again = (Learner(store, manifest, name, machines, role="either") for name in "cd")
        assert await together(*(x.live() for x in again)) == ["done", "done"]
        assert await exchange.checkpoints() == [3, 7]
        kept = await committed(exchange, 7)
        assert {name: array.tobytes() for name, array in kept[1].items()} == {n: a.tobytes() for n, a in theta.items()}

    virtually(main())


def test_only_the_turn_after_a_checkpoint_looks_whether_it_was_kept() -> None:
    async def main(every: int) -> list[str]:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, CHECKPOINTED, rounds=16, checkpoint_every=every)
        box = Counting(MemoryMailbox(store))
        nas = Syncer(store, manifest, "nas", machines, wrap=lambda _: box)
        lives = [nas.live(), *(Learner(store, manifest, name, machines, role="learner").live() for name in "ab")]
        assert await together(*lives) == ["done"] * 3
        return [op for op, key in box.calls if "/checkpoints/" in key and op == "list"]

    assert virtually(main(0)) == []
    # Eight turns: three are kept, each of which lists what there is, and after two of these another one looks.
    assert len([*virtually(main(3))]) == 2 + 2


@pytest.mark.parametrize("with_syncer", [False, True])
@pytest.mark.parametrize("at_s", sampled([0.35, 0.8, 1.15, 1.9]))
def test_a_run_that_is_deleted_under_its_learners_ends_for_them_and_nothing_more_is_written(
    at_s: float, with_syncer: bool
) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=1000)
        role: Any = "learner" if with_syncer else "both"
        every: list[Learner | Syncer] = [Learner(store, manifest, name, machines, role=role) for name in "abc"]
        if with_syncer:
            every.append(Syncer(store, manifest, "nas", machines))
        lives = [asyncio.create_task(x.live()) for x in every]
        await asyncio.sleep(at_s)
        admin = MemoryMailbox(store)
        root = f"runs/{manifest.run}/"
        await admin.delete([f"{root}manifest/record.json"])
        await admin.delete(await admin.list(root))
        ended = await asyncio.wait_for(together(*lives), 3 * SPEC.lease_s)
        assert [(type(error), "was deleted" in str(error)) for error in ended] == [(RunNotFound, True)] * len(every), ended
        assert not [key for key in await admin.list(root) if key.startswith((f"{root}rounds/", f"{root}blobs/rounds/"))]

    virtually(main())


def test_a_run_that_is_deleted_while_somebody_joins_is_named_as_such() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=12)
        late = Learner(store, manifest, "late", machines)
        admin = MemoryMailbox(store)
        await admin.delete(await admin.list(f"runs/{manifest.run}/"))
        with pytest.raises(RunNotFound, match="was deleted"):
            await late.participant.join()

    virtually(main())
