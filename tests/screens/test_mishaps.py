"""What nobody foresaw must neither come from a key nor bury the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from textual.command import CommandPalette


async def test_no_key_does_harm_in_a_palette_without_a_row_for_its_list(fixed: SimpleNamespace) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state())))
    async with app.run_test(size=(8, 2)) as pilot:
        for key in ("pageup", "pagedown", "home", "end", "up", "down"):
            await pilot.press("ctrl+p", key, "down", key, *"zq", key, "escape", "escape")
        assert not CommandPalette.is_open(app)


async def test_an_unforeseen_error_is_one_line_and_its_details_a_file(fixed: SimpleNamespace, state_dir: Path) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state())))
    app.error_console = Console(file=io.StringIO(), width=500)

    def breaks() -> None:
        raise KeyError("\x1b]0;mine\x07")

    async def run() -> None:
        async with app.run_test() as pilot:
            app.call_later(breaks)
            await pilot.pause()

    with pytest.raises(KeyError):
        await run()
    app._print_error_renderables()
    printed = app.error_console.file.getvalue()  # type: ignore[attr-defined]
    assert app.return_code == 1
    assert printed.count("\n") == 1
    assert printed.startswith("swarm: KeyError: ")
    assert f"details: {state_dir / 'crash.txt'}" in printed
    assert "in breaks" in (state_dir / "crash.txt").read_text()
