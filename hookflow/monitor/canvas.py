"""A widget that shows rows drawn elsewhere and repaints only the cells that changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from hookflow.monitor.style import row


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
        changed = [
            Region(start, y, end - start, 1)
            for y, (old, new) in enumerate(zip(before, rows, strict=True))
            for start, end in [_difference(old, new)]
            if start < end
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        return self._rows[y] if y < len(self._rows) else row(self.size.width)


def _difference(old: Strip, new: Strip) -> tuple[int, int]:
    """Return the first cell that differs and the one behind the last, to the segment; equal when there is none."""
    segments, others = list(new), list(old)
    start = _common(segments, others)
    if start == new.cell_length:
        return start, start
    return start, new.cell_length - _common(segments[::-1], others[::-1])


def _common(segments: Sequence[Segment], others: Sequence[Segment]) -> int:
    """Return how many cells both begin with."""
    cells = 0
    for segment, other in zip(segments, others, strict=False):
        if segment != other:
            break
        cells += segment.cell_length
    return cells
