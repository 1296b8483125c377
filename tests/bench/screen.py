"""What the screen costs, on a terminal of 120 × 36 that a program reads: its share of a core, how long the first paint and a
key take, its memory over an hour, and what reading a long run takes. Every bound that the machine has a part in is a ratio to a
bare Textual app, or to the plainest program, in the same run.

Run by hand, on Linux (`make bench-screen`), on a machine that has nothing else to do:

    python -m tests.bench.screen [share|paint|keys|memory|feed …]     by default all of them, in ten minutes; feed writes 0.7 GB

The run that is shown is replayed (tests/bench/replayed.py): 10,000 rounds, every learner's beat changes before every snapshot,
a round closes with every fifth. The last line is the same as JSON; it ends with 1 if a bound is broken.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.replayed import MARK, learner

ROOT = Path(__file__).parents[2]
COLUMNS, LINES = 120, 36
ROUNDS = 10_000
SETTLE_S, SHARE_S = 4.0, 20.0
PATIENCE_S = 300.0
TICKS = 3600  # of an hour, at one snapshot a second
SHARES = {3: None, 8: 0.10, 30: None, 300: 0.25}  # by learners: of one core, at most
FIRST_RATIO, FIRST_S = 1.5, 1.0
GROWTH_BYTES = 1 << 20  # in 1,000 snapshots, at most: what Python's allocator moves about is some hundred kilobytes
_CODES = re.compile(rb"\x1b\[[0-9;:?<>=]*[ -/]*[@-~]|\x1b[PX^_\]].*?(?:\x1b\\|\x07)|\x1b.", re.DOTALL)


class Screen:
    """A program on a terminal of its own."""

    def __init__(self, *arguments: str, state: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._told, tells = os.pipe()
        os.set_inheritable(tells, True)
        places = {"SWARM_STATE_DIR": "state", "SWARM_CONFIG": "settings.toml", "SWARM_CACHE_DIR": "cache"}
        environment = os.environ | {key: str(state / name) for key, name in places.items()}
        environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "SWARM_DISCOVERY": "0", "PYTHONPATH": str(ROOT)}
        environment |= {"REPLAY_TELLS": str(tells)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start compiles all of the app, and nothing of Textual
        self.began_s = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            close_fds=True,
            pass_fds=[tells],
            start_new_session=True,
        )
        os.close(slave)
        os.close(tells)
        self.out = b""  # since it was last cleared
        self.tick = 0  # the last one that it told of
        self._words = b""

    def read(self, timeout_s: float) -> None:
        ready, _, _ = select.select([self.master, self._told], [], [], timeout_s)
        if self.master in ready:
            with contextlib.suppress(OSError):
                self.out += os.read(self.master, 1 << 16)
        if self._told in ready:
            self._words += os.read(self._told, 1 << 12)
            *whole, self._words = self._words.split(b"\n")
            if whole:
                self.tick = int(whole[-1])

    def until(self, holds: Callable[[], object], what: str) -> float:
        """When it first held."""
        until_s = time.perf_counter() + PATIENCE_S
        while not holds():
            self.read(0.5)
            if self.process.poll() is not None or time.perf_counter() > until_s:
                sys.exit(f"{what} never came: code {self.process.poll()}, {self.words()[-2000:]}")
        return time.perf_counter()

    def look(self, seconds_s: float) -> None:
        until_s = time.perf_counter() + seconds_s
        while (left_s := until_s - time.perf_counter()) > 0:
            self.read(left_s)
            self.out = self.out[-(1 << 16) :]

    def words(self) -> str:
        """What was written since, without colours and places."""
        return _CODES.sub(b"", self.out).decode("utf-8", "replace")

    def press(self, key: str) -> None:
        self.out = b""
        os.write(self.master, key.encode())

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        line = next(x for x in Path(f"/proc/{self.process.pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
        return 1024 * int(line.split()[1])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.master)
        os.close(self._told)


@contextlib.contextmanager
def screen(*arguments: str) -> Iterator[Screen]:
    with tempfile.TemporaryDirectory() as folder:
        found = Screen(*arguments, state=Path(folder))
        try:
            yield found
        finally:
            found.close()


def replayed(learners: int, *, every_s: float = 1.0) -> Any:
    return screen("-m", "tests.bench.replayed", "app", str(learners), str(ROUNDS), str(every_s))


def bare_share() -> float:
    """Of a bare app that repaints all cells every second."""
    with screen("-m", "tests.bench.replayed", "bare") as bare:
        bare.until(lambda: bare.tick >= 2, "a bare app")
        return share_of(bare)


def share_of(one: Screen) -> float:
    """CPU seconds for each snapshot that was painted: they are a second apart, unless the machine is busy."""
    one.look(SETTLE_S)
    cpu_s, tick = one.cpu_s(), one.tick
    one.look(SHARE_S)
    return (one.cpu_s() - cpu_s) / (one.tick - tick)


def measure_share() -> dict[str, Any]:
    found: dict[str, Any] = {"bare": bare_share()}
    for learners in SHARES:
        with replayed(learners) as one:
            one.until(lambda one=one: one.tick >= 2, "a snapshot")
            found[str(learners)] = share_of(one)
    print(f"share of a core, a snapshot a second    bare app that repaints every cell {100 * found['bare']:5.1f} %")
    for learners, most in SHARES.items():
        bound = "" if most is None else f"   at most {100 * most:.0f} %"
        own = found[str(learners)]
        print(f"  {learners:>3} learners   {100 * own:5.1f} %   {own / found['bare']:5.1f} x the bare app{bound}")
    found["holds"] = all(found[str(n)] <= most for n, most in SHARES.items() if most is not None)
    return found


def first_paint_s(*arguments: str, mark: str) -> float:
    with screen(*arguments) as one:
        return one.until(lambda: mark in one.words(), mark) - one.began_s


def measure_paint(repeats: int = 11) -> dict[str, Any]:
    """Of Home, from the start of the process, in turns with a bare app."""
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mailbox").mkdir()
        for _ in range(repeats + 1):
            bare_s = first_paint_s("-m", "tests.bench.replayed", "first", mark=MARK)
            pairs.append((bare_s, first_paint_s("-m", "tui", "--mailbox", f"{folder}/mailbox", mark="swarm ▸ home")))
    bare_s, own_s = (statistics.median(column) for column in zip(*pairs[1:], strict=True))  # the first wrote bytecode
    print(f"first paint    bare app {bare_s:.3f} s   swarm tui {own_s:.3f} s, at most {FIRST_S:g} s")
    print(f"  ratio {own_s / bare_s:.2f}, at most {FIRST_RATIO:g}   (medians of {repeats})")
    return {"bare_s": bare_s, "own_s": own_s, "holds": own_s <= FIRST_S and own_s / bare_s <= FIRST_RATIO}


def measure_keys(presses: int = 120) -> dict[str, Any]:
    found: dict[str, Any] = {"holds": True}
    print("from a key to its paint    median      95 %")
    for learners in (8, 300):
        with replayed(learners) as one:
            one.until(lambda one=one: one.tick >= 2, "a snapshot")
            one.look(SETTLE_S)
            chance = random.Random(learners)
            moves, panes = [], []
            one.press("g")
            one.look(1.0)
            at, down = 0, True
            for n in range(presses):
                one.look(chance.uniform(0.1, 0.4))
                down = (at < learners - 1) if down else at == 0
                at += 1 if down else -1
                moves.append(took_s(one, "j" if down else "k", f"▸ {learner(at)}"))
                if n % 2 == 0:
                    one.look(chance.uniform(0.1, 0.4))
                    panes.append(took_s(one, "4", "┏━ Log"))
                    one.look(chance.uniform(0.1, 0.4))
                    panes.append(took_s(one, "1", "┏━ Learners"))
        for what, times in (("cursor", moves), ("pane", panes)):
            median_s, most_s = statistics.median(times), statistics.quantiles(times, n=20)[-1]
            found[f"{what}_{learners}"] = {"median_s": median_s, "p95_s": most_s}
            print(f"  {what:<7} {learners:>3} learners   {1000 * median_s:7.1f} ms  {1000 * most_s:7.1f} ms")
    return found


def took_s(one: Screen, key: str, mark: str) -> float:
    began_s = time.perf_counter()
    one.press(key)
    return one.until(lambda: mark in one.words(), f"{key}: {mark}") - began_s


def measure_memory() -> dict[str, Any]:
    """Over an hour of snapshots, each painted."""
    points: list[tuple[int, int]] = []
    with replayed(30, every_s=0) as one:
        for tick in range(100, TICKS + 1, 100):
            one.until(lambda tick=tick: one.tick >= tick, f"snapshot {tick}")
            one.out = b""
            points.append((one.tick, one.rss_bytes()))
    steady = points[len(points) // 4 :]  # what fills up fills up in the first quarter
    slope = statistics.linear_regression([t for t, _ in steady], [float(b) for _, b in steady]).slope
    first_bytes, last_bytes, grows_bytes = points[0][1], points[-1][1], 1000 * slope
    print(f"memory of 30 learners over {TICKS} snapshots: {first_bytes / 2**20:.1f} MiB, then {last_bytes / 2**20:.1f}")
    print(f"  grows by {grows_bytes / 1024:.0f} KiB in 1,000 snapshots, at most {GROWTH_BYTES >> 10} KiB")
    return {
        "first_bytes": first_bytes,
        "last_bytes": last_bytes,
        "grows_bytes": grows_bytes,
        "holds": grows_bytes <= GROWTH_BYTES,
    }


def measure_feed() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.longrun"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print("\n".join(done.stdout.splitlines()[:-1]))
    return found


PARTS = {
    "share": measure_share,
    "paint": measure_paint,
    "keys": measure_keys,
    "memory": measure_memory,
    "feed": measure_feed,
}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and leave no program behind
    found = {name: PARTS[name]() for name in sys.argv[1:] or PARTS}
    print(json.dumps(found))
    if broken := [name for name, part in found.items() if not part["holds"]]:
        sys.exit(f"above the bounds: {', '.join(broken)}")


if __name__ == "__main__":
    main()
