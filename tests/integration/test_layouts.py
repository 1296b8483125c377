"""A PyTorch and an MLX learner train one model whose parameters lie differently in each, over one memory mailbox."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from swarm.core.errors import SchemaMismatch
from swarm.core.events import Ended, RoundClosed
from swarm.core.manifest import Manifest
from swarm.core.records import LearnerRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.learners.contract import Adapter
from swarm.learners.layout import Layout, Permute
from swarm.learners.select import adapter_for
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.session import Session
from swarm.tensors.payload import unpack
from tests.integration.simulation import new_run

torch = pytest.importorskip("torch")
mx = pytest.importorskip("mlx.core")
nn = pytest.importorskip("mlx.nn")
optim = pytest.importorskip("mlx.optimizers")

ROUNDS = 4
LONG_S = 100.0


def batch(seed: int) -> tuple[Any, Any]:
    """Three channels of 9 samples, and which of two tones each is."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, 16)
    x = np.sin(np.arange(9) * (1 + y[:, None, None])) + 0.3 * random.standard_normal((16, 3, 9))
    return x.astype(np.float32), y


class TorchNet(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.front = torch.nn.Sequential(torch.nn.Conv1d(3, 8, 3), torch.nn.ReLU())
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        x = self.front(x).transpose(1, 2)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head((x + self.attention(x, x, x, attn_mask=mask)[0]).mean(1))


class MlxNet(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU())
        self.attention = nn.MultiHeadAttention(8, 2, bias=True)
        self.head = nn.Linear(8, 2)

    def __call__(self, x: Any) -> Any:
        x = self.front(x.transpose(0, 2, 1))
        mask = nn.MultiHeadAttention.create_additive_causal_mask(x.shape[1])
        return self.head((x + self.attention(x, x, x, mask)).mean(1))


Made = tuple[Adapter, Callable[[int], float], Callable[[Any], Any]]


def with_torch() -> Made:
    """(adapter, one inner step on the batch of a seed, outputs)."""
    torch.manual_seed(0)
    model = TorchNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(seed: int) -> float:
        x, y = (torch.from_numpy(array) for array in batch(seed))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return adapter_for(model, "auto"), step, lambda x: model(torch.from_numpy(x)).detach().numpy()


def with_mlx() -> Made:
    mx.random.seed(0)
    model = MlxNet()
    optimizer = optim.Adam(learning_rate=0.01)
    loss_and_grad = nn.value_and_grad(model, lambda x, y: nn.losses.cross_entropy(model(x), y, reduction="mean"))

    def step(seed: int) -> float:
        x, y = batch(seed)
        loss, gradients = loss_and_grad(mx.array(x), mx.array(y))
        optimizer.update(model, gradients)
        mx.eval(model.state, optimizer.state)
        return float(loss.item())

    return adapter_for(model, "auto"), step, lambda x: np.array(model(mx.array(x)))


MADE = {"torch": with_torch, "mlx": with_mlx}


class TorchConv(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 8, 3)
        self.fc = torch.nn.Linear(8 * 7, 2)

    def forward(self, x: Any) -> Any:
        return self.fc(torch.relu(self.conv(x)).flatten(1))


class MlxConv(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3)
        self.fc = nn.Linear(7 * 8, 2)

    def __call__(self, x: Any) -> Any:
        return self.fc(nn.relu(self.conv(x.transpose(0, 2, 1))).flatten(1))


def made_by(net: Any) -> Made:
    return net.adapter, lambda seed: net.train(*batch(seed)), net.predict


def torch_task() -> Made:
    """What a task's build gives, over a net that knows how its parameters map."""
    from swarm.tasks.torch import TorchNet as Net
    from swarm.tasks.torch import empty

    cpu = torch.device("cpu")
    model = empty(TorchConv, cpu)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    net = Net(model, optimizer, torch.nn.functional.cross_entropy, device=cpu, layout=Layout())
    return made_by(net)


def mlx_task() -> Made:
    from swarm.tasks.mlx import MlxNet as Net
    from swarm.tasks.mlx import untouched

    cpu = mx.Device(mx.cpu)
    layout = Layout(
        (
            Permute("conv.weight", axes=(0, 2, 1)),
            Permute("fc.weight", view=(-1, 7, 8), axes=(0, 2, 1)),  # MLX flattens (length, channels)
        )
    )
    optimizer = optim.Adam(0.01, bias_correction=True)
    net = Net(
        untouched(MlxConv, cpu),
        optimizer,
        lambda outputs, y: nn.losses.cross_entropy(outputs, y, reduction="mean"),
        device=cpu,
        layout=layout,
    )
    return made_by(net)


TASKS = {"torch": torch_task, "mlx": mlx_task}


def drawn(adapter: Adapter) -> Adapter:
    """With the parameters that a task draws from a run's seed, by their canonical names."""
    rng = np.random.default_rng(0)
    adapter.apply({spec.name: rng.uniform(-0.2, 0.2, spec.shape).astype(np.float32) for spec in adapter.schema()})
    return adapter


def me(learner: str) -> LearnerRecord:
    return LearnerRecord(
        learner=learner, incarnation=1, machine="m", machine_name="m", boot="b", pid=1, process="1", version="0"
    )


def run_of(store: MemoryStore, adapter: Adapter, spec: DiLoCo) -> Manifest:
    return asyncio.run(new_run(store, spec, adapter=adapter, rounds=ROUNDS))


class Peer:
    """One learner in a thread of its own, with its framework's model in it."""

    def __init__(self, framework: str, store: MemoryStore, manifest: Manifest, made: Callable[[], Made]) -> None:
        self.framework, self.store, self.manifest, self.made = framework, store, manifest, made
        self.events: list[Any] = []
        self.theta: dict[str, bytes] = {}
        self.outputs: Any = None
        self.losses: list[float] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=framework, daemon=True)

    def _run(self) -> None:
        try:
            with mx.stream(mx.cpu):
                self._train()
        except BaseException as error:
            self.error = error

    def _train(self) -> None:
        adapter, step, outputs = self.made()
        session = Session(
            adapter,
            mailbox=MemoryMailbox(self.store),
            manifest=self.manifest,
            me=me(self.framework),
            gone=lambda other: False,
            alive=lambda other: False,
            emit=self.events.append,
        )
        with session:
            for _ in session:
                loss = step(1000 * len(self.framework) + len(self.losses))
                self.losses.append(loss)
                session.report(tokens=16, loss=loss)
        self.theta = {name: array.tobytes() for name, array in adapter.snapshot().items()}
        self.outputs = outputs(batch(99)[0])


@pytest.mark.parametrize("creator", MADE)
def test_both_frameworks_train_one_convolutional_model_with_attention(creator: str) -> None:
    store = MemoryStore()
    # Three fragments: query, key and value of one packed parameter are committed in different rounds.
    spec = DiLoCo(sync_every=12, fragments=3, quorum_size=2, beat_s=0.2, lease_s=60)
    with mx.stream(mx.cpu):
        manifest = run_of(store, MADE[creator]()[0], spec)
    plan = manifest.plan
    homes = {k for k, names in enumerate(plan) for name in names if name.startswith("attention.") and "proj.weight" in name}
    assert len(homes) > 1
    trained(store, manifest, MADE)


@pytest.mark.parametrize("creator", TASKS)
def test_a_task_declares_how_its_net_lies_in_each_framework(creator: str) -> None:
    store = MemoryStore()
    with mx.stream(mx.cpu):
        manifest = run_of(store, drawn(TASKS[creator]()[0]), DiLoCo(sync_every=12, quorum_size=2, beat_s=0.2, lease_s=60))
    assert {spec.name: spec.shape for spec in manifest.tensors} == {
        "conv.weight": (8, 3, 3),
        "conv.bias": (8,),
        "fc.weight": (2, 56),
        "fc.bias": (2,),
    }
    trained(store, manifest, TASKS)


def trained(store: MemoryStore, manifest: Manifest, made: dict[str, Callable[[], Made]]) -> None:
    """Both frameworks train the run to its end, and agree."""
    plan = manifest.plan
    peers = [Peer(framework, store, manifest, how) for framework, how in made.items()]
    for peer in peers:
        peer.thread.start()
    for peer in peers:
        peer.thread.join(LONG_S)
        assert not peer.thread.is_alive()
        if peer.error is not None:
            raise peer.error
    exchange = Exchange(MemoryMailbox(store), manifest)
    records = [asyncio.run(exchange.round(round)) for round in range(ROUNDS)]
    for record in records:
        assert record is not None
        assert [one.learner for one in record.participants] == ["mlx", "torch"]
        assert record.rejected == ()
    one, other = peers
    assert one.theta == other.theta
    assert len({event.params_sha256 for peer in peers for event in peer.events if isinstance(event, Ended)}) == 1
    assert not [event for peer in peers for event in peer.events if isinstance(event, RoundClosed) and event.rejected]
    np.testing.assert_allclose(one.outputs, other.outputs, rtol=0, atol=1e-5)
    # They have trained: the newest committed bytes are these, and differ from the first ones everywhere.
    for fragment, names in enumerate(plan):
        newest = [record for record in records if record is not None and record.fragment == fragment][-1]
        committed = unpack(store.objects[exchange.keys.round_blob(newest.round, newest.theta.sha256)])
        first = unpack(store.objects[exchange.keys.init_blob(fragment, manifest.init[fragment].sha256)])
        for name in names:
            assert committed[name].tobytes() == one.theta[name]
            assert first[name].tobytes() != one.theta[name]
    for peer in peers:
        assert np.mean(peer.losses[-8:]) < np.mean(peer.losses[:8])


def test_without_a_layout_the_second_is_refused_with_the_names() -> None:
    store = MemoryStore()
    manifest = run_of(store, adapter_for(TorchNet()), DiLoCo())
    with mx.stream(mx.cpu):
        adapter = adapter_for(MlxNet())
    session = Session(
        adapter,
        mailbox=MemoryMailbox(store),
        manifest=manifest,
        me=me("mlx"),
        gone=lambda other: False,
        alive=lambda other: False,
    )
    with pytest.raises(SchemaMismatch) as caught, session:
        raise AssertionError("not reached")
    assert {"attention.in_proj_weight", "attention.key_proj.weight", "front.0.weight"} <= set(caught.value.names)
