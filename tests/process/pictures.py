"""The README's pictures of the screens, taken of real runs: `make pictures`.

Three machines, each a host with a network, a name and a home of its own, share one folder. `desk` starts a run of DiLoCo in
PyTorch, `laptop` joins it in MLX, and `attic` trains the clients of a FedAvg; then two of them fine-tune a language model, if
MLX-LM is installed. The screens are `swarm tui` in a terminal, and each picture is what its key for pictures saves: nothing
is drawn or edited here. Needs Linux, root, tmux, PyTorch and MLX, and two minutes.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # also when it is run by itself

from tests.process.people import SHARE, Person, people
from tests.process.tmux import HANG_S, Screen

STARTED_S = time.monotonic()
PICTURES = Path(__file__).parents[2] / "assets" / "screens"
ROUNDS = 12  # that a picture of a run has at least
TEXT, DIGITS, MODEL = "text-brave-otter", "digits-calm-lynx", "tune-quick-heron"
OFTEN = ("--beat-s", "1", "--lease-s", "10")
DILOCO = ("start", "diloco", "--task", "charlm", "--name", TEXT, "--rounds", "40", "--sync-every", "8", "--seed", "7", *OFTEN)
DILOCO += ("--quorum-size", "2", "--delta-dtype", "bf16")
FEDAVG = ("start", "fedavg", "--task", "lenet5", "--name", DIGITS, "--rounds", "60", "--clients", "10", "--per-round", "4")
FEDAVG += ("--optimizer", "adam", "--lr", "0.002", "--batch-size", "16", "--local-epochs", "2", "--partition", "dirichlet:0.5")
FEDAVG += ("--model-seed", "17", "--training-seed", "29", *OFTEN)
TUNE = ("start", "mlx-lm", "--model", "tiny-llama", "--data", "rows", "--name", MODEL, "--iters", "2000", "--save-every", "100")
TUNE += ("--world-size-min", "2", "--steps-per-report", "10", "--learning-rate", "1e-3", "--num-layers", "2")
TORCH, MLX = (("--framework", name, "--device", "cpu", "--threads", "1") for name in ("torch", "mlx"))


def take(name: str, person: Person, screen: Screen) -> None:
    """The picture that the screen saves of itself, as `name`."""
    screen.until(lambda shown: "picture saved" not in shown, "no news of the last picture")
    screen.press("F8")
    until_s = time.monotonic() + HANG_S
    while not (saved := [path for path in person.home.glob("*.svg") if path.read_text("utf-8").rstrip().endswith("</svg>")]):
        assert time.monotonic() < until_s, f"no picture of {name}:\n{screen.shown()}"
        time.sleep(0.05)
    (picture,) = saved
    PICTURES.mkdir(exist_ok=True)
    text = picture.read_text("utf-8")
    (PICTURES / f"{name}.svg").write_text(text, "utf-8")
    picture.unlink()
    screen.until(lambda shown: "picture saved" in shown, "no news of the picture")  # else it comes over the next one
    print(f"{name}.svg, after {time.monotonic() - STARTED_S:.0f} s", flush=True)


def round_of(shown: str) -> int:
    found = re.search(r"\br(\d+)/\d+\b", shown.partition("\n")[0])
    return int(found[1]) if found else -1


def quiet(more: Callable[[str], object] = bool) -> Callable[[str], bool]:
    """No toast is in the way: these stand at the right, behind a bar."""
    return lambda shown: "▌" not in shown and bool(more(shown))


def rounds_of(run: str, rounds: int, more: str) -> Callable[[str], bool]:
    """At least so many are closed, the curve is drawn, and the headline says `more`."""

    def holds(shown: str) -> bool:
        head = shown.partition("\n")[0]
        return run in head and more in head and "CHECKING" not in head and round_of(shown) >= rounds and "┤" in shown

    return quiet(holds)


def go_to(screen: Screen, run: str) -> None:
    """On Home, put the cursor on a run; those that can be joined stand first, and the cursor stays with its run."""

    def at(shown: str) -> str:
        found = re.search(r"┃▸ ([\w-]+)", shown)
        return found[1] if found else ""

    here = at(screen.until_shown(rf"┃(▸| ) {run}"))
    key = "Down"
    while here != run:
        screen.press(key)
        try:
            here = at(screen.until(lambda now, before=here: at(now) != before, "another row under the cursor", within_s=1.0))
        except AssertionError:  # the last row
            key = "Up"


def learn_text(desk: Person, laptop: Person, there: Screen, here: Screen) -> None:
    here.until_shown(rf" {TEXT} .* ", r" desk .* training ", r" attic .* training ")
    here.press("Enter")
    here.until_shown("✓ share writable", "✓ enough memory", "enter trains")
    take("join", laptop, here)
    here.press("Escape")
    laptop.swarm("join", TEXT, *MLX, "--detach")  # on the screen it would be PyTorch, of which there is one already
    there.until(quiet(lambda shown: re.search(rf" {TEXT}\* .* running .*  2 ", shown)), "a run of two learners")
    there.press("Enter")
    there.until(rounds_of(TEXT, ROUNDS, "2/2 learners"), "rounds of two learners")
    take("run", desk, there)
    there.press("Enter")
    there.until(quiet(lambda shown: "Learner desk" in shown), "the learner")
    take("learner", desk, there)
    there.press("Escape")
    there.until_shown("2/2 learners")
    there.press("3")
    there.until_shown("┏━ Rounds")
    there.press("Enter")
    there.until_shown("─ Round ")
    there.press("Left")  # to one that is evaluated
    there.until(quiet(lambda shown: "─ Round " in shown and "Evaluation  none" not in shown), "the round")
    take("round", desk, there)
    there.press("Escape")


def look_and_make_another(desk: Person, there: Screen) -> None:
    there.press("Escape")
    there.until(quiet(lambda shown: " Runs 2 " in shown), "Home")
    take("home", desk, there)
    there.press("n")
    there.until_shown(" laptop ", "parameters +120k", "gives .*/s", r"✓ \^s makes it")
    there.press("Down")
    there.until_shown("▸ task")
    take("new-run", desk, there)
    there.press("Escape")


def learn_digits(laptop: Person, here: Screen) -> None:
    go_to(here, DIGITS)
    here.press("w")
    here.until(rounds_of(DIGITS, ROUNDS, "FedAvg"), "rounds of clients")
    take("fedavg", laptop, here)


def tune(desk: Person, laptop: Person, there: Screen) -> None:
    from tests.integration.tiny_llama import completions, make_data, make_model

    make_model(desk.home / "tiny-llama")
    make_data(desk.home / "rows", train=completions(400), valid=completions(20, seed=1))
    shutil.copytree(desk.home / "tiny-llama", laptop.home / "tiny-llama")
    desk.swarm(*TUNE, "--detach")
    laptop.swarm("join", MODEL, "--model", "tiny-llama", "--detach")
    there.until_shown(rf" {MODEL}\* .* running .*  2 ")
    go_to(there, MODEL)
    there.press("Enter")
    there.until(quiet(lambda shown: re.search(r"\bit [1-9]\d\d", shown) and "┤" in shown), "steps of two ranks")
    take("tuning", desk, there)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # whatever was started ends then, too
    with tempfile.TemporaryDirectory() as place, people(Path(place), "desk", "laptop", "attic") as (desk, laptop, attic):
        for person in (desk, laptop, attic):
            person.swarm("init", SHARE)
        desk.swarm(*DILOCO, *TORCH, "--detach")
        attic.swarm(*FEDAVG, *TORCH, "--detach")
        there, here = desk.screen(), laptop.screen()
        learn_text(desk, laptop, there, here)
        learn_digits(laptop, here)
        look_and_make_another(desk, there)
        desk.swarm("stop", TEXT)
        attic.swarm("stop", DIGITS)
        if find_spec("mlx_lm") is not None:
            tune(desk, laptop, there)


if __name__ == "__main__":
    main()
