"""A widget that draws its own rows.

It is for charts, the graph and the header, which Textual has no widget for.
"""

from collections.abc import Sequence

from textual.events import Resize
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from hookflow.monitor.style import row


def make_selectable(widget: Widget, strip: Strip, y: int) -> Strip:
    """Return row `y` of a widget as one whose text can be selected.

    It has the style of what is selected of it.
    """
    selection = widget.text_selection
    span = None
    if selection is not None:
        span = selection.get_span(y)
    if span is not None:
        start, end = span
        if end == -1:  # the whole rest of the row
            end = strip.cell_length
        style = widget.screen.get_component_rich_style("screen--selection")
        before, selected, after = strip.divide([start, end, strip.cell_length])
        strip = Strip.join([before, selected.apply_style(style), after])
    return strip.apply_offsets(0, y)


class StripView(Widget):
    """Shows rows as wide as itself, and repaints only those that have changed.

    Its text can be selected. A subclass implements `draw`. `redraw` calls it; a change of size does
    so, too.
    """

    DEFAULT_CSS = "StripView { width: 1fr; height: 1fr; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id, classes=classes)
        self._rows: Sequence[Strip] = ()

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        """Return at most `height` rows of `width` cells."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw again, and repaint what differs."""
        width, height = self.content_size
        if width <= 0 or height <= 0:
            return
        before = self._rows
        self._rows = list(self.draw(width, height))[:height]
        if len(before) != len(self._rows):
            self.refresh()
            return
        changed = [
            y for y, (old, new) in enumerate(zip(before, self._rows, strict=True)) if old != new
        ]
        for y in changed:
            self.refresh(Region(0, y, width, 1).translate(self.content_offset))

    def get_line_filters(self) -> list[LineFilter]:
        """Return the filters of a row without the one that converts ANSI colours.

        The themes have none of these colours.
        """
        return [
            each for each in super().get_line_filters() if not isinstance(each, ANSIToTruecolor)
        ]

    def on_resize(self, event: Resize) -> None:
        self.redraw()

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        if y < len(self._rows):
            strip = self._rows[y]
        else:
            strip = row(width)
        return make_selectable(self, strip, y)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text and what ends it."""
        text = "\n".join(strip.text.rstrip() for strip in self._rows)
        return selection.extract(text), "\n"
