"""What adverts say of a run: from a worker's events, and from what stands in a mailbox."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swarm.core.adverts import RunAdvert
from swarm.core.events import (
    Building,
    Ended,
    Freed,
    Gathering,
    Held,
    JobStepped,
    Joined,
    Paused,
    RankPlaced,
    Resumed,
    RoundClosed,
    Stepped,
    TrainedClient,
    Waiting,
    WorkerEvent,
)
from swarm.core.lease import BeatId
from swarm.core.manifest import INIT, Manifest, PayloadRef, TaskRef
from swarm.core.records import Beat, LearnerRecord, RoundRecord
from swarm.core.specs import DiLoCo
from swarm.core.state import LearnerRead, ManifestRead, Polled, RoundRead, RunState, apply
from swarm.core.telling import after, boot_digits, part_in, peer_adverts, run_advert
from swarm.core.tensorspec import TensorSpec

SHA, MAILBOX, ME = "ab" * 32, "b" * 32, "e" * 32


def manifest(**more: Any) -> Manifest:
    return Manifest(
        run="abcd1234",
        name="tiny",
        algorithm=DiLoCo(start_learners=3, beat_s=1, lease_s=30),
        task=TaskRef(name="mlp"),
        tensors=(TensorSpec("w", "F32", (2,)),),
        schema_sha256=SHA,
        init=(PayloadRef(round=INIT, sha256=SHA, size_bytes=80),),
        rounds=40,
        share="smb://nas/swarm",
        **more,
    )


def closed(round: int, *participants: str, clients: tuple[TrainedClient, ...] = ()) -> RoundClosed:
    return RoundClosed(
        round=round, rounds=40, participants=participants, rejected=(), train_loss=None, closer="a", clients=clients
    )


def told(*events: WorkerEvent) -> tuple[str, RunAdvert]:
    part = part_in(manifest(), mailbox=MAILBOX, peer=ME)
    for event in events:
        part = after(part, event)
    return part.state, part.run


JOINED = Joined(run="abcd1234", name="tiny", learner="a", incarnation=1, round=4)


@pytest.mark.parametrize(
    ("events", "state", "expected"),
    [
        ((), "waiting", ("", 0, 40, 0, 0)),
        ((Building(what="x"),), "waiting", ("", 0, 40, 0, 0)),
        ((JOINED,), "training", ("running", 4, 40, 1, 0)),
        ((JOINED, Waiting(round=4, reason="waiting for 2 more learners")), "waiting", ("waiting", 4, 40, 1, 2)),
        ((JOINED, Waiting(round=4, reason="waiting for a syncer")), "waiting", ("waiting", 4, 40, 1, 0)),
        ((JOINED, Waiting(round=4, reason="1 of 2 has reported")), "training", ("running", 4, 40, 1, 0)),
        ((JOINED, closed(4, "a", "b")), "training", ("running", 5, 40, 2, 0)),
        ((JOINED, closed(4, "a", "b"), closed(5)), "training", ("running", 6, 40, 2, 0)),
        (
            (JOINED, closed(4, "c1", "c2", "c3", clients=tuple(TrainedClient(f"c{n}", 1, "ab"[n % 2]) for n in (1, 2, 3)))),
            "training",
            ("running", 5, 40, 2, 0),
        ),
        ((JOINED, Paused(round=4)), "paused", ("paused", 4, 40, 1, 0)),
        ((JOINED, Paused(round=4), Resumed(round=4)), "training", ("running", 4, 40, 1, 0)),
        (
            (JOINED, Paused(round=4), Stepped(round=5, step=1, steps_before=2, loss=None, tokens_per_s=1.0)),
            "training",
            ("running", 5, 40, 1, 0),
        ),
        ((JOINED, Held(reason="its owner is back")), "paused", ("running", 4, 40, 1, 0)),
        ((JOINED, Held(reason="its owner is back"), Freed()), "training", ("running", 4, 40, 1, 0)),
        ((JOINED, Ended(reason="done", rounds=40)), "idle", ("done", 4, 40, 1, 0)),
        ((JOINED, Ended(reason="stopped", rounds=5)), "idle", ("stopped", 4, 40, 1, 0)),
        ((JOINED, Ended(reason="left", rounds=5)), "training", ("running", 4, 40, 1, 0)),
        ((Gathering(generation=1, reason="waiting"),), "waiting", ("waiting", 0, 40, 0, 0)),
        (
            (
                RankPlaced(generation=1, rank=0, size=3, backend="ring", address="10.0.0.1", machines=("a", "b", "c")),
                JobStepped(step=2, steps=9, iteration=7, loss=None, tokens_per_s=1.0),
            ),
            "training",
            ("running", 7, 40, 3, 0),
        ),
    ],
)
def test_a_worker_tells_how_its_run_goes(
    events: tuple[WorkerEvent, ...], state: str, expected: tuple[str, int, int, int, int]
) -> None:
    said, run = told(*events)
    assert (run.phase, run.round, run.rounds, run.learners, run.wanted) == expected
    assert said == state
    assert (run.run, run.name, run.method, run.task, run.mailbox, run.share) == (
        "abcd1234", "tiny", "diloco", "mlp", MAILBOX, "smb://nas/swarm",
    )  # fmt: skip


def record(learner: str, machine: str, *, boot: str = "b", device: str = "torch mps") -> LearnerRead:
    return LearnerRead(
        LearnerRecord(
            learner=learner,
            incarnation=1,
            machine=machine,
            machine_name=f"host-{machine[0]}",
            boot=boot,
            pid=1,
            process="p",
            version="0.1.0",
            device=device,
        )
    )


def polls(**phases: str) -> tuple[Polled, ...]:
    """Two looks, between which every beat has moved."""
    return tuple(
        Polled(float(n), {learner: (BeatId(1, n), Beat(phase=phase)) for learner, phase in phases.items()})  # type: ignore[arg-type]
        for n in (1, 2)
    )


def state(*events: Any, made: Manifest | None = None) -> RunState:
    found = apply(RunState(run="abcd1234"), ManifestRead(made or manifest()))
    for event in events:
        found = apply(found, event)
    return found


def test_what_stands_in_a_mailbox_of_a_run() -> None:
    alone = run_advert(state(record("a", "1" * 32), *polls(a="train")), mailbox=MAILBOX, peer=ME)
    assert alone is not None
    assert (alone.phase, alone.round, alone.rounds, alone.learners, alone.wanted) == ("waiting", 0, 40, 1, 2)
    assert (alone.peer, alone.mailbox, alone.share) == (ME, MAILBOX, "smb://nas/swarm")
    before = run_advert(state(*polls(a="train")[:1]), mailbox=MAILBOX, peer=ME)
    assert before is not None
    assert (before.phase, before.learners) == ("idle", 0)  # one beat proves nothing yet
    assert run_advert(RunState(run="abcd1234"), mailbox=MAILBOX, peer=ME) is None
    over = msgspec.structs.replace(manifest(), rounds=1)
    first = RoundRecord(
        round=0, fragment=0, step=1, version=0, parent=None, participants=(), rejected=(),
        theta=PayloadRef(round=0, sha256=SHA, size_bytes=80), outer=None,
    )  # fmt: skip
    done = run_advert(state(RoundRead(first), made=over), mailbox=MAILBOX, peer=ME)
    assert done is not None
    assert (done.phase, done.round, done.wanted) == ("done", 1, 0)


def test_machines_that_take_part_stand_in_the_mailbox() -> None:
    one, two = "1" * 32, "2" * 32
    found = peer_adverts(
        (
            state(
                record("a", one), record("a-2", one, device="mlx metal"), record("b", two), record("c", "no id"),
                *polls(a="wait", **{"a-2": "train"}, b="paused", c="train", d="train"),
            ),
        ),
        mailbox=MAILBOX,
    )  # fmt: skip
    by_peer = {each.peer: each for each in found}
    assert set(by_peer) == {one, two}
    assert by_peer[one].state == "training"
    assert by_peer[one].accelerators == ("torch mps", "mlx metal")
    assert (by_peer[two].name, by_peer[two].state, by_peer[two].mailboxes) == ("host-2", "paused", (MAILBOX,))
    assert by_peer[two].boot == boot_digits("b")


def test_a_machine_that_left_or_fell_silent_is_not_among_them() -> None:
    one = "1" * 32
    assert peer_adverts((state(record("a", one), *polls(a="left")),), mailbox=MAILBOX) == ()
    assert peer_adverts((state(record("a", one), *polls(a="train")[:1]),), mailbox=MAILBOX) == ()
