"""Merging what FedAvg's clients published: by every merge and outer optimizer, with buffers, and with clients that must not
count: the bytes are then those of the others alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from swarm.core.manifest import Manifest, PayloadRef, TaskRef
from swarm.core.records import Rejected, RoundRecord, Snapshot
from swarm.core.specs import FedAvg
from swarm.core.tensorspec import TensorSpec
from swarm.exchange import Exchange, create_run
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.merging import Merged, Merger
from swarm.tensors.codec import encode
from swarm.tensors.payload import Packed
from swarm.tensors.precision import BUFFER_DTYPES
from swarm.tensors.schema import Schema
from tests.integration.simulation import virtually

SPECS = [
    TensorSpec("bn.count", "I64", (), buffer=True),
    TensorSpec("bn.var", "F32", (5,), buffer=True),
    TensorSpec("bn.weight", "F32", (5,)),
    TensorSpec("conv.weight", "F32", (5, 13)),
    TensorSpec("conv.weight.g", "F32", (2,)),  # between conv.weight and conv.weight.v in an outer payload
    TensorSpec("head.bias", "BF16", (70,)),
    TensorSpec("head.count", "I32", (3,), buffer=True),
]
MERGES = ["mean", "median", "trimmed"]
Tensors = dict[str, NDArray[Any]]


def model(seed: int) -> Tensors:
    random = np.random.default_rng(seed)
    values = {spec.name: random.standard_normal(spec.shape) for spec in SPECS}
    values["bn.var"] = np.square(values["bn.var"])
    return {s.name: np.array(values[s.name] * (100 if s.dtype[0] == "I" else 1), BUFFER_DTYPES[s.dtype]) for s in SPECS}


class Run:
    """A run of FedAvg whose rounds are merged by hand."""

    def __init__(self, spec: FedAvg, specs: Sequence[TensorSpec]) -> None:
        self.spec, self.specs, self.store = spec, specs, MemoryStore()

    async def begin(self) -> None:
        schema = Schema(self.specs)
        draft = Manifest(
            run="testrun1",
            name="test-run",
            algorithm=self.spec,
            task=TaskRef(name="none"),
            tensors=tuple(schema),
            schema_sha256=schema.digest,
            init=(),
        )
        start = model(0)
        self.theta = {spec.name: start[spec.name] for spec in self.specs}
        manifest, _ = await create_run(MemoryMailbox(self.store), draft, [self.theta])
        self.exchange = Exchange(MemoryMailbox(self.store), manifest)
        self.round, self.before = 0, None

    async def publish(
        self, unit: str, here: Tensors | None, *, samples: int = 10, twist: Callable[[Tensors], Tensors] | None = None
    ) -> Snapshot:
        here = model(sum(map(ord, unit)) + 1000 * self.round) if here is None else here
        delta: Tensors = {}
        for spec in self.specs:
            delta |= encode(self.theta[spec.name], here[spec.name], spec=spec, dtype=self.spec.delta_dtype)
        snapshot = Snapshot(
            round=self.round,
            fragment=0,
            learner="learner",
            incarnation=1,
            unit=unit,
            base_sha256="0" * 64,
            schema_sha256=self.exchange.schema.digest,
            dtype=self.spec.delta_dtype,
            payload=PayloadRef(round=self.round, sha256="0" * 64, size_bytes=0),
            tokens=samples,
            steps=samples,
            train_loss=None,
            seconds_s=1.0,
        )
        return await self.exchange.publish(snapshot, twist(delta) if twist else delta)

    async def merge(self, accepted: Sequence[Snapshot]) -> tuple[Merged | None, Merger]:
        merger = Merger(self.exchange, round=self.round, theta=self.theta, before=self.before)
        return await merger.merge(sorted(accepted, key=lambda snapshot: snapshot.unit)), merger

    async def advance(self, merged: Merged) -> None:
        """The next round, after what was merged."""
        self.before = RoundRecord(
            round=self.round,
            fragment=0,
            step=0,
            version=self.round,
            parent=None,
            participants=(),
            rejected=(),
            theta=merged.theta_ref,
            outer=merged.outer_ref,
        )
        self.theta = dict(merged.theta)
        assert await self.exchange.fetch(0, merged.theta_ref) is not None
        self.round += 1

    def key(self, snapshot: Snapshot) -> str:
        return self.exchange.delta_key(snapshot)


async def begun(spec: FedAvg, specs: Sequence[TensorSpec] = SPECS) -> Run:
    run = Run(spec, specs)
    await run.begin()
    return run


def refs(merged: Merged | None) -> Any:
    assert merged is not None
    return merged.theta_ref, merged.outer_ref, [each.snapshot.unit for each in merged.counted]


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("outer", ["fedavg", "fedavgm", "fedadam", "fedyogi"])
def test_rounds_follow_the_formulas(outer: Any, merge: Any) -> None:
    async def main() -> None:
        run = await begun(FedAvg(outer=outer, outer_lr=0.5, merge=merge, trim=0.25, clients=9, per_round=9))
        wide = {name: array.astype(np.float64) for name, array in run.theta.items()}
        m, v = dict.fromkeys(wide, 0.0), dict.fromkeys(wide, 1e-6)
        samples = {"a": 10, "b": 30, "c": 2, "d": 55, "e": 0}
        for _ in range(3):
            here = {unit: model(100 * run.round + k) for k, unit in enumerate(samples)}
            snapshots = [await run.publish(unit, here[unit], samples=n) for unit, n in samples.items()]
            merged, merger = await run.merge(snapshots)
            assert merged is not None
            assert merger.rejected == []
            assert [s.unit for s in merger.weightless] == ["e"]
            assert [c.snapshot.unit for c in merged.counted] == ["a", "b", "c", "d"]
            del here["e"]
            for spec in SPECS:
                rows = np.stack([each[spec.name].astype(np.float64) for each in here.values()])
                if not spec.buffer:
                    rows = run.theta[spec.name].astype(np.float64) - rows
                match merge:
                    case "mean":
                        middle = np.average(rows, axis=0, weights=[10, 30, 2, 55])
                    case "median":
                        middle = np.median(rows, axis=0)
                    case _:
                        middle = np.sort(rows, axis=0)[1:-1].mean(axis=0)
                name, delta = spec.name, middle
                if spec.buffer:
                    wide[name] = np.floor(middle + 0.5) if spec.dtype[0] == "I" else middle
                elif outer == "fedavg":
                    wide[name] = wide[name] - 0.5 * delta
                elif outer == "fedavgm":
                    m[name] = 0.9 * m[name] + delta
                    wide[name] = wide[name] - 0.5 * m[name]
                else:
                    m[name] = 0.9 * m[name] + 0.1 * delta
                    if outer == "fedadam":
                        v[name] = 0.99 * v[name] + 0.01 * delta**2
                    else:
                        v[name] = v[name] - 0.01 * delta**2 * np.sign(v[name] - delta**2)
                    wide[name] = wide[name] - 0.5 * m[name] / (np.sqrt(v[name]) + 1e-3)
                tolerance = {"rtol": 2e-2, "atol": 2e-2} if spec.dtype == "BF16" else {"rtol": 1e-4, "atol": 1e-4}
                np.testing.assert_allclose(merged.theta[name].astype(np.float64), wide[name], **tolerance)
                assert merged.theta[name].dtype == BUFFER_DTYPES[spec.dtype]
            assert (merged.theta["bn.var"] >= 0).all()
            assert merged.outer_ref is not None, "the master of head.bias"
            await run.advance(merged)

    virtually(main())


def twisted(name: str, value: Any) -> Callable[[Tensors], Tensors]:
    def twist(delta: Tensors) -> Tensors:
        array = np.array(delta[name])
        array.flat[-1] = value
        return delta | {name: array}

    return twist


def damaged(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


def backwards(delta: Tensors) -> bytes:
    """The same payload, but that its tensors stand in the opposite order."""
    raw = b"".join(Packed(delta))
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = msgspec.json.decode(raw[8:begin])
    body, entries = b"", {}
    for name in sorted(header, reverse=True):
        first, last = header[name]["data_offsets"]
        entries[name] = header[name] | {"data_offsets": [len(body), len(body) + last - first]}
        body += raw[begin + first : begin + last]
    text = msgspec.json.encode(entries)
    return len(text).to_bytes(8, "little") + text + body


BAD: dict[str, tuple[str, Callable[[Tensors], Tensors] | None, Callable[[bytes], bytes] | None]] = {
    "a number that is not one": ("nonfinite", twisted("conv.weight", np.nan), None),
    "an infinite one at the end": ("nonfinite", twisted("head.bias", np.inf), None),
    "a buffer that is not finite": ("nonfinite", twisted("bn.var", np.inf), None),
    "cut off": ("corrupt", None, lambda raw: raw[:-3]),
    "cut off in its header": ("corrupt", None, lambda raw: raw[:20]),
    "more than was promised": ("corrupt", None, lambda raw: raw + b"\0"),
    "damaged": ("corrupt", None, damaged),
    "of another shape": ("schema", lambda delta: delta | {"bn.weight": np.zeros(6, np.float32)}, None),
    "of another dtype": ("schema", lambda delta: delta | {"bn.count": np.array(1, np.int32)}, None),
    "of other names": ("schema", lambda delta: {("x" if n == "bn.var" else n): a for n, a in delta.items()}, None),
    "without one": ("schema", lambda delta: {n: a for n, a in delta.items() if n != "bn.var"}, None),
    "too long": ("norm", twisted("conv.weight", 1e9), None),
    "gone": ("missing", None, None),
}


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("flaw", BAD)
@pytest.mark.parametrize("unit", ["a", "m", "z"])
def test_one_that_must_not_count_is_rejected_alone(unit: str, flaw: str, merge: Any) -> None:
    async def main() -> None:
        run = await begun(FedAvg(outer="fedyogi", merge=merge, max_delta_norm=1e6, clients=9, per_round=9))
        reason, twist, damage = BAD[flaw]
        honest = [await run.publish(name, None, samples=n) for name, n in (("b", 5), ("k", 7), ("p", 1))]
        expected, _ = await run.merge(honest)
        bad = await run.publish(unit, None, twist=twist)
        if damage is not None:
            run.store.objects[run.key(bad)] = damage(run.store.objects[run.key(bad)])
        if reason == "missing":
            del run.store.objects[run.key(bad)]
        found, merger = await run.merge([*honest, bad])
        assert refs(found) == refs(expected)
        assert merger.rejected == [Rejected(learner="learner", unit=unit, reason=reason, round=0)]  # type: ignore[arg-type]

    virtually(main())


@pytest.mark.parametrize("merge", MERGES)
def test_several_bad_ones_are_all_told_at_once(merge: Any) -> None:
    async def main() -> None:
        run = await begun(FedAvg(merge=merge, clients=9, per_round=9))
        honest = [await run.publish(name, None) for name in "bdf"]
        expected, _ = await run.merge(honest)
        bad = [await run.publish(name, None, twist=twisted("bn.weight", np.nan)) for name in "ceg"]
        del run.store.objects[run.key(bad[1])]
        before = run.exchange.received_bytes
        await run.merge(honest)
        once = run.exchange.received_bytes - before
        found, merger = await run.merge([*honest, *bad])
        assert refs(found) == refs(expected)
        assert [(r.unit, r.reason) for r in merger.rejected] == [("c", "nonfinite"), ("e", "missing"), ("g", "nonfinite")]
        assert run.exchange.received_bytes - before <= 5 * once, "one pass more, however many they are"

    virtually(main())


@pytest.mark.parametrize("merge", MERGES)
def test_only_bad_ones_change_nothing(merge: Any) -> None:
    async def main() -> None:
        run = await begun(FedAvg(merge=merge, clients=9, per_round=9))
        bad = [await run.publish(name, None, twist=twisted("bn.weight", np.nan)) for name in "ab"]
        found, merger = await run.merge(bad)
        assert (found, merger.weightless, len(merger.rejected)) == (None, [], 2)

    virtually(main())


@pytest.mark.parametrize("merge", MERGES)
def test_clients_without_samples_add_nothing(merge: Any) -> None:
    async def main() -> None:
        run = await begun(FedAvg(merge=merge, clients=9, per_round=9))
        empty = [await run.publish(name, None, samples=0) for name in "ay"]
        found, merger = await run.merge(empty)
        assert found is None
        assert [s.unit for s in merger.weightless] == ["a", "y"]
        honest = [await run.publish(name, None) for name in "bc"]
        expected, _ = await run.merge(honest)
        found, merger = await run.merge([*empty, *honest])
        assert refs(found) == refs(expected)
        assert [s.unit for s in merger.weightless] == ["a", "y"]
        assert merger.rejected == []

    virtually(main())


@pytest.mark.parametrize("merge", MERGES)
def test_finite_deltas_whose_sum_is_not_cost_the_largest_its_place(merge: Any) -> None:
    async def main() -> None:
        run = await begun(FedAvg(merge=merge, outer_lr=1e6, clients=9, per_round=9))
        honest = [await run.publish("b", None)]
        expected, _ = await run.merge(honest)
        large = await run.publish("a", None, twist=twisted("conv.weight", 3e38))
        found, merger = await run.merge([large, *honest])
        assert refs(found) == refs(expected)
        assert [(r.unit, r.reason) for r in merger.rejected] == [("a", "norm")]

    virtually(main())


@pytest.mark.parametrize("merge", MERGES)
def test_another_order_of_tensors_counts_only_where_one_is_read_at_a_time(merge: Any) -> None:
    async def main() -> None:
        run = await begun(FedAvg(merge=merge, clients=9, per_round=9))
        honest = [await run.publish(name, None) for name in "bc"]
        other = await run.publish("z", None)
        expected = await run.merge([*honest, other] if merge == "mean" else honest)
        delta: Tensors = {}
        for spec in SPECS:
            delta |= encode(run.theta[spec.name], model(ord("z"))[spec.name], spec=spec, dtype=None)
        raw = backwards(delta)
        payload = PayloadRef(round=0, sha256=hashlib.sha256(raw).hexdigest(), size_bytes=len(raw))
        ref = msgspec.structs.replace(other, payload=payload)
        run.store.objects[run.key(ref)] = raw
        found, merger = await run.merge([*honest, ref])
        assert found is not None
        assert expected[0] is not None
        assert found.theta_ref == expected[0].theta_ref
        assert [r.reason for r in merger.rejected] == ([] if merge == "mean" else ["schema"])

    virtually(main())


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("dtype", ["F16", "BF16", "F8_E4M3", "F4"])
def test_every_precision_of_deltas(dtype: Any, merge: Any) -> None:
    async def main() -> None:
        run = await begun(FedAvg(merge=merge, delta_dtype=dtype, outer="fedadam", clients=9, per_round=9))
        for _ in range(2):
            here = {unit: model(ord(unit)) for unit in "abc"}
            merged, merger = await run.merge([await run.publish(unit, here[unit]) for unit in "abc"])
            assert merged is not None
            assert merger.rejected == []
            rows = np.stack([each["bn.var"] for each in here.values()]).astype(np.float64)
            exact = rows.mean(axis=0) if merge == "mean" else np.median(rows, axis=0)
            if merge != "trimmed":
                np.testing.assert_allclose(merged.theta["bn.var"], exact, rtol=1e-6)
            await run.advance(merged)

    virtually(main())


def test_a_model_of_fp32_has_no_outer_payload_under_the_plain_mean() -> None:
    async def main() -> None:
        specs = [spec for spec in SPECS if spec.dtype != "BF16"]
        run = await begun(FedAvg(clients=9, per_round=9), specs)
        for _ in range(2):
            before = set(run.store.objects)
            here = model(run.round + 5)
            merged, _ = await run.merge([await run.publish("a", here)])
            assert merged is not None
            assert merged.outer_ref is None
            written = [key for key in set(run.store.objects) - before if "/blobs/rounds/" in key]
            assert written == [run.exchange.keys.round_blob(run.round, merged.theta_ref.sha256)]
            for spec in specs:
                np.testing.assert_allclose(merged.theta[spec.name], here[spec.name], rtol=1e-5, atol=1e-6)
            await run.advance(merged)

    virtually(main())
