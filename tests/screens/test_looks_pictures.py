"""Pictures of each screen in a light theme, without colours and in ASCII; and of what lies over one: help, palette, dialogs.

Look at new ones (snapshot_report.html), then: pytest tests/screens/test_looks_pictures.py --snapshot-update
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.screens.test_snapshots import (
    home_of,
    join_of,
    network_of,
    pytestmark,
    run_of,
    same_colours_everywhere,
    settle,
)

__all__ = ["pytestmark", "same_colours_everywhere"]
LOOKS = ["light", "no-color", "ascii"]
SCREENS = {  # the keys that lead there from Home
    "home": (),
    "run": ("w",),
    "join": ("enter",),
    "network": ("d",),
    "help": ("w", "question_mark"),
    "palette": ("w", "ctrl+p"),
    "quit": ("w", "q"),
}
OVER = {
    "help": ("question_mark",),
    "palette": ("ctrl+p",),
    "quit": ("q",),
    "stop": ("S",),
    "drop": ("x",),
    "rounds": ("plus",),
    "export": ("e",),
    "frozen": ("space", "s", "slash", *"st", "enter"),
    "filtering": ("slash", *"st"),
}


def app_of(fixed: SimpleNamespace, screen: str, *, ascii: bool = False) -> Any:
    run, joining = run_of(fixed, "silent"), join_of(fixed, "faults")
    return fixed.app_over(
        home_of(fixed, "alone" if screen == "join" else "network"),
        run,
        joining=joining,
        network=network_of("full"),
        ascii=ascii,
    )


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("screen", SCREENS)
def test_look(
    fixed: SimpleNamespace, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, screen: str, look: str
) -> None:
    if look == "no-color":
        monkeypatch.setenv("NO_COLOR", "1")
    app = app_of(fixed, screen, ascii=look == "ascii")
    if look == "light":
        app.theme = "textual-light"
    assert snap_compare(app, press=SCREENS[screen], terminal_size=(80, 24), run_before=settle)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("help", (120, 36)),
        ("help", (50, 20)),
        ("palette", (120, 36)),
        ("palette", (50, 20)),
        ("quit", (50, 20)),
        ("stop", (80, 24)),
        ("drop", (50, 20)),
        ("rounds", (80, 24)),
        ("export", (50, 20)),
        ("frozen", (120, 36)),
        ("filtering", (80, 24)),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_over_run(fixed: SimpleNamespace, snap_compare: Callable[..., bool], name: str, size: tuple[int, int]) -> None:
    app = app_of(fixed, "run")
    assert snap_compare(app, press=["w", *OVER[name]], terminal_size=size, run_before=settle)


def test_over_home(fixed: SimpleNamespace, snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(app_of(fixed, "home"), press=["p"], terminal_size=(80, 24), run_before=settle)
