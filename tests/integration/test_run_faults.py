"""Faults as a run meets them, in virtual time: every learner trains on, says within 10 s what is wrong, and says when it is
over; nothing is lost, and all end with the same parameters."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from swarm.core.errors import MailboxAway, MailboxError, MailboxFull, MailboxMoved, MailboxReadOnly, MailboxUnavailable
from swarm.core.events import Mended, RoundClosed, ShareBack, ShareLost, Trouble
from swarm.core.lines import body_sha256
from swarm.core.manifest import Manifest
from swarm.core.records import RoundRecord
from swarm.core.sentences import sentence
from swarm.core.specs import Algorithm, DiLoCo, FedAvg
from swarm.exchange import Exchange
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.federation import ClientLearner
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.wrappers import Witness, Wrapped

SPEC = DiLoCo(sync_every=20, quorum_size=2, start_learners=3, beat_s=2.0, lease_s=8.0)
ROUNDS = 8
STEP_S = 0.2
TOLD_S = 10.0
WRITES = ("create", "put", "delete")


class Crowd:
    """Three learners of one run, each behind faults of its own."""

    def __init__(self, store: MemoryStore, manifest: Manifest, *, between: Callable[[Mailbox], Mailbox] | None = None) -> None:
        self.store, self.manifest, self.wrongs = store, manifest, list[str]()
        self.between = between
        self.boxes: dict[str, FaultyMailbox] = {}
        machines = Machines()
        kind = ClientLearner if isinstance(manifest.algorithm, FedAvg) else Learner
        self.learners = {name: kind(store, manifest, name, machines, step_s=STEP_S, wrap=self._of(name)) for name in "abc"}
        self.lives: list[asyncio.Task[str]] = []

    def _of(self, name: str) -> Callable[[Mailbox], Mailbox]:
        def wrap(_: Mailbox) -> Mailbox:
            store: Mailbox = Witness(self.store, self.wrongs)
            self.boxes[name] = FaultyMailbox(store if self.between is None else self.between(store))
            return self.boxes[name]

        return wrap

    @classmethod
    async def of(
        cls, spec: Algorithm = SPEC, *, rounds: int = ROUNDS, between: Callable[[Mailbox], Mailbox] | None = None
    ) -> Crowd:
        store = MemoryStore()
        return cls(store, await new_run(store, spec, rounds=rounds), between=between)

    def begin(self) -> None:
        self.lives = [asyncio.create_task(learner.live()) for learner in self.learners.values()]

    async def until_round(self, round: int, *names: str) -> None:
        for name in names or self.learners:
            await until(lambda name=name: self.learners[name].participant.newest >= round)

    async def ends_well(self) -> list[RoundRecord]:
        """Let all of them end; the tape."""
        assert await together(*self.lives) == ["done"] * 3
        exchange = Exchange(MemoryMailbox(self.store), self.manifest)
        rounds = self.manifest.rounds or 0
        records = [await exchange.round(r) for r in range(rounds)]
        assert [record.round for record in records if record is not None] == list(range(rounds))
        for round in range(1, rounds):  # each follows the one before
            before = self.store.objects[exchange.keys.round(round - 1)]
            record = records[round]
            assert record is not None
            assert record.parent == body_sha256(before)
        assert len({learner.params for learner in self.learners.values()} - {""}) == 1
        assert self.wrongs == []
        return [record for record in records if record is not None]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(200_000):
        if condition():
            return
        await asyncio.sleep(0.2)
    raise AssertionError("it never came")


def now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True)
class Weather:
    """What a share does for a while, and what a person is told of it."""

    ops: Sequence[str]  # '' for all
    error: type[MailboxError]
    words: str

    def begin(self, box: FaultyMailbox) -> None:
        box.plan += [Fault("fail", op=op, count=None, error=self.error) for op in self.ops]


WEATHERS = {
    "its server is dead": Weather(("",), MailboxUnavailable, "the mailbox does not answer"),
    "stale handles": Weather(("read", "read_part", "list", "names"), MailboxUnavailable, "the mailbox does not answer"),
    "nothing can be moved": Weather(("create", "put"), MailboxUnavailable, "the mailbox does not answer"),
    "unmounted": Weather(("",), MailboxAway, "the mailbox is not there"),
    "the disk is full": Weather(("create", "put"), MailboxFull, "the mailbox is full"),
    "read-only": Weather(WRITES, MailboxReadOnly, "the mailbox is read-only"),
}


EVERY = [(weather, whose) for weather in WEATHERS for whose in ("a", "abc")]
SOME = [("unmounted", "a"), ("the disk is full", "abc")]


@pytest.mark.parametrize(("weather", "whose"), [pytest.param(*x, marks=() if x in SOME else pytest.mark.slow) for x in EVERY])
def test_what_lasts_a_while_is_told_and_told_again_when_it_is_over_and_nothing_is_lost(weather: str, whose: str) -> None:
    what, away_s = WEATHERS[weather], 25.0

    async def main() -> None:
        crowd = await Crowd.of(rounds=12)
        crowd.begin()
        await crowd.until_round(1)
        await asyncio.sleep(1.0)  # in the middle of a round: nothing is due to be written but beats
        steps = {name: crowd.learners[name].steps for name in whose}
        told = {name: len(crowd.learners[name].events) for name in whose}
        for name in whose:
            what.begin(crowd.boxes[name])
        await asyncio.sleep(TOLD_S)
        for name in whose:
            lost = [e for e in crowd.learners[name].events[told[name] :] if isinstance(e, ShareLost)]
            assert len(lost) == 1, f"{name}: told once, within {TOLD_S} s"
            assert str(sentence(lost[0])).startswith(f"{what.words} (")
            assert crowd.learners[name].steps >= steps[name] + 10, "it trains on with what it has"
        await asyncio.sleep(away_s - TOLD_S)
        for name in whose:
            crowd.boxes[name].plan.clear()
        cleared_s = now_s()
        for name in whose:
            learner = crowd.learners[name]
            await until(lambda learner=learner: isinstance(said(learner)[-1], ShareBack))
            assert now_s() - cleared_s < TOLD_S
            back = said(learner)[-1]
            assert isinstance(back, ShareBack)
            assert away_s - TOLD_S < back.after_s < away_s + TOLD_S
        records = await crowd.ends_well()
        assert all(len(said(crowd.learners[name])) == 2 for name in whose)
        last = records[-1]
        assert {p.learner for p in last.participants} == {"a", "b", "c"}, "it has caught up"
        if whose == "abc":
            assert all(len(record.participants) == 3 for record in records), "nobody was declared dead meanwhile"

    virtually(main())


def said(learner: Learner) -> list[ShareLost | ShareBack]:
    return [e for e in learner.events if isinstance(e, ShareLost | ShareBack)]


def test_a_share_that_takes_two_seconds_for_everything_is_not_lost() -> None:
    async def main() -> None:
        crowd = await Crowd.of(rounds=4)

        async def slowly() -> None:
            await asyncio.sleep(2.0)

        for box in crowd.boxes.values():
            box.plan.append(Fault("delay", wait=slowly, count=None))
        crowd.begin()
        records = await crowd.ends_well()
        assert not any(said(learner) for learner in crowd.learners.values())
        assert all(len(record.participants) == 3 for record in records), "nobody is taken for dead"

    virtually(main())


class Late(Wrapped):
    """Listings show what was there some time ago."""

    def __init__(self, inner: Mailbox, *, late_s: float) -> None:
        super().__init__(inner)
        self.late_s = late_s
        self.seen: dict[str, float] = {}

    async def list(self, prefix: str, after: str = "") -> list[str]:
        keys = await self.inner.list(prefix, after)
        return [key for key in keys if now_s() - self.seen.setdefault(key, now_s()) >= self.late_s]

    async def names(self, prefix: str) -> Sequence[str]:
        keys = await self.list(prefix)
        return sorted({key[len(prefix) :].partition("/")[0] for key in keys})


@pytest.mark.parametrize("late_s", [5.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_listings_that_are_late_all_the_time_slow_the_run_down_and_no_more(late_s: float) -> None:
    async def main() -> None:
        crowd = await Crowd.of(rounds=4, between=lambda inner: Late(inner, late_s=late_s))
        crowd.begin()
        records = await crowd.ends_well()
        assert all(len(record.participants) == 3 for record in records)

    virtually(main())


class Behind(Wrapped):
    """While `behind`, what was seen before is gone again, whoever asks for it."""

    behind = False

    def _hides(self, key: str) -> bool:
        return self.behind and key.endswith("/record.json")

    async def list(self, prefix: str, after: str = "") -> list[str]:
        return [key for key in await self.inner.list(prefix, after) if not self._hides(key)]

    async def read(self, key: str) -> bytes | None:
        return None if self._hides(key) else await self.inner.read(key)


def test_records_that_are_gone_for_a_moment_and_come_back_end_nothing() -> None:
    """As with a listing that falls behind what it has shown before. The run seems to be deleted, or an older copy."""

    async def main() -> None:
        boxes: list[Behind] = []

        def behind(inner: Mailbox) -> Behind:
            boxes.append(Behind(inner))
            return boxes[-1]

        crowd = await Crowd.of(rounds=4, between=behind)
        crowd.begin()
        await crowd.until_round(1)
        for box in boxes:
            box.behind = True
        await asyncio.sleep(2.5)
        for box in boxes:
            box.behind = False
        records = await crowd.ends_well()
        assert all(len(record.participants) == 3 for record in records)

    virtually(main())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["double", "foreign"])
def test_listings_with_names_twice_and_of_strangers_make_no_difference(kind: Any) -> None:
    async def main() -> None:
        crowd = await Crowd.of(rounds=4)
        for box in crowd.boxes.values():
            box.plan.append(Fault(kind, count=None))
        crowd.begin()
        records = await crowd.ends_well()
        assert all(len(record.participants) == 3 and not record.rejected for record in records)

    virtually(main())


@pytest.mark.slow
def test_another_share_in_its_place_stops_whoever_sees_it_by_name_and_the_others_go_on() -> None:
    async def main() -> None:
        crowd = await Crowd.of(rounds=4)
        crowd.begin()
        await crowd.until_round(1)
        objects = set(crowd.store.objects)
        crowd.boxes["a"].plan.append(Fault("fail", count=None, error=MailboxMoved))
        a, *others = crowd.lives
        with pytest.raises(MailboxMoved):
            await asyncio.wait_for(a, timeout=100)
        assert await together(*others) == ["done", "done"]
        assert crowd.learners["b"].params == crowd.learners["c"].params != ""
        assert not any("/a." in key for key in set(crowd.store.objects) - objects), "it has written no more"

    virtually(main())


# What is read is not what was written

READS = {
    "the record of a snapshot": ("read", r"snapshots/0+2/.*\.json$"),
    "a delta": ("read_part", r"blobs/snapshots/0+2/"),
    "the record of a round": ("read", r"runs/testrun1/rounds/0+/0+2/record\.json$"),
    "the parameters of a round": ("read_part", r"blobs/rounds/0+2/"),
}


HEADER = 20  # a byte of a payload's header


@pytest.mark.parametrize(
    ("what", "at"),
    [(what, -1) for what in READS] + [("a delta", HEADER), ("the parameters of a round", HEADER)],
)
def test_a_bit_that_is_flipped_on_its_way_is_read_again_and_changes_nothing(what: str, at: int) -> None:
    async def main() -> None:
        crowd = await Crowd.of(rounds=4)
        op, key = READS[what]
        for box in crowd.boxes.values():
            box.plan.append(Fault("flip", op=op, key=key, at=at if op == "read_part" else 3))
        crowd.begin()
        records = await crowd.ends_well()
        assert all(len(record.participants) == 3 and not record.rejected for record in records)
        assert sum(fault.count == 0 for box in crowd.boxes.values() for fault in box.plan) > 0, "the bit was read"
        assert not any(isinstance(e, Trouble) for x in crowd.learners.values() for e in x.events)
        params.append(crowd.learners["a"].params)

    params = list[str]()
    virtually(main())
    assert params == [undisturbed()]


@functools.cache
def undisturbed() -> str:
    """The parameters that such a run ends with."""

    async def main() -> str:
        crowd = await Crowd.of(rounds=4)
        crowd.begin()
        await crowd.ends_well()
        return crowd.learners["a"].params

    return virtually(main())


@pytest.mark.parametrize("what", ["the record of a snapshot", "a delta"])
def test_a_snapshot_that_is_damaged_where_it_lies_is_refused_and_said_and_the_round_closes_without_it(what: str) -> None:
    async def main() -> None:
        crowd = await Crowd.of(rounds=4)
        rot(crowd, READS[what][1], by="b")
        crowd.begin()
        records = await crowd.ends_well()
        assert [(r.learner, r.reason) for r in records[2].rejected] == [("b", "corrupt")]
        assert [p.learner for p in records[2].participants] == ["a", "c"]
        assert all(len(record.participants) == 3 for record in records[3:])
        for learner in crowd.learners.values():
            [closed] = [e for e in learner.events if isinstance(e, RoundClosed) and e.round == 2]
            assert "b: damaged: not what its hash says" in str(sentence(closed))

    virtually(main())


def rot(crowd: Crowd, key: str, *, by: str = "", skip: int = 0) -> None:
    """Objects whose key matches are damaged as soon as they are written, by learner `by` if it is given; but for the first
    `skip` of them."""
    passed = set[str]()

    class Rotting(dict[str, bytes]):
        def __setitem__(self, name: str, data: bytes) -> None:
            super().__setitem__(name, self.rotten(name, data))

        def setdefault(self, name: str, data: bytes = b"") -> bytes:  # type: ignore[override]
            if name not in self:
                super().__setitem__(name, self.rotten(name, data))
                return data  # whoever writes it takes it for written
            return self[name]

        @staticmethod
        def rotten(name: str, data: bytes) -> bytes:
            if re.search(key, name) and (not by or re.search(rf"/{by}[./]", name)):
                if name in passed or len(passed) < skip:
                    passed.add(name)
                    return data
                return bytes([data[0] ^ 1]) + data[1:] if name.endswith(".json") else data[:-1] + bytes([data[-1] ^ 1])
            return data

    crowd.store.objects = Rotting(crowd.store.objects)


@pytest.mark.parametrize("fragments", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_newest_commit_that_is_damaged_is_said_and_the_run_goes_on_with_the_next_one(
    fragments: int,
) -> None:
    """Whoever closed it holds it. The others cannot take it over: nobody waits for them, and they go on with the next one that
    is whole, however much later than the three leases after which one that is alone would stop."""

    async def main() -> None:
        spec = DiLoCo(sync_every=70 * fragments, fragments=fragments, quorum_size=1, start_learners=3, beat_s=2.0, lease_s=4.0)
        crowd = await Crowd.of(spec, rounds=4 + 2 * fragments)
        rot(crowd, r"blobs/rounds/0+2/", skip=1)  # the first one is the outer optimizer's
        crowd.begin()
        names = list(crowd.learners)
        await until(lambda: any(crowd.learners[name].participant.newest >= 2 for name in names))
        [closer] = [name for name in names if crowd.learners[name].participant.newest >= 2]
        names.remove(closer)
        await asyncio.sleep(TOLD_S)
        for name in names:
            learner = crowd.learners[name]
            assert learner.participant.newest == 1
            [trouble] = [e for e in learner.events if isinstance(e, Trouble)]
            assert "blobs/rounds/0000000002/" in trouble.message
        records = await crowd.ends_well()
        for name in names:
            events = crowd.learners[name].events
            [mended] = [e for e in events if isinstance(e, Mended)]
            assert str(sentence(mended)).startswith("goes on with round ")
        assert [p.learner for p in records[2 + fragments].participants] == [closer]
        assert {p.learner for p in records[-1].participants} == {"a", "b", "c"}

    virtually(main())


def test_parameters_that_nobody_holds_any_more_stop_the_run_by_name_and_with_what_to_do() -> None:
    async def main() -> None:
        crowd = await Crowd.of()
        rot(crowd, r"blobs/rounds/0+2/", skip=1)
        crowd.begin()
        await until(lambda: any(crowd.learners[name].participant.newest >= 2 for name in "abc"))
        [closer] = [name for name in "abc" if crowd.learners[name].participant.newest >= 2]
        crowd.lives["abc".index(closer)].cancel()
        ends = await together(*crowd.lives)
        for name, end in zip("abc", ends, strict=True):
            if name != closer:
                assert "these are newest parameters" in str(end)

    virtually(main())


class Flickering(Wrapped):
    """Gives other bytes each time of a payload whose key matches `key`."""

    def __init__(self, inner: Mailbox, key: str) -> None:
        super().__init__(inner)
        self.key, self.n = key, 0

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        size = await self.inner.read_part(key, offset, buffer)
        if size and re.search(self.key, key):
            self.n = self.n % 255 + 1
            buffer[0] ^= self.n
        return size


def test_parameters_that_are_damaged_otherwise_each_time_are_said_once_and_do_not_keep_anybody_trying_for_ever() -> None:
    async def main() -> None:
        crowd = await Crowd.of(between=lambda box: Flickering(box, r"blobs/rounds/0+2/"))
        crowd.begin()
        await until(lambda: any(crowd.learners[name].participant.newest >= 2 for name in "abc"))
        [closer] = [name for name in "abc" if crowd.learners[name].participant.newest >= 2]
        crowd.lives["abc".index(closer)].cancel()
        ends = await together(*crowd.lives)
        for name, end in zip("abc", ends, strict=True):
            if name != closer:
                assert "these are newest parameters" in str(end)
                troubles = [event for event in crowd.learners[name].events if isinstance(event, Trouble)]
                assert len(troubles) == 1

    virtually(main())


@pytest.mark.parametrize("what", ["full", pytest.param("damaged", marks=pytest.mark.slow)])
def test_a_federation_goes_through_it_too(what: str) -> None:
    spec = FedAvg(clients=4, per_round=3, training_seed=1, selection_seed=2, beat_s=2.0, lease_s=4.0)

    async def main() -> str:
        crowd = await Crowd.of(spec, rounds=8)
        if what == "damaged":
            rot(crowd, r"blobs/rounds/0+2/")
        crowd.begin()
        await until(lambda: any(learner.participant.newest >= 2 for learner in crowd.learners.values()))
        if what == "full":
            for box in crowd.boxes.values():
                WEATHERS["the disk is full"].begin(box)
            await asyncio.sleep(25)
            for learner in crowd.learners.values():
                assert isinstance(said(learner)[-1], ShareLost)
            for box in crowd.boxes.values():
                box.plan.clear()
        records = await crowd.ends_well()
        assert all(len(record.participants) == 3 for record in records)
        told = [e for learner in crowd.learners.values() for e in learner.events]
        assert sum(isinstance(e, ShareBack if what == "full" else Mended) for e in told) >= 2
        return crowd.learners["a"].params

    virtually(main())


def test_a_damaged_record_that_every_look_meets_is_borne_as_long_as_any_other() -> None:
    """Which private clients train is read whenever it is seen who is there, also by one that asks whether others go on."""
    spec = FedAvg(private=True, per_round=2, training_seed=1, selection_seed=2, beat_s=2.0, lease_s=8.0)

    async def main() -> None:
        crowd = await Crowd.of(spec, rounds=4)
        for box in crowd.boxes.values():
            box.plan.append(Fault("flip", op="read", key="/samples/", count=8))
        crowd.begin()
        assert await together(*crowd.lives) == ["done"] * 3
        told = [event for learner in crowd.learners.values() for event in learner.events]
        assert sum(isinstance(event, Mended) for event in told) >= 1

    virtually(main())
