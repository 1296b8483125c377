"""Two machines fine-tune a language model together: the commands, in real processes, each machine with its own folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mlx_lm")

from tests.integration.handmade import make_mailbox
from tests.integration.tiny_llama import completions, make_data, make_model
from tests.process.terminal import Terminal, terminal

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
DEVICE = ("--device", "cpu")
OPTIONS = ("-o", "num-layers=-1", "-o", "max-seq-length=64", "-o", "learning-rate=0.01", "-o", "sample-tokens=4")
TEMPO = ("--sync-every", "4", "--quorum-size", "2", "--beat-s", "0.2", "--lease-s", "2", "--rounds", "3")


@pytest.fixture
def swarm(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("SWARM_MAILBOX", make_mailbox(tmp_path / "mailbox"))
    with terminal(state_dir) as found:
        yield found


def test_two_machines_tune_one_model_that_either_writes_with(swarm: Terminal, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    other = make_model(tmp_path / "other", seed=1)
    data = make_data(tmp_path / "data", train=completions(40), valid=completions(8, seed=1))
    second = {f"SWARM_{name}_DIR": str(tmp_path / "second" / name) for name in ("STATE", "CACHE")}

    files = ("--model", str(model), "--data", str(data))
    first = swarm.start("start", "diloco", "--task", "lora", "--name", "tuned", *files, *OPTIONS, *TEMPO, *DEVICE)
    first.until("waiting for 1 more learner")
    wrong = swarm.start("join", "tuned", "--learner-id", "second", "--model", str(other), *DEVICE, **second)
    assert wrong.wait() == 1, str(wrong)
    assert f"{other}/model.safetensors is not the model.safetensors that run tuned was made with" in wrong.err[-1]
    joined = swarm.start("join", "tuned", "--learner-id", "second", "--model", str(model), *DEVICE, **second)
    for command in (first, joined):
        assert command.wait() == 0, str(command)
    assert any("perplexity" in line for line in first.err + joined.err), str(first)

    told = ("generate", "tuned", "--prompt", "the cat", "--max-tokens", "8", *DEVICE)
    missing = swarm.run(*told, code=1).err[-1]
    assert "of run tuned is not on this machine, nor attached to it: pass the base model" in missing
    assert swarm.run(*told, "--model", str(model)).out

    adapters = tmp_path / "adapters"
    swarm.run("export", "tuned", f"{adapters}/")
    assert sorted(path.name for path in adapters.iterdir()) == ["adapter_config.json", "adapters.safetensors"]
