"""A traced iteration as a waterfall: each phase and hook in the order in which it began, over the time it took."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.strip import Strip

from hookflow.monitor.iteration_trace import SpanGroup, TracedIteration
from hookflow.monitor.style import Part, row
from hookflow.monitor.widgets.run_header import PHASE_FILLS
from hookflow.monitor.widgets.strip_view import StripView
from hookflow.numbers import ms, percent
from hookflow.text import fit_name

KIND_LOOKS = {
    **{phase: (fill, phase) for phase, fill in PHASE_FILLS.items()},
    "hook": (PHASE_FILLS["hooks"], "hooks"),
    "outside": ("▶", "dim"),
}
"""By the kind of a span the character and the style of its bar."""

THIN_MARK = "▏"
"""The character of a span that is shorter than half a cell."""

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
    return f"{'  ' * spans.depth}{spans.name}{times}"


class TraceLayout:
    """Where the columns of a waterfall stand, in so many cells."""

    def __init__(self, traced: TracedIteration, width: int) -> None:
        self.traced = traced
        self.micros = traced.micros or 1.0  # a file may hold anything
        self.width = width
        longest = max((cell_len(row_label(spans)) for spans in traced.rows), default=0)
        self.name_width = min(longest, width * 2 // 5)
        self.has_device = traced.device is not None
        self.bar_width = width - self.name_width - FIGURES_WIDTH
        if self.has_device:
            self.bar_width -= DEVICE_WIDTH
        self.bar_width = max(self.bar_width, 1)

    def axis(self) -> Strip:
        """Return the head: the times at the quarters of the iteration, in milliseconds."""
        count = 1
        if self.bar_width >= QUARTERS_WIDTH:
            count = 4
        scale = ""
        for quarter in range(count):
            start = round(self.bar_width * quarter / count)
            mark = f"│{ms(self.micros * 1e3 * quarter / count)}"
            scale = f"{scale:<{start}}{mark}"
        device = ""
        if self.has_device:
            device = f"{'device':>{DEVICE_WIDTH}}"
        return row(self.width, (f" {'':<{self.name_width}} {'ms':>5}{device} {'share':>6}  {scale}", "dim"))

    def row(self, spans: SpanGroup) -> Strip:
        """Return the row of some spans: name, milliseconds, share of the iteration, bars."""
        share = ""
        if spans.kind != "outside":
            share = f"{percent(spans.total / self.micros)} %"
        device = ""
        if self.has_device:
            if spans.device is None:
                device = "·"
            else:
                device = ms(spans.device * 1e3)
            device = f"{device:>{DEVICE_WIDTH}}"
        is_phase = spans.kind not in ("hook", "outside")
        parts: list[Part] = [
            (f" {fit_name(row_label(spans), self.name_width)}", "strong" if is_phase else ""),
            f" {ms(spans.total * 1e3):>5}{device}",
            (f" {share:>6}  ", "dim"),
            self._bar(spans),
        ]
        return row(self.width, *parts)

    def _bar(self, spans: SpanGroup) -> Part:
        cells_per_micro = self.bar_width / self.micros
        fill, style = KIND_LOOKS[spans.kind]
        cells = [" "] * self.bar_width
        for begin, duration in spans.parts:
            start = min(int(begin * cells_per_micro), self.bar_width - 1)
            stop = round((begin + duration) * cells_per_micro)
            stop = min(max(stop, start + 1), self.bar_width)
            is_thin = duration * cells_per_micro < 0.5
            cells[start:stop] = [THIN_MARK if is_thin else fill] * (stop - start)
        return "".join(cells), style


class WaterfallAxis(StripView):
    """The head of the columns, which stays where the rows scroll."""

    DEFAULT_CSS = "WaterfallAxis { height: 1; }"
    traced: TracedIteration | None = None

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        if self.traced is None:
            return []
        return [TraceLayout(self.traced, width).axis()]


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

    def show_iteration(self, traced: TracedIteration) -> None:
        """Show a traced iteration."""
        axis = self.query_one(WaterfallAxis)
        chart = self.query_one(WaterfallChart)
        axis.traced = traced
        axis.redraw()
        chart.traced = traced
        chart.styles.height = len(traced.rows)
        chart.redraw()
