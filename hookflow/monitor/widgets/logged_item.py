"""An image, a text or a histogram that was logged."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Static

from hookflow.events.records import Histogram, Media
from hookflow.monitor.charts import format_ticks
from hookflow.monitor.images import half_blocks, read_image
from hookflow.monitor.journal import MediaItem
from hookflow.monitor.style import SPARK_BLOCKS, STYLES, Part, row
from hookflow.monitor.widgets.strip_view import StripView
from hookflow.numbers import format_many
from hookflow.text import ESCAPE_SEQUENCE, make_printable

MIN_TILE_CELLS = 24
"""Cells that an image beside others has at least."""


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """The images to be drawn side by side.

    It has their iterations and files, and the cells that they have together.
    """

    its: tuple[int, ...]
    paths: tuple[Path, ...]
    width: int
    height: int


def draw_images(request: ImageRequest) -> tuple[Strip, ...]:
    """Return the images side by side; above each its iteration, where there are several.

    It takes a while.
    """
    if len(request.paths) == 1:
        return tuple(_draw_image(request.paths[0], request.width, request.height))
    tile = request.width // len(request.paths)
    columns = []
    for it, path in zip(request.its, request.paths, strict=True):
        style = "dim"
        if it == request.its[-1]:
            style = "strong"
        strips = [row(tile, (f"{it:^{tile}}", style)), *_draw_image(path, tile, request.height - 1)]
        while len(strips) < request.height:
            strips.append(row(tile))
        columns.append(strips)
    return tuple(Strip.join(tiles) for tiles in zip(*columns, strict=True))


def _draw_image(path: Path, width: int, height: int) -> list[Strip]:
    """Return an image in the middle of rows of `width` cells, or why it cannot be shown."""
    image = read_image(path)
    if isinstance(image, str):
        return [row(width, (f" {image}", "warn"))]
    if width < 3 or height < 1:
        return []
    drawn = half_blocks(image, width - 2, height)
    left = (width - drawn[0].cell_length) // 2
    strips = []
    for strip in drawn:
        strips.append(Strip.join([row(left), strip]).adjust_cell_length(width, STYLES[""]))
    return strips


class ImageView(StripView):
    """Shows images side by side.

    They are read and drawn in a thread: what was there stays until then.
    """

    class Drawn(Message):
        """A worker has drawn images."""

        def __init__(self, request: ImageRequest, strips: tuple[Strip, ...]) -> None:
            super().__init__()
            self.request = request
            self.strips = strips

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id)
        self._root = Path()
        self._items: tuple[MediaItem, ...] = ()
        self._requested: ImageRequest | None = None
        self._strips: tuple[Strip, ...] = ()

    def show_images(self, root: Path, items: Sequence[MediaItem]) -> None:
        """Show items that are images, oldest first; their files are in the run directory `root`."""
        self._root = root
        self._items = tuple(items)
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        request = self._make_request(width, height)
        if request is not None and request != self._requested:
            self._requested = request
            self.run_worker(
                lambda: self._work(request), thread=True, group="images", exclusive=True
            )
        return self._strips

    def _make_request(self, width: int, height: int) -> ImageRequest | None:
        its = []
        paths = []
        for item in self._items:
            record = item.record
            if record["k"] == "image":
                its.append(record["it"])
                paths.append(self._root / record["path"])
        if not paths:
            return None
        return ImageRequest(tuple(its), tuple(paths), width, height)

    def _work(self, request: ImageRequest) -> None:
        """Draw in a thread, and post what comes of it."""
        self.post_message(self.Drawn(request, draw_images(request)))

    def on_image_view_drawn(self, message: "ImageView.Drawn") -> None:
        if message.request == self._requested:
            self._strips = message.strips
            self.redraw()


class TextView(VerticalScroll):
    """Shows a text in lines as wide as the widget; it scrolls."""

    def compose(self) -> ComposeResult:
        yield Static(id="text", markup=False)

    def show_text(self, text: str) -> None:
        lines = [make_printable(ESCAPE_SEQUENCE.sub("", line)) for line in text.splitlines()]
        self.query_one("#text", Static).update(Text("\n".join(lines)))


COUNT_CELLS = 6
"""Cells for the numbers at the left of a histogram."""

MAX_BAR_CELLS = 6


class HistogramView(StripView):
    """Shows a histogram: a bar for each bin, with three edges.

    They are those of the first and the last bin, and the one in the middle.
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id)
        self._record: Histogram | None = None

    def show_histogram(self, record: Histogram) -> None:
        self._record = record
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        if self._record is None:
            return []
        return draw_histogram(self._record, width, height)


def draw_histogram(record: Histogram, width: int, height: int) -> list[Strip]:
    """Return the rows of a histogram; none where there is no room for it."""
    room = width - 2 - COUNT_CELLS
    if room < 4 or height < 3 or not record["counts"]:
        return []
    counts = joined_bins(record["counts"], room)
    bar_cells = min(room // len(counts), MAX_BAR_CELLS)
    gap = 0
    if bar_cells > 2:
        gap = 1
    num_rows = height - 2
    most = max([*counts, 1])
    strips = []
    for y in range(num_rows):
        label = ""
        if y == 0:
            label = format_many(most)
        elif y == num_rows - 1:
            label = "0"
        bars = ""
        for count in counts:
            eighths = count / most * num_rows * 8
            bars += bar_part(eighths, num_rows - 1 - y) * (bar_cells - gap) + " " * gap
        strips.append(row(width, (f"{label:>{COUNT_CELLS}} ", "dim"), (bars, "train")))
    across = bar_cells * len(counts)
    indent = " " * (COUNT_CELLS + 1)
    strips.append(row(width, indent, ("─" * across, "rest")))
    strips.append(row(width, indent, (_edge_labels(record["edges"], across), "dim")))
    return strips


def joined_bins(counts: Sequence[int], room: int) -> list[int]:
    """Return the counts, of neighbours together until there is room for each."""
    step = math.ceil(len(counts) / room)
    return [sum(counts[start : start + step]) for start in range(0, len(counts), step)]


def bar_part(eighths: float, rows_below: int) -> str:
    """Return what a bar of so many eighths of a row shows of itself in a row.

    The row is so many rows above the lowest.
    """
    filled = min(round(eighths) - 8 * rows_below, 8)
    if filled <= 0 and eighths > 0 and rows_below == 0:
        filled = 1  # never quite nothing
    if filled > 0:
        return SPARK_BLOCKS[filled - 1]
    return " "


def _edge_labels(edges: Sequence[float], width: int) -> str:
    """Return the first edge, the middle and the last edge below the bars."""
    left, middle, right = format_ticks([edges[0], (edges[0] + edges[-1]) / 2, edges[-1]], 9)
    gap = max(width - len(left) - len(middle) - len(right), 2)
    return f"{left}{' ' * (gap // 2)}{middle}{' ' * (gap - gap // 2)}{right}"


def list_facts(record: Media, extent: str) -> list[Part]:
    """Return the iteration of an item, how much it is, who has logged it, and its caption."""
    parts: list[Part] = [("iteration ", "dim"), (str(record["it"]), "strong")]
    parts.append((f"   {extent}   {record['hook']}", "dim"))
    if record["k"] == "image" and record["caption"]:
        parts.append(f"   {record['caption']}")
    return parts
