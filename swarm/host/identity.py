"""Which machine and process this is, in a way that another process on the same machine can check."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec
import psutil

from swarm.core.errors import UsageError
from swarm.core.jobs import Process
from swarm.core.records import LearnerRecord
from swarm.host import settings
from swarm.host.paths import state_dir

PROCESS = "process.json"  # in a job's folder: which process holds it
MACHINE_ID = "machine-id"  # in the state folder: this machine's, where the system has none, or another machine has the same
SYSCTL = ("/usr/sbin/sysctl", "-n")
ASK_S = 2.0  # that it may take
SYSTEM_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


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


def holder(record: LearnerRecord) -> Identity:
    """Of the process that holds a learner id."""
    return Identity(
        machine=record.machine,
        machine_name=record.machine_name,
        boot=record.boot,
        pid=record.pid,
        process=record.process,
    )


def host_name() -> str:
    return socket.gethostname()


def machine_name() -> str:
    """As the settings call it, else the host's name."""
    return settings.load()[0].name or host_name()


def machine_id() -> str:
    """The same for every process of this machine and user, different on every other machine. A container is a machine of its
    own: it may share the host's id and boot, but not its processes."""
    system, path = _system_id(), state_dir() / MACHINE_ID
    own = _read(path)
    if system and not own:
        # Hashed, as machine-id(5) asks of whoever shows it to others.
        return hashlib.sha256(f"swarm:{system}:{_pid_namespace()}".encode()).hexdigest()[:32]
    if not own:
        own = uuid.uuid4().hex
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x") as file:
                file.write(own)
        except FileExistsError:
            own = _read(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}: SWARM_STATE_DIR names another folder") from error
    return _bound(own, system)


def renew_machine_id(old: str) -> str:
    """Give this machine another id than `old`, which another one has, too: from now on, for every process that starts. Several
    processes that do so at once come to the same. Raises UsageError."""
    if (now := machine_id()) != old:
        return now  # another process has done it
    path = state_dir() / MACHINE_ID
    own = hashlib.sha256(f"{old}:{boot_id()}".encode()).hexdigest()[:32]
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(own)
        staged.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return _bound(own, _system_id())


def _system_id() -> str:
    return next((text for place in SYSTEM_IDS if (text := _read(Path(place)))), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _bound(own: str, system: str) -> str:
    """The id in the state folder, bound to this machine: a copied home folder is another one."""
    if system:
        return hashlib.sha256(f"swarm:{own}:{system}:{_pid_namespace()}".encode()).hexdigest()[:32]
    node = uuid.getnode()
    if node >> 40 & 1:  # made up anew by every process: there is no hardware address
        node = 0
    return hashlib.sha256(f"swarm:{own}:{node:x}".encode()).hexdigest()[:32]


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # the same for all processes outside containers, at every boot
    except OSError:
        return ""


def boot_id() -> str:
    """Changes with every boot."""
    if sys.platform == "linux":
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            pass
    if sys.platform == "darwin" and (session := _boot_session()):
        return session
    # Rounded: psutil derives it from the wall clock, which drifts.
    return f"{round(psutil.boot_time(), -1):.0f}"


@functools.cache
def _boot_session() -> str:
    """Of macOS, whose time of the boot moves when the clock is set; '' if it does not tell. Asked once: a process has one."""
    try:
        asked = subprocess.run([*SYSCTL, "kern.bootsessionuuid"], capture_output=True, timeout=ASK_S, check=True)
        return str(uuid.UUID(asked.stdout.decode().strip()))
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""


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
    if sys.platform == "linux":
        return _started_after_boot(pid)
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def _started_after_boot(pid: int) -> str | None:
    """In clock ticks since the boot. psutil adds the time of the boot, which moves when the wall clock is set: a process that
    runs would seem to be another one."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # proc_pid_stat(5). The name in parentheses may hold anything; what follows it is: state … starttime, its 20th.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


def note_process(job: Path, pid: int) -> None:
    """Write into a job's folder who holds it: its worker does, and whoever starts that."""
    process = Process(pid=pid, process=started(pid) or "", boot=boot_id())
    staged = job / f".{PROCESS}.{os.getpid()}"
    staged.write_bytes(msgspec.json.encode(process))
    staged.replace(job / PROCESS)
