from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.tasks.trainables import FRAMEWORKS, TASKS


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch's threads spin while they wait: next to anything else on a small machine, two are far slower than one."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    pytest.importorskip({"torch": "torch", "mlx": "mlx.core"}[request.param])
    return str(request.param)


@pytest.fixture
def both_frameworks() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mlx.core")


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)
