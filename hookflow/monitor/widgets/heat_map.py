"""The metrics of a group over the iterations as rows of shades: one scale for each kind."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.events import MouseScrollDown, MouseScrollUp
from textual.strip import Strip

from hookflow.monitor.charts import Axis, Scale, render_heat, x_labels
from hookflow.monitor.metric_lines import MetricLine, compute_column_edges
from hookflow.monitor.series import Progress, Series
from hookflow.monitor.style import count_cells, row
from hookflow.monitor.widgets.strip_view import StripView
from hookflow.numbers import format_rough, number_of_4_digits
from hookflow.text import fit_name, make_printable

OUTLIER_FACTOR = 3.0
"""A metric stands out from so many times the median of its own values on."""

MIN_VALUES = 20
"""Values of a metric before it can stand out."""

VALUE_CELLS = 10

NOTE_CELLS = len(" ▲×99.9")


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A metric of a group: its name there, its kind, and its values."""

    metric: str
    label: str
    kind: str
    series: Series


def find_metric_kind(metric: str) -> str:
    """Return what a metric measures, whatever the layer.

    It is "activation/*/mean" of "activation/head/mean". In a name of two parts that is the first
    one: "grad_norm" of "grad_norm/head".
    """
    parts = metric.split("/")
    if len(parts) <= 2:
        return parts[0]
    return f"{parts[0]}/*/{parts[-1]}"


def make_heat_rows(group: str, metrics: Mapping[str, Sequence[MetricLine]]) -> list[HeatRow]:
    """Return the metrics of a group, those of a kind together."""
    rows: list[HeatRow] = []
    for name, lines in metrics.items():
        kind = find_metric_kind(name)
        label = name.removeprefix(group)
        last_part = kind.rpartition("/")[2]
        if "*" in kind and "/" in label:
            label = label.removesuffix(f"/{last_part}")
        rows.append(HeatRow(name, label, kind, lines[0].series))
    kinds = list(dict.fromkeys(each.kind for each in rows))
    return sorted(rows, key=lambda each: kinds.index(each.kind))


def scale_of(rows: Sequence[HeatRow]) -> Scale:
    """Return the scale of all values; logarithmic where they are above zero."""
    low = min(each.series.low for each in rows)
    high = max(each.series.high for each in rows)
    if low > high:  # nothing is finite
        return Scale.of([0.0], log=False)
    return Scale.of([low, high], log=low > 0)


def compute_held_values(series: Series, edges: Sequence[float]) -> list[float | None]:
    """Return the greatest value of each stretch between edges; it holds until the next."""
    values = [None if bucket is None else bucket.high for bucket in series.split_at_edges(edges)]
    known = [place for place, value in enumerate(values) if value is not None]
    if known:
        for place in range(known[0], known[-1]):
            if values[place] is None:
                values[place] = values[place - 1]
    return values


@dataclass(frozen=True, slots=True)
class HeatColumns:
    """The cells of the labels and of the shades."""

    label: int
    shades: int

    @classmethod
    def of(cls, rows: Sequence[HeatRow], width: int) -> "HeatColumns":
        longest = max(len(each.label) for each in rows)
        label = min(longest, max(width // 4, 8))
        return cls(label, max(width - label - 2 - VALUE_CELLS - NOTE_CELLS, 1))


class HeatMap(StripView):
    """Shows a group. The wheel scrolls where it has more rows than there is room."""

    DEFAULT_CSS = """
    HeatMap {
        border: round $border-blurred; border-title-color: $foreground;
        border-subtitle-color: $text-muted;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id)
        self._group = ""
        self._picked = ""
        self._heat_rows: list[HeatRow] = []
        self._axis = Axis(0, 1)
        self._progress = Progress()
        self._cursor: int | None = None
        self._first = 0

    def show_group(
        self,
        group: str,
        metrics: Mapping[str, Sequence[MetricLine]],
        axis: Axis,
        progress: Progress,
        *,
        picked: str = "",
        cursor: int | None = None,
    ) -> None:
        """Draw the metrics of a group, that at the cursor among them.

        `cursor` is the iteration that is read off.
        """
        if (group, picked) != (self._group, self._picked):
            self._first = 0
        self._group = group
        self._picked = picked
        self._heat_rows = make_heat_rows(group, metrics)
        self._axis = axis
        self._progress = progress
        self._cursor = cursor
        self.border_title = Content(make_printable(group))
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        """Return the rows that have room, with the metric at the cursor, and the axis's ends."""
        if not self._heat_rows:
            return []
        columns = HeatColumns.of(self._heat_rows, width)
        edges = compute_column_edges(self._axis, self._progress, columns.shades)
        scales = self._make_scales()
        entries = self._list_entries()
        room = max(height - 1, 1)
        start = self._start(entries, room)
        strips = []
        for entry in entries[start : start + room]:
            if isinstance(entry, HeatRow):
                strips.append(self._row(entry, scales[entry.kind], columns, edges, width))
            else:
                strips.append(row(width, (f" {entry}  {describe_scale(scales[entry])}", "title")))
        if len(entries) > room:
            shown = f"{start + 1}–{min(start + room, len(entries))} of {len(entries)}"
            self.border_subtitle = Content(shown)
        else:
            self.border_subtitle = None
        return [*strips, self._render_axis_row(columns, width)]

    def _make_scales(self) -> dict[str, Scale]:
        """Return the scale of each kind."""
        by_kind: dict[str, list[HeatRow]] = {}
        for each in self._heat_rows:
            by_kind.setdefault(each.kind, []).append(each)
        return {kind: scale_of(rows) for kind, rows in by_kind.items()}

    def _list_entries(self) -> list[HeatRow | str]:
        """Return the rows, those of each kind below its name."""
        entries: list[HeatRow | str] = []
        kind = None
        for each in self._heat_rows:
            if each.kind != kind:
                kind = each.kind
                entries.append(kind)
            entries.append(each)
        return entries

    def _start(self, entries: Sequence[HeatRow | str], room: int) -> int:
        """Return the first entry on the screen: as the wheel says, and with the cursor's metric."""
        last_start = max(len(entries) - room, 0)
        middle = 0
        for place, entry in enumerate(entries):
            if isinstance(entry, HeatRow) and entry.metric == self._picked:
                middle = max(place - room // 2, 0)
        return min(max(middle + self._first, 0), last_start)

    def _row(
        self, each: HeatRow, scale: Scale, columns: HeatColumns, edges: Sequence[float], width: int
    ) -> Strip:
        series = each.series
        value = series.last
        if self._cursor is not None:
            newest = series.at(self._cursor)
            if newest is not None:
                value = newest.mean
            else:
                value = math.nan
        is_outstanding = is_above_median(series, value)
        is_picked = each.metric == self._picked
        shades = render_heat(compute_held_values(series, edges), scale)
        blank = " " * (columns.shades - count_cells(*shades))
        note = ""
        if is_outstanding:
            note = f" ▲×{format_rough(value / series.median)}"
        return row(
            width,
            ("▸" if is_picked else " ", "focus"),
            (f"{fit_name(each.label, columns.label)} ", "dim"),
            *shades,
            blank,
            (
                f"{number_of_4_digits(value):>{VALUE_CELLS}}",
                "" if math.isfinite(value) else "error",
            ),
            (note, "warn"),
            picked=is_picked,
        )

    def _render_axis_row(self, columns: HeatColumns, width: int) -> Strip:
        labels = x_labels(self._axis, columns.shades)
        if self._cursor is None:
            heading = "last"
        else:
            heading = f"it {self._cursor}"
        indent = " " * (columns.label + 2)
        return row(width, indent, (f"{labels:<{columns.shades}}{heading:>{VALUE_CELLS}}", "dim"))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._scroll_by(1)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._scroll_by(-1)

    def _scroll_by(self, step: int) -> None:
        """Scroll; no further than there are rows."""
        room = max(self.content_size.height - 1, 1)
        entries = self._list_entries()
        before = self._start(entries, room)
        self._first += step
        if self._start(entries, room) == before:
            self._first -= step
        self.redraw()


def is_above_median(series: Series, value: float) -> bool:
    """Return whether a value is far above the usual ones of a series that has enough of them."""
    return (
        len(series.its) >= MIN_VALUES
        and series.median > 0
        and value / series.median >= OUTLIER_FACTOR
    )


def describe_scale(scale: Scale) -> str:
    """Return the ends of a scale, each with its shade."""
    ends = f"░ {number_of_4_digits(scale.low)} … █ {number_of_4_digits(scale.high)}"
    if scale.log:
        return f"log {ends}"
    return ends
