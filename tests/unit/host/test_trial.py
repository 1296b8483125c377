"""A framework is tried in a process that may do anything: end, lie, hang."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.host.trial import tried, version

CPU = '{"name": "cpu", "what": "2 threads", "memory_bytes": 0, "took_ms": 1.5, "error": ""}'


def run(code: str, *, limit_s: float = 30.0):
    return tried("torch", limit_s=limit_s, command=[sys.executable, "-c", code])


def says(*lines: str) -> str:
    return "".join(f"print({line!r}, flush=True)\n" for line in lines)


def test_what_it_tells_is_taken() -> None:
    found = run(says('{"begins": "cpu"}', CPU, '{"done": true}'))
    assert [(d.name, d.what, d.took_ms, d.error) for d in found.devices] == [("cpu", "2 threads", 1.5, "")]
    assert (found.error, found.hangs_at) == ("", None)


def test_one_that_ends_too_soon_says_its_last_words() -> None:
    found = run("import sys; sys.exit('ImportError: no libcuda.so')")
    assert found.error == "the process ended with code 1: ImportError: no libcuda.so"
    assert found.devices == ()


def test_one_that_crashes_in_a_driver_keeps_what_went_well() -> None:
    found = run(says(CPU, '{"begins": "cuda:0"}') + f"import os; os.kill(os.getpid(), {int(signal.SIGSEGV)})")
    assert [d.name for d in found.devices] == ["cpu"]
    assert "SIGSEGV" in found.error


@pytest.mark.parametrize(("told", "at"), [((), ""), ((CPU, '{"begins": "cuda:0"}'), "cuda:0")])
def test_one_that_hangs_is_ended_and_named(told: tuple[str, ...], at: str) -> None:
    pid = "import os; print('{\"pid\": %d}' % os.getpid(), flush=True)\n"
    found = run(pid + says(*told) + "import signal\nwhile True: signal.pause()", limit_s=1.0)
    assert (found.hangs_at, found.error) == (at, "")


def test_nonsense_is_stepped_over() -> None:
    found = run(
        says("no json", "[1]", '"x"', '{"name": "cpu"}', '{"name": 1, "what": 2, "memory_bytes": "x"}', CPU, '{"done": 1}')
    )
    assert [d.name for d in found.devices] == ["cpu"]
    assert found.error == ""


def test_endless_words_are_bounded() -> None:
    found = run("import sys\nfor _ in range(20000): print('x' * 500)\n" + says('{"done": true}'))
    assert found.error == ""


def test_it_ends_with_whoever_asked() -> None:
    waits = "from swarm.learners import tryout\nimport threading, signal\n"
    waits += "threading.Thread(target=tryout._end_with_input, daemon=True).start()\nwhile True: signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 1


def test_a_command_that_is_not_there() -> None:
    assert "cannot be started" in tried("torch", limit_s=1.0, command=["/nowhere/python"]).error


def test_versions() -> None:
    assert version("msgspec")
    assert version("no-such-package-at-all") == ""
