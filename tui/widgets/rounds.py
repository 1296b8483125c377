"""The rounds: the open one, then the closed ones, newest first; all in one line where there is only one. Of a data-parallel
job its generations."""

from __future__ import annotations

from tui import view_ranks, view_rounds
from tui.messages import RunShown
from tui.widgets.toned import Lines


class RoundsPane(Lines):
    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._value: RunShown | None = None

    def on_mount(self) -> None:
        self.title("Rounds")

    def show_run(self, shown: RunShown) -> None:
        self._value = shown
        self._fill()

    def on_resize(self) -> None:
        super().on_resize()
        self._fill()

    def _fill(self) -> None:
        if self._value is None:
            return
        region = self.scrollable_content_region
        if view_ranks.parallel(self._value.state):
            self.title("Generations")
            self.show(view_ranks.generation_lines(self._value, brief=region.height <= 1))
        elif region.height <= 1:
            self.show((view_rounds.rounds_summary(self._value),))
        else:
            closed = view_rounds.closed_round_lines(self._value.state, width=region.width)
            self.show((view_rounds.open_round_line(self._value), *closed))
