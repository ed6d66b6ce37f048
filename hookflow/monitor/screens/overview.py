"""The page Overview.

It has the curves, the hooks, why the one at the cursor runs where it does, the newest events. The
curves give way to the traceback of a run that failed, to the mistake for which one was refused, and
to the stack of one that stalls.
"""

from typing import ClassVar, get_args

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from hookflow.events.records import Error
from hookflow.monitor.bindings import key
from hookflow.monitor.metric_lines import first_metrics
from hookflow.monitor.screens.hook_page import HOOK_PAGE_KEYS, HookPage
from hookflow.monitor.settings import Panel
from hookflow.monitor.style import text_of
from hookflow.monitor.widgets.curve_chart import ChartOptions, CurveChart
from hookflow.monitor.widgets.hook_reason import HookReason
from hookflow.monitor.widgets.log_tail import LogTail
from hookflow.monitor.widgets.rank_table import RankTable, assess_ranks
from hookflow.monitor.widgets.stack_view import StackView, says_stall
from hookflow.monitor.widgets.traceback_view import TracebackView

OVERVIEW_HELP = """\
The header says whether the training is fine: its loss and trend, the monitored metric and its \
best, the time left.
↑ ↓ go through the hooks, enter opens the one at the cursor, a click at a heading sorts. A drag \
selects text, y copies.
Of a run that failed the traceback stands above the hooks; i shows the machine, the data, the \
ranks.\
"""


class OverviewScreen(HookPage):
    """The first page: is the training fine, and what do the hooks cost?"""

    page_name: ClassVar[str] = "overview"
    help_text: ClassVar[str] = OVERVIEW_HELP

    BINDINGS: ClassVar[list[BindingType]] = [
        *HOOK_PAGE_KEYS,
        key("l", "toggle_log", "a logarithmic scale for charts", "log-hooks"),
        key(
            "H",
            "toggle_panel",
            "hide the curves, then the log, and show them again; remembered",
            "hide-panel",
        ),
    ]

    DEFAULT_CSS = """
    OverviewScreen {
        #curves { height: 35%; min-height: 8; max-height: 18; }
        #curves > CurveChart { width: 1fr; height: 1fr; }
        #second-curve.-without-metric { display: none; }
        #trouble { height: 1fr; min-height: 6; border: round $error; display: none; }
        #trouble > * { display: none; }
        #ranks-box { height: 1; display: none; }
        #ranks-box > RankTable { display: none; height: auto; max-height: 5; }
        #hooks-box { height: 1fr; min-height: 4; border: round $border; }
        HookReason { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        LogTail { height: 2; }

        &.-narrow #second-curve { display: none; }
        &.-several-ranks #ranks-box { display: block; }
        &.-tall {
            #ranks-box { height: auto; border: round $border; }
            #ranks-box > RankTable { display: block; }
            #ranks-box > #rank-verdict { display: none; }
            HookReason { height: 2; text-wrap: wrap; }
            LogTail { height: 12%; min-height: 4; }
        }
        &.-in-trouble {
            #trouble { display: block; }
            #curves { display: none; }
            #hooks-box { height: 40%; }
        }
        &.-failed #trouble > TracebackView { display: block; }
        &.-stalled #trouble { border: round $warning; }
        &.-stalled #trouble > StackView { display: block; }
        &.-low {
            #curves, #ranks-box { display: none; }
            #hooks-box, #trouble { border: none; }
            LogTail { height: 1; }
        }
        &.-in-trouble.-low {
            #hooks-box { height: 3; min-height: 3; }
            HookReason, LogTail { display: none; }
        }
        &.-failed.-medium {
            HookReason, LogTail { display: none; }
        }
        &.-hide-curves #curves { display: none; }
        &.-hide-log LogTail { display: none; }
    }
    """

    def compose_body(self) -> ComposeResult:
        with Horizontal(id="curves"):
            yield CurveChart(id="first-curve")
            yield CurveChart(id="second-curve")
        with Vertical(id="trouble"):
            yield TracebackView()
            yield StackView()
        with Vertical(id="ranks-box"):
            yield Static("", id="rank-verdict", markup=False)
            ranks = RankTable()
            ranks.can_focus = False
            yield ranks
        with Vertical(id="hooks-box"):
            yield from self.compose_hook_views()
        yield HookReason()
        yield LogTail()

    def on_mount(self) -> None:
        super().on_mount()
        self._show_panels()

    # Showing

    def show_run(self) -> None:
        self._show_trouble()
        self._show_curves()
        self._show_ranks()
        self.show_hooks()
        self.query_one(LogTail).show_log(self.store)

    def _show_curves(self) -> None:
        store = self.store
        names = first_metrics(store.state)
        charts = [
            self.query_one("#first-curve", CurveChart),
            self.query_one("#second-curve", CurveChart),
        ]
        for place, chart in enumerate(charts):
            name = ""
            if place < len(names):
                name = names[place]
            options = ChartOptions(log_y=name in self.dashboard.choices.log_metrics)
            chart.show_metric(store, name, options)
        charts[0].reason_for_nothing = "no metric has been logged yet"
        charts[1].set_class(len(names) < 2, "-without-metric")

    def _show_ranks(self) -> None:
        """Show the ranks where there are several, and which of them holds up the others."""
        store = self.store
        self.set_class(store.has_several_ranks, "-several-ranks")
        if not store.has_several_ranks:
            return
        ranks = store.state.ranks
        verdict, _style = assess_ranks(ranks)
        words = f"{ranks.world} ranks: {verdict}"
        self.query_one("#ranks-box").border_title = Content(words)
        self.query_one("#rank-verdict", Static).update(
            text_of(f" {words}", ("  i: a row for each", "dim"))
        )
        table = self.query_one("#ranks-box > RankTable", RankTable)
        table.show_ranks(store)
        table.show_cursor = False
        if ranks.straggler is not None:
            table.move_cursor(row=ranks.straggler.rank)  # which scrolls to it where there are many

    @property
    def failure(self) -> tuple[int, Error] | None:
        """The rank and the error that ended the run; None where no error did."""
        is_over = self.store.state.end is not None or self.store.health.over
        if not is_over:
            return None
        return self.store.state.ranks.first_failure

    @property
    def refusal(self) -> str:
        """The mistake for which the run was refused before its first iteration, as printed.

        The text is empty where there is none.
        """
        state = self.store.state
        if self.failure is not None or state.end is None or state.outcome != "refused":
            return ""
        return state.end["reason"].strip()

    @property
    def has_failed(self) -> bool:
        """Whether an error or a mistake of the user's has ended the run."""
        return self.failure is not None or bool(self.refusal)

    @property
    def explains_trouble(self) -> bool:
        return self.has_failed or says_stall(self.store)

    def _show_trouble(self) -> None:
        """Show what is wrong with the run.

        It is the traceback of a failed run, the mistake of a refused one, or the stack of one that
        stalls.
        """
        store = self.store
        has_failed = self.has_failed
        has_stack = store.health.condition == "stalled" and bool(store.stacks)
        is_stalled = has_stack and not has_failed
        self.set_class(has_failed, "-failed")
        self.set_class(is_stalled, "-stalled")
        self.set_class(has_failed or is_stalled, "-in-trouble")
        if has_failed:
            self._show_failure()
        elif is_stalled:
            self.query_one("#trouble").border_title = "where the training is"
            self.query_one(StackView).show_stacks(store)

    def _show_failure(self) -> None:
        """Show the error or the mistake that has ended the run."""
        box = self.query_one("#trouble")
        view = self.query_one(TracebackView)
        failure = self.failure
        if failure is None:
            box.border_title = "refused"
            view.show_mistake(self.refusal)
            return
        rank, error = failure
        box.border_title = "failed"
        if self.store.has_several_ranks:
            box.border_title = f"rank {rank} failed"
        view.show_error(error)

    @property
    def told_error(self) -> Error | None:
        failure = self.failure
        if failure is None:
            return None
        _rank, error = failure
        return error

    # Actions

    def action_toggle_log(self) -> None:
        """Switch the scale of the first chart, that of the loss.

        The page Metrics has those of the others.
        """
        names = first_metrics(self.store.state)
        self.dashboard.choices.log_metrics ^= set(names[:1])
        self.dashboard.show_changes()

    def action_toggle_panel(self) -> None:
        """Hide the curves, then the log, too; then show both again."""
        hidden = list(self.dashboard.preferences.settings.hidden)
        panels = get_args(Panel)
        if len(hidden) == len(panels):
            now = hidden[:0]
        else:
            now = list(panels[: len(hidden) + 1])
        self.dashboard.preferences = self.dashboard.preferences.changed(hidden=now)
        self.dashboard.remember("hidden", now)
        self._show_panels()

    def _show_panels(self) -> None:
        hidden = self.dashboard.preferences.settings.hidden
        for panel in get_args(Panel):
            self.set_class(panel in hidden, f"-hide-{panel}")
