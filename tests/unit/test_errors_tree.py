"""The tree that errors.py draws is the tree that exists."""

import inspect
import re

import pytest

from swarm.core import errors
from swarm.core.errors import SwarmError


def drawn() -> dict[str, str | None]:
    """Parent by class, as the docstring draws them."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│├└─ ]*)([A-Z]\w+)(?: {2,}|$)", line)
        if found:
            depth = len(found[1]) // 4
            assert depth <= len(path), f"{found[2]} hangs in the air"
            path[depth:] = [found[2]]
            assert found[2] not in parents, f"{found[2]} is drawn twice"
            parents[found[2]] = path[depth - 1] if depth else None
    return parents


def existing() -> dict[str, str | None]:
    found = {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, SwarmError) and value.__module__ == errors.__name__
    }
    return {
        name: next((base.__name__ for base in value.__bases__ if issubclass(base, SwarmError)), None)
        for name, value in found.items()
    }


def test_the_drawing_is_the_tree() -> None:
    assert len(drawn()) > 20
    assert drawn() == existing()


def test_every_line_says_what_it_is_for() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if re.match(r"[│├└─ ]*[A-Z]\w+", line)]
    groups = {parent for parent in existing().values() if parent}
    for line in lines[1:]:
        name = re.sub(r"[│├└─ ]", " ", line).split()[0]
        if name in existing() and name not in groups:
            assert len(line.split(name, 1)[1].strip()) > 8, line


@pytest.mark.parametrize(
    ("name", "code"),
    [("UsageError", 2), ("NothingToJoin", 3), ("DeviceUnavailable", 2), ("GroupBroken", 75), ("PassphraseError", 2)],
)
def test_exit_codes_that_are_not_1(name: str, code: int) -> None:
    assert getattr(errors, name).exit_code == code
    others = [other for other in existing() if vars(getattr(errors, other)).get("exit_code", 1) != 1]
    assert len(others) == 5


def test_what_is_a_value_error_too() -> None:
    also = {name for name in existing() if issubclass(getattr(errors, name), ValueError)}
    assert also == {"InvalidKey", "RecordError", "HeaderError", "AdvertError"}


def test_messages_name_what_differs() -> None:
    assert "beat_s, sync_every" in str(errors.RunConfigMismatch(["beat_s", "sync_every"]))
    assert errors.SchemaMismatch(["b", "a"]).names == ("a", "b")
    assert "a, b" in str(errors.SchemaMismatch(["b", "a"]))
    newer = errors.FormatMismatch(theirs=2, ours=1, where="run x")
    older = errors.FormatMismatch(theirs=1, ours=2, where="run x")
    assert str(newer) == "run x has format 2, this swarm reads format 1: upgrade swarm here"
    assert str(older).endswith("upgrade swarm where it was made")
    assert "'mac-2' is free" in str(errors.LearnerIdTaken("mac", "mac-2"))
    corrupt = errors.PayloadCorrupt("k", "a" * 64, "b" * 64)
    assert (corrupt.key, corrupt.want, corrupt.got) == ("k", "a" * 64, "b" * 64)
    assert "incarnation 3" in str(errors.Superseded("mac", 3))
    assert errors.PayloadMissing("k").key == "k"
