"""The common parts of all pages of the dashboard.

They are the header, the names of the pages, a filter, the footer.
"""

import time
from collections.abc import Iterable
from functools import partial
from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from hookflow.graph.plan import Binding as HookBinding
from hookflow.graph.plan import Plan
from hookflow.monitor.bindings import PAGE_TITLES, TRAINING_KEYS, key
from hookflow.monitor.dashboard import Dashboard
from hookflow.monitor.health import Condition
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.widgets.key_footer import KeyFooter
from hookflow.monitor.widgets.replay_bar import ReplayBar
from hookflow.monitor.widgets.run_header import RunHeader


class PageTabs(Static):
    """The names of the pages, each with its digit; a click goes there."""

    DEFAULT_CSS = """
    PageTabs { height: 1; width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    PageTabs { link-style: none; link-style-hover: bold; link-background-hover: $surface; }
    """

    def __init__(self, current: str) -> None:
        super().__init__("")
        self._current = current

    def on_resize(self, event: Resize) -> None:
        gap = ""
        if event.size.width >= TABS_WITH_GAPS:
            gap = " "
        self.update(_make_tabs_markup(self._current, gap))


MOUNT_WAIT_SECONDS = 0.02
"""Seconds until a page looks again whether its widgets are mounted."""

TABS_WITH_GAPS = 70
"""Cells from which on there is room for two blanks between the names of the pages."""


def _make_tabs_markup(current: str, gap: str) -> str:
    """Return the names of the pages as markup; the current one is reversed."""
    tabs = []
    for digit, (name, title) in enumerate(PAGE_TITLES.items(), start=1):
        if name == current:
            tabs.append(f"[reverse] {digit} {title} [/]")
        else:
            tabs.append(f"[$text-muted @click=app.show_page('{name}')] {digit} {title}{gap}[/]")
    return "".join(tabs)


class FilterInput(Input):
    """The line of a filter: it applies at each change; enter keeps it, esc clears it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "clear_filter", "clear", show=False)]

    DEFAULT_CSS = """
    FilterInput { border: none; height: 1; padding: 0 1; display: none; }
    FilterInput:focus { border: none; }
    FilterInput.-open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(
            placeholder="filter: words, or globs such as ema*", select_on_focus=False, id="filter"
        )

    async def action_clear_filter(self) -> None:
        self.value = ""
        await self.screen.run_action("close_filter")


class PageScreen(Screen[None]):
    """A page about the run that is shown.

    A subclass composes its body, and shows in it what has changed.

    `refresh_seconds` is the time between two updates where no key is pressed.
    """

    page_name: ClassVar[str] = ""
    refresh_seconds: ClassVar[float] = 1.0
    can_filter: ClassVar[bool] = False
    help_text: ClassVar[str] = ""
    """The help of the page: a line each, in Markdown."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (76, "-normal"), (110, "-wide")]  # noqa: RUF012  # as Textual has them
    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-medium"), (34, "-tall")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        key(
            "slash",
            "open_filter",
            "show only what has these words",
            "filter",
            footer="filter",
            display="/",
        ),
        key("escape", "back", "clear the filter; else back", "back"),
        key("y", "copy_row", "copy the selection, or the row at the cursor", "copy-row"),
        key("Y", "copy_page", "copy the page as text", "copy-page"),
    ]

    DEFAULT_CSS = """
    PageScreen > #body { height: 1fr; }
    PageScreen.-low RunHeader { height: 2; }
    PageScreen #body * { border-title-color: $foreground; border-subtitle-color: $text-muted; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown_revision = -1
        self._shown_at = 0.0
        self._shown_plan: Plan | None = None
        self._shown_condition: Condition | None = None
        self._is_composed = False
        self._has_been_focused = False
        self._offers_commands: bool | None = None

    @property
    def active_bindings(self) -> dict[str, ActiveBinding]:
        """The keys for the footer and the palette.

        Keys that send a command to a run that cannot answer are left out.
        """
        active = super().active_bindings
        if self.store.can_act:
            return active
        training = {binding.id for binding in TRAINING_KEYS}
        return {keys: each for keys, each in active.items() if each.binding.id not in training}

    @property
    def dashboard(self) -> Dashboard:
        return cast("Dashboard", self.app)

    @property
    def store(self) -> RunStore:
        """The run that is shown."""
        return self.dashboard.store

    def compose(self) -> ComposeResult:
        yield RunHeader(lambda: self.store, lambda: self.explains_trouble)
        yield PageTabs(self.page_name)
        if self.store.is_replay:
            yield ReplayBar(lambda: self.store)
        with Vertical(id="body"):
            yield from self.compose_body()
        if self.can_filter:
            yield FilterInput()
        yield KeyFooter()

    def compose_body(self) -> ComposeResult:
        """Yield the widgets of the page."""
        raise NotImplementedError

    def show_run(self) -> None:
        """Show what has changed of the run."""
        raise NotImplementedError

    @property
    def explains_trouble(self) -> bool:
        """Whether the page says what is wrong with the run, so that the header need not."""
        return False

    @property
    def hook_at_cursor(self) -> HookBinding | None:
        """The hook that a key acts on; None where none is at the cursor."""
        return None

    def filter_changed(self, text: str) -> None:
        """Show what the filter lets through; empty text is no filter."""

    def text_of_row(self) -> str:
        """Return the row at the cursor as text; empty where there is none."""
        return ""

    def text_of_page(self) -> Iterable[str]:
        """Yield the lines of the body as they are on the screen."""
        body = self.query_one("#body")
        for y in range(body.region.y, body.region.bottom):
            strip = self._compositor.render_strips(self.size)[y]
            yield strip.crop(body.region.x, body.region.right).text.rstrip()

    # Updates

    def update_run(self, *, now: bool = False) -> None:
        """Show what has changed, if anything has, and not too often unless it is to be `now`."""
        if not self._has_widgets:
            return
        has_news = now or self.store.revision != self._shown_revision
        has_other_keys = self.store.can_act != self._offers_commands
        if not (has_news or has_other_keys):
            return
        # A widget within another one is mounted after it.
        if not all(widget.is_mounted for widget in self.walk_children(Widget)):
            # A timer lets the widget be mounted. A callback after the refresh comes at once where
            # there is nothing to draw: one that asks for itself again never gives the event loop
            # back.
            self.set_timer(MOUNT_WAIT_SECONDS, partial(self.update_run, now=now))
            return
        if has_other_keys:
            self._offers_commands = self.store.can_act
            self.refresh_bindings()
        if has_news:
            self.redraw_header()
        if now or (has_news and self._is_due):
            self._record_shown()
            self.show_run()
            if not self._has_been_focused:
                self.call_after_refresh(self._set_initial_focus)

    def _set_initial_focus(self) -> None:
        """Give the main widget the focus, where Textual has not.

        Textual looks for it when the page is composed. A widget within another one may come after
        that, and one that has nothing to show yet takes no focus.
        """
        if self.focused is None and self.AUTO_FOCUS is None:
            self.focus_body()
        self._has_been_focused = self.focused is not None or self.AUTO_FOCUS is not None

    @property
    def _is_due(self) -> bool:
        """Whether news are to be shown: some at once, the others a while after the last."""
        store = self.store
        # The plan is another one once the log has been read for the first time, for example.
        has_other_plan = store.plan is not self._shown_plan
        has_other_condition = store.health.condition != self._shown_condition
        is_old = time.monotonic() - self._shown_at >= self.refresh_seconds
        return has_other_plan or has_other_condition or is_old

    def _record_shown(self) -> None:
        store = self.store
        self._shown_revision = store.revision
        self._shown_at = time.monotonic()
        self._shown_plan = store.plan
        self._shown_condition = store.health.condition

    def redraw_header(self) -> None:
        """Draw again what changes all the time: the header, and the line of a replay."""
        self.query_one(RunHeader).redraw()
        for bar in self.query(ReplayBar):
            bar.redraw()

    def update_machine(self) -> None:
        """Show another look at the machine."""
        if self._has_widgets:
            self.redraw_header()

    @property
    def _has_widgets(self) -> bool:
        """Whether the page is whole.

        Its widgets come after the page, and go one by one when the app ends.
        """
        return self._is_composed and self.app.is_running

    def on_mount(self) -> None:
        self._is_composed = True
        self.call_after_refresh(self.update_run, now=True)

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.update_run, now=True)

    # Actions

    @property
    def filter_text(self) -> str:
        if not self.can_filter:
            return ""
        return self.query_one(FilterInput).value.strip()

    def action_open_filter(self) -> None:
        line = self.query_one(FilterInput)
        line.add_class("-open")
        line.focus()

    def action_close_filter(self) -> None:
        """Go back to the page; the line stays while it filters."""
        line = self.query_one(FilterInput)
        line.set_class(bool(line.value), "-open")
        self.set_focus(None)
        self.focus_body()

    def clear_filter(self) -> None:
        """Let everything through again."""
        line = self.query_one(FilterInput)
        line.value = ""
        line.remove_class("-open")

    def focus_body(self) -> None:
        """Give the focus to the main widget of the page."""
        self.focus_next("#body *")

    def on_input_changed(self, event: Input.Changed) -> None:
        if isinstance(event.input, FilterInput):
            event.stop()
            self.filter_changed(event.value.strip())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if isinstance(event.input, FilterInput):
            event.stop()
            self.action_close_filter()

    def action_back(self) -> None:
        """Clear the filter first; else go back to where the user came from."""
        if self.can_filter and self.filter_text:
            self.query_one(FilterInput).value = ""
            self.action_close_filter()
        elif len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        else:
            self.dashboard.show_page("overview")

    def action_copy_row(self) -> None:
        text = self.get_selected_text() or self.text_of_row()
        self.dashboard.copy(text)

    def action_copy_page(self) -> None:
        self.dashboard.copy("\n".join(self.text_of_page()))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide what makes no sense here."""
        if action == "open_filter":
            return self.can_filter
        return True
