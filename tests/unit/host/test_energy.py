"""What is drawn for a training: read from what tells it, and counted in parts by the workers that share it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swarm.host import energy
from swarm.host.accelerators import Card
from swarm.host.energy import Drawn, Meter, Sharing, Source, metered, sources
from swarm.host.identity import identity
from swarm.host.wattmeters import NOTHING, NvidiaCard, Powermetrics, Rapl, Read, Samples, nvidia_cards


class NVMLError(Exception):
    pass


class FakeNvml:
    """Cards by their ids: what each draws, in W, and its counter, in J; None: it does not tell."""

    NVMLError = NVMLError

    def __init__(self, **cards: dict[str, float | None]) -> None:
        self.cards = [(f"GPU-{name}", values) for name, values in cards.items()]
        self.broken = False

    def nvmlInit(self) -> None:
        if self.broken:
            raise NVMLError("driver not loaded")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, n: int) -> int:
        return n

    def nvmlDeviceGetUUID(self, handle: int) -> bytes | str:
        name = self.cards[handle][0]
        return name.encode() if handle % 2 else name  # older libraries give bytes

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return self._told(handle, "joules")

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._told(handle, "watts")

    def _told(self, handle: int, what: str) -> int:
        value = self.cards[handle][1].get(what)
        if value is None:
            raise NVMLError("Not Supported")
        return round(1000 * value)


# NVIDIA's cards


def card_of(nvml: FakeNvml, uuid: str) -> NvidiaCard:
    [card] = nvidia_cards([uuid], nvml)
    card.look(0.0)
    return card


def test_a_cards_counter_is_what_it_drew() -> None:
    nvml = FakeNvml(a={"watts": 300.0, "joules": 1000.0}, b={"watts": 70.0, "joules": 5.0})
    card = card_of(nvml, "GPU-a")
    nvml.cards[0][1].update(joules=4000.0, watts=350.0)
    assert card.look(10.0) == Read(350.0, 3000.0)
    nvml.cards[0][1].update(joules=2.0)  # the driver was loaded anew
    assert card.look(20.0).joules is None
    nvml.cards[0][1].update(joules=52.0)
    assert card.look(30.0).joules == 50.0


def test_of_a_card_without_a_counter_power_is_added_up() -> None:
    nvml = FakeNvml(a={"watts": 100.0})
    card = card_of(nvml, "GPU-a")
    nvml.cards[0][1].update(watts=200.0)
    assert card.look(4.0) == Read(200.0, 600.0)
    nvml.cards[0][1].update(watts=None)
    assert card.look(8.0) == NOTHING
    nvml.cards[0][1].update(watts=100.0)
    assert card.look(12.0) == Read(100.0, None), "what it drew before is not known"


def test_of_a_card_with_a_counter_alone_power_is_what_was_drawn_since() -> None:
    nvml = FakeNvml(a={"joules": 0.0})
    card = card_of(nvml, "GPU-a")
    nvml.cards[0][1].update(joules=500.0)
    assert card.look(5.0) == Read(100.0, 500.0)


def test_only_the_card_that_trains() -> None:
    nvml = FakeNvml(a={"watts": 1.0}, b={"watts": 2.0})
    assert [card.what for card in nvidia_cards(["gpu-B"], nvml)] == ["GPU-b"]
    assert nvidia_cards(["GPU-c"], nvml) == []
    assert nvidia_cards([""], nvml) == [], "which of two it is, nobody knows"
    assert [card.what for card in nvidia_cards([""], FakeNvml(a={"watts": 1.0}))] == ["GPU-a"]
    assert nvidia_cards(["GPU-a"], FakeNvml(a={})) == [], "it tells nothing"


def test_without_a_driver_nothing_is_told() -> None:
    nvml = FakeNvml(a={"watts": 1.0})
    nvml.broken = True
    assert nvidia_cards(["GPU-a"], nvml) == []


# Processors


def zones(root: Path, **counters: tuple[str, int, int]) -> None:
    """name of a zone → (its name, counter, range), in µJ."""
    for zone, (name, counter, range_uj) in counters.items():
        folder = root / zone.replace("_", ":").replace("intel:rapl", "intel-rapl")
        folder.mkdir(exist_ok=True)
        for file, text in (("name", name), ("energy_uj", str(counter)), ("max_energy_range_uj", str(range_uj))):
            (folder / file).write_text(f"{text}\n")


def test_packages_and_memory_are_added_up_and_a_counter_that_wraps_goes_on(tmp_path: Path) -> None:
    big = 262_143_328_850
    zones(tmp_path, intel_rapl_0=("package-0", 100, big), intel_rapl_0_0=("core", 50, big), intel_rapl_0_1=("dram", 7, big))
    rapl = Rapl.here(tmp_path)
    assert rapl is not None
    rapl.look(100.0)
    zones(tmp_path, intel_rapl_0=("package-0", 50_000_100, big), intel_rapl_0_0=("core", 9, big))
    zones(tmp_path, intel_rapl_0_1=("dram", big - 1_000_000, big))  # far more than it can have drawn: it began anew
    assert rapl.look(105.0) == NOTHING
    zones(tmp_path, intel_rapl_0=("package-0", 100_000_100, big), intel_rapl_0_1=("dram", 4_000_000, big))
    assert rapl.look(110.0) == Read(11.0, 55.0), "50 J of the package; of the memory 1 J up to the range's end, 4 J after it"


def test_what_may_not_be_read_tells_nothing(tmp_path: Path) -> None:
    assert Rapl.here(tmp_path) is None
    zones(tmp_path, intel_rapl_0=("package-0", 1, 10), intel_rapl_1=("package-1", 1, 10))
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("")  # as root alone may read it; tests may run as root
    assert Rapl.here(tmp_path) is None, "half of a machine is no figure"
    zones(tmp_path, intel_rapl_1=("package-1", 1, 10))
    rapl = Rapl.here(tmp_path)
    assert rapl is not None
    rapl.look(0.0)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert rapl.look(1.0) == NOTHING


# Macs

APPLE = """Machine model: MacBookPro18,1

*** Sampled system activity (Mon Nov 30 10:00:00 2026 +0100) (5002.50ms elapsed) ***

**** Processor usage ****

E-Cluster Online: 100%
CPU Power: 1200 mW
GPU Power: 14800 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 16000 mW

*** Sampled system activity (Mon Nov 30 10:00:05 2026 +0100) (4000.00ms elapsed) ***

Combined Power (CPU + GPU + ANE): 20000 mW
Combined Power (CPU + GPU + ANE): 99 mW
"""
INTEL = """*** Sampled system activity (Tue Sep  1 10:00:00 2020 +0200) (2000.00ms elapsed) ***

Intel energy model derived package power (CPUs+GT+SA): 3.45W
"""


def test_samples_of_powermetrics() -> None:
    samples = Samples()
    for line in APPLE.splitlines():
        samples.line(line)
    assert samples.power_w == 20.0
    assert samples.joules == pytest.approx(16 * 5.0025 + 20 * 4)
    intel = Samples()
    for line in INTEL.splitlines():
        intel.line(line)
    assert (intel.power_w, intel.joules) == (3.45, pytest.approx(6.9))
    for line in ("", "Combined Power (CPU + GPU + ANE): 5 mW", "*** Sampled system activity", "Combined Power: x mW"):
        intel.line(line)
    assert intel.joules == pytest.approx(6.9), "what is no sample tells nothing"


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_its_output_is_read_and_it_ends_with_the_worker(tmp_path: Path) -> None:
    (tmp_path / "output").write_text(APPLE)
    mac = Powermetrics([script(tmp_path / "fake", f"cat {tmp_path}/output; exec sleep 60")])
    for _ in range(2000):
        if mac._samples.joules > 100:
            break
        mac._reader.join(timeout=0.01)
    told = mac.look(0.0)
    assert told.power_w == 20.0
    assert told.joules == pytest.approx(160.04)
    assert mac.look(5.0) == Read(20.0, 0.0)
    mac.close()
    assert mac._process.wait(timeout=30) != 0
    mac._reader.join(timeout=30)
    assert mac.look(10.0) == NOTHING


def test_one_that_sudo_refuses_tells_nothing(tmp_path: Path) -> None:
    mac = Powermetrics([script(tmp_path / "fake", "echo 'sudo: a password is required' >&2; exit 1")])
    mac._reader.join(timeout=30)
    assert mac.look(0.0) == NOTHING
    mac.close()


def test_where_there_is_no_powermetrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Powermetrics.here(root=True) is None
    script(tmp_path / "powermetrics", "exit 0")
    assert Powermetrics.here(root=False) is None, "nothing lets it run"


# A worker's part


class Fake:
    """Tells what it is set to."""

    def __init__(self, what: str, *reads: Read) -> None:
        self.what, self.reads, self.closed = what, list(reads), False

    def look(self, now_s: float) -> Read:
        return self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]

    def close(self) -> None:
        self.closed = True


class Alone:
    """Nobody else draws, unless told."""

    def __init__(self, **counts: int) -> None:
        self.counts, self.joined = counts, False

    def join(self, what: Any) -> None:
        self.joined = bool(list(what))

    def leave(self) -> None:
        self.joined = False

    def count(self, what: str) -> int:
        return self.counts.get(what, 1)


def meter_of(*found: Source, sharing: Alone | None = None) -> Meter:
    meter = Meter(lambda: found, sharing or Alone())  # type: ignore[arg-type]
    assert meter.begin(0.0) is bool(found)
    return meter


def test_where_nothing_tells_nothing_is_told() -> None:
    assert meter_of().drawn(False) == Drawn(None, None)
    meter = meter_of(Fake("card", NOTHING))
    meter.look(5.0)
    assert meter.drawn(False) == Drawn(None, None)


def test_a_card_and_its_processor_are_added_up() -> None:
    meter = meter_of(Fake("card", Read(300.0, 1500.0)), Fake("processors", Read(60.0, 300.0)))
    assert meter.drawn(False) == Drawn(None, None)
    meter.look(5.0)
    assert meter.drawn(False) == Drawn(360.0, 0.5)
    meter.look(10.0)
    assert meter.drawn(False) == Drawn(360.0, 1.0)


def test_what_one_of_them_does_not_tell_for_once_is_no_power_of_the_whole() -> None:
    meter = meter_of(Fake("card", Read(300.0, 1500.0)), Fake("processors", Read(60.0, 300.0), NOTHING))
    meter.look(5.0)
    assert meter.drawn(False) == Drawn(None, round(1500 / 3600, 6))


def test_each_of_several_workers_counts_its_part() -> None:
    meter = meter_of(Fake("card", Read(300.0, 3600.0)), sharing=Alone(card=3))
    meter.look(5.0)
    assert meter.drawn(False) == Drawn(100.0, round(1 / 3, 6))


def test_what_is_drawn_in_a_rest_is_not_drawn_for_the_training() -> None:
    sharing = Alone()
    meter = meter_of(Fake("card", Read(300.0, 3600.0)), sharing=sharing)
    assert sharing.joined
    meter.look(5.0)
    assert meter.drawn(True) == Drawn(300.0, 1.0)
    for now_s in (10.0, 15.0, 20.0):
        meter.look(now_s)
        assert meter.drawn(True) == Drawn(0.0, 1.0)
        assert not sharing.joined, "the others' parts are greater meanwhile"
    meter.drawn(False)
    meter.look(25.0)  # in which the rest ended
    assert sharing.joined
    assert meter.drawn(False) == Drawn(300.0, 1.0)
    meter.look(30.0)
    assert meter.drawn(False) == Drawn(300.0, 2.0)


def test_a_thread_looks_and_stops_at_once_with_its_sources_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "LOOK_S", 0.001)
    source = Fake("card", Read(300.0, 3600.0))
    meter = Meter(lambda: [source], Alone())  # type: ignore[arg-type]
    meter.start()
    while meter.drawn(False).energy_wh is None:
        meter._thread.join(timeout=0.001)
    meter.close()
    assert not meter._thread.is_alive()
    assert source.closed


def test_a_driver_that_fails_takes_the_power_along_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "LOOK_S", 0.001)

    class Broken(Fake):
        def look(self, now_s: float) -> Read:
            if len(self.reads) == 1:
                raise RuntimeError("Xid 79")
            return super().look(now_s)

    meter = Meter(lambda: [Broken("card", *[Read(300.0, 3600.0)] * 3)], Alone())  # type: ignore[arg-type]
    meter.start()
    meter._thread.join(timeout=30)
    assert meter.drawn(False) == Drawn(None, 1.0)
    meter.close()


def another(folder: Path, pid: int, *, process: str | None = None, boot: str = "", what: Sequence[str] = ("card",)) -> Path:
    """The file of another worker."""
    found = process if process is not None else started_of(pid)
    path = folder / f"{boot or identity().boot[:8]}_{pid}_{found}"
    path.write_text("\n".join(what))
    return path


def started_of(pid: int) -> str:
    from swarm.host.identity import started

    return started(pid) or ""


def test_workers_of_a_machine_see_each_other(tmp_path: Path) -> None:
    sharing = Sharing(tmp_path / "drawing", identity())
    assert sharing.count("card") == 1
    sharing.join(["card", "processors"])
    assert sharing.count("card") == 1, "itself once"
    folder, parent = tmp_path / "drawing", os.getppid()
    another(folder, parent)
    assert (sharing.count("card"), sharing.count("processors")) == (2, 1)
    dead = another(folder, parent, process="long ago")
    elsewhere = another(folder, parent, boot="ffffffff")
    (folder / "notes.txt").write_text("card")
    assert sharing.count("card") == 2
    assert not dead.exists(), "a process that was killed leaves its file behind"
    assert elsewhere.exists(), "whether it lives only its own machine can tell"
    sharing.leave()
    assert not any(f"_{os.getpid()}_" in path.name for path in folder.iterdir())


def test_a_state_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "drawing").write_text("no folder")
    sharing = Sharing(tmp_path / "drawing", identity())
    sharing.join(["card"])
    assert sharing.count("card") == 1
    sharing.leave()


# What there is to ask


def test_a_card_that_cannot_be_asked_leaves_nothing_to_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zones(tmp_path, intel_rapl_0=("package-0", 1, 10))
    monkeypatch.setattr(Rapl, "here", classmethod(lambda cls: cls([])))
    monkeypatch.setattr(energy, "nvidia_cards", lambda uuids: [])
    assert sources([Card("GPU-a", 1)], powermetrics=False, platform="linux") == []
    assert [source.what for source in sources([], powermetrics=False, platform="linux")] == ["processors"]
    monkeypatch.setattr(energy, "nvidia_cards", lambda uuids: [Fake(uuid, NOTHING) for uuid in uuids])
    found = sources([Card("GPU-a", 1)], powermetrics=False, platform="linux")
    assert [source.what for source in found] == ["GPU-a", "processors"]


def test_powermetrics_is_run_only_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def here(root: bool) -> Fake:
        asked.append(root)
        return Fake("mac", NOTHING)

    monkeypatch.setattr(Powermetrics, "here", here)
    assert sources([], powermetrics=False, platform="darwin") == []
    assert asked == []
    assert [source.what for source in sources([], powermetrics=True, platform="darwin")] == ["mac"]
    assert asked == [os.geteuid() == 0]


def test_on_this_machine_it_begins_and_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWARM_STATE_DIR", str(tmp_path))
    with metered([], powermetrics=False) as draws:
        told = draws(False)
    assert all(value is None or value >= 0 for value in told)
