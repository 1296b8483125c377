"""This machine's settings: one TOML file, checked field by field. A bad value is named and its default used."""

from __future__ import annotations

import contextlib
import difflib
import os
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from swarm.core.buckets import canonical, scheme_of
from swarm.core.errors import NoMailboxNamed, UsageError
from swarm.core.options import about
from swarm.core.owner import parse_hours
from swarm.core.plaintext import plain, shown
from swarm.host.paths import settings_file

MAX_BYTES = 64 << 10
UNREADABLE = (OSError, ValueError, RecursionError)
"""What is raised of a file that is no TOML: tomllib's errors, and that of a text that is no UTF-8, are ValueErrors."""
Keys = dict[str, str | tuple[str, ...]]
"""By what they do, as `swarm tui` names it: 'pause = "p"', or several: 'down = ["j", "down"]'."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one machine. Defaults, ranges and help stand here once; file, form and README table derive from them."""

    name: Annotated[str, Meta(max_length=64, description="what this machine is called; by default the host's name")] = ""
    mailboxes: Annotated[tuple[str, ...], Meta(description="mailboxes: folders or s3:// URLs, the last used one first")] = ()
    theme: Annotated[str, Meta(max_length=64, description="colours of the screen, as the palette's `theme` lists them")] = ""
    ascii: Annotated[bool, Meta(description="plain ASCII on the screen")] = False
    interval_s: Annotated[float, Meta(ge=0.5, le=10, description="seconds between two paintings of what is shown")] = 1.0
    keymap: Annotated[Keys, Meta(description='other keys, by what they do, as the help page names it: pause = "p"')] = {}
    notify: Annotated[
        tuple[str, ...],
        Meta(description="run when a run ends, stalls or loses this machine, with the news as one more argument"),
    ] = ()
    price_per_kwh: Annotated[float, Meta(ge=0, le=1000, description="what a kilowatt-hour costs")] | None = None
    currency: Annotated[str, Meta(max_length=8, description="in which that is counted")] = ""
    discovery: Annotated[bool, Meta(description="tell the network of this machine, and listen for others")] = True
    interfaces: Annotated[
        tuple[str, ...], Meta(description="network interfaces, as en0, over which that is done; none: the best one")
    ] = ()
    peers: Annotated[
        tuple[str, ...], Meta(description="machines to ask at their addresses, as studio.local or 192.168.1.7:27273")
    ] = ()
    idle_only: Annotated[bool, Meta(description="train only while nobody is at the keyboard")] = False
    on_ac_only: Annotated[bool, Meta(description="train only on mains power, not on battery")] = False
    powermetrics: Annotated[
        bool,
        Meta(description="on a Mac, ask `powermetrics` what training draws: by sudo without a password"),
    ] = False
    hours: Annotated[str, Meta(description="train only at this time of the day, local: 22-7, or 22-7,12-13")] = ""
    nice: Annotated[int, Meta(ge=0, le=19, description="how far other programs come before training; by default 0")] | None = (
        None
    )


def _check_name(name: str) -> None:
    if plain(name.strip(), 64) != name:
        raise ValueError("a name is one line of plain text, without blanks at its ends")


_CHECKS: Mapping[str, Callable[[Any], object]] = {"hours": parse_hours, "name": _check_name}
"""Of single fields: they raise ValueError for a value that is none."""
_FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}


class Described(msgspec.Struct, frozen=True):
    """One setting, for a form."""

    name: str
    type: type  # bool, int, float, str; tuple: several words; dict: keys
    default: Any
    optional: bool  # may be None
    minimum: float | None
    maximum: float | None
    help: str


def described() -> Iterator[Described]:
    """All settings, in order."""
    for name, field in _FIELDS.items():
        kinds, metas = about(Settings, name)
        kind = next(each for each in kinds if each is not type(None))
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        yield Described(
            name=name,
            type=typing.get_origin(kind) or kind,
            default=default,
            optional=type(None) in kinds,
            minimum=next((float(m.ge) for m in metas if m.ge is not None), None),
            maximum=next((float(m.le) for m in metas if m.le is not None), None),
            help=next((m.description for m in metas if m.description), ""),
        )


def checked(name: str, value: Any) -> Any:
    """`value` as the setting `name` has it. Raises ValueError in words, KeyError for no setting."""
    converted = msgspec.convert(value, _FIELDS[name].type)  # msgspec.ValidationError is a ValueError
    if name in _CHECKS:
        _CHECKS[name](converted)
    return converted


def load() -> tuple[Settings, tuple[str, ...]]:
    """(settings, what was wrong with the file). A missing file is no fault."""
    path = settings_file()
    try:
        document = tomllib.loads(_text(path))
    except FileNotFoundError:
        return Settings(), ()
    except UNREADABLE as error:
        return Settings(), (f"{path}: {_why(error)}: the defaults are used",)
    faults = []
    good = {}
    for name, value in document.items():
        if name not in _FIELDS:
            close = difflib.get_close_matches(name, _FIELDS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_FIELDS)}"
            faults.append(f"{path}: unknown setting {shown(name, 40)}: {hint}")
            continue
        try:
            good[name] = checked(name, value)
        except (ValueError, RecursionError) as error:
            faults.append(f"{path}: {name} = {shown(value, 40)}: {plain(str(error), 200)}: the default is used")
    return Settings(**good), tuple(faults)


def first_start() -> bool:
    """Whether nobody has used swarm here yet: there are no settings, and no mailbox is named elsewhere."""
    return not os.environ.get("SWARM_MAILBOX") and not os.path.lexists(settings_file())


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


def save(setting: str, value: Any) -> None:
    """Write one setting. None, of one that may be that, leaves it out. The rest of the file, comments included, stays as it is.
    Raises UsageError for a value that is none, and as `remember_mailbox` does."""
    if setting not in _FIELDS:
        raise UsageError(f"there is no setting {setting!r}")
    try:
        converted = checked(setting, value)
    except ValueError as error:
        raise UsageError(f"{setting}: {plain(str(error), 200)}") from None
    _write(setting, msgspec.to_builtins(converted))


def _write(setting: str, value: Any) -> None:
    import tomlkit  # 30 ms, which only those who write wait for
    from tomlkit.exceptions import TOMLKitError

    path = settings_file().resolve()  # where a link to it leads: the link stays
    try:
        document = tomlkit.parse(_text(path))
    except FileNotFoundError:
        document = tomlkit.document()
    except (*UNREADABLE, TOMLKitError) as error:
        raise UsageError(f"{path} cannot be read, so it is not changed: {_why(error)}") from error
    if value is None:
        document.pop(setting, None)
    elif isinstance(value, dict) and isinstance(document.get(setting), dict):
        table: Any = document[setting]
        for gone in set(table) - set(value):
            del table[gone]
        for key, each in value.items():
            if table.get(key) != each:  # what stays keeps its comment
                table[key] = each
    else:
        document[setting] = value
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(tomlkit.dumps(document))
        staged.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise UsageError(f"{path} cannot be written: {_why(error)}") from error


def _text(path: Path) -> str:
    """Raises one of UNREADABLE."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes are no settings")
    return data.decode()


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return plain((isinstance(error, OSError) and error.strerror) or str(error), 200)


def mailbox_location(given: str | None) -> str:
    """`given`, else SWARM_MAILBOX, else the settings' first. Raises NoMailboxNamed if there is none, UsageError for what can be
    none."""
    location = given or os.environ.get("SWARM_MAILBOX") or next(iter(load()[0].mailboxes), None)
    if not location:
        raise NoMailboxNamed("which mailbox? --mailbox DIR, SWARM_MAILBOX, or `swarm init DIR` to make one and remember it")
    location = canonical(location)
    return location if scheme_of(location) else absolute(location)


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
