"""One round read from a mailbox, and what `swarm export` says when a screen has it run."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from swarm import api
from swarm.core.errors import MailboxMoved, RunNotFound, UsageError
from swarm.core.records import Rejected
from tests.integration import handmade_job
from tests.integration.handmade import FEDERATED, evaluate, make_mailbox, make_run, write_fed_rounds

T = TypeVar("T")


async def aside(make: Callable[[], T]) -> T:
    """The makers of runs have a loop of their own."""
    return await asyncio.to_thread(make)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return make_mailbox(tmp_path / "box")


async def test_a_round_comes_with_what_belongs_to_it(tmp_path: Path) -> None:
    location = await aside(lambda: make_mailbox(tmp_path / "box"))
    manifest = await aside(lambda: make_run(location, "one", "aaaa1111", algorithm=FEDERATED, rounds=9))
    late = Rejected(learner="mbp", unit="client-0001", reason="late", round=3)
    await aside(lambda: write_fed_rounds(location, manifest, 5, rejected=(late,)))
    await aside(lambda: evaluate(location, "aaaa1111", 3))
    found = await api.read_round(location, "aaaa1111", 3)
    assert found.record.round == 3
    assert found.before is not None
    assert found.before.round == 2
    assert found.evaluated is not None
    assert found.evaluated.metrics["accuracy"] == 0.9
    assert found.late == (late,)
    assert found.refused == (late,)
    first = await api.read_round(location, "aaaa1111", 0)
    assert (first.before, first.evaluated, first.late) == (None, None, ())
    newest = await api.read_round(location, "aaaa1111", 4)
    assert newest.late == ()
    assert newest.refused == (), "what came late to an earlier round belongs there"
    for round in (5, 77, -1):
        with pytest.raises(UsageError, match=f"round {round} of one has not closed"):
            await api.read_round(location, "aaaa1111", round)
    with pytest.raises(RunNotFound):
        await api.read_round(location, "bbbb2222", 0)
    with pytest.raises(MailboxMoved):
        await api.read_round(str(tmp_path / "nowhere"), "aaaa1111", 0)


async def test_a_data_parallel_job_has_no_rounds(tmp_path: Path) -> None:
    location = await aside(lambda: make_mailbox(tmp_path / "box"))
    made = handmade_job.manifest(run="cccc3333")
    await aside(lambda: handmade_job.write(location, made, []))
    with pytest.raises(UsageError, match="it has generations, and no rounds"):
        await api.read_round(location, "cccc3333", 0)


def test_a_screen_exports_a_history_in_a_process_of_its_own(location: str, tmp_path: Path) -> None:
    manifest = make_run(location, "one", "aaaa1111", algorithm=FEDERATED, rounds=9)
    write_fed_rounds(location, manifest, 3)
    file = tmp_path / "history of it.JSONL"
    assert api.export_run(location, "aaaa1111", str(file)).startswith("wrote 3 rounds of one to ")
    assert [json.loads(line)["round"] for line in file.read_text().splitlines()] == [0, 1, 2]
    with pytest.raises(UsageError, match="no run 'zzzz9999'"):
        api.export_run(location, "zzzz9999", str(file))
