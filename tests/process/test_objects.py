"""Runs in an object store, as people have them: commands and examples in processes of their own, against a server on this
machine."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm import launcher
from swarm.core.naming import run_id_of
from swarm.exchange import Exchange
from swarm.mailbox import open_mailbox
from swarm.manifests import read_manifest
from tests.integration.bucket import Bucket, give_credentials, serve
from tests.process.machines import check_mailbox
from tests.process.terminal import FRAMEWORK, TINY, Terminal, terminal
from tests.process.test_examples import learner

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    give_credentials(monkeypatch)
    with serve() as found:
        yield found


@pytest.fixture
def shell(state_dir: Path, bucket: Bucket) -> Iterator[Terminal]:
    with terminal(state_dir) as found:
        yield found


def test_two_learners_over_a_bucket(shell: Terminal, bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.url("people/home")
    made = shell.run("init", url)
    assert made.err[-1].startswith(f"{url} is a mailbox")
    first = shell.start("start", "diloco", *TINY, "--quorum-size", "2", "--name", "one", "--learner-id", "a")
    first.until("round 0: waiting for 1 more learner")
    killed = shell.start("join", "one", *FRAMEWORK, "--learner-id", "b", "--mailbox", url)
    killed.until("round 0 closed")
    [worker] = [job.pid for job in launcher.jobs() if job.learner == "b"]
    os.kill(worker, signal.SIGKILL)
    assert killed.wait() == 1
    second = shell.start("join", "one", *FRAMEWORK, "--learner-id", "b", "--mailbox", url)
    second.until("closed with a, b")
    shell.run("stop", "one")
    assert first.wait() == second.wait() == 0
    assert first.err[-1] == second.err[-1]
    [listed] = shell.objects("runs")
    assert (listed["name"], listed["state"]) == ("one", "stopped")
    [shown] = shell.objects("status", "one")
    rounds = len(shown["history"])  # type: ignore[arg-type]
    assert [r["round"] for r in shown["history"]] == list(range(rounds))  # type: ignore[attr-defined]
    assert {job["mailbox"] for job in shell.objects("jobs", "--all")} == {url}
    assert check_mailbox(url, str(listed["run"])) == rounds >= 2
    file = tmp_path / "model.safetensors"
    shell.run("export", "one", str(file))
    assert file.stat().st_size > 1000
    assert not [key for key in bucket.objects() if "/tmp/" in key]
    assert bucket.uploads() == []
    shell.run("rm", "one", "--yes")
    assert [key.removeprefix("people/home/") for key in bucket.objects()] == ["mailbox/record.json"]


def test_who_may_not_is_told_in_one_line(shell: Terminal, bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.url("people/home")
    shell.run("init", url)
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    refused = shell.start("start", "diloco", *TINY, **nobody)
    assert refused.wait() == 2
    assert "no credentials for it: set AWS_ACCESS_KEY_ID" in refused.err[-1]
    secret = shell.start("join", "--mailbox", url.replace("s3://", "s3://key:hunter2@"))
    assert secret.wait() == 2
    assert "must not hold a secret" in secret.err[-1]
    assert "hunter2" not in str((secret.out, secret.err))


@pytest.mark.slow
def test_the_examples_train_one_model_over_a_bucket(shell: Terminal, bucket: Bucket, tmp_path: Path) -> None:
    """A PyTorch and an MLX learner, six rounds of two fragments, each of which waits for both."""
    url = bucket.url("examples")
    shell.run("init", url)
    programs = [learner(framework, url, tmp_path) for framework in ("torch", "mlx")]
    assert [program.wait() for program in programs] == [0, 0], [program.text for program in programs]
    ends = [re.search(r"done: 6 rounds, \d+ steps here, parameters ([0-9a-f]{64})", program.text) for program in programs]
    assert len({end and end[1] for end in ends} - {None}) == 1, "identical parameters"

    async def check() -> None:
        mailbox = open_mailbox(url)
        await mailbox.open()
        exchange = Exchange(mailbox, await read_manifest(mailbox, run_id_of("mlp")))
        for n in range(6):
            record = await exchange.round(n)
            assert record is not None
            assert sorted(each.learner for each in record.participants) == ["mlx", "torch"]
            assert record.rejected == ()

    asyncio.run(check())
