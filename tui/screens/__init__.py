"""The screens. Each is loaded when it is first asked for: the terminal shows something before any is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tui.screens.compare import CompareScreen as CompareScreen
    from tui.screens.home import HomeScreen as HomeScreen
    from tui.screens.join import JoinScreen as JoinScreen
    from tui.screens.log import LogScreen as LogScreen
    from tui.screens.network import NetworkScreen as NetworkScreen
    from tui.screens.new import NewScreen as NewScreen
    from tui.screens.palette import Palette as Palette
    from tui.screens.run import RunScreen as RunScreen
    from tui.screens.settings import SettingsScreen as SettingsScreen
    from tui.screens.welcome import WelcomeScreen as WelcomeScreen

_PLACES = {
    "CompareScreen": "compare",
    "HomeScreen": "home",
    "JoinScreen": "join",
    "LogScreen": "log",
    "NetworkScreen": "network",
    "NewScreen": "new",
    "Palette": "palette",
    "RunScreen": "run",
    "SettingsScreen": "settings",
    "WelcomeScreen": "welcome",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return value
