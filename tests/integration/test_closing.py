"""Closing a round: what counts, what is refused and why, and that two closers write the same bytes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from swarm.core.errors import MailboxMoved, PayloadMissing, SchemaMismatch
from swarm.core.events import Trouble
from swarm.core.lines import encode
from swarm.core.records import Claim, RejectReason, RoundRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.closing import Closer
from tests.integration.closing_by_hand import SPEC, Bench, at, me, small
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.wrappers import Wrapped


@pytest.mark.parametrize("merge", ["mean", "rda"])
@pytest.mark.parametrize("commit_dtype", [None, "BF16", "F4"])
@pytest.mark.parametrize("dtype", [None, "F32", "BF16", "F16", "F8_E4M3", "F4"])
def test_two_closers_write_the_same_payloads(dtype: Any, commit_dtype: Any, merge: Any) -> None:
    async def main() -> None:
        names = ["ann", "ann-2", "bob", "di"]  # byte order of the keys is another one
        spec = msgspec.structs.replace(SPEC, delta_dtype=dtype, commit_dtype=commit_dtype, merge=merge)
        first = await Bench.of(spec)
        benches = [first, *(first.copy() for _ in range(3))]
        for round in range(2):  # the second one begins with momenta, and maybe masters
            for bench, order in zip(benches, itertools.permutations(names), strict=False):
                for name in order:
                    delta = at(dtype, small(name, 1e-3 * (round + 1)))
                    await bench.publish(name, delta, round=round, dtype=dtype, tokens=100 * len(name), steps=3)
            closed = [await bench.close(round, by=f"m{n}", order=1 - 2 * (n % 2)) for n, bench in enumerate(benches)]
            assert all(closed)
            refs = [(c.record.theta, c.record.outer, c.record.update) for c in closed if c]
            assert refs == refs[:1] * 4
            assert (refs[0][2] is None) == (commit_dtype is None)
            assert all([p.unit for p in c.record.participants] == names for c in closed if c)
            assert len(first.payloads(round)) == (2 if commit_dtype is None else 3)
            for bench, mine in zip(benches, closed, strict=True):
                assert bench.payloads(round) == first.payloads(round)
                bench.before = mine.record if mine else None
            assert mine is not None
            assert mine.theta is not None
            fetched = await first.theta()
            assert {k: v.tobytes() for k, v in fetched.items()} == {k: v.tobytes() for k, v in mine.theta.items()}

    virtually(main())


def test_the_record_tells_the_length_of_each_delta() -> None:
    async def main() -> None:
        for merge, limit in (("mean", None), ("rda", None), ("mean", 1e6)):
            bench = await Bench.of(msgspec.structs.replace(SPEC, merge=merge, max_delta_norm=limit))
            for name in ("a", "b"):
                await bench.publish(name)
            closed = await bench.close()
            assert closed is not None
            for p in closed.record.participants:
                expected = np.sqrt(sum(np.square(array, dtype=float).sum() for array in small(p.learner).values()))
                assert p.delta_norm == pytest.approx(expected, rel=1e-5)

    virtually(main())


def test_a_delta_longer_than_the_limit_is_refused_and_one_that_is_not_counts() -> None:
    async def main() -> None:
        norm = float(np.sqrt(sum(np.square(array, dtype=float).sum() for array in small("a").values())))
        bench = await Bench.of(msgspec.structs.replace(SPEC, max_delta_norm=2 * norm))
        alone = bench.copy()
        await alone.publish("a")
        expected = await alone.close()
        await bench.publish("a")
        await bench.publish("b", small("a", 2.1e-3))
        await bench.publish("c", small("a", 1e3))
        closed = await bench.close()
        assert closed is not None
        assert expected is not None
        assert [(r.learner, r.reason) for r in closed.record.rejected] == [("b", "norm"), ("c", "norm")]
        assert (closed.record.theta, closed.record.outer) == (expected.record.theta, expected.record.outer)

    virtually(main())


def test_a_delta_that_its_learner_found_not_finite_is_refused_without_being_fetched() -> None:
    async def main() -> None:
        bench = await Bench.of()
        await bench.publish("a")
        key = await bench.publish("x", {}, finite=False)
        del bench.store.objects[key]
        closed = await bench.close()
        assert closed is not None
        assert [(r.learner, r.reason) for r in closed.record.rejected] == [("x", "nonfinite")]

    virtually(main())


def test_many_bad_contributions_cost_one_more_pass() -> None:
    async def main() -> None:
        bench = await Bench.of()
        for n in range(6):
            await bench.publish(f"good-{n}")
        for n in range(6):
            await bench.publish(f"bad-{n}", nan(small("x")))
            await bench.publish(f"dull-{n}", payload=lambda data: data[:-1] + bytes([data[-1] ^ 1]))
        received_bytes = bench.exchange.received_bytes
        closed = await bench.close()
        assert closed is not None
        assert len(closed.record.participants) == 6
        assert len(closed.record.rejected) == 12
        size = closed.record.participants[0].size_bytes
        again = 6  # the damaged ones, which may have been damaged on their way only
        assert bench.exchange.received_bytes - received_bytes <= (18 + again + 6 + 1) * size  # the last one: Θ

    virtually(main())


def test_of_numbers_too_large_together_every_closer_leaves_out_the_same_ones() -> None:
    async def main() -> None:
        first = await Bench.of()
        second = first.copy()
        for bench in (first, second):
            for name, size, tokens in (("a", 3.4e38, 10**9), ("b", 1e-3, 100), ("c", 3.3e38, 10**9), ("d", 1.0, 100)):
                delta = small(name)
                delta["a.weight"][:] = np.float32(size)
                await bench.publish(name, delta, tokens=tokens)
        closed = [await bench.close(order=order) for bench, order in ((first, 1), (second, -1))]
        assert closed[0] is not None
        assert closed[1] is not None
        assert [r.reason for r in closed[0].record.rejected] == ["norm", "norm"]
        assert [r.learner for r in closed[0].record.rejected] == ["a", "c"]
        assert closed[0].record.rejected == closed[1].record.rejected
        assert closed[0].record.theta == closed[1].record.theta

    virtually(main())


def test_of_two_closers_at_once_one_commits_and_there_are_no_other_payloads() -> None:
    async def main() -> None:
        bench = await Bench.of()
        twin = Bench(bench.store, bench.manifest)
        for name in ("a", "b"):
            await bench.publish(name)
        closed = await asyncio.gather(bench.close(by="a"), twin.close(by="b", order=-1))
        (won,) = [c for c in closed if c is not None]
        assert len(bench.payloads()) == 2
        record = await Exchange(MemoryMailbox(bench.store), bench.manifest).round(0)
        assert record == won.record
        assert bench.payloads() == {
            bench.exchange.keys.round_blob(0, ref.sha256) for ref in (record.theta, record.outer) if ref is not None
        }

    virtually(main())


def nan(delta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    delta["b.bias"][2] = np.nan
    return delta


def huge(delta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    delta["b.bias"][2] = 3e38  # finite; with the momentum's share it is not
    return delta


async def twice(bench: Bench) -> None:
    await bench.publish("x", incarnation=1)
    await bench.publish("x", incarnation=2)


async def gone(bench: Bench) -> None:
    del bench.store.objects[await bench.publish("x")]


Build = Callable[[Bench], Awaitable[Any]]
REFUSED: dict[tuple[RejectReason, str], Build] = {
    ("stale", "base"): lambda b: b.publish("x", base_sha256="1" * 64),
    ("zero_steps", "none"): lambda b: b.publish("x", steps=0),
    ("tokens", "none"): lambda b: b.publish("x", tokens=0),
    ("schema", "another"): lambda b: b.publish("x", schema_sha256="1" * 64),
    ("schema", "dtype"): lambda b: b.publish("x", dtype="BF16"),
    ("schema", "fragment"): lambda b: b.publish("x", fragment=1),
    ("schema", "a tensor less"): lambda b: b.publish("x", {k: v for k, v in small("x").items() if k != "b.bias"}),
    ("schema", "another shape"): lambda b: b.publish("x", {k: v.T.copy() for k, v in small("x").items()}),
    ("schema", "another precision"): lambda b: b.publish("x", {k: v.astype(np.float16) for k, v in small("x").items()}),
    ("corrupt", "a bit"): lambda b: b.publish("x", payload=lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    ("corrupt", "cut off"): lambda b: b.publish("x", payload=lambda data: data[:-8]),
    ("corrupt", "longer"): lambda b: b.publish("x", payload=lambda data: data + bytes(8)),
    ("corrupt", "empty"): lambda b: b.publish("x", payload=lambda data: b""),
    ("missing", "payload"): gone,
    ("nonfinite", "nan"): lambda b: b.publish("x", nan(small("x"))),
    ("norm", "huge"): lambda b: b.publish("x", huge(small("x")), tokens=10**9),
    ("duplicate", "incarnations"): twice,
}


@pytest.mark.parametrize(("reason", "how"), REFUSED, ids=lambda value: value.replace(" ", "-"))
def test_what_is_refused_never_reaches_theta(reason: RejectReason, how: str) -> None:
    async def main() -> None:
        alone, beside = await Bench.of(), await Bench.of()
        await REFUSED[reason, how](alone)
        closed = await alone.close()
        assert closed is not None
        record = closed.record
        assert [(r.learner, r.unit, r.reason, r.round) for r in record.rejected] == [("x", "x", reason, 0)]
        if reason == "duplicate":  # one of the two counts
            assert [p.learner for p in record.participants] == ["x"]
        else:
            assert (record.participants, record.theta, record.outer, record.version) == ((), alone.base, None, -1)
            assert closed.theta is None
            assert alone.payloads() == set()
            honest = await Bench.of()
            await honest.publish("a")
            expected = await honest.close()
            await beside.publish("a")
            await REFUSED[reason, how](beside)
            both = await beside.close()
            assert both is not None
            assert expected is not None
            assert [r.reason for r in both.record.rejected] == [reason]
            assert [p.learner for p in both.record.participants] == ["a"]
            assert (both.record.theta, both.record.outer) == (expected.record.theta, expected.record.outer)

    virtually(main())


def test_a_snapshot_that_came_after_the_commit_is_listed_as_late_by_the_next_round() -> None:
    async def main() -> None:
        bench = await Bench.of()
        await bench.publish("a")
        await bench.publish("b", incarnation=1)
        await bench.publish("dud", steps=0)
        first = await bench.close()
        assert first is not None
        base = bench.base.sha256
        bench.before = first.record
        theta = bench.base
        await bench.publish("slow", base_sha256=base)
        await bench.publish("b", base_sha256=base, incarnation=2)  # the first one counted
        await bench.publish("a", round=1)
        second = await bench.close(1)
        assert second is not None
        late = [(r.learner, r.reason, r.round) for r in second.record.rejected]
        assert late == [("b", "late", 0), ("slow", "late", 0)]
        assert [p.learner for p in second.record.participants] == ["a"]
        twin = Bench(MemoryStore(), bench.manifest, before=first.record)
        twin.store.objects = {
            k: v for k, v in bench.store.objects.items() if "slow" not in k and k != bench.exchange.keys.round(1)
        }
        again = await twin.close(1)
        assert again is not None
        assert again.record.theta == second.record.theta != theta

    virtually(main())


def test_a_snapshot_for_another_round_is_stale() -> None:
    async def main() -> None:
        bench = await Bench.of()
        await bench.publish("x", round=5)
        place = bench.exchange.keys
        data = bench.store.objects.pop(place.snapshot(5, unit="x", learner="x", incarnation=1))
        bench.store.objects[place.snapshot(0, unit="x", learner="x", incarnation=1)] = data
        closed = await bench.close()
        assert closed is not None
        # The record's round is not its key's: whoever wrote it, it cannot be used.
        assert [r.reason for r in closed.record.rejected] == ["corrupt"]
        assert closed.record.theta == bench.base

    virtually(main())


def test_every_reason_is_tested() -> None:
    of_clients = {"unsampled"}  # test_clients.py
    assert {reason for reason, _ in REFUSED} | {"late"} | of_clients == set(get_args(RejectReason))


@pytest.mark.parametrize("size", [0, 2**52])
def test_a_payload_that_claims_an_absurd_size_is_corrupt_before_anything_is_allocated(size: int) -> None:
    async def main() -> None:
        bench = await Bench.of()
        await bench.publish("a")
        await bench.publish("x")
        place = bench.exchange.keys
        key = place.snapshot(0, unit="x", learner="x", incarnation=1)
        snapshot = (await bench.exchange.snapshots(0, {}))[key]
        assert snapshot is not None
        lying = msgspec.structs.replace(snapshot, payload=msgspec.structs.replace(snapshot.payload, size_bytes=size))
        bench.store.objects[key] = encode(lying, nonce="x")
        closed = await bench.close()
        assert closed is not None
        assert [(r.learner, r.reason) for r in closed.record.rejected] == [("x", "corrupt")]

    virtually(main())


def test_a_round_is_not_closed_upon_one_that_is_gone() -> None:
    async def main() -> None:
        bench = await Bench.of()
        await bench.publish("a")
        first = await bench.close()
        assert first is not None
        bench.before = first.record
        await bench.publish("a", round=1)
        del bench.store.objects[bench.exchange.keys.round(0)]
        before = dict(bench.store.objects)
        with pytest.raises(MailboxMoved, match="gone"):
            await bench.close(1)
        assert bench.store.objects == before

    virtually(main())


class Stuck(Wrapped):
    """Storing what a round changes never ends; beats go on."""

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if op == "put" and not key:
            result = await call()
            if "/blobs/rounds/" in result:
                await asyncio.Event().wait()
            return result
        return await call()


def test_a_closer_that_beats_and_gets_nowhere_is_overtaken() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, quorum_size=2, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=3)
        # Whoever reports last closes.
        stuck = Learner(store, manifest, "a", machines, step_s=0.13, wrap=Stuck)
        other = Learner(store, manifest, "b", machines)
        life = asyncio.create_task(stuck.live())
        started_s = asyncio.get_running_loop().time()
        ending = asyncio.create_task(other.live())
        for _ in range(1000):
            await asyncio.sleep(0.1)
            if other.participant.newest >= 0:
                break
        assert other.participant.newest >= 0
        assert asyncio.get_running_loop().time() - started_s < 4 * 0.13 + 2 * spec.lease_s
        record = await other.exchange.round(0)
        assert record is not None
        assert (record.closer, [p.learner for p in record.participants]) == ("b", ["a", "b"])
        claims = await other.exchange.claims(0)
        assert [claims[n].learner for n in sorted(claims)] == ["a", "b"]
        life.cancel()
        assert await ending == "done"

    virtually(main())


def test_a_closer_that_moves_is_not_overtaken() -> None:
    class Slow(Wrapped):
        """Stores a round's payloads in many pieces, with waits of less than a lease between them."""

        async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
            result = await call()
            if op == "put" and not key and "/blobs/rounds/" in result:
                for _ in range(5):
                    await asyncio.sleep(1.5)
                    closing.exchange.progress_bytes += 1
            return result

    async def main() -> None:
        nonlocal closing
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, quorum_size=2, beat_s=0.5, lease_s=2.0), rounds=1)
        closing = Learner(store, manifest, "a", machines, step_s=0.13, wrap=Slow)
        other = Learner(store, manifest, "b", machines)
        assert await together(closing.live(), other.live()) == ["done", "done"]
        assert {n: c.learner for n, c in (await other.exchange.claims(0)).items()} == {0: "a"}

    closing: Learner
    virtually(main())


def test_a_claim_of_an_earlier_incarnation_or_of_nobody_is_overtaken_at_once() -> None:
    async def main() -> None:
        bench = await Bench.of()
        closer = Closer(bench.exchange, msgspec.structs.replace(me("a"), incarnation=2))
        live = {("a", 2), ("b", 1)}

        def works(n: int, claim: Claim) -> bool:
            return (claim.learner, claim.incarnation) in live

        assert await bench.exchange.claim(0, 0, Claim(round=0, learner="a", incarnation=1))
        assert await closer.claim(0, works)
        assert await closer.claim(0, works), "asked again, as after a lost reply"
        assert sorted(await bench.exchange.claims(0)) == [0, 1]
        assert await bench.exchange.claim(0, 2, Claim(round=0, learner="b", incarnation=1))
        assert not await closer.claim(0, works)
        bench.store.objects[bench.exchange.keys.claim(0, 3)] = b"rubbish"
        assert await closer.claim(0, works)

    virtually(main())


def test_momentum_that_is_gone_is_trouble_and_after_a_while_an_error() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, beat_s=0.5, lease_s=2.0, keep_s=50.0), rounds=None)
        a = Learner(store, manifest, "a", machines)
        life = asyncio.create_task(a.live())
        while a.participant.newest < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        record = await Exchange(MemoryMailbox(store), manifest).round(a.participant.newest)
        assert record is not None
        assert record.outer is not None
        del store.objects[a.exchange.keys.round_blob(record.round, record.outer.sha256)]
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(PayloadMissing):
            await life
        assert 50 < asyncio.get_running_loop().time() - started_s < 70
        assert sum(isinstance(e, Trouble) for e in a.events) == 1

    virtually(main())


def test_a_committed_payload_of_another_model_stops_the_run_by_name() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=None)
        exchange = Exchange(MemoryMailbox(store), manifest)
        a = Learner(store, manifest, "a", machines, step_s=10.0)
        life = asyncio.create_task(a.live())
        await asyncio.sleep(1)
        theta = await exchange.store(0, {"other": np.zeros(3, np.float32)})
        record = RoundRecord(
            round=0, fragment=0, step=4, version=0, parent=None, participants=(), rejected=(), theta=theta, outer=None
        )
        assert await exchange.commit(record)
        with pytest.raises(SchemaMismatch, match="other"):
            await life

    virtually(main())


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_momentum_of_another_model_stops_the_closer_by_name(dtype: type) -> None:
    async def main() -> None:
        bench = await Bench.of()
        await bench.publish("a")
        first = await bench.close()
        assert first is not None
        wrong = small("a") if dtype is np.float16 else {"other": np.zeros(3, np.float32)}
        outer = await bench.exchange.store(0, {name: array.astype(dtype) for name, array in wrong.items()})
        bench.before = msgspec.structs.replace(first.record, outer=outer)
        await bench.publish("a", round=1)
        with pytest.raises(SchemaMismatch):
            await bench.close(1)
        assert await bench.exchange.newest_round() == 0

    virtually(main())
