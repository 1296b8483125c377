"""A task's options, checked against the struct that describes them."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from swarm.core.errors import UsageError
from swarm.core.options import check_ranges, options

T = TypeVar("T", bound=msgspec.Struct)


def parse(spec: type[T], given: Mapping[str, Any], *, task: str) -> T:
    """A `spec` from `given`, whose values may be text (`key=value` of a command line). Raises UsageError that names the
    option and what it may be."""
    info = inspect.type_info(spec)
    assert isinstance(info, inspect.StructType)
    kinds = {field.name: field.type for field in info.fields}
    choices = {option.name: option.choices for option in options(spec)}
    hints = typing.get_type_hints(spec, include_extras=True)
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in kinds:
            raise UsageError(_unknown(name, kinds, task))
        try:
            # Each by itself, so that the error can say what this one may be.
            values[name] = msgspec.convert(value.strip() if isinstance(value, str) else value, hints[name], strict=False)
            _check_finite(values[name])
        except (msgspec.ValidationError, ValueError) as error:
            wanted = f"one of {', '.join(choices[name])}" if choices[name] else " or ".join(_wanted(kinds[name]))
            raise UsageError(f"{task}: {name} must be {wanted}, got {_shown(value)}") from error
    try:
        made = spec(**values)
        check_ranges(made)
    except (TypeError, ValueError) as error:  # one is missing, or two do not go together
        raise UsageError(f"{task}: {error}") from error
    return made


def _unknown(name: str, known: Iterable[str], task: str) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known) or 'none'}"
    return f"{task} has no option {name[:40]!r}; {hint}"


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and value - value != 0:
        raise ValueError("not finite")


def _wanted(kind: inspect.Type) -> Iterable[str]:
    """What a value may be, in words."""
    match kind:
        case inspect.Metadata():
            yield from _wanted(kind.type)
        case inspect.UnionType():
            for member in kind.types:
                yield from _wanted(member)
        case inspect.NoneType():
            return  # the default of an option that may be left out: nobody types it
        case inspect.IntType() | inspect.FloatType():
            word = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            limits = ((">=", kind.ge), (">", kind.gt), ("<=", kind.le), ("<", kind.lt))
            yield f"{word} {' and '.join(f'{sign} {limit}' for sign, limit in limits if limit is not None)}".strip()
        case inspect.BoolType():
            yield "true or false"
        case _:
            yield "text"


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:39]}…"
