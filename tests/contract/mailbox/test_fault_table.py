from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]


def test_every_test_that_the_table_of_faults_names_is_there() -> None:
    table = (TESTS / "process/faults/README.md").read_text()
    defined = " ".join(re.findall(r"def (test_\w+)", " ".join(path.read_text() for path in TESTS.rglob("test_*.py"))))
    named = re.findall(r"`…?_?((?:test_)?[a-z_0-9]{12,}?)_?…?`", table)
    assert len(named) > 40
    assert [name for name in named if name not in defined] == []
    files = re.findall(r"`(?:tests/)?[a-z/]*(test_\w+\.py)`", table)
    assert {*files} <= {path.name for path in TESTS.rglob("test_*.py")}
