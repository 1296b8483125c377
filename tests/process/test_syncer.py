"""A syncer in a process of its own, where no framework can be imported; and one that sleeps for longer than a lease."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swarm import api
from swarm.core.events import Failed, Joined, RoundClosed
from swarm.core.records import Role
from swarm.core.specs import DiLoCo
from swarm.mailbox import open_mailbox
from swarm.manifests import read_manifest
from swarm.tape import Tape
from tests.process.machines import Machine, check_mailbox, closed, make_mailbox, new_run

pytest.importorskip("mlx.core")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SPEC = DiLoCo(sync_every=20, quorum_size=1, start_learners=1, beat_s=0.2, lease_s=2.0)
NOWHERE = str(Path(__file__).parent / "frameworkless")


@pytest.fixture
def frameworkless(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [NOWHERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def started(mailbox: str, run: object, learner: str, role: Role, *, create: bool = False) -> Machine:
    order = api.learn_order(
        mailbox,
        run.run,  # type: ignore[attr-defined]
        create=run if create else None,  # type: ignore[arg-type]
        learner_id=learner,
        framework="mlx",
        device="cpu",
        threads=1,
        role=role,
    )
    return Machine(order)


def tape(mailbox: str, run: str) -> Tape:
    async def opened() -> Tape:
        box = open_mailbox(mailbox)
        await box.open()
        return Tape(box, await read_manifest(box, run))

    return asyncio.run(opened())


def test_the_environment_has_no_framework(frameworkless: None) -> None:
    done = subprocess.run([sys.executable, "-c", "import mlx.core"], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in done.stderr


def test_a_syncer_needs_no_framework(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox = make_mailbox(tmp_path)
    run = new_run(rounds=8, algorithm=SPEC)
    learner = started(mailbox, run, "studio", "learner", create=True)
    learner.until(lambda event: isinstance(event, Joined))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([NOWHERE, *filter(None, [os.environ.get("PYTHONPATH")])]))
    refused = started(mailbox, run, "pi", "both")
    assert refused.wait() != 0
    assert any(isinstance(event, Failed) for event in refused.look()), "a learner cannot train there"
    syncer = started(mailbox, run, "nas", "syncer")
    joined = syncer.until(lambda event: isinstance(event, Joined))
    assert isinstance(joined, Joined)
    assert (joined.role, joined.device) == ("syncer", "")
    assert syncer.wait() == 0, syncer.words()
    assert learner.wait() == 0, learner.words()
    assert (syncer.ended and syncer.ended.reason) == "done"
    records = [event for event in syncer.look() if isinstance(event, RoundClosed)]
    assert [(event.round, event.closer, event.participants) for event in records] == [
        (round, "nas", ("studio",)) for round in range(8)
    ]
    assert check_mailbox(mailbox, run.run) == 8


def test_a_syncer_that_is_told_to_leave_releases_its_lease(tmp_path: Path, state_dir: Path, frameworkless: None) -> None:
    from tests.integration.handmade import make_run

    mailbox = make_mailbox(tmp_path)
    manifest = make_run(mailbox, "mlp-one", "aaaa1111", algorithm=SPEC)
    syncer = Machine(api.learn_order(mailbox, manifest.run, learner_id="nas", role="syncer"))
    syncer.until(lambda event: isinstance(event, Joined))
    syncer.worker.interrupt()
    assert syncer.wait() == 0, syncer.words()
    assert (syncer.ended and syncer.ended.reason) == "left"
    beats = asyncio.run(tape(mailbox, manifest.run).beats({}))
    assert (beats["nas"][1].phase, beats["nas"][1].role) == ("left", "syncer")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["nas", "mbp"])
def test_one_that_slept_for_longer_than_a_lease_comes_back(tmp_path: Path, state_dir: Path, victim: str) -> None:
    mailbox = make_mailbox(tmp_path)
    run = new_run(rounds=None, algorithm=SPEC)
    machines = {"studio": started(mailbox, run, "studio", "either", create=True)}
    machines["studio"].until(lambda event: isinstance(event, Joined))
    machines |= {name: started(mailbox, run, name, role) for name, role in (("mbp", "either"), ("nas", "syncer"))}  # type: ignore[arg-type]
    for machine in machines.values():
        machine.until(closed(2))
    asleep = machines[victim]
    os.kill(asleep.worker.process.pid, signal.SIGSTOP)
    try:
        time.sleep(2 * SPEC.lease_s)
        newest = asyncio.run(tape(mailbox, run.run).newest_round())
        machines["studio"].until(closed(newest + 3))
    finally:
        os.kill(asleep.worker.process.pid, signal.SIGCONT)
    newest = asyncio.run(tape(mailbox, run.run).newest_round())
    for machine in machines.values():
        machine.until(closed(newest + 5))
    asyncio.run(api.stop_run(mailbox, run.run))
    for machine in machines.values():
        assert machine.wait() == 0, machine.words()
    last = check_mailbox(mailbox, run.run) - 1
    record = asyncio.run(tape(mailbox, run.run).round(last - 1))
    assert record is not None
    assert {p.learner for p in record.participants} == {"mbp", "studio"}
    ends = {machine.ended.params_sha256 for name, machine in machines.items() if name != "nas" and machine.ended}
    assert len(ends) == 1
