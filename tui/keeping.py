"""What the feed keeps beside runs: the settings, whom it tells of alarms, and its ear on the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from swarm.api import Settings
from tui.background import Background, in_thread
from tui.messages import CommandEnded, SettingsRead

if TYPE_CHECKING:
    from tui.sources import Api, Near


class Keeping(Background):
    """Arguments as of Feed."""

    def __init__(
        self,
        api: Api,
        *,
        peers: Sequence[str] = (),
        interfaces: Sequence[str] = (),
        notify: Sequence[str] = (),
        wall: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        super().__init__(wall=wall)
        self._api = api
        self._peers, self._interfaces, self._notify_by = tuple(peers), tuple(interfaces), tuple(notify)
        self._settings: Settings | None = None  # None: not read yet
        self._faults: tuple[str, ...] = ()
        self._mute: tuple[str, ...] = ()  # a command that failed, which is said once
        self._near: Near | None = None
        self._hears = False  # whether that was started

    # Called by the app, on its thread.

    def save(self, setting: str, value: object) -> None:
        """Write one setting to the file; what it holds then comes as SettingsRead."""

        async def work() -> None:
            try:
                await in_thread(self._api.save_setting, setting, value)
            finally:
                await self._read_settings(anyhow=True)

        self._command("save", setting, work)

    # On the thread of the loop from here on.

    @property
    def _interval_s(self) -> float:
        """Between two paintings."""
        return (self._settings or Settings()).interval_s

    async def _listen(self) -> None:
        """Tell the network of this machine and hear of others, as the settings have it now."""
        old, self._hears = self._near, False
        if old is not None:
            await self._tried(in_thread(old.close))
        self._near = self._api.Neighbourhood(advertises="watching", peers=self._peers, interfaces=self._interfaces)
        self._hears = await self._tried(self._begun(self._near)) or False

    async def _begun(self, near: Near) -> bool:
        await in_thread(near.start)  # it reads files, and asks the system
        return True

    async def _read_settings(self, *, anyhow: bool = False) -> None:
        """Post them if they are not what they were; `anyhow`: whoever changed one waits for the answer."""
        read = await self._tried(in_thread(self._api.load_settings))
        if read is None:
            return
        before, (settings, faults) = self._settings, read
        news = (settings, faults) != (before, self._faults)
        self._settings, self._faults = settings, faults
        if news or anyhow:
            self._post(SettingsRead(settings, faults))
        if before is None or self._near is None:
            return
        if (settings.discovery, settings.interfaces) != (before.discovery, before.interfaces):
            await self._listen()
        for peer in settings.peers:
            if peer not in before.peers:
                await self._tried(in_thread(self._near.add, peer))

    async def _notify(self, news: str) -> None:
        command = self._notify_by or (self._settings or Settings()).notify
        problem = await in_thread(self._api.notify, command, news) if command else ""
        if problem and command != self._mute:
            self._mute = command
            self._post(CommandEnded("notify", news, problem))
