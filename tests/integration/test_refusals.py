"""Machines that are turned away from a run: what they tell the others, who believes it, and when it goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from swarm import __version__, refusals, worker
from swarm.cli import run
from swarm.core.errors import (
    DataMissing,
    LearnerIdTaken,
    MailboxUnavailable,
    RecordForged,
    RunEnded,
    RunSigned,
    SchemaMismatch,
    UsageError,
)
from swarm.core.events import Joined
from swarm.core.jobs import Learn
from swarm.core.keys import RunKeys, parse_refusal
from swarm.core.lines import body_sha256, encode
from swarm.core.manifest import FileRef, TaskRef
from swarm.core.records import MAX_REASON, JoinRefusal
from swarm.core.specs import DiLoCo
from swarm.core.trust import SwarmKey
from swarm.host import keyfile
from swarm.host.identity import identity
from swarm.mailbox import open_mailbox
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.signed import SignedMailbox
from swarm.watch import REFUSALS_EVERY, RunWatch
from tests.integration import audited
from tests.integration.handmade import beat, make_mailbox, make_run, manifest_of_another_format, on, stop
from tests.integration.jobs import Machine, World
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.wrappers import Counting

RUN = "testrun1"
PLACE = RunKeys(RUN)
KEY = SwarmKey(bytes(range(32)))
BIG = FileRef(name="rows.jsonl", kind="data", sha256="1" * 64, size_bytes=1 << 30, chunk_bytes=1 << 20, hashes_sha256="2" * 64)


def refusal(machine: str = "m1", reason: str = "no torch", **fields: str) -> JoinRefusal:
    return JoinRefusal(**{"machine": machine, "machine_name": machine, "version": "1", "reason": reason} | fields)


async def words(mailbox: MemoryMailbox | SignedMailbox) -> dict[str, str]:
    found = await refusals.read(mailbox, RUN, {})
    return {record.machine: record.reason for record in found.values() if record is not None}


# Writing and reading


def test_a_machine_keeps_one_and_writes_nothing_twice() -> None:
    async def main() -> None:
        box = Counting(MemoryMailbox(MemoryStore()))
        await refusals.write(box, RUN, refusal())
        await refusals.write(box, RUN, refusal("m2", "no data"))
        for _ in range(3):
            box.calls.clear()
            await refusals.write(box, RUN, refusal())
            assert box.ops() == {"list": 1}
        await refusals.write(box, RUN, refusal(reason="no data"))
        await refusals.write(box, RUN, refusal())
        listed = [parse_refusal(key) for key in await box.list(PLACE.refused)]
        assert [each[:2] for each in listed if each] == [("m1", 3), ("m2", 1)]
        assert await words(box.inner) == {"m1": "no torch", "m2": "no data"}

    virtually(main())


@pytest.mark.parametrize("op", ["list", "put", "delete"])
def test_a_write_that_is_cut_short_leaves_the_one_before_or_the_new_one(op: str) -> None:
    async def main() -> None:
        store = MemoryStore()
        box = FaultyMailbox(MemoryMailbox(store))
        await refusals.write(box, RUN, refusal())
        box.plan.append(Fault("fail", op))
        with pytest.raises(MailboxUnavailable):
            await refusals.write(box, RUN, refusal(reason="no data"))
        assert await words(MemoryMailbox(store)) == {"m1": "no data" if op == "delete" else "no torch"}
        await refusals.write(box, RUN, refusal(reason="no room"))
        assert await words(MemoryMailbox(store)) == {"m1": "no room"}
        assert len([key for key in store.objects if "/refused/" in key]) == 1

    virtually(main())


def test_two_processes_of_a_machine_that_write_at_once_harm_nobody() -> None:
    async def main() -> None:
        store = MemoryStore()
        for reason in ("no torch", "no data"):  # each saw the folder empty
            data = encode(refusal(reason=reason), nonce="0" * 32)
            await MemoryMailbox(store).put(PLACE.refusal("m1", 1, body_sha256(data)), [data])
        assert (await words(MemoryMailbox(store)))["m1"] in ("no torch", "no data")
        await refusals.write(MemoryMailbox(store), RUN, refusal(reason="no room"))
        assert len([key for key in store.objects if "/refused/" in key]) == 1
        assert await words(MemoryMailbox(store)) == {"m1": "no room"}

    virtually(main())


def test_what_is_not_what_its_key_says_is_passed_over() -> None:
    async def main() -> None:
        store = MemoryStore()
        honest = encode(refusal(), nonce="0" * 32)
        sha256 = body_sha256(honest)
        store.objects |= {
            PLACE.refusal("m1", 1, sha256): honest,
            PLACE.refusal("m2", 1, sha256): honest,  # another machine's
            PLACE.refusal("m3", 1, "0" * 64): encode(refusal("m3"), nonce="0" * 32),
            PLACE.refusal("m4", 1, "0" * 64): b"\0junk",
            PLACE.refusal("m5", 1, "0" * 64): b"x" * (2 << 20),
            f"{PLACE.refused}m6/1.json": honest,
        }
        assert await words(MemoryMailbox(store)) == {"m1": "no torch"}

    virtually(main())


def test_each_is_read_once_and_no_more_than_a_bounded_number() -> None:
    async def main() -> None:
        box = Counting(MemoryMailbox(MemoryStore()))
        for n in range(refusals.SHOWN + 8):
            await refusals.write(box, RUN, refusal(f"m{n:03}"))
        box.calls.clear()
        known = await refusals.read(box, RUN, {})
        assert box.ops() == {"list": 1, "read": refusals.SHOWN}
        box.calls.clear()
        assert await refusals.read(box, RUN, known) == known
        assert box.ops() == {"list": 1}

    virtually(main())


def test_a_forged_one_is_passed_over_and_counted() -> None:
    async def main() -> None:
        store = MemoryStore()
        box = SignedMailbox(MemoryMailbox(store), KEY)
        await refusals.write(box, RUN, refusal())
        for forger in (MemoryMailbox(store), SignedMailbox(MemoryMailbox(store), SwarmKey(bytes(32)))):
            await refusals.write(forger, RUN, refusal("m2", type(forger).__name__))
            assert await words(box) == {"m1": "no torch"}
        assert box.forged(RUN).kinds == {"refusal": 2}

    virtually(main())


def test_a_mailbox_is_checked_with_them() -> None:
    store = audited.half_done()
    virtually(refusals.write(MemoryMailbox(store), RUN, refusal()))
    faults, report = virtually(audited.checked(MemoryMailbox(store)))
    assert (faults, report.unknown_count) == ([], 0)
    key = audited.some(store, "refused/")
    audited.rewrite(store, key, refusal("m2"))
    assert [fault.key for fault in audited.faults_of(store)] == [key]


# Telling


@pytest.fixture
def location(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    place = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", place)
    monkeypatch.setenv("SWARM_KEY_FILE", "")
    return place


def lying(location: str, run: str = RUN) -> list[Path]:
    return sorted(Path(location, RunKeys(run).refused).glob("*/*"))


def told(location: str, run: str = RUN) -> list[JoinRefusal]:
    watch = RunWatch(location, run)
    return list(asyncio.run(watch.poll()).refused)


def tell(location: str, reason: str = "no torch", **how: str) -> None:
    asyncio.run(refusals.tell(location, RUN, reason=reason, **how))


def test_a_machine_tells_who_it_is_and_nothing_of_its_folders(location: str) -> None:
    make_run(location, "mlp-one", RUN)
    tell(location, f"{Path.home()}/rows.jsonl is not there\n\x1b[31m{'x' * 1000}", role="learner", device="torch cpu")
    [found] = told(location)
    me = identity()
    assert (found.machine, found.machine_name, found.role, found.device) == (
        me.machine,
        me.machine_name,
        "learner",
        "torch cpu",
    )
    assert found.reason.startswith("~/rows.jsonl is not there··[31mxxx")
    assert len(found.reason) == MAX_REASON


def test_nothing_is_written_where_there_is_no_run(location: str, tmp_path: Path) -> None:
    tell(location)
    tell(str(tmp_path / "nowhere"))
    tell("")
    assert not Path(location, PLACE.root).exists()
    assert not (tmp_path / "nowhere").exists()


def test_a_run_of_another_format_is_told_too(location: str) -> None:
    manifest_of_another_format(location, make_run(location, "mlp-one", RUN))
    assert run(["join", "mlp-one"]) == 1
    [path] = lying(location)
    assert b"format 2" in path.read_bytes()


def test_only_a_machine_with_the_passphrase_is_seen(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: tmp_path / name for name in ("ours", "theirs")}
    for name, path in files.items():
        monkeypatch.setenv("SWARM_KEY_FILE", str(path))
        keyfile.keep(f"the passphrase of {name}, which is long")
    monkeypatch.setenv("SWARM_KEY_FILE", str(files["ours"]))
    make_run(location, "mlp-one", RUN, key=keyfile.load_key())
    for key_file in ("", str(files["theirs"])):
        monkeypatch.setenv("SWARM_KEY_FILE", key_file)
        assert run(["join", "mlp-one"]) != 0
        tell(location)
        assert lying(location) == []
    monkeypatch.setenv("SWARM_KEY_FILE", str(files["ours"]))
    tell(location)
    assert [each.reason for each in told(location)] == ["no torch"]
    make_run(location, "mlp-open", "open1111")  # which a machine with a passphrase has no part in
    asyncio.run(refusals.tell(location, "open1111", reason="no torch"))
    assert lying(location, "open1111") == []


@pytest.mark.parametrize("op", ["open", "read", "list", "put", "delete"])
def test_a_share_that_hangs_or_fails_holds_nobody_up(op: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store = MemoryStore()
        await new_run(store, DiLoCo())
        await refusals.write(MemoryMailbox(store), RUN, refusal(identity().machine, "of before"))
        for kind in ("delay", "fail"):
            box = FaultyMailbox(MemoryMailbox(store), [Fault(kind, op, wait=asyncio.Event().wait)])
            monkeypatch.setattr(refusals, "mailbox_at", lambda location, box=box: box)
            began_s = asyncio.get_running_loop().time()
            await refusals.tell("memory", RUN, reason=f"no torch {kind}")
            assert asyncio.get_running_loop().time() - began_s == (refusals.TELL_S if kind == "delay" else 0.0)
            assert not box.plan[0].count

    virtually(main())


# Turned away


def test_a_join_that_is_turned_away_stands_in_the_others_tables(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_run(location, "digits-one", RUN)
    foreign = msgspec.structs.replace(made, task=TaskRef(name="digits", package="swarm-digits"), files=(BIG,))
    Path(location, PLACE.manifest).write_bytes(encode(foreign, nonce="0" * 32))
    assert run(["join", "digits-one", "--check"]) == 1
    assert lying(location) == []
    for _ in range(2):
        assert run(["join", "digits-one", "--framework", "torch"]) == 1
        assert len(lying(location)) == 1
    assert "cannot be joined here" in capsys.readouterr().err
    assert run(["status", "digits-one"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("✗ refused")]
    assert line.startswith(f"✗ refused  {identity().machine_name}: no task 'digits' is installed here")
    assert "pip install swarm-digits" in line
    assert run(["status", "digits-one", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["refused"]
    assert found.pop("reason").startswith("no task 'digits'")
    assert found == {"machine": identity().machine_name, "role": "both", "device": "torch", "version": __version__}


def test_a_run_that_is_over_and_a_learner_id_that_is_taken_are_no_refusals(location: str) -> None:
    make_run(location, "mlp-one", RUN)
    stop(location, RUN)
    assert run(["join", "mlp-one"]) != 0
    assert lying(location) == []
    for error in (
        LearnerIdTaken("a", "a-2"),
        RunEnded("over"),
        RunSigned("signed"),
        RecordForged("k", unsigned=True, fingerprint="f"),
        MailboxUnavailable("away"),
    ):
        assert refusals.reason_of(error) == ""
    for error in (UsageError("x"), DataMissing("x"), SchemaMismatch(advice="x")):
        assert refusals.reason_of(error) == "x"
    assert refusals.reason_of(ImportError("no y")) == "ImportError: no y"


@pytest.mark.parametrize("error", [DataMissing("pass the data"), ImportError("libcuda.so")])
def test_a_worker_that_fails_before_it_takes_part_tells_so(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    make_run(location, "mlp-one", RUN)
    job = tmp_path / "job"
    job.mkdir()

    def failing(after: bool) -> Callable[..., int]:
        def learn(order: Learn, me: object, emit: worker.EventFile, part: object) -> int:
            assert lying(location) == []  # said here first
            if after:
                emit(Joined(run=RUN, name="mlp-one", learner="a", incarnation=1, round=0, device="cpu"))
            raise error

        return learn

    order = Learn(mailbox=location, run=RUN, learner="a", may_rename=False, framework="torch", role="learner")
    (job / "order.json").write_bytes(msgspec.json.encode(order))
    for after in (True, False):
        monkeypatch.setattr(worker, "learn", failing(after))
        if isinstance(error, ImportError):
            with pytest.raises(ImportError):
                worker.main([str(job)])
        else:
            assert worker.main([str(job)]) == error.exit_code
        assert "pass the data" in (text := (job / "events.jsonl").read_text()) or "libcuda.so" in text
        if after:
            assert lying(location) == []
    [found] = told(location)
    assert found.reason == refusals.reason_of(error)
    assert (found.device, found.role) == ("torch", "learner")


# Gone again


def test_it_goes_when_the_machine_takes_part_after_all() -> None:
    async def main() -> None:
        store = MemoryStore()
        manifest = await new_run(store, DiLoCo(sync_every=5, quorum_size=2, beat_s=1.0, lease_s=6.0), rounds=3)
        machines = Machines()
        learners = [Learner(store, manifest, name, machines) for name in "ab"]
        for machine in ("machine-a", "machine-c"):
            await refusals.write(MemoryMailbox(store), RUN, refusal(machine))
        await together(*(learner.live() for learner in learners))
        assert await words(MemoryMailbox(store)) == {"machine-c": "no torch"}

    virtually(main())


def test_a_share_that_fails_while_it_is_withdrawn_does_not_keep_a_machine_out() -> None:
    async def main() -> None:
        store = MemoryStore()
        manifest = await new_run(store, DiLoCo(sync_every=5, quorum_size=1, beat_s=1.0, lease_s=6.0), rounds=3)
        plan = [Fault("fail", "list", key="/refused/")]
        learner = Learner(store, manifest, "a", Machines(), wrap=lambda box: FaultyMailbox(box, plan))
        await refusals.write(MemoryMailbox(store), RUN, refusal("machine-a"))
        assert await learner.live() == "done"
        assert plan[0].count == 0
        assert await words(MemoryMailbox(store)) == {"machine-a": "no torch"}

    virtually(main())


def test_a_machine_of_a_data_parallel_job_withdraws_too(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        await world.create()
        for name in ("a", "b", "c"):
            await refusals.write(world.mailbox, RUN, refusal(f"machine-{name}"))
        machines = [Machine(world, name) for name in ("a", "b")]
        assert await asyncio.gather(*(machine.life for machine in machines)) == ["done", "done"]
        assert await words(world.mailbox) == {"machine-c": "no torch"}

    virtually(main())


def test_what_was_told_long_ago_goes() -> None:
    async def main() -> None:
        box = Counting(MemoryMailbox(MemoryStore()))
        expiry = refusals.Expiry(box, RUN)
        for name, wait_s in (("m1", 0.0), ("m2", refusals.KEPT_S / 2)):
            await refusals.write(box, RUN, refusal(name))
            assert await expiry.look(wait_s) == 0
        box.calls.clear()
        assert await expiry.look(refusals.KEPT_S / 2 + refusals.LOOK_S - 1) == 0
        assert box.calls == []
        assert await expiry.look(refusals.KEPT_S) == 1
        assert await words(box.inner) == {"m2": "no torch"}
        assert await expiry.look(refusals.KEPT_S * 1.5) == 1
        assert await words(box.inner) == {}

    virtually(main())


@pytest.mark.parametrize("method", ["rounds", "data parallel"])
def test_whoever_closes_rounds_or_keeps_checkpoints_sees_to_that(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "KEPT_S", 12.0)
    monkeypatch.setattr(refusals, "LOOK_S", 2.0)

    async def main() -> None:
        world = World(tmp_path)
        await refusals.write(world.mailbox, RUN, refusal("machine-c"))
        if method == "rounds":
            manifest = await new_run(world.store, DiLoCo(sync_every=10, quorum_size=1, beat_s=1.0, lease_s=6.0), rounds=18)
            living = asyncio.ensure_future(Learner(world.store, manifest, "a", world.machines).live())
        else:
            await world.create()
            living = asyncio.gather(*(Machine(world, name).life for name in ("a", "b")))
        await asyncio.sleep(10)
        assert await words(world.mailbox) == {"machine-c": "no torch"}
        await living
        assert await words(world.mailbox) == {}

    virtually(main())


# Watching


def test_a_poll_now_and_then_looks_for_them() -> None:
    async def main() -> None:
        store = MemoryStore()
        await new_run(store, DiLoCo(), rounds=3)
        box = Counting(MemoryMailbox(store))
        watch = RunWatch("memory", RUN, store=box)
        await refusals.write(box, RUN, refusal())
        looked = []
        for _ in range(2 * REFUSALS_EVERY + 1):
            box.calls.clear()
            now = await watch.poll()
            looked.append(("list", PLACE.refused) in box.calls)
            assert [each.machine for each in now.refused] == ["m1"]
        assert looked == [n % REFUSALS_EVERY == 0 for n in range(2 * REFUSALS_EVERY + 1)]
        await MemoryMailbox(store).delete(await box.list(PLACE.refused))
        for _ in range(REFUSALS_EVERY):
            now = await watch.poll()
        assert now.refused == ()
        box.calls.clear()
        await RunWatch("memory", RUN, store=box, history=False).poll()
        assert ("list", PLACE.refused) not in box.calls

    virtually(main())


def test_a_machine_that_is_live_is_not_refused(location: str) -> None:
    make_run(location, "mlp-one", RUN)
    beat(location, RUN, "studio", 0, machine="m1")

    async def write(tape: object) -> None:
        box = open_mailbox(location)
        await box.open()
        for name in ("m1", "m2"):
            await refusals.write(box, RUN, refusal(name))

    on(location, RUN, write)
    assert [each.machine for each in told(location)] == ["m2"]
    stop(location, RUN)


def test_nobody_is_refused_by_a_run_that_is_over(location: str) -> None:
    make_run(location, "mlp-one", RUN)
    tell(location)
    assert len(told(location)) == 1
    stop(location, RUN)
    assert told(location) == []
