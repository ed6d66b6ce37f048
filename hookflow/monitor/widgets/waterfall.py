"""A traced iteration as a waterfall.

Each phase and hook is in the order in which it began, over the time it took.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.strip import Strip

from hookflow.graph.render.timeline import CHAIN_MARK, QUEUED_MARK, THIN_BAR
from hookflow.monitor.iteration_trace import SpanGroup, TracedIteration
from hookflow.monitor.style import Part, row
from hookflow.monitor.widgets.run_header import PHASE_FILLS
from hookflow.monitor.widgets.strip_view import StripView
from hookflow.numbers import format_ms, format_percent
from hookflow.text import cut, fit_name

KIND_LOOKS = {
    **{phase: (fill, phase) for phase, fill in PHASE_FILLS.items()},
    "hook": (PHASE_FILLS["hooks"], "hooks"),
    "background": (PHASE_FILLS["hooks"], "hooks"),
    "wait": ("┄", "dim"),
    "outside": ("▶", "dim"),
}
"""By the kind of a span the character and the style of its bar."""

FIGURES_WIDTH = 16
"""Cells for the duration and the share of a row, with those around them."""

DEVICE_WIDTH = 8
"""Cells for the duration on a device."""

QUARTERS_WIDTH = 40
"""Cells of bars from which on the axis has four marks."""


def row_label(spans: SpanGroup) -> str:
    """Return the name of a row, indented by what it lies in, with how many spans it has."""
    times = ""
    if len(spans.parts) > 1:
        times = f" ×{len(spans.parts)}"
    return f"{'  ' * spans.depth}{spans.label}{times}"


class TraceLayout:
    """Where the columns of a waterfall stand, in so many cells."""

    def __init__(self, traced: TracedIteration, width: int) -> None:
        self.traced = traced
        self.micros = traced.micros or 1.0  # a file may hold anything
        self.width = width
        longest = max((cell_len(row_label(spans)) for spans in traced.rows), default=0)
        self.name_width = min(longest, width * 2 // 5)
        self.has_device = traced.device is not None
        self.mark_width = 0
        if traced.has_lanes:
            self.mark_width = 2
        self.bar_width = width - self.mark_width - self.name_width - FIGURES_WIDTH
        if self.has_device:
            self.bar_width -= DEVICE_WIDTH
        self.bar_width = max(self.bar_width, 1)

    def axis(self, title: str) -> Strip:
        """Return the head: a title or the meaning of the mark, and times.

        The times are at the quarters of the iteration, in ms.
        """
        count = 1
        if self.bar_width >= QUARTERS_WIDTH:
            count = 4
        scale = ""
        for quarter in range(count):
            start = round(self.bar_width * quarter / count)
            mark = f"│{format_ms(self.micros * 1e3 * quarter / count)}"
            scale = f"{scale:<{start}}{mark}"
        device = ""
        if self.has_device:
            device = f"{'device':>{DEVICE_WIDTH}}"
        if not title and self.traced.has_lanes:
            title = f"{CHAIN_MARK} critical chain"
        names_width = self.mark_width + self.name_width
        names = f"{cut(title, names_width):<{names_width}}"
        return row(self.width, (f" {names} {'ms':>5}{device} {'share':>6}  {scale}", "dim"))

    def row(self, spans: SpanGroup) -> Strip:
        """Return the row of some spans: name, milliseconds, share of the iteration, bars."""
        share = ""
        if spans.kind != "outside":
            share = f"{format_percent(spans.total / self.micros)} %"
        device = ""
        if self.has_device:
            if spans.device is None:
                device = "·"
            else:
                device = format_ms(spans.device * 1e3)
            device = f"{device:>{DEVICE_WIDTH}}"
        mark = " " * self.mark_width
        if spans.chain and self.mark_width:
            mark = f"{CHAIN_MARK:<{self.mark_width}}"
        is_phase = spans.kind in PHASE_FILLS
        parts: list[Part] = [
            (f" {mark}", "focus"),
            (fit_name(row_label(spans), self.name_width), "strong" if is_phase else ""),
            f" {format_ms(spans.total * 1e3):>5}{device}",
            (f" {share:>6}  ", "dim"),
            *self._bar(spans),
        ]
        return row(self.width, *parts)

    def _bar(self, spans: SpanGroup) -> list[Part]:
        """Return the bars of a row.

        Where hooks are in background, what is not on the critical chain is dim.
        """
        fill, style = KIND_LOOKS[spans.kind]
        style_off_chain = "dim" if self.traced.has_lanes else style
        cells = [" "] * self.bar_width
        styles = [style_off_chain] * self.bar_width
        for begin, duration in spans.queued:
            where = self._cells_of(begin, duration)
            cells[where] = QUEUED_MARK * (where.stop - where.start)
        for begin, duration in spans.parts:
            where = self._cells_of(begin, duration)
            is_thin = duration * self.bar_width / self.micros < 0.5
            cells[where] = (THIN_BAR if is_thin else fill) * (where.stop - where.start)
        for begin, duration in spans.chain:
            where = self._cells_of(begin, duration)
            styles[where] = [style] * (where.stop - where.start)
        parts: list[Part] = []
        for shown, group in groupby(zip(styles, cells, strict=True), key=itemgetter(0)):
            parts.append(("".join(cell for _, cell in group), shown))
        return parts

    def _cells_of(self, begin: float, duration: float) -> slice:
        """Return the cells of a time, one at least."""
        cells_per_micro = self.bar_width / self.micros
        start = min(int(begin * cells_per_micro), self.bar_width - 1)
        stop = round((begin + duration) * cells_per_micro)
        return slice(start, min(max(stop, start + 1), self.bar_width))


class WaterfallAxis(StripView):
    """The head of the columns, which stays where the rows scroll."""

    DEFAULT_CSS = "WaterfallAxis { height: 1; }"
    traced: TracedIteration | None = None
    title = ""

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        if self.traced is None:
            return []
        return [TraceLayout(self.traced, width).axis(self.title)]


class WaterfallChart(StripView):
    """A row for each name at its place."""

    DEFAULT_CSS = "WaterfallChart { height: auto; }"
    traced: TracedIteration | None = None

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        if self.traced is None:
            return []
        layout = TraceLayout(self.traced, width)
        return [layout.row(spans) for spans in self.traced.rows]


class WaterfallScroll(VerticalScroll, inherit_bindings=False):
    """Scrolls the rows; home and end are left to the page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "up", show=False),
        Binding("down,j", "scroll_down", "down", show=False),
        Binding("pageup", "page_up", "a page up", show=False),
        Binding("pagedown", "page_down", "a page down", show=False),
    ]
    DEFAULT_CSS = "WaterfallScroll { height: 1fr; }"


class Waterfall(Vertical):
    """The axis and the rows of one traced iteration."""

    def compose(self) -> ComposeResult:
        yield WaterfallAxis()
        with WaterfallScroll():
            yield WaterfallChart()

    def show_iteration(self, traced: TracedIteration, title: str = "") -> None:
        """Show a traced iteration, with a title at the head of the names."""
        axis = self.query_one(WaterfallAxis)
        chart = self.query_one(WaterfallChart)
        axis.traced = traced
        axis.title = title
        axis.redraw()
        chart.traced = traced
        chart.styles.height = len(traced.rows)
        chart.redraw()
