"""The very bytes of every kind of record in format 1. The file beside this one is never changed, only added to: mailboxes
with such bytes exist."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from swarm.core import manifest, ranks, records
from swarm.core.lines import Envelope, decode, encode
from swarm.core.manifest import FORMAT
from swarm.core.records import Beat, LearnerPhase, RejectReason, RoundRecord

LINES = [json.loads(line) for line in Path(__file__).with_name("records-v1.jsonl").read_text(encoding="utf-8").splitlines()]
PARTS = {"DataRef", "TaskRef", "FileRef", "ModelRef", "PayloadRef", "Participant", "Rejected", "RankBeat"}
PARTS |= {"Address", "Link", "CheckpointAt", "Refusal", "Seat", "TrainPoint", "EvalPoint", "StoredFile"}
KINDS: dict[str, type[msgspec.Struct]] = {
    name: value
    for module in (manifest, records, ranks)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["type"])
def test_the_bytes_are_read_and_written_again_the_same(line: dict[str, str]) -> None:
    data = line["wire"].encode()
    record = decode(data, KINDS[line["type"]])
    nonce = msgspec.json.decode(data.split(b"\n")[1], type=Envelope).nonce
    again = encode(record, nonce=nonce)
    if "since" not in line:  # from before the newest fields: what it says is kept, and they have their defaults
        assert within(json.loads(data.split(b"\n")[0]), json.loads(again.split(b"\n")[0]))
    else:
        assert again == data


def within(old: object, new: object) -> bool:
    """Whether all that `old` says is said by `new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and within(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(within, old, new))
    return old == new


def test_each_kind_of_record_has_lines_with_all_its_fields() -> None:
    for name in {line["type"] for line in LINES}:
        newest = [line for line in LINES if line["type"] == name and "since" in line]
        shown = {key for line in newest for key in json.loads(line["wire"].split("\n")[0])}
        assert shown == set(KINDS[name].__struct_fields__), name


def test_every_kind_of_record_is_there_with_every_word_and_field() -> None:
    assert {line["type"] for line in LINES} == {name for name in KINDS if not name.startswith("_")} - PARTS
    assert FORMAT == 1
    read = [decode(line["wire"].encode(), KINDS[line["type"]]) for line in LINES]
    reasons = {r.reason for record in read if isinstance(record, RoundRecord) for r in record.rejected}
    assert reasons == set(get_args(RejectReason))
    assert {record.phase for record in read if isinstance(record, Beat)} <= set(get_args(LearnerPhase))
    shown: dict[type[msgspec.Struct], list[msgspec.Struct]] = {}
    for record in read:
        for struct in structs(record):
            shown.setdefault(type(struct), []).append(struct)
    assert {kind.__name__ for kind in shown} >= PARTS | {"DiLoCo", "FedAvg", "FineTune"}
    for kind, of_kind in shown.items():  # each field differs from its default somewhere, parts' and options' included
        for field in msgspec.structs.fields(kind):
            if field.name != "format":
                made = field.default_factory
                default = field.default if made is msgspec.NODEFAULT else made()
                assert any(getattr(struct, field.name) != default for struct in of_kind), f"{kind.__name__}.{field.name}"


def structs(value: object) -> Iterator[msgspec.Struct]:
    """`value`, if it is one, and all within."""
    if isinstance(value, msgspec.Struct):
        yield value
        for name in value.__struct_fields__:
            yield from structs(getattr(value, name))
    elif isinstance(value, tuple):
        for inner in value:
            yield from structs(inner)
