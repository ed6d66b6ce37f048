"""The page Metrics: a tree of all metrics, the chart of one, the heat of a group.

Values are read off the chart.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import ActiveBinding, BindingType
from textual.containers import Container, Vertical
from textual.widgets import Static

from hookflow.monitor.bindings import key
from hookflow.monitor.charts import Axis, Unit
from hookflow.monitor.metric_lines import (
    SPLIT_SIGNS,
    MetricLine,
    describe_holes,
    end_iterations,
    gather_metrics,
)
from hookflow.monitor.rerun_process import RerunProcess, make_rerun_command
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.screens.dialogs import Choice, ChoiceDialog
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.screens.rerun import RerunScreen
from hookflow.monitor.series import Progress
from hookflow.monitor.style import Part, text_of
from hookflow.monitor.widgets.curve_chart import (
    MIN_ZOOMED,
    ChartOptions,
    CurveChart,
    IterationRange,
    can_be_log,
    make_axis,
    visible_range,
)
from hookflow.monitor.widgets.heat_map import HeatMap
from hookflow.monitor.widgets.metric_tree import MetricTree, best_value, find_mode
from hookflow.numbers import number_of_4_digits

SMOOTHING_FACTORS = (0.0, 0.6, 0.9, 0.97)
AXIS_UNITS: tuple[Unit, ...] = ("it", "epoch", "time")

CURSOR_STEPS = 100
"""Steps of the cursor from one end of the chart to the other."""

LONG_STEP = 10
"""Steps at once with shift."""

NO_METRICS = "no scalars yet: run.log(name, value) logs them"


@dataclass(slots=True)
class MetricChoices:
    """The choices of the page.

    They are for all charts, but `log_x` and `without_outliers` name metrics.

    `smoothing` is the factor of the moving average; `zoom` says how often the axis was halved;
    `cursor` is the iteration that is read off, None for the newest.
    """

    smoothing: float = 0.0
    unit: Unit = "it"
    zoom: int = 0
    cursor: int | None = None
    is_enlarged: bool = False
    log_x: set[str] = field(default_factory=set)
    without_outliers: set[str] = field(default_factory=set)


class MetricsScreen(PageScreen):
    """All metrics as a tree, with a chart.

    The chart is of the metric at the cursor, or it is the heat of the group there.
    """

    page_name: ClassVar[str] = "metrics"
    can_filter: ClassVar[bool] = True
    help_text: ClassVar[str] = (
        "The chart has the line of the training with the band of its extremes, ◇ for each"
        " validation, ◆ for each checkpoint, ✗ where a value is not finite. Log scales and outliers"
        " are chosen for each metric by itself. A group is shown as heat: of each stretch the"
        " greatest value, on one scale for each kind of metric; ▲×3 says that a value is three"
        " times the median of its own."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "left",
            "read(-1)",
            "read values off the chart before",
            "cursor-back",
            footer="cursor",
            display="←→",
        ),
        key("right", "read(1)", "read values off the chart after", "cursor-on"),
        key("shift+left", "read_far(-1)", "far before", "cursor-far-back"),
        key("shift+right", "read_far(1)", "far after", "cursor-far-on"),
        key(
            "plus,equals_sign",
            "zoom(1)",
            "zoom the chart in",
            "zoom-in",
            footer="zoom",
            display="+-",
        ),
        key("minus", "zoom(-1)", "zoom the chart out", "zoom-out", display="-"),
        key("left_square_bracket", "move(-1)", "to the metric before", "row-before", display="["),
        key("right_square_bracket", "move(1)", "to the metric after", "row-after", display="]"),
        key(
            "z,enter",
            "enlarge",
            "the chart large, and small again",
            "enlarge",
            footer="large",
            display="z",
        ),
        key(
            "s",
            "smooth",
            "smooth the line of the training, more, and not at all",
            "smooth",
            footer="smooth",
        ),
        key("x", "next_unit", "axis in iterations, epochs or seconds", "axis", footer="axis"),
        key(
            "l", "log_y", "logarithmic y-axis of this chart, and linear", "log-scale", footer="log"
        ),
        key("L", "log_x", "logarithmic x-axis of this chart, and linear", "log-axis"),
        key(
            "O",
            "outliers",
            "y-axis from the 1st to the 99th percentile, and all values",
            "outliers",
        ),
        key("f", "fold", "open or close the group", "fold"),
        key(
            "R",
            "rerun",
            "do the iteration at the cursor again, beside its recording (asks first)",
            "rerun",
        ),
    ]

    DEFAULT_CSS = """
    MetricsScreen #explorer { layout: vertical; height: 1fr; }
    MetricsScreen.-wide #explorer { layout: horizontal; }
    MetricsScreen #list {
        border: round $border-blurred; border-title-color: $foreground; height: 2fr; min-height: 7;
    }
    MetricsScreen #list:focus-within { border: round $primary; }
    MetricsScreen #pictures { height: 3fr; }
    MetricsScreen.-medium #list, MetricsScreen.-medium #pictures { height: 1fr; }
    MetricsScreen.-wide #list { width: 2fr; min-width: 58; max-width: 84; height: 1fr; }
    MetricsScreen.-wide #pictures { width: 3fr; height: 1fr; }
    MetricsScreen.-narrow #pictures, MetricsScreen.-low #pictures { display: none; }
    MetricsScreen.-wide.-low #pictures { display: block; }
    MetricsScreen.-enlarged #list { display: none; }
    MetricsScreen.-enlarged #pictures { display: block; width: 1fr; height: 1fr; }
    MetricsScreen #headings { height: 1; padding: 0; }
    MetricsScreen #reading { height: auto; max-height: 5; padding: 0 1; }
    MetricsScreen #empty { padding: 1 2; color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._choices = MetricChoices()
        self._store_shown: RunStore | None = None
        self._rerun: RerunProcess | None = None
        self._offers_log = False

    def compose_body(self) -> ComposeResult:
        yield Static(NO_METRICS, id="empty", markup=False)
        with Container(id="explorer"):
            with Vertical(id="list"):
                yield Static(id="headings")
                yield MetricTree(id="tree")
            with Vertical(id="pictures"):
                yield CurveChart(id="chart")
                yield Static(id="reading")
                yield HeatMap(id="heat")

    # The view

    @property
    def metric_tree(self) -> MetricTree:
        return self.query_one(MetricTree)

    def on_mount(self) -> None:
        super().on_mount()
        self.watch(self.app, "theme", self._show_headings, init=False)

    def show_run(self) -> None:
        store = self.store
        if store is not self._store_shown:
            self._store_shown = store
            self._choices = MetricChoices()
        self._show_tree()
        self._show_pictures()

    def _show_tree(self) -> None:
        tree = self.metric_tree
        pattern = self.filter_text
        tree.show_metrics(self.store.state, pattern)
        has_metrics = tree.num_metrics > 0
        self.query_one("#empty").display = not has_metrics
        self.query_one("#explorer").display = has_metrics
        title = f"metrics: {tree.num_metrics}"
        if pattern:
            title = f"metrics: {tree.num_shown} of {tree.num_metrics}"
        panel = self.query_one("#list")
        panel.border_title = title
        panel.border_subtitle = "no metric matches" if tree.num_shown == 0 else None

    def on_metric_tree_columns_changed(self, event: MetricTree.ColumnsChanged) -> None:
        self._show_headings()

    def _show_headings(self) -> None:
        self.query_one("#headings", Static).update(self.metric_tree.columns.headings())

    def on_tree_node_highlighted(self) -> None:
        self._show_pictures()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_pictures)

    def filter_changed(self, text: str) -> None:
        self._show_tree()
        self._show_pictures()

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """The keys of the page.

        The key of the log scale is not in the footer where the chart can have none.
        """
        active = super().active_bindings
        if self._offers_log:
            return active
        shown = {}
        for keys, each in active.items():
            if each.binding.id == "log-scale":
                each = each._replace(binding=replace(each.binding, show=False))
            shown[keys] = each
        return shown

    def _update_offers(self) -> None:
        """Find out whether the metric at the cursor can have a log scale, or can lose one."""
        name = self._picked_metric
        is_log = name in self.dashboard.choices.log_metrics
        offers_log = name != "" and (is_log or can_be_log(self._list_lines()))
        if offers_log != self._offers_log:
            self._offers_log = offers_log
            self.refresh_bindings()

    def _show_pictures(self) -> None:
        """Draw the chart of the metric at the cursor, and the heat of the group there."""
        self._update_offers()
        row = self.metric_tree.picked
        group = self.metric_tree.group_of_picked()
        chart = self.query_one(CurveChart)
        heat = self.query_one(HeatMap)
        reading = self.query_one("#reading", Static)
        has_metric = row.line is not None
        has_room = self.has_class("-tall") and not self.has_class("-enlarged")
        has_heat = row.is_group or (group.key != "" and has_room)
        chart.display = has_metric
        reading.display = has_metric
        heat.display = has_heat and row.key != ""
        if has_metric:
            chart.show_metric(self.store, row.metrics[0], self._options())
            reading.update(self._format_reading())
        if heat.display:
            heat.styles.height = (
                "1fr"
                if row.is_group
                else min(len(group.metrics) + 4, max(self.size.height // 3, 8))
            )
            metrics = gather_metrics(self.store.state)
            members = {name: metrics[name] for name in group.metrics if name in metrics}
            picked = ""
            if has_metric:
                picked = row.metrics[0]
            cursor = self._choices.cursor
            heat.show_group(
                group.key, members, self._make_axis(), self._progress, picked=picked, cursor=cursor
            )

    # The chart

    def _options(self) -> ChartOptions:
        choices = self._choices
        name = self._picked_metric
        return ChartOptions(
            log_y=name in self.dashboard.choices.log_metrics,
            log_x=name in choices.log_x,
            outliers=name not in choices.without_outliers,
            smoothing=choices.smoothing,
            unit=choices.unit,
            zoom=choices.zoom,
            cursor=choices.cursor,
        )

    @property
    def _picked_metric(self) -> str:
        """The metric at the cursor; empty at a group."""
        row = self.metric_tree.picked
        if row.line is not None:
            return row.metrics[0]
        return ""

    def _list_lines(self) -> list[MetricLine]:
        """Return the lines of the metric at the cursor, or of all metrics of the group there."""
        metrics = gather_metrics(self.store.state)
        lines: list[MetricLine] = []
        for name in self.metric_tree.picked.metrics:
            lines += metrics.get(name, [])
        return lines

    @property
    def _progress(self) -> Progress:
        return self.store.state.progress(self._choices.unit)

    def _range(self) -> IterationRange:
        return visible_range(self.store.state, self._list_lines(), self._options())

    def _make_axis(self) -> Axis:
        return make_axis(self._range(), self._progress, self._options())

    def _format_reading(self) -> Text:
        """Return the values at the cursor, the metric's figures, and where it is not finite."""
        lines = self._list_lines()
        rows = [text_of(*self._values_at_cursor(lines)), text_of(*self._format_figures(lines))]
        for line in lines:
            words = describe_holes(line.series)
            if words:
                rows.append(text_of((f"✗ {line.split}: {words}", "error")))
        return Text("\n").join(rows)

    def _values_at_cursor(self, lines: list[MetricLine]) -> list[Part]:
        choices = self._choices
        it = choices.cursor
        if it is None:
            it = max(end_iterations(lines), default=0)
        parts: list[Part] = [(f"it {it}", "strong")]
        if choices.unit != "it":
            parts.append((f" = {self._make_axis().label(self._progress.at(it))}", "dim"))
        for line in lines:
            parts += value_parts(line, choices.cursor)
        return parts

    def _format_figures(self, lines: list[MetricLine]) -> list[Part]:
        """Return the least, greatest and best value, and how far the newest is from the best."""
        low = min(line.series.low for line in lines)
        high = max(line.series.high for line in lines)
        if low > high:
            return [("no finite value", "dim")]
        parts: list[Part] = [
            ("min ", "dim"),
            number_of_4_digits(low),
            ("  max ", "dim"),
            number_of_4_digits(high),
        ]
        mode = find_mode(self.store.state, self._picked_metric)
        line = lines[-1]  # of both, that of the validations
        series = line.series
        if mode is None or series.low > series.high:
            return parts
        best = best_value(series, mode)
        parts.append((f"  best {SPLIT_SIGNS[line.split]} ", "dim"))
        parts.append((f"{number_of_4_digits(best)} @ {series.best(mode)}", "good"))
        behind = abs(series.last - best)
        if series.last == best:
            parts.append(("  now the best", "good"))
        elif math.isfinite(behind):
            parts.append((f"  now {number_of_4_digits(behind)} behind", "dim"))
        return parts

    # Actions on the chart

    def action_read(self, steps: int) -> None:
        """Move the cursor by hundredths of the chart.

        Beyond the last value it follows the newest again.
        """
        ends = end_iterations(self._list_lines())
        choices = self._choices
        if not ends:
            self.dashboard.say("there are no values to read off")
            return
        if choices.cursor is None and steps > 0:
            self.dashboard.say("this is the newest value")
            return
        if choices.cursor is None:
            at = max(ends)
        else:
            at = choices.cursor
        to = at + steps * max(self._range().size // CURSOR_STEPS, 1)
        choices.cursor = max(to, min(ends)) if to < max(ends) else None
        self._show_pictures()

    def action_read_far(self, direction: int) -> None:
        self.action_read(direction * LONG_STEP)

    def action_zoom(self, step: int) -> None:
        choices = self._choices
        if step > 0 and self._range().size <= MIN_ZOOMED:
            self.dashboard.say("the chart is as near as it gets")
            return
        if step < 0 and choices.zoom == 0:
            self.dashboard.say("the chart shows the whole run")
            return
        choices.zoom += step
        self._show_pictures()

    def action_smooth(self) -> None:
        at = SMOOTHING_FACTORS.index(self._choices.smoothing)
        self._choices.smoothing = SMOOTHING_FACTORS[(at + 1) % len(SMOOTHING_FACTORS)]
        self._show_pictures()

    def action_next_unit(self) -> None:
        state = self.store.state
        choices = self._choices
        units = [
            unit for unit in AXIS_UNITS if unit == "it" or len(state.progress(unit).values) > 1
        ]
        if len(units) == 1:
            self.dashboard.say("neither epochs nor seconds are known yet")
        if choices.unit in units:
            at = units.index(choices.unit)
        else:
            at = -1
        choices.unit = units[(at + 1) % len(units)]
        self._show_pictures()

    def action_log_y(self) -> None:
        self._toggle(
            self.dashboard.choices.log_metrics,
            "the heat of a group is logarithmic where all is above 0",
        )

    def action_log_x(self) -> None:
        self._toggle(self._choices.log_x, "only the chart of a metric has a logarithmic x-axis")

    def action_outliers(self) -> None:
        self._toggle(
            self._choices.without_outliers, "only the chart of a metric can leave out outliers"
        )

    def _toggle(self, names: set[str], why_not: str) -> None:
        """Put the metric at the cursor into a set, or take it out of it.

        Where no metric is at the cursor, a notice says so.
        """
        name = self._picked_metric
        if not name:
            self.dashboard.say(why_not)
            return
        names ^= {name}
        self._show_pictures()

    # Actions on the page

    def action_move(self, step: int) -> None:
        if step < 0:
            self.metric_tree.action_cursor_up()
        else:
            self.metric_tree.action_cursor_down()

    def action_fold(self) -> None:
        self.metric_tree.action_fold()

    def on_metric_tree_chosen(self) -> None:
        self.action_enlarge()

    def action_enlarge(self) -> None:
        """Show the chart alone, or the tree again."""
        is_large = not self.has_class("-enlarged")
        self.set_class(is_large, "-enlarged")
        if is_large:
            self.set_focus(None)
        else:
            self.metric_tree.focus()
        self.call_after_refresh(self._show_pictures)

    def action_back(self) -> None:
        if self.has_class("-enlarged"):
            self.action_enlarge()
        else:
            super().action_back()

    def text_of_row(self) -> str:
        """Return the name, and the values at the cursor of the chart."""
        name = self._picked_metric
        if not name:
            return self.metric_tree.picked.key
        return f"{name}  {self._format_reading().plain}"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave shift and the arrows to the timeline in a replay."""
        if action == "read_far":
            return not self.store.is_replay
        return super().check_action(action, parameters)

    # A rerun

    def action_rerun(self) -> None:
        """Ask whether to do the iteration at the cursor again.

        A viewer who may change nothing gets the command.
        """
        store = self.store
        choices = self._choices
        if not end_iterations(self._list_lines()):
            self.dashboard.say("there are no values to read off")
            return
        it = choices.cursor
        if it is None:
            it = store.state.it  # the newest one at the time of the question
        command = " ".join(make_rerun_command(store.command_name, it))
        if store.readonly:
            self.dashboard.copy(command)
            return
        answers = [
            Choice("esc", "", "no"),
            Choice("y", "run", "here, in a process of its own"),
            Choice("c", "copy", "copy the command"),
        ]

        def handle_answer(answer: str | None) -> None:
            if answer == "copy":
                self.dashboard.copy(command)
            elif answer == "run":
                self._start_rerun(it)

        note = "it is compared with the recording, to the bit"
        self.app.push_screen(
            ChoiceDialog(f"do iteration {it} again?", answers, note=note), handle_answer
        )

    def _start_rerun(self, it: int) -> None:
        """Start a rerun, and show its report; that of one that still runs, if there is one."""
        running = self._rerun
        if running is not None and not running.is_over:
            self.dashboard.say(f"iteration {running.it} is being done again: one rerun at a time")
            self.app.push_screen(RerunScreen(running))
            return
        if running is not None:
            running.remove()
        with self.dashboard.telling("cannot start a rerun"):
            self._rerun = RerunProcess(self.store.current_directory(), it)
            self.app.push_screen(RerunScreen(self._rerun))


def value_parts(line: MetricLine, cursor: int | None) -> list[Part]:
    """Return the newest values of a line up to the cursor.

    These are their mean, the extremes, and the iteration of the last.
    """
    newest = line.series.at(math.inf if cursor is None else cursor)
    if newest is None:
        return []
    if cursor is None:
        value = line.series.last
    else:
        value = newest.mean
    parts: list[Part] = [(f"  {SPLIT_SIGNS[line.split]}", line.split), (f" {line.split}", "dim")]
    parts.append((f" {number_of_4_digits(value)}", "strong" if math.isfinite(value) else "error"))
    if newest.low < newest.high:
        parts.append(
            (f" {number_of_4_digits(newest.low)}…{number_of_4_digits(newest.high)}", "dim")
        )
    parts.append((f" @ {newest.it}", "dim"))
    return parts
