"""Runs beside one another.

It shows curves over each other, what differs, where the time of an iteration went, their graphs.
"""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.strip import Strip
from textual.widgets import Static

from hookflow.events.log import READ_CHUNK_BYTES
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Binding
from hookflow.graph.render.loop import Row, label, make_rows
from hookflow.monitor.bindings import key
from hookflow.monitor.compare import (
    ITERATION_ROW,
    RUN_LETTERS,
    ComparedRun,
    changed_keys,
    compare_plans,
    compute_times,
    find_differences,
    list_metrics,
    names_of,
)
from hookflow.monitor.health import judge
from hookflow.monitor.hook_costs import row_cost
from hookflow.monitor.run_curves import draw_run_curves
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.style import CONDITION_STYLES, RUN_STYLES, Part, text_of
from hookflow.monitor.throughput import Throughput
from hookflow.monitor.widgets.list_table import ListTable
from hookflow.monitor.widgets.strip_view import StripView
from hookflow.numbers import format_aligned, format_factor, format_ms, format_signed, number
from hookflow.text import make_printable

READ_SECONDS = 0.02
"""Seconds of the app's thread that the log of a run gets in a turn."""

NOTABLE_CHANGE = 1.5
"""How many times as long, or as short, a row takes in the last run that is worth a colour."""


class RunCurves(StripView):
    """The curves of one metric of all runs."""

    DEFAULT_CSS = "RunCurves { border: round $border; height: 1fr; min-height: 10; }"

    def __init__(self, sides: Sequence[ComparedRun]) -> None:
        super().__init__()
        self._sides = sides
        self._name = ""

    def show_metric(self, name: str) -> None:
        self._name = name
        self.border_title = f"{make_printable(name)}: {' '.join(RUN_LETTERS[: len(self._sides)])}"
        self.redraw()

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        if not self._name:
            return []
        return draw_run_curves(self._sides, self._name, width, height)


class CompareScreen(PageScreen):
    """Compares runs, the first of which is the baseline."""

    page_name: ClassVar[str] = "compare"
    BINDINGS: ClassVar[list[BindingType]] = [
        key("left_square_bracket", "metric(-1)", "the metric before", "previous", display="["),
        key(
            "right_square_bracket",
            "metric(1)",
            "the next metric",
            "next",
            footer="metric",
            display="]",
        ),
        key(
            "g",
            "toggle_graph",
            "the graphs with the times of each run, and back",
            "compare-graph",
            footer="graphs",
        ),
    ]

    DEFAULT_CSS = """
    CompareScreen #runs-head { height: 1; padding: 0 1; }
    CompareScreen #upper { height: 3fr; min-height: 10; }
    CompareScreen #differences { width: 2fr; border: round $border; }
    CompareScreen RunCurves { width: 3fr; }
    CompareScreen ListTable { height: 2fr; border: round $border; }
    CompareScreen #graph { display: none; height: 1fr; }
    CompareScreen.-graph #graph { display: block; }
    CompareScreen.-graph #upper, CompareScreen.-graph #times { display: none; }
    CompareScreen.-narrow #upper { layout: vertical; height: 4fr; }
    CompareScreen.-narrow #upper > * { width: 1fr; height: 1fr; }
    """

    def __init__(self, runs: Sequence[RunDir]) -> None:
        super().__init__()
        self._sides = [ComparedRun(run) for run in runs]
        self._metric = 0
        self._is_behind = True
        self._has_shown = False

    def compose_body(self) -> ComposeResult:
        yield Static(id="runs-head")
        with Horizontal(id="upper"):
            yield RunCurves(self._sides)
            with VerticalScroll(id="differences"):
                yield Static(id="differing")
        times_table = ListTable(id="times")
        times_table.border_title = "where the time went, ms an iteration"
        yield times_table
        graph_table = ListTable(id="graph")
        graph_table.border_title = "the graphs: medians of the last attempts"
        yield graph_table

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(0.25, self._read_on)
        self.query_one(
            "#differences"
        ).border_title = f"what differs, {' → '.join(RUN_LETTERS[: len(self._sides)])}"
        self.query_one("#times").focus()

    def _read_on(self) -> None:
        """Read on in the logs of the runs.

        They are shown once there is nothing more, or something new.
        """
        before = [side.state.news for side in self._sides]
        behind = [side.live.poll(READ_SECONDS) for side in self._sides]
        was_behind = self._is_behind
        self._is_behind = any(behind)
        if self._is_behind:
            self._show_progress()
        elif was_behind or before != [side.state.news for side in self._sides]:
            self.show_run()

    def _show_progress(self) -> None:
        sizes = [side.live.unread for side in self._sides]
        unread = sum(left for left, _ in sizes)
        whole = sum(size for _, size in sizes)
        if unread > READ_CHUNK_BYTES or not self._has_shown:
            text = f"reading {(whole - unread) / 1e6:.0f} of {whole / 1e6:.0f} MB"
            self.query_one("#runs-head", Static).update(text_of((text, "command")), layout=False)

    def show_run(self) -> None:
        if self._is_behind:
            return
        self._has_shown = True
        names = names_of(self._sides)
        self.query_one("#runs-head", Static).update(text_of(*self._format_runs()), layout=False)
        if names:
            self.query_one(RunCurves).show_metric(names[self._metric % len(names)])
        differing = Text("\n").join(text_of(*line) for line in difference_lines(self._sides))
        self.query_one("#differing", Static).update(differing)
        self._show_times()
        self._show_graph()

    def _format_runs(self) -> list[Part]:
        """Return the letter of each run, how it is, and its best value."""
        parts: list[Part] = []
        for letter, style, side in zip(RUN_LETTERS, RUN_STYLES, self._sides, strict=False):
            health = judge(side.run, side.state, self.store.clock)
            parts += [(letter, style), f" {side.short} "]
            parts.append(
                (
                    f"{health.glyph} {health.condition}",
                    CONDITION_STYLES.get(health.condition, "warn"),
                )
            )
            for name in side.state.monitored:
                best = side.state.metrics.best.get(name)
                if best is not None:
                    parts.append(f" {name} {number(best.value)}")
                    break
            parts.append("   ")
        return parts

    def _show_times(self) -> None:
        table = self.query_one("#times", ListTable)
        letters = RUN_LETTERS[: len(self._sides)]
        table.clear(columns=True)
        table.add_columns("", *letters, "Δ to A", "", "")
        spent = compute_times(self._sides)
        largest = (
            max((abs(each.delta) for each in spent if each.name != ITERATION_ROW), default=0.0)
            or 1.0
        )
        for each in spent:
            is_whole = each.name == ITERATION_ROW
            style = _style_of(each.delta)
            cells = [text_of((each.name, "strong" if is_whole else ""))]
            for ns in each.ns:
                cells.append(_right("–" if ns is None else format_ms(ns), ""))
            cells.append(_right(format_signed(each.delta), style))
            if is_whole:
                length = 0
            else:
                length = round(12 * abs(each.delta) / largest)
            cells.append(text_of(("━" * length, style)))
            cells.append(text_of((each.change, "dim")))
            table.add_row(*cells)

    def _show_graph(self) -> None:
        """Show the loop of the first run with the median of each hook in every run.

        The hooks of the others follow.
        """
        table = self.query_one("#graph", ListTable)
        letters = RUN_LETTERS[: len(self._sides)]
        table.clear(columns=True)
        table.add_columns("the loop", "edges", "hook", *letters, f"{letters[-1]} vs A", "only in")
        drawn = [(each, "") for each in make_rows(self._sides[0].plan)]
        for letter, side in zip(letters[1:], self._sides[1:], strict=True):
            drawn += [
                (each, letter) for each in make_rows(side.plan) if self._is_missing_in_first(each)
            ]
        for each, only_in in drawn:
            durations = [_compute_median_ns(side, each) for side in self._sides]
            cells = [text_of(label(each, each.name)), text_of((each.lanes, "edge"))]
            cells.append(text_of((each.binding.hook if each.binding else "", "strong")))
            cells += [_right("" if ns is None else format_aligned(ns), "") for ns in durations]
            cells.append(_change(durations[0], durations[-1]))
            cells.append(text_of((only_in, "warn")))
            table.add_row(*cells)

    def _is_missing_in_first(self, each: Row) -> bool:
        return each.binding is not None and _same_binding(self._sides[0], each.binding) is None

    # Actions

    def action_metric(self, step: int) -> None:
        self._metric += step
        self.show_run()

    def action_toggle_graph(self) -> None:
        self.toggle_class("-graph")
        shown = "#graph" if self.has_class("-graph") else "#times"
        self.query_one(shown).focus()


def difference_lines(sides: Sequence[ComparedRun]) -> list[list[Part]]:
    """Return what differs: results, keys, hooks, order, and last the environment; a line each."""
    states = [side.state for side in sides]
    results = [compare_plans(sides[0], side) for side in sides[1:]]
    lines = []
    bests: dict[str, list[object]] = {}
    for name in list_metrics(states):
        best_values = [state.metrics.best.get(name) for state in states]
        bests[f"best {name}"] = [
            None if each is None else number(each.value) for each in best_values
        ]
    for name, values in {**bests, **find_differences(changed_keys(results))}.items():
        if len(set(map(str, values))) > 1:
            lines.append(_difference_line(name, values))
    for letter, result in zip(RUN_LETTERS[1:], results, strict=False):
        for name in result.hooks_added:
            lines.append([("+ ", "good"), f"[hooks.{name}] in {letter}"])
        for name in result.hooks_removed:
            lines.append([("− ", "warn"), f"[hooks.{name}] not in {letter}"])
        for reordered in result.order:
            lines.append([f"order at {reordered.point} in {letter}"])
    for name, values in find_differences([side.environment for side in sides]).items():
        lines.append(_difference_line(name, values))
    return lines or [[("nothing: one pipeline, one environment", "dim")]]


def _difference_line(name: str, values: Sequence[object]) -> list[Part]:
    line: list[Part] = [f"{name} "]
    for place, value in enumerate(values):
        if place:
            line.append((" → ", "dim"))
        line.append((_format_value(value), RUN_STYLES[place]))
    return line


def _format_value(value: object) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"
    return str(value)


def _right(text: str, style: str) -> Text:
    cell = text_of((text, style))
    cell.justify = "right"
    return cell


def _style_of(delta: float) -> str:
    if delta > 0:
        return "warn"
    if delta < 0:
        return "good"
    return "dim"


def _same_binding(side: ComparedRun, binding: Binding) -> Binding | None:
    """Return what is in a run what a binding is in the first."""
    for each in side.plan.at(binding.point):
        if (each.hook, each.method, each.half) == (binding.hook, binding.method, binding.half):
            return each
    return None


def _compute_median_ns(side: ComparedRun, each: Row) -> float | None:
    binding = each.binding
    if binding is not None:
        binding = _same_binding(side, binding)
        if binding is None:
            return None
    here = Row(each.kind, each.name, each.within, binding)
    cost = row_cost(side.state, side.plan, Throughput.of(side.state), here, whole_attempt=True)
    if here.kind == "phase":
        return cost.mean
    return cost.median


def _change(before: float | None, after: float | None) -> Text:
    if not before or not after:
        return text_of("")
    ratio = after / before
    style = "dim"
    if ratio >= NOTABLE_CHANGE:
        style = "warn"
    elif ratio <= 1 / NOTABLE_CHANGE:
        style = "good"
    return _right(format_factor(ratio), style)
