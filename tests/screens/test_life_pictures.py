"""Pictures of Settings and of the first start."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import textual
from textual.pilot import Pilot

from swarm.api import Settings
from swarm.api.welcoming import Folder, Machine
from swarm.core.ticks import failed, ok
from tests.screens.test_snapshots import DRAWN_WITH
from tui.app import SwarmApp
from tui.messages import Answered
from tui.screens.welcome import AskFolder, AskMachine

pytestmark = pytest.mark.skipif(
    textual.__version__ != DRAWN_WITH, reason=f"the pictures were drawn with Textual {DRAWN_WITH}: another one draws others"
)
SIZES = [(120, 36), (80, 24), (50, 20)]
IDS = ["120x36", "80x24", "50x20"]
CHOSEN = {"interval_s": 2.0, "notify": ("notify-send", "swarm"), "keymap": {"freeze": "F", "pawse": "p"}, "hours": "22-7"}
FAULT = "~/.config/swarm/settings.toml: nice = 20: Expected `int` <= 19: the default is used"


@pytest.fixture(autouse=True)
def same_surroundings_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)
    monkeypatch.setenv("SWARM_CONFIG", "/home/ann/.config/swarm/settings.toml")


def app_of(fixed: SimpleNamespace, *, ascii: bool = False, welcome: bool = False, **settings: Any) -> SwarmApp:
    feed = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state()))).feed
    chosen = Settings(**{**CHOSEN, **settings})
    return SwarmApp(feed, ascii=ascii, home_folder="/home/ann", settings=chosen, faults=(FAULT,), welcome=welcome)


@pytest.mark.parametrize("size", SIZES, ids=IDS)
def test_settings(fixed: SimpleNamespace, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    assert snap_compare(app_of(fixed), press=["comma", "j"], terminal_size=size)


@pytest.mark.parametrize("way", ["light", "no-color", "ascii"])
def test_settings_in_other_colours(
    fixed: SimpleNamespace, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "no-color":
        monkeypatch.setenv("NO_COLOR", "1")
    app = app_of(fixed, ascii=way == "ascii", theme="textual-light" if way == "light" else "")
    assert snap_compare(app, press=["comma", "j"], terminal_size=(80, 24))


def test_a_setting_that_is_typed(fixed: SimpleNamespace, snap_compare: Callable[..., bool]) -> None:
    keys = ["comma", "slash", *"interval", "enter", "enter", "end", "backspace", *"99"]
    assert snap_compare(app_of(fixed), press=keys, terminal_size=(80, 24))


def looked(machine: Machine, folder: Folder) -> Callable[[Pilot[Any]], Any]:
    async def before(pilot: Pilot[Any]) -> None:
        screen = pilot.app.screen
        screen.answered(Answered(AskMachine(), machine))
        await pilot.pause(0.4)  # somebody pauses in typing
        screen.answered(Answered(AskFolder(folder.path), folder))
        pilot.app.screen.query_one("#folder").focus()
        for _ in range(3):
            await pilot.pause()

    return before


@pytest.mark.parametrize("size", SIZES, ids=IDS)
def test_first_start(fixed: SimpleNamespace, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    machine = Machine(name="studio", frameworks=("torch", "mlx"), shares=("/mnt/nas",), folder="/mnt/nas/swarm")
    folder = Folder(path="/mnt/nas/swarm", ticks=(ok("folder", "a new folder"), ok("file system", "nfs4 at /mnt/nas")))
    assert snap_compare(app_of(fixed, welcome=True), terminal_size=size, run_before=looked(machine, folder))


@pytest.mark.parametrize("way", ["light", "no-color", "ascii"])
def test_first_start_where_nothing_will_do(
    fixed: SimpleNamespace, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "no-color":
        monkeypatch.setenv("NO_COLOR", "1")
    place = "/home/ann/Dropbox/swarm"
    machine = Machine(name="nas", remedy="pip install 'homeswarm[train]'", folder=place, fingerprint="1a2b3c4d")
    remedy = "use a folder that the machines mount by SMB or NFS: copies that are synchronised later let two machines win"
    folder = Folder(path=place, ticks=(failed("file system", f"{place} is in a folder of Dropbox", remedy),))
    app = app_of(fixed, welcome=True, ascii=way == "ascii", theme="textual-light" if way == "light" else "")
    assert snap_compare(app, terminal_size=(80, 24), run_before=looked(machine, folder))
