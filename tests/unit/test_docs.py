"""The README's table of commands and the program's own list name the same commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from swarm.cli import cli, run
from swarm.core.options import options
from swarm.core.specs import Algorithm, DiLoCo, FedAvg
from swarm.tasks import registry
from tests.unit.key_table import table as key_table
from tests.unit.key_table import written as written_keys

ROOT = Path(__file__).parents[2]
HELP = "import sys; sys.argv = ['swarm', '--help']; from swarm.cli import main; main()"


def test_the_readme_lists_every_command_and_no_other() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], cwd=ROOT, capture_output=True, text=True, check=True)
    _, _, listed = done.stdout.partition("Commands:\n")
    commands = set(re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE))
    documented = set(re.findall(r"^\| `swarm ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert commands == documented


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


EVERY = dict(commands())


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    for parameter in EVERY[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert any(option in shown for option in parameter.opts), parameter.name
        else:
            assert parameter.make_metavar(click.Context(EVERY[path])).strip("[]").split()[0] in shown
    assert EVERY[path].help


@pytest.mark.parametrize("columns", ["1", "40", "200"])
def test_help_fits_any_width(columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run(["--help"]) == 0
    assert "doctor" in capsys.readouterr().out


@pytest.mark.parametrize(("method", "spec"), [("diloco", DiLoCo), ("fedavg", FedAvg)])
def test_every_field_of_a_method_is_an_option_with_its_default(method: str, spec: type[Algorithm]) -> None:
    given = {parameter.name: parameter for parameter in EVERY["start", method].params}
    for option in options(spec):
        parameter = given["clients" if option.name == "private" else option.name]
        assert isinstance(parameter, click.Option)
        if option.name in ("clients", "private"):  # one option says both
            continue
        assert option.help in str(parameter.help)
        flag = option.name.replace("_", "-")
        default = option.default
        if option.type is bool:
            assert (parameter.opts, parameter.secondary_opts) == ([f"--{flag}"], [f"--no-{flag}"])
            default = None if default is None else flag if default else f"no-{flag}"
        if default is not None:
            assert f"[default: {default}]" in str(parameter.help)
        else:
            assert "[default" not in str(parameter.help)


def dealt_out(task: str) -> bool:
    """Whether what trains it says how its data is dealt out to clients."""
    module = import_module(f"swarm.tasks.{task}.trainable")
    own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    return any(hasattr(one, "train_client") for one in own)


def test_a_method_names_the_tasks_that_can_be_trained_with_it() -> None:
    built_in = set(registry._BUILT_IN)
    named = {}
    for method in ("diloco", "fedavg"):
        (option,) = [parameter for parameter in EVERY["start", method].params if parameter.name == "task"]
        assert isinstance(option, click.Option)
        named[method] = set(re.findall(r"[a-z0-9]+", str(option.help).removeprefix("What to train"))) & built_in
        assert option.default in named[method]
    assert named == {"diloco": built_in, "fedavg": {task for task in built_in if dealt_out(task)}}


def written() -> Iterator[tuple[str, list[str]]]:
    """Every command line of the README that begins with `swarm`, in a block or in a sentence."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^    (swarm .*)$", text, re.MULTILINE)
    for line in [*blocks, *re.findall(r"`(swarm [^`]+)`", text)]:
        words = shlex.split(line.replace("…", ""), comments=True)[1:]
        if words and words[0] in EVERY_NAME:
            yield line, words


EVERY_NAME = {path[0] for path in EVERY}


@pytest.mark.parametrize(("line", "words"), written(), ids=str)
def test_a_command_that_is_shown_exists_with_its_options(line: str, words: list[str]) -> None:
    path: tuple[str, ...] = ()
    while words and (*path, words[0]) in EVERY:
        path = (*path, words.pop(0))
    command = EVERY[path]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", word)}
    assert given <= known | {"--help"}, line


def test_the_readme_has_every_screen_with_its_keys() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert written_keys(text) == key_table(), "python -m tests.unit.key_table writes it anew"


def test_a_picture_that_the_readme_shows_is_there_and_shows_no_real_place() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"!\[[^]]+\]\(([^)]+)\)", text))
    assert shown == {f"assets/screens/{path.name}" for path in (ROOT / "assets" / "screens").iterdir()}
    for name in shown:
        picture = re.sub(r"<style>.*?</style>", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        assert picture.rstrip().endswith("</svg>")
        assert not re.search(r"/(tmp|root|home|Users|work)\b", picture), name
