"""The common parts of the pages that show hooks: by cost or by order, and the one at the cursor."""

from typing import ClassVar

from textual.app import ComposeResult

from hookflow.events.records import Error
from hookflow.graph.plan import Binding
from hookflow.monitor.bindings import key
from hookflow.monitor.screens.hook_details import HookDetailsScreen
from hookflow.monitor.screens.page import PageScreen
from hookflow.monitor.widgets.hook_messages import GroupToggled, HookHighlighted, HookOpened
from hookflow.monitor.widgets.hook_order import HookOrderView
from hookflow.monitor.widgets.hook_reason import HookReason
from hookflow.monitor.widgets.hook_table import HookTable
from hookflow.numbers import format_count

HOOK_PAGE_KEYS = (
    key("o", "switch_order", "the hooks by cost, or by order", "order", footer="order"),
    key("f", "fold", "fold the group, point or round at the cursor, or unfold it", "fold"),
)


class HookPage(PageScreen):
    """A page with a table of the hooks and their order, of which one is shown.

    A subclass composes a box `#hooks-box` with `compose_hook_views` in it, and a `HookReason`.
    """

    refresh_seconds: ClassVar[float] = 2.0  # a table paints all its cells where one has changed
    can_filter: ClassVar[bool] = True
    AUTO_FOCUS = ""

    _selected_by_order: bool | None = None
    """Whether the view in which a hook was last selected is that by order; None before that."""

    def compose_hook_views(self) -> ComposeResult:
        """Yield both views of the hooks."""
        yield HookTable()
        yield HookOrderView()

    @property
    def hook_view(self) -> HookTable | HookOrderView:
        """The view of the hooks that is shown."""
        if self.dashboard.choices.by_order:
            return self.query_one(HookOrderView)
        return self.query_one(HookTable)

    @property
    def hook_at_cursor(self) -> Binding | None:
        return self.hook_view.hook_at_cursor

    @property
    def told_error(self) -> Error | None:
        """The error that the page shows elsewhere; None where it shows none."""
        return None

    def focus_body(self) -> None:
        self.hook_view.focus()

    def filter_changed(self, text: str) -> None:
        self.show_hooks()

    def text_of_row(self) -> str:
        return self.hook_view.text_of_row()

    # Showing

    def show_hooks(self) -> None:
        """Show the hooks, and more about the one at the cursor."""
        self._show_view()
        self.hook_view.show_hooks(self.store, self.dashboard.choices, self.filter_text)
        self._select_picked_hook()
        self._show_title()
        self.show_hook()

    def _show_view(self) -> None:
        """Show the view by cost or by order, whichever was chosen, here or on another page."""
        by_order = self.dashboard.choices.by_order
        table = self.query_one(HookTable)
        order = self.query_one(HookOrderView)
        if order.display != by_order:
            self.call_after_refresh(self.update_run, now=True)  # it has no size before
        table.display = not by_order
        order.display = by_order
        if self.focused in (None, table, order) and self.focused is not self.hook_view:
            self.set_focus(self.hook_view)

    def _select_picked_hook(self) -> None:
        """Move the cursor to the hook that was chosen.

        In the view that was shown before, it stays at a group to which the user has moved it.
        """
        picked = self.dashboard.find_picked_binding()
        if picked is None:
            return
        choices = self.dashboard.choices
        is_at_group = choices.binding_id is not None and self.hook_view.hook_at_cursor is None
        if is_at_group and choices.by_order == self._selected_by_order:
            return
        self.hook_view.select_binding(picked.id)
        self._selected_by_order = choices.by_order

    def _show_title(self) -> None:
        choices = self.dashboard.choices
        order = "by cost"
        if choices.by_order:
            order = "by order"
        window = "last 60 s"
        if choices.whole_attempt:
            window = "whole attempt"
        box = self.query_one("#hooks-box")
        box.border_title = f"hooks {order}"
        box.border_subtitle = f"{self.count_hooks()} · {window}"

    def count_hooks(self) -> str:
        """Return in words how many hooks there are."""
        return format_count(len(self.store.plan.hooks), "hook")

    def show_hook(self) -> None:
        """Show why the hook at the cursor runs where it does."""
        reason = self.query_one(HookReason)
        view = self.hook_view
        if isinstance(view, HookOrderView):
            reason.show_row(self.store, view.row_at_cursor, told=self.told_error)
        else:
            reason.show_binding(self.store, view.hook_at_cursor, told=self.told_error)

    # Actions

    def on_hook_highlighted(self, event: HookHighlighted) -> None:
        if event.binding is not None:
            self.dashboard.choices.binding_id = event.binding.id
        self.show_hook()

    def on_hook_opened(self, event: HookOpened) -> None:
        self.dashboard.choices.binding_id = event.binding.id
        self.app.push_screen(HookDetailsScreen())

    def on_group_toggled(self, event: GroupToggled) -> None:
        self.dashboard.choices.folded_groups ^= {event.group}
        self.dashboard.show_changes()

    def action_switch_order(self) -> None:
        choices = self.dashboard.choices
        choices.by_order = not choices.by_order
        self.dashboard.show_changes()
        self.refresh_bindings()

    def action_fold(self) -> None:
        self.hook_view.action_toggle_fold()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "fold":
            return self.dashboard.choices.by_order or bool(self.store.plan.groups)
        return super().check_action(action, parameters)
