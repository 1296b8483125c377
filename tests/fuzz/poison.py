"""A run in which every text that a peer may choose is as nasty as its record lets it be, and what must not be seen of it."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from swarm.core import keys, ranks, records
from swarm.core.lines import body_sha256, decode, encode
from swarm.core.manifest import Manifest
from tests.fuzz.mutations import MARKS, NASTY, RIGHT_TO_LEFT

FORGED = "FORGED LINE"
WORST = f"{NASTY}\n{FORGED}\r\n{FORGED}\x85{FORGED}\u2028{FORGED}" + "x" * 20_000
SHORT = f"\n{FORGED}\x1b[2J\u202e{MARKS[:40]}"
PRINTABLE = f"{MARKS[:100]}\u3164[bold]{RIGHT_TO_LEFT}[/]"
TEXTS = (WORST, f"{NASTY[:80]}\n{FORGED}", SHORT, PRINTABLE)
MOST_MARKS = 2

T = TypeVar("T")


def poisoned(value: T) -> T:
    """`value` with every text within as nasty as it may be: a record's own checks say how far that goes."""
    new: Any = value
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            held = getattr(new, field)
            for other in (poisoned(held), *(TEXTS if isinstance(held, str) else ())):
                changed = _with(new, field, other)
                if changed is not None:
                    new = changed
                    if isinstance(held, str) and other in TEXTS:
                        break
    elif isinstance(value, tuple) and not hasattr(value, "_fields"):
        new = tuple(map(poisoned, value))
    elif isinstance(value, dict) and value and all(isinstance(key, str) for key in value):
        if all(isinstance(inner, int | float | str | bool) for inner in value.values()):  # metrics, options, versions
            new = {f"{key}{WORST[:60]}": inner for key, inner in value.items()} | value
        else:
            new = {key: poisoned(inner) for key, inner in value.items()}
    return new  # type: ignore[no-any-return]


def _with(record: msgspec.Struct, field: str, value: object) -> msgspec.Struct | None:
    try:
        changed = msgspec.structs.replace(record, **{field: value})
        if type(record).__module__.startswith("swarm.core.") and hasattr(record, "__post_init__"):
            msgspec.json.decode(msgspec.json.encode(changed), type=type(record))
    except (ValueError, TypeError, msgspec.MsgspecError):
        return None
    return changed


_KINDS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("/manifest/", Manifest),
    ("/rounds/", records.RoundRecord),
    ("/learners/", records.LearnerRecord),
    ("/beats/", records.Beat),
    ("/control/", records.Control),
    ("/evals/", records.EvalRecord),
    ("/members/", ranks.Member),
    ("/probes/", ranks.Probe),
    ("/plan/", ranks.Plan),
    ("/ready/", ranks.Ready),
    ("/end/", ranks.GenerationEnd),
)


def poison(location: str) -> int:
    """Every record of a mailbox's runs in place; how many were changed."""
    parent: dict[str, str] = {}
    count = 0
    for path in sorted(Path(location, "runs").rglob("*.json")):
        key = path.relative_to(location).as_posix()
        kind = next((kind for part, kind in _KINDS if part in key), None)
        if kind is None:
            continue
        old = path.read_bytes()
        record = poisoned(decode(old, kind))
        run = key.split("/")[1]
        if isinstance(record, records.RoundRecord):
            record = msgspec.structs.replace(record, parent=parent.get(run))
        new = encode(record, nonce=json.loads(old.split(b"\n")[1])["nonce"])
        if keys.parse_round(key) is not None:
            parent[run] = body_sha256(new)
        count += new != old
        path.write_bytes(new)
    return count


def unseemly(text: str) -> set[str]:
    """What of `text` must not reach a terminal, by name: controls, directions, what shows nothing, marks above one another."""
    found = set()
    marks = 0
    for char in text:
        kind = unicodedata.category(char)
        marks = marks + 1 if kind[0] == "M" else 0
        if (kind[0] == "C" and char != "\n") or kind in ("Zl", "Zp") or char in "\u115f\u1160\u2800\u3164\uffa0":
            found.add(f"U+{ord(char):04X}")
        if marks > MOST_MARKS:
            found.add("marks")
    if any(line.lstrip().startswith(FORGED) for line in text.splitlines()):
        found.add("a line of a peer's own")
    return found
