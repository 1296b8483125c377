"""A person's own command gets the news as one argument, and cannot hold anybody up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swarm.host.notify import notify

WRITES = ("-c", "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))")


@pytest.mark.parametrize(
    ("news", "argument"),
    [
        ("run otter is done", "run otter is done"),
        ("$(touch x); `id` && rm 'a' \"b\"", "$(touch x); `id` && rm 'a' \"b\""),
        ("a\x1b]0;mine\x07\x00\nb\u202e", "a·]0;mine···b·"),
    ],
)
def test_the_news_is_one_harmless_argument(tmp_path: Path, news: str, argument: str) -> None:
    assert notify([sys.executable, *WRITES, str(tmp_path / "told"), "swarm"], news) == ""
    assert (tmp_path / "told").read_text() == repr(["swarm", argument])


def test_what_goes_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    assert notify([], "x") == ""
    assert notify([str(tmp_path / "none")], "x").endswith(": No such file or directory")
    assert notify(["a\0b"], "x").endswith("embedded null byte")
    complains = notify([sys.executable, "-c", "import sys; sys.exit('no\\nbus\\x1b[31m')"], "x")
    assert complains.endswith("ended with code 1: bus·[31m")


def test_one_that_does_not_end_is_ended() -> None:
    said = notify([sys.executable, "-c", "import time; time.sleep(600)"], "x", limit_s=0.2)
    assert said.endswith("had not ended after 0.2 s")
