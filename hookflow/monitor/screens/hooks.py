"""The page Hooks: all hooks by cost or by order, and more about the one at the cursor."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll

from hookflow.graph.plan import Binding
from hookflow.monitor.bindings import key
from hookflow.monitor.hook_costs import matching_bindings
from hookflow.monitor.hook_facts import all_facts
from hookflow.monitor.screens.hook_details import HookDetailsScreen
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.widgets.hook_facts import HookFacts
from hookflow.monitor.widgets.hook_messages import (
    GroupToggled,
    HookHighlighted,
    HookOpened,
    HooksResized,
)
from hookflow.monitor.widgets.hook_order import HookOrderView
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


class HooksScreen(PageScreen):
    """All hooks by cost or by order; below them more about the one at the cursor."""

    page_name: ClassVar[str] = "hooks"
    refresh_seconds: ClassVar[float] = 2.0  # a table paints all its cells where one has changed
    can_filter: ClassVar[bool] = True
    help_text: ClassVar[str] = HOOKS_HELP
    AUTO_FOCUS = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("o", "switch_order", "the hooks by cost, or by order", "order", footer="order"),
        key("f", "fold", "fold the group, point or round at the cursor, or unfold it", "fold"),
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
            yield HookTable()
            yield HookOrderView()
        yield HookReason()
        with Horizontal(id="hook-below"):
            with VerticalScroll(id="hook-facts-box", can_focus=False):
                yield HookFacts()
            yield HookTrend(id="hook-trend")

    @property
    def view(self) -> HookTable | HookOrderView:
        """The view that is shown."""
        if self.dashboard.choices.by_order:
            return self.query_one(HookOrderView)
        return self.query_one(HookTable)

    @property
    def hook_at_cursor(self) -> Binding | None:
        return self.view.hook_at_cursor

    def focus_body(self) -> None:
        self.view.focus()

    # Showing

    def show_run(self) -> None:
        self._show_view()
        choices = self.dashboard.choices
        store = self.store
        self.view.show_hooks(store, choices, self.filter_text)
        picked = self.dashboard.find_picked_binding()
        if picked is not None:
            self.view.select_binding(picked.id)
        self._show_title()
        self._show_hook()

    def _show_view(self) -> None:
        """Show the view by cost or by order, whichever was chosen, here or on another page."""
        by_order = self.dashboard.choices.by_order
        table = self.query_one(HookTable)
        order = self.query_one(HookOrderView)
        table.display = not by_order
        order.display = by_order
        if self.focused in (None, table, order) and self.focused is not self.view:
            self.set_focus(self.view)

    def _show_title(self) -> None:
        box, choices, plan = self.query_one("#hooks-box"), self.dashboard.choices, self.store.plan
        box.border_title = "hooks by order" if choices.by_order else "hooks by cost"
        window = "last 60 s"
        if choices.whole_attempt:
            window = "whole attempt"
        with_row = {binding.id for binding in plan.bindings}
        if not choices.empty_points:
            with_row -= self.store.unreached
        shown = format_count(len(with_row), "row")
        if self.filter_text:
            matching = with_row & matching_bindings(plan, self.filter_text)
            shown = f"{len(matching)} of {shown}"
        box.border_subtitle = f"{format_count(len(plan.hooks), 'hook')}, {shown} · {window}"

    def _show_hook(self) -> None:
        """Show more about what is at the cursor."""
        store = self.store
        order = self.query_one(HookOrderView)
        reason = self.query_one(HookReason)
        if self.dashboard.choices.by_order:
            reason.show_row(store, order.row_at_cursor)
        else:
            reason.show_binding(store, self.hook_at_cursor)
        below = self.query_one("#hook-below")
        binding = self.hook_at_cursor
        if not below.display:
            return
        facts_box, trend = self.query_one("#hook-facts-box"), self.query_one(HookTrend)
        facts = all_facts(store, binding) if binding is not None else []
        facts = [fact for fact in facts if fact.name not in REASON_FACTS]
        self.query_one(HookFacts).show_facts(facts)
        facts_box.border_title = (
            make_printable(f"{binding.hook} @ {binding.point}")
            if binding is not None
            else "no hook at the cursor"
        )
        trend.border_title = make_printable(f"{binding.hook}: trend") if binding is not None else ""
        trend.show_binding(store, binding, is_log=self.dashboard.choices.log_scale)

    def filter_changed(self, text: str) -> None:
        self.show_run()

    def text_of_row(self) -> str:
        return self.view.text_of_row()

    # Actions

    def on_hook_highlighted(self, event: HookHighlighted) -> None:
        if event.binding is not None:
            self.dashboard.choices.binding_id = event.binding.id
        self._show_hook()

    def on_hooks_resized(self, event: HooksResized) -> None:
        self._show_hook()

    def on_hook_opened(self, event: HookOpened) -> None:
        self.dashboard.choices.binding_id = event.binding.id
        self.app.push_screen(HookDetailsScreen())

    def action_switch_order(self) -> None:
        choices = self.dashboard.choices
        choices.by_order = not choices.by_order
        self.dashboard.show_changes()
        self.refresh_bindings()

    def on_group_toggled(self, event: GroupToggled) -> None:
        self.dashboard.choices.folded_groups ^= {event.group}
        self.dashboard.show_changes()

    def action_fold(self) -> None:
        self.view.action_toggle_fold()

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
        if action == "fold":
            return by_order or bool(self.store.plan.groups)
        if action == "sort":
            return not by_order
        return super().check_action(action, parameters)
