"""The commands of people, as a front end gives them: over a folder, with nobody there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarm import api
from swarm.core.errors import RunEnded, UsageError
from swarm.core.records import Control, LearnerRecord
from swarm.mailbox import open_mailbox
from swarm.manifests import read_manifest
from swarm.tape import Tape, nonce
from tests.integration.handmade import make_mailbox, make_run, write_rounds

RUN = "aaaa1111"


@pytest.fixture
def location(tmp_path: Path, state_dir: Path) -> str:
    return make_mailbox(tmp_path / "mailbox")


async def tape(location: str) -> Tape:
    mailbox = open_mailbox(location)
    await mailbox.open()
    return Tape(mailbox, await read_manifest(mailbox, RUN))


def phase(location: str) -> str:
    return asyncio.run(api.RunWatch(location, RUN).poll()).phase


def controls(location: str) -> list[Control]:
    async def read() -> list[Control]:
        return await (await tape(location)).controls(())

    return asyncio.run(read())


def test_a_run_is_paused_resumed_and_stopped(location: str) -> None:
    manifest = make_run(location, "mlp-one", RUN, rounds=5)
    asyncio.run(api.pause_run(location, RUN))
    assert phase(location) == "paused"
    asyncio.run(api.check_joinable(location, manifest))
    asyncio.run(api.resume_run(location, RUN))
    assert phase(location) == "idle"
    asyncio.run(api.stop_run(location, RUN))
    assert phase(location) == "stopped"
    for command in (api.pause_run(location, RUN), api.resume_run(location, RUN), api.extend_run(location, RUN, 9)):
        with pytest.raises(RunEnded, match="mlp-one was stopped"):
            asyncio.run(command)
    assert [c.action for c in controls(location)] == ["pause", "resume", "stop"]


def test_a_run_that_is_done_is_extended_and_joinable_again(location: str) -> None:
    manifest = make_run(location, "mlp-one", RUN, rounds=3)
    write_rounds(location, manifest, 3)
    assert phase(location) == "done"
    with pytest.raises(RunEnded, match="mlp-one has all its 3 rounds"):
        asyncio.run(api.check_joinable(location, manifest))
    with pytest.raises(RunEnded, match="has all its 3 rounds"):
        asyncio.run(api.pause_run(location, RUN))
    asyncio.run(api.extend_run(location, RUN, 7))
    now = asyncio.run(api.RunWatch(location, RUN).poll())
    assert (now.phase, now.total_rounds, now.open_round) == ("idle", 7, 3)
    asyncio.run(api.check_joinable(location, manifest))
    assert [m.run for m in asyncio.run(api.joinable(location))] == [RUN]
    asyncio.run(api.extend_run(location, RUN, None))
    assert asyncio.run(api.RunWatch(location, RUN).poll()).total_rounds is None
    with pytest.raises(UsageError, match="rounds must be 1 to"):
        asyncio.run(api.extend_run(location, RUN, 0))


def test_a_learner_is_dropped_with_its_incarnations_so_far(location: str) -> None:
    make_run(location, "mlp-one", RUN)
    with pytest.raises(UsageError, match="run mlp-one has no learner 'mbp'"):
        asyncio.run(api.drop_learner(location, RUN, "mbp"))

    async def register() -> None:
        for incarnation in (1, 2):
            record = LearnerRecord(
                learner="mbp",
                incarnation=incarnation,
                machine="m",
                machine_name="m",
                boot="b",
                pid=1,
                process="1",
                version="0",
            )
            assert await (await tape(location)).register(record, nonce=nonce())

    asyncio.run(register())
    assert asyncio.run(api.drop_learner(location, RUN, "mbp")) == 2
    (control,) = controls(location)
    assert (control.action, control.learner, control.incarnation) == ("drop", "mbp", 2)
