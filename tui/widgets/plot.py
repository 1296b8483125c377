"""The curves of a run: a plot where there is room for one, else bars in two lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.strip import Strip

from tui import plotting
from tui.plotting import Chart
from tui.widgets.toned import Toned

if TYPE_CHECKING:
    from tui.widgets.toned import Line


class PlotPane(Toned):
    """Draws a chart anew only when it, or its own size, is another one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"toned--{tone}" for tone in plotting.TONES}

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.chart = Chart(title="Loss", empty="loss: no round has closed yet")
        self._lines: tuple[Line, ...] = ()
        self._drawn: tuple[Chart, int, int] | None = None

    def show(self, chart: Chart) -> None:
        if chart != self.chart:
            self.chart = chart
            self._retitle()
            self.refresh()

    def on_mount(self) -> None:
        self._retitle()

    def _retitle(self) -> None:
        self.title(self.chart.heading, ", ".join(self.chart.notes))

    def render_line(self, y: int) -> Strip:
        width, height = self.scrollable_content_region.size
        wanted = (self.chart, width, height)
        if self._drawn is None or self._drawn[1:] != wanted[1:] or self._drawn[0] is not self.chart:
            self._drawn = wanted
            self._lines = plotting.lines(self.chart, width, height) if width > 0 and height > 0 else ()
        return self.strip(self._lines[y] if y < len(self._lines) else (), width)
