"""The keys of whatever shows a plot: they change one value, which the app keeps, so that it outlives screens and new data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from tui.screens.lists import ListScreen
from tui.view_curves import after, chosen

if TYPE_CHECKING:
    from tui.app import SwarmApp
    from tui.view_curves import Metric, PlotView


class PlotScreen(ListScreen):
    app: SwarmApp

    def plotted(self) -> tuple[Metric, ...]:
        """What can be drawn here."""
        raise NotImplementedError

    def replot(self) -> None:
        """Draw by the app's view."""
        raise NotImplementedError

    def look(self, view: PlotView) -> None:
        self.app.plot_view = view
        self.replot()

    def commands(self) -> Iterable[SystemCommand]:
        every = self.plotted()
        shown = chosen(every, self.app.plot_view) if every else None
        for metric in every:
            if metric is not shown:
                to = partial(self._draw_metric, metric.key)
                yield SystemCommand(f"plot {metric.name}", f"Draw this run's {metric.name.lower()}.", to)

    def _draw_metric(self, key: str) -> None:
        self.look(replace(self.app.plot_view, metric=key))

    def action_metric(self) -> None:
        if every := self.plotted():
            self.look(after(every, self.app.plot_view))

    def action_axis(self) -> None:
        self.look(self.app.plot_view.turned())

    def action_log_axis(self) -> None:
        self.look(replace(self.app.plot_view, log=not self.app.plot_view.log))

    def action_window(self) -> None:
        self.look(self.app.plot_view.nearer())

    def action_overlay(self) -> None:
        self.look(replace(self.app.plot_view, each=not self.app.plot_view.each))
