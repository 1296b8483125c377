"""What the screens have in common: they show snapshots, and paint nothing behind a dialog."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import SystemCommand
from textual.screen import Screen

if TYPE_CHECKING:
    from tui.asked import Question
    from tui.commands import Place
    from tui.messages import Answered
    from tui.preferences import Preferring


class LiveScreen(Screen[None]):
    """Shows snapshots, and nothing behind a dialog."""

    PLACES: ClassVar[tuple[Place, ...]] = ()  # whose keys work here, beside those that work everywhere

    @property
    def ready(self) -> bool:
        """Whether its widgets are there: snapshots come before they are mounted, and while the app closes."""
        return self.is_mounted and self.is_attached and bool(self.children)

    def on_mount(self) -> None:
        cast("Preferring", self.app).rebind(self)

    def on_screen_resume(self) -> None:
        """Back in front: show what has come meanwhile."""
        self.update()

    def update(self) -> None:
        """Show the newest snapshot."""
        raise NotImplementedError

    def answered(self, message: Answered) -> None:
        """The feed has an answer, perhaps to another screen's question, and perhaps while this one is not in front: then
        nothing is painted."""

    def waits_for(self, question: Question) -> bool:
        """Whether this one asked it, has no answer yet, and tells what comes of it."""
        return False

    def commands(self) -> Iterable[SystemCommand]:
        """For the palette, beside its keys."""
        return ()
