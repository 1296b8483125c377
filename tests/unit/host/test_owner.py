"""What is read of whoever is at the machine, how a worker heeds it, and what keeps the machine awake meanwhile."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from ctypes.util import find_library
from pathlib import Path

import psutil
import pytest

from swarm.core.events import Freed, Held, Trouble, WorkerEvent
from swarm.core.owner import OwnerRules, Senses, parse_hours
from swarm.host import awake, owner, tending
from swarm.host.awake import Awake, commands
from swarm.host.tending import AWAKE_S, Tending, lower, manners

NOW_S = 1_700_000_000.0


# What is read

IOREG = """+-o IOHIDSystem  <class IOHIDSystem, id 0x100000541, registered, matched, active, busy 0 (0 ms), retain 25>
    {
      "HIDParameters" = {"HIDClickTime"=500000000,"HIDIdleTimeSaved"=1}
      "HIDIdleTime" = 4750583333
    }
"""


def test_macos() -> None:
    assert owner.hid_idle_s(IOREG) == pytest.approx(4.750583333)
    assert owner.hid_idle_s("") is None
    assert owner.hid_idle_s(None) is None


def test_gnome() -> None:
    assert owner.mutter_idle_s("t 123456\n") == pytest.approx(123.456)
    assert owner.mutter_idle_s("Failed to connect to bus") is None
    assert owner.mutter_idle_s(None) is None


SHOWN = """Type=wayland
Class=user
State=active
IdleHint=yes
IdleSinceHint=1699999400000000
TTY=tty2

Type=tty
Class=user
State=online
IdleHint=no
IdleSinceHint=1699999999000000
TTY=pts/3

Type=wayland
Class=greeter
State=online
IdleHint=no
IdleSinceHint=0
TTY=tty1

Type=x11
Class=user
State=closing
IdleHint=no
IdleSinceHint=0
TTY=
"""


def test_sessions_of_people_are_told_apart() -> None:
    first, second = owner.parse_sessions(SHOWN)
    assert (first["Type"], second["TTY"]) == ("wayland", "pts/3")
    assert owner.session_idle_s(first, NOW_S) == pytest.approx(600.0)
    assert owner.parse_sessions("") == owner.parse_sessions(None) == []


@pytest.mark.parametrize(
    ("hint", "since", "idle_s"),
    [("yes", "1699999940000000", 60.0), ("yes", "0", owner.NOBODY_S), ("no", "1699999940000000", 0.0), ("no", "0", None)],
)
def test_a_desktop_that_never_told_of_anybody_is_not_trusted(hint: str, since: str, idle_s: float | None) -> None:
    assert owner.session_idle_s({"IdleHint": hint, "IdleSinceHint": since}, NOW_S) == idle_s


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A Linux machine without a screen or a terminal; its programs print what is put in here."""
    prints: dict[str, str] = {}
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(owner, "_asked", lambda until_s, program, *arguments: prints.get(f"{program} {arguments[0]}"))
    monkeypatch.setattr(owner.glob, "glob", lambda pattern: [])
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return prints


def test_nobody_can_be_at_a_machine_without_screen_and_terminal(linux: dict[str, str]) -> None:
    assert owner.idle_s(NOW_S) == owner.NOBODY_S


def test_a_screen_that_nothing_is_known_of_is_not_taken_for_idle(
    linux: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert owner.idle_s(NOW_S) is None
    linux["busctl --user"] = "t 5000"
    assert owner.idle_s(NOW_S) == 5.0


def test_the_desktops_hint_and_the_terminals_count(
    linux: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    linux["loginctl list-sessions"] = "   2 1000 me seat0 tty2\n  c1 1000 me - -\n"
    linux["loginctl show-session"] = SHOWN
    assert owner.idle_s(NOW_S) == pytest.approx(600.0)
    terminal = tmp_path / "0"
    terminal.touch()
    os.utime(terminal, (NOW_S - 7, NOW_S))
    monkeypatch.setattr(owner.glob, "glob", lambda pattern: [str(terminal)] if "pts" in pattern else [])
    assert owner.idle_s(NOW_S) == pytest.approx(7.0)  # whoever sits far away is somebody, too
    linux["loginctl show-session"] = SHOWN.replace(
        "IdleHint=yes\nIdleSinceHint=1699999400000000", "IdleHint=no\nIdleSinceHint=0"
    )
    assert owner.idle_s(NOW_S) is None


@pytest.fixture
def x11(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine with an X server; what asks that is the script in this file."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", "")  # nobody else can be asked
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(owner.glob, "glob", lambda pattern: [])
    monkeypatch.setattr(owner.ctypes.util, "find_library", lambda name: f"lib{name}.so")
    monkeypatch.setattr(owner, "_SCREENSAVER", str(tmp_path / "screensaver.py"), raising=False)
    owner._x11_libraries.cache_clear()
    yield tmp_path / "screensaver.py"
    owner._x11_libraries.cache_clear()


@pytest.mark.parametrize(
    ("script", "idle_s"),
    [
        ("import sys; print(12345 if sys.argv[1:] == ['libX11.so', 'libXss.so'] else 0)", 12.345),
        ("import time; time.sleep(600)", None),  # a server that never answers
        ("import os; os._exit(1)", None),  # one that went: Xlib ends the process
        ("", None),
    ],
)
def test_the_x_server_is_asked_by_a_program_of_its_own(script: str, idle_s: float | None, x11: Path) -> None:
    x11.write_text(script)
    assert owner.idle_s(NOW_S) == idle_s


def test_the_libraries_of_x_are_looked_for_once(x11: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(owner.ctypes.util, "find_library", looked.append)
    assert [owner.idle_s(NOW_S), owner.idle_s(NOW_S)] == [None, None]
    assert looked == ["X11", "Xss"]


class Hanging:
    """Programs that take all the time they are given, on a clock that only they move."""

    def __init__(self, *answering: str) -> None:
        self.now_s, self.asked, self.answering = 100.0, list[str](), answering

    def run(self, command: list[str], *, timeout: float, **how: object) -> subprocess.CompletedProcess[str]:
        self.asked.append(os.path.basename(command[0]))
        if self.asked[-1] in self.answering:
            return subprocess.CompletedProcess(command, 0, stdout="1 1000 me\n", stderr="")
        self.now_s += timeout
        raise subprocess.TimeoutExpired(command, timeout)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("answering", [(), ("loginctl",)])
def test_a_look_at_a_machine_that_hangs_ends_soon(
    platform: str, answering: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, x11: Path
) -> None:
    hanging = Hanging(*answering)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(owner.shutil, "which", lambda program: f"/bin/{program}")
    monkeypatch.setattr(owner.subprocess, "run", hanging.run)
    monkeypatch.setattr(owner.time, "monotonic", lambda: hanging.now_s)
    assert owner.idle_s(NOW_S) is None
    assert hanging.asked
    assert hanging.now_s - 100.0 <= owner.ASK_S
    if platform == "linux":  # a screen that hangs leaves time to ask for the rest
        assert hanging.asked.count("loginctl") == 1 + len(answering)


@pytest.mark.skipif(sys.platform != "linux" or find_library("X11") is None or find_library("Xss") is None, reason="needs X")
def test_an_x_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        for number in range(50, 90):  # a display's port is 6000 and its number
            with contextlib.suppress(OSError):
                server.bind(("127.0.0.1", 6000 + number))
                break
        server.listen()
        monkeypatch.setenv("DISPLAY", f"127.0.0.1:{number}")
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
        assert owner._x11_idle_s(functools.partial(owner._asked, time.monotonic() + 1)) is None
        assert server.accept()  # it was asked


class _Battery:
    def __init__(self, power_plugged: bool | None) -> None:
        self.power_plugged = power_plugged


@pytest.mark.parametrize(
    ("battery", "told"), [(None, False), (_Battery(True), False), (_Battery(False), True), (_Battery(None), None)]
)
def test_power(battery: _Battery | None, told: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    assert owner.on_battery() is told


def test_this_machine_can_be_asked() -> None:
    senses = owner.sense()
    assert senses.idle_s is None or senses.idle_s >= 0
    assert 0 <= senses.minute < 24 * 60


# How a worker heeds it


class FakeAwake(Awake):
    def __init__(self, words: str = "") -> None:
        super().__init__(platform="none")
        self.awake, self.words = False, words

    def hold(self) -> str:
        words, self.words = self.words, ""
        self.awake = True
        return words

    def release(self) -> None:
        self.awake = False


class FakeLearner:
    def __init__(self) -> None:
        self.steps, self.resting, self.held = 0, False, ""

    def hold(self, reason: str) -> None:
        self.held = reason


class Tended:
    def __init__(self, rules: OwnerRules, *, words: str = "") -> None:
        self.senses, self.events, self.learner, self.awake = Senses(), list[WorkerEvent](), FakeLearner(), FakeAwake(words)
        self.tending = Tending(rules, emit=self.events.append, sense=lambda: self.senses, awake=self.awake)
        self.now_s = 0.0

    def after(self, seconds_s: float, senses: Senses | None = None) -> Tended:
        self.now_s += seconds_s
        self.senses = senses or self.senses
        self.tending.look(self.learner, self.now_s)
        return self


def test_a_learner_is_held_and_freed_and_each_is_told_once() -> None:
    tended = Tended(OwnerRules(idle_only=True, on_ac_only=True))
    tended.after(0, Senses(idle_s=1000.0, on_battery=False))
    assert tended.events == []
    tended.after(2, Senses(idle_s=0.5, on_battery=False)).after(2)
    assert tended.learner.held == "somebody is at the keyboard"
    tended.after(2, Senses(idle_s=1000.0, on_battery=True)).after(2)
    assert tended.learner.held == "it runs on battery"
    tended.after(2, Senses(idle_s=1000.0, on_battery=False))
    assert tended.learner.held == ""
    assert tended.events == [Held(reason="somebody is at the keyboard"), Held(reason="it runs on battery"), Freed()]


def test_what_cannot_be_told_is_said_with_what_to_do() -> None:
    tended = Tended(OwnerRules(idle_only=True)).after(0).after(2, Senses(idle_s=1e6)).after(2, Senses())
    troubles = [event.message for event in tended.events if isinstance(event, Trouble)]
    assert troubles == ["as long as that is so, nothing is trained here: --no-idle-only trains all the same"]
    assert tended.learner.held.startswith("it cannot be told")


def test_a_look_that_fails_counts_for_the_owner_and_is_told_once() -> None:
    tended = Tended(OwnerRules(idle_only=True)).after(0, Senses(idle_s=1e6))

    def broken() -> Senses:
        raise RuntimeError("no such display")

    tended.tending._sense = broken
    tended.after(2).after(2)
    assert tended.learner.held.startswith("it cannot be told")
    faults = [e.message for e in tended.events if isinstance(e, Trouble) and "no such display" in e.message]
    assert faults == ["what this machine's owner does: looking failed: RuntimeError: no such display"]
    tended.tending._sense = lambda: tended.senses
    assert tended.after(2).learner.held == ""


def test_hours_are_kept_where_a_look_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Senses:
        raise RuntimeError("no such display")

    monkeypatch.setattr(tending, "sense", broken)
    monkeypatch.setattr(tending, "minute", lambda now_s: 12 * 60)
    assert tending.held_by(OwnerRules(hours=parse_hours("11-13")))() == ""
    assert tending.held_by(OwnerRules(hours=parse_hours("22-7")))() == "outside of 22:00–7:00"
    assert tending.held_by(OwnerRules(idle_only=True))().startswith("it cannot be told")


def test_a_lock_against_sleep_that_fails_ends_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    tended = Tended(OwnerRules(idle_only=True)).after(0, Senses(idle_s=1e6))

    def broken() -> str:
        raise ValueError("embedded null byte")

    monkeypatch.setattr(tended.awake, "hold", broken)
    tended.learner.steps = 1
    tended.after(2).after(2)
    assert [type(event) for event in tended.events] == [Trouble]
    assert tended.after(2, Senses(idle_s=0.0)).learner.held == "somebody is at the keyboard"


def test_without_rules_nobody_is_asked() -> None:
    tended = Tended(OwnerRules())
    tended.tending._sense = None  # type: ignore[assignment]
    assert tended.after(0).after(2).events == []


def test_a_machine_stays_awake_while_it_trains_and_not_otherwise() -> None:
    tended = Tended(OwnerRules(idle_only=True)).after(0, Senses(idle_s=1e6))
    assert not tended.awake.awake  # no step was made yet
    tended.learner.steps = 1
    assert tended.after(2).awake.awake
    assert tended.after(AWAKE_S - 1).awake.awake  # the others may be slower
    assert not tended.after(1).awake.awake
    tended.learner.steps = 2
    assert tended.after(2).awake.awake
    assert not tended.after(2, Senses(idle_s=0.0)).awake.awake
    assert tended.after(2, Senses(idle_s=1e6)).awake.awake
    tended.learner.resting = True
    assert not tended.after(2).awake.awake


def test_that_it_may_go_to_sleep_is_told() -> None:
    tended = Tended(OwnerRules(), words="systemd-inhibit: Access denied").after(0)
    tended.learner.steps = 1
    tended.after(2).after(2)
    assert tended.events == [Trouble(message="this machine may go to sleep while it trains: systemd-inhibit: Access denied")]


def test_manners_are_told_if_there_are_any() -> None:
    assert manners(OwnerRules(), 0) is None
    told = manners(OwnerRules(on_ac_only=True), 10)
    assert told is not None
    assert told.words == "its owner comes first: nice level 10, trains only on mains power"


def test_a_process_can_make_room_but_takes_none_back() -> None:
    code = "from swarm.host.tending import lower; import os; print(lower(3), lower(1), os.getpriority(os.PRIO_PROCESS, 0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    now = os.getpriority(os.PRIO_PROCESS, 0)
    assert done.stdout.split() == [str(max(now, 3))] * 3
    assert lower(0) == now


# Awake


def test_what_keeps_a_machine_awake() -> None:
    assert commands(42, "darwin") == (("caffeinate", "-i", "-w", "42"),)
    first, second = commands(42, "linux")
    assert first[:2] == ("systemd-inhibit", "--what=sleep:idle")
    assert second[:2] == ("systemd-inhibit", "--what=idle")
    assert first[-1] == "cat"  # ends with our end of its standard input
    assert commands(42, "win32") == ()


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(awake, "SYSTEMD", str(tmp_path))
    return tmp_path


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def eventually(holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 30
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.02)
    return holds()


LOCK = """
import os, subprocess, sys
if sys.argv[1] in open(os.path.dirname(__file__) + "/refused").read().split():
    sys.exit("Failed to inhibit: Access denied")
with open(os.path.dirname(__file__) + "/held", "a") as file:
    file.write(f"{os.getpid()} {sys.argv[1]}\\n")
sys.stdin.read()  # as `cat` does
"""


def test_the_lock_is_held_until_it_is_released(programs: Path) -> None:
    (programs / "refused").touch()
    program(programs, "systemd-inhibit", LOCK)
    lock = Awake(platform="linux")
    assert lock.hold() == lock.hold() == ""
    [line] = (programs / "held").read_text().splitlines()
    pid, what = line.split()
    assert what == "--what=sleep:idle"
    assert psutil.pid_exists(int(pid))
    lock.release()
    lock.release()
    assert ended(int(pid))
    assert lock.hold() == ""
    assert len((programs / "held").read_text().splitlines()) == 2
    lock.release()


def test_where_sleep_cannot_be_locked_the_desktops_timer_is(programs: Path) -> None:
    (programs / "refused").write_text("--what=sleep:idle")
    program(programs, "systemd-inhibit", LOCK)
    lock = Awake(platform="linux")
    assert lock.hold() == ""
    assert "--what=idle" in (programs / "held").read_text()
    lock.release()


def test_a_refused_lock_is_told_once(programs: Path) -> None:
    (programs / "refused").write_text("--what=sleep:idle --what=idle")
    program(programs, "systemd-inhibit", LOCK)
    lock = Awake(platform="linux")
    assert lock.hold() == "systemd-inhibit: Failed to inhibit: Access denied"
    assert lock.hold() == ""
    assert not (programs / "held").exists()


def test_where_systemd_does_not_run_nothing_is_said(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs / "refused").touch()
    program(programs, "systemd-inhibit", LOCK)
    monkeypatch.setattr(awake, "SYSTEMD", str(programs / "no such folder"))
    lock = Awake(platform="linux")
    assert lock.hold() == ""
    lock.release()
    assert not (programs / "held").exists()


def test_where_there_is_no_such_program_nothing_is_said(programs: Path) -> None:
    assert Awake(platform="linux").hold() == Awake(platform="darwin").hold() == Awake(platform="win32").hold() == ""


def test_the_lock_ends_with_whoever_held_it(programs: Path) -> None:
    (programs / "refused").touch()
    program(programs, "systemd-inhibit", LOCK)
    code = "from swarm.host import awake; awake.SYSTEMD = '/'; awake.Awake(platform='linux').hold()"
    code += "; import os; os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(awake.__file__).parents[2])
    pid = int((programs / "held").read_text().split()[0])
    assert eventually(lambda: ended(pid))
