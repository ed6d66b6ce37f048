"""The page Trace.

It has the last traced iterations, each as a waterfall, and what phases and hooks took in all of
them.
"""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.events import Resize
from textual.widgets import Static

from hookflow.events.commands import DEFAULT_TRACED_ITERATIONS
from hookflow.events.records import Trace
from hookflow.events.rundir import run_argument
from hookflow.monitor.bindings import key
from hookflow.monitor.iteration_trace import (
    TracedIteration,
    TracedTotal,
    describe_progress,
    read_trace,
    total_by_hook,
    total_by_phase,
)
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.style import text_of
from hookflow.monitor.widgets.run_header import PHASE_FILLS
from hookflow.monitor.widgets.text_table import TextTable
from hookflow.monitor.widgets.waterfall import Waterfall, WaterfallScroll
from hookflow.numbers import format_count, format_ms, format_percent, out_of
from hookflow.text import cut

BAR_WIDTH = 16
"""Cells of the bar of the largest share."""

NAME_WIDTH = 28
"""The most cells for the name of a hook."""

LARGEST_SHARE = 0.6
"""The share of the page that the waterfall takes at most, where the totals are below it."""


class TotalsTable(TextTable):
    """The times of phases or hooks, the longest first.

    They are of the iteration that is shown, and of the mean of all.
    """

    DEFAULT_CSS = """
    TotalsTable {
        width: 1fr; height: 1fr; overflow-x: hidden; border: round $border;
        border-title-color: $text-muted;
    }
    TotalsTable:focus { border: round $primary; }
    TotalsTable > .datatable--cursor { background: $background; color: $foreground; }
    TotalsTable:focus > .datatable--cursor { background: $block-cursor-background; }
    """

    def __init__(self, title: str, name: str, id: str) -> None:  # noqa: A002  # Textual's name
        # With the renderable's foreground, bars keep their colours below the cursor.
        super().__init__(id=id, cursor_type="row", cursor_foreground_priority="renderable")
        self.border_title = title
        self._name_title = name

    def on_mount(self) -> None:
        self.add_column(self._name_title, key="name")
        self.add_column("   ms", key="ms")
        self.add_column(" mean", key="mean")
        self.add_column(" share", key="share")

    def show_totals(self, totals: Sequence[TracedTotal]) -> None:
        """Show some totals."""
        at_cursor = self.cursor_row
        largest = max((total.share for total in totals), default=0.0) or 1.0
        self.clear()
        for total in totals:
            fill = PHASE_FILLS[total.kind]
            bar = fill * round(total.share / largest * BAR_WIDTH)
            self.add_row(
                text_of((cut(total.name, NAME_WIDTH), "strong")),
                text_of(f"{format_ms(total.micros * 1e3):>5}"),
                text_of(f"{format_ms(total.mean * 1e3):>5}"),
                text_of(f"{format_percent(total.share):>4} % ", (bar, total.kind)),
            )
        self.move_cursor(row=at_cursor)


class TraceScreen(PageScreen):
    """The traced iterations, one at a time."""

    page_name: ClassVar[str] = "trace"
    help_text: ClassVar[str] = (
        "The iterations that were traced last. `ctrl+t` traces the next"
        f" {DEFAULT_TRACED_ITERATIONS}.\n\nA row is a phase or a hook at its point, below what it"
        " lies in; its bar is when it ran. The tables have the time of phases without hooks, and"
        " of hooks without others that they called: in this iteration, and in the mean of all that"
        " were traced; the share is that of the mean.\n\nAn offloaded hook has a row of its own:"
        " `·` while a firing was queued, then when it ran. *since* names an earlier iteration that"
        " queued it. *wait for* is when the training thread waited for it, and the table has that"
        " as its time.\n\n`●` stands before what is on the critical chain, and the rest is dim: to"
        " make the iteration shorter, what is on it has to be faster. Without such hooks that is"
        " the whole training thread, and nothing is marked.\n\nThe file is in the run's directory,"
        " in the format that Perfetto opens."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "left_square_bracket",
            "turn(-1)",
            "the iteration before",
            "earlier-trace",
            footer="before",
            display="[",
        ),
        key(
            "right_square_bracket",
            "turn(1)",
            "the next iteration",
            "later-trace",
            footer="next",
            display="]",
        ),
        key("home", "go_to(0)", "the first traced iteration", "first-trace"),
        key("end", "go_to(-1)", "the last traced iteration", "last-trace"),
    ]

    DEFAULT_CSS = """
    TraceScreen Waterfall { border: round $border; border-title-color: $text-muted; height: 1fr; }
    TraceScreen Waterfall:focus-within { border: round $primary; }
    TraceScreen #totals { height: 1fr; min-height: 5; }
    TraceScreen.-low #totals { display: none; }
    TraceScreen.-low Waterfall { border: none; }
    TraceScreen.-nothing Waterfall, TraceScreen.-nothing #totals { display: none; }
    TraceScreen #trace-note { height: auto; padding: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._record: Trace | None = None
        self._traced: Sequence[TracedIteration] = ()
        self._why_nothing = ""
        self._place = 0
        self._shown: tuple[Trace | None, int] | None = None

    def compose_body(self) -> ComposeResult:
        yield Static("", id="trace-note", markup=False)
        yield Waterfall()
        with Horizontal(id="totals"):
            yield TotalsTable("by phase", "phase", "by-phase")
            yield TotalsTable("by hook", "hook", "by-hook")

    def focus_body(self) -> None:
        self.query_one(WaterfallScroll).focus()

    def show_run(self) -> None:
        self._read_newest()
        self._show_note()
        self.set_class(not self._traced, "-nothing")
        if self._traced and self._shown != (self._record, self._place):
            self._shown = (self._record, self._place)
            self._show_iteration()

    def _read_newest(self) -> None:
        """Read the newest trace, once."""
        traces = self.store.state.traces
        newest = None
        if traces:
            newest = traces[-1]
        if newest == self._record:
            return
        self._record = newest
        self._place = 0
        self._traced = ()
        self._why_nothing = ""
        if newest is None:
            return
        result = read_trace(self.store.current_directory().path / newest["path"])
        if isinstance(result, str):
            self._why_nothing = result
        elif not result:
            self._why_nothing = f"{newest['path']} has no whole iteration"
        else:
            self._traced = result

    def _show_note(self) -> None:
        """Say how far a trace is that was asked for, or why there is nothing."""
        progress = describe_progress(self.store.state, is_over=self.store.health.over)
        note = progress or self._why_nothing
        if not note and not self._traced:
            note = "no iteration is traced yet"
            if self.store.can_act:
                note += f": ctrl+t traces the next {DEFAULT_TRACED_ITERATIONS}"
            elif self.store.state.it:
                run = run_argument(self.store.current_directory())
                note += f": hookflow rerun {run} --at N --trace runs some of its iterations again"
        box = self.query_one("#trace-note", Static)
        box.display = note != ""
        box.update(text_of((note, "command" if progress else "dim")))

    def _show_iteration(self) -> None:
        traced = self._traced[self._place]
        waterfall = self.query_one(Waterfall)
        title = f"iteration {traced.it:,}  {format_ms(traced.micros * 1e3)} ms"
        if traced.device is not None:
            title += f", {format_ms(traced.device * 1e3)} ms on the device"
        waterfall.border_title = title
        waterfall.border_subtitle = out_of(self._place + 1, len(self._traced))
        waterfall.show_iteration(traced, self._short_title(traced))
        self._fit_waterfall()
        count = format_count(len(self._traced), "iteration")
        for name, totals in (
            ("#by-phase", total_by_phase(self._traced, self._place)),
            ("#by-hook", total_by_hook(self._traced, self._place)),
        ):
            table = self.query_one(name, TotalsTable)
            table.border_subtitle = f"mean of {count}"
            table.show_totals(totals)

    def _short_title(self, traced: TracedIteration) -> str:
        """Return the title for the head of the names, where the waterfall has no border for one.

        It is empty elsewhere.
        """
        if not self.has_class("-low"):
            return ""
        return f"it {traced.it:,}  {format_ms(traced.micros * 1e3)} ms"

    def _fit_waterfall(self) -> None:
        """Let the waterfall take as many rows as it has, up to its share of the page."""
        if not self._traced:
            return
        waterfall = self.query_one(Waterfall)
        height = self.query_one("#body").size.height
        if self.has_class("-low"):
            waterfall.styles.height = "1fr"
        else:
            rows = len(self._traced[self._place].rows) + 3
            waterfall.styles.height = min(rows, max(round(height * LARGEST_SHARE), 6))

    def on_resize(self, event: Resize) -> None:
        self._shown = None  # the title stands elsewhere on a low page
        self.call_after_refresh(self.update_run, now=True)

    def action_turn(self, step: int) -> None:
        self._go_to(self._place + step)

    def action_go_to(self, place: int) -> None:
        self._go_to(len(self._traced) - 1 if place < 0 else place)

    def _go_to(self, place: int) -> None:
        if not self._traced:
            self.dashboard.say("no iteration is traced yet")
            return
        self._place = min(max(place, 0), len(self._traced) - 1)
        self.show_run()

    def text_of_row(self) -> str:
        if not self._traced:
            return ""
        return str(self.query_one(Waterfall).border_title)
