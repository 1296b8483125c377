"""A signed run beside somebody who can write to the share and does not know the passphrase."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from swarm import advertising
from swarm.core.errors import RecordForged, RunSigned
from swarm.core.events import Trouble
from swarm.core.keys import RunKeys, work_claim
from swarm.core.lines import encode
from swarm.core.manifest import Manifest
from swarm.core.rankjob import Saved
from swarm.core.ranks import CheckpointAt
from swarm.core.records import Beat, Checkpoint, Claim, Control, EvalRecord, LearnerRecord, Role, RoundRecord, Sample, Snapshot
from swarm.core.specs import Algorithm, DiLoCo, FedAvg
from swarm.core.trust import SwarmKey, Trust
from swarm.core.work import NOBODY, Holder
from swarm.exchange import Exchange, create_run
from swarm.host import keyfile
from swarm.learners.numpy import NumpyAdapter
from swarm.library.barrier import Meeting
from swarm.library.member import Member, Units
from swarm.mailbox.contract import MAX_READ_BYTES, Mailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.signed import SignedMailbox
from swarm.manifests import read_manifest, read_to_write, read_with_trust
from swarm.neighbours import Neighbourhood
from swarm.parallel.register import Register, generations, read_end, read_plan
from swarm.parallel.store import Store
from swarm.tape import Tape, nonce
from swarm.watch import Home, HomeWatch, RunWatch
from tests.integration.federation import ClientLearner
from tests.integration.roles import Syncer
from tests.integration.simulation import Learner, Machines, draft_of, model, together, virtually

KEY, OTHER = SwarmKey(bytes(range(32))), SwarmKey(bytes(32))
SPEC = DiLoCo(sync_every=4, quorum_size=2, beat_s=0.5, lease_s=2.0)
FEDERATED = FedAvg(clients=4, per_round=2, optimizer="sgd", beat_s=0.5, lease_s=2.0)
RUN = "testrun1"
ROUNDS = 6
TOO_LARGE = bytes(MAX_READ_BYTES + 1)


def signed(mailbox: Mailbox) -> SignedMailbox:
    return SignedMailbox(mailbox, KEY)


async def new_signed_run(store: MemoryStore, spec: Algorithm = SPEC, **fields: object) -> Manifest:
    draft = draft_of(NumpyAdapter(model(7)), spec, rounds=ROUNDS, **fields)
    return (await create_run(signed(MemoryMailbox(store)), *draft))[0]


def forged(body: msgspec.Struct) -> bytes:
    """As somebody writes it who has no passphrase."""
    return encode(body, nonce=nonce())


def too_large(key: str, body: msgspec.Struct) -> bytes:
    return TOO_LARGE


async def otherwise(key: str, body: msgspec.Struct) -> bytes:
    """As somebody writes it who has another one."""
    store = MemoryStore()
    mailbox = SignedMailbox(MemoryMailbox(store), OTHER)
    if key.endswith("/record.json"):
        await mailbox.create(key, forged(body))
    else:
        await mailbox.put(key, [forged(body)])
    return store.objects[key]


def learner_record(name: str, incarnation: int) -> LearnerRecord:
    return LearnerRecord(
        learner=name, incarnation=incarnation, machine="m", machine_name="m", boot="b", pid=1, process="1", version="0"
    )


def forgeries(round: int, theta: RoundRecord | None, manifest: Manifest) -> Iterator[tuple[str, msgspec.Struct]]:
    """One of each kind that would matter if it counted, for the open round."""
    keys = RunKeys(RUN)
    ref = manifest.init[0]
    for learner, incarnation in (("evil", 1), ("a", 1), ("b", 9)):
        yield (
            keys.snapshot(round, unit=learner, learner=learner, incarnation=incarnation),
            Snapshot(
                learner=learner,
                incarnation=incarnation,
                unit=learner,
                round=round,
                fragment=0,
                base_sha256=ref.sha256,
                schema_sha256=manifest.schema_sha256,
                payload=msgspec.structs.replace(ref, round=round),
                dtype="F32",
                tokens=10**9,
                steps=10,
                train_loss=0.0,
                seconds_s=1.0,
            ),
        )
    yield keys.claim(round, 0), Claim(round=round, learner="evil", incarnation=1)
    yield keys.eval_claim(round), Claim(round=round, learner="evil", incarnation=1)
    yield keys.eval(round), EvalRecord(round=round, learner="evil", loss=0.0)
    yield keys.learner("evil", 1), learner_record("evil", 1)
    yield keys.learner("a", 7), learner_record("a", 7)
    for learner in ("evil", "a"):
        yield keys.beat(learner, 9, round), Beat(phase="train", round=round, step=1)
    yield keys.control_record(round + 1), Control(action="stop", by="evil")
    yield keys.checkpoint(round), Checkpoint(round=round, theta=(ref,))


KINDS = {"snapshot", "claim", "evaluation", "learner", "beat", "control", "checkpoint"}


async def attack(store: MemoryStore, manifest: Manifest, write: Callable[[str, msgspec.Struct], object]) -> None:
    """Forge whatever is not there yet, round after round."""
    tape = Tape(signed(MemoryMailbox(store)), manifest)
    while True:
        for key, body in forgeries(await tape.newest_round() + 1, None, manifest):
            if key not in store.objects:
                store.objects[key] = write(key, body) if not asyncio.iscoroutinefunction(write) else await write(key, body)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("how", [lambda key, body: forged(body), otherwise, lambda key, body: b"\0junk", too_large])
def test_a_signed_run_goes_on_beside_an_attacker_who_forges_everything_but_rounds(how) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_signed_run(store, checkpoint_every=2)
        attacking = asyncio.create_task(attack(store, manifest, how))
        await asyncio.sleep(0.01)  # the first to come
        learners = [Learner(store, manifest, name, machines, wrap=signed) for name in "ab"]
        assert await together(*(x.live() for x in learners)) == ["done", "done"]
        assert not attacking.done(), attacking.exception()
        attacking.cancel()
        mailbox = signed(MemoryMailbox(store))
        exchange = Exchange(mailbox, manifest)
        records = [await exchange.round(r) for r in range(ROUNDS)]
        assert await exchange.newest_round() == ROUNDS - 1
        for record in records:
            assert record is not None
            assert [p.learner for p in record.participants] == ["a", "b"], record
            assert not record.rejected
        assert learners[0].params == learners[1].params != ""
        met: set[str] = set()
        for x in learners:
            assert x.participant.me.incarnation == 1 or x.name == "a"
            inner = x.exchange.mailbox
            assert isinstance(inner, SignedMailbox)
            met |= inner.forged(RUN).kinds.keys()
        assert met >= {"snapshot", "claim", "beat", "control"}

        watch = RunWatch("memory", RUN, store=mailbox)
        state = await watch.poll()
        assert (state.lost, state.open_round, state.stopped) == (None, ROUNDS, False)
        assert "evil" not in {v.learner for v in state.learners}
        assert not state.evals
        assert state.trust.word == f"signed {KEY.fingerprint}"
        assert state.trust.forged.count > 0
        assert state.trust.ignored.endswith(state.trust.forged.newest)

    virtually(main())


@pytest.mark.parametrize("role", ["both", "syncer"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_forged_round_stops_everybody_with_its_name(role: Role, at: int) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_signed_run(store)
        key = RunKeys(RUN).round(at)
        honest = RoundRecord(
            round=at, fragment=0, step=4 * (at + 1), version=-1, parent=None, participants=(), rejected=(),
            theta=manifest.init[0], outer=None, closer="evil",
        )  # fmt: skip
        names = {"a": "both", "b": "both", "c": role}
        learners = [
            (Learner if r != "syncer" else Syncer)(store, manifest, name, machines, wrap=signed) for name, r in names.items()
        ]
        lives = [asyncio.create_task(x.live()) for x in learners]
        tape = Tape(signed(MemoryMailbox(store)), manifest)
        while at and await tape.newest_round() < at - 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        store.objects.setdefault(key, forged(honest))
        began_s = asyncio.get_running_loop().time()
        ended = await together(*lives)
        waited_s = asyncio.get_running_loop().time() - began_s
        assert 3 * SPEC.lease_s * (at > 0) <= waited_s < 10 * SPEC.lease_s, (
            "it might have been damaged on the way, and be whole"
        )
        assert all(isinstance(error, RecordForged) and key in str(error) for error in ended), ended
        # Who looks later is told the same, and goes on looking without an end of the words.
        watch = RunWatch("memory", RUN, store=signed(MemoryMailbox(store)))
        for _ in range(3):
            state = await watch.poll()
            assert state.halted
            assert key in (state.lost or "")
            assert (state.open_round, state.trust.forged.kinds) == (at, {"round": 1})
        # Whoever removes it lets the run go on: nobody has taken it for true.
        del store.objects[key]
        again = [Learner(store, manifest, name, machines, wrap=signed) for name in "ab"]
        assert await together(*(x.live() for x in again)) == ["done", "done"]
        state = await watch.poll()
        assert (state.halted, state.lost, state.open_round) == (False, None, ROUNDS)

    virtually(main())


class Garbling(MemoryMailbox):
    """The first reads of each round record get it damaged."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.left: dict[str, int] = {}

    async def read(self, key: str) -> bytes | None:
        data = await super().read(key)
        if data is None or "/rounds/" not in key or self.left.setdefault(key, 3) == 0:
            return data
        self.left[key] -= 1
        return data[:-9] + b"#" + data[-8:]


def test_a_round_that_is_damaged_on_the_way_is_read_again() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_signed_run(store)
        garbling = Garbling(store)
        wraps = {"a": signed, "b": lambda mailbox: signed(garbling)}
        learners = [Learner(store, manifest, name, machines, wrap=wrap) for name, wrap in wraps.items()]
        assert await together(*(x.live() for x in learners)) == ["done", "done"]
        assert any(isinstance(event, Trouble) and "/rounds/" in event.message for event in learners[1].events)
        assert garbling.left
        assert not any(garbling.left.values())
        assert learners[0].params == learners[1].params

    virtually(main())


def test_records_of_another_run_or_round_are_no_use_to_an_attacker() -> None:
    """Both runs are of one swarm, and all of their records are signed."""

    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        other, manifest = await new_signed_run(store, run="otherrun"), await new_signed_run(store)
        mailbox = signed(MemoryMailbox(store))
        await Tape(mailbox, other).control(Control(action="stop", by="a"))
        await together(*(Learner(store, other, name, machines, wrap=signed).live() for name in "ab"))
        stop, theirs = RunKeys("otherrun").control_record(1), RunKeys(RUN).control_record(1)
        store.objects[theirs] = store.objects[stop]
        learners = [Learner(store, manifest, name, machines, wrap=signed) for name in "ab"]
        lives = [asyncio.create_task(x.live()) for x in learners]
        tape = Tape(mailbox, manifest)
        while await tape.newest_round() < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert [c.action for c in await tape.controls(())] == ["unknown"]
        assert await tape.control(Control(action="stop", by="a")) == 2  # a real one goes to the next number
        assert await together(*lives) == ["stopped", "stopped"]
        newest = await tape.newest_round()
        store.objects[RunKeys(RUN).round(newest + 1)] = store.objects[RunKeys(RUN).round(newest)]
        with pytest.raises(RecordForged):
            await tape.round(newest + 1)

    virtually(main())


async def test_who_is_named_by_an_absurd_snapshot_can_still_report() -> None:
    store = MemoryStore()
    manifest = await new_signed_run(store)
    tape, forger = Tape(signed(MemoryMailbox(store)), manifest), forgeries(0, None, manifest)
    key, body = next((key, body) for key, body in forger if isinstance(body, Snapshot) and body.learner == "a")
    store.objects[key] = TOO_LARGE
    found = await tape.snapshots(0, {})
    assert found == {}
    await tape.mailbox.put(key, [forged(body)])
    assert await tape.snapshots(0, found) == {key: body}


@pytest.mark.parametrize("checkpoints_kept", [0, 2])
async def test_forged_checkpoints_of_rounds_to_come_cost_no_real_one(checkpoints_kept: int) -> None:
    store = MemoryStore()
    manifest = await new_signed_run(store, checkpoints_kept=checkpoints_kept)
    exchange, keys = Exchange(signed(MemoryMailbox(store)), manifest), RunKeys(RUN)
    values = model(7)

    async def theta(fragment: int) -> dict[str, np.ndarray]:
        return {name: values[name] for name in exchange.plan[fragment]}

    made_up = [keys.checkpoint(9_999_999_990 + n) for n in range(4)]
    for n, key in enumerate(made_up):
        store.objects[key] = forged(Checkpoint(round=9_999_999_990 + n, theta=manifest.init))
    for round in (1, 3, 5):
        await exchange.keep_checkpoint(round, theta)
    assert await exchange.checkpoints() == [1, 3, 5][3 - checkpoints_kept :]
    for round in await exchange.checkpoints():
        assert (await exchange.fetch_checkpoint(round)).keys() == values.keys()
    assert store.objects.keys() >= set(made_up)  # what nobody of the swarm has written is left to people


LARGEST = 10**18 - 1  # that a key holds


def test_forged_incarnations_leave_a_learner_its_next_one() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_signed_run(store)
        keys, exchange = RunKeys(RUN), Exchange(signed(MemoryMailbox(store)), manifest)
        for learner in "ab":
            store.objects[keys.learner(learner, LARGEST)] = forged(learner_record(learner, 1))
        assert await exchange.incarnations("a") == []
        assert await Exchange(MemoryMailbox(store), manifest).incarnations("a") == [LARGEST]
        learners = [Learner(store, manifest, name, machines, wrap=signed) for name in "ab"]
        assert await together(*(x.live() for x in learners)) == ["done", "done"]
        assert [x.participant.me.incarnation for x in learners] == [1, 1]
        assert await exchange.incarnations("a") == [1]
        for n in (2, 3, 7, 8):
            store.objects[keys.learner("a", n)] = forged(learner_record("a", n))
        assert await exchange.incarnations("a") == [1, 2, 3]  # 2 and 3 are taken, whoever wrote them
        assert await exchange.register(learner_record("a", 4), nonce=nonce())
        assert await exchange.incarnations("a") == [1, 2, 3, 4]

    virtually(main())


async def test_forged_claims_leave_a_unit_its_next_one() -> None:
    store = MemoryStore()
    member = Member(signed(MemoryMailbox(store)), await new_signed_run(store), "a", 1)
    prefix = member.keys.queue("q")
    units = Units(member, prefix)
    store.objects[work_claim(prefix, 0, LARGEST)] = forged(member.holder)
    assert await units.look(0) == (-1, NOBODY, False)
    assert await units.claim(0, 0, member.holder)
    assert await units.look(0) == (0, member.holder, False)
    store.objects[work_claim(prefix, 0, 1)] = forged(Holder(learner="evil", incarnation=1))
    assert await units.look(0) == (1, NOBODY, False)  # taken, by nobody
    assert await units.claim(0, 2, member.holder)
    del store.objects[work_claim(prefix, 0, 0)]
    assert await units.look(0) == (2, member.holder, False)  # as a late listing has it


@pytest.mark.parametrize("generation", [1, 9_999_999_999, LARGEST])
def test_forged_generations_of_a_barrier_lead_nobody_astray(generation: int) -> None:
    async def main() -> None:
        store = MemoryStore()
        manifest, keys = await new_signed_run(store), RunKeys(RUN)
        evil = Holder(learner="evil", incarnation=1)
        store.objects[keys.arrival("b", generation, learner="evil", incarnation=1)] = forged(evil)
        store.objects[keys.barrier_open("b", generation)] = forged(evil)
        early, late = (Meeting(Member(signed(MemoryMailbox(store)), manifest, name, 1), "b", 2) for name in "ab")
        waiting = asyncio.create_task(early.wait(60.0))
        await asyncio.sleep(1.0)
        assert await asyncio.gather(waiting, late.wait(60.0)) == [0, 0]

    virtually(main())


def test_clients_are_claimed_past_forged_claims() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_signed_run(store, FEDERATED)
        keys = RunKeys(RUN)
        for round in range(ROUNDS):
            for n in range(4):
                body = Claim(round=round, learner="a", incarnation=1)
                store.objects[keys.client_claim(round, f"client-{n:04d}", 0)] = forged(body)
        learners = [ClientLearner(store, manifest, name, machines, wrap=signed) for name in "ab"]
        assert await together(*(x.live() for x in learners)) == ["done", "done"]
        exchange = Exchange(signed(MemoryMailbox(store)), manifest)
        for round in range(ROUNDS):
            record = await exchange.round(round)
            assert record is not None
            assert len(record.participants) == 2
            assert not record.rejected

    virtually(main())


def test_a_forged_sample_of_private_clients_stops_with_its_name() -> None:
    """It cannot be created over, and every learner must train with the same one."""

    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = FedAvg(private=True, per_round=2, min_clients=2, optimizer="sgd", beat_s=0.5, lease_s=2.0)
        manifest = await new_signed_run(store, spec)
        key = RunKeys(RUN).sample(0)
        store.objects[key] = forged(Sample(round=0, clients=("evil",)))
        learners = [ClientLearner(store, manifest, name, machines, wrap=signed) for name in "ab"]
        ended = await together(*(x.live() for x in learners))
        assert all(isinstance(error, RecordForged) and key in str(error) for error in ended), ended

    virtually(main())


# Machines with and without the passphrase


async def test_who_may_read_and_who_may_write() -> None:
    store = MemoryStore()
    manifest = await new_signed_run(store)
    plain, other = MemoryMailbox(store), SignedMailbox(MemoryMailbox(store), OTHER)
    assert await read_with_trust(signed(plain), RUN) == (manifest, Trust(signed=True, fingerprint=KEY.fingerprint))
    assert await read_to_write(signed(plain), RUN) == manifest
    assert await read_with_trust(plain, RUN) == (manifest, Trust(signed=True))  # whoever has none may watch
    with pytest.raises(RunSigned, match="swarm key import"):
        await read_to_write(plain, RUN)
    with pytest.raises(RecordForged) as raised:
        await read_manifest(other, RUN)
    assert not raised.value.unsigned
    unsigned, _ = await create_run(plain, *draft_of(NumpyAdapter(model(7)), SPEC, run="openrun1"))
    assert await read_with_trust(plain, "openrun1") == (unsigned, Trust())
    assert await read_to_write(plain, "openrun1") == unsigned
    with pytest.raises(RecordForged) as raised:
        await read_manifest(signed(plain), "openrun1")
    assert raised.value.unsigned


async def test_the_passphrase_is_looked_at_again_only_when_it_may_be_another(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWARM_KEY_FILE", raising=False)
    keyfile.keep("correct horse battery staple")
    looks: list[object] = []

    def look() -> SwarmKey | None:
        looks.append(None)
        return keyfile.load_key()

    monkeypatch.setattr(advertising, "load_key", look)
    near, watch = Neighbourhood(network=False), HomeWatch(())
    near.start()
    for home in (Home(), Home(), await watch.poll(), await watch.poll(), Home()):
        near.poll(home)
    assert len(looks) == 1
    keyfile.forget()
    near.poll(Home())
    assert len(looks) == 1
    for _ in range(3):
        near.poll(await watch.poll())
    assert len(looks) == 2
    assert not near._telling.signs
    near.close()


async def test_a_run_is_not_made_over_one_of_the_same_id() -> None:
    store = MemoryStore()
    draft = draft_of(NumpyAdapter(model(7)), SPEC)
    manifest, made = await create_run(signed(MemoryMailbox(store)), *draft)
    assert made
    with pytest.raises(RunSigned):
        await create_run(MemoryMailbox(store), *draft)
    with pytest.raises(RecordForged):
        await create_run(SignedMailbox(MemoryMailbox(store), OTHER), *draft)
    assert (await create_run(signed(MemoryMailbox(store)), *draft)) == (manifest, False)


# Data-parallel jobs


async def test_forged_generations_plans_and_ends_are_stepped_over() -> None:
    from tests.integration import handmade_job

    store = MemoryStore()
    keys, mailbox = RunKeys(RUN), signed(MemoryMailbox(store))
    plan = handmade_job.plan(0, ("studio", "mbp"))
    for generation in (0, 999_999):
        store.objects[keys.rank_plan(generation)] = forged(msgspec.structs.replace(plan, generation=generation))
    assert await generations(mailbox, keys) == []
    assert await generations(MemoryMailbox(store), keys) == [0, 999_999]
    assert await read_plan(mailbox, keys, 0) == "bad"
    register = Register(mailbox, keys, 0)
    await register.look()
    assert register.plan is None
    assert register.end is not None
    assert register.end.goes_on
    await register.finish(register.end)  # the next one begins
    end = await read_end(mailbox, keys, 0)
    assert end is not None
    assert end.goes_on
    assert await generations(mailbox, keys) == [0]


async def test_forged_checkpoints_of_steps_to_come_cost_no_real_one(tmp_path: Path) -> None:
    mailbox, keys = MemoryStore(), RunKeys(RUN)
    store = Store(signed(MemoryMailbox(mailbox)), keys)
    made_up = [CheckpointAt(generation=0, step=9_999_999_990 + n) for n in range(3)]
    for path in (tmp_path / "state", tmp_path / "adapter"):
        path.write_bytes(b"x")
    saved = Saved(step=0, iteration=0, checkpoint=str(tmp_path / "state"), adapter=str(tmp_path / "adapter"))
    first = await store.put(CheckpointAt(generation=0, step=10), saved=saved, by="a")
    for at in made_up:
        mailbox.objects[keys.job_checkpoint(at.generation, at.step)] = forged(
            msgspec.structs.replace(first, generation=at.generation, step=at.step)
        )

    async def ended() -> bool:
        return False

    for step in (20, 30):
        await store.tidy(0, ended)
        await store.put(CheckpointAt(generation=0, step=step), saved=saved, by="a")
    await store.tidy(0, ended)
    assert await store.steps(0) == [20, 30]
    for step in (20, 30):
        record = await store.record(CheckpointAt(generation=0, step=step))
        assert record is not None
        assert keys.job_file(0, step, record.state.sha256) in mailbox.objects


def test_no_trouble_is_told_in_a_signed_run_without_an_attacker() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_signed_run(store, checkpoint_every=2)
        learners = [Learner(store, manifest, name, machines, wrap=signed) for name in "ab"]
        assert await together(*(x.live() for x in learners)) == ["done", "done"]
        assert not [event for x in learners for event in x.events if isinstance(event, Trouble)]
        mailbox = signed(MemoryMailbox(store))
        for key in [key for key in store.objects if key.startswith("runs/") and key.endswith(".json")]:
            assert await mailbox.read(key) is not None
        assert mailbox.forged(RUN).count == 0

    virtually(main())
