"""The folder mailbox among real processes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swarm.mailbox.folder import FolderMailbox

pytestmark = pytest.mark.process
HERE = Path(__file__).parent


def load_race():
    spec = importlib.util.spec_from_file_location("race", HERE / "race.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(script: str, *args: str) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, str(HERE / script), *args]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("keys", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_of_racing_processes_exactly_one_wins_and_no_reader_sees_anything_torn(tmp_path, keys):
    process = start("race.py", str(tmp_path), "--writers", "8", "--keys", str(keys))
    result = json.loads(process.communicate()[0])
    assert result["violations"] == []
    assert process.returncode == 0
    assert sum(result["wins"]) == keys


def test_the_race_tells_a_violation(tmp_path):
    """A race that cannot fail proves nothing: with a create that is not exclusive it does."""
    script = tmp_path / "broken_race.py"
    text = (HERE / "race.py").read_text()
    broken = """
import os
from swarm.mailbox.folder_write import FolderFiles
def _publish_record(self, staged, folder, record):
    self._make_folders(os.path.dirname(folder))
    if not os.path.exists(self.path(folder)):
        os.mkdir(self.path(folder))
    os.replace(f"{staged.path}/record.json", self.path(folder) + "/record.json")
    return self._look(f"{folder}/record.json") == record
FolderFiles._publish_record = _publish_record
"""
    script.write_text(text.replace("\nKEYS = ", f"{broken}\nKEYS = ", 1))
    process = start(str(script), str(tmp_path), "--writers", "6", "--keys", "25", "--readers", "1")
    result = json.loads(process.communicate()[0])
    assert process.returncode == 1
    assert any("winners" in text or "read" in text or "changed" in text for text in result["violations"])


def test_ctrl_c_ends_a_process_all_of_whose_calls_hang():
    process = start("hang.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "READY\n"
    sent_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(timeout=30) == 130
        assert time.monotonic() - sent_s < 3
    finally:
        process.kill()


def test_writers_killed_at_any_moment_leave_nothing_torn_and_hold_up_nobody(tmp_path):
    race = load_race()
    asyncio.run(FolderMailbox.init(tmp_path / "share"))
    for kill in range(8):
        process = start("race.py", str(tmp_path / "share"), "--role", "write", str(kill), "--keys", "1000")
        process.stdin.write("go\n" * 1000)
        process.stdin.flush()
        for _ in range(3 + kill):
            assert process.stdout.readline() == "ready\n"
        time.sleep(0.003 * kill)  # somewhere in the midst of a key
        process.kill()
        process.communicate()
        asyncio.run(check(race, tmp_path / "share", f"{kill}"))


async def check(race, path: Path, heir: str) -> None:
    mailbox = FolderMailbox(path)
    await mailbox.open()
    for key in await mailbox.list("runs/race/"):
        data = await mailbox.read(key)
        assert data is not None
        if key.endswith("record.json"):
            assert race.whole(data)
        elif "/beats/" in key:
            writer, name = key.split("/")[-2:]
            assert data == race.blob(int(writer[1:]), int(name[5:15]))
    # Whatever the dead one was at, another does.
    key = race.KEYS.claim(0, int(heir))
    assert await mailbox.create(key, race.bid(0, 0)) is True
    assert await mailbox.sweep(0) <= 2  # at most what it was writing
    assert [*(path / "tmp").iterdir(), *(path / "trash").iterdir()] == []
