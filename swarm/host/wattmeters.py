"""What tells how much a part of this machine draws: one class for each kind. Counters are read at every look, and the
difference to the look before is what was drawn."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

POWERCAP = Path("/sys/class/powercap")
MOST_W = 2000.0  # of one counter: more is no power, but a counter that began anew
SAMPLE_MS = 5000  # of powermetrics


class Read(NamedTuple):
    power_w: float | None  # now, or since the look before; None: it is not told
    joules: float | None  # since the look before


NOTHING = Read(None, None)


# NVIDIA's cards


class NvidiaCard:
    """One card, through NVML. `nvml`: the module pynvml of nvidia-ml-py, initialised."""

    def __init__(self, nvml: Any, handle: Any, uuid: str) -> None:
        self._nvml, self._handle, self.what = nvml, handle, uuid
        self._before: tuple[float, float | None, float | None] | None = None  # when, counter in mJ, power in W

    def look(self, now_s: float) -> Read:
        counter = self._asked("nvmlDeviceGetTotalEnergyConsumption")  # mJ since the driver was loaded; Volta and newer
        milliwatts = self._asked("nvmlDeviceGetPowerUsage")
        power_w = None if milliwatts is None else milliwatts / 1000
        before, self._before = self._before, (now_s, counter, power_w)
        if before is None:
            return Read(power_w, None if counter is None and power_w is None else 0.0)
        then_s, counted, power_then_w = before
        elapsed_s = max(0.0, now_s - then_s)
        joules = None
        if counter is not None and counted is not None:
            joules = _plausible((counter - counted) / 1000, elapsed_s)
        elif power_w is not None and power_then_w is not None:
            joules = (power_w + power_then_w) / 2 * elapsed_s
        if power_w is None and joules is not None and elapsed_s > 0:
            power_w = joules / elapsed_s
        return Read(power_w, joules)

    def close(self) -> None:
        pass  # NVML is left initialised: another part of the process may use it

    def _asked(self, function: str) -> float | None:
        try:
            return float(getattr(self._nvml, function)(self._handle))
        except (self._nvml.NVMLError, AttributeError):  # not of this card; or of an older library
            return None


def nvidia_cards(uuids: Sequence[str], nvml: Any = None) -> list[NvidiaCard]:
    """Those of these ids that NVML tells of, in their order. An empty id is of the only card there is: frameworks and NVML
    number several in different orders. `nvml`: the module; None: as it is installed here."""
    if nvml is None:
        try:
            import pynvml

            nvml = pynvml
        except Exception:  # it is optional; a broken one is none
            return []
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        there = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
    except (nvml.NVMLError, AttributeError, OSError):
        return []
    found = []
    for uuid in uuids:
        names = [name for name in there if name.lower() == uuid.lower() or (not uuid and len(there) == 1)]
        found += [NvidiaCard(nvml, there[name], name) for name in names]
    return [card for card in found if card.look(0.0) != NOTHING]


def _text(told: str | bytes) -> str:
    return told.decode(errors="replace") if isinstance(told, bytes) else told


# Processors of Linux


class _Counter(NamedTuple):
    path: Path  # of a number, in µJ
    range_uj: int  # where it begins anew; 0: it is not told


class Rapl:
    """The processors' packages with the memory beside them, as Linux tells of Intel's and AMD's: powercap(5). Most systems let
    only root read it."""

    what = "processors"

    def __init__(self, counters: Sequence[_Counter]) -> None:
        self._counters = counters
        self._before: tuple[float, list[int | None]] | None = None

    @classmethod
    def here(cls, root: Path = POWERCAP) -> Rapl | None:
        """None: there is nothing, or it cannot be read."""
        counters = []
        for zone in sorted(root.glob("intel-rapl:*")):
            # A package's cores are in its own counter; its memory is not.
            name = _line(zone / "name")
            if name.startswith("package-") or name == "dram":
                counters.append(_Counter(zone / "energy_uj", int(_line(zone / "max_energy_range_uj") or 0)))
        readable = [counter for counter in counters if _number(counter.path) is not None]
        return cls(readable) if readable and len(readable) == len(counters) else None

    def look(self, now_s: float) -> Read:
        numbers = [_number(counter.path) for counter in self._counters]
        before, self._before = self._before, (now_s, numbers)
        if before is None:
            return Read(None, 0.0)
        elapsed_s, joules = max(0.0, now_s - before[0]), 0.0
        for counter, then, now in zip(self._counters, before[1], numbers, strict=True):
            if then is None or now is None:
                return NOTHING
            moved_uj = now - then if now >= then else now - then + counter.range_uj
            moved = _plausible(moved_uj / 1e6, elapsed_s)
            if moved is None:
                return NOTHING
            joules += moved
        return Read(joules / elapsed_s if elapsed_s > 0 else None, joules)

    def close(self) -> None:
        pass


def _plausible(joules: float, elapsed_s: float) -> float | None:
    return joules if 0 <= joules <= MOST_W * max(elapsed_s, 1.0) else None


def _line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _line(path)
    return int(text) if text.isdecimal() else None


# Macs


_ELAPSED = re.compile(r"\*\*\* Sampled system activity \(.*\) \(([\d.]+)ms elapsed\) \*\*\*")
_POWER = re.compile(
    r"(?:Combined Power \(CPU \+ GPU \+ ANE\)|Package Power|Intel energy model derived package power[^:]*):"
    r"\s*([\d.]+)\s*(m?W)\b"
)


class Samples:
    """What powermetrics prints, line by line."""

    def __init__(self) -> None:
        self.power_w: float | None = None  # of the newest sample
        self.joules = 0.0  # of all
        self._elapsed_s: float | None = None  # of the sample that is being printed

    def line(self, line: str) -> None:
        if found := _ELAPSED.search(line):
            self._elapsed_s = float(found[1]) / 1000
        elif self._elapsed_s is not None and (found := _POWER.match(line.strip())):
            power_w = float(found[1]) / (1000 if found[2] == "mW" else 1)
            self.power_w, self.joules = power_w, self.joules + power_w * self._elapsed_s
            self._elapsed_s = None  # of the next lines of this kind nothing more is known than of the first


class Powermetrics:
    """A Mac's processor, GPU and neural engine, by `powermetrics`, which only root may run: a program of its own, whose output
    is read. It ends with the next sample once nobody reads that, whatever became of this process. Written from its manual page
    and published output: not tried on a Mac yet."""

    what = "mac"

    def __init__(self, command: Sequence[str]) -> None:
        """Starts it. Raises OSError."""
        self._samples, self._lock = Samples(), threading.Lock()
        self._told = 0.0  # joules
        self._closing = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="swarm-powermetrics", daemon=True)
        self._reader.start()

    @classmethod
    def here(cls, *, root: bool) -> Powermetrics | None:
        """`root`: whether this process may run it as it is; else sudo must let it without a password."""
        path, sudo = shutil.which("powermetrics"), shutil.which("sudo")
        if path is None or not (root or sudo):
            return None
        # Line by line, without a summary now and then.
        wanted = [path, "--samplers", "cpu_power,gpu_power", "-i", str(SAMPLE_MS), "-a", "0", "-b", "1"]
        try:
            return cls(wanted if root else [str(sudo), "-n", *wanted])
        except OSError:
            return None

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError), self._process.stdout as lines:
            for line in lines:
                if self._closing:
                    break
                with self._lock:
                    self._samples.line(line)
        with self._lock:
            self._samples.power_w = None
        self._process.wait()

    def look(self, now_s: float) -> Read:
        with self._lock:
            power_w, joules = self._samples.power_w, self._samples.joules
        before, self._told = self._told, joules
        return NOTHING if power_w is None and joules == before else Read(power_w, joules - before)

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):  # sudo's is root's: it ends when nobody reads its next line
            self._process.terminate()
