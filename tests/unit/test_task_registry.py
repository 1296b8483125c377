from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.core.errors import TaskUnknown, UsageError
from swarm.tasks import registry

ROOT = Path(__file__).parents[2]

THIRD_PARTY = """
import msgspec

class Options(msgspec.Struct):
    depth: int = 1

class Task:
    name = "{name}"
    summary = "somebody else's"
    frameworks = ("torch",)
    spec = Options
    def options(self, given): return {{}}
    def data(self, path): return []
    def build(self, **how): raise NotImplementedError

TASK = Task()
"""

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a distribution with one module and its entry points on the path, as pip would."""

    def installed(module: str, source: str, entry_points: str) -> None:
        site = tmp_path / module
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[swarm.tasks]\n{entry_points}\n")
        monkeypatch.syspath_prepend(site)

    return installed


def test_a_task_that_is_missing_names_the_package_that_brings_it(install: Install) -> None:
    with pytest.raises(TaskUnknown, match=r"no task 'digits' is installed here; .*pip install swarm-digits; installed: charlm"):
        registry.get("digits", package="swarm-digits")
    install("swarm_digits", THIRD_PARTY.format(name="digits"), "digits = swarm_digits:TASK")
    assert registry.get("digits", package="another").name == "digits"
    assert (registry.package_of("digits"), registry.package_of("charlm"), registry.package_of("none")) == (
        "swarm_digits",
        "",
        "",
    )


def test_the_built_in_tasks_are_listed_and_found() -> None:
    frameworks = dict.fromkeys(("charlm", "lenet5", "mlp"), ("torch", "mlx")) | {"lora": ("mlx",)}
    assert frameworks.keys() <= set(registry.names())
    for name, offered in frameworks.items():
        task = registry.get(name)
        assert task.name == name
        assert task.summary
        assert task.frameworks == offered
        assert registry.takes_model(task) == (name == "lora")


def test_a_package_that_a_task_needs_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a framework is looked for, which the same extra brings."""
    monkeypatch.setitem(sys.modules, "mlx_lm", None)
    with pytest.raises(
        UsageError, match=r"^task lora needs mlx_lm, which is not installed here: pip install 'homeswarm\[mlx-lm\]'$"
    ):
        registry.check_installed(registry.get("lora"))
    registry.check_installed(registry.get("mlp"))


def test_a_base_model_is_for_tasks_that_fine_tune_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="task mlp fine-tunes no model that is given to it"):
        registry.build(registry.get("mlp"), model_path=tmp_path)


def test_an_unknown_task_names_the_installed_ones() -> None:
    with pytest.raises(TaskUnknown, match=r"no task 'charml' .*did you mean 'charlm'.*charlm, lenet5, lora, mlp"):
        registry.get("charml")


def test_another_packages_task_is_found(install: Install) -> None:
    assert "guest-a" not in registry.names()
    install("guest_a_tasks", THIRD_PARTY.format(name="guest-a"), "guest-a = guest_a_tasks:TASK")
    assert "guest-a" in registry.names()
    assert registry.get("guest-a").summary == "somebody else's"
    assert "guest-a" not in registry.broken()


@pytest.mark.parametrize(
    ("module", "source", "points", "reason"),
    [
        ("guest_b", "raise RuntimeError('no GPU')", "guest-b = guest_b:TASK", "RuntimeError: no GPU"),
        ("guest_c", "", "guest-c = guest_c:TASK", "AttributeError"),
        ("guest_d", "import surely_not_installed", "guest-d = guest_d:TASK", "surely_not_installed"),
        ("guest_e", "TASK = object()", "guest-e = guest_e:TASK", "is no task: it lacks summary"),
        ("guest_f", THIRD_PARTY.format(name="other"), "guest-f = guest_f:TASK", "calls itself 'other'"),
    ],
)
def test_a_broken_task_is_skipped_and_its_reason_kept(
    install: Install, module: str, source: str, points: str, reason: str
) -> None:
    install(module, source, points)
    name = points.partition(" ")[0]
    assert name not in registry.names()
    assert reason in registry.broken()[name]
    with pytest.raises(TaskUnknown, match=r"installed here, but broken"):
        registry.get(name)
    assert registry.get("mlp").name == "mlp"


def test_nobody_takes_a_built_in_tasks_name(install: Install) -> None:
    install("guest_g", THIRD_PARTY.format(name="mlp"), "mlp = guest_g:TASK")
    assert registry.names().count("mlp") == 1
    assert type(registry.get("mlp")).__module__ == "swarm.tasks.mlp"
    assert "built-in" in registry.broken()["mlp"]


def test_of_two_with_one_name_the_first_is_kept(install: Install) -> None:
    install("guest_h", THIRD_PARTY.format(name="twin"), "twin = guest_h:TASK")
    install("guest_i", THIRD_PARTY.format(name="twin"), "twin = guest_i:TASK")
    assert type(registry.get("twin")).__module__ == "guest_h"
    assert registry.names().count("twin") == 1


def test_listing_tasks_and_checking_options_loads_no_arrays_and_no_framework() -> None:
    code = """
import json, sys
from swarm.core.options import options
from swarm.tasks import registry
for name in ("charlm", "lenet5", "mlp"):
    task = registry.get(name)
    task.options({"batch_size": "2"})
    list(options(task.spec))
registry.get("charlm").data(None)
registry.get("lenet5").data(None)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "swarm" in loaded
    assert not loaded & {"numpy", "ml_dtypes", "torch", "mlx"}


class Narrow:
    """A task as it was before learners could share a batch."""

    name = "narrow"

    def build(self, *, framework: str, seed: int) -> str:
        return f"{framework} {seed}"


class Wide(Narrow):
    def build(self, *, framework: str, seed: int, batch_size: int | None = None) -> str:
        return f"{framework} {seed} {batch_size}"


class Anything(Narrow):
    def build(self, **how: object) -> str:
        return repr(how)


def test_a_task_that_knows_no_shared_batch_works_without_one() -> None:
    how = {"framework": "torch", "seed": 1}
    assert registry.build(Narrow(), batch_size=None, **how) == "torch 1"  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="task narrow has a batch size of its own"):
        registry.build(Narrow(), batch_size=4, **how)  # type: ignore[arg-type]
    assert registry.build(Wide(), batch_size=None, **how) == "torch 1 None"  # type: ignore[arg-type]
    assert registry.build(Wide(), batch_size=4, **how) == "torch 1 4"  # type: ignore[arg-type]
    assert "'batch_size': 4" in str(registry.build(Anything(), batch_size=4, **how))  # type: ignore[arg-type]
