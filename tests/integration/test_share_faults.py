"""Shares that fail, lose replies, list late or hang: training waits, goes on, and every round is closed once."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from swarm.core.errors import (
    WAITED_OUT,
    MailboxCorrupt,
    MailboxError,
    MailboxFull,
    MailboxMoved,
    MailboxReadOnly,
    MailboxUnavailable,
)
from swarm.core.events import ShareBack, ShareLost, Trouble
from swarm.core.lines import decode, encode
from swarm.core.records import Beat, Claim, RoundRecord, Snapshot
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.wrappers import Witness, Wrapped
from tests.sampling import sampled

SPEC = DiLoCo(sync_every=2, quorum_size=2, beat_s=1.0, lease_s=4.0)
ROUNDS = 4


@dataclass
class Chance(Fault):
    """Hits calls at random, again and again."""

    dice: random.Random = field(default_factory=random.Random)
    share: float = 0.1

    def hits(self, op: str, key: str) -> bool:
        return self.dice.random() < self.share


class Pair:
    """Two learners of one run, each behind faults of its own."""

    def __init__(self, store: MemoryStore, manifest: Any) -> None:
        self.store, self.manifest, self.wrongs = store, manifest, list[str]()
        self.boxes: list[FaultyMailbox] = []
        machines = Machines()
        self.a, self.b = (Learner(store, manifest, name, machines, wrap=self._wrap) for name in "ab")

    @classmethod
    async def of(cls, spec: DiLoCo = SPEC, rounds: int | None = ROUNDS) -> Pair:
        store = MemoryStore()
        return cls(store, await new_run(store, spec, rounds=rounds))

    def _wrap(self, _: Mailbox) -> FaultyMailbox:
        self.boxes.append(FaultyMailbox(Witness(self.store, self.wrongs)))
        return self.boxes[-1]

    async def tape(self) -> list[RoundRecord]:
        exchange = Exchange(MemoryMailbox(self.store), self.manifest)
        records = [await exchange.round(r) for r in range(await exchange.newest_round() + 1)]
        return [record for record in records if record is not None]

    async def ends_well(self, rounds: int = ROUNDS) -> None:
        assert await together(self.a.live(), self.b.live()) == ["done", "done"]
        assert [record.round for record in await self.tape()] == list(range(rounds))
        assert self.a.params == self.b.params != ""
        assert self.wrongs == []


@functools.cache
def calls() -> int:
    async def main() -> int:
        pair = await Pair.of()
        await pair.ends_well()
        return len(pair.boxes[1].calls)

    return virtually(main())


async def one_fault(kind: str, at: int) -> None:
    pair = await Pair.of()
    pair.boxes[1].plan.append(Fault(kind, skip=at))  # type: ignore[arg-type]
    await pair.ends_well()
    assert all([p.learner for p in record.participants] == ["a", "b"] for record in await pair.tape())
    assert await Exchange(MemoryMailbox(pair.store), pair.manifest).evals_after(-1) == list(range(ROUNDS))


@pytest.mark.parametrize("kind", ["fail", "lose"])
def test_one_call_fails_or_its_reply_is_lost(kind: str) -> None:
    for at in range(0, calls() - 1, 11):
        virtually(one_fault(kind, at))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["fail", "lose", "late", "double", "foreign"])
def test_any_one_call_fails(kind: str) -> None:
    for at in range(calls() - 1):
        virtually(one_fault(kind, at))


def test_a_lost_reply_to_a_claim_on_an_evaluation_loses_no_evaluation() -> None:
    async def main() -> None:
        pair = await Pair.of()
        for box in pair.boxes:
            box.plan.append(Fault("lose", op="create", key="claims/.*/eval/", count=None))
            box.plan[-1].hits = every_other(box.plan[-1].hits)  # type: ignore[method-assign]
        await pair.ends_well()
        assert await Exchange(MemoryMailbox(pair.store), pair.manifest).evals_after(-1) == list(range(ROUNDS))

    virtually(main())


def every_other(hits: Callable[[str, str], bool]) -> Callable[[str, str], bool]:
    """Of the calls that are hit, every other one: the repeated call gets through."""
    count = 0

    def hit(op: str, key: str) -> bool:
        nonlocal count
        if not hits(op, key):
            return False
        count += 1
        return count % 2 == 1

    return hit


@pytest.mark.parametrize("seed", range(6))
def test_a_storm_of_faults_is_sat_out(seed: int) -> None:
    async def main() -> None:
        pair = await Pair.of(DiLoCo(sync_every=2, fragments=1 + seed % 2, quorum_size=2, beat_s=1.0, lease_s=4.0), rounds=6)
        dice = random.Random(seed)

        async def slowly() -> None:
            await asyncio.sleep(dice.random() * 2)

        for box in pair.boxes:
            for error in (MailboxUnavailable, MailboxFull, MailboxReadOnly):
                box.plan += [Chance(kind, error=error, share=0.02, dice=dice) for kind in ("fail", "lose", "tear")]
            box.plan += [Chance(kind, share=0.05, dice=dice) for kind in ("late", "double", "foreign")]
            box.plan.append(Chance("delay", wait=slowly, share=0.02, dice=dice))
        await pair.ends_well(rounds=6)

    virtually(main())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never came")


def told_of(learner: Learner) -> list[ShareLost | ShareBack]:
    """What it told of the share."""
    return [e for e in learner.events if isinstance(e, ShareLost | ShareBack)]


@pytest.mark.parametrize("error", sampled(WAITED_OUT))
def test_an_outage_is_told_once_and_its_end_once(error: type[MailboxError]) -> None:
    async def main() -> None:
        pair = await Pair.of(rounds=12)
        lives = [asyncio.create_task(x.live()) for x in (pair.a, pair.b)]
        for outage in (1, 2):
            newest = pair.a.participant.newest
            await until(lambda newest=newest: pair.a.participant.newest > newest)  # type: ignore[misc]
            for box in pair.boxes:
                box.plan.append(Fault("fail", count=None, error=error))
            await asyncio.sleep(300)
            for box in pair.boxes:
                box.plan.clear()
            back = [x.participant.newest for x in (pair.a, pair.b)]
            await until(lambda back=back: all(x.participant.newest > n for x, n in zip((pair.a, pair.b), back, strict=True)))  # type: ignore[misc]
            for learner in (pair.a, pair.b):
                await until(lambda learner=learner: isinstance(told_of(learner)[-1], ShareBack))  # type: ignore[misc]
                told = told_of(learner)
                assert [type(e) for e in told] == [ShareLost, ShareBack] * outage
                assert isinstance(told[-1], ShareBack)
                assert 290 < told[-1].after_s < 310
        assert await together(*lives) == ["done", "done"]
        assert all(len(r.participants) == 2 for r in await pair.tape()), "nobody was declared dead meanwhile"
        assert pair.a.params == pair.b.params

    virtually(main())


class Hanging(Wrapped):
    """Calls hang while `gate` is closed."""

    def __init__(self, inner: Mailbox) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.since_s: list[float] = []

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.since_s.append(now := asyncio.get_running_loop().time())
        try:
            await self.gate.wait()
            return await call()
        finally:
            self.since_s.remove(now)

    def outstanding_s(self) -> float:
        return asyncio.get_running_loop().time() - min(self.since_s) if self.since_s else 0.0


def test_a_share_that_hangs_counts_as_lost_and_the_call_is_waited_for() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=6)
        boxes: list[Hanging] = []

        def wrap(inner: Mailbox) -> Hanging:
            boxes.append(Hanging(inner))
            return boxes[-1]

        a, b = (Learner(store, manifest, name, machines, wrap=wrap) for name in "ab")
        lives = [asyncio.create_task(x.live()) for x in (a, b)]
        await until(lambda: a.participant.newest >= 1)
        for box in boxes:
            box.gate.clear()
        await asyncio.sleep(60)
        lost = [[e for e in x.events if isinstance(e, ShareLost)] for x in (a, b)]
        assert [[e.reason for e in events] for events in lost] == [["no answer for 5 s"]] * 2
        for box in boxes:
            box.gate.set()
        assert await together(*lives) == ["done", "done"]
        for learner in (a, b):
            assert sum(isinstance(e, ShareLost | ShareBack) for e in learner.events) == 2
        exchange = Exchange(MemoryMailbox(store), manifest)
        for round in range(6):
            record = await exchange.round(round)
            assert record is not None
            assert len(record.participants) == 2, "nobody was declared dead meanwhile"

    virtually(main())


def test_the_share_is_away_when_a_learner_joins() -> None:
    async def main() -> None:
        pair = await Pair.of()
        pair.boxes[1].plan.append(Fault("fail", count=None))
        lives = [asyncio.create_task(x.live()) for x in (pair.a, pair.b)]
        await asyncio.sleep(100)
        assert pair.b.inner is None
        pair.boxes[1].plan.clear()
        assert await together(*lives) == ["done", "done"]
        assert pair.a.params == pair.b.params
        assert [type(e) for e in pair.b.events[:2]] == [ShareLost, ShareBack]

    virtually(main())


@pytest.mark.parametrize("at", ["joining", "polling", "beating"])
def test_another_mailbox_ends_it_with_its_name(at: str) -> None:
    async def main() -> None:
        pair = await Pair.of(rounds=50)
        fault = Fault(
            "fail",
            count=None,
            error=MailboxMoved,
            op="put" if at == "beating" else "",
            key="/beats/" if at == "beating" else "",
        )
        box = pair.boxes[1]
        if at == "joining":
            box.plan.append(fault)
        other, life = asyncio.create_task(pair.a.live()), asyncio.create_task(pair.b.live())
        if at != "joining":
            await until(lambda: pair.b.participant.newest >= 1)
            box.plan.append(fault)
        with pytest.raises(MailboxMoved, match="fails as planned"):
            await asyncio.wait_for(life, timeout=100)
        pair.a.leaving = True
        assert await other == "left"

    virtually(main())


async def copied_back(pair: Pair) -> dict[str, bytes]:
    """Let the run go on to round 6, and give the mailbox the objects that it had at round 2."""
    await until(lambda: pair.a.participant.newest >= 2)
    old = dict(pair.store.objects)
    await until(lambda: min(pair.a.participant.newest, pair.b.participant.newest) >= 6)
    pair.store.objects.clear()
    pair.store.objects.update(old)
    return old


def test_a_restored_old_copy_ends_it_and_nothing_is_overwritten() -> None:
    async def main() -> None:
        pair = await Pair.of(rounds=50)
        lives = [asyncio.create_task(x.live()) for x in (pair.a, pair.b)]
        old = await copied_back(pair)
        for result in await together(*(asyncio.wait_for(life, timeout=100) for life in lives)):
            assert isinstance(result, MailboxMoved)
            assert "gone" in str(result)
        assert {key: pair.store.objects.get(key) for key in old if "/beats/" not in key} == {
            key: data for key, data in old.items() if "/beats/" not in key
        }
        assert not [key for key in pair.store.objects.keys() - old.keys() if "/rounds/" in key and "blobs" not in key]
        # Who comes anew takes the copy for what it is, and goes on from there.
        machines = Machines()
        again = [Learner(pair.store, pair.manifest, name, machines, machine=f"machine-{name}") for name in "ab"]
        lives = [asyncio.create_task(x.live()) for x in again]
        await until(lambda: again[0].participant.newest >= 8)
        for learner in again:
            learner.leaving = True
        assert await together(*lives) == ["left", "left"]

    virtually(main())


def test_whoever_only_waits_notices_a_restored_old_copy_too() -> None:
    async def main() -> None:
        pair = await Pair.of(DiLoCo(sync_every=2, quorum_size=1, beat_s=1.0, lease_s=4.0), rounds=None)
        watching = Learner(pair.store, pair.manifest, "c", Machines(), step_s=50.0)  # neither reports nor closes meanwhile
        life = asyncio.create_task(watching.live())
        worker = asyncio.create_task(pair.a.live())
        await until(lambda: pair.a.participant.newest >= 2)
        old = dict(pair.store.objects)
        await until(lambda: watching.participant.newest >= 4)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        pair.store.objects.clear()
        pair.store.objects.update(old)
        with pytest.raises(MailboxMoved, match="gone"):
            await life
        assert watching.steps == 1

    virtually(main())


def test_a_copy_that_went_on_without_it_is_told_by_its_parent() -> None:
    async def main() -> None:
        pair = await Pair.of(DiLoCo(sync_every=2, quorum_size=1, beat_s=1.0, lease_s=4.0), rounds=None)
        life = asyncio.create_task(pair.a.live())
        await until(lambda: pair.a.participant.newest >= 3)
        exchange = Exchange(MemoryMailbox(pair.store), pair.manifest)
        record = await exchange.round(3)
        assert record is not None
        forged = msgspec.structs.replace(record, round=4, parent="0" * 64, version=3)
        assert pair.store.objects.setdefault(exchange.keys.round(4), data := encode(forged, nonce="x")) == data
        newest = pair.a.participant.newest
        with pytest.raises(MailboxMoved, match="not what was read here before"):
            await asyncio.wait_for(life, timeout=100)
        assert newest == pair.a.participant.newest == 3
        assert pair.store.objects[exchange.keys.round(4)] == data

    virtually(main())


def test_a_round_record_that_nobody_can_read_stops_the_run_by_name() -> None:
    async def main() -> None:
        pair = await Pair.of(rounds=50)
        lives = [asyncio.create_task(x.live()) for x in (pair.a, pair.b)]
        await until(lambda: pair.a.participant.newest >= 1)
        exchange = Exchange(MemoryMailbox(pair.store), pair.manifest)
        pair.store.objects[exchange.keys.round(2)] = b"no record\n"
        for learner, result in zip((pair.a, pair.b), await together(*lives), strict=True):
            assert isinstance(result, MailboxCorrupt)
            assert [e for e in learner.events if isinstance(e, Trouble)] == [Trouble(message=str(result), lasts=True)]

    virtually(main())


RUBBISH = (b"", b"{}\n{}\n", b'{"round":0,"learner":"x","incarnation":1}\n', b"\xff" * 100, b"[" * 100_000)


def test_what_a_peer_leaves_in_its_own_places_stops_nobody() -> None:
    async def main() -> None:
        for rubbish in RUBBISH:
            pair = await Pair.of(DiLoCo(sync_every=2, quorum_size=2, grace_s=0.5, beat_s=1.0, lease_s=4.0))
            place = Exchange(MemoryMailbox(pair.store), pair.manifest).keys
            for round in range(ROUNDS):
                for key in (
                    place.snapshot(round, unit="evil", learner="evil", incarnation=1),
                    place.snapshot(round, unit="a", learner="evil", incarnation=99),
                    place.claim(round, 0),
                    f"{place.claims(round)}x/record.json",
                ):
                    pair.store.objects[key] = rubbish
            pair.store.objects[place.beat("evil", 1, 0)] = rubbish
            pair.store.objects[place.beat("a", 1, 10**9)] = rubbish
            await pair.ends_well()
            for record in await pair.tape():
                assert [p.learner for p in record.participants] == ["a", "b"]
                assert {(r.learner, r.unit, r.reason) for r in record.rejected} == {
                    ("evil", "evil", "corrupt"),
                    ("evil", "a", "corrupt"),
                }

    virtually(main())


def test_an_object_too_large_to_read_under_a_peers_key_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pair = await Pair.of()
        place = Exchange(MemoryMailbox(pair.store), pair.manifest).keys
        large = bytes(20_000)
        for key in (place.snapshot(1, unit="evil", learner="evil", incarnation=1), place.claim(1, 0), place.beat("evil", 1, 0)):
            pair.store.objects[key] = large
        await pair.ends_well()

    monkeypatch.setattr("swarm.mailbox.memory.MAX_READ_BYTES", 10_000)
    virtually(main())


def test_decode_of_what_was_left_is_refused() -> None:
    """Else the tests above would leave records and not rubbish."""
    for data in RUBBISH:
        for type in (Beat, Claim, Snapshot):
            with pytest.raises(ValueError):
                decode(data, type)
