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
