"""People at machines of their own: hosts with a network between them, names, home folders, a shared folder, and terminals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.process.hosts import HANG_S, Host, lan
from tests.process.tmux import Screen, Tmux, tmux

SHARE, HOME = "/mnt/swarm", "/mnt/ann"
FRAMEWORKLESS = Path(__file__).parent / "frameworkless"
# Each process gets the same view of the machine: its name, and below /mnt the share and its person's home.
_ENTER = (
    'hostname "$1" && mount -t tmpfs none /mnt && mkdir /mnt/swarm /mnt/ann && mount --bind "$2" /mnt/swarm '
    '&& mount --bind "$3" /mnt/ann && cd /mnt/ann && shift 3 && exec "$@"'
)


class Person:
    """At a machine that has nothing of another one's but the share, which is at `SHARE`."""

    def __init__(self, host: Host, terminals: Tmux, share: Path, *, without: str = "") -> None:
        """`without`: frameworks that are as good as not installed here, with spaces between."""
        self.host, self._terminals, self._share, self.home = host, terminals, share, host.place / "home"
        state = self.home / ".local" / "state" / "swarm"
        state.mkdir(parents=True)
        (host.place / "state" / "machine-id").rename(state / "machine-id")
        left_out = ("SWARM_STATE_DIR", "SWARM_CONFIG", "SWARM_CACHE_DIR", "SWARM_MAILBOX", "COLUMNS", "LINES")
        self.env = {
            **{name: value for name, value in host.env.items() if name not in left_out and not name.startswith("XDG_")},
            "HOME": HOME,
            "SWARM_TEST_ABSENT": without,
            "PYTHONPATH": os.pathsep.join([str(FRAMEWORKLESS), host.env["PYTHONPATH"]]),
        }

    def _inside(self, *command: str) -> list[str]:
        entered = ["unshare", "--uts", "sh", "-c", _ENTER, "sh", self.host.name, str(self._share), str(self.home)]
        return [*self.host.inside, *entered, sys.executable, "-m", "swarm", *command]

    def swarm(self, *command: str) -> str:
        """A command, to its end; returns what it wrote to stdout."""
        done = subprocess.run(
            self._inside(*command), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def screen(self, *options: str, columns: int = 120, rows: int = 36) -> Screen:
        """`swarm tui`, in a terminal."""
        return self._terminals.screen(self.host.name, *self._inside("tui", *options), env=self.env, columns=columns, rows=rows)

    def pids(self) -> list[int]:
        listed = subprocess.run(
            ["ip", "netns", "pids", self.host.space], capture_output=True, text=True, timeout=60, check=True
        )
        return [int(pid) for pid in listed.stdout.split()]

    def workers(self) -> list[int]:
        return [pid for pid in self.pids() if b"swarm.worker" in _command(pid)]

    def close(self) -> None:
        """Nothing at this machine goes on."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def people(place: Path, *names: str, without: dict[str, str] | None = None) -> Iterator[list[Person]]:
    """One person at each machine. Raises OSError where no hosts can be made."""
    share = place / "share"
    share.mkdir()
    with lan(place) as net, tmux() as terminals:
        found: list[Person] = []
        try:
            for name in names:
                found.append(Person(net.host(name), terminals, share, without=(without or {}).get(name, "")))
            yield found
        finally:
            for person in found:
                person.close()
