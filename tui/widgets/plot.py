"""The loss curve: a plot where there is room for one, else a bar chart of two lines.

The only place that loads NumPy into the screens' process, through textual-plot, and only once there is a curve to draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.content import Content

from tui import text
from tui.widgets.toned import TONES, Piece, Words

if TYPE_CHECKING:
    from textual_plot import PlotWidget

_PLOT_ROWS = 6  # a plot lower than this shows nothing
_MARKS = 24  # validation marks at most, so that they stay apart


@dataclass(frozen=True)
class Curves:
    """Losses by round, oldest first."""

    train: tuple[tuple[int, float], ...] = ()
    validation: tuple[tuple[int, float], ...] = ()


class LossPane(Container, can_focus=True):
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"toned--{tone}" for tone in TONES}

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._curves = Curves()
        self._plot: PlotWidget | None = None
        self._drawn: tuple[Curves, int, str] | None = None

    def compose(self) -> ComposeResult:
        yield Words(id="bars")

    def on_mount(self) -> None:
        self.border_title = "Loss"
        self.app.theme_changed_signal.subscribe(self, lambda _: self.call_after_refresh(self._draw))

    def show(self, curves: Curves) -> None:
        if curves != self._curves:
            self._curves = curves
            self._draw()

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width, rows = self.size.width, self.size.height
        if not width or not rows:
            return
        curve = rows >= _PLOT_ROWS and len(self._curves.train) + len(self._curves.validation) > 1
        bars = self.query_one("#bars", Words)
        bars.display = not curve
        if self._plot is not None:
            self._plot.display = curve
        self._retitle()
        if curve:
            self._draw_plot(width)
        else:
            bars.show(*self._bars(width, rows))

    def _retitle(self) -> None:
        title = Content(f"Loss  train ⠒⠒ {_last(self._curves.train)}  validation × {_last(self._curves.validation)}")
        if str(self.border_title) != title.markup:
            self.border_title = title

    def _bars(self, width: int, rows: int) -> tuple[tuple[Piece, ...], ...]:
        train = [v for _, v in self._curves.train]
        validation = [v for _, v in self._curves.validation]
        if not train and not validation:
            return ((("loss: no round has closed yet", "dim"),),)
        label = (
            f"train {text.loss(train[-1] if train else None)} ",
            f"val   {text.loss(validation[-1] if validation else None)} ",
        )
        values = train or validation
        chart = text.bars(values, max(1, min(width - 12, len(values))), rows=min(rows, 2))
        return tuple(((text.fit(label[n], 12), ""), (line, "accent")) for n, line in enumerate(chart))

    def _draw_plot(self, width: int) -> None:
        wanted = (self._curves, width, self.app.theme)
        if self._drawn == wanted:
            return
        self._drawn = wanted
        plot = self._plot
        if plot is None:
            from textual_plot import PlotWidget

            plot = self._plot = PlotWidget(allow_pan_and_zoom=False)
            plot.can_focus = False
            plot.set_reactive(PlotWidget.margin_top, 0)  # plainly set, they look for children that are not there yet
            plot.set_reactive(PlotWidget.margin_bottom, 1)
            plot.set_reactive(PlotWidget.margin_left, 7)
            self.mount(plot)
            self.call_after_refresh(self._fill, plot)
        else:
            self._fill(plot)

    def _fill(self, plot: PlotWidget) -> None:
        from textual_plot import HiResMode

        curves, width = self._curves, self.size.width
        points = curves.train + curves.validation
        low, high = min(v for _, v in points), max(v for _, v in points)
        first, last = min(r for r, _ in points), max(r for r, _ in points)
        plot.clear()
        plot.set_xlimits(first, max(last, first + 1))
        plot.set_ylimits(low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1))
        for series, tone in ((curves.train, "accent"), (curves.validation, "good")):
            most = 2 * max(width, 1) if series is curves.train else _MARKS
            x, y = text.thin([float(r) for r, _ in series], most), text.thin([v for _, v in series], most)
            if x and series is curves.train:
                plot.plot(x, y, line_style=self._color(tone), hires_mode=HiResMode.BRAILLE)
            elif x:
                plot.scatter(x, y, marker="×", marker_style=self._color(tone))

    def _color(self, tone: str) -> str:
        color = self.get_component_rich_style(f"toned--{tone}").color
        return color.name if color is not None else "default"


def _last(series: tuple[tuple[int, float], ...]) -> str:
    return text.loss(series[-1][1] if series else None)
