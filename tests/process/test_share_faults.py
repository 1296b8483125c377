"""Real workers, each with a mount of its own of one share that fails: they say so where a person looks, and go on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm import api, launcher
from swarm.core.specs import DiLoCo
from swarm.mailbox.folder_init import init_folder
from tests.process.faults.share import Mount
from tests.process.machines import HANG_S, new_run
from tests.soak import whole
from tests.soak.faults import RULES, TOLD, Injection, Kind
from tests.soak.stage import MAILBOX, Stage, staged

pytest.importorskip("mfusepy")
pytest.importorskip("mlx.core")
pytestmark = pytest.mark.process

SPEC = DiLoCo(sync_every=20, quorum_size=2, beat_s=0.5, lease_s=4.0)
DAY_S = 86_400.0
WORDS: dict[Kind, str] = {
    "full": "the mailbox is full (",
    "quota": "the mailbox is full (",
    "read-only": "the mailbox is read-only (",
    # One that is unmounted while a call is under way ends that first, with an error that says no more than that.
    "unmount": "the mailbox ",
}
WHILE_S = 6.0  # what need not be told lasts so long


@pytest.fixture
def stage(tmp_path: Path, state_dir: Path) -> Iterator[Stage]:
    """Two learners of one run, whose clocks are two days apart."""
    run = new_run(rounds=None, algorithm=SPEC)
    with contextlib.ExitStack() as stack:
        try:
            stage = stack.enter_context(staged(tmp_path, run, {"ann": ("mlx", DAY_S), "bob": ("mlx", -DAY_S)}))
        except OSError as error:
            pytest.skip(f"no FUSE here: {error}")
        ann, bob = stage.seats.values()
        ann.start(run, create=True)
        until(stage, lambda: ann.joined)
        bob.start(run)
        until(stage, lambda: min(ann.closed, bob.closed) >= 1)
        yield stage


def until(stage: Stage, there: Callable[[], bool]) -> None:
    until_s = time.monotonic() + HANG_S
    while not there():
        stage.look()
        assert stage.wrongs == []
        assert time.monotonic() < until_s, {name: seat.told[-5:] for name, seat in stage.seats.items()}
        time.sleep(0.05)


def trouble(learner: str) -> str:
    """Of this machine's job, as `swarm jobs`, `swarm status` and the screen show it."""
    return next(job.trouble for job in launcher.jobs() if job.learner == learner and job.state == "running")


def goes_through(stage: Stage, kind: Kind, *who: str) -> None:
    """The fault, until it was told by all that are hit, and its end, until that was."""
    injection = Injection(kind, who, 0.0, 0.0)
    stage.begin(injection)
    if kind in TOLD:
        for name in who:
            until(stage, lambda name=name: trouble(name) != "")  # type: ignore[misc]
            assert trouble(name).startswith(WORDS.get(kind, "the mailbox "))
    else:
        begun_s = time.monotonic()
        until(stage, lambda: time.monotonic() - begun_s > WHILE_S)
    stage.end(injection)
    until(stage, lambda: all(trouble(name) == "" for name in who))


def ends_well(stage: Stage) -> None:
    newest = max(seat.closed for seat in stage.seats.values())
    until(stage, lambda: all(seat.closed >= newest + 2 for seat in stage.seats.values()))
    asyncio.run(api.stop_run(str(stage.mailbox), stage.run.run))
    params = set()
    for seat in stage.seats.values():
        assert seat.machine is not None
        assert seat.machine.wait() == 0, seat.machine.words()
        assert seat.machine.ended is not None
        params.add(seat.machine.ended.params_sha256)
        seat.look()
        seat.machine = None
        assert seat.stray == [], "nothing was written where no share was mounted"
    told = [event for seat in stage.seats.values() for event in seat.rounds]
    wrongs, _ = whole.wrongs(stage.mailbox, stage.run.run, params=params, told=told, lying_s=HANG_S)
    assert wrongs == []


def test_a_share_that_goes_away_under_one_learner_and_then_fills_up_for_both(stage: Stage) -> None:
    goes_through(stage, "unmount", "ann")
    goes_through(stage, "full", "ann", "bob")
    ends_well(stage)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dead", "hang", "unmount", "kill", "stop", *RULES])
def test_a_share_that_fails_in_any_other_way(stage: Stage, kind: Kind) -> None:
    if kind in ("kill", "stop"):
        stage.begin(Injection(kind, ("bob",), 0.0, 0.0))
        newest = stage.seats["ann"].closed
        until(stage, lambda: stage.seats["ann"].closed >= newest + 2)  # it goes on alone
        stage.end(Injection(kind, ("bob",), 0.0, 0.0))
        until(stage, lambda: stage.seats["bob"].joined)
    else:
        goes_through(stage, kind, "bob")
        goes_through(stage, kind, "ann", "bob")
    ends_well(stage)


@pytest.mark.slow
def test_another_mailbox_mounted_in_its_place_stops_a_learner_by_name_and_gets_nothing(stage: Stage, tmp_path: Path) -> None:
    bob = stage.seats["bob"]
    assert bob.machine is not None
    other = tmp_path / "other"
    other.mkdir()
    init_folder(str(other / MAILBOX))
    before = sorted(other.rglob("*"))
    own, bob.mount = bob.mount, Mount(other, bob.mount.path)
    own.unmount()
    bob.mount.mount()
    assert bob.machine.wait() == 1
    assert any("another mailbox than before" in words for words in map(str, bob.machine.look())), bob.machine.words()
    assert sorted(other.rglob("*")) == before
    bob.mount.unmount()
    bob.mount = own
    own.mount()
    bob.start(stage.run)
    until(stage, lambda: bob.joined)
    ends_well(stage)
