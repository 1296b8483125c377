"""Updates at the commit_dtype, and outer state of few bits: who fetches what, and numbers that do not fit."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest

from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration import simulation
from tests.integration.closing_by_hand import SPEC, Bench, run_of, small
from tests.integration.roles import tape
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.wrappers import Stopped


@pytest.mark.parametrize("commit_dtype", ["F8_E4M3", "BF16", "F4"])
def test_a_reader_that_holds_the_theta_before_rebuilds_the_new_one_from_the_update(commit_dtype: Any) -> None:
    async def main() -> None:
        rng = np.random.default_rng(0)
        big = {"w": rng.standard_normal((64, 32)).astype(np.float32), "v": np.ones(7, np.float32)}
        bench = await run_of(NumpyAdapter(big), msgspec.structs.replace(SPEC, commit_dtype=commit_dtype))
        store, manifest = bench.store, bench.manifest
        held: tuple[str, Any] = (bench.base.sha256, await bench.theta())
        stale = held
        for round in range(3):
            delta = {name: rng.standard_normal(array.shape).astype(np.float32) for name, array in big.items()}
            await bench.publish("a", delta, round=round)
            closed = await bench.close(round)
            assert closed is not None
            record = bench.before = closed.record
            assert record.update is not None
            theta = await bench.theta()
            for have, size_bytes in (
                (held, record.update.size_bytes),
                (None, record.theta.size_bytes),
                (("1" * 64, held[1]), record.theta.size_bytes),  # of which nothing is known
                ((held[0], theta), record.update.size_bytes + record.theta.size_bytes),  # which is not what it says
            ):
                reader = Exchange(MemoryMailbox(store), manifest)
                found = await reader.fetch_theta(0, record, have)
                assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in theta.items()}
                assert reader.received_bytes == size_bytes
            held = (record.theta.sha256, theta)
        # Two rounds behind: the update leads from somewhere else.
        reader = Exchange(MemoryMailbox(store), manifest)
        await reader.fetch_theta(0, bench.before, stale)
        assert bench.before is not None
        assert reader.received_bytes == bench.before.theta.size_bytes
        # Gone or damaged: there is the theta.
        assert bench.before.update is not None
        key = bench.exchange.key_of(0, bench.before.update)
        before = (await bench.exchange.round(1)) or bench.before
        held = (before.theta.sha256, await bench.exchange.fetch(0, before.theta))
        for damage in (lambda: store.objects.update({key: store.objects[key][:-1]}), lambda: store.objects.pop(key)):
            damage()
            found = await reader.fetch_theta(0, bench.before, held)
            assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in theta.items()}
        assert await reader.fetch_theta(0, None) is not None

    virtually(main())


def test_who_follows_fetches_updates_and_who_was_asleep_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "SHAPES", {"a.weight": (64, 40), "b.bias": (6,)})

    async def main(sleeps: bool) -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(
            sync_every=4, quorum_size=1, start_learners=2, grace_s=0.5, beat_s=0.5, lease_s=2.0, commit_dtype="F8_E4M3"
        )
        manifest = await new_run(store, spec, rounds=30)
        box = Stopped(MemoryMailbox(store))
        a = Learner(store, manifest, "a", machines)
        b = Learner(store, manifest, "b", machines, role="learner", wrap=lambda _: box)
        lives = [asyncio.create_task(x.live()) for x in (a, b)]
        if sleeps:
            await asyncio.sleep(1.0)
            before = b.participant.newest
            box.runs.clear()
            await asyncio.sleep(5 * spec.lease_s)
            missed = a.participant.newest - before
            assert 1 < missed < 25
            box.runs.set()
        assert await together(*lives) == ["done", "done"]
        assert a.params == b.params != ""
        records = await tape(store, manifest)
        theta_bytes, update_bytes = manifest.init[0].size_bytes, max(r.update.size_bytes for r in records if r.update)
        assert update_bytes < theta_bytes / 3
        received = [record.update.size_bytes for record in records if record.update]
        if not sleeps:
            assert b.exchange.received_bytes == theta_bytes + sum(received)
        else:
            followed = b.exchange.received_bytes - 2 * theta_bytes
            assert sum(received) - (missed + 2) * update_bytes <= followed <= sum(received) - (missed - 2) * update_bytes

    virtually(main(sleeps=False))
    virtually(main(sleeps=True))


@pytest.mark.parametrize("dtypes", [{"commit_dtype": "F16"}, {"momentum_dtype": "F16"}])
def test_steps_too_large_for_16_bits_are_refused_largest_first_and_the_next_round_goes_on(dtypes: dict[str, Any]) -> None:
    async def main() -> None:
        first = await Bench.of(msgspec.structs.replace(SPEC, **dtypes))
        second, without = first.copy(), first.copy()
        for bench in (first, second, without):
            await bench.publish("b")
            await bench.publish("d", small("d", 2e-3))
        for bench in (first, second):
            await bench.publish("a", small("a", 1e6))
            await bench.publish("c", small("c", 1e7))
        closed = [await first.close(), await second.close(order=-1), await without.close()]
        assert closed[0] is not None
        assert closed[1] is not None
        assert closed[2] is not None
        assert [(r.learner, r.reason) for r in closed[0].record.rejected] == [("c", "norm"), ("a", "norm")]
        assert [p.learner for p in closed[0].record.participants] == ["b", "d"]
        assert closed[0].record.rejected == closed[1].record.rejected
        for other in closed[1:]:
            assert other is not None
            mine = closed[0].record
            assert (mine.theta, mine.outer, mine.update) == (other.record.theta, other.record.outer, other.record.update)
        # Nobody else: the round changes nothing, and the one after it does again.
        first.before = closed[0].record
        await first.publish("a", small("a", 1e6), round=1)
        alone = await first.close(1)
        assert alone is not None
        assert (alone.record.theta, alone.record.outer, alone.record.version) == (first.base, first.before.outer, 0)
        assert [(r.learner, r.reason) for r in alone.record.rejected] == [("a", "norm")]
        first.before = alone.record
        await first.publish("a", round=2)
        after = await first.close(2)
        assert after is not None
        assert (after.record.version, after.record.rejected) == (2, ())

    virtually(main())
