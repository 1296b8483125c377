"""Options of a command that derive from a spec class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from swarm.core.options import options

F = TypeVar("F", bound=Callable[..., Any])


def spec_options(spec: type[msgspec.Struct], *, but: tuple[str, ...] = ()) -> Callable[[F], F]:
    """A click option for every field of a spec class, except for those in `but`."""

    def decorate(command: F) -> F:
        for option in reversed([each for each in options(spec) if each.name not in but]):
            kind: Any = click.Choice(option.choices, case_sensitive=False) if option.choices else option.type
            flag, default = f"--{option.name.replace('_', '-')}", option.default
            if option.type is bool:
                said = None if default is None else flag[2:] if default else f"no-{flag[2:]}"
                flag, default = f"{flag}/--no-{flag[2:]}", said
            command = click.option(
                flag,
                option.name,
                type=kind,
                default=None,
                help=option.help + ("" if default is None else f"  [default: {default}]"),
            )(command)
        return command

    return decorate


def job_option(spec: type[msgspec.Struct], name: str, *, turn: str = "") -> Callable[[F], F]:
    """The click option for a field of core/joboptions.py, with its default. `turn`: what stands for {turn} in the help."""
    option = next(each for each in options(spec) if each.name == name)
    flag, help = f"--{name.replace('_', '-')}", option.help.replace("{turn}", turn)
    if option.type is bool:
        if option.optional:
            return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=help)
        return click.option(flag, name, is_flag=True, help=help)
    kind: Any = click.Choice(option.choices) if option.choices else option.type
    if option.type is int and not option.choices:
        limits = dict(option.limits)
        kind = click.IntRange(_whole(limits.get(">=")), _whole(limits.get("<=")))
    return click.option(
        flag,
        name,
        type=kind,
        default=option.default,
        show_default=option.default is not None,
        metavar=option.metavar or None,
        help=help,
    )


def _whole(limit: float | None) -> int | None:
    return None if limit is None else int(limit)
