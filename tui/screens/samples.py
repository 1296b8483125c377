"""Samples: what the model wrote at its evaluations, newest first."""

from __future__ import annotations

from typing import ClassVar

from tui import view_samples
from tui.commands import Place, bindings
from tui.screens.reading import ReadingScreen
from tui.view_run import name


class SamplesScreen(ReadingScreen):
    BINDINGS: ClassVar = bindings(Place.SAMPLES)
    PLACES = (Place.SAMPLES,)

    def update(self) -> None:
        shown = self.newest
        if not self.ready or shown is None:
            return
        self.head((("swarm ▸ ", "dim"), (f"{name(shown.state)} ▸ samples", "strong")))
        self.text.title("Samples", "newest first")
        self.show(view_samples.sample_pages(shown.state, width=self.width))
