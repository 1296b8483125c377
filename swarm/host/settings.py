"""This machine's settings: one TOML file, checked field by field. A bad value is named and its default used."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError

from swarm.core.errors import UsageError
from swarm.host.paths import settings_file


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    mailboxes: tuple[str, ...] = ()  # locations known on this machine, the last used first
    ascii: bool = False  # plain ASCII on the screen


def load() -> tuple[Settings, tuple[str, ...]]:
    """(settings, what was wrong with the file). A missing file is no fault."""
    path = settings_file()
    try:
        document = tomlkit.parse(path.read_text()).unwrap()
    except FileNotFoundError:
        return Settings(), ()
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        return Settings(), (f"{path}: {error}: the defaults are used",)
    faults = []
    good = {}
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    for name, value in document.items():
        if name not in fields:
            faults.append(f"{path}: unknown setting {name!r}")
            continue
        try:
            good[name] = msgspec.convert(value, fields[name].type)
        except msgspec.ValidationError as error:
            faults.append(f"{path}: {name}: {error}: the default is used")
    return Settings(**good), tuple(faults)


def remember_mailbox(location: str) -> None:
    """Put a mailbox first among the known ones. The rest of the file, comments included, stays as it is."""
    _write_mailboxes([location, *(known for known in load()[0].mailboxes if known != location)])


def _write_mailboxes(locations: list[str]) -> None:
    path = settings_file()
    try:
        document = tomlkit.parse(path.read_text())
    except FileNotFoundError:
        document = tomlkit.document()
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise UsageError(f"{path} cannot be read, so it is not changed: {error}") from error
    document["mailboxes"] = locations
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(tomlkit.dumps(document))
    staged.replace(path)


def mailbox_location(given: str | None) -> str:
    """`given`, else SWARM_MAILBOX, else the settings' first. Raises UsageError if there is none."""
    location = given or os.environ.get("SWARM_MAILBOX") or next(iter(load()[0].mailboxes), None)
    if not location:
        raise UsageError("which mailbox? --mailbox DIR, SWARM_MAILBOX, or `swarm init DIR` to make one and remember it")
    return location if "://" in location else str(Path(location).expanduser().absolute())
