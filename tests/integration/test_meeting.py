"""Machines come to a plan, one plan, and start their ranks in order; or say why not."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Literal

import pytest

from swarm.core.errors import Superseded
from swarm.core.preflight import Terms
from swarm.core.ranks import CheckpointAt, GenerationEnd, Plan
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.parallel.register import Register, next_generation, waiting
from tests.integration.ranks import LEASE_S, PLACE, Agent, Lan, address, all_plans, restarted, told
from tests.integration.simulation import virtually
from tests.integration.wrappers import Mortal, Stopped

TERMS = Terms(world_size_min=2, gather_s=3.0, probe_s=10.0, start_s=90.0)
NAMES = ("air", "mini", "pro", "studio")


class World:
    def __init__(self, **terms: Any) -> None:
        self.store, self.lan = MemoryStore(), Lan()
        self.terms = Terms(**{name: getattr(TERMS, name) for name in TERMS.__struct_fields__} | terms)
        self.agents: dict[str, Agent] = {}

    def agent(self, name: str, **fields: Any) -> Agent:
        self.agents[name] = Agent(self.store, self.lan, name, **{"terms": self.terms} | fields)
        return self.agents[name]

    def start(self, *names: str, **fields: Any) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self.agent(name, **fields).live()) for name in names]


def check(*agents: Agent, all_of_it: bool = True) -> Plan:
    """All of them run by the same plan, each at a rank of its own; returns it. `all_of_it`: and it has no other ranks."""
    plan = agents[0].plan
    assert plan is not None
    assert [agent.plan for agent in agents] == [plan] * len(agents)
    ranks = [agent.placed[-1].rank for agent in agents]
    assert len(set(ranks)) == len(agents)
    assert not all_of_it or len(agents) == len(plan.seats)
    assert all(agent.placed[-1].seat.learner == agent.name for agent in agents)
    return plan


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_all_that_come_run_by_one_plan(count: int) -> None:
    async def main() -> None:
        world = World(world_size_min=count)
        tasks = world.start(*NAMES[:count])
        assert await asyncio.gather(*tasks) == ["running"] * count
        plan = check(*world.agents.values())
        assert [seat.learner for seat in plan.seats] == sorted(NAMES[:count])
        assert list(await all_plans(MemoryMailbox(world.store))) == [0]
        assert plan.refused == ()

    virtually(main())


def test_the_last_rank_starts_when_all_others_listen() -> None:
    async def main() -> None:
        world = World(world_size_min=3)
        tasks = world.start("air", listens_after_s=20.0) + world.start("mini", "pro")
        await asyncio.gather(*tasks)
        begun = {name: agent.rank.begun_s for name, agent in world.agents.items() if agent.rank is not None}
        assert abs(begun["air"] - begun["mini"]) < 1.0
        assert begun["pro"] >= begun["air"] + 20.0
        check(*world.agents.values())

    virtually(main())


def test_one_that_is_a_minute_late_is_waited_for_if_it_is_needed() -> None:
    async def main() -> None:
        world = World(world_size_min=3)
        tasks = world.start("air", "mini")
        await asyncio.sleep(60.0)
        assert told(world.agents["air"]) == "waiting for 1 more machine"
        assert await asyncio.gather(*tasks, *world.start("pro")) == ["running"] * 3
        assert list(await all_plans(MemoryMailbox(world.store))) == [0]
        check(*world.agents.values())

    virtually(main())


def test_one_that_is_a_minute_late_waits_for_the_next_generation_if_it_is_not() -> None:
    async def main() -> None:
        world = World(world_size_min=2)
        early = world.start("air", "mini")
        await asyncio.gather(*early)
        late = world.start("pro")[0]
        await asyncio.sleep(60.0)
        pro = world.agents["pro"]
        assert told(pro) == "generation 0 is under way; this machine takes part in the next one"
        assert await waiting(MemoryMailbox(world.store), PLACE, 1) == {"pro"}
        air = world.agents["air"].meeting
        assert air is not None
        await air.end("regroup", "pro has come")
        again = [restarted_in_place(world, name) for name in ("air", "mini")]
        assert await asyncio.gather(late, *again) == ["running"] * 3
        assert check(*world.agents.values()).generation == 1

    virtually(main())


def restarted_in_place(world: World, name: str) -> asyncio.Task[str]:
    """The same incarnation, which comes to the next generation."""
    agent = world.agents[name]
    agent.beating.cancel()
    agent.plan = None
    if agent.rank is not None:
        world.lan.listening.pop(agent.rank.pid, None)
    return asyncio.create_task(agent.live())


def test_below_the_minimum_it_says_for_whom_it_waits() -> None:
    async def main() -> None:
        world = World(world_size_min=3)
        tasks = world.start("air", "mini", "pro")
        await asyncio.gather(*tasks)
        await world.agents["pro"].leave()
        meeting = world.agents["air"].meeting
        assert meeting is not None
        await meeting.end("lost", "pro has left")
        again = [restarted_in_place(world, name) for name in ("air", "mini")]
        await asyncio.sleep(2 * TERMS.start_s)
        assert told(world.agents["air"]) == "waiting for 1 more machine; not here: pro"
        assert (await next_generation(MemoryMailbox(world.store), PLACE, learner="x", incarnation=1)) == 1, "it only waits"
        for task in again:
            task.cancel()

    virtually(main())


def test_another_hash_is_named_with_machine_and_file() -> None:
    async def main() -> None:
        world = World(world_size_min=2)
        same = {"hashes": {"train.jsonl": "a" * 64, "model.safetensors": "b" * 64}}
        tasks = world.start("air", "mini", **same)
        world.start("pro", hashes={"train.jsonl": "c" * 64, "model.safetensors": "b" * 64})
        assert await asyncio.gather(*tasks) == ["running"] * 2
        plan = check(world.agents["air"], world.agents["mini"])
        words = "train.jsonl differs: SHA-256 cccccccccccc… there, aaaaaaaaaaaa… on the others"
        assert [(r.learner, r.subject, r.reason) for r in plan.refused] == [("pro", "train.jsonl", words)]
        await asyncio.sleep(5.0)
        assert world.agents["pro"].apart == [words]

    virtually(main())


def test_what_the_run_says_counts_more_than_what_most_have_and_the_fault_can_be_mended() -> None:
    async def main() -> None:
        world = World(world_size_min=2, hashes={"train.jsonl": "a" * 64}, start_s=30.0)
        tasks = [
            *world.start("air", hashes={"train.jsonl": "a" * 64}),
            *world.start("mini", hashes={"train.jsonl": "c" * 64}),
        ]
        await asyncio.sleep(25.0)
        words = "mini: train.jsonl differs: SHA-256 cccccccccccc… there, aaaaaaaaaaaa… in the run"
        assert f"waiting for 1 more machine; {words}" in [told(agent) for agent in world.agents.values()]
        mini = world.agents["mini"]
        mini.facts = type(mini.facts)(learner="mini", incarnation=1, machine_name="mini", memory_bytes=1 << 34,
                                      versions=mini.facts.versions, hashes={"train.jsonl": "a" * 64})  # fmt: skip
        assert await asyncio.gather(*tasks) == ["running"] * 2
        assert check(*world.agents.values()).generation == 1
        register = Register(MemoryMailbox(world.store), PLACE, 0)
        await register.look()
        assert register.end is not None
        assert words in register.end.reason

    virtually(main())


@pytest.mark.parametrize("where", ["before the announcement", "after it"])
def test_a_port_that_another_program_holds_is_passed_over(where: str) -> None:
    async def main() -> None:
        world = World()
        tasks = world.start("air", "mini")
        place = world.agents["air"].network.addresses[0].address
        if where == "after it":
            held: set[tuple[str, int]] = set()

            def taken(at: str, port: int) -> bool:
                """Another program takes the first port of air that is tried, and keeps it."""
                if at == place and not held:
                    held.add((at, port))
                return (at, port) in held

            world.lan.taken_later = taken
        else:
            first = world.agents["air"].network.offer(0, "air", 1, 1)[0]
            world.lan.held.add((place, first))
        await asyncio.gather(*tasks)
        plan = check(*world.agents.values())
        assert plan.generation == (1 if where == "after it" else 0)
        seat = plan.seats[0]
        assert (seat.address, seat.port) not in world.lan.held
        assert not world.lan.taken_later(seat.address, seat.port)
        if where == "after it":
            register = Register(MemoryMailbox(world.store), PLACE, 0)
            await register.look()
            assert register.end is not None
            assert register.end.reason.startswith("air: port ")
            assert all(
                a.port != b.port
                for a, b in zip((await all_plans(MemoryMailbox(world.store)))[0].seats, plan.seats, strict=True)
            )

    virtually(main())


def test_one_that_leaves_before_the_plan_is_not_in_it() -> None:
    async def main() -> None:
        world = World(gather_s=8.0)
        tasks = world.start("air", "mini", "pro")
        await asyncio.sleep(2.0)
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        await world.agents["pro"].beat("left")
        assert await asyncio.gather(*tasks[:2]) == ["running"] * 2
        assert check(world.agents["air"], world.agents["mini"]).generation == 0

    virtually(main())


def test_one_that_leaves_after_the_plan_ends_the_generation() -> None:
    async def main() -> None:
        world = World(world_size_min=2)
        tasks = world.start("air", "mini") + world.start("pro", listens_after_s=1e9)
        while not world.agents["pro"].placed and not world.agents["air"].placed:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        tasks[2].cancel()
        await asyncio.gather(tasks[2], return_exceptions=True)
        await world.agents["pro"].beat("left")
        assert await asyncio.gather(*tasks[:2]) == ["running"] * 2
        plan = check(world.agents["air"], world.agents["mini"])
        assert plan.generation == 1
        assert [seat.learner for seat in plan.seats] == ["air", "mini"]

    virtually(main())


def test_a_rank_that_never_listens_is_given_up_at_the_deadline() -> None:
    async def main() -> None:
        world = World(start_s=20.0)
        tasks = world.start("air", listens_after_s=1e9) + world.start("mini")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        while len(world.agents["air"].placed) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        assert loop.time() - begun_s < 2 * 20.0 + 10.0
        world.agents["air"].listens_after_s = 1.0
        assert await asyncio.gather(*tasks) == ["running"] * 2
        register = Register(MemoryMailbox(world.store), PLACE, 0)
        await register.look()
        assert register.end is not None
        assert register.end.reason.startswith("not started within 20 s: waiting for the rank")
        assert "air" in register.end.reason

    virtually(main())


def test_a_rank_that_dies_ends_the_generation_at_once() -> None:
    async def main() -> None:
        world = World()
        tasks = world.start("air", listens_after_s=1e9) + world.start("mini")
        air = world.agents["air"]
        while air.rank is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        died_s, air.listens_after_s = asyncio.get_running_loop().time(), 1.0
        air.rank.words = "exit code 1: bind: address in use"
        assert await asyncio.gather(*tasks) == ["running"] * 2
        assert asyncio.get_running_loop().time() - died_s < TERMS.start_s / 2
        register = Register(MemoryMailbox(world.store), PLACE, 0)
        await register.look()
        assert register.end is not None
        assert register.end.reason == "the rank of air has ended: exit code 1: bind: address in use"
        assert check(*world.agents.values()).generation == 1

    virtually(main())


def test_the_fast_wire_wins_over_wifi_and_one_address_serves_all() -> None:
    async def main() -> None:
        world = World(world_size_min=3)
        world.lan.bytes_per_s = {"10.1.0.1": 9e8, "10.1.0.2": 9e8, "192.168.1.1": 5e7, "192.168.1.2": 6e7, "192.168.1.3": 4e7}
        tasks = []
        for n, name in enumerate(("air", "mini", "pro"), 1):
            wired = (address(f"10.1.0.{n}", "thunderbolt", "bridge0"),) if n < 3 else ()
            tasks += world.start(name, addresses=(address(f"192.168.1.{n}", "wifi", "en0"), *wired))
        world.lan.cut = {("pro", "10.1.0.1"), ("pro", "10.1.0.2")}  # the cable is between the other two
        await asyncio.gather(*tasks)
        plan = check(*world.agents.values())
        assert [seat.address for seat in plan.seats] == ["192.168.1.1", "192.168.1.2", "192.168.1.3"]

        world = World(world_size_min=2)
        world.lan.bytes_per_s = {"10.1.0.1": 9e8, "10.1.0.2": 9e8, "192.168.1.1": 5e7, "192.168.1.2": 6e7}
        tasks = []
        for n, name in enumerate(("air", "mini"), 1):
            both = (address(f"192.168.1.{n}", "wifi", "en0"), address(f"10.1.0.{n}", "thunderbolt", "bridge0"))
            tasks += world.start(name, addresses=both)
        await asyncio.gather(*tasks)
        assert [seat.address for seat in check(*world.agents.values()).seats] == ["10.1.0.1", "10.1.0.2"]

    virtually(main())


def test_one_that_nobody_reaches_is_left_out_and_told_so() -> None:
    async def main() -> None:
        world = World()
        tasks = world.start("air", "mini", "pro")
        place = world.agents["pro"].network.addresses[0].address
        world.lan.cut = {("air", place), ("mini", place)}
        assert await asyncio.gather(*tasks[:2]) == ["running"] * 2
        await asyncio.sleep(3.0)
        assert world.agents["pro"].apart == [f"air does not reach pro at {place}"]

    virtually(main())


def test_at_most_as_many_as_are_wanted() -> None:
    async def main() -> None:
        world = World(world_size_min=2, world_size_max=2)
        speeds = {"air": 10.0, "mini": 30.0, "pro": 20.0}
        tasks = {name: world.start(name, tokens_per_s=speed)[0] for name, speed in speeds.items()}
        assert await asyncio.gather(tasks["mini"], tasks["pro"]) == ["running"] * 2
        plan = check(world.agents["mini"], world.agents["pro"])
        assert [(seat.learner, seat.share) for seat in plan.seats] == [("mini", 1000), ("pro", 667)]
        await asyncio.sleep(3.0)
        assert world.agents["air"].apart == ["all 2 places are taken by faster machines"]

    virtually(main())


# Generations


def test_nothing_of_an_older_generation_is_read_but_its_end_and_its_plan_names_where_it_starts() -> None:
    async def main() -> None:
        world = World()
        tasks = world.start("air", "mini")
        await asyncio.gather(*tasks)
        air = world.agents["air"].meeting
        assert air is not None
        await air.end("lost", "the link broke")
        boxes: dict[str, FaultyMailbox] = {}
        agents = []
        for name in ("air", "mini"):
            box = boxes[name] = FaultyMailbox(MemoryMailbox(world.store))
            world.agents[name].beating.cancel()

            async def start() -> CheckpointAt:
                return CheckpointAt(generation=0, step=40)

            again = restarted(world.agents[name], world.store, wrap=lambda _, box=box: box, start=start)
            agents.append(again)
        world.lan.listening.clear()
        # What an old one that is still alive goes on to write.
        old = MemoryMailbox(world.store)
        for name in ("air", "mini"):
            await old.create(PLACE.mark(0, "started", learner=name, incarnation=2), b"x\ny\n")
        assert await asyncio.gather(*(agent.live() for agent in agents)) == ["running"] * 2
        plan = check(*agents)
        assert plan.generation == 1
        assert plan.start == CheckpointAt(generation=0, step=40)
        prefix = PLACE.generation(0)
        asked = {call for box in boxes.values() for call in box.calls if call[1].startswith(prefix)}
        assert asked
        assert asked <= {("list", f"{prefix}end/"), ("read", f"{prefix}end/record.json"),
                         ("list", f"{prefix}plan/"), ("read", f"{prefix}plan/record.json")}  # fmt: skip

    virtually(main())


def test_a_generation_whose_machines_are_all_gone_is_ended_by_those_that_come() -> None:
    async def main() -> None:
        world = World()
        tasks = world.start("air", "mini")
        await asyncio.gather(*tasks)
        for agent in world.agents.values():
            agent.beating.cancel()
        world.lan.listening.clear()
        again = [restarted(agent, world.store) for agent in list(world.agents.values())]
        assert await asyncio.gather(*(agent.live() for agent in again)) == ["running"] * 2
        assert check(*again).generation == 1
        register = Register(MemoryMailbox(world.store), PLACE, 0)
        await register.look()
        assert register.end is not None
        assert register.end.ending == "lost"

    virtually(main())


def test_a_job_that_is_finished_takes_nobody_in() -> None:
    async def main() -> None:
        world = World()
        await asyncio.gather(*world.start("air", "mini"))
        air = world.agents["air"].meeting
        assert air is not None
        end = await air.end("finished", "all 100 steps are done", checkpoint=CheckpointAt(generation=0, step=100))
        assert await world.start("pro")[0] == "all 100 steps are done"
        assert await air.end("lost", "too late") == end

    virtually(main())


def test_one_that_begins_anew_makes_the_others_do_so() -> None:
    async def main() -> None:
        world = World(world_size_min=2)
        task = world.start("air")[0]
        await asyncio.sleep(3.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await asyncio.gather(*world.start("air", "mini")) == ["running"] * 2, "the same incarnation comes again"
        assert check(*world.agents.values()).generation == 1

    virtually(main())


def test_a_plan_that_cannot_be_read_ends_its_generation() -> None:
    async def main() -> None:
        world = World()
        world.store.objects[PLACE.rank_plan(0)] = b"{}\n{}\n"
        tasks = world.start("air", "mini")
        assert await asyncio.gather(*tasks) == ["running"] * 2
        assert check(*world.agents.values()).generation == 1

    virtually(main())


def test_bad_records_of_others_are_nobodys() -> None:
    async def main() -> None:
        world = World()
        for key in (
            PLACE.member(0, learner="zed", incarnation=1),
            PLACE.probe(0, learner="zed", incarnation=1, target="air", target_incarnation=1),
            PLACE.lead_claim(0, 0),
            PLACE.mark(0, "ready", learner="air", incarnation=2),
        ):
            world.store.objects[key] = b"\xff\n\n"
        assert await asyncio.gather(*world.start("air", "mini")) == ["running"] * 2
        assert check(*world.agents.values()).generation == 0

    virtually(main())


# Faults


def test_a_share_that_fails_delays_and_changes_nothing() -> None:
    async def main() -> None:
        world = World()

        def wrap(mailbox: Any) -> FaultyMailbox:
            kinds: tuple[Literal["lose", "fail"], ...] = ("lose", "fail")
            calls = [(kind, op, skip) for kind in kinds for op in ("create", "list", "put") for skip in (0, 1, 3)]
            faults = [Fault(kind, op=op, key="ranks/", skip=skip) for kind, op, skip in calls]
            odd: tuple[Literal["late", "double", "foreign"], ...] = ("late", "double", "foreign")
            return FaultyMailbox(mailbox, faults + [Fault(kind, op="list", count=20) for kind in odd])

        assert await asyncio.gather(*world.start("air", "mini", wrap=wrap)) == ["running"] * 2
        assert check(*world.agents.values()).generation == 0

    virtually(main())


def test_one_that_sleeps_is_not_waited_for_and_comes_back_to_the_next_generation() -> None:
    async def main() -> None:
        world = World(world_size_min=2)
        box = Stopped(MemoryMailbox(world.store))
        tasks = [world.start("air", wrap=lambda own: box)[0], *world.start("mini", "pro")]
        while not await all_plans(MemoryMailbox(world.store)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        box.runs.clear()  # after the plan, before it is ready
        assert await asyncio.gather(*tasks[1:]) == ["running"] * 2
        plan = check(world.agents["mini"], world.agents["pro"])
        assert plan.generation == 1
        box.runs.set()
        await asyncio.sleep(3 * LEASE_S)
        air = world.agents["air"]
        assert not tasks[0].done()
        assert told(air) == "generation 1 is under way; this machine takes part in the next one"
        assert air.plan is None
        tasks[0].cancel()

    virtually(main())


def test_one_whose_id_was_taken_over_stops() -> None:
    async def main() -> None:
        world = World(world_size_min=2)
        task = world.start("air")[0]
        await asyncio.sleep(3.0)
        await restarted(world.agents["air"], world.store).beat()
        with pytest.raises(Superseded):
            await task

    virtually(main())


When = Literal["before", "after"]


async def one_killed(victim: str, at: int, when: When) -> None:
    """Two survive of three, of whom one is killed at its call `at`."""
    world = World()
    box = Mortal(MemoryMailbox(world.store), at=at, when=when)
    tasks = {name: world.start(name, wrap=lambda own, name=name: box if name == victim else own)[0] for name in NAMES[:3]}
    box.victim = tasks.pop(victim)
    await asyncio.wait({box.victim})
    assert box.victim.cancelled()
    await world.agents[victim].network.close()  # a killed process answers nobody
    loop = asyncio.get_running_loop()
    died_s = loop.time()
    assert await asyncio.gather(*tasks.values()) == ["running"] * 2, box.last
    assert loop.time() - died_s < 3 * LEASE_S + TERMS.gather_s + TERMS.probe_s + 20.0, box.last
    plan = check(*(world.agents[name] for name in tasks), all_of_it=False)
    assert plan == max((await all_plans(MemoryMailbox(world.store))).items())[1], box.last
    if victim in [seat.learner for seat in plan.seats]:  # killed when all ranks had started: for the ranks' watchers to see
        assert box.last[1].startswith((PLACE.marks(0, "started"), PLACE.beats, PLACE.generation(0))), box.last
        assert plan.generation == 0
        assert world.agents[victim].rank is not None, box.last


@functools.cache
def baseline() -> tuple[str, dict[str, int]]:
    """Who leads, and how many calls each makes until all ranks run."""

    async def main() -> tuple[str, dict[str, int]]:
        world = World()
        boxes = {name: Mortal(MemoryMailbox(world.store), at=-1, when="before") for name in NAMES[:3]}
        await asyncio.gather(*(world.start(name, wrap=lambda own, name=name: boxes[name])[0] for name in NAMES[:3]))
        return (await all_plans(MemoryMailbox(world.store)))[0].leader, {name: box.calls for name, box in boxes.items()}

    return virtually(main())


def follower(leader: str) -> str:
    return "pro" if leader != "pro" else "mini"


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_killed_at_some_calls(when: When) -> None:
    leader, calls = baseline()
    for at in range(1 if when == "before" else 4, min(calls.values()), 7):
        virtually(one_killed(leader, at, when))
        virtually(one_killed(follower(leader), at + 3, when))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_killed_at_every_call(when: When) -> None:
    leader, calls = baseline()
    for name in (leader, follower(leader)):
        for at in range(1, calls[name]):
            virtually(one_killed(name, at, when))


def test_an_end_says_which_checkpoint_counts() -> None:
    end = GenerationEnd(generation=3, ending="finished", by="air", checkpoint=CheckpointAt(generation=2, step=100))
    assert not end.goes_on
    with pytest.raises(ValueError, match="later generation"):
        GenerationEnd(generation=1, ending="finished", by="air", checkpoint=CheckpointAt(generation=2, step=100))
