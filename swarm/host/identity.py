"""Which machine and process this is, in a way that another process on the same machine can check."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import uuid
from pathlib import Path

import msgspec
import psutil

from swarm.host.paths import state_dir


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    machine: str  # stable id; reveals nothing about the machine
    machine_name: str
    boot: str
    pid: int
    process: str  # when the process started: tells it from a later one with the same pid


def identity() -> Identity:
    """Of this process."""
    return Identity(
        machine=machine_id(),
        machine_name=machine_name(),
        boot=boot_id(),
        pid=os.getpid(),
        process=started(os.getpid()) or "",
    )


def machine_name() -> str:
    return socket.gethostname()


def machine_id() -> str:
    """The same for every process of this machine and user, different on every other machine."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text:
            # Hashed, as machine-id(5) asks of whoever shows it to others.
            return hashlib.sha256(f"swarm:{text}".encode()).hexdigest()[:32]
    return _own_machine_id()


def _own_machine_id() -> str:
    """Bound to the hardware address too: a copied home folder is another machine."""
    path = state_dir() / "machine-id"
    try:
        text = path.read_text().strip()
    except OSError:
        text = ""
    if not text:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = uuid.uuid4().hex
        try:
            with path.open("x") as file:
                file.write(text)
        except FileExistsError:
            text = path.read_text().strip()
    return hashlib.sha256(f"swarm:{text}:{uuid.getnode():x}".encode()).hexdigest()[:32]


def boot_id() -> str:
    """Changes with every boot."""
    if sys.platform == "linux":
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            pass
    # Rounded: psutil derives it from the wall clock, which drifts.
    return f"{round(psutil.boot_time(), -1):.0f}"


def process_gone(identity: Identity, other: Identity) -> bool:
    """Whether `other` is provably no running process: it ran on this machine, and in an earlier boot or not any more."""
    if other.machine != identity.machine:
        return False
    if other.boot != identity.boot:
        return True
    return started(other.pid) != other.process


def process_alive(identity: Identity, other: Identity) -> bool:
    """Whether `other` is provably a running process of this machine."""
    return (
        (other.machine, other.boot) == (identity.machine, identity.boot)
        and bool(other.process)
        and started(other.pid) == other.process
    )


def started(pid: int) -> str | None:
    """When process `pid` started, as a token to compare; None if there is none, or it is a zombie."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time():.2f}"
    except psutil.Error:
        return None
