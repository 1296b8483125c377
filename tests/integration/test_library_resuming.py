"""A program that is started again: its session goes on from what this machine keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import swarm
from swarm.core.errors import StateMismatch, UsageError
from swarm.core.events import Restored, Trouble, WorkerEvent
from swarm.core.keys import RunKeys
from swarm.core.naming import run_id_of
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.simulation import model

SPEC = swarm.DiLoCo(sync_every=8, beat_s=0.05, lease_s=0.5, weight_unit="samples")


@pytest.fixture(autouse=True)
def own_state_folder(state_dir: Path) -> None:
    """Of this test alone."""


class Program:
    """One start of a program, told to leave after some steps."""

    def __init__(self, store: MemoryStore, params: Any = None, **options: Any) -> None:
        self.params = model(1) if params is None else params
        self.events: list[WorkerEvent] = []
        given: dict[str, Any] = {"algorithm": SPEC, "run": "mine", "rounds": 3, "learner_id": "a", **options}
        self.session = swarm.Session(self.params, mailbox=MemoryMailbox(store), callbacks=[self.events.append], **given)
        self.before = -1

    def train(self, steps: int, step: Callable[[], object] | None = None) -> Program:
        with self.session as session:
            self.before = session.steps_before
            made = 0
            for _ in session:
                if made == steps:
                    session.leave()
                    continue
                if step is not None:
                    step()
                else:
                    for array in self.params.values():
                        array += np.float32(0.1)
                made += 1
                session.report(samples=1, loss=1.0)
        return self

    @property
    def restored(self) -> list[str]:
        return [event.what for event in self.events if isinstance(event, Restored)]

    @property
    def troubles(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Trouble)]


class Books:
    """A position in data."""

    def __init__(self) -> None:
        self.page, self.seen = 0, np.zeros(3, np.int64)

    def read(self) -> None:
        self.page += 1
        self.seen[self.page % 3] += 1

    def state(self) -> swarm.TaskState:
        return swarm.TaskState(arrays={"seen": self.seen}, values={"page": self.page})

    def load(self, state: swarm.TaskState) -> None:
        if "page" not in state.values:
            raise StateMismatch("these are no books")
        self.page, self.seen = state.values["page"], np.array(state.arrays["seen"])


def test_parameters_and_counts_go_on_without_a_word_of_the_programs() -> None:
    store = MemoryStore()
    first = Program(store).train(3)
    assert (first.before, first.restored) == (0, [])
    second = Program(store, model(5)).train(0)
    assert (second.before, second.restored) == (3, ["3 local steps"])
    assert all(np.array_equal(second.params[name], array) for name, array in first.params.items())
    assert Program(store).train(2).before == 3
    last = Program(store).train(100)
    assert (last.before, last.restored) == (5, ["5 local steps"])
    assert [program.troubles for program in (first, second, last)] == [[], [], []]


def test_the_programs_own_state_goes_on_too() -> None:
    store, books = MemoryStore(), Books()
    Program(store, state=books).train(5, books.read)
    again = Books()
    second = Program(store, state=again).train(1, again.read)
    assert second.restored == ["5 local steps and the program's own state"]
    books.read()
    assert (again.page, again.seen.tolist()) == (6, books.seen.tolist())


def test_what_does_not_fit_any_more_is_told_and_the_rest_goes_on() -> None:
    store, books = MemoryStore(), Books()
    Program(store, state=books).train(2, books.read)

    class Others(Books):
        def load(self, state: swarm.TaskState) -> None:
            raise StateMismatch("these are other books")

    second = Program(store, state=Others()).train(0)
    assert second.troubles == ["the program's own state cannot be resumed: these are other books"]
    assert (second.before, second.restored) == (2, ["2 local steps"])


def with_torch() -> tuple[Any, Any, Callable[[], object], Callable[[], dict[str, bytes]]]:
    """(model, optimizer, inner step, the optimizer's moments)."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        net(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()

    def moments() -> dict[str, bytes]:
        return {
            f"{name}.{key}": value.numpy().tobytes()
            for name, p in net.named_parameters()
            for key, value in optimizer.state[p].items()
        }

    return net, optimizer, step, moments


def with_mlx() -> tuple[Any, Any, Callable[[], object], Callable[[], dict[str, bytes]]]:
    mx, nn = pytest.importorskip("mlx.core"), pytest.importorskip("mlx.nn")
    optim, utils = pytest.importorskip("mlx.optimizers"), pytest.importorskip("mlx.utils")
    mx.random.seed(0)
    net, optimizer = nn.Linear(3, 2), optim.Adam(0.01)
    gradient = nn.value_and_grad(net, lambda x: net(x).square().mean())

    def step() -> None:
        optimizer.update(net, gradient(mx.ones((4, 3)))[1])
        mx.eval(net.state, optimizer.state)

    return net, optimizer, step, lambda: {n: np.array(a).tobytes() for n, a in utils.tree_flatten(optimizer.state)}


@pytest.mark.parametrize("made", [with_torch, with_mlx])
def test_the_inner_optimizer_goes_on_if_the_session_knows_it(made: Callable[[], Any]) -> None:
    store = MemoryStore()
    net, optimizer, step, moments = made()
    Program(store, net, optimizer=optimizer).train(5, step)
    again, other, also, theirs = made()
    second = Program(store, again, optimizer=other).train(0)
    assert second.restored == ["5 local steps and the inner optimizer"]
    assert theirs() == moments()
    step()
    also()
    assert theirs() == moments(), "the very next step"
    forgotten, _, _, fresh = made()
    assert Program(store, forgotten).train(0).restored == ["5 local steps"]
    assert fresh() != moments()


def test_another_optimizer_begins_and_says_so() -> None:
    torch = pytest.importorskip("torch")
    store = MemoryStore()
    net, optimizer, step, _ = with_torch()
    Program(store, net, optimizer=optimizer).train(5, step)
    again = torch.nn.Linear(3, 2)
    second = Program(store, again, optimizer=torch.optim.SGD(again.parameters(), lr=0.1)).train(0)
    assert second.restored == ["5 local steps"]
    assert second.troubles == [
        "the inner optimizer cannot be resumed: the saved state has optimizer 'Adam', this learner 'SGD'"
    ]


def test_a_run_that_is_made_anew_under_its_name_begins_anew() -> None:
    """Its id, its configuration and its first parameters may all be the former one's."""
    store = MemoryStore()
    Program(store).train(3)
    for key in [key for key in store.objects if key.startswith(RunKeys(run_id_of("mine")).root)]:
        del store.objects[key]
    second = Program(store).train(2)
    assert (second.before, second.restored, second.troubles) == (0, [], [])
    third = Program(store).train(0)
    assert (third.before, third.restored, third.troubles) == (2, ["2 local steps"], [])


def test_two_mailboxes_may_have_a_run_of_one_name() -> None:
    one, other = MemoryStore(), MemoryStore()
    Program(one).train(1)
    Program(other).train(2)
    assert [Program(store).train(0).before for store in (one, other)] == [1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": object()}, "a object is no optimizer of a dict.*state="),
        ({"state": {"page": 1}}, r"swarm\.TaskState, and load\(\); a dict has not"),
    ],
)
def test_what_cannot_be_kept_is_told_before_anything_is_written(options: dict[str, Any], words: str) -> None:
    store = MemoryStore()
    before = set(store.objects)
    with pytest.raises(UsageError, match=words):
        Program(store, **options).train(1)
    assert store.objects.keys() == before
