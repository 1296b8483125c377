"""A machine that stands by from its start on: a systemd user unit (Linux), or a launchd agent (macOS).

Only files are written here, and only ever one; what makes the system use it is a person's to run. No secret stands in it.
"""

from __future__ import annotations

import os
import plistlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from swarm.core.errors import UsageError
from swarm.host.children import python
from swarm.host.keyfile import key_file
from swarm.host.paths import settings_file, state_dir
from swarm.host.settings import mailbox_location

Manager = Literal["systemd", "launchd"]
UNIT = "swarm.service"
LABEL = "org.homeswarm.standby"
MARK = "made by `swarm service install`"  # in each file of ours
ENVIRONMENT = (
    "SWARM_STATE_DIR",
    "SWARM_CACHE_DIR",
    "SWARM_CONFIG",
    "SWARM_KEY_FILE",
    "SWARM_MAILBOX",
    "SWARM_DISCOVERY",
    "HF_HOME",
)
"""What of the environment a service gets to see, as it is when the service is installed. None of them is a secret: where the
passphrase lies is none."""
STOP_S = 90  # for a snapshot that was begun; then it is killed


def manager_here() -> Manager:
    """Raises UsageError where there is none."""
    if sys.platform == "darwin":
        return "launchd"
    if sys.platform == "linux":
        return "systemd"
    raise UsageError("a service needs systemd (Linux) or launchd (macOS)")


def place(manager: Manager) -> Path:
    """The service's file."""
    if manager == "launchd":
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    config = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(config) if os.path.isabs(config) else Path.home() / ".config") / "systemd" / "user" / UNIT


def command(arguments: Sequence[str]) -> list[str]:
    """`swarm ARGUMENTS`, with absolute paths only: the command that was installed with this interpreter, else its module."""
    script = Path(sys.executable).with_name("swarm")
    # One of another copy of swarm would be no less surprising than none.
    if script.is_file() and os.access(script, os.X_OK) and Path(sys.argv[0]).absolute() == script:
        return [str(script), *arguments]
    return [*python("swarm"), *arguments]


def environment() -> dict[str, str]:
    """What this process's environment says of where things are, with absolute paths. Where the settings, the state and the
    passphrase are is always said: what leads there, as XDG_CONFIG_HOME does, may be set in a person's shell alone. Raises
    UsageError for a mailbox's URL that may hold a secret."""
    found = {name: value for name in ENVIRONMENT if (value := os.environ.get(name))}
    found |= {"SWARM_CONFIG": str(settings_file()), "SWARM_STATE_DIR": str(state_dir())}
    key = key_file()
    if key is not None and key.expanduser().exists():
        found["SWARM_KEY_FILE"] = str(key)
    for name, value in found.items():
        if name == "SWARM_MAILBOX":
            found[name] = _mailbox(value)
        elif name != "SWARM_DISCOVERY":
            found[name] = os.path.abspath(os.path.expanduser(value))
    return found if key is not None else found | {"SWARM_KEY_FILE": ""}  # an empty one says that there is none


def _mailbox(location: str) -> str:
    """Raises UsageError for what may hold a secret: others can read a service's file."""
    try:
        return mailbox_location(location)
    except UsageError as error:
        raise UsageError(f"SWARM_MAILBOX: {error}") from None


def systemd_unit(arguments: Sequence[str], *, nice: int, environment: Mapping[str, str]) -> str:
    """systemd.unit(5), systemd.service(5), systemd.exec(5). `arguments`: the whole command line. Raises UsageError for what a
    unit cannot hold."""
    lines = [
        f"# {MARK}; `swarm service uninstall` removes it.",
        "[Unit]",
        "Description=swarm: takes part in training runs as they appear",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join([_word(arguments[0]), *(_word(word, command=True) for word in arguments[1:])])}",
        *(f"Environment={_word(f'{name}={value}')}" for name, value in sorted(environment.items())),
        "Restart=on-failure",
        "RestartSec=30",
        "RestartPreventExitStatus=2",  # wrong options: they will not become right; what may pass ends with another code
        "SuccessExitStatus=130",  # how it ends when it is told to
        "KillMode=mixed",  # its worker leaves when it says so
        f"TimeoutStopSec={STOP_S}",
        f"Nice={nice}",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines)


def _word(text: str, *, command: bool = False) -> str:
    """A word of a unit file, quoted (systemd.syntax(7)). `command`: an argument of a command line, where $ is special, too."""
    quoted = ""
    for character in text:
        if character in '"\\':
            quoted += f"\\{character}"
        elif character == "%":
            quoted += "%%"
        elif character == "$" and command:
            quoted += "$$"
        elif character == "\n":
            quoted += "\\n"
        elif character == "\t":
            quoted += "\\t"
        elif ord(character) < 0x20 or character == "\x7f":
            raise UsageError(f"{text!a} holds a control character: no service can be given that")
        else:
            quoted += character
    return f'"{quoted}"'


def launchd_agent(arguments: Sequence[str], *, nice: int, environment: Mapping[str, str]) -> str:
    """launchd.plist(5). What it prints goes nowhere: it keeps a log of its own, of bounded size. Raises UsageError."""
    for text in (*arguments, *environment.values()):
        if any(ord(c) < 0x20 and c not in "\t\n" for c in text):
            raise UsageError(f"{text!a} holds a control character: no service can be given that")
    agent = {
        "Label": LABEL,
        "ProgramArguments": list(arguments),
        "EnvironmentVariables": dict(sorted(environment.items())),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 30,
        "ExitTimeOut": STOP_S,
        "Nice": nice,
        "ProcessType": "Standard",  # a background process is kept to the slow cores
        "StandardOutPath": os.devnull,
        "StandardErrorPath": os.devnull,
    }
    text = plistlib.dumps(agent, sort_keys=False).decode()
    head, doctype, rest = text.partition("<plist")
    return f"{head}<!-- {MARK}; `swarm service uninstall` removes it. -->\n{doctype}{rest}"


def text_of(manager: Manager, arguments: Sequence[str], *, nice: int) -> str:
    """The file's content, for `swarm ARGUMENTS` from this environment. Raises UsageError."""
    make = systemd_unit if manager == "systemd" else launchd_agent
    return make(command(arguments), nice=nice, environment=environment())


def next_steps(manager: Manager) -> tuple[str, ...]:
    """What a person runs once the file is there: commands, exactly."""
    if manager == "launchd":
        return (f"launchctl bootstrap gui/{os.getuid()} {_shell(place(manager))}",)
    return (
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {UNIT}",
        "loginctl enable-linger",
    )


def undoing_steps(manager: Manager) -> tuple[str, ...]:
    """What a person runs before the file goes."""
    if manager == "launchd":
        return (f"launchctl bootout gui/{os.getuid()}/{LABEL}",)
    return (f"systemctl --user disable --now {UNIT}",)


def _shell(path: Path) -> str:
    return shlex.quote(str(path))


def installed(manager: Manager) -> str | None:
    """The content of the file that is there; None if there is none."""
    try:
        return place(manager).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{place(manager)} cannot be read: {error.strerror}") from error


def install(manager: Manager, text: str) -> Path:
    """Write the file. One of ours is replaced; raises UsageError if one of somebody else's is there."""
    path = place(manager)
    there = installed(manager)
    if there is not None and MARK not in there:
        raise UsageError(f"{path} was not made by swarm: it is left alone")
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(text, encoding="utf-8")
        staged.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


def enabled(manager: Manager) -> bool:
    """Whether the system was told to start it: of launchd the file alone does that."""
    if manager == "launchd":
        return False
    return os.path.lexists(place(manager).parent / "default.target.wants" / UNIT)


def uninstall(manager: Manager) -> bool:
    """Remove the file, and nothing else; False if there is none. Raises UsageError if it is somebody else's, or in use."""
    path = place(manager)
    there = installed(manager)
    if there is None:
        return False
    if MARK not in there:
        raise UsageError(f"{path} was not made by swarm: it is left alone")
    if enabled(manager):
        raise UsageError(f"it is enabled: run `{undoing_steps(manager)[0]}` first, so that nothing of it stays behind")
    try:
        path.unlink()
    except OSError as error:
        raise UsageError(f"{path} cannot be removed: {error.strerror}") from error
    return True
