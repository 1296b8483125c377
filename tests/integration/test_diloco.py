"""Several learners in one run: rounds, quorum, death, takeover, joining and leaving, in virtual time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from swarm.core.errors import LearnerIdTaken, RunEnded, SchemaMismatch, Superseded
from swarm.core.events import RoundClosed, Waiting
from swarm.core.records import Control, Role, RoundRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.simulation import Learner, Machines, model, new_run, together, virtually

SPEC = DiLoCo(sync_every=4, quorum_size=2, beat_s=0.5, lease_s=2.0)


async def tape(store: MemoryStore, manifest) -> list[RoundRecord]:
    exchange = Exchange(MemoryMailbox(store), manifest)
    newest = await exchange.newest_round()
    records = [await exchange.round(r) for r in range(newest + 1)]
    assert all(records)
    return records  # type: ignore[return-value]


@pytest.mark.parametrize("fragments", [1, 2, 3])
@pytest.mark.parametrize("overlap", [0, 1])
def test_two_learners_take_part_in_every_round_and_end_with_the_same_parameters(fragments: int, overlap: int) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, fragments=fragments, overlap_steps=overlap, quorum_size=2, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=6)
        a, b = Learner(store, manifest, "a", machines), Learner(store, manifest, "b", machines, step_s=0.15)
        assert await together(a.live(), b.live()) == ["done", "done"]
        records = await tape(store, manifest)
        assert [r.round for r in records] == list(range(6))
        assert all([p.learner for p in r.participants] == ["a", "b"] and not r.rejected for r in records)
        assert a.params == b.params != ""
        assert all(r.version == r.round for r in records)

    virtually(main())


def test_the_evaluation_is_made_once_a_round() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=5)
        learners = [Learner(store, manifest, name, machines) for name in "abc"]
        await together(*(x.live() for x in learners))
        exchange = Exchange(MemoryMailbox(store), manifest)
        assert await exchange.evals_after(-1) == [0, 1, 2, 3, 4]

    virtually(main())


@pytest.mark.parametrize("at_s", [0.7, 1.0, 1.3, 2.2, 3.1])
def test_a_killed_learner_stops_nobody(at_s: float) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=8)
        a, b = Learner(store, manifest, "a", machines), Learner(store, manifest, "b", machines)
        killed = asyncio.create_task(b.live())
        surviving = asyncio.create_task(a.live())
        await asyncio.sleep(at_s)
        killed.cancel()
        died_s = asyncio.get_running_loop().time()
        assert await surviving == "done"
        # Eight rounds of 0.4 s, and one lease until the dead one is given up.
        assert asyncio.get_running_loop().time() - died_s < 8 * 0.5 + 3 * SPEC.lease_s
        assert len(await tape(store, manifest)) == 8

    virtually(main())


def test_round_0_waits_for_the_starters_and_says_so() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=2)
        a = Learner(store, manifest, "a", machines)
        alone = asyncio.create_task(a.live())
        await asyncio.sleep(20)
        assert await tape(store, manifest) == []
        assert Waiting(round=0, reason="waiting for 1 more learner") in a.events
        b = Learner(store, manifest, "b", machines)
        assert await together(alone, b.live()) == ["done", "done"]
        assert [len(r.participants) for r in await tape(store, manifest)] == [2, 2]

    virtually(main())


def test_a_restarted_learner_of_the_same_machine_takes_its_id_over_at_once() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=12)
        a, b = Learner(store, manifest, "a", machines), Learner(store, manifest, "b", machines)
        first, other = asyncio.create_task(b.live()), asyncio.create_task(a.live())
        await asyncio.sleep(1.5)
        first.cancel()
        await asyncio.sleep(0)
        again = Learner(store, manifest, "b", machines)
        second = asyncio.create_task(again.live())
        await asyncio.sleep(0.1)
        assert again.inner is not None, "joined within the time of one step"
        assert again.participant.me.incarnation == 2
        assert await together(second, other) == ["done", "done"]
        assert all(len(r.participants) == 2 for r in (await tape(store, manifest))[-3:])
        assert a.params == again.params

    virtually(main())


def test_a_live_id_is_refused_with_a_free_one_suggested() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=30)
        a = asyncio.create_task(Learner(store, manifest, "a", machines).live())
        b = asyncio.create_task(Learner(store, manifest, "b", machines).live())
        await asyncio.sleep(1)
        for machine in ("machine-a", "another machine"):
            with pytest.raises(LearnerIdTaken, match="'a-2' is free"):
                await Learner(store, manifest, "a", machines, machine=machine).live()
        renamed = Learner(store, manifest, "a", machines, machine="another machine", may_rename=True)
        c = asyncio.create_task(renamed.live())
        assert await together(a, b, c) == ["done"] * 3
        assert renamed.participant.me.learner == "a-2"

    virtually(main())


def test_another_machine_takes_an_id_over_when_its_lease_is_stale() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, beat_s=0.5, lease_s=2.0), rounds=4)
        a = asyncio.create_task(Learner(store, manifest, "a", machines).live())
        await asyncio.sleep(0.5)
        a.cancel()
        await asyncio.sleep(0)
        started_s = asyncio.get_running_loop().time()
        taking = Learner(store, manifest, "a", machines, machine="another machine")
        assert await taking.live() == "done"
        assert taking.participant.me.incarnation == 2
        assert asyncio.get_running_loop().time() - started_s >= SPEC.lease_s

    virtually(main())


def test_a_superseded_process_stops() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, beat_s=0.5, lease_s=2.0), rounds=100)
        old = Learner(store, manifest, "a", machines)
        first = asyncio.create_task(old.live())
        await asyncio.sleep(1)
        machines.running.discard(old.pid)  # as if it could be proved
        new = Learner(store, manifest, "a", machines)
        second = asyncio.create_task(new.live())
        with pytest.raises(Superseded):
            await first
        new.leaving = True
        assert await second == "left"

    virtually(main())


def test_a_wrong_schema_is_refused_before_anything_is_written() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=3)
        wrong = Learner(store, manifest, "a", machines)
        other = model(1)
        other["a.weight"] = other["a.weight"].T.copy()
        wrong.participant.schema = NumpyAdapter(other).schema()
        before = dict(store.objects)
        with pytest.raises(SchemaMismatch, match=r"model does not match the run's schema: a\.weight"):
            await wrong.live()
        assert store.objects == before

    virtually(main())


@pytest.mark.parametrize("role", ["both", "learner"])
@pytest.mark.parametrize("fragments", [1, 2])
def test_a_poisoned_delta_never_reaches_theta(fragments: int, role: Role) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, msgspec.structs.replace(SPEC, fragments=fragments), rounds=4)
        a = Learner(store, manifest, "a", machines)
        b = Learner(store, manifest, "b", machines, poison=True, role=role)
        assert b.participant.gives_away == (role == "learner")
        assert await together(a.live(), b.live()) == ["done", "done"]
        for record in await tape(store, manifest):
            if "b.bias" in a.exchange.plan[record.fragment]:
                assert [p.learner for p in record.participants] == ["a"]
                assert [(r.learner, r.reason) for r in record.rejected] == [("b", "nonfinite")]
            else:
                assert ([p.learner for p in record.participants], record.rejected) == (["a", "b"], ())
        assert a.params == b.params

    virtually(main())


def test_zero_tokens_from_all_leave_theta_as_it_was() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=3)
        learners = [Learner(store, manifest, name, machines, tokens=0) for name in "ab"]
        assert await together(*(x.live() for x in learners)) == ["done", "done"]
        for record in await tape(store, manifest):
            assert not record.participants
            assert {r.reason for r in record.rejected} == {"tokens"}
            assert record.theta == manifest.init[0]
            assert record.version == -1

    virtually(main())


def test_a_slow_learner_is_late_and_the_next_record_says_so() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, quorum_size=1, start_learners=2, grace_s=0.2, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=10)
        fast, slow = Learner(store, manifest, "fast", machines), Learner(store, manifest, "slow", machines, step_s=0.35)
        assert await together(fast.live(), slow.live()) == ["done", "done"]
        records = await tape(store, manifest)
        assert all("fast" in [p.learner for p in r.participants] for r in records)
        assert fast.params == slow.params

    virtually(main())


@pytest.mark.parametrize("fragments", [1, 2])
def test_a_machine_ten_times_slower_takes_part_with_what_it_did(fragments: int) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=10, fragments=fragments, start_learners=2, beat_s=0.5, lease_s=3.0)
        manifest = await new_run(store, spec, rounds=12)
        fast, slow = Learner(store, manifest, "fast", machines), Learner(store, manifest, "slow", machines, step_s=1.0)
        assert await together(fast.live(), slow.live()) == ["done", "done"]
        records = await tape(store, manifest)
        took_part = [{p.learner: p.steps for p in r.participants} for r in records]
        assert all("fast" in steps for steps in took_part)
        assert sum("slow" in steps for steps in took_part) >= 10
        # The rounds keep the pace of the fast one, not that of the slow one.
        assert max(steps.get("slow", 0) for steps in took_part[1:]) < 10
        assert fast.params == slow.params

    virtually(main())


def test_a_stop_flushes_what_there_is_and_ends_the_run_for_everybody() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=1000, quorum_size=2, beat_s=0.5, lease_s=2.0), rounds=None)
        a, b = Learner(store, manifest, "a", machines), Learner(store, manifest, "b", machines)
        running = [asyncio.create_task(x.live()) for x in (a, b)]
        await asyncio.sleep(5)
        await a.exchange.control(Control(action="stop", by="me"))
        assert await together(*running) == ["stopped", "stopped"]
        (record,) = await tape(store, manifest)
        assert record.control == 1
        assert [p.steps > 0 for p in record.participants] == [True, True]
        with pytest.raises(RunEnded):
            await Learner(store, manifest, "c", machines).live()

    virtually(main())


def test_a_command_that_cannot_be_read_is_passed_over() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, beat_s=0.5, lease_s=2.0), rounds=None)
        a = Learner(store, manifest, "a", machines)
        store.objects[a.exchange.keys.control_record(1)] = b"junk\n"
        running = asyncio.create_task(a.live())
        await asyncio.sleep(2)
        assert not running.done()
        assert await a.exchange.control(Control(action="stop")) == 2
        assert await running == "stopped"
        assert (await tape(store, manifest))[-1].control == 2

    virtually(main())


def test_an_idle_run_goes_on_with_whoever_joins() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, beat_s=0.5, lease_s=2.0), rounds=6)
        a = Learner(store, manifest, "a", machines)
        first = asyncio.create_task(a.live())
        await asyncio.sleep(1.3)
        a.leaving = True
        assert await first == "left"
        done = len(await tape(store, manifest))
        assert 0 < done < 6
        await asyncio.sleep(1000)
        assert await Learner(store, manifest, "b", machines).live() == "done"
        records = await tape(store, manifest)
        assert [p.learner for p in records[-1].participants] == ["b"]

    virtually(main())


def test_disk_use_is_bounded() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, fragments=2, quorum_size=2, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=40)
        learners = [Learner(store, manifest, name, machines) for name in "ab"]
        await together(*(x.live() for x in learners))
        rounds = {key.split("/")[4] for key in store.objects if "/blobs/rounds/" in key}
        snapshots = {key.split("/")[3] for key in store.objects if "/snapshots/" in key and "/blobs/" not in key}
        assert len(rounds) <= 3 * 2 + 1
        assert len(snapshots) <= 3 * 2 + 1
        assert sum("/rounds/" in key and key.endswith("record.json") for key in store.objects) == 40
        assert sum("/beats/" in key for key in store.objects) <= 2 * 4

    virtually(main())


def test_a_learner_that_slept_catches_up_in_one_step() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, fragments=2, quorum_size=1, grace_s=0.1, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=160)
        a = Learner(store, manifest, "a", machines)
        b = Learner(store, manifest, "b", machines, step_s=30.0)
        assert await together(a.live(), b.live()) == ["done", "done"]
        assert a.params == b.params
        assert sum(isinstance(e, RoundClosed) for e in b.events) <= 160

    virtually(main())
