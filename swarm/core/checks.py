"""What every record's fields must be, checked whenever one is made."""

from __future__ import annotations

import msgspec

from swarm.core.ids import is_learner_id
from swarm.core.keys import is_sha256
from swarm.core.options import MAX_REAL

MAX_ROUND = 10**10 - 1  # what ten digits of a key can say
MAX_COUNT = 2**53 - 1  # of anything else: every JSON reader keeps it exact, and tokens²/steps is finite
MAX_SEED = 2**63 - 1
MAX_TEXT = 1000  # characters of what is for people


def check_fields(
    record: msgspec.Struct,
    *,
    ids: tuple[str, ...] = (),
    hashes: tuple[str, ...] = (),
    rounds: tuple[str, ...] = (),
    counts: tuple[str, ...] = (),
    reals: tuple[str, ...] = (),
    losses: tuple[str, ...] = (),
) -> None:
    """Raises ValueError for the first of the named fields whose value is not what its kind allows.

    `losses` may be any number: one that is not finite becomes null on its way into JSON.
    """
    for name in ids:
        if not is_learner_id(getattr(record, name)):
            raise ValueError(f"{name} must be 1 to 64 of a-z, 0-9 and '-', got {getattr(record, name)!r:.100}")
    for name in hashes:
        if not is_sha256(getattr(record, name)):
            raise ValueError(f"{name} must be 64 lower-case hex digits, got {getattr(record, name)!r:.100}")
    for names, limit in ((rounds, MAX_ROUND), (counts, MAX_COUNT)):
        for name in names:
            value = getattr(record, name)
            if type(value) is not int or not 0 <= value <= limit:
                raise ValueError(f"{name} must be a whole number from 0 to {limit}, got {value!r:.100}")
    for name in reals:
        value = getattr(record, name)
        if type(value) not in (int, float) or not 0 <= value <= MAX_REAL:
            raise ValueError(f"{name} must be a number from 0 to {MAX_REAL:g}, got {value!r:.100}")
    for name in losses:
        value = getattr(record, name)
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"{name} must be a number or null, got {value!r:.100}")


def check_texts(record: msgspec.Struct, *names: str) -> None:
    """Raises ValueError for the first of the named fields that is longer than anything which is shown of it. What it may hold
    besides is the business of whoever shows it."""
    for name in names:
        if len(getattr(record, name)) > MAX_TEXT:
            raise ValueError(f"{name} must be at most {MAX_TEXT} characters, got {len(getattr(record, name))}")


def check_name(field: str, name: str, *, path: bool = False) -> None:
    """Raises ValueError unless `name` is one short printable line; with `path`, also one that names no other folder."""
    if not 1 <= len(name) <= 200 or not name.isprintable():
        raise ValueError(f"{field} must be 1 to 200 printable characters, got {name!r:.100}")
    if path and (name.startswith(".") or set(name) & set("/\\:")):
        raise ValueError(f"{field} must be a file's name, got {name!r:.100}")
