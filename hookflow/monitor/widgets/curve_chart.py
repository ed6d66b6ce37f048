"""The chart of one metric.

It has its curves over the iterations, with validations, checkpoints and troubles as marks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from textual.content import Content
from textual.strip import Strip

from hookflow.monitor.charts import LABEL_WIDTH, Axis, Curve, Unit, render_chart, render_legend
from hookflow.monitor.metric_lines import (
    SPLIT_SIGNS,
    MetricLine,
    MetricLines,
    end_iterations,
    gather_metrics,
    make_curves,
    make_marks,
)
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.series import Progress
from hookflow.monitor.state import RunState
from hookflow.monitor.style import row
from hookflow.monitor.widgets.strip_view import StripView
from hookflow.numbers import number_of_4_digits
from hookflow.text import make_printable

MIN_ZOOMED = 8
"""Iterations that a zoomed chart shows at least."""


@dataclass(frozen=True, slots=True)
class ChartOptions:
    """How a metric is drawn.

    `smoothing` is the factor of the moving average of the training's line. `unit` is that of the
    x-axis; `zoom` says how often it was halved. `cursor` is the iteration that is read off; None is
    the newest.
    """

    log_y: bool = False
    log_x: bool = False
    outliers: bool = True
    smoothing: float = 0.0
    unit: Unit = "it"
    zoom: int = 0
    cursor: int | None = None


PLAIN_OPTIONS = ChartOptions()


@dataclass(frozen=True, slots=True)
class IterationRange:
    """The iterations that a chart shows, both ends among them."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first


def visible_range(
    state: RunState, lines: Sequence[MetricLine], options: ChartOptions
) -> IterationRange:
    """Return the iterations that a chart of these lines shows; a zoomed one is about the cursor."""
    ends = end_iterations(lines)
    whole = Axis.of(ends, state.it, state.total_iters)
    first = int(whole.first)
    last = int(whole.last)
    size = max((last - first) >> options.zoom, min(MIN_ZOOMED, last - first))
    middle = options.cursor
    if middle is None:
        middle = max(ends, default=last)
    start = min(max(middle - size // 2, first), last - size)
    return IterationRange(start, start + size)


def make_axis(shown: IterationRange, progress: Progress, options: ChartOptions) -> Axis:
    """Return the x-axis of these iterations; a logarithmic one begins above zero."""
    axis = Axis(progress.at(shown.first), progress.at(shown.last), options.unit)
    if not options.log_x:
        return axis
    first = progress.at(max(shown.first, 1))
    if first <= 0.0 or first >= axis.last:
        return axis
    return replace(axis, first=first, log=True)


def can_be_log(lines: MetricLines) -> bool:
    """Return whether all values are above zero."""
    return all(line.series.low > 0 for line in lines)


class CurveChart(StripView):
    """Shows a metric; its title has the name and the newest values.

    `show_metric` says which metric, and how.
    """

    DEFAULT_CSS = """
    CurveChart {
        border: round $border-blurred; border-title-color: $foreground;
        border-subtitle-color: $text-muted;
    }
    CurveChart:focus { border: round $primary; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id, classes=classes)
        self._state: RunState | None = None
        self._lines: MetricLines = ()
        self.metric_name = ""
        self.reason_for_nothing = ""
        self.options = PLAIN_OPTIONS

    def show_metric(
        self, store: RunStore, name: str, options: ChartOptions = PLAIN_OPTIONS
    ) -> None:
        """Draw a metric as it is now; a metric that does not occur leaves the chart empty."""
        self._state = store.state
        self.metric_name = name
        self.options = options
        self._lines = gather_metrics(store.state).get(name, [])
        self.border_title = self._title()
        self.redraw()

    def _title(self) -> Content:
        """Return the name, the newest values, and how the curves are drawn."""
        words = [make_printable(self.metric_name)]
        for line in self._lines:
            words.append(format_newest_value(line))
        words += describe_options(self.options, self._lines)
        return Content("  ".join(words))

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        state = self._state
        if state is None or not self._lines:
            return [row(width, (f" {self.reason_for_nothing}", "dim"))]
        options = self.options
        progress = state.progress(options.unit)
        axis = make_axis(visible_range(state, self._lines, options), progress, options)
        columns = max(2 * (width - LABEL_WIDTH - 2), 1)
        curves = make_curves(self._lines, axis, progress, columns, options.smoothing)
        marks = [mark for mark in make_marks(state, progress) if 0 <= axis.place(mark.x) <= 1]
        words = render_legend(marks)
        if _has_holes(curves):
            words = f"{words}  ✗ not finite".strip()
        self.border_subtitle = Content(words)
        return render_chart(
            curves,
            axis,
            width,
            height,
            log=options.log_y and can_be_log(self._lines),
            outliers=options.outliers,
            marks=marks,
            cursor=None if options.cursor is None else progress.at(options.cursor),
        )


def _has_holes(curves: Sequence[Curve]) -> bool:
    """Return whether a value that is drawn is not finite."""
    for curve in curves:
        for _x, y, _low, _high in curve.points:
            if not math.isfinite(y):
                return True
    return False


def format_newest_value(line: MetricLine) -> str:
    """Return the newest value of a line, with a sign.

    The sign is in front where it is of validations or not finite.
    """
    value = number_of_4_digits(line.series.last)
    if not math.isfinite(line.series.last):
        value = f"✗ {value}"
    if line.split == "val":
        return f"{SPLIT_SIGNS['val']} {value}"
    return value


def describe_options(options: ChartOptions, lines: MetricLines) -> list[str]:
    """Return how a chart differs from a plain one, in words for its title."""
    words = []
    if options.log_y:
        words.append("log" if can_be_log(lines) else "linear: not all above 0")
    if options.log_x:
        words.append("log x")
    if not options.outliers:
        words.append("1st to 99th percentile")
    if options.smoothing:
        words.append(f"ema {options.smoothing}")
    if options.zoom:
        words.append(f"×{2**options.zoom}")
    return words
