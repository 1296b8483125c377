"""Holding a learner id: who may take it when, what is left behind, and who counts as gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarm.core.errors import LearnerIdTaken, MailboxMoved
from swarm.core.keys import parse_beat
from swarm.core.lines import encode
from swarm.core.manifest import Manifest
from swarm.core.records import Beat, LearnerRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.membership import Pulse, take
from swarm.runtime.patience import Patience
from swarm.runtime.watch import Watch
from tests.integration.simulation import Learner, Machines, VirtualLoop, new_run, together, virtually

SPEC = DiLoCo(sync_every=4, quorum_size=2, beat_s=1.0, lease_s=6.0)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def record_of(name: str, *, machine: str = "m", pid: int = 1) -> LearnerRecord:
    return LearnerRecord(
        learner=name, incarnation=1, machine=machine, machine_name=machine, boot="b", pid=pid, process=str(pid), version="0"
    )


class Place:
    def __init__(self, store: MemoryStore, manifest: Manifest) -> None:
        self.store, self.manifest = store, manifest
        self.exchange = Exchange(MemoryMailbox(store), manifest)

    @classmethod
    async def of(cls, spec: DiLoCo = SPEC) -> Place:
        store = MemoryStore()
        return cls(store, await new_run(store, spec, rounds=None))

    async def take(self, record: LearnerRecord, mailbox: Mailbox | None = None, **options: Any) -> LearnerRecord:
        mailbox = mailbox or MemoryMailbox(self.store)
        exchange = Exchange(mailbox, self.manifest)
        given = {"gone": lambda other: False, "alive": lambda other: False, "may_rename": False, **options}
        return await take(exchange, record, patience=Patience(mailbox, lambda event: None), **given)

    def beat(self, learner: str, incarnation: int, n: int, phase: Any = "train") -> None:
        key = self.exchange.keys.beat(learner, incarnation, n)
        self.store.objects[key] = encode(Beat(phase=phase), nonce=str(n))

    def beats(self, learner: str) -> list[tuple[int, int]]:
        found = [parse_beat(key) for key in self.store.objects]
        return sorted((k, n) for named in found if named is not None for name, k, n in [named] if name == learner)


def test_an_id_is_free_at_once_if_nobody_had_it_or_its_holder_left_or_is_provably_gone() -> None:
    async def main() -> None:
        place = await Place.of()
        started_s = now_s()
        assert (await place.take(record_of("a"))).incarnation == 1
        place.beat("a", 1, 0, "left")
        assert (await place.take(record_of("a", machine="other"))).incarnation == 2
        place.beat("a", 2, 7)
        asked: list[LearnerRecord] = []
        third = await place.take(record_of("a"), gone=lambda other: asked.append(other) or True)
        assert third.incarnation == 3
        assert [(other.machine, other.incarnation) for other in asked] == [("other", 2)]
        assert now_s() == started_s
        stored = await place.exchange.learner("a", 3)
        assert stored == third

    virtually(main())


def test_a_holder_that_left_once_and_came_back_is_not_gone() -> None:
    async def main() -> None:
        place = await Place.of()
        await place.take(record_of("a"))
        place.beat("a", 1, 0, "left")
        await place.take(record_of("a"))
        with pytest.raises(LearnerIdTaken):
            await place.take(record_of("a"), alive=lambda other: other.incarnation == 2)

    virtually(main())


def test_an_id_is_taken_after_a_lease_without_a_beat() -> None:
    async def main() -> None:
        place = await Place.of()
        await place.take(record_of("a", machine="other"))
        place.beat("a", 1, 3)
        started_s = now_s()
        assert (await place.take(record_of("a"))).incarnation == 2
        assert SPEC.lease_s <= now_s() - started_s < SPEC.lease_s + 2

    virtually(main())


def test_an_id_whose_holder_beats_is_taken_or_renamed() -> None:
    async def main() -> None:
        place = await Place.of()
        await place.take(record_of("a", machine="other"))
        await place.take(record_of("a-2", machine="other"))
        patience = Patience(place.exchange.mailbox, lambda event: None)
        pulse = Pulse(place.exchange, record_of("a"), lambda: Beat(phase="train"), patience=patience)
        beating = asyncio.create_task(pulse.run())
        with pytest.raises(LearnerIdTaken, match="'a-3' is free"):
            await place.take(record_of("a"))
        assert (await place.take(record_of("a"), may_rename=True)).learner == "a-3"
        beating.cancel()

    virtually(main())


def test_of_two_that_rename_themselves_at_once_each_gets_an_id_of_its_own() -> None:
    async def main() -> None:
        place = await Place.of()
        await place.take(record_of("a", machine="other"))
        options = {"alive": lambda other: True, "may_rename": True}
        taken = await asyncio.gather(*(place.take(record_of("a", machine=f"m{n}"), **options) for n in range(4)))
        assert sorted(t.learner for t in taken) == ["a-2", "a-3", "a-4", "a-5"]
        assert {t.incarnation for t in taken} == {1}

    virtually(main())


def test_of_two_that_take_one_id_at_once_one_waits_for_the_other() -> None:
    async def main() -> None:
        place = await Place.of()
        first, second = await asyncio.gather(*(place.take(record_of("a", machine=f"m{n}")) for n in range(2)))
        assert {first.incarnation, second.incarnation} == {1, 2}

    virtually(main())


@pytest.mark.parametrize("outage_s", [3.0, 5.0, 50.0])
def test_nobody_is_taken_for_gone_while_the_share_is_away(outage_s: float) -> None:
    async def main() -> None:
        place = await Place.of()
        await place.take(record_of("a", machine="other"))
        place.beat("a", 1, 0)
        box = FaultyMailbox(MemoryMailbox(place.store))
        started_s = now_s()
        taking = asyncio.create_task(place.take(record_of("a"), box))
        await asyncio.sleep(4)
        fault = Fault("fail", count=None)
        box.plan.append(fault)
        await asyncio.sleep(outage_s)
        box.plan.remove(fault)
        back_s = now_s()
        if outage_s == 50.0:  # the holder was there all the time, and is heard again
            place.beat("a", 1, 9)
            with pytest.raises(LearnerIdTaken):
                await taking
        else:
            assert (await taking).incarnation == 2
            assert now_s() >= back_s + SPEC.lease_s - 2
            assert now_s() >= started_s + 4 + outage_s + SPEC.lease_s - 2

    virtually(main())


@pytest.mark.parametrize("how", ["the share hangs", "this machine sleeps"])
def test_a_gap_between_two_looks_starts_the_lease_anew(how: str) -> None:
    async def main() -> None:
        place = await Place.of()
        await place.take(record_of("a", machine="other"))
        place.beat("a", 1, 0)
        box = FaultyMailbox(MemoryMailbox(place.store))
        taking = asyncio.create_task(place.take(record_of("a"), box))
        await asyncio.sleep(4)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if how == "the share hangs":
            box.plan.append(Fault("delay", op="list", wait=lambda: asyncio.sleep(100)))
            await asyncio.sleep(100)
        else:
            loop.now_s += 100
        back_s = now_s()
        await taking
        assert SPEC.lease_s <= now_s() - back_s < SPEC.lease_s + 2

    virtually(main())


@pytest.mark.parametrize("kind", ["lose", "fail"])
def test_a_lost_reply_to_the_registration_makes_no_second_incarnation(kind: Any) -> None:
    async def main() -> None:
        place = await Place.of()
        box = FaultyMailbox(MemoryMailbox(place.store), [Fault(kind, op="create", key="learners/")])
        assert (await place.take(record_of("a"), box)).incarnation == 1
        assert await place.exchange.incarnations("a") == [1]

    virtually(main())


def test_a_holder_whose_record_cannot_be_read_is_judged_by_its_beats() -> None:
    async def main() -> None:
        place = await Place.of()
        await place.take(record_of("a", machine="other"))
        place.store.objects[place.exchange.keys.learner("a", 1)] = b"rubbish"
        started_s = now_s()
        assert (await place.take(record_of("a"))).incarnation == 2
        assert now_s() - started_s >= SPEC.lease_s

    virtually(main())


def test_a_learner_leaves_no_more_than_its_last_beats_behind() -> None:
    async def main() -> None:
        place = await Place.of()
        for n in range(8):
            place.beat("a", 1, n)  # an earlier incarnation's
        for n in range(3):
            place.beat("b", 1, n)
        box = FaultyMailbox(MemoryMailbox(place.store))
        record = LearnerRecord(
            learner="a", incarnation=2, machine="m", machine_name="m", boot="b", pid=1, process="1", version="0"
        )
        patience = Patience(box, lambda event: None)
        pulse = Pulse(Exchange(box, place.manifest), record, lambda: Beat(phase="train"), patience=patience)
        await pulse.beat()
        assert place.beats("a") == [(2, 0)]
        for _ in range(5):
            await pulse.beat()
        assert place.beats("a") == [(2, 3), (2, 4), (2, 5)]
        calls = len(box.calls)
        await pulse.beat()
        assert [op for op, _ in box.calls[calls:]] == ["put", "delete"], "an everyday beat costs two calls"
        box.plan += [Fault("fail", op="delete", count=4), Fault("lose", op="put", skip=5, count=2)]
        beating = asyncio.create_task(pulse.run())
        await asyncio.sleep(20)
        beating.cancel()
        assert len(place.beats("a")) == 3
        assert len(place.beats("b")) == 3

    virtually(main())


def test_beats_that_fail_for_another_reason_than_the_share_end_the_pulse() -> None:
    async def main() -> None:
        place = await Place.of()
        box = FaultyMailbox(MemoryMailbox(place.store), [Fault("fail", count=2), Fault("fail", error=MailboxMoved)])
        patience = Patience(box, lambda event: None)
        pulse = Pulse(Exchange(box, place.manifest), record_of("a"), lambda: Beat(phase="train"), patience=patience)
        with pytest.raises(MailboxMoved):
            await pulse.run()

    virtually(main())


def test_a_learner_killed_over_and_over_costs_no_more_at_each_poll() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, beat_s=1.0, lease_s=6.0), rounds=None)
        for _ in range(8):
            life = asyncio.create_task(Learner(store, manifest, "a", machines).live())
            await asyncio.sleep(4.5)
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
        assert len(await Exchange(MemoryMailbox(store), manifest).incarnations("a")) == 8
        assert len([key for key in store.objects if "/beats/" in key]) <= 4

    virtually(main())


def test_when_every_machine_slept_nobody_is_given_up() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=12)
        learners = [Learner(store, manifest, name, machines, step_s=0.1 + 0.01 * n) for n, name in enumerate("abc")]
        lives = [asyncio.create_task(x.live()) for x in learners]
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for at_s in (0.77, 0.33, 1.21, 0.9):
            await asyncio.sleep(at_s)
            loop.now_s += 36_000
        assert await together(*lives) == ["done"] * 3
        exchange = Exchange(MemoryMailbox(store), manifest)
        for round in range(12):
            record = await exchange.round(round)
            assert record is not None
            assert [p.learner for p in record.participants] == ["a", "b", "c"]

    virtually(main())


async def watched(grace_s: float | None = 3.0) -> tuple[Place, Watch]:
    place = await Place.of(DiLoCo(sync_every=4, quorum_size=1, grace_s=grace_s, beat_s=1.0, lease_s=6.0))
    return place, Watch(place.exchange)


def test_the_grace_does_not_run_while_the_share_is_away() -> None:
    async def main() -> None:
        place, watch = await watched()
        reporter = Learner(place.store, place.manifest, "a", Machines())
        for name in ("a", "b"):
            place.beat(name, 1, 0)
        base = place.manifest.init[0].sha256
        await watch.observe(0)
        await reporter.exchange.publish(snapshot_of(reporter, base), reporter.adapter.snapshot())

        async def decided() -> str:
            await watch.observe(0)
            return watch.decide(0, base_sha256=base).reason

        assert await decided() == "grace for b"
        await asyncio.sleep(1)
        assert await decided() == "grace for b"
        await asyncio.sleep(100)  # away
        for n in range(6):
            place.beat("b", 1, n + 1)
            assert await decided() == "grace for b", "it comes back within a lease, and may report then"
            await asyncio.sleep(0.9)
        await asyncio.sleep(0.9)
        assert await decided() == "the grace is over"

    virtually(main())


def snapshot_of(learner: Learner, base_sha256: str) -> Any:
    from swarm.core.manifest import PayloadRef
    from swarm.core.records import Snapshot

    return Snapshot(
        round=0,
        fragment=0,
        learner=learner.name,
        incarnation=1,
        unit=learner.name,
        base_sha256=base_sha256,
        schema_sha256=learner.exchange.schema.digest,
        dtype=None,
        payload=PayloadRef(round=0, sha256="0" * 64, size_bytes=0),
        tokens=1,
        steps=1,
        train_loss=None,
        seconds_s=1.0,
    )


def test_a_grace_that_ran_out_in_vain_makes_the_next_one_no_longer() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, quorum_size=1, beat_s=1.0, lease_s=20.0), rounds=12)
        fast = Learner(store, manifest, "fast", machines)
        asleep = Learner(store, manifest, "slow", machines, step_s=1e6)  # beats, and never reports
        other = asyncio.create_task(asleep.live())
        await asyncio.sleep(1)
        assert await fast.live() == "done"
        other.cancel()
        exchange = Exchange(MemoryMailbox(store), manifest)
        records = [await exchange.round(r) for r in range(12)]
        waited = [record.waited_s for record in records if record is not None]
        assert waited[0] >= 20, "no history: a lease"
        assert all(1 <= w < 2 for w in waited[1:]), "the shortest grace"
        assert [record.quorum_waited_s for record in records if record is not None] == [0.0] * 12

    virtually(main())


def test_what_is_being_fetched_is_kept_but_not_for_ever() -> None:
    async def main() -> None:
        place, watch = await watched()
        sha256 = "ab" * 32
        key = place.exchange.keys.beat("b", 1, 0)
        place.store.objects[key] = encode(Beat(phase="pull", fetching=(sha256,)), nonce="x")
        for n in range(700):
            if n % 5 == 0:
                key = place.exchange.keys.beat("b", 1, n)
                place.store.objects[key] = encode(Beat(phase="pull", fetching=(sha256,)), nonce=str(n))
            await watch.observe(0)
            assert watch.fetching == (frozenset({sha256}) if n < SPEC.keep_s else frozenset())
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        for _ in range(8):
            await watch.observe(0)
            await asyncio.sleep(1)
        place.beat("b", 1, 10_000)
        await watch.observe(0)
        assert watch.fetching == frozenset()

    virtually(main())
