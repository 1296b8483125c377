"""Whether somebody is at this machine, and what it runs on.

Keyboards and mice, Linux: the X server, or GNOME's compositor, if this process can reach them; else what each session told
systemd-logind, and when each terminal was last typed into, remote ones included. macOS: the system's count of idle time.
logind's own hint of the whole machine is of no use here: whoever keeps it from going to sleep, as a training does, keeps that
hint at "not idle" (systemd-logind(8)); a session's does not know of such locks.
"""

from __future__ import annotations

import ctypes.util
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import psutil

from swarm.core.owner import DAY_MIN, Senses

ASK_S = 2.0  # that all programs which are asked in one look may take
SCREEN_S = 1.0  # of that, those that know of the screen: where they hang, the others can be asked still
NOBODY_S = 1e6  # nobody can be there: no screen, and no terminal
_SCREENSAVER = str(Path(__file__).with_name("screensaver.py"))
Ask: TypeAlias = Callable[..., str | None]  # a program and its arguments: what it prints
_GRAPHICAL = ("x11", "wayland", "mir")


def sense(now_s: float | None = None) -> Senses:
    """What can be told now. `now_s`: Unix time; None: now."""
    now_s = time.time() if now_s is None else now_s
    return Senses(idle_s=idle_s(now_s), on_battery=on_battery(), minute=minute(now_s))


def minute(now_s: float) -> int:
    """Of the day, local, at this Unix time."""
    local = time.localtime(now_s)
    return (local.tm_hour * 60 + local.tm_min) % DAY_MIN


def on_battery() -> bool | None:
    """False without a battery; None if it cannot be told."""
    read = getattr(psutil, "sensors_battery", None)
    if read is None:
        return None
    try:
        battery = read()
    except (OSError, RuntimeError, ValueError):
        return None
    if battery is None:
        return False
    return None if battery.power_plugged is None else not battery.power_plugged


def idle_s(now_s: float) -> float | None:
    """Seconds since a key was pressed or a mouse moved; None if it cannot be told. `now_s`: Unix time."""
    begun_s = time.monotonic()
    ask = functools.partial(_asked, begun_s + ASK_S)
    if sys.platform == "darwin":
        return hid_idle_s(ask("ioreg", "-c", "IOHIDSystem", "-d", "4"))
    if sys.platform != "linux":
        return None
    ask_screen = functools.partial(_asked, begun_s + SCREEN_S)
    screen = _x11_idle_s(ask_screen)
    if screen is None:
        screen = mutter_idle_s(ask_screen("busctl", "--user", "call", *_MUTTER))
    sessions = _sessions(ask)
    graphical = [each for each in sessions if each.get("Type") in _GRAPHICAL]
    if screen is None and not graphical and _has_a_screen():
        return None
    told = [] if screen is None else [screen]
    if screen is None:
        for session in graphical:
            idle = session_idle_s(session, now_s)
            if idle is None:
                return None
            told.append(idle)
    terminals = (_typed_s(path, now_s) for path in glob.glob("/dev/pts/[0-9]*") + _text_terminals(sessions))
    return min([*told, *(idle for idle in terminals if idle is not None)], default=NOBODY_S)


def hid_idle_s(text: str | None) -> float | None:
    """Of macOS: from `ioreg -c IOHIDSystem`."""
    found = re.search(r'"HIDIdleTime"\s*=\s*(\d+)', text or "")
    return None if found is None else int(found[1]) / 1e9


_MUTTER = (
    "org.gnome.Mutter.IdleMonitor",
    "/org/gnome/Mutter/IdleMonitor/Core",
    "org.gnome.Mutter.IdleMonitor",
    "GetIdletime",
)


def mutter_idle_s(text: str | None) -> float | None:
    """Of GNOME: from busctl's answer, 't 1234', in milliseconds."""
    found = re.fullmatch(r"t (\d+)", (text or "").strip())
    return None if found is None else int(found[1]) / 1000


def session_idle_s(session: Mapping[str, str], now_s: float) -> float | None:
    """Of a graphical session, as its desktop told logind. None: it never told anything, so that it cannot be told."""
    since = session.get("IdleSinceHint", "")
    since_s = int(since) / 1e6 if since.isdecimal() else 0.0
    if session.get("IdleHint") == "yes":
        return max(0.0, now_s - since_s) if since_s else NOBODY_S
    return 0.0 if since_s else None


def parse_sessions(text: str | None) -> list[dict[str, str]]:
    """Of people, from `loginctl show-session`, whose sessions have an empty line between them."""
    found = []
    for block in re.split(r"\n\s*\n", text or ""):
        session = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if session.get("Class", "user") == "user" and session.get("State", "active") != "closing" and session:
            found.append(session)
    return found


def _sessions(ask: Ask) -> list[dict[str, str]]:
    listed = ask("loginctl", "list-sessions", "--no-legend", "--no-pager")
    names = [line.split()[0] for line in (listed or "").splitlines() if line.split()]
    names = [name for name in names if re.fullmatch(r"[A-Za-z0-9_-]+", name)]
    if not names:
        return []
    wanted = ("Type", "Class", "State", "IdleHint", "IdleSinceHint", "TTY")
    return parse_sessions(ask("loginctl", "show-session", "--no-pager", *(f"--property={p}" for p in wanted), *names))


def _text_terminals(sessions: Iterable[Mapping[str, str]]) -> list[str]:
    """Consoles that somebody has logged in at."""
    names = (session.get("TTY", "") for session in sessions if session.get("Type") not in _GRAPHICAL)
    return [f"/dev/{name}" for name in names if re.fullmatch(r"tty\d+", name)]


def _typed_s(path: str, now_s: float) -> float | None:
    """Since something was last typed into a terminal: the kernel notes it as an access, to 8 s (tty_io.c)."""
    try:
        return max(0.0, now_s - os.stat(path).st_atime)
    except OSError:
        return None


def _has_a_screen() -> bool:
    """Whether there may be a graphical session of which logind says nothing."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return True
    return bool(glob.glob("/tmp/.X11-unix/X*") or glob.glob("/run/user/*/wayland-*"))


def _x11_idle_s(ask: Ask) -> float | None:
    """Of the X server, by its screen saver extension; None without one. Under Wayland it only knows of X programs: no use."""
    if not os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return None
    names = _x11_libraries()
    if not names:
        return None
    # Isolated, and without site-packages: it is started again and again.
    idle_ms = (ask(sys.executable, "-I", "-S", _SCREENSAVER, *names) or "").strip()
    return int(idle_ms) / 1000 if idle_ms.isdecimal() else None


@functools.cache
def _x11_libraries() -> tuple[str, ...]:
    """() unless all are there. Looked for once: that starts programs, too."""
    names = [ctypes.util.find_library(name) for name in ("X11", "Xss")]
    return tuple(name for name in names if name is not None) if None not in names else ()


def _asked(until_s: float, program: str, *arguments: str) -> str | None:
    """What a program of the system prints; None if it is not there, or has nothing to say until then, on a monotonic clock."""
    path = shutil.which(program)
    left_s = until_s - time.monotonic()
    if path is None or left_s <= 0:
        return None
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=left_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
