"""The curves of loss and accuracy: a plot where there is room for one, else a bar chart of two lines.

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
    """Losses, and a classifier's accuracies, by round or iteration, oldest first."""

    train: tuple[tuple[int, float], ...] = ()
    validation: tuple[tuple[int, float], ...] = ()
    accuracy: tuple[tuple[int, float], ...] = ()
    empty: str = "loss: no round has closed yet"  # what is said while there is none


class LossPane(Container, can_focus=True):
    COMPONENT_CLASSES: ClassVar[set[str]] = {f"toned--{tone}" for tone in TONES}

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._curves = Curves()
        self._plot: PlotWidget | None = None
        self._mounting = False
        self._drawn: tuple[Curves, int, str, bool] | None = None
        self._losses = False  # shown although accuracies are known

    def compose(self) -> ComposeResult:
        yield Words(id="bars")

    def on_mount(self) -> None:
        self.border_title = "Loss"
        self.app.theme_changed_signal.subscribe(self, lambda _: self.call_after_refresh(self._draw))

    def show(self, curves: Curves) -> None:
        if curves != self._curves:
            self._curves = curves
            self._draw()

    @property
    def graded(self) -> bool:
        """Whether it shows the accuracy."""
        return bool(self._curves.accuracy) and not self._losses

    @property
    def can_switch(self) -> bool:
        return bool(self._curves.accuracy)

    def switch(self) -> None:
        """From the accuracy to the losses, and back."""
        self._losses = not self._losses
        self._draw()

    @property
    def _shown(self) -> tuple[tuple[int, float], ...]:
        return self._curves.accuracy if self.graded else self._curves.train + self._curves.validation

    def on_resize(self, event: events.Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width, rows = self.size.width, self.size.height
        if not width or not rows:
            return
        curve = rows >= _PLOT_ROWS and len(self._shown) > 1
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
        train, validation = _last(self._curves.train), _last(self._curves.validation)
        if self.graded:
            title = Content(f"Accuracy ⠒⠒ {_last(self._curves.accuracy)}  loss: train {train}  validation {validation}")
        else:
            title = Content(f"Loss  train ⠒⠒ {train}  validation × {validation}")
        if str(self.border_title) != title.markup:
            self.border_title = title

    def _bars(self, width: int, rows: int) -> tuple[tuple[Piece, ...], ...]:
        train = [v for _, v in self._curves.train]
        validation = [v for _, v in self._curves.validation]
        if not train and not validation:
            return (((self._curves.empty, "dim"),),)
        if self.graded:
            right = [v for _, v in self._curves.accuracy]
            label = (f"acc   {text.loss(right[-1])} ", f"loss  {text.loss(next(iter((validation or train)[-1:]), None))} ")
            chart = text.bars(right, max(1, min(width - 12, len(right))), rows=min(rows, 2))
            return tuple(((text.fit(label[n], 12), ""), (line, "good")) for n, line in enumerate(chart))
        label = (
            f"train {text.loss(train[-1] if train else None)} ",
            f"val   {text.loss(validation[-1] if validation else None)} ",
        )
        values = train or validation
        chart = text.bars(values, max(1, min(width - 12, len(values))), rows=min(rows, 2))
        return tuple(((text.fit(label[n], 12), ""), (line, "accent")) for n, line in enumerate(chart))

    def _draw_plot(self, width: int) -> None:
        wanted = (self._curves, width, self.app.theme, self.graded)
        if self._plot is not None and self._drawn != wanted:
            self._drawn = wanted
            self._fill(self._plot)
        elif self._plot is None and not self._mounting:
            self._mounting = True
            self.call_next(self._mount_plot)

    async def _mount_plot(self) -> None:
        """A plot can be filled only once its own children are there."""
        from textual_plot import PlotWidget

        plot = PlotWidget(allow_pan_and_zoom=False)
        plot.can_focus = False
        plot.set_reactive(PlotWidget.margin_top, 0)  # plainly set, they look for children that are not there yet
        plot.set_reactive(PlotWidget.margin_bottom, 1)
        plot.set_reactive(PlotWidget.margin_left, 7)
        await self.mount(plot)
        self._plot = plot
        self._draw()

    def _fill(self, plot: PlotWidget) -> None:
        from textual_plot import HiResMode

        curves, width = self._curves, self.size.width
        points = self._shown
        low, high = min(v for _, v in points), max(v for _, v in points)
        first, last = min(r for r, _ in points), max(r for r, _ in points)
        plot.clear()
        plot.set_xlimits(first, max(last, first + 1))
        plot.set_ylimits(low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1))
        line = curves.accuracy if self.graded else curves.train
        for series, tone in ((line, "good" if self.graded else "accent"), (() if self.graded else curves.validation, "good")):
            most = 2 * max(width, 1) if series is line else _MARKS
            x, y = text.thin([float(r) for r, _ in series], most), text.thin([v for _, v in series], most)
            if x and series is line:
                plot.plot(x, y, line_style=self._color(tone), hires_mode=HiResMode.BRAILLE)
            elif x:
                plot.scatter(x, y, marker="×", marker_style=self._color(tone))

    def _color(self, tone: str) -> str:
        color = self.get_component_rich_style(f"toned--{tone}").color
        return color.name if color is not None else "default"


def _last(series: tuple[tuple[int, float], ...]) -> str:
    return text.loss(series[-1][1] if series else None)
