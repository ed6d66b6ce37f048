"""A hook at one point in full.

It shows its last error, what it declares, what it costs, and why it runs there.
"""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from hookflow.events.packing import bounds
from hookflow.events.records import Error
from hookflow.graph.plan import Binding
from hookflow.monitor.bindings import key
from hookflow.monitor.durations import CallTotals
from hookflow.monitor.hook_facts import all_facts
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.style import text_of
from hookflow.monitor.widgets.hook_facts import format_facts
from hookflow.monitor.widgets.hook_trend import HookTrend
from hookflow.monitor.widgets.traceback_view import make_traceback_text
from hookflow.numbers import format_aligned
from hookflow.text import make_printable

FACTS_WIDTH = 76
"""Cells of the facts before their room is known."""

BAR_WIDTH = 40
"""Cells of the longest bar of the histogram."""

EIGHTH_BLOCKS = " ▏▎▍▌▋▊▉"


def error_text(error: Error) -> Text:
    """Return the error of a hook, with its traceback."""
    text = text_of(
        (f"✗ last error, iteration {error['it']:,}: {error['type']}: {error['text']}", "error"),
        "\n",
    )
    frames = make_traceback_text(error["traceback"], error["at"]).whole
    text.append_text(frames)
    text.append("\n")
    text.no_wrap = False
    return text


def histogram_lines(calls: CallTotals) -> list[Text]:
    """Return a bar for each duration that occurred, the shortest first; a gap is a row of dots."""
    bins = sorted((index, count) for index, count in calls.bins.items() if count > 0)
    if not bins:
        return []
    lines = [Text(""), text_of(("duration of a call, number of calls in the attempt", "title"))]
    most = max(count for _, count in bins)
    previous = bins[0][0]
    for index, count in bins:
        if index > previous + 1:
            lines.append(text_of((f"{'⋮':>10}", "dim")))
        eighths = max(round(count / most * BAR_WIDTH * 8), 1)
        bar = "█" * (eighths // 8) + EIGHTH_BLOCKS[eighths % 8]
        lines.append(
            text_of(
                (f" {format_aligned(bounds(index)[0])}  ", "dim"),
                (f"{bar:<{BAR_WIDTH + 1}}", "train"),
                f"{count:>9,}",
            )
        )
        previous = index
    return lines


class HookDetailsScreen(PageScreen):
    """A hook in full."""

    page_name: ClassVar[str] = "hook"
    help_text: ClassVar[str] = (
        "A hook at one point: its last error, its declaration, its times, and why it runs there."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "left_square_bracket",
            "go(-1)",
            "the hook before, in the order of the loop",
            "previous-hook",
            display="[",
        ),
        key(
            "right_square_bracket",
            "go(1)",
            "the next hook, in the order of the loop",
            "next-hook",
            display="]",
        ),
        key("l", "toggle_log", "a logarithmic scale for charts", "log-hook"),
    ]

    DEFAULT_CSS = """
    HookDetailsScreen #details {
        height: 1fr; border: round $border; border-title-color: $foreground; padding: 0 1;
    }
    HookDetailsScreen #details-text { height: auto; width: 1fr; }
    HookDetailsScreen HookTrend { height: 10; }
    """

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(id="details"):
            yield Static(id="details-text", markup=False)
            yield HookTrend()

    @property
    def hook_at_cursor(self) -> Binding | None:
        return self.dashboard.find_picked_binding()

    def show_run(self) -> None:
        binding = self.hook_at_cursor
        box = self.query_one("#details")
        text = self.query_one("#details-text", Static)
        if binding is None:
            box.border_title = "hook"
            text.update("no hooks are known yet")
            return
        store = self.store
        box.border_title = make_printable(f"{binding.hook} @ {binding.point}")
        parts: list[Text] = []
        error = store.state.errors.get((binding.hook, binding.point))
        if error is not None:
            parts.append(error_text(error))
        parts.append(
            format_facts(all_facts(store, binding), text.content_size.width or FACTS_WIDTH)
        )
        parts += histogram_lines(store.state.first.timing(binding.id).totals())
        # Textual fails on Rich's texts where NO_COLOR is set.
        text.update(Content.from_rich_text(Text("\n").join(parts)))
        self.query_one(HookTrend).show_binding(
            store, binding, is_log=self.dashboard.choices.log_scale
        )

    def action_go(self, step: int) -> None:
        """Show the hook before this one, or the next one; round and round."""
        bindings: Sequence[Binding] = self.store.plan.bindings
        binding = self.hook_at_cursor
        if binding is not None:
            self.dashboard.choices.binding_id = (binding.id + step) % len(bindings)
            self.query_one("#details", VerticalScroll).scroll_home(animate=False)
            self.dashboard.show_changes()

    def action_toggle_log(self) -> None:
        self.dashboard.choices.log_scale = not self.dashboard.choices.log_scale
        self.dashboard.show_changes()
