from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from swarm.core.errors import UsageError
from swarm.learners.select import adapter_for


@pytest.mark.parametrize("model", [None, 3, [], object(), {"w": [1.0]}, np.zeros(3), {"w": np.float32}])
def test_what_has_no_adapter(model: Any) -> None:
    with pytest.raises(UsageError, match=r"no adapter for a \w+\.\w+: pass a torch\.nn\.Module"):
        adapter_for(model)


def test_a_module_of_nobodys_is_no_model() -> None:
    class Module:
        pass

    with pytest.raises(UsageError):
        adapter_for(Module())


def test_a_dict_of_arrays() -> None:
    assert adapter_for({"w": np.zeros(3, np.float32)}).framework == "numpy"
    assert adapter_for({}).framework == "numpy"


def test_subclasses_of_each_framework() -> None:
    torch, nn = pytest.importorskip("torch"), pytest.importorskip("mlx.nn")

    class Torch(torch.nn.Sequential):  # type: ignore[misc, name-defined]
        pass

    class Mlx(nn.Sequential):  # type: ignore[misc, name-defined]
        pass

    assert adapter_for(Torch()).framework == "torch"
    assert adapter_for(Mlx()).framework == "mlx"
    with pytest.raises(UsageError):
        adapter_for(torch.zeros(3))
    with pytest.raises(UsageError):
        adapter_for(Torch)


@pytest.mark.parametrize(("module", "other"), [pytest.param("torch", "mlx.core", marks=pytest.mark.slow), ("mlx", "torch")])
def test_the_other_framework_is_not_imported(module: str, other: str) -> None:
    pytest.importorskip(module)
    code = (
        f"import sys, {module}.nn as nn\n"
        "from swarm.learners.select import adapter_for\n"
        "assert not {'swarm.learners.torch', 'swarm.learners.mlx'} & sys.modules.keys()\n"
        "adapter_for(nn.Linear(2, 2)).schema()\n"
        f"assert {other!r} not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
