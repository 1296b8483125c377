"""How the folders of this system are mounted, by what the system itself knows: no server is asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from swarm.core.mounts import Mount, with_parameters, with_smb_settings

ASK_S = 2.0  # that a program of the system's may take
_NFSSTAT = ("/usr/bin/nfsstat", "-m")
_NSMB_CONF = ("/etc/nsmb.conf", "~/Library/Preferences/nsmb.conf")


def this_systems() -> list[Mount]:
    """All mounts of this system."""
    import psutil

    return [
        Mount(point=part.mountpoint, device=part.device, kind=part.fstype, options=part.opts)
        for part in psutil.disk_partitions(all=True)
    ]


def told_more(mount: Mount) -> Mount:
    """With options that only a program of macOS's knows, or a file of its settings."""
    if sys.platform != "darwin" or mount.kind not in ("nfs", "smbfs"):
        return mount
    if mount.kind == "smbfs":
        return with_smb_settings(mount, _smb_settings())
    try:
        asked = subprocess.run([*_NFSSTAT, mount.point], capture_output=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return mount
    return with_parameters(mount, asked.stdout.decode(errors="replace"))


def _smb_settings() -> Iterator[str]:
    for name in _NSMB_CONF:
        try:
            yield Path(name).expanduser().read_text(errors="replace")
        except (OSError, RuntimeError):  # not there, as a rule; or nobody's home
            yield ""
