"""The command palette, as Textual has it."""

from __future__ import annotations

import contextlib

from textual.command import CommandPalette


class Palette(CommandPalette):
    def _action_command_list(self, action: str) -> None:
        # On a terminal without a row for it, or before it is laid out, the list has no lines, and Textual looks one up.
        with contextlib.suppress(LookupError):
            super()._action_command_list(action)
