"""FedAvg's rounds: who trains which client, what counts, and when a round closes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from swarm.core.clients import client_id, draw, sampled
from swarm.core.errors import MailboxCorrupt
from swarm.core.events import Trouble, Waiting
from swarm.core.manifest import Manifest
from swarm.core.records import Claim, Control, RoundRecord, Sample
from swarm.core.specs import FedAvg
from swarm.exchange import Exchange
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.client import ClientLoop
from swarm.runtime.handoff import Aligned, Assignment
from swarm.tensors.payload import unpack
from tests.integration.federation import SAMPLES, ClientLearner
from tests.integration.roles import Syncer
from tests.integration.simulation import Machines, model, new_run, together, virtually

STEP_S, LEASE_S = 0.1, 3.0


def federation(**fields: Any) -> FedAvg:
    given = {"clients": 6, "per_round": 3, "training_seed": 1, "selection_seed": 2, "beat_s": 1.0, "lease_s": LEASE_S}
    return FedAvg(**{**given, **fields})


async def records(store: MemoryStore, manifest: Manifest) -> list[RoundRecord]:
    exchange = Exchange(MemoryMailbox(store), manifest)
    found = [await exchange.round(round) for round in range(await exchange.newest_round() + 1)]
    return [record for record in found if record is not None]


def trained(*learners: ClientLearner) -> list[tuple[int, str]]:
    return sorted((client.round, client.unit) for learner in learners for client in learner.trained)


async def until(happened: Callable[[], object]) -> None:
    while not happened():  # noqa: ASYNC110 — virtual time
        await asyncio.sleep(0.05)


async def run_of(names: str, *, rounds: int = 4, spec: FedAvg | None = None, **fields: Any) -> tuple[Any, ...]:
    """(learners, records) of a run that learners of one letter each take part in to its end."""
    store, machines = MemoryStore(), Machines()
    manifest = await new_run(store, spec or federation(), rounds=rounds)
    learners = [
        ClientLearner(store, manifest, name, machines, step_s=STEP_S * (1 + k), **fields) for k, name in enumerate(names)
    ]
    reasons = await together(*(learner.live() for learner in learners))
    assert reasons == ["done"] * len(learners)
    assert len({learner.params for learner in learners}) == 1
    return learners, await records(store, manifest)


def test_one_learner_alone_trains_all_sampled_clients() -> None:
    (learner,), tape = virtually(run_of("a"))
    for record in tape:
        assert tuple(p.unit for p in record.participants) == sampled(federation(), 0, record.round)
        assert all((p.tokens, p.weight, p.steps, p.learner) == (SAMPLES, SAMPLES, 4, "a") for p in record.participants)
        assert all(p.metrics == {"first_loss": 1.0, "last_loss": 0.25} for p in record.participants)
        assert record.reason == "every client has reported"
    assert len(learner.trained) == 4 * 3


def test_a_learner_claims_one_client_at_a_time() -> None:
    async def scenario() -> set[int]:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(), rounds=1)
        learner = ClientLearner(store, manifest, "a", machines, step_s=1.0)
        life, ahead = asyncio.create_task(learner.live()), set()
        while not life.done():
            claims = sum("/clients/0000000000/" in key for key in store.objects)
            reported = sum("/snapshots/0000000000/" in key and key.endswith(".json") for key in store.objects)
            if not any("/rounds/" in key and "/blobs/" not in key for key in store.objects):
                ahead.add(claims - reported)
            await asyncio.sleep(0.05)
        assert len(learner.trained) == 3
        return ahead

    assert virtually(scenario()) == {0, 1}


def test_parameters_are_the_same_bytes_however_many_learners_train() -> None:
    (one,), _ = virtually(run_of("a"))
    many, tape = virtually(run_of("abcd"))
    assert one.params == many[0].params
    assert trained(one) == trained(*many)  # each client once
    assert len({p.learner for record in tape for p in record.participants}) > 1


def test_a_client_without_samples_counts_for_nothing_and_holds_up_nobody() -> None:
    empty = {client_id(index): 0 for index in range(3)}
    _, tape = virtually(run_of("ab", samples=empty))
    for record in tape:
        weights = {p.unit: p.weight for p in record.participants}
        assert tuple(weights) == sampled(federation(), 0, record.round)
        assert all((weight == 0) == (unit in empty) for unit, weight in weights.items())


def test_a_round_whose_clients_have_no_samples_changes_nothing_and_says_so() -> None:
    empty = {client_id(index): 0 for index in range(6)}
    _, tape = virtually(run_of("a", rounds=2, samples=empty))
    assert all(record.version == -1 and record.outer is None and record.theta.round == -1 for record in tape)
    assert {record.reason for record in tape} == {"every client has reported, without any samples"}


def test_the_client_of_a_learner_that_died_is_trained_by_another_within_a_lease() -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(per_round=2), rounds=3)
        loop = asyncio.get_running_loop()
        slow = ClientLearner(store, manifest, "slow", machines, step_s=100.0)
        quick = ClientLearner(store, manifest, "quick", machines, step_s=STEP_S)
        dying = asyncio.create_task(slow.live())
        await until(lambda: slow.trained)
        other = asyncio.create_task(quick.live())
        await until(lambda: quick.trained)
        dying.cancel()
        died_at_s = loop.time()
        await asyncio.gather(dying, return_exceptions=True)
        exchange = Exchange(MemoryMailbox(store), manifest)
        taken_over = exchange.keys.client_claim(0, slow.trained[0].unit, 1)
        await until(lambda: taken_over in store.objects)
        # Its last beat was seen before it died, and others look at the share several times a beat.
        assert loop.time() - died_at_s <= LEASE_S + quick.participant.poll_s + 0.05
        assert await other == "done"
        (taken,) = [client for client in quick.trained if client.unit == slow.trained[0].unit and client.round == 0]
        assert taken.claim == 1
        tape = await records(store, manifest)
        assert [p.claim for p in tape[0].participants if p.unit == taken.unit] == [1]

    virtually(scenario())


def test_who_was_killed_and_restarted_changes_no_byte() -> None:
    async def scenario() -> str:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(), rounds=4)
        first = ClientLearner(store, manifest, "a", machines, step_s=STEP_S)
        life = asyncio.create_task(first.live())
        await asyncio.sleep(1.75)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        again = ClientLearner(store, manifest, "a", machines, step_s=STEP_S)  # same machine: the holder is provably gone
        assert await again.live() == "done"
        assert again.participant.me.incarnation == 2
        return again.params

    (alone,), _ = virtually(run_of("a"))
    assert virtually(scenario()) == alone.params


def test_a_deadline_closes_without_stragglers_and_says_so() -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(per_round=2, deadline_s=5.0, min_clients=1), rounds=2)
        slow = ClientLearner(store, manifest, "slow", machines, step_s=30.0)
        lives = [asyncio.create_task(slow.live())]
        await until(lambda: slow.trained)
        quick = ClientLearner(store, manifest, "quick", machines, step_s=STEP_S)
        lives.append(asyncio.create_task(quick.live()))
        await asyncio.gather(*lives)
        tape = await records(store, manifest)
        assert len(tape[0].participants) == 1
        assert tape[0].reason == "the deadline is over: 1 of 2 clients"
        assert slow.given_up  # it does not finish what nobody waits for

    virtually(scenario())


def test_at_its_deadline_a_round_waits_for_the_clients_that_it_needs() -> None:
    spec = federation(per_round=2, deadline_s=0.5, min_clients=2)
    _, tape = virtually(run_of("a", rounds=2, spec=spec))
    assert all(len(record.participants) == 2 for record in tape)


def test_a_client_that_is_not_finite_is_rejected_alone() -> None:
    bad = frozenset({sampled(federation(), 0, 0)[0]})
    _, tape = virtually(run_of("ab", rounds=1, poisoned=bad))
    assert [(r.unit, r.reason) for r in tape[0].rejected] == [(*bad, "nonfinite")]
    assert len(tape[0].participants) == 2


def test_training_longer_than_a_lease_loses_nothing() -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(per_round=2), rounds=2)
        learners = [ClientLearner(store, manifest, name, machines, step_s=4 * LEASE_S) for name in "ab"]
        assert await together(*(learner.live() for learner in learners)) == ["done", "done"]
        assert all(client.claim == 0 for learner in learners for client in learner.trained)

    virtually(scenario())


def test_a_client_that_was_given_up_leaves_nothing_to_the_next() -> None:
    """Of one learner in one process: each begins with the committed parameters."""

    async def scenario() -> None:
        store = MemoryStore()
        manifest = await new_run(store, federation(), rounds=4)
        theta = unpack(memoryview(store.objects[Exchange(MemoryMailbox(store), manifest).key_of(0, manifest.init[0])]))
        adapter = NumpyAdapter(model(3))
        loop = ClientLoop(adapter, federation(), start=Aligned(newest=-1, fragments={0: ("0" * 64, theta)}))

        def disturb() -> None:
            adapter.apply({name: array + 1 for name, array in adapter.snapshot().items()})

        def committed(by: float = 0.0) -> bool:
            return all(np.array_equal(array, theta[name] + np.float32(by)) for name, array in adapter.snapshot().items())

        for unit in ("client-0001", "client-0001", "client-0002"):  # interrupted, begun again, and another one
            assert loop.begin(Assignment(round=0, unit=unit, claim=0))
            assert committed()
            assert loop.steps == 0
            loop.count(samples=5, loss=1.0)
            disturb()
        theta = {name: array * 2 for name, array in theta.items()}
        loop.align(Aligned(newest=0, fragments={0: ("1" * 64, theta)}))  # its round was closed meanwhile
        assert committed()
        assert not loop.begin(Assignment(round=0, unit="client-0003", claim=0))
        disturb()
        assert loop.begin(Assignment(round=1, unit="client-0003", claim=0))
        assert committed()
        disturb()
        published = loop.done(samples=5, seconds_s=1.0)
        assert (published.base_sha256, published.steps) == ("1" * 64, 0)
        assert all(np.allclose(array, -1, atol=1e-5) for array in published.delta.values()), "of this client alone"

    virtually(scenario())


@pytest.mark.parametrize("same", [True, False])
def test_of_a_client_that_two_published_the_lowest_claim_counts(same: bool) -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(per_round=2), rounds=1)
        unit = sampled(federation(per_round=2), 0, 0)[0]
        exchange = Exchange(MemoryMailbox(store), manifest)
        learner = ClientLearner(store, manifest, "a", machines, step_s=2.0)
        life = asyncio.create_task(learner.live())
        await until(lambda: unit in [client.unit for client in learner.trained])
        # Somebody whose listing was late has trained it too, by the next claim.
        await exchange.claim_client(0, unit, 1, Claim(round=0, learner="b", incarnation=1))
        await until(lambda: any(key.startswith(f"{exchange.keys.snapshots(0)}{unit}/") for key in store.objects))
        (snapshot,) = [s for s in (await exchange.snapshots(0, {})).values() if s is not None and s.unit == unit]
        payload = store.objects[exchange.delta_key(snapshot)]
        delta = {name: array + (not same) for name, array in unpack(memoryview(payload)).items()}
        theirs = msgspec.structs.replace(snapshot, learner="b", claim=1)
        await exchange.publish(theirs, delta)
        assert await life == "done"
        (record,) = await records(store, manifest)
        assert [p.claim for p in record.participants if p.unit == unit] == [0]
        assert [(r.unit, r.learner, r.reason, r.differs) for r in record.rejected] == [(unit, "b", "duplicate", not same)]
        told = [event.message for event in learner.events if isinstance(event, Trouble)]
        assert told == ([] if same else [f"{unit}: two learners trained it to different bytes: replay is not exact"])

    virtually(scenario())


def test_a_client_that_was_not_sampled_is_rejected() -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(per_round=2), rounds=1)
        exchange = Exchange(MemoryMailbox(store), manifest)
        learner = ClientLearner(store, manifest, "a", machines, step_s=1.0)
        life = asyncio.create_task(learner.live())
        chosen = sampled(federation(per_round=2), 0, 0)
        other = next(client_id(k) for k in range(6) if client_id(k) not in chosen)
        await until(lambda: any("/snapshots/0000000000/client-" in key for key in store.objects))
        (snapshot,) = [s for s in (await exchange.snapshots(0, {})).values() if s is not None]
        delta = unpack(memoryview(store.objects[exchange.delta_key(snapshot)]))
        await exchange.publish(msgspec.structs.replace(snapshot, learner="liar", unit=other), delta)
        assert await life == "done"
        (record,) = await records(store, manifest)
        assert tuple(p.unit for p in record.participants) == chosen
        assert [(r.learner, r.unit, r.reason) for r in record.rejected] == [("liar", other, "unsampled")]

    virtually(scenario())


def test_a_stop_lets_clients_that_were_begun_finish_and_begins_no_more() -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(), rounds=10)
        learner = ClientLearner(store, manifest, "a", machines, step_s=1.0)
        life = asyncio.create_task(learner.live())
        await asyncio.sleep(2.0)
        await Exchange(MemoryMailbox(store), manifest).control(Control(action="stop"))
        assert await life == "stopped"
        (record,) = await records(store, manifest)
        assert len(record.participants) == len(learner.trained) == 1
        assert record.reason == "the run ends"

    virtually(scenario())


def test_a_stop_waits_no_longer_than_a_lease_for_clients_that_were_begun() -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(), rounds=10)
        learner = ClientLearner(store, manifest, "a", machines, step_s=1000.0)
        life, loop = asyncio.create_task(learner.live()), asyncio.get_running_loop()
        await until(lambda: learner.trained)
        asked_at_s = loop.time()
        await Exchange(MemoryMailbox(store), manifest).control(Control(action="stop"))
        exchange = Exchange(MemoryMailbox(store), manifest)
        while await exchange.newest_round() < 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert LEASE_S <= loop.time() - asked_at_s < LEASE_S + 2
        assert await life == "stopped"
        assert learner.given_up == learner.trained

    virtually(scenario())


def test_a_stop_ends_a_run_whose_private_clients_have_not_come() -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, private(per_round=2), rounds=10)
        learner = ClientLearner(store, manifest, "a", machines)
        life = asyncio.create_task(learner.live())
        await asyncio.sleep(10)
        said = [event.reason for event in learner.events if isinstance(event, Waiting)]
        assert said == ["waiting for 1 more learner"]
        await Exchange(MemoryMailbox(store), manifest).control(Control(action="stop"))
        assert await life == "stopped"

    virtually(scenario())


def test_a_client_of_one_step_has_a_first_and_a_last_loss() -> None:
    _, tape = virtually(run_of("a", rounds=1, steps=1))
    assert all(p.metrics == {"first_loss": 1.0, "last_loss": 1.0} for p in tape[0].participants)


def test_a_pause_lets_the_round_finish_and_nothing_is_trained_until_it_is_resumed() -> None:
    async def scenario() -> str:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(), rounds=4)
        learner = ClientLearner(store, manifest, "a", machines, step_s=STEP_S)
        life = asyncio.create_task(learner.live())
        await asyncio.sleep(0.5)
        exchange = Exchange(MemoryMailbox(store), manifest)
        await exchange.control(Control(action="pause"))
        await asyncio.sleep(60)
        assert await exchange.newest_round() == 0
        await exchange.control(Control(action="resume"))
        assert await life == "done"
        assert all(len(record.participants) == 3 for record in await records(store, manifest))
        return learner.params

    (alone,), _ = virtually(run_of("a"))
    assert virtually(scenario()) == alone.params


def test_a_syncer_closes_for_learners_that_do_not() -> None:
    async def scenario() -> str:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(), rounds=4)
        learners = [ClientLearner(store, manifest, name, machines, step_s=STEP_S, role="learner") for name in "ab"]
        syncer = Syncer(store, manifest, "nas", machines)
        assert await together(syncer.live(), *(learner.live() for learner in learners)) == ["done"] * 3
        assert {record.closer for record in await records(store, manifest)} == {"nas"}
        return learners[0].params

    (alone,), _ = virtually(run_of("a"))
    assert virtually(scenario()) == alone.params


@pytest.mark.parametrize("n", [7, 2**53, 10**18 - 1])
def test_a_claim_of_an_absurd_number_keeps_nobody_from_its_client(n: int) -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(), rounds=2)
        exchange = Exchange(MemoryMailbox(store), manifest)
        first = sampled(federation(), 0, 0)[0]
        assert await exchange.claim_client(0, first, n, Claim(round=0, learner="nobody", incarnation=1))
        assert await exchange.claim(0, n, Claim(round=0, learner="nobody", incarnation=1))
        learners = [ClientLearner(store, manifest, name, machines, step_s=STEP_S) for name in "ab"]
        assert await together(*(learner.live() for learner in learners)) == ["done", "done"]
        (taken,) = [p for p in (await records(store, manifest))[0].participants if p.unit == first]
        assert taken.claim == 0

    virtually(scenario())


# Private clients


def private(**fields: Any) -> FedAvg:
    return federation(private=True, **fields)


def test_private_clients_are_sampled_among_those_that_are_live() -> None:
    learners, tape = virtually(run_of("abcde", rounds=6, spec=private(per_round=2)))
    for record, before in zip(tape[1:], tape, strict=False):
        assert before.clients == draw("abcde", 2, seed=2, round=record.round)
        assert tuple(p.unit for p in record.participants) == before.clients
        assert all(p.learner == p.unit for p in record.participants)
    assert len(tape[0].participants) == 2
    assert all(client.unit == learner.name for learner in learners for client in learner.trained)
    told = [p for record in tape for p in record.participants]  # nothing is but counts and times
    assert all(p.train_loss is None and p.metrics == {} and p.tokens == SAMPLES for p in told)


def test_private_clients_that_left_are_not_waited_for() -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, private(per_round=2), rounds=6)
        stays = ClientLearner(store, manifest, "stays", machines, step_s=STEP_S)
        goes = ClientLearner(store, manifest, "goes", machines, step_s=STEP_S)
        lives = [asyncio.create_task(each.live()) for each in (stays, goes)]
        await asyncio.sleep(1.0)
        lives[1].cancel()
        await asyncio.gather(lives[1], return_exceptions=True)
        assert await lives[0] == "done"
        tape = await records(store, manifest)
        assert [p.unit for p in tape[-1].participants] == ["stays"]

    virtually(scenario())


def test_round_0_waits_for_as_many_private_clients_as_a_round_samples() -> None:
    async def scenario() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, private(per_round=2), rounds=2)
        first = ClientLearner(store, manifest, "first", machines, step_s=STEP_S)
        life = asyncio.create_task(first.live())
        await asyncio.sleep(60)
        assert not first.trained
        second = ClientLearner(store, manifest, "second", machines, step_s=STEP_S)
        assert await together(life, second.live()) == ["done", "done"]

    virtually(scenario())


def test_a_sample_of_another_round_is_damaged() -> None:
    async def scenario() -> None:
        store = MemoryStore()
        exchange = Exchange(MemoryMailbox(store), await new_run(store, private(), rounds=2))
        await exchange.name_sample(Sample(round=0, clients=("a",)))
        store.objects[exchange.keys.sample(1)] = store.objects[exchange.keys.sample(0)]
        with pytest.raises(MailboxCorrupt, match="is the sample of round 0"):
            await exchange.sample(1)

    virtually(scenario())
