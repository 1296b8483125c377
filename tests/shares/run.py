"""Runs what is marked `share` on real shares: SMB 3 by Samba, NFS 4.2 and 3 by the kernel, each mounted twice by the kernel.

    python tests/shares/run.py [--limit-s S] [KIND …] [-- ARGUMENT OF PYTEST …]

Each share lives in a user-mode Linux guest of its own (guest.sh), so nothing of this machine's is changed and no server runs
on it; all guests run at once. A line for each kind says how it went. A share that cannot be brought up here is skipped, and the
line says why. Exit status: 1 if a share was there and a test failed on it, or did not end in time.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KINDS = {
    "smb": ("smbd", "smbpasswd", "mount.cifs"),
    "nfs4": ("rpcbind", "exportfs", "rpc.mountd", "rpc.nfsd", "mount.nfs4"),
    "nfs3": ("rpcbind", "exportfs", "rpc.mountd", "rpc.nfsd", "mount.nfs"),
}
"""With the commands that each needs, besides those for all."""
FOR_ALL = ("linux.uml", "modprobe", "ip", "unshare", "nsenter")
PACKAGES = "user-mode-linux kmod iproute2 samba cifs-utils nfs-kernel-server nfs-common rpcbind"
MODULES = Path("/usr/lib/uml/modules")  # of the guest's kernel
MEMORY_BYTES = 1 << 30
LIMIT_S = 600.0
# What only costs time where a system call costs a hundred times as much; and no plugins but those that the tests need.
ENVIRONMENT = {
    "MLX_DISABLE_COMPILE": "1",  # it would start a C++ compiler
    "NO_COLOR": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "SWARM_TEST_SHARES": "/mnt/a:/mnt/b",
}
PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider")


def lacking(kind: str) -> str:
    """What this machine lacks for a share of that kind; '' if nothing."""
    if sys.platform != "linux":
        return "that needs Linux"
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [command for command in (*FOR_ALL, *KINDS[kind]) if shutil.which(command, path=path) is None]
    if missing:
        return f"no {', '.join(missing)} here; as root: apt-get install --no-install-recommends {PACKAGES}"
    return "" if any(MODULES.glob("*")) else f"no kernel modules in {MODULES}"


def memory_folder() -> str:
    """Where the guest's memory lies: a file, in memory where that is allowed."""
    with contextlib.suppress(OSError):
        found = os.statvfs("/dev/shm")
        if not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize > len(KINDS) * MEMORY_BYTES:
            return "/dev/shm"
    return tempfile.gettempdir()


@contextlib.contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """What is started in the block stays on that CPU. A guest has only one itself, and each of its system calls is a change
    from one process to another: three times as quick where they need not wake each other across CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Guest:
    """One share, and what runs on it. `box`: the folder through which it speaks with this machine (guest.sh)."""

    kind: str
    box: Path
    process: subprocess.Popen[bytes] | None = None
    started_s: float = field(default_factory=time.monotonic)
    up_s: float | None = None  # after how long the share was mounted
    seconds: float = 0.0  # in all

    def start(self, command: list[str], cpu: int) -> None:
        lines = [f"cd {shlex.quote(str(ROOT))}", *(f"export {name}={value}" for name, value in ENVIRONMENT.items())]
        (self.box / "command").write_text("\n".join([*lines, shlex.join(command), ""]))
        modules = max(MODULES.glob("*"))
        settings = {"KIND": self.kind, "BOX": str(self.box), "MODULES": str(modules)}  # init gets what the kernel does not know
        kernel = [
            *("linux.uml", f"mem={MEMORY_BYTES >> 20}M", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"),
            *("con=null", "con0=null,fd:1", f"uml_dir={self.box}/", f"init={HERE / 'guest.sh'}"),
            *(f"{name}={value}" for name, value in settings.items()),
        ]
        with (self.box / "console").open("wb") as console, pinned(cpu):
            self.process = subprocess.Popen(
                kernel,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the guest's processes are some of ours: they end with the group
                env=os.environ | {"TMPDIR": memory_folder()},
            )

    def running(self, limit_s: float) -> bool:
        """Looks whether it still runs, and ends it if it has for too long."""
        assert self.process is not None
        self.seconds = time.monotonic() - self.started_s
        if self.up_s is None and (self.box / "mounted").exists():
            self.up_s = self.seconds
            say(f"{self.kind}: mounted twice after {self.up_s:.0f} s")
        if self.process.poll() is not None:
            return False
        if self.seconds > limit_s:
            self.end()
            return False
        return True

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def text(self, name: str) -> str:
        try:
            return (self.box / name).read_text(errors="replace").strip()
        except OSError:
            return ""

    def told(self, *, everything: bool) -> bool:
        """Say how it went. `everything`: what the tests wrote, too, though none failed. False: one did."""
        last = (self.text("log").splitlines() or [""])[-1]
        if self.up_s is None:
            why = self.text("failed") or (self.text("console").splitlines() or ["the guest did not start"])[-1]
            say(f"{self.kind}: SKIPPED, the share could not be brought up here: {why}")
            return True
        status = self.text("status")
        if status != "0" or everything:
            say(f"━━━ {self.kind}:\n{self.text('log')}")
        if status == "0":
            say(f"{self.kind}: {last.strip('= ')}; {self.seconds:.0f} s in all")
            return True
        ended = f"exit status {status}" if status else f"no end after {self.seconds:.0f} s"
        say(f"{self.kind}: FAILED, {ended}: {last.strip('= ')}")
        return False


def say(line: str) -> None:
    print(line, flush=True)


def marked() -> list[str]:
    """Where the tests are that need a share: files, and folders whose conftest.py marks some. So no others are imported."""
    found = [path for path in sorted((ROOT / "tests").rglob("*.py")) if "mark.share" in path.read_text(encoding="utf-8")]
    places = [path.parent if path.name == "conftest.py" else path for path in found if path.parent.name != HERE.name]
    return [str(path.relative_to(ROOT)) for path in (*places, HERE)]


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    parser.add_argument("kinds", nargs="*")
    own = sys.argv[1:]
    own, rest = (own[: own.index("--")], own[own.index("--") + 1 :]) if "--" in own else (own, [])
    args = parser.parse_args(own)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what ends the guests
    if unknown := set(args.kinds) - {*KINDS}:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    for folder in ("swarm", "tests"):  # the guest cannot write what it compiles
        compileall.compile_dir(ROOT / folder, quiet=2)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "share", "--timeout", "300", *PLUGINS, *marked(), *rest]
    guests: list[Guest] = []
    cpus = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]
    with tempfile.TemporaryDirectory(prefix="swarm-shares-") as boxes:
        try:
            for kind in args.kinds or KINDS:
                if why := lacking(kind):
                    say(f"{kind}: SKIPPED, the share could not be brought up here: {why}")
                    continue
                box = Path(boxes, kind)
                box.mkdir()
                guests.append(Guest(kind, box))
                guests[-1].start(command, cpus[min(len(guests), len(cpus)) - 1])
            running = guests
            while running := [guest for guest in running if guest.running(args.limit_s)]:
                time.sleep(0.2)
        except KeyboardInterrupt:
            say("interrupted")
            return 130
        finally:
            for guest in guests:
                guest.end()
        failed = [guest.kind for guest in guests if not guest.told(everything=bool(rest))]
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
