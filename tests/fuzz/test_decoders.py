"""No bytes crash a reader, hold it up, or make it take more memory than a small multiple of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import FrameType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import RecordError
from swarm.core.lines import decode
from swarm.core.records import Beat, Claim, Control, LearnerRecord, Snapshot
from tests.fuzz.decoders import KINDS, Decoder, decoders, record_decoders, sealed
from tests.fuzz.mutations import VALUES, places, replaced

CASES = 2_000
SLOW_CASES = 100_000
SEED = 20_250_301
CASE_CPU_S = 10.0
FACTOR, CONSTANT = 64, 8 << 20
"""Bytes that reading may take at most: so many for each that is read, and some that it always takes."""


class Hung(BaseException):
    """Not an Exception: nothing that is tested may take it for one of its own."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """In a processor's seconds, so that a busy machine does not count."""

    def over(number: int, frame: FrameType | None) -> None:
        raise Hung(f"more than {CASE_CPU_S:g} s of a processor")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, CASE_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def tried(decoder: Decoder, data: bytes) -> str | None:
    """What is wrong with how `decoder` takes `data`, in words; None: nothing."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    fault = None
    try:
        with bounded():
            decoder.read(data)
    except decoder.expected as error:
        if len(str(error)) > 20_000 + 10 * len(data):
            fault = f"{type(error).__name__} of {len(str(error))} characters"
    except BaseException as error:
        fault = f"{type(error).__name__}: {str(error)[:300]}"
    took = tracemalloc.get_traced_memory()[1] - before
    if fault is None and took > CONSTANT + FACTOR * len(data):
        fault = f"{took} bytes of memory for {len(data)}"
    return fault


def run_cases(folder: Path, count: int, seed: int) -> None:
    every = decoders(folder)
    share = count / sum(decoder.weight for decoder in every)
    faults: list[str] = []
    for decoder in every:
        decoder.read(decoder.seeds[0])  # what is right is read: else all of this would test nothing
    tracemalloc.start()
    try:
        for decoder in every:
            found: set[str] = set()
            for n in range(round(share * decoder.weight)):
                data = decoder.case(Random(f"{seed} {decoder.name} {n}"))
                fault = tried(decoder, data)
                if fault is not None and (kind := re.sub(r"[0-9]+", "", fault.partition(":")[0])) not in found:
                    found.add(kind)
                    faults.append(f"{decoder.name}, case {n}: {fault}\n    {data[:300]!r}")
    finally:
        tracemalloc.stop()
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def test_no_reader_is_brought_down(tmp_path: Path, state_dir: Path) -> None:
    run_cases(tmp_path, CASES, SEED)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_reader_is_brought_down_by_a_hundred_thousand(tmp_path: Path, state_dir: Path) -> None:
    """New ones at each run; SWARM_FUZZ_SEED makes those of an earlier one again."""
    seed = int(os.environ.get("SWARM_FUZZ_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"SWARM_FUZZ_SEED={seed}")
    run_cases(tmp_path, SLOW_CASES, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("decoder", record_decoders(), ids=lambda decoder: decoder.name)
def test_every_field_of_every_record_may_be_anything(decoder: Decoder) -> None:
    for seed in decoder.seeds:
        body = json.loads(seed.split(b"\n")[0])
        for path in places(body):
            for text in VALUES:
                data = sealed(replaced(body, path, text).encode("utf-8", "surrogatepass"))
                with contextlib.suppress(*decoder.expected), bounded():
                    decoder.read(data)


def crowded() -> Iterator[tuple[type[msgspec.Struct], bytes]]:
    """Records that are large for what is small in them."""
    every = {decoder.name.removeprefix("record "): decoder for decoder in record_decoders()}
    many = 20_000
    for name, field, value in (
        ("Snapshot", "metrics", {f"{n:x}": 0 for n in range(many)}),
        ("EvalRecord", "metrics", {f"{n:x}": 0 for n in range(many)}),
        ("EvalRecord", "confusion", [[] for _ in range(many)]),
        ("RoundRecord", "clients", [f"{n:x}" for n in range(many)]),
        ("RoundRecord", "rejected", [{"learner": "a", "unit": "a", "reason": "late", "round": 1}] * many),
        ("Beat", "fetching", [f"{n:x}" for n in range(many)]),
        ("Manifest", "tensors", [{"name": f"{n:x}", "dtype": "F32", "shape": []} for n in range(many)]),
        ("Manifest", "files", [{}] * many),
        ("Manifest", "unknown", [[[{}]]] * many),
        ("Member", "hashes", {f"{n:x}": "" for n in range(many)}),
        ("JobLog", "points", [{"step": 1}] * many),
    ):
        body = json.loads(every[name].seeds[-1].split(b"\n")[0])
        yield KINDS[name], sealed(json.dumps(body | {field: value}, separators=(",", ":")).encode())


@pytest.mark.parametrize(("kind", "data"), crowded(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_crowded_record_takes_a_small_multiple_of_itself(kind: type[msgspec.Struct], data: bytes) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(RecordError):
            decode(data, kind)
        took = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert took < 20 * len(data) + 100_000


@pytest.mark.parametrize("kind", [LearnerRecord, Beat, Snapshot, Claim, Control])
def test_what_a_learner_writes_of_itself_is_small(kind: type[msgspec.Struct]) -> None:
    with pytest.raises(RecordError, match="more than 1048576"):
        decode(b" " * (1 << 20) + b"{}\n{}\n", kind)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=8,
)


@given(st.data())
def test_no_json_in_any_field_does_harm(data: st.DataObject) -> None:
    decoder = data.draw(st.sampled_from(record_decoders()))
    body = json.loads(data.draw(st.sampled_from(decoder.seeds)).split(b"\n")[0])
    path = data.draw(st.sampled_from(list(places(body))))
    text = json.dumps(data.draw(JSON), ensure_ascii=data.draw(st.booleans()))
    with contextlib.suppress(*decoder.expected):
        decoder.read(sealed(replaced(body, path, text).encode("utf-8", "surrogatepass")))


@given(st.data())
def test_no_bytes_do_harm(data: st.DataObject) -> None:
    decoder = data.draw(st.sampled_from(record_decoders()))
    with contextlib.suppress(*decoder.expected):
        decoder.read(data.draw(st.one_of(st.binary(), st.binary().map(sealed))))
