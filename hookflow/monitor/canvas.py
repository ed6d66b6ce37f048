"""A widget that shows rows drawn elsewhere and repaints only the cells that changed."""

from __future__ import annotations

from collections.abc import Sequence

from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from hookflow.monitor.paint import row


class Canvas(Widget):
    """The whole screen, row by row."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"

    def __init__(self) -> None:
        super().__init__()
        self._rows: Sequence[Strip] = ()

    def show(self, rows: Sequence[Strip]) -> None:
        before, self._rows = self._rows, rows
        if len(before) != len(rows):
            self.refresh()
            return
        changed = [Region(0, y, self.size.width, 1) for y, strip in enumerate(rows) if strip != before[y]]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        return self._rows[y] if y < len(self._rows) else row(self.size.width)
