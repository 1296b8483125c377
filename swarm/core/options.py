"""The fields of a spec class as options: defaults, ranges and one-line help stand in the class; command line and forms derive
from it."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_INT = 10**9  # of a spec's counts
MAX_REAL = 1e100  # of any number in a record: sums and products of a few stay finite


class Option(msgspec.Struct, frozen=True):
    """One field of a spec, for whoever builds an option or a form field of it."""

    name: str
    type: type  # int, float, str, bool
    default: Any
    optional: bool  # may be None
    choices: tuple[str, ...]
    minimum: float | None
    help: str
    limits: tuple[tuple[str, float], ...] = ()  # of a number, as in ((">=", 1), ("<=", 64))
    metavar: str = ""  # what stands for the value in a command's help


def options(spec: type[msgspec.Struct]) -> Iterator[Option]:
    """The fields of a spec class that hold one value each, in order."""
    allowed = _allowed(spec)
    for field in msgspec.structs.fields(spec):
        kinds, metas = allowed[field.name]
        if any(typing.get_origin(kind) is dict or _is_struct(kind) for kind in kinds):
            continue
        choices = _choices(kinds)
        lows = [m.ge if m.ge is not None else m.gt for m in metas if m.ge is not None or m.gt is not None]
        yield Option(
            name=field.name,
            type=str if choices else next(k for k in kinds if k is not type(None)),
            default=field.default,
            optional=type(None) in kinds,
            choices=choices,
            minimum=lows[0] if lows else None,
            help=next((m.description for m in metas if m.description), ""),
            limits=tuple((sign, limit) for m in metas for sign, limit in _limits(m)),
            metavar=next((str(m.extra["metavar"]) for m in metas if m.extra and "metavar" in m.extra), ""),
        )


def _limits(meta: Meta) -> Iterator[tuple[str, float]]:
    for sign, limit in ((">=", meta.ge), (">", meta.gt), ("<=", meta.le), ("<", meta.lt)):
        if limit is not None:
            yield sign, limit


def about(spec: type[msgspec.Struct], field: str) -> tuple[tuple[Any, ...], tuple[Meta, ...]]:
    """(the types that a field allows, all that is said about it)."""
    return _allowed(spec)[field]


def differences(here: msgspec.Struct, there: msgspec.Struct) -> list[str]:
    """Fields of two specs of one class that differ, in words."""
    names = [field.name for field in msgspec.structs.fields(here)]
    pairs = [(name, getattr(here, name), getattr(there, name)) for name in names]
    return [f"{name} is {mine} here, {theirs} in the run" for name, mine, theirs in pairs if mine != theirs]


def check_ranges(spec: msgspec.Struct) -> None:
    """Enforce each field's type, choices and Meta range, which msgspec itself does on decoding only. Raises ValueError."""
    for name, (kinds, metas) in _allowed(type(spec)).items():
        value = getattr(spec, name)
        if value is None and type(None) in kinds:
            continue
        choices = _choices(kinds)
        if choices:
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
        elif bool in kinds:
            if type(value) is not bool:
                raise ValueError(f"{name} must be true or false, got {value!r:.100}")
        elif int in kinds:
            most = max([MAX_INT, *(int(m.le) for m in metas if m.le is not None)])  # a field's own limit may be a larger one
            if type(value) is not int or abs(value) > most:
                raise ValueError(f"{name} must be a whole number of at most {most}, got {value!r:.100}")
        elif float in kinds and (type(value) not in (int, float) or not -MAX_REAL <= value <= MAX_REAL):
            raise ValueError(f"{name} must be a finite number, got {value!r:.100}")
        for m in metas:
            for limit, ok, sign in (
                (m.ge, m.ge is None or value >= m.ge, ">="),
                (m.gt, m.gt is None or value > m.gt, ">"),
                (m.le, m.le is None or value <= m.le, "<="),
                (m.lt, m.lt is None or value < m.lt, "<"),
            ):
                if not ok:
                    raise ValueError(f"{name} must be {sign} {limit:g}, got {value!r:.100}")


@functools.cache  # to evaluate the annotations takes milliseconds, and a list of runs makes as many specs
def _allowed(spec: type[msgspec.Struct]) -> dict[str, tuple[tuple[Any, ...], tuple[Meta, ...]]]:
    """By field, as `_unwrap` tells them apart."""
    return {name: _unwrap(hint) for name, hint in typing.get_type_hints(spec, include_extras=True).items()}


def _unwrap(hint: Any) -> tuple[tuple[Any, ...], tuple[Meta, ...]]:
    """(the types that a hint allows, all that is said about them). Limits stand beside the type that they limit, since
    msgspec refuses them on a union."""
    if typing.get_origin(hint) is Annotated:
        base, *extras = typing.get_args(hint)
        kinds, metas = _unwrap(base)
        return kinds, (*(m for m in extras if isinstance(m, Meta)), *metas)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [_unwrap(part) for part in typing.get_args(hint)]
        return tuple(k for kinds, _ in parts for k in kinds), tuple(m for _, metas in parts for m in metas)
    return (hint,), ()


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _choices(kinds: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(c for t in kinds if typing.get_origin(t) is Literal for c in typing.get_args(t))
