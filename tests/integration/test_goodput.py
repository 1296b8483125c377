"""What beats tell of the time a learner had and of what it drew, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from swarm.core.clients import client_index
from swarm.core.records import Beat, LearnerRecord
from swarm.core.specs import DiLoCo
from swarm.host.energy import Drawn
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.clients import ClientSession
from swarm.tasks.contract import EvalResult
from tests.integration.federation import ClientLearner
from tests.integration.roles import Syncer, until
from tests.integration.simulation import FakeStore, Learner, Machines, model, new_run, virtually
from tests.integration.test_clients import federation
from tests.integration.test_controls import Run, started
from tests.integration.test_session import Run as SessionRun

SPEC = DiLoCo(sync_every=20, quorum_size=1, beat_s=0.5, lease_s=5.0)


async def told(learner: Learner | Syncer) -> Beat:
    """Its newest beat."""
    return (await learner.exchange.beats({}))[learner.name][1]


async def another(learner: Learner, happened: Callable[[Beat], bool] = lambda beat: True) -> Beat:
    """One of at least a beat later."""
    await asyncio.sleep(2 * learner.exchange.manifest.algorithm.beat_s)
    while not happened(beat := await told(learner)):  # noqa: ASYNC110 — virtual time
        await asyncio.sleep(0.05)
    return beat


def test_alone_a_learner_trains_nearly_all_the_time() -> None:
    async def main() -> None:
        run = await Run.of(SPEC)
        a = run.learner("a", step_s=0.1)
        [life] = started(a)
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(60)
        beat = await told(a)
        here_s = asyncio.get_running_loop().time() - began_s
        assert here_s - 1 <= beat.alive_s <= here_s + 0.001
        assert beat.trained_s == pytest.approx(0.1 * a.steps, abs=0.6), "as of the newest beat"
        assert 0.9 < beat.trained_s / beat.alive_s <= 1
        await run.command("stop")
        await life

    virtually(main())


@pytest.mark.parametrize("how", ["pause", pytest.param("hold", marks=pytest.mark.slow)])
def test_a_pause_counts_for_neither(how: str) -> None:
    async def main() -> None:
        run = await Run.of(SPEC)
        a = run.learner("a")
        [life] = started(a)
        await asyncio.sleep(20)
        if how == "pause":
            await run.command("pause")
        else:
            a.handoff.hold("somebody is at the keyboard")
        before = await another(a, lambda beat: beat.phase == "paused")
        await asyncio.sleep(100)
        during = await told(a)
        assert (during.alive_s, during.trained_s) == (before.alive_s, before.trained_s)
        assert during.alive_s < 25
        if how == "pause":
            await run.command("resume")
        else:
            a.handoff.hold("")
        await asyncio.sleep(20)
        after = await told(a)
        assert 15 < after.alive_s - during.alive_s < 25
        assert after.trained_s > during.trained_s
        await run.command("stop")
        await life

    virtually(main())


def test_waiting_for_another_learner_is_time_that_is_not_trained() -> None:
    async def main() -> None:
        run = await Run.of(DiLoCo(sync_every=20, quorum_size=2, beat_s=0.5, lease_s=5.0))
        fast, slow = run.learner("fast", step_s=0.1), run.learner("slow", step_s=0.4)
        lives = started(fast, slow)
        await asyncio.sleep(40)
        quick, other = await told(fast), await told(slow)
        assert quick.trained_s / quick.alive_s < 0.5 < 0.7 < other.trained_s / other.alive_s
        await run.command("stop")
        await asyncio.gather(*lives)

    virtually(main())


def test_a_syncer_lives_and_trains_nothing() -> None:
    async def main() -> None:
        run = await Run.of(SPEC)
        a, closer = run.learner("a"), Syncer(run.store, run.manifest, "closer", run.machines)
        lives = [*started(a), asyncio.create_task(closer.live())]
        await asyncio.sleep(30)
        beat = await told(closer)
        assert beat.alive_s > 25
        assert beat.trained_s == 0
        await run.command("stop")
        await asyncio.gather(*lives)

    virtually(main())


def test_clients_of_fedavg_count_and_what_comes_between_them_does_not() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, federation(), rounds=6)
        learners = [ClientLearner(store, manifest, name, machines, step_s=0.2) for name in "ab"]
        lives = [asyncio.create_task(learner.live()) for learner in learners]
        await until(lambda: all(learner.participant.newest >= 3 for learner in learners))
        for learner in learners:
            beat = await told(learner)
            assert 0 < beat.trained_s < beat.alive_s
        learners[0].handoff.hold("on battery")
        before = await another(learners[0], lambda beat: beat.phase == "paused")
        await asyncio.sleep(3)
        assert (await told(learners[0])).alive_s == before.alive_s
        learners[0].handoff.hold("")
        await asyncio.gather(*lives)

    virtually(main())


def test_what_a_machine_draws_is_asked_for_with_whether_it_rests() -> None:
    async def main() -> None:
        run = await Run.of(SPEC)
        a = run.learner("a")
        asked: list[bool] = []

        def draws(resting: bool) -> Drawn:
            asked.append(resting)
            return Drawn(0.0 if resting else 38.5, 0.25 * len(asked))

        a.participant._activity._draws = draws
        [life] = started(a)
        await asyncio.sleep(10)
        beat = await told(a)
        assert beat.power_w == 38.5
        assert beat.energy_wh is not None
        assert beat.energy_wh > 0
        a.handoff.hold("on battery")
        paused = await another(a, lambda beat: beat.phase == "paused" and beat.power_w == 0)
        assert paused.energy_wh is not None
        assert True in asked
        a.handoff.hold("")
        await run.command("stop")
        await life

    virtually(main())


class Slow(NumpyAdapter):
    """Whose parameters take a while to be looked at: a delta is made of them."""

    def __init__(self, clock: SimpleNamespace) -> None:
        super().__init__(model(1))
        self.clock = clock

    def snapshot(self, *given: Any) -> Any:
        self.clock.now_s += 7.0
        return super().snapshot(*given)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What sessions take for the time."""
    clock = SimpleNamespace(now_s=100.0)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr("swarm.runtime.session.time", clock)
    monkeypatch.setattr("swarm.runtime.clients.time", clock)
    return clock


def test_deltas_evaluations_and_checkpoints_are_no_inner_steps(clock: SimpleNamespace) -> None:
    class Store(FakeStore):
        def save(self, sections: Any, values: Any) -> None:
            clock.now_s += 11.0
            super().save(sections, values)

    def evaluate() -> EvalResult:
        clock.now_s += 5.0
        return EvalResult(loss=1.0)

    run, store = SessionRun(rounds=3), Store()
    with run.session(adapter=Slow(clock), evaluate=evaluate, local=lambda me: store) as session:
        for _ in session:
            clock.now_s += 2.0
            session.report(tokens=1)
        assert store.saves >= 1
    assert run.last_beat().steps == 6
    assert run.last_beat().trained_s == 12.0


def test_what_a_program_does_between_two_clients_is_no_step(clock: SimpleNamespace) -> None:
    async def made() -> Any:
        store = MemoryStore()
        return store, await new_run(store, federation(beat_s=0.05), rounds=2)

    store, manifest = asyncio.run(made())
    here = {"machine": "m", "machine_name": "m", "boot": "b", "pid": 1, "process": "1", "version": "0"}
    session = ClientSession(
        NumpyAdapter(model(1)),
        samples=[5] * 6,
        mailbox=MemoryMailbox(store),
        manifest=manifest,
        me=LearnerRecord(learner="a", incarnation=1, **here),  # type: ignore[arg-type]
        gone=lambda _: False,
        alive=lambda _: True,
    )
    with session:
        for client in session:
            assert client_index(client.unit) is not None
            for _ in range(3):
                clock.now_s += 2.0
                assert session.report(samples=5, loss=1.0)
            clock.now_s += 13.0  # measuring it
    assert session.steps == 2 * 3 * 3
    assert session._handoff.telemetry.trained_s == 36.0
