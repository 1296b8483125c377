"""Bytes that nobody meant to write: what a damaged disk, another version or an enemy makes of a real file. All is drawn from
the generator that is given, so a case is made again from its number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

CONTROLS = "\x00\x07\x08\t\n\r\x1b[2J\x1b]0;mine\x07\x7f\x85\x9b31m"
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
INVISIBLE = "\u200b\u200c\u200d\ufeff\u2028\u2029\u00ad\u180e\u3164\ufff9\U000e0001"
MARKS = "a" + "\u0301\u0336\u20dd" * 60
RIGHT_TO_LEFT = "שלום مرحبا"
NASTY = f"{CONTROLS}[bold]{BIDI}{INVISIBLE}{MARKS}{RIGHT_TO_LEFT}"
"""All that must not reach a terminal, in one text."""
PLACES = (
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "C:\\con",
    "con",
    "aux.txt",
    "nul",
    "a/../b",
    "~",
    ".",
    "",
    "a" * 300,
    "x\0y",
)
"""Names that lead elsewhere."""

VALUES: tuple[str, ...] = (
    "null", "true", "false", "0", "-1", "1", "1.5", "-0.0", "1e999", "-1e999", "1e-400", "NaN", "Infinity", "-Infinity",
    "9007199254740993", "18446744073709551616", "-9223372036854775809", "9" * 400, "9" * 5000, "1e308", "10000000000",
    '""', '"x"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', "[]", "{}", "[[]]", '[null]', '{"":null}', "[1,2,3]",
    "[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, '"' + "y" * 20000 + '"', "[" + "0," * 5000 + "0]",
    *(json.dumps(text, ensure_ascii=False) for text in (NASTY, *PLACES)),
)  # fmt: skip
"""Values of every kind, as JSON and what looks like it."""
TOKENS = (b"\x00", b"\xff", b"\xed\xa0\x80", b"\xf8\x88", b"\n", b"\r\n", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"#")


def damaged(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    """`data` after one to three accidents."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(ACCIDENTS)(data, others, rng)
    return data


def _flipped(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _cut(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _without(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    begin, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
    return data[:begin] + data[end:]


def _twice(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    begin, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
    return data[:end] + data[begin:end] * rng.randint(1, 3) + data[end:]


def _spliced(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    other = rng.choice(others)
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


def _with_token(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    at = rng.randint(0, len(data))
    token = rng.choice((*TOKENS, rng.choice(VALUES).encode()))
    return data[:at] + token + data[at:]


def _noise(data: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(rng.randint(1, 64)) + data[at:]


ACCIDENTS: tuple[Callable[[bytes, Sequence[bytes], Random], bytes], ...] = (
    _flipped,
    _cut,
    _without,
    _twice,
    _spliced,
    _with_token,
    _noise,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a value within `value`, itself included."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for n, inner in enumerate(value[:3]):  # of a long list the rest is alike
            yield from places(inner, (*path, n))


def replaced(value: Any, path: tuple[Any, ...], text: str) -> str:
    """The JSON of `value` with `text` in the place of what stands at `path`."""
    if not path:
        return text
    marker = "@@here@@"
    return _dumps(_set(value, path, marker)).replace(json.dumps(marker), text, 1)


def _set(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _set(copy[path[0]], path[1:], new)
    return copy


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def rewritten(value: Any, rng: Random, texts: Sequence[str] = VALUES) -> str:
    """The JSON of `value`, of which one field has another value, or is gone, or stands there twice, or is unknown."""
    where = list(places(value))
    path = rng.choice(where)
    kind = rng.randrange(8)
    holders = [p for p in where if isinstance(at(value, p), dict) and at(value, p)]
    if kind < 5 or not holders:
        return replaced(value, path, rng.choice(texts))
    holder = rng.choice(holders)
    fields: Mapping[str, Any] = at(value, holder)
    name = rng.choice(list(fields))
    if kind == 5:
        return replaced(value, holder, _dumps({k: v for k, v in fields.items() if k != name}))
    inner = _dumps(fields)
    if kind == 6:
        return replaced(value, holder, f"{{{json.dumps(name)}:{rng.choice(texts)},{inner[1:]}")
    return replaced(value, holder, f'{inner[:-1]},"unknown":{rng.choice(texts)}}}')


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value
