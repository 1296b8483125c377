"""What a poll and what joining cost in calls: the same after ten rounds and after ten thousand."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from swarm.core.errors import MailboxUnavailable
from swarm.core.lines import body_sha256, encode
from swarm.core.manifest import Manifest, PayloadRef
from swarm.core.records import RoundRecord
from swarm.core.specs import DiLoCo, FedAvg
from swarm.exchange import Exchange
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.participant import Participant
from tests.bench.operations import LISTS, OPERATIONS, counted
from tests.integration.simulation import Learner, Machines, model, new_run, virtually
from tests.integration.wrappers import Counting


async def long_run(rounds: int, fragments: int) -> tuple[MemoryStore, Manifest]:
    """A run with `rounds` committed rounds, each record written as its closer would; payloads of the last turns only."""
    store = MemoryStore()
    spec = DiLoCo(sync_every=4, fragments=fragments, quorum_size=2, start_learners=1, beat_s=5.0, lease_s=30.0)
    manifest = await new_run(store, spec, rounds=None)
    exchange = Exchange(MemoryMailbox(store), manifest)
    parent = None
    for round in range(rounds):
        fragment = exchange.schedule.fragment(round)
        theta = PayloadRef(round=round, sha256="0" * 64, size_bytes=0)
        if round >= rounds - 2 * fragments:
            array = model(round)
            theta = await exchange.store(round, {name: array[name] for name in exchange.plan[fragment]})
        record = RoundRecord(
            round=round,
            fragment=fragment,
            step=exchange.schedule.step(round),
            version=round,
            parent=parent,
            participants=(),
            rejected=(),
            theta=theta,
            outer=None,
        )
        data = encode(record, nonce=str(round))
        store.objects[exchange.keys.round(round)] = data
        parent = body_sha256(data)
    return store, manifest


async def one_more(store: MemoryStore, manifest: Manifest, round: int) -> None:
    """Somebody commits `round`, the next one of a run with one fragment."""
    exchange = Exchange(MemoryMailbox(store), manifest)
    record = RoundRecord(
        round=round,
        fragment=0,
        step=exchange.schedule.step(round),
        version=round,
        parent=await exchange.parent_of(round),
        participants=(),
        rejected=(),
        theta=await exchange.store(round, model(round)),
        outer=None,
    )
    assert await exchange.commit(record)


def learner_of(store: MemoryStore, manifest: Manifest) -> tuple[Learner, Counting]:
    boxes: list[Counting] = []

    def wrap(inner: object) -> Counting:
        boxes.append(Counting(MemoryMailbox(store)))
        return boxes[-1]

    return Learner(store, manifest, "a", Machines(), wrap=wrap), boxes[0]


async def quiet(participant: Participant) -> None:
    """No beats: only what polls cost."""
    assert participant._beating is not None
    participant._beating.cancel()
    await asyncio.gather(participant._beating, return_exceptions=True)


@pytest.mark.parametrize("rounds", [0, 10, 99, 100, 101, 199, 200, 9_999])
def test_an_idle_poll_is_four_lists_in_one_trip_whatever_the_age_of_the_run(rounds: int) -> None:
    async def main() -> None:
        store, manifest = await long_run(rounds, fragments=2)
        learner, box = learner_of(store, manifest)
        await learner.participant.join()
        await quiet(learner.participant)
        await learner.participant.poll()  # reads the beats that are there
        for _ in range(3):
            box.calls.clear()
            box.trips = 0
            assert await learner.participant.poll() is None
            assert learner.participant.newest == rounds - 1
            assert (box.ops(), box.trips) == ({"list": 4}, 1)

    virtually(main())


def test_an_idle_poll_reads_what_is_new_and_no_more() -> None:
    async def main() -> None:
        store, manifest = await long_run(10, fragments=1)
        learner, box = learner_of(store, manifest)
        await learner.participant.join()
        await quiet(learner.participant)
        others = [Learner(store, manifest, name, Machines()) for name in "bcd"]
        for other in others:
            await other.participant.join()
            await quiet(other.participant)
        await learner.participant.poll()
        assert others[0].participant._pulse is not None
        await others[0].participant._pulse.beat()
        box.calls.clear()
        await learner.participant.poll()
        assert box.ops() == {"list": 4, "read": 1}, "one beat is new"

    virtually(main())


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("rounds", [10, 9_999])
def test_joining_reads_the_newest_record_of_each_fragment_and_its_theta(rounds: int, fragments: int) -> None:
    async def main() -> None:
        store, manifest = await long_run(rounds, fragments)
        learner, box = learner_of(store, manifest)
        start = await learner.participant.join()
        assert start.newest == rounds - 1
        assert set(start.fragments) == set(range(fragments))
        assert sum(op == "read" and "/rounds/" in key for op, key in box.calls) == fragments
        assert box.ops() == Counter(
            {
                "names": 1,  # the folders of rounds
                "list": 5,  # control, the newest of these folders, incarnations, my earlier beats, what this machine told
                "read": fragments,
                "read_part": fragments,
                "create": 1,  # the incarnation
                "put": 2,  # the first beat, and one when everything is here
            }
        )
        await quiet(learner.participant)

    virtually(main())


def test_coming_back_after_thousands_of_rounds_reads_the_newest_records_only() -> None:
    async def main() -> None:
        store, manifest = await long_run(40, fragments=2)
        learner, box = learner_of(store, manifest)
        await learner.participant.join()
        await quiet(learner.participant)
        assert learner.participant.newest == 39
        longer, _ = await long_run(2_345, fragments=2)
        for key, data in longer.objects.items():
            store.objects.setdefault(key, data)
        box.calls.clear()
        await learner.participant.poll()
        assert learner.participant.newest == 2_344
        ops = box.ops()
        assert (ops["read_part"], ops["names"]) == (2, 1)
        assert sum(op == "read" and "/rounds/" in key for op, key in box.calls) == 2
        assert ops["list"] <= 4 + 1 + 3  # a look, the newest of the folders of rounds, and anew what the look found but that
        taken = learner.handoff.take_aligned()
        assert taken is not None
        assert (taken.newest, set(taken.fragments)) == (2_344, {0, 1})

    virtually(main())


def test_an_idle_poll_of_client_training_is_five_lists_in_one_trip() -> None:
    async def main() -> None:
        store = MemoryStore()
        spec = FedAvg(clients=4, per_round=2, beat_s=5.0, lease_s=30.0)
        learner, box = learner_of(store, await new_run(store, spec))
        await learner.participant.join()
        await quiet(learner.participant)
        await learner.participant.poll()
        box.calls.clear()
        box.trips = 0
        await learner.participant.poll()
        assert (box.ops(), box.trips) == ({"list": 5}, 1)

    virtually(main())


def test_a_poll_lists_controls_after_rounds_and_anew_what_was_listed_before_a_round_was_followed() -> None:
    async def main() -> None:
        store, manifest = await long_run(10, fragments=1)
        learner, box = learner_of(store, manifest)
        await learner.participant.join()
        await quiet(learner.participant)
        await one_more(store, manifest, 10)
        box.calls.clear()
        await learner.participant.poll()
        listed = [key.split("/", 2)[2] for op, key in box.calls if op == "list"]
        assert listed[:4] == ["rounds/00000000/", "control/", "beats/", "snapshots/0000000010/"]
        assert listed[4:] == ["control/", "beats/", "snapshots/0000000011/"]
        taken = max(n for n, (op, _) in enumerate(box.calls) if op in ("read_part", "create"))
        assert [op for op, _ in box.calls[taken:]].count("list") == 3

    virtually(main())


@pytest.mark.parametrize("folder", ["/control/", "/beats/", "/snapshots/"])
def test_what_cannot_be_listed_keeps_no_committed_round_back(folder: str) -> None:
    async def main() -> None:
        store, manifest = await long_run(10, fragments=1)
        boxes: list[FaultyMailbox] = []

        def wrap(inner: object) -> FaultyMailbox:
            boxes.append(FaultyMailbox(MemoryMailbox(store)))
            return boxes[-1]

        learner = Learner(store, manifest, "a", Machines(), wrap=wrap)
        await learner.participant.join()
        await quiet(learner.participant)
        await one_more(store, manifest, 10)
        boxes[0].plan.append(Fault("fail", op="list", key=folder, count=None))
        with pytest.raises(MailboxUnavailable):
            await learner.participant.poll()
        assert learner.participant.newest == 10
        boxes[0].plan.clear()
        assert await learner.participant.poll() is None

    virtually(main())


def test_a_foreign_folder_among_the_rounds_hides_nothing() -> None:
    async def main() -> None:
        store, manifest = await long_run(3, fragments=1)
        root = Exchange(MemoryMailbox(store), manifest).keys.root
        for name in ("00000007", "99999999", "00000055", "1" * 100, "x", "00000009-conflict"):
            store.objects[f"{root}/rounds/{name}/0000000001/record.json"] = b"foreign"
        exchange = Exchange(MemoryMailbox(store), manifest)
        assert await exchange.newest_round() == 2
        assert await exchange.rounds_after(0) == 2

    virtually(main())


def test_a_listing_that_names_everything_twice_costs_nothing_more() -> None:
    async def main() -> None:
        store, manifest = await long_run(50, fragments=1)
        box = FaultyMailbox(MemoryMailbox(store), [Fault("double", count=None)])
        assert await Exchange(box, manifest).rounds_after(3) == 49
        assert len(box.calls) == 1

    virtually(main())


def test_a_round_costs_each_learner_a_bounded_number_of_calls() -> None:
    for each in virtually(counted(learners=2, rounds=10)):
        assert each.a_round <= OPERATIONS, each.others
        assert each.most_lists <= LISTS
        assert each.polls > 0
