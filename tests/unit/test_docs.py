"""The README's table of commands and the program's own list name the same commands."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HELP = "import sys; sys.argv = ['swarm', '--help']; from swarm.cli import main; main()"


def test_the_readme_lists_every_command_and_no_other() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True, check=True)
    _, _, listed = done.stdout.partition("Commands:\n")
    commands = set(re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE))
    documented = set(re.findall(r"^\| `swarm ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert commands == documented
