"""Nothing that arrives is ever run: no call in the code could do so. What looks as if it could is listed, with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("swarm", "tui") for path in (ROOT / package).rglob("*.py"))

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "code", "codeop", "runpy", "imp"}
BUILT_IN = {"eval", "exec", "compile", "__import__"}
CALLS = {
    *{f"os.{name}" for name in ("system", "popen", "execv", "execve", "execvp", "execl", "execlp", "spawnl", "spawnv")},
    "importlib.import_module", "import_module", "importlib.__import__", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "torch.load",
    "np.load", "numpy.load", "pandas.read_pickle", "ctypes.CDLL", "sys.path.append", "sys.path.insert", "entry_points",
}  # fmt: skip
"""Each may run what it is given, or find it by a name."""

ALLOWED = {
    ("swarm/__init__.py", "import_module"): "the package's own modules, from a table in it",
    ("swarm/api/__init__.py", "import_module"): "the package's own modules, from a table in it",
    ("swarm/cli/__init__.py", "importlib.import_module"): "the commands' own modules, from a table in it",
    ("swarm/tasks/registry.py", "import_module"): "built-in tasks, from a table in it; a name that is not there is refused",
    ("swarm/tasks/registry.py", "entry_points"): "tasks that a person has installed here; a manifest only picks one of them",
    ("swarm/cli/screen.py", "os.execv"): "`swarm tui` becomes this Python with our own module",
    ("tui/screens/__init__.py", "import_module"): "the screens' own modules, from a table in it",
    ("swarm/host/memory.py", "ctypes.CDLL"): "the system's own library, by a fixed name",
    ("swarm/host/screensaver.py", "ctypes.CDLL"): "the system's own libraries of X, by fixed names",
    ("swarm/core/finetune.py", "trust_remote_code"): "the values that swarm takes for it, which are: no",
    ("swarm/parallel/config.py", "yaml.load"): "with a subclass of yaml.SafeLoader, of a file that a person names",
}


def dotted(node: ast.expr) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def dangers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield module
            case ast.Call(func=func, keywords=keywords):
                name = dotted(func)
                if name in CALLS or name in BUILT_IN:
                    yield name
                for keyword in keywords:
                    off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                    if keyword.arg in ("shell", "allow_pickle", "trust_remote_code") and not off:
                        yield f"{keyword.arg}="
            case ast.Dict(keys=keys, values=values):  # arguments that are passed on
                for key, value in zip(keys, values, strict=True):
                    said = isinstance(key, ast.Constant) and key.value == "trust_remote_code"
                    if said and not (isinstance(value, ast.Constant) and value.value is False):
                        yield "trust_remote_code"
            case _:
                pass


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from marshal import loads",
        "eval(x)",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=y)",
        "yaml.load(x, yaml.Loader)",
        "importlib.import_module(x)",
        "np.load(x, allow_pickle=True)",
        "f({'trust_remote_code': True})",
    ],
)
def test_what_could_run_code_is_seen(text: str) -> None:
    assert list(dangers(ast.parse(text)))


def test_nothing_that_arrives_is_ever_run() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), danger)
        for path in SOURCES
        for danger in dangers(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set()  # none is allowed that is not needed any more


def test_the_yaml_that_is_read_is_safe() -> None:
    tree = ast.parse((ROOT / "swarm/parallel/config.py").read_text(encoding="utf-8"))
    [loader] = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert [dotted(base) for base in loader.bases] == ["yaml.SafeLoader"]
    [call] = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and dotted(node.func) == "yaml.load"]
    assert [dotted(argument) for argument in call.args[1:]] == [loader.name]
