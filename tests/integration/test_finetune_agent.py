"""Agents of a data-parallel job: whatever happens to one of them the others go on, from a checkpoint that is whole."""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.errors import Dropped, JobStopped, MailboxFull, Superseded, WorkerFailed
from swarm.core.events import Ended, GenerationOver, JobSaved, Paused, RankPlaced, ShareBack, ShareLost, Trouble
from swarm.core.lines import encode
from swarm.core.meeting import start_after, start_before
from swarm.core.rankjob import RankEnded, Reported, Saved
from swarm.core.ranks import CheckpointAt, GenerationEnd, Plan, Seat
from swarm.core.records import Beat, Control
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import Fault
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.parallel import agent
from swarm.parallel.register import Register, read_end
from swarm.parallel.store import Store
from tests.integration.jobs import PLACE, SPEC, STEP_S, Machine, World, adapter, state
from tests.integration.simulation import virtually
from tests.integration.wrappers import Wrapped

When = Literal["before", "after"]
Play = Callable[[World], Coroutine[Any, Any, None]]


def played(play: Play, **values: Any) -> None:
    """`play` in a world of its own."""

    async def main(folder: Path) -> None:
        world = World(folder, msgspec.structs.replace(SPEC, **values))
        await world.create()
        await play(world)

    with tempfile.TemporaryDirectory() as folder:
        virtually(main(Path(folder)))


def adapter_of(machine: Machine) -> bytes:
    return (machine.adapters / "adapters.safetensors").read_bytes()


def overs(machine: Machine) -> list[tuple[str, str]]:
    return [(event.ending, event.reason) for event in machine.of(GenerationOver)]


def test_two_machines_train_to_the_end() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        assert await asyncio.gather(a.life, b.life) == ["done", "done"]
        assert adapter_of(a) == adapter_of(b) == adapter(60)
        assert [event.iterations for m in (a, b) for event in m.events[-1:]] == [60, 60]
        assert [(event.rank, event.size) for m in (a, b) for event in m.of(RankPlaced)] == [(0, 2), (1, 2)]
        assert await world.checkpoints() == [(0, 50), (0, 60)]
        assert {path.name for path in b.adapters.iterdir()} >= {"adapter_config.json", "0000010_adapters.safetensors"}

    played(play, world_size_min=2)


# Killed at any call


async def killed(world: World, victim: str, at: int, when: When) -> None:
    a, b = (Machine(world, name, at=at if name == victim else -1, when=when) for name in "ab")
    dying, other = (a, b) if victim == "a" else (b, a)
    await dying.dead()
    assert dying.box.dead, "the call came"
    assert await other.life == "done", f"{dying.box.last}: the other goes on"
    assert adapter_of(other) == adapter(60)
    found = await world.checkpoints()  # what has a record is whole
    assert found[-1][1] == 60
    newest = [at for at in found if at[0] == found[-1][0]]
    assert len(newest) <= 2
    assert len(newest) == 1 or found == newest, "once there are two, older ones are gone"
    if len(newest) == 2:
        kept = {f"/{generation:06d}/{step:010d}/" for generation, step in newest}
        files = [key for key in world.store.objects if key.startswith(PLACE.files_of_checkpoints)]
        assert all(any(place in key for place in kept) for key in files), "and so are files without a record"


def calls(victim: str) -> int:
    """That a machine makes until the job is done."""
    counted: list[int] = []

    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await asyncio.gather(a.life, b.life)
        counted.append((a if victim == "a" else b).box.calls)

    played(play)
    return counted[0]


@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_one_killed_at_some_calls(victim: str, when: When) -> None:
    stride = 43
    first = 1 + (7 if when == "before" else 29) + (11 if victim == "b" else 0)
    for at in range(first, calls(victim) - 20, stride):
        played(functools.partial(killed, victim=victim, at=at, when=when))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_killed_at_every_call(victim: str, when: When) -> None:
    for at in range(1, calls(victim) - 20):
        played(functools.partial(killed, victim=victim, at=at, when=when))


def test_the_machine_of_rank_0_lost_after_the_last_step() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        a.faults.plan.append(Fault("delay", op="create", key="000000/end", count=None, wait=asyncio.Event().wait))
        await a.until(lambda: (0, 60) in {(s.generation, s.step) for s in saved(world)})
        await a.kill()
        assert await b.life == "done"
        assert overs(b)[0] == ("lost", "a was lost before its checkpoint was stored")
        assert world.started_at == [(0, 0), (1, 60)]
        assert adapter_of(b) == adapter(60)

    def saved(world: World) -> list[CheckpointAt]:
        found = []
        for key in world.store.objects:
            if key.startswith(PLACE.checkpoints):
                generation, step = key.split("/")[3:5]
                found.append(CheckpointAt(generation=int(generation), step=int(step)))
        return found

    played(play)


# Checkpoints


async def broken_at(world: World, step: int) -> tuple[Machine, Machine]:
    """Two machines; when the checkpoint after `step` is in the mailbox, nobody is there any more."""
    a, b = Machine(world, "a"), Machine(world, "b")
    await a.until(lambda: any(event.iteration == step for event in a.of(JobSaved)))
    await asyncio.gather(a.kill(), b.kill())
    return a, b


def damage(world: World, step: int, how: str) -> None:
    files = [key for key in world.store.objects if key.startswith(PLACE.job_files_of(0, step))]
    (key,) = [key for key in files if world.store.objects[key] == state(step)]
    if how == "missing":
        del world.store.objects[key]
    elif how == "damaged":
        world.store.objects[key] = b"x" * len(state(step))
    else:
        world.store.objects[PLACE.job_checkpoint(0, step)] = b"no record\n"


@pytest.mark.parametrize("how", ["missing", pytest.param("damaged", marks=pytest.mark.slow), "unreadable record"])
@pytest.mark.parametrize(("steps", "start"), [((30,), 20), ((30, 20), 0)])
def test_the_one_before_is_taken_if_the_newest_checkpoint_is_no_good(how: str, steps: tuple[int, ...], start: int) -> None:
    async def play(world: World) -> None:
        await broken_at(world, 30)
        for step in steps:
            damage(world, step, how)
        a, b = Machine(world, "a"), Machine(world, "b")
        assert await asyncio.gather(a.life, b.life) == ["done", "done"]
        assert [first for _, first in world.started_at] == [0, start]
        told = [event.message for event in a.of(Trouble)]
        assert [f"the checkpoint after step {step} is damaged" in "".join(told) for step in steps] == [True] * len(steps)
        assert adapter_of(a) == adapter_of(b) == adapter(60)

    played(play)


def test_what_is_gone_back_to() -> None:
    seats = (Seat(learner="a", incarnation=1, address="10.0.0.1", port=21_000),)
    first = Plan(generation=0, leader="a", seats=seats, backend="ring", seed=0)
    then = Plan(generation=3, leader="a", seats=seats, backend="ring", seed=0, start=CheckpointAt(generation=0, step=20))
    at = CheckpointAt(generation=3, step=30)
    assert start_before(at, then, [20, 25, 30, 40]) == CheckpointAt(generation=3, step=25)
    assert start_before(at, then, [10, 40]) == then.start
    assert start_before(CheckpointAt(generation=0, step=20), first, [10, 30]) == CheckpointAt(generation=0, step=10)
    assert start_before(CheckpointAt(generation=0, step=20), first, []) is None
    assert start_before(CheckpointAt(generation=2, step=20), None, []) is None


class Turns(Wrapped):
    """Each call waits until it is let through."""

    def __init__(self, inner: Mailbox) -> None:
        super().__init__(inner)
        self.waiting: list[asyncio.Future[None]] = []

    async def around(self, op: str, key: str, call: Callable[[], Any]) -> Any:
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        await turn
        return await call()


@given(schedule=st.lists(st.integers(0, 2), min_size=20, max_size=160))
@settings(max_examples=60, deadline=None)
def test_an_old_generation_takes_nothing_from_a_later_one(schedule: list[int]) -> None:
    """Generation 0 writes and tidies, at whatever pace, while it is ended and generation 1 begins, writes and tidies."""

    async def main(folder: Path) -> None:
        store = MemoryStore()
        boxes = [Turns(MemoryMailbox(store)) for _ in range(3)]
        here = MemoryMailbox(store)
        first, seats = Store(here, PLACE), (Seat(learner="a", incarnation=1, address="10.0.0.1", port=21_000),)
        plans = {0: Plan(generation=0, leader="a", seats=seats, backend="ring", seed=0)}
        await Register(here, PLACE, 0).propose(plans[0])
        files: dict[int, tuple[Path, Path]] = {}
        for step in range(10, 100, 10):
            files[step] = folder / f"s{step}", folder / f"a{step}"
            files[step][0].write_bytes(state(step))
            files[step][1].write_bytes(adapter(step))

        async def write(box: Mailbox, generation: int, steps: list[int]) -> None:
            writing = Store(box, PLACE)

            async def ended() -> bool:
                return await read_end(box, PLACE, generation) is not None

            for step in steps:
                saved = Saved(step=step, iteration=step, checkpoint=str(files[step][0]), adapter=str(files[step][1]))
                await writing.put(CheckpointAt(generation=generation, step=step), saved=saved, by="a")
                await writing.tidy(generation, ended)

        async def regroup(box: Mailbox) -> None:
            end = GenerationEnd(generation=0, ending="lost", by="b")
            await Register(box, PLACE, 0).finish(end)
            at = start_after(plans[0], await Store(box, PLACE).steps(0))
            plans[1] = Plan(generation=1, leader="b", seats=seats, backend="ring", seed=0, start=at)
            await Register(box, PLACE, 1).propose(plans[1])
            first_step = 0 if at is None else at.step
            await write(box, 1, [first_step + 10, first_step + 20, first_step + 30])

        async def whole(at: CheckpointAt) -> bool:
            record = await first.record(at)
            if record is None:
                return False
            wanted = {record.state.sha256: state(at.step), record.adapter.sha256: adapter(at.step)}
            return all(
                store.objects.get(PLACE.job_file(at.generation, at.step, sha256)) == data for sha256, data in wanted.items()
            )

        work = [
            asyncio.create_task(write(boxes[0], 0, [10, 20, 30, 40, 50, 60])),
            asyncio.create_task(regroup(boxes[1])),
        ]
        for turn in [*schedule, *[0, 1] * 200]:
            if all(task.done() for task in work):
                break
            await asyncio.sleep(0)
            waiting = boxes[0 if turn == 0 else 1].waiting
            if waiting:
                waiting.pop(0).set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
            newer = await first.steps(1)
            if 1 in plans and plans[1].start is not None and len(newer) < 2:
                assert await whole(plans[1].start), "what a later plan names stays"
            for step in newer[-2:]:
                assert await whole(CheckpointAt(generation=1, step=step))
        await asyncio.gather(*work)
        assert len(await first.steps(1)) == 2

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


# The mailbox


def test_a_mailbox_that_is_away_for_a_minute_holds_up_nothing_but_what_goes_there() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(a.of(JobSaved)))
        for machine in (a, b):
            machine.faults.plan.append(Fault("fail", count=None))
        stepped = world.groups[0].step
        await asyncio.sleep(60)
        assert world.groups[0].step >= stepped + 60 / STEP_S - 2, "training goes on"
        for machine in (a, b):
            machine.faults.plan.clear()
        assert await asyncio.gather(a.life, b.life) == ["done", "done"]
        assert world.started_at == [(0, 0)]
        for machine in (a, b):
            assert len(machine.of(ShareLost)) >= 1
            assert len(machine.of(ShareBack)) >= 1
            assert adapter_of(machine) == adapter(400)

    played(play, iters=400)


def test_a_full_mailbox_is_told_and_training_goes_on() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: any(event.iteration == 10 for event in a.of(JobSaved)))
        a.faults.plan.append(Fault("fail", op="put", key="^$", count=None, error=MailboxFull))
        await a.until(lambda: world.groups[0].step >= 45)
        assert len(a.of(ShareLost)) == 1, "that it can be read is not told as its being back"
        assert max(event.iteration for event in a.of(JobSaved)) == 10
        a.faults.plan.clear()
        assert await asyncio.gather(a.life, b.life) == ["done", "done"]
        assert world.started_at == [(0, 0)]
        assert (await world.checkpoints())[-1] == (0, 60)

    played(play)


def test_a_full_mailbox_keeps_nobody_from_pausing() -> None:
    """What rank 0 tells cannot be written either."""

    async def play(world: World) -> None:
        a = Machine(world, "a")
        await a.until(lambda: 0 in world.groups and world.groups[0].step >= 5)
        full = Fault("fail", op="put", key="/log/", count=None, error=MailboxFull)
        a.faults.plan.append(full)
        said = {"train_loss": 1.0, "learning_rate": 1e-5, "tokens_per_s": 1.0, "trained_tokens": 1, "epoch": 0.1}
        world.groups[0].ranks[0].told.append(Reported(iteration=5, **said))
        await a.until(lambda: ("put", PLACE.job_log(0, 0)) in a.faults.calls)
        await world.command("pause")
        await a.until(lambda: not world.groups[0].alive)
        assert world.groups[0].step < 30
        a.faults.plan.clear()
        await world.command("stop")
        assert await a.life == "stopped"
        assert PLACE.job_log(0, 0) in world.store.objects, "it is written once there is room"

    played(play)


# Ranks that fail


def test_a_machine_whose_rank_dies_again_and_again_gives_up_and_the_other_goes_on() -> None:
    async def play(world: World) -> None:
        world.dies_early.add("b")
        a, b = Machine(world, "a"), Machine(world, "b")
        with pytest.raises(WorkerFailed, match="died 5 times before its first step"):
            await b.life
        assert await a.life == "done"
        assert adapter_of(a) == adapter(60)

    played(play)


def test_a_rank_that_says_why_it_cannot_run_here_is_not_tried_again() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await b.until(lambda: bool(b.ranks))
        b.ranks[0].last, b.ranks[0].code = RankEnded(reason="no room", step=0, error="MemoryError"), 1
        with pytest.raises(WorkerFailed, match="no rank can run here: no room"):
            await b.life
        assert await a.life == "done"
        assert overs(a)[0] == ("rendezvous", "b: no room")

    played(play)


def test_a_loss_that_is_not_finite_stops_the_job_with_step_and_checkpoint() -> None:
    async def play(world: World) -> None:
        world.ends[25] = RankEnded(reason="step 25, rows 3 and 4: the loss is not finite", step=24, error="LossNotFinite")
        a, b = Machine(world, "a"), Machine(world, "b")
        for machine in (a, b):
            with pytest.raises(JobStopped, match=r"step 25, rows 3 and 4.*the last good checkpoint is after step 20"):
                await machine.life
            assert adapter_of(machine) == adapter(20)
        end = await read_end(world.mailbox, PLACE, 0)
        assert end is not None
        assert (end.ending, end.checkpoint) == ("stopped", CheckpointAt(generation=0, step=20))

    played(play)


def test_the_last_good_checkpoint_is_named_by_whoever_ends_the_job() -> None:
    async def play(world: World) -> None:
        world.ends[25] = RankEnded(reason="step 25: the loss is not finite", step=24, error="LossNotFinite")
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: any(event.iteration == 20 for event in a.of(JobSaved)))
        a.faults.plan.append(Fault("fail", op="create", key="/end/", count=None))
        with pytest.raises(JobStopped, match=r"rank 1, b: .*the last good checkpoint is after step 20"):
            await b.life
        assert adapter_of(b) == adapter(20)
        a.faults.plan.clear()
        with pytest.raises(JobStopped, match="rank 1, b: "):
            await a.life

    played(play)


def test_a_job_that_is_shorter_than_its_start_is_done() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        assert await asyncio.gather(a.life, b.life) == ["done", "done"]
        assert world.started_at == [(0, 0)]

    played(play, iters=1)


# People


def test_one_that_leaves_keeps_that_very_step() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 13)
        a.agent.leave()
        assert await a.life == "left"
        assert await b.life == "done"
        assert overs(b)[0] == ("regroup", "a leaves")
        assert world.started_at == [(0, 0), (1, world.groups[0].step)]

    played(play)


def test_a_stop_ends_all_with_the_adapter_even_in_a_pause() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 13)
        await world.command("pause")
        await a.until(lambda: bool(a.of(Paused)))
        await b.until(lambda: bool(b.of(Paused)))
        await asyncio.sleep(30)
        assert len(world.groups) == 1
        reached = world.groups[0].step
        await world.command("stop")
        assert await asyncio.gather(a.life, b.life) == ["stopped", "stopped"]
        assert adapter_of(a) == adapter_of(b) == adapter(reached)
        assert [machine.events[-1].iterations for machine in (a, b)] == [reached, reached]

    played(play)


def test_a_stop_is_no_failure_for_one_that_hears_of_it_last() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 13)
        b.faults.plan.append(Fault("late", op="list", key="control/", count=3))
        await world.command("stop")
        assert await asyncio.gather(a.life, b.life) == ["stopped", "stopped"]

    played(play)


def test_a_stop_before_all_are_there() -> None:
    async def play(world: World) -> None:
        a = Machine(world, "a")
        await a.until(lambda: a.agent._meeting is not None and "waiting" in a.agent._meeting.reason)
        await world.command("stop")
        assert await a.life == "stopped"

    played(play, world_size_min=2)


def test_one_that_is_dropped_does_not_come_back() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 13)
        await world.exchange.control(Control(action="drop", by="studio", learner="b", incarnation=1))
        with pytest.raises(Dropped):
            await b.life
        assert await a.life == "done"

    played(play)


async def test_one_that_is_to_leave_does_not_wait_for_a_mailbox_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "AWAY_S", 0.0)
    world = World(tmp_path)
    await world.create()
    a = Machine(world, "a")
    a.life.cancel()  # it runs on a thread of its own, as a worker has it
    a.faults.plan.append(Fault("fail", count=None))
    a.agent.leave()
    await asyncio.to_thread(a.agent.run)
    assert [type(event) for event in a.events[-2:]] == [Trouble, Ended]
    assert a.events[-1].reason == "left"


# Machines that come


def test_one_that_comes_joins_and_one_that_cannot_take_part_holds_up_nobody() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 10)
        odd = [
            Machine(world, "old", versions={"mlx": "0.1", "mlx-lm": "0.32.0"}),
            Machine(world, "other", hashes={"model/model.safetensors": "ee" * 32}),
            Machine(world, "small", memory_bytes=10),
        ]
        await a.until(lambda: world.groups[0].step >= 80)
        assert list(world.groups) == [0]
        c = Machine(world, "c")
        await a.until(lambda: len(world.groups) == 2)
        assert overs(a) == [("regroup", "c joins")]
        assert await asyncio.gather(a.life, b.life, c.life) == ["done"] * 3
        assert {g: [seat.learner for seat in plan.seats] for g, plan in (await world.plans()).items()} == {
            0: ["a", "b"],
            1: ["a", "b", "c"],
        }
        refused = {refusal.learner: refusal.subject for refusal in (await world.plans())[1].refused}
        assert refused == {"old": "mlx", "other": "model/model.safetensors", "small": "memory"} | refused
        assert await asyncio.gather(*(machine.life for machine in odd)) == ["done"] * 3

    played(play, iters=240)


def test_one_that_nobody_reaches_makes_the_others_meet_once() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 10)
        c = Machine(world, "c")
        world.lan.cut |= {("a", f"10.0.0.{c.pid}"), ("b", f"10.0.0.{c.pid}")}
        assert await asyncio.gather(a.life, b.life, c.life) == ["done"] * 3
        assert [len(plan.seats) for plan in (await world.plans()).values()] == [2, 2]

    played(play, iters=240)


def test_two_of_one_machine_with_one_id_both_take_part() -> None:
    async def play(world: World) -> None:
        a = Machine(world, "a", place="mac", may_rename=True)
        await asyncio.sleep(1)
        b = Machine(world, "a", place="mac", may_rename=True)
        assert await asyncio.gather(a.life, b.life) == ["done", "done"]
        (plan,) = (await world.plans()).values()
        assert [seat.learner for seat in plan.seats] == ["a", "a-2"]

    played(play, world_size_min=2)


def test_one_whose_id_was_taken_over_ends_with_its_rank() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 10)
        await world.mailbox.put(PLACE.beat("b", 2, 0), [encode(Beat(phase="join"), nonce="n")])
        with pytest.raises(Superseded):
            await b.life
        assert b.ranks[0].over
        assert await a.life == "done"

    played(play)


def test_a_machine_that_was_killed_comes_back() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 10)
        await a.kill()
        again = Machine(world, "a")
        assert await asyncio.gather(b.life, again.life) == ["done", "done"]
        assert adapter_of(again) == adapter(400)
        assert again.of(RankPlaced)

    played(play, iters=400)


def test_a_model_that_is_swapped_is_refused_at_the_next_generation() -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 10)
        b.files.found["model/model.safetensors"] = "ee" * 32
        b.ranks[0].kill()
        assert await asyncio.gather(a.life, b.life) == ["done", "done"]
        placed = a.of(RankPlaced)[-1]
        assert placed.machines == ("a",)
        assert [words for words in placed.refused if words.startswith("b: model/model.safetensors differs")]
        assert any("model/model.safetensors differs" in event.message for event in b.of(Trouble))

    played(play)
