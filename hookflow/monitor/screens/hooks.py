"""The page Hooks: all hooks by cost or by order, and more about the one at the cursor."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll

from hookflow.graph.plan import Binding
from hookflow.monitor.bindings import key
from hookflow.monitor.hook_costs import matching_bindings
from hookflow.monitor.hook_facts import HookFact, all_facts
from hookflow.monitor.screens.hook_page import HOOK_PAGE_KEYS, HookPage
from hookflow.monitor.widgets.hook_facts import HookFacts
from hookflow.monitor.widgets.hook_messages import (
    HooksResized,
)
from hookflow.monitor.widgets.hook_reason import HookReason
from hookflow.monitor.widgets.hook_table import HookTable
from hookflow.monitor.widgets.hook_trend import HookTrend
from hookflow.numbers import format_count
from hookflow.text import make_printable

HOOKS_HELP = """\
By cost: a row for each hook at each point, what took most of the last minute first. A click at a \
heading sorts.
By order: the loop as a run walks through it. ▶ waits for the hooks whose lanes reach it; ← folds, \
→ unfolds.
mean, p95, max and share are of the last 60 s (v: of the attempt); dim where there was no call in \
them. The checks of a trigger that says no count in the share alone.
A hook in background has its real time, its queue and what it dropped below the table.\
"""


REASON_FACTS = ("trouble", "background")
"""Facts that stand above the others, with the reason."""


class HooksScreen(HookPage):
    """All hooks by cost or by order; below them more about the one at the cursor."""

    page_name: ClassVar[str] = "hooks"
    help_text: ClassVar[str] = HOOKS_HELP

    BINDINGS: ClassVar[list[BindingType]] = [
        *HOOK_PAGE_KEYS,
        key(
            "H",
            "empty_points",
            "show points at which no hook is called, or hide them",
            "empty-points",
        ),
        key(
            "left_square_bracket",
            "sort(-1)",
            "sort by the column before",
            "sort-previous",
            display="[",
        ),
        key("right_square_bracket", "sort(1)", "sort by the next column", "sort-next", display="]"),
        key("l", "toggle_log", "a logarithmic scale for charts", "log-hooks"),
    ]

    DEFAULT_CSS = """
    HooksScreen #hooks-box, HooksScreen #hook-facts-box, HooksScreen #hook-trend {
        border-title-color: $foreground; border-subtitle-color: $text-muted;
    }
    HooksScreen #hooks-box { height: 1fr; border: round $border; }
    HooksScreen.-low #hooks-box { border: none; }
    HooksScreen.-low HookReason { height: 1; }
    HooksScreen.-tall HookReason { height: 3; }
    HooksScreen #hook-below { height: 35%; max-height: 16; display: none; }
    HooksScreen.-tall #hook-below { display: block; }
    HooksScreen #hook-facts-box { width: 3fr; border: round $border; }
    HooksScreen #hook-trend { width: 2fr; height: 1fr; border: round $border; }
    HooksScreen.-narrow #hook-trend { display: none; }
    """

    def compose_body(self) -> ComposeResult:
        with Vertical(id="hooks-box"):
            yield from self.compose_hook_views()
        yield HookReason()
        with Horizontal(id="hook-below"):
            with VerticalScroll(id="hook-facts-box", can_focus=False):
                yield HookFacts()
            yield HookTrend(id="hook-trend")

    # Showing

    def show_run(self) -> None:
        self.show_hooks()

    def count_hooks(self) -> str:
        plan = self.store.plan
        with_row = {binding.id for binding in plan.bindings}
        if not self.dashboard.choices.empty_points:
            with_row -= self.store.unreached
        rows = format_count(len(with_row), "row")
        if self.filter_text:
            matching = with_row & matching_bindings(plan, self.filter_text)
            rows = f"{len(matching)} of {rows}"
        return f"{super().count_hooks()}, {rows}"

    def show_hook(self) -> None:
        """Show more about what is at the cursor."""
        super().show_hook()
        if self.query_one("#hook-below").display:
            self._show_facts(self.hook_at_cursor)

    def _show_facts(self, binding: Binding | None) -> None:
        """Show the facts and the trend of a hook."""
        facts: list[HookFact] = []
        facts_title = "no hook at the cursor"
        trend_title = ""
        if binding is not None:
            facts = [
                fact for fact in all_facts(self.store, binding) if fact.name not in REASON_FACTS
            ]
            facts_title = f"{binding.hook} @ {binding.point}"
            trend_title = f"{binding.hook}: trend"
        self.query_one(HookFacts).show_facts(facts)
        self.query_one("#hook-facts-box").border_title = make_printable(facts_title)
        trend = self.query_one(HookTrend)
        trend.border_title = make_printable(trend_title)
        trend.show_binding(self.store, binding, is_log=self.dashboard.choices.log_scale)

    # Actions

    def on_hooks_resized(self, event: HooksResized) -> None:
        self.show_hook()

    def action_empty_points(self) -> None:
        choices = self.dashboard.choices
        choices.empty_points = not choices.empty_points
        self.dashboard.show_changes()

    def action_sort(self, step: int) -> None:
        self.query_one(HookTable).sort_by_next(step)

    def action_toggle_log(self) -> None:
        self.dashboard.choices.log_scale = not self.dashboard.choices.log_scale
        self.dashboard.show_changes()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        by_order = self.dashboard.choices.by_order
        if action == "empty_points":
            return by_order
        if action == "sort":
            return not by_order
        return super().check_action(action, parameters)
