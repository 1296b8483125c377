"""This machine's settings: one TOML file, checked field by field. A bad value is named and its default used."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tomlkit
from tomlkit.exceptions import TOMLKitError

from swarm.core.errors import UsageError
from swarm.core.owner import parse_hours
from swarm.core.plaintext import plain, shown
from swarm.host.paths import settings_file

MAX_BYTES = 64 << 10
UNREADABLE = (OSError, TOMLKitError, ValueError, RecursionError)
"""What is raised of a file that is no TOML: a text that is no UTF-8, and a number of too many digits, are ValueErrors."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    mailboxes: tuple[str, ...] = ()  # locations known on this machine, the last used first
    ascii: bool = False  # plain ASCII on the screen
    discovery: bool = True  # tell the network of this machine, and listen for others
    interfaces: tuple[str, ...] = ()  # over which, by name: ["en0"]; none: the best
    peers: tuple[str, ...] = ()  # machines to ask at their addresses: ["studio.local", "192.168.1.7:27273"]
    idle_only: bool = False  # train only while nobody is at the keyboard
    on_ac_only: bool = False  # train only on mains power
    hours: str = ""  # train only within these, local time: "22-7", or several, "22-7,12-13"
    nice: Annotated[int, msgspec.Meta(ge=0, le=19)] | None = None  # of workers; None: 0, and 10 of a machine that stands by


_CHECKS: Mapping[str, Callable[[Any], object]] = {"hours": parse_hours}
"""Of single fields: they raise ValueError for a value that is none."""


def load() -> tuple[Settings, tuple[str, ...]]:
    """(settings, what was wrong with the file). A missing file is no fault."""
    path = settings_file()
    try:
        document = _parsed(path).unwrap()
    except FileNotFoundError:
        return Settings(), ()
    except UNREADABLE as error:
        return Settings(), (f"{path}: {_why(error)}: the defaults are used",)
    faults = []
    good = {}
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    for name, value in document.items():
        if name not in fields:
            close = difflib.get_close_matches(name, fields, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(fields)}"
            faults.append(f"{path}: unknown setting {shown(name, 40)}: {hint}")
            continue
        try:
            converted = msgspec.convert(value, fields[name].type)
            if name in _CHECKS:
                _CHECKS[name](converted)
            good[name] = converted
        except (ValueError, RecursionError) as error:  # msgspec.ValidationError is a ValueError
            faults.append(f"{path}: {name} = {shown(value, 40)}: {plain(str(error), 200)}: the default is used")
    return Settings(**good), tuple(faults)


def remember_mailbox(location: str) -> None:
    """Put a mailbox first among the known ones. The rest of the file, comments included, stays as it is. Raises UsageError
    for a file that cannot be read or written, which is then left alone."""
    known = load()[0].mailboxes
    if known[:1] != (location,):
        _write("mailboxes", [location, *(other for other in known if other != location)])


def remember_peer(address: str) -> None:
    """Put a machine's address last among those that are asked. Raises UsageError as `remember_mailbox` does."""
    known = load()[0].peers
    if address not in known:
        _write("peers", [*known, address])


def _write(setting: str, values: list[str]) -> None:
    path = settings_file().resolve()  # where a link to it leads: the link stays
    try:
        document = _parsed(path)
    except FileNotFoundError:
        document = tomlkit.document()
    except UNREADABLE as error:
        raise UsageError(f"{path} cannot be read, so it is not changed: {_why(error)}") from error
    document[setting] = values
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(tomlkit.dumps(document))
        staged.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise UsageError(f"{path} cannot be written: {_why(error)}") from error


def _parsed(path: Path) -> tomlkit.TOMLDocument:
    """Raises one of UNREADABLE."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes are no settings")
    return tomlkit.parse(data.decode())


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return plain((isinstance(error, OSError) and error.strerror) or str(error), 200)


def mailbox_location(given: str | None) -> str:
    """`given`, else SWARM_MAILBOX, else the settings' first. Raises UsageError if there is none."""
    location = given or os.environ.get("SWARM_MAILBOX") or next(iter(load()[0].mailboxes), None)
    if not location:
        raise UsageError("which mailbox? --mailbox DIR, SWARM_MAILBOX, or `swarm init DIR` to make one and remember it")
    return location if "://" in location else absolute(location)


def absolute(path: str) -> str:
    """`path` as an absolute one, '~' resolved. Raises UsageError."""
    try:
        found = str(Path(path).expanduser().absolute())
        found.encode()
    except RuntimeError as error:  # a '~' that leads nowhere
        raise UsageError(f"{path}: {error}") from error
    except FileNotFoundError:
        raise UsageError(f"{path}: the current folder is gone: pass an absolute path") from None
    except UnicodeEncodeError:  # no file of ours could hold it
        raise UsageError(f"{path!a} is no UTF-8 text: rename it") from None
    return found
