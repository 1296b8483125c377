"""What a command loads, seen from outside: the import contracts judge the source, this judges the process."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from swarm import api

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("swarm", "tui") for path in (ROOT / package).rglob("*.py"))
HEAVY = {"numpy", "ml_dtypes", "torch", "mlx"}

HELP = "import sys; sys.argv = ['swarm', '--help']; from swarm.cli import main; main()"


def modules_loaded_by(code: str) -> set[str]:
    """Run `code` in an interpreter of its own, which ends well, and return what sys.modules then holds."""
    report = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))"
    done = subprocess.run([sys.executable, "-c", f"{report}\n{code}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def top_level_modules_loaded_by(code: str) -> set[str]:
    return {name.partition(".")[0] for name in modules_loaded_by(code)}


def imports_of(path: Path) -> set[str]:
    """Top-level names of everything that a module imports absolutely, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_help_loads_no_arrays_no_framework_and_no_screen() -> None:
    loaded = top_level_modules_loaded_by(HELP)
    assert "swarm" in loaded
    assert not loaded & (HEAVY | {"textual", "tui"})


@pytest.mark.parametrize("code", ["import swarm", "from swarm.api import *", "import swarm.launcher"])
def test_front_ends_start_without_arrays_framework_or_screen(code: str) -> None:
    assert not top_level_modules_loaded_by(code) & (HEAVY | {"textual", "tui"})


def test_the_api_gives_what_its_imports_say_and_loads_it_when_it_is_asked_for() -> None:
    """They are written down twice: for type checkers, and for the process, which gets each name when it asks for it."""
    tree = ast.parse((ROOT / "swarm" / "api" / "__init__.py").read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == api._NAMES
    assert {*imported, "__version__"} == {*api.__all__} <= {*dir(api)}
    assert all(getattr(api, name) is not None for name in api.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = api.nothing
    assert {name for name in modules_loaded_by("from swarm import api") if name.startswith("swarm.")} == {"swarm.api"}


def test_the_screen_starts_without_arrays_or_framework() -> None:
    loaded = modules_loaded_by("import tui.__main__")
    assert "textual" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY


def test_the_first_line_is_painted_before_home_is_loaded_and_home_before_what_reads_mailboxes() -> None:
    loaded = modules_loaded_by("import tui.__main__")
    assert "tui.app" in loaded
    assert [name for name in sorted(loaded) if name.startswith(("tui.screens.home", "tui.view_", "swarm.core.state"))] == []
    loaded = modules_loaded_by("import tui.__main__, tui.screens.home")
    late = ("swarm.watch", "swarm.mailbox", "swarm.launcher", "swarm.network", "swarm.api.", "tui.feed", "tui.screens.run")
    assert [name for name in sorted(loaded) if name.startswith(late)] == []


@pytest.mark.parametrize("path", (ROOT / "swarm" / "core").rglob("*.py"), ids=lambda path: path.name)
def test_core_is_pure(path: Path) -> None:
    assert not imports_of(path) & {"os", "asyncio", "time", "threading", "pathlib", "numpy"}


def test_hugging_face_is_loaded_only_where_it_is_used() -> None:
    uses = [path for path in SOURCES if "huggingface_hub" in imports_of(path)]
    assert uses == [ROOT / "swarm" / "runtime" / "model_files.py"]
    at_once = [
        node for node in ast.parse(uses[0].read_text(encoding="utf-8")).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not any("huggingface_hub" in ast.unparse(node) for node in at_once)


def test_every_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + [line for extra in extras if extra != "dev" for line in extras[extra]]
    declared = {normal(re.split(r"[^A-Za-z0-9_.-]", line)[0]) for line in lines}
    imported = set[str]().union(*map(imports_of, SOURCES)) - {"swarm", "tui"} - sys.stdlib_module_names
    owners = packages_distributions()
    # Not installed without MLX-LM, which an extra of ours declares, and which declares it.
    owners = {**owners, "mlx_lm": ["mlx-lm"], "huggingface_hub": ["mlx-lm"], "pynvml": ["nvidia-ml-py"]}
    undeclared = {name for name in imported if not declared & set(map(normal, owners.get(name, [name])))}
    assert imported
    assert not undeclared
