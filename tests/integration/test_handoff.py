"""Between the training thread and the communication thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from swarm.core.manifest import PayloadRef
from swarm.core.records import EvalRecord, Participant, Rejected, RoundRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.handoff import Aligned, Handoff, Publication, Verdict, verdict
from tests.integration.simulation import Learner, Machines, new_run, together, virtually


def publication(round: int) -> Publication:
    return Publication(round=round, fragment=0, delta={}, base_sha256="", tokens=1, steps=1, train_loss=None, seconds_s=1.0)


def aligned(newest: int, fragment: int = 0, evaluate: int | None = None) -> Aligned:
    return Aligned(newest=newest, fragments={fragment: (str(newest), {})}, evaluate=evaluate)


def test_publications_go_out_in_order_and_those_whose_round_has_closed_are_dropped() -> None:
    handoff = Handoff()
    several = [publication(round) for round in (3, 4, 5)]
    for made in several:
        handoff.publish(made)
    assert handoff.unpublished == tuple(several)
    assert handoff.outgoing() is several[0]
    assert handoff.outgoing() is several[0], "a failed attempt is repeated"
    handoff.published(several[0])
    assert handoff.outgoing() is several[1]
    handoff.align(aligned(4))
    assert handoff.unpublished == (several[2],)
    handoff.published(several[1])  # while it was on its way
    assert handoff.outgoing() is several[2]
    handoff.published(several[2])
    assert handoff.outgoing() is None


def test_the_outcome_of_what_was_published_is_awaited_until_it_is_told() -> None:
    handoff = Handoff()
    handoff.expect([2])
    handoff.publish(publication(3))
    handoff.published(publication(3))
    assert handoff.awaited == (2, 3)
    handoff.align(aligned(2))
    assert handoff.awaited == (3,)


def test_verdicts_are_added_up_until_they_are_taken() -> None:
    handoff = Handoff()
    for round in range(3):
        handoff.align(Aligned(newest=round, fragments={}, verdicts={round: Verdict(refused=True)}))
    taken = handoff.take_aligned()
    assert taken is not None
    assert taken.verdicts == dict.fromkeys(range(3), Verdict(refused=True))


def test_a_verdict_is_what_a_record_says_of_one_learner() -> None:
    ref = PayloadRef(round=4, sha256="0" * 64, size_bytes=1)
    figures: dict[str, Any] = {"weight": 1.0, "tokens": 2, "steps": 1, "train_loss": None, "seconds_s": 0.5, "size_bytes": 1}
    mine = Participant(learner="a", unit="a", **figures)
    record = RoundRecord(
        round=4,
        fragment=0,
        step=1,
        version=4,
        parent=None,
        participants=(mine,),
        rejected=(
            Rejected(learner="a", unit="a", reason="duplicate", round=4),
            Rejected(learner="b", unit="b", reason="norm", round=4),
            Rejected(learner="c", unit="c", reason="norm", round=3),
            Rejected(learner="d", unit="d", reason="late", round=3),
        ),
        theta=ref,
        outer=None,
    )
    assert [verdict(record, name) for name in "abcd"] == [Verdict(counted=mine), Verdict(refused=True), None, None]


def test_what_is_not_taken_yet_is_one_thing_and_says_the_newest() -> None:
    handoff = Handoff()
    for round in range(100):
        handoff.align(aligned(round, round % 3))
    assert handoff.behind
    taken = handoff.take_aligned()
    assert taken is not None
    assert (taken.newest, {k: sha for k, (sha, _) in taken.fragments.items()}) == (99, {0: "99", 1: "97", 2: "98"})
    assert handoff.take_aligned() is None
    assert not handoff.behind


def test_what_is_to_be_evaluated_is_taken_as_it_was_committed() -> None:
    handoff = Handoff()
    for round in range(3):
        handoff.align(aligned(round))
    handoff.align(aligned(3, 1, evaluate=3))
    for round in range(4, 6):
        handoff.align(aligned(round))
    first, second = handoff.take_aligned(), handoff.take_aligned()
    assert first is not None
    assert second is not None
    assert (first.newest, first.evaluate, set(first.fragments)) == (3, 3, {0, 1})
    assert (second.newest, second.evaluate, set(second.fragments)) == (5, None, {0})


def test_the_end_is_told_when_nothing_is_left_to_take_over() -> None:
    handoff = Handoff()
    handoff.align(aligned(0))
    handoff.end("done")
    handoff.end("stopped")
    assert handoff.ended is None
    handoff.take_aligned()
    assert handoff.ended == "done"


def test_the_end_comes_with_what_was_committed_last() -> None:
    handoff = Handoff()
    handoff.align(aligned(0))
    handoff.align(aligned(1), ended="stopped")
    handoff.align(aligned(2))
    assert handoff.take_aligned() is not None
    assert handoff.ended == "stopped"


def test_a_stop_does_not_make_a_waiting_thread_spin() -> None:
    handoff = Handoff()
    handoff.ask_flush()
    waiting, woken = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        handoff.wait(60)
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    assert waiting.wait(60)
    assert not woken.wait(0.05)
    handoff.align(aligned(0))
    assert woken.wait(60)


def test_what_ended_the_communication_comes_out_of_every_look() -> None:
    handoff = Handoff()
    handoff.align(aligned(0))
    handoff.fail(RuntimeError("boom"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="boom"):
            handoff.take_aligned()


def test_an_evaluation_that_could_not_be_written_is_the_next_one_again() -> None:
    handoff = Handoff()
    records = [EvalRecord(round=n, learner="a", loss=1.0) for n in range(2)]
    for record in records:
        handoff.evaluated(record)
    taken = handoff.take_evaluated()
    assert taken is records[0]
    handoff.untake_evaluated(taken)
    assert [handoff.take_evaluated() for _ in range(3)] == [*records, None]


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("fragments", [1, 3])
def test_a_learner_whose_round_closes_while_it_is_about_to_report_goes_on(fragments: int, overlap: int) -> None:
    """The slow one's delays differ, so that its reports fall before, into and after what the fast one closes."""

    async def main() -> None:
        for n in range(4):
            store, machines = MemoryStore(), Machines()
            spec = DiLoCo(
                sync_every=4,
                fragments=fragments,
                overlap_steps=overlap,
                quorum_size=1,
                grace_s=0.05,
                beat_s=0.5,
                lease_s=2.0,
            )
            manifest = await new_run(store, spec, rounds=9)
            slow_box = FaultyMailbox(MemoryMailbox(store))
            slow_box.plan += [
                Fault("delay", op="list", key=k, count=None, wait=lambda: asyncio.sleep(0.7)) for k in ("/rounds/", "/beats/")
            ]
            fast = Learner(store, manifest, "fast", machines)
            slow = Learner(store, manifest, "slow", machines, step_s=0.1 + 0.013 * n, wrap=lambda _, box=slow_box: box)
            assert await together(fast.live(), slow.live()) == ["done", "done"]
            assert fast.params == slow.params
            exchange = Exchange(MemoryMailbox(store), manifest)
            assert await exchange.newest_round() == 8

    virtually(main())


def test_a_long_step_holds_one_copy_of_what_was_committed_meanwhile() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = DiLoCo(sync_every=4, fragments=2, quorum_size=1, grace_s=0.1, beat_s=0.5, lease_s=2.0)
        manifest = await new_run(store, spec, rounds=60)
        fast, slow = Learner(store, manifest, "fast", machines), Learner(store, manifest, "slow", machines, step_s=1e3)
        lives = [asyncio.create_task(x.live()) for x in (slow, fast)]
        assert await lives[1] == "done"
        inbox = slow.handoff._inbox
        assert slow.participant.newest == 59
        assert len(inbox) <= 3, "what it is to evaluate, the last round's evaluation, and the rest"
        assert sum(len(entry.fragments) for entry in inbox) <= 3 * 2
        assert await lives[0] == "done"
        assert slow.params == fast.params
        evals = await Exchange(MemoryMailbox(store), manifest).evals_after(-1)
        assert evals == list(range(1, 60, 2)), "one that is behind left the evaluations to the other"

    virtually(main())


def test_anchors_stay_as_they_are_while_the_model_trains() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=3, fragments=2, beat_s=0.5, lease_s=2.0), rounds=4)
        learner = Learner(store, manifest, "a", machines)
        seen: list[tuple[object, np.ndarray]] = []
        take_aligned = learner.handoff.take_aligned

        def spy() -> Aligned | None:
            taken = take_aligned()
            if taken is not None:
                seen.extend((array, array.copy()) for _, theta in taken.fragments.values() for array in theta.values())
            return taken

        learner.handoff.take_aligned = spy  # type: ignore[method-assign]
        assert await learner.live() == "done"
        assert seen
        assert all(np.array_equal(array, copy) for array, copy in seen)  # type: ignore[arg-type]

    virtually(main())


def test_leaving_just_when_something_was_handed_over_is_not_forgotten() -> None:
    """The wake and the cancellation come together."""

    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, DiLoCo(sync_every=4, quorum_size=2, beat_s=5.0, lease_s=20.0), rounds=None)
        participant = Learner(store, manifest, "a", machines).participant
        await participant.join()
        following = asyncio.create_task(participant.run())
        for n in range(40):  # wherever a poll and the wait after it are
            for _ in range(n):
                await asyncio.sleep(0)
            participant._wake.set()
            following.cancel()
            await asyncio.wait({following}, timeout=1)
            assert following.cancelled()
            following = asyncio.create_task(participant.run())
        following.cancel()
        await participant.leave()

    virtually(main())
