"""Several hosts on one machine: network namespaces, each with an eth0 of its own, joined by a bridge that is one, too."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from swarm.core.sightings import SeenPeer, SeenRun, Sightings

HANG_S = 120.0  # nothing here takes so long on a machine that works
PROGRAM = Path(__file__).with_name("neighbour.py")


class Host:
    """A namespace, and the processes in it."""

    def __init__(self, lan: Lan, name: str, place: Path) -> None:
        self.lan, self.name, self.place = lan, name, place
        self.space = f"{lan.prefix}-{name}"
        self.link = f"{lan.prefix[-6:]}{len(lan.hosts)}"  # at the bridge: at most 15 characters

    def run(self, *command: str) -> None:
        """In this host."""
        ip("netns", "exec", self.space, *command)

    def neighbour(self, *arguments: str, home: Path | None = None) -> Neighbour:
        """A process of swarm in this host. `home`: its state folder; by default the host's own."""
        env = self.env if home is None else {**self.env, "SWARM_STATE_DIR": str(home)}
        command = [*self.inside, sys.executable, str(PROGRAM), self.name, *arguments]
        process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lan.started.append(process)
        return Neighbour(process)

    @property
    def inside(self) -> list[str]:
        return ["ip", "netns", "exec", self.space]

    @property
    def env(self) -> dict[str, str]:
        env = {**os.environ, "SWARM_DISCOVERY": "1", "SWARM_CONFIG": str(self.place / "settings.toml")}
        return env | {"SWARM_STATE_DIR": str(self.place / "state"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def swarm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        command = [*self.inside, sys.executable, "-m", "swarm", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=HANG_S, check=True)

    def swarm_started(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [*self.inside, sys.executable, "-m", "swarm", *arguments]
        process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.lan.started.append(process)
        return process


class Neighbour:
    """A process of tests/process/neighbour.py."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.seen = Sightings()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen = msgspec.json.decode(line, type=Sightings)

    def until(self, wanted: Callable[[Sightings], Any]) -> Sightings:
        """What is seen once `wanted` holds."""
        until_s = time.monotonic() + HANG_S
        while not wanted(seen := self.seen):
            assert time.monotonic() < until_s, json.dumps(msgspec.to_builtins(seen), indent=1)
            assert self.process.poll() is None
            time.sleep(0.05)
        return seen

    def others(self) -> list[str]:
        return others(self.seen)

    def close(self) -> None:
        """As a person does who quits: with a goodbye."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(b"\n")
            self.process.stdin.close()
        self.process.wait(HANG_S)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(HANG_S)


class Lan:
    """Made by `lan`."""

    def __init__(self, prefix: str, place: Path) -> None:
        self.prefix, self.place = prefix, place
        self.hosts: list[Host] = []
        self.started: list[subprocess.Popen[bytes]] = []
        self.switch = f"{prefix}-lan"

    def host(self, name: str, *, v4: bool = True, v6: bool = True) -> Host:
        place = self.place / name
        (place / "state").mkdir(parents=True)
        (place / "state" / "machine-id").write_text(secrets.token_hex(16))
        made = Host(self, name, place)
        ip("netns", "add", made.space)
        self.hosts.append(made)
        number = len(self.hosts)
        made.run("sysctl", "-qw", "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0")
        made.run(
            "sysctl",
            "-qw",
            f"net.ipv6.conf.all.disable_ipv6={int(not v6)}",
            f"net.ipv6.conf.default.disable_ipv6={int(not v6)}",
        )
        ip("link", "add", "eth0", "netns", made.space, "type", "veth", "peer", "name", made.link, "netns", self.switch)
        ip("-n", self.switch, "link", "set", made.link, "master", "br0", "up")
        ip("-n", made.space, "link", "set", "lo", "up")
        if v4:
            ip("-n", made.space, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
        ip("-n", made.space, "link", "set", "eth0", "up")
        return made

    def keep_multicast_back(self) -> None:
        """From all hosts, as a wireless network may do."""
        for each in self.hosts:
            ip("-n", self.switch, "link", "set", each.link, "type", "bridge_slave", "mcast_flood", "off")


@contextlib.contextmanager
def lan(place: Path) -> Iterator[Lan]:
    """An empty one. Raises OSError where namespaces may not be made."""
    found = Lan(f"swarm{secrets.token_hex(3)}", place)
    try:
        ip("netns", "add", found.switch)
        ip("-n", found.switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        ip("-n", found.switch, "link", "set", "br0", "up")
        yield found
    finally:
        for each in found.started:
            if each.poll() is None:
                each.kill()
                each.wait(HANG_S)
            for pipe in (each.stdin, each.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        for space in (*(host.space for host in found.hosts), found.switch):
            with contextlib.suppress(OSError):
                ip("netns", "delete", space)


def ip(*arguments: str) -> None:
    """Raises OSError."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def peer(seen: Sightings, name: str) -> SeenPeer | None:
    return next((each for each in seen.peers if each.advert.name == name and not each.itself), None)


def run(seen: Sightings, id: str) -> SeenRun | None:
    return next((each for each in seen.runs if each.advert.run == id), None)


def others(seen: Sightings) -> list[str]:
    return [each.advert.name for each in seen.peers if not each.itself]
