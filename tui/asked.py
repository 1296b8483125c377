"""What a screen asks the feed once: a question knows how it is answered, on the feed's thread, and its answer comes as a
message to the screens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from tui.sources import Api


@dataclass(frozen=True)
class Question:
    """Values only. A newer one of its class takes the place of one that has no answer yet."""

    DOES: ClassVar[str] = ""  # what comes of it, as in "could not make the run", if it is more than an answer

    async def answer(self, api: Api) -> object:
        """Raises whatever goes wrong: the screen gets it in words."""
        raise NotImplementedError
