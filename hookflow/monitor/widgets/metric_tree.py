"""The metrics as a tree.

Metrics with the same beginning up to a "/" are a group. A row has the figures of its metric.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.binding import BindingType
from textual.events import Resize
from textual.message import Message
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from hookflow.metric_mode import Mode, read_mode_from_name
from hookflow.monitor.bindings import key
from hookflow.monitor.metric_lines import (
    SPLIT_SIGNS,
    MetricLine,
    draw_sparkline,
    gather_metrics,
    matches,
)
from hookflow.monitor.series import Series, list_chart_names
from hookflow.monitor.state import RunState
from hookflow.monitor.style import Part, text_of
from hookflow.numbers import number_of_4_digits
from hookflow.text import fit_name

MAX_OPEN_GROUP = 6
"""A group of more metrics is closed at first."""

FIGURE_CELLS = 10
"""Cells of a number, with the gap before it."""

MIN_NAME_CELLS, MAX_NAME_CELLS = 16, 36
"""Cells for names, before there are more figures than the newest value."""

MIN_TREND_CELLS, MAX_TREND_CELLS = 8, 20

INDENT_CELLS = 2
"""Cells of a level of the tree, and of the sign of a group."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A row of the tree: a line of a metric, or a group of metrics.

    `key` names the row: that of a group ends with "/", that of the validations beside the training
    with " val". `metrics` are the names in it, one unless it is a group. `line` is None for a
    group.
    """

    key: str
    label: str
    metrics: tuple[str, ...]
    line: MetricLine | None = None
    children: tuple["MetricRow", ...] = ()

    @property
    def is_group(self) -> bool:
        return self.line is None


NO_ROW = MetricRow("", "", ())


def ordered_names(state: RunState, metrics: Mapping[str, object]) -> list[str]:
    """Return the names in the order of the tree.

    The names of groups come last, as they were first logged.
    """
    single = [
        name for name in list_chart_names(state.scalars, state.metrics.by_name) if "/" not in name
    ]
    grouped = [name for name in metrics if "/" in name]
    return [*single, *grouped]


def build_rows(
    metrics: Mapping[str, Sequence[MetricLine]], parent: str = ""
) -> tuple[MetricRow, ...]:
    """Return the rows of metrics whose names begin with `parent`.

    A group of one metric is that metric.
    """
    groups: dict[str, dict[str, Sequence[MetricLine]]] = {}
    for name, lines in metrics.items():
        head, slash, _ = name.removeprefix(parent).partition("/")
        members = groups.setdefault(parent + head + slash, {})
        members[name] = lines
    rows: list[MetricRow] = []
    for path, members in groups.items():
        if len(members) == 1:
            for name, lines in members.items():
                rows += _make_metric_rows(name, name.removeprefix(parent), lines)
        else:
            label = f"{path.removeprefix(parent)} ({len(members)})"
            rows.append(MetricRow(path, label, tuple(members), children=build_rows(members, path)))
    return tuple(rows)


def _make_metric_rows(name: str, label: str, lines: Sequence[MetricLine]) -> list[MetricRow]:
    """Return a row for each line of a metric; the second belongs to the first."""
    first, *others = lines
    rows = [MetricRow(name, label, (name,), first)]
    for line in others:
        rows.append(
            MetricRow(
                f"{name} {line.split}", f"└ {SPLIT_SIGNS[line.split]} {line.split}", (name,), line
            )
        )
    return rows


def _name_cells(row: MetricRow, depth: int = 1) -> int:
    """Return the cells that the longest name in a row and below it takes, with its indent."""
    widths = [INDENT_CELLS * depth + cell_len(row.label)]
    for child in row.children:
        widths.append(_name_cells(child, depth + 1))
    return max(widths)


def find_mode(state: RunState, name: str) -> Mode | None:
    """Return whether less or more of a metric is better; None where it is unknown."""
    return state.monitored.get(name) or read_mode_from_name(name)


def best_value(series: Series, mode: Mode) -> float:
    """Return the least or the greatest of the values that are finite."""
    if mode == "min":
        return series.low
    return series.high


@dataclass(frozen=True, slots=True)
class TreeColumns:
    """Which figures have room beside the names."""

    name: int
    has_best: bool
    has_extremes: bool
    trend: int

    @classmethod
    def of(cls, width: int, longest_name: int) -> "TreeColumns":
        """Return the columns of rows of `width` cells.

        The newest value is always there, and names come first.
        """
        names = min(max(longest_name, MIN_NAME_CELLS), MAX_NAME_CELLS, max(width - FIGURE_CELLS, 4))
        left = width - names - FIGURE_CELLS
        has_best = left >= 2 * FIGURE_CELLS
        if has_best:
            left -= 2 * FIGURE_CELLS
        has_extremes = has_best and left >= 2 * FIGURE_CELLS
        if has_extremes:
            left -= 2 * FIGURE_CELLS
        trend = min(left - INDENT_CELLS, MAX_TREND_CELLS)
        if trend < MIN_TREND_CELLS:
            trend = 0
        else:
            left -= trend + INDENT_CELLS
        return cls(names + left, has_best, has_extremes, trend)

    def headings(self) -> Text:
        """Return the names of the columns."""
        words = ["last"]
        if self.has_best:
            words += ["best", "at"]
        if self.has_extremes:
            words += ["min", "max"]
        text = " " * self.name + "".join(f"{word:>{FIGURE_CELLS}}" for word in words)
        if self.trend:
            text += "  trend"
        return text_of((text, "dim"))


def row_text(row: MetricRow, state: RunState, columns: TreeColumns, indent: int) -> Text:
    """Return a row with its figures, `indent` cells less than the width of the columns."""
    room = max(columns.name - indent, 4)
    if row.line is None:
        return text_of((fit_name(row.label, room), "title"))
    series = row.line.series
    is_finite = math.isfinite(series.last)
    parts: list[Part] = [(fit_name(row.label, room), "")]
    parts.append(
        (f"{number_of_4_digits(series.last):>{FIGURE_CELLS}}", "" if is_finite else "error")
    )
    has_values = series.low <= series.high
    mode = find_mode(state, row.metrics[0])
    if columns.has_best:
        best = ""
        place = ""
        if mode is not None and has_values:
            best = number_of_4_digits(best_value(series, mode))
            star = ""
            if row.line.split == "val":
                star = "★"
            place = f"{star}{series.best(mode)}"
        parts.append(
            (
                f"{best:>{FIGURE_CELLS}}{place:>{FIGURE_CELLS}}",
                "good" if row.line.split == "val" else "dim",
            )
        )
    if columns.has_extremes:
        for value in (series.low, series.high):
            text = "–"
            if has_values:
                text = number_of_4_digits(value)
            parts.append((f"{text:>{FIGURE_CELLS}}", "dim"))
    if columns.trend:
        parts.append((f"  {draw_sparkline(series, columns.trend)}", row.line.split))
    return text_of(*parts)


class MetricTree(Tree[MetricRow], inherit_bindings=False):
    """Shows the metrics of a run. Enter opens a group, and posts `Chosen` for a metric."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("up,k", "cursor_up", "to the metric above", "up"),
        key("down,j", "cursor_down", "to the metric below", "down"),
        key("pageup", "page_up", "a page up", "page-up"),
        key("pagedown", "page_down", "a page down", "page-down"),
        key("home", "scroll_home", "to the first metric", "first"),
        key("end", "scroll_end", "to the last metric", "last"),
        key("enter", "choose", "open or close the group; a metric: its chart large", "open"),
    ]

    DEFAULT_CSS = """
    MetricTree {
        height: 1fr; background: $background; background-tint: $background 0%;
        scrollbar-size: 0 1; scrollbar-gutter: stable;
    }
    MetricTree:focus { background-tint: $background 0%; }
    """

    ICON_NODE = "▸ "
    ICON_NODE_EXPANDED = "▾ "

    class Chosen(Message):
        """Enter was pressed at a metric."""

    class ColumnsChanged(Message):
        """There is room for other figures."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__("metrics", id=id)
        self.show_root = False
        self.show_guides = False
        self.guide_depth = INDENT_CELLS
        self.auto_expand = False
        self.num_metrics = 0
        self.num_shown = 0
        self._state: RunState | None = None
        self._rows: tuple[MetricRow, ...] = ()
        self._is_filtered = False
        self._was_open: dict[str, bool] = {}
        self._columns = TreeColumns.of(40, 0)
        self._longest_name = 0

    @property
    def columns(self) -> TreeColumns:
        """The figures for which there is room."""
        return self._columns

    # The view

    def show_metrics(self, state: RunState, pattern: str = "") -> None:
        """Show the metrics whose names match a pattern; the groups are open while there is one."""
        self._state = state
        metrics = gather_metrics(state)
        names = [name for name in ordered_names(state, metrics) if matches(name, pattern)]
        self.num_metrics = len(metrics)
        self.num_shown = len(names)
        rows = build_rows({name: metrics[name] for name in names})
        if rows != self._rows or self._is_filtered != bool(pattern):
            self._rebuild(rows, is_filtered=bool(pattern))
        self.show_figures()

    def _rebuild(self, rows: tuple[MetricRow, ...], *, is_filtered: bool) -> None:
        """Replace all rows; the cursor stays on its own, and groups stay open or closed."""
        picked = self.picked.key
        if not self._is_filtered:
            self._store_open_groups(self.root)
        self._rows = rows
        self._is_filtered = is_filtered
        self.clear()
        self._add_rows(self.root, rows)
        self._longest_name = max([0, *(_name_cells(row) for row in rows)])
        self._choose_columns()
        self.root.expand()
        self.go_to(picked)

    def _store_open_groups(self, node: TreeNode[MetricRow]) -> None:
        for child in node.children:
            if child.data is not None and child.data.is_group:
                self._was_open[child.data.key] = child.is_expanded
                self._store_open_groups(child)

    def _add_rows(self, parent: TreeNode[MetricRow], rows: Sequence[MetricRow]) -> None:
        for row in rows:
            if row.is_group:
                is_small = len(row.metrics) <= MAX_OPEN_GROUP
                is_open = self._is_filtered or self._was_open.get(row.key, is_small)
                node = parent.add(row.label, row, expand=is_open)
                self._add_rows(node, row.children)
            else:
                parent.add_leaf(row.label, row)

    def show_figures(self) -> None:
        """Write the figures of the rows that are on the screen."""
        if self._state is None:
            return
        first = int(self.scroll_y)
        for y in range(first, first + self.size.height):
            node = self.get_node_at_line(y)
            if node is None:
                return
            if node.data is not None:
                text = row_text(node.data, self._state, self._columns, self._indent(node))
                if text != node.label:
                    node.set_label(text)

    def _indent(self, node: TreeNode[MetricRow]) -> int:
        depth = 0
        while node.parent is not None and node.parent is not self.root:
            node = node.parent
            depth += 1
        return INDENT_CELLS * (depth + 1)

    def on_resize(self, event: Resize) -> None:
        self._choose_columns()
        self.show_figures()

    def _choose_columns(self) -> None:
        columns = TreeColumns.of(self.scrollable_content_region.width, self._longest_name)
        if columns != self._columns:
            self._columns = columns
            self.post_message(self.ColumnsChanged())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.show_figures()

    def on_tree_node_expanded(self) -> None:
        self.call_after_refresh(self.show_figures)

    def on_tree_node_collapsed(self) -> None:
        self.call_after_refresh(self.show_figures)

    def get_label_width(self, node: TreeNode[MetricRow]) -> int:
        """Return what has room: rows are as wide as the widget."""
        return max(self.scrollable_content_region.width - self._indent(node), 1)

    def render_label(self, node: TreeNode[MetricRow], base_style: Style, style: Style) -> Text:
        """Return a row behind the sign of a group; the style of the cursor lies below its inks."""
        sign = " " * INDENT_CELLS
        if node.allow_expand:
            if node.is_expanded:
                sign = self.ICON_NODE_EXPANDED
            else:
                sign = self.ICON_NODE
        icon = Text(sign, style=Style(meta={"toggle": node.allow_expand}))
        if isinstance(node.label, Text):
            label = node.label
        else:
            label = Text(node.label)
        text = Text.assemble(icon, label)
        text.stylize_before(style)
        return text

    # The cursor

    @property
    def picked(self) -> MetricRow:
        """The row at the cursor; one without a name where there is none."""
        node = self.cursor_node
        if node is None or node.data is None:
            return NO_ROW
        return node.data

    def go_to(self, row_key: str) -> None:
        """Move the cursor to a row, and open what it is in.

        It goes to the first row where the row is not there.
        """
        node = self._find(self.root, row_key)
        if node is None:
            self.cursor_line = 0 if self._rows else -1
            return
        parent = node.parent
        while parent is not None:
            parent.expand()
            parent = parent.parent
        self.get_node_at_line(0)  # the tree counts its lines now: else the node is on none yet
        self.move_cursor(node)
        self.scroll_to_line(self.cursor_line, animate=False)

    def _find(self, node: TreeNode[MetricRow], row_key: str) -> TreeNode[MetricRow] | None:
        for child in node.children:
            if child.data is not None and child.data.key == row_key:
                return child
            node_below = self._find(child, row_key)
            if node_below is not None:
                return node_below
        return None

    def group_of_picked(self) -> MetricRow:
        """Return the group at the cursor, or the innermost one with the metric there.

        No group has no name.
        """
        node = self.cursor_node
        while node is not None:
            if node.data is not None and node.data.is_group:
                return node.data
            node = node.parent
        return NO_ROW

    def action_choose(self) -> None:
        if self.picked.is_group:
            self.action_fold()
        else:
            self.post_message(self.Chosen())

    def action_fold(self) -> None:
        """Open or close the group at the cursor, or close the one that the metric there is in."""
        group = self.group_of_picked()
        node = self._find(self.root, group.key)
        if node is None:
            return
        node.toggle()
        self.move_cursor(node)
