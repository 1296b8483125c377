"""A run that asks for a task that is not here: `swarm join` names the package, and stops before anything is fetched."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from swarm.cli import run
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.manifest import FileRef, TaskRef
from swarm.host.identity import machine_name
from tests.integration.handmade import make_mailbox, make_run

RUN = "aaaa1111"
BIG = FileRef(name="rows.jsonl", kind="data", sha256="1" * 64, size_bytes=1 << 30, chunk_bytes=1 << 20, hashes_sha256="2" * 64)


@pytest.mark.process
@pytest.mark.parametrize(("task", "package"), [("digits", "swarm-digits"), ("os", ""), ("swarm.tasks.mlp", "")])
def test_a_task_that_is_not_installed(
    tmp_path: Path,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    task: str,
    package: str,
) -> None:
    location = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", location)
    made = make_run(location, "digits-one", RUN)
    foreign = msgspec.structs.replace(made, task=TaskRef(name=task, package=package), files=(BIG,))
    Path(location, RunKeys(RUN).manifest).write_bytes(encode(foreign, nonce="0" * 32))
    assert run(["join", "digits-one", "--framework", "torch"]) == 1
    said = capsys.readouterr().err
    assert f"no task '{task}' is installed here" in said
    assert ("pip install swarm-digits" in said) == bool(package)
    assert "charlm" in said
    assert "Traceback" not in said
    assert "fetching" not in said
    assert not list(Path(location, f"runs/{RUN}").glob("beats/*"))
    assert run(["status", "digits-one"]) == 0  # as the other machines see it
    assert f"✗ refused  {machine_name()}: no task '{task}' is installed here" in capsys.readouterr().out
