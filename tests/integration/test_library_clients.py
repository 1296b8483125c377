"""FedAvg with a program's own model: sessions over a memory mailbox, on threads."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import swarm
from swarm.core.clients import client_id, sampled
from swarm.core.errors import NotFinite, RunConfigMismatch, RunNotFound, SchemaMismatch, UsageError
from swarm.core.events import Created, Ended, Joined, RoundClosed, Trained, Training, Trouble, WorkerEvent
from swarm.core.manifest import Manifest
from swarm.core.naming import run_id_of
from swarm.core.records import RoundRecord
from swarm.exchange import Exchange
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.manifests import read_manifest
from swarm.tape import Tape
from tests.integration.simulation import model, new_run

SPEC = swarm.FedAvg(clients=4, per_round=2, training_seed=29, selection_seed=3, beat_s=0.05, lease_s=0.5)
SAMPLES = [5, 7, 0, 9]


@pytest.fixture(autouse=True)
def own_state_folder(state_dir: Path) -> None:
    """Of each test alone."""


def session(store: MemoryStore, params: Any = None, **options: Any) -> swarm.ClientSession:
    given: dict[str, Any] = {
        "algorithm": SPEC,
        "samples": SAMPLES,
        "mailbox": MemoryMailbox(store),
        "run": "mine",
        "rounds": 3,
        **options,
    }
    return swarm.ClientSession(model(1) if params is None else params, **given)


Trains = Callable[[swarm.Client], Iterator[tuple[float, int]]]


def puller(params: dict[str, np.ndarray], seen: list[swarm.Client] | None = None) -> Trains:
    """Two steps on a client that pull every parameter by what its seed gives."""

    def train(client: swarm.Client) -> Iterator[tuple[float, int]]:
        if seen is not None:
            seen.append(client)
        random = np.random.default_rng(client.seed)
        for _ in range(2 if client.samples else 0):
            for name in sorted(params):
                params[name] += np.float32(0.1) * random.standard_normal(params[name].shape, dtype=np.float32)
            yield 1.0 + client.index, client.samples

    return train


def made(store: MemoryStore) -> Manifest:
    return asyncio.run(read_manifest(MemoryMailbox(store), run_id_of("mine")))


def tape(store: MemoryStore) -> list[RoundRecord]:
    exchange = Exchange(MemoryMailbox(store), made(store))

    async def read() -> list[RoundRecord]:
        every = [await exchange.round(round) for round in range(await exchange.newest_round() + 1)]
        return [record for record in every if record is not None]

    return asyncio.run(read())


def alone(**options: Any) -> tuple[swarm.Result, MemoryStore, dict[str, np.ndarray]]:
    store, params = MemoryStore(), model(1)
    return session(store, params, **options).run(puller(params)), store, params


def test_the_first_makes_the_run_of_its_own_model_and_trains_every_client_that_is_sampled() -> None:
    store, params, events, seen = MemoryStore(), model(1), list[WorkerEvent](), list[swarm.Client]()
    before = {name: array.copy() for name, array in params.items()}
    with session(store, params, callbacks=[events.append], learner_id="a") as mine:
        assert all(np.array_equal(before[name], array) for name, array in params.items()), "Θ⁰ is this model"
        assert mine.algorithm == SPEC
        result = mine.run(puller(params, seen))
    records = tape(store)
    assert [tuple(p.unit for p in record.participants) for record in records] == [sampled(SPEC, 0, r) for r in range(3)]
    weights = {p.unit: p.weight for record in records for p in record.participants}
    assert weights == {unit: SAMPLES[int(unit[-4:])] for unit in weights}
    assert {(c.unit, c.index, c.samples) for c in seen} == {(client_id(c.index), c.index, SAMPLES[c.index]) for c in seen}
    assert sorted((c.round, c.unit) for c in seen) == [(r, unit) for r in range(3) for unit in sampled(SPEC, 0, r)]
    steps = 2 * sum(client.samples > 0 for client in seen)
    assert (result.reason, result.rounds, result.clients, result.steps, result.learner) == ("done", 3, 6, steps, "a")
    assert (made(store).task.name, made(store).algorithm, made(store).rounds) == ("library", SPEC, 3)
    assert isinstance(events[0], Created)
    assert isinstance(events[1], Joined)
    assert events[-1] == Ended(reason="done", rounds=3, params_sha256=result.params_sha256)
    assert swarm.align(other := model(5), mailbox=MemoryMailbox(store), run="mine") == 2
    assert all(np.array_equal(other[name], params[name]) for name in other)


def test_each_client_is_told_when_it_begins_and_when_it_ends() -> None:
    events = list[WorkerEvent]()
    alone(callbacks=[events.append])
    told = [event for event in events if isinstance(event, Training | Trained)]
    begun, ended = told[::2], told[1::2]
    assert len(begun) == 6
    for one, other in zip(begun, ended, strict=True):
        assert isinstance(one, Training)
        assert isinstance(other, Trained)
        assert (one.round, one.unit, one.claim, one.samples) == (other.round, other.unit, other.claim, other.samples)
        assert (other.steps, other.given_up, other.flaw) == (2 if one.samples else 0, False, "")
        assert other.train_loss == (1.0 + int(one.unit[-4:]) if one.samples else None)


def test_two_that_start_at_once_share_the_clients_and_change_no_byte() -> None:
    store, gate, both = MemoryStore(), threading.Barrier(2), threading.Barrier(2)

    def learn(name: str) -> tuple[swarm.Result, list[WorkerEvent]]:
        params, events = model(1), list[WorkerEvent]()
        mine, trains = session(store, params, learner_id=name, callbacks=[events.append]), puller(params)

        def train(client: swarm.Client) -> Iterator[tuple[float, int]]:
            if client.round == 0:
                both.wait(30)  # each has one of the two
            return trains(client)

        gate.wait(30)
        return mine.run(train), events

    with ThreadPoolExecutor(2) as pool:
        (one, told), (other, also) = pool.map(learn, "ab")
    assert one.reason == other.reason == "done"
    assert one.params_sha256 == other.params_sha256 == alone()[0].params_sha256
    assert len([event for event in told + also if isinstance(event, Created)]) == 1
    assert sorted(p.learner for p in tape(store)[0].participants) == ["a", "b"]
    assert one.clients + other.clients == 6


def test_step_by_step() -> None:
    store, params, more = MemoryStore(), model(1), list[bool]()
    with session(store, params) as mine:
        for client in mine:
            for loss, samples in puller(params)(client):
                more.append(mine.report(samples=np.int64(samples), loss=np.float32(loss)))
        with pytest.raises(UsageError, match="for client in session"):
            mine.report(samples=1)
    assert all(more)
    assert [record.rejected for record in tape(store)] == [()] * 3
    assert tape(store)[-1].theta.sha256 == tape(alone()[1])[-1].theta.sha256


def test_train_client_may_be_the_whole_loop() -> None:
    store, params = MemoryStore(), model(1)
    mine = session(store, params)

    def train(client: swarm.Client) -> None:
        for loss, samples in puller(params)(client):
            if not mine.report(samples=samples, loss=loss):
                break

    assert mine.run(train).params_sha256 == alone()[0].params_sha256


def test_a_client_that_is_not_wanted_any_more_is_closed_early() -> None:
    store, events, closed = MemoryStore(), list[WorkerEvent](), list[str]()
    mine = session(store, rounds=None, callbacks=[events.append], samples=[5, 5, 5, 5])

    def train(client: swarm.Client) -> Iterator[dict[str, Any]]:
        try:
            while True:
                yield {"loss": 1.0, "samples": 1}
                mine.leave()
        finally:
            closed.append(client.unit)

    result = mine.run(train)
    assert (result.reason, result.clients, result.steps, len(closed)) == ("left", 0, 2, 1)
    (ended,) = [event for event in events if isinstance(event, Trained)]
    assert (ended.unit, ended.given_up, ended.steps) == (closed[0], True, 2)
    assert tape(store) == []


def test_seeds_are_of_the_client_and_its_round_or_without_a_training_seed_of_nothing() -> None:
    def seeds(spec: swarm.FedAvg, learner: str) -> dict[tuple[str, int], int]:
        params, seen = model(1), list[swarm.Client]()
        session(MemoryStore(), params, algorithm=spec, learner_id=learner).run(puller(params, seen))
        return {(client.unit, client.round): client.seed for client in seen}

    one = seeds(SPEC, "a")
    assert one == seeds(SPEC, "b")
    assert len(set(one.values())) == len(one)
    assert all(0 <= seed < 2**63 for seed in one.values())
    unseeded = msgspec.structs.replace(SPEC, training_seed=None)
    assert not set(seeds(unseeded, "a").values()) & set(seeds(unseeded, "a").values())


def states() -> list[str]:
    """The global random states of what is loaded."""
    found: list[Any] = [random.getstate(), np.random.get_state()]
    if "torch" in sys.modules:
        found.append(sys.modules["torch"].get_rng_state().tolist())
    if "mlx.core" in sys.modules:
        found.append(np.array(sys.modules["mlx.core"].random.state[0]).tolist())
    return [repr(one) for one in found]


@pytest.mark.parametrize("faults", [0, 3])
def test_random_states_are_the_callers(faults: int) -> None:
    """Also where a share fails, and is asked again after a wait that is drawn."""
    store, before, during = MemoryStore(), states(), list[str]()
    failing = FaultyMailbox(MemoryMailbox(store), [Fault("fail", op="put", key="beats/", count=faults)])

    def train(client: swarm.Client) -> Iterator[tuple[float, int]]:
        during.extend(states())
        yield 1.0, client.samples

    mine = session(store, mailbox=failing, samples=[5, 5, 5, 5])
    assert mine.run(train).reason == "done"
    assert (states(), set(during)) == (before, set(before))
    assert failing.plan[0].count == 0


def test_a_training_step_of_the_callers_own_owns_its_clipping() -> None:
    """A limit of zero would leave nothing of it: it is for `local_net`, which does as the run says."""
    clipped = msgspec.structs.replace(SPEC, clip_grad_norm=0.0)
    assert alone(algorithm=clipped)[0].params_sha256 == alone()[0].params_sha256


def test_what_is_not_finite_counts_for_nothing_and_training_goes_on() -> None:
    store, params, events, bad = MemoryStore(), model(1), list[WorkerEvent](), sampled(SPEC, 0, 1)[0]

    def train(client: swarm.Client) -> Iterator[tuple[float, int]]:
        if (client.round, client.unit) == (1, bad):
            raise NotFinite("gradient of b.bias")
        yield from puller(params)(client)

    with session(store, params, samples=[5, 7, 3, 9], callbacks=[events.append]) as mine:
        assert mine.run(train).reason == "done"
    assert [[(r.unit, r.reason) for r in record.rejected] for record in tape(store)] == [[], [(bad, "nonfinite")], []]
    assert [e.flaw for e in events if isinstance(e, Trained) and e.flaw] == ["gradient of b.bias"]
    assert [e.message for e in events if isinstance(e, Trouble)] == [
        f"{bad} in round 1: numbers that are not finite (gradient of b.bias): it does not count"
    ]


def test_private_clients_have_their_own_samples() -> None:
    store, spec = MemoryStore(), swarm.FedAvg(private=True, per_round=2, beat_s=0.05, lease_s=0.5)

    def learn(name: str) -> list[swarm.Client]:
        params, seen = model(1), list[swarm.Client]()
        mine = session(store, params, algorithm=spec, samples={"a": 10, "b": 30}[name], learner_id=name)
        assert mine.run(puller(params, seen)).reason == "done"
        return seen

    with ThreadPoolExecutor(2) as pool:
        every = list(pool.map(learn, "ab"))
    assert [{(c.unit, c.index, c.samples) for c in seen} for seen in every] == [{("a", 0, 10)}, {("b", 0, 30)}]
    first = tape(store)[0]
    assert {p.unit: p.weight for p in first.participants} == {"a": 10.0, "b": 30.0}
    assert all((p.train_loss, p.metrics) == (None, {}) for record in tape(store) for p in record.participants)
    assert made(store).task.options == {"model": "dict"}, "nothing of anybody's samples is in the description"


def test_evaluations_are_written_and_shown() -> None:
    events = list[WorkerEvent]()
    _, store, _ = alone(evaluate=lambda: {"loss": 0.5, "accuracy": 0.25}, callbacks=[events.append])
    assert asyncio.run(Tape(MemoryMailbox(store), made(store)).evals_after(-1)) == [0, 1, 2]
    assert [event.round for event in events if isinstance(event, RoundClosed)] == [0, 1, 2]


# What does not fit


def test_what_does_not_fit_is_named_before_anything_is_written() -> None:
    _, store, _ = alone()
    before = dict(store.objects)

    def refused(kind: type[Exception], params: Any = None, **options: Any) -> str:
        with pytest.raises(kind) as error, session(store, params, **options):
            pass
        assert store.objects == before
        return str(error.value)

    assert "a.weight" in refused(SchemaMismatch, {"a.weight": np.zeros((6, 5), np.float32)})
    differs = msgspec.structs.replace(SPEC, clients=3, lr=0.5)
    words = refused(RunConfigMismatch, algorithm=differs, samples=[1, 2, 3], rounds=9)
    for text in (
        "clients is 3 here, 4 in the run",
        "lr is 0.5 here, 0.01",
        "rounds is 9 here, 3",
        "samples is 6 in all here, 21",
    ):
        assert text in words
    assert "samples are other ones" in refused(RunConfigMismatch, samples=[7, 5, 0, 9])
    assert "samples are of 2 clients, and the run has 4" in refused(UsageError, algorithm=None, samples=[1, 2])
    assert "one for each client" in refused(UsageError, algorithm=None, samples=5)
    assert "private is True here, False in the run" in refused(
        RunConfigMismatch, algorithm=swarm.FedAvg(private=True, beat_s=0.05, lease_s=0.5), samples=5
    )


def test_each_kind_of_session_says_which_one_enters_the_others_runs() -> None:
    store = MemoryStore()
    asyncio.run(new_run(store, SPEC, rounds=1, name="federated", run="fedrun01"))
    asyncio.run(new_run(store, swarm.DiLoCo(), rounds=1, name="local", run="localrun"))
    before = dict(store.objects)
    with pytest.raises(UsageError, match=r"federated is a FedAvg, .* with swarm\.ClientSession, not swarm\.Session"):
        swarm.Session(model(1), mailbox=MemoryMailbox(store), run="federated").__enter__()
    with pytest.raises(UsageError, match=r"local is a DiLoCo, .* with swarm\.Session, not swarm\.ClientSession"):
        session(store, run="local").__enter__()
    with pytest.raises(UsageError, match=r"a swarm\.FedAvg is for swarm\.ClientSession"):
        swarm.Session(model(1), algorithm=SPEC)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"a swarm\.DiLoCo is for swarm\.Session"):
        swarm.ClientSession(model(1), algorithm=swarm.DiLoCo(), samples=[1])  # type: ignore[arg-type]
    assert store.objects == before


def test_without_an_algorithm_no_run_is_made() -> None:
    with pytest.raises(RunNotFound, match=r"algorithm=swarm\.FedAvg"), session(MemoryStore(), algorithm=None):
        pass


@pytest.mark.parametrize("samples", ["1234", [1, 2.5, 3, 4], [1, 2, 3], [1, 2, 3, -4], 5, None, iter([1, 2, 3, 4])])
def test_samples_that_are_no_counts_are_refused(samples: Any) -> None:
    with pytest.raises(UsageError, match="samples"):
        session(MemoryStore(), samples=samples)


def test_a_client_of_which_nothing_is_told_is_a_mistake_that_is_named() -> None:
    store = MemoryStore()
    with pytest.raises(UsageError, match="no step on it was told: call report"), session(store, samples=[5, 5, 5, 5]) as mine:
        for _ in mine:
            pass
    assert tape(store) == []


@pytest.mark.parametrize(
    ("result", "words"), [(0.5, "returned a float"), ([0.5], r"yield \(loss, samples\)"), ([(0.5, 2.5)], "whole number")]
)
def test_what_train_client_gives_must_say_how_much_it_was(result: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        session(MemoryStore(), samples=[5, 5, 5, 5]).run(lambda client: result)


# Frameworks


def batches(client: swarm.Client) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(client.index)
    for start in range(0, client.samples, 4):
        x = random.standard_normal((min(4, client.samples - start), 3)).astype(np.float32)
        yield x, x.sum(axis=1, keepdims=True)


def nets() -> tuple[Any, Any]:
    """The same model twice: (torch's, mlx's), each with BatchNorm, and a loss."""
    torch, nn = pytest.importorskip("torch"), pytest.importorskip("mlx.nn")
    mine = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1))

    class Layers(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for name, layer in {"0": nn.Linear(3, 5), "1": nn.BatchNorm(5), "2": nn.Linear(5, 1)}.items():
                self[name] = layer

        def __call__(self, x: Any) -> Any:
            return self["2"](self["1"](self["0"](x)))

    return (mine, torch.nn.functional.mse_loss), (Layers(), nn.losses.mse_loss)


@pytest.mark.parametrize("buffers", ["averaged", "local"])
def test_one_run_in_both_frameworks_with_the_training_that_the_run_says(buffers: str) -> None:
    spec = msgspec.structs.replace(SPEC, optimizer="adam", lr=0.01, clip_grad_norm=1.0, prox_mu=0.1, buffers=buffers)
    store, samples = MemoryStore(), [8, 8, 12, 12]
    (first, loss), (second, other_loss) = nets()

    def learn(net: Any, loss: Any, name: str, rounds: int) -> swarm.Result:
        trainer = swarm.local_net(net, loss)
        mine = session(store, net, algorithm=spec, samples=samples, rounds=4, learner_id=name, layout="auto")

        def train(client: swarm.Client) -> Iterator[tuple[float, int]]:
            if client.round >= rounds:
                mine.leave()
            trainer.begin(mine.algorithm)
            for x, y in batches(client):
                yield trainer.step(x, y, lr=mine.algorithm.rate(client.round, 0)), len(y)

        return mine.run(train)

    assert learn(first, loss, "torch", 2).reason == "left"
    result = learn(second, other_loss, "mlx", 4)
    assert (result.reason, result.rounds) == ("done", 4)
    assert {p.learner for record in tape(store) for p in record.participants} == {"torch", "mlx"}
    assert all(record.rejected == () for record in tape(store))
    names = [tensor.name for tensor in made(store).tensors]
    assert ("1.running_mean" in names) == (buffers == "averaged")
    assert tape(store)[-1].participants[0].train_loss < tape(store)[0].participants[0].train_loss


def test_a_run_whose_buffers_differ_says_so_and_names_no_parameter() -> None:
    store, (first, _) = MemoryStore(), nets()[0]
    with session(store, first) as mine:
        mine.leave()
    local = msgspec.structs.replace(SPEC, buffers="local")
    with (
        pytest.raises(RunConfigMismatch, match="buffers is local here, averaged in the run"),
        session(store, first, algorithm=local),
    ):
        pass


def test_arrays_alone_have_no_gradients() -> None:
    with pytest.raises(UsageError, match=r"torch\.nn\.Module or an mlx\.nn\.Module"):
        swarm.local_net(model(1), lambda outputs, y: outputs)
