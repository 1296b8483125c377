"""How many starts of a bare interpreter `swarm --help` costs: the ratio of two medians. The aim is at most six.

Run by hand: python tests/bench/startup.py [repeats]
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BARE = ["-c", "pass"]
HELP = ["-c", "import sys; from swarm.cli import main; sys.argv[0] = 'swarm'; main()", "--help"]


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    seconds(HELP)  # writes the bytecode
    # In turns, so that a machine that slows down slows both.
    pairs = [(seconds(BARE), seconds(HELP)) for _ in range(repeats)]
    bare_s = statistics.median(bare for bare, _ in pairs)
    help_s = statistics.median(help_ for _, help_ in pairs)
    print(f"python -c pass  {bare_s * 1000:6.1f} ms")
    print(f"swarm --help    {help_s * 1000:6.1f} ms")
    print(f"ratio           {help_s / bare_s:6.2f}    (median of {repeats})")


if __name__ == "__main__":
    main()
