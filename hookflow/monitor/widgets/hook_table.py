"""The hooks by what they cost: a table that sorts by any of its columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import Binding as KeyBinding
from textual.binding import BindingType
from textual.events import Resize
from textual.widgets import DataTable

from hookflow.graph.plan import Binding, Plan
from hookflow.monitor.charts import render_bars
from hookflow.monitor.dashboard import ViewChoices
from hookflow.monitor.durations import CallHistory, OffloadStats
from hookflow.monitor.hook_costs import (
    MIN_COST_SHARE,
    MIN_RANK_NS,
    STATUS_SIGNS,
    CallCost,
    Status,
    compute_background_cost,
    compute_binding_cost,
    find_pending_switch,
    find_slowest_rank,
    fold_groups,
    group_cost,
    group_of,
    hook_status,
    matching_bindings,
)
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.style import INK_STYLES, Part, text_of
from hookflow.monitor.widgets.hook_messages import (
    GroupToggled,
    HookHighlighted,
    HookOpened,
    HooksResized,
)
from hookflow.monitor.widgets.text_table import TextTable
from hookflow.numbers import format_aligned, format_count, format_many, format_percent, format_rough
from hookflow.pipeline.groups import group_name
from hookflow.text import cut, fit_name

NAME_WIDTH, POINT_WIDTH, FULL_NAME_WIDTH = 16, 14, 40
"""Cells of the names of hooks and points, with little room and at the most."""

NOTE_WIDTH, TREND_WIDTH, FULL_TREND_WIDTH = 15, 8, 64
SHARE_WIDTH, BAR_WIDTH, DURATION_WIDTH, RANK_WIDTH = 7, 9, 8, 9
"""Cells of a share, of the bar behind it, of a duration, of the slowest rank."""

MIN_BAR_SCALE = 0.1
"""The share for which a bar is full, unless a hook takes more."""

GROUP_STATUSES: tuple[Status, ...] = ("failed", "off", "throttled", "slower")
"""The facts of a folded group on its hooks, the most important first."""

MIN_RANK_RATIO = 1.1
"""How many times as long as on the others a hook takes on the slowest rank before that is named."""

SWAP_RATIO = 1.2
"""How many times as much as the row above it a row must cost to take its place.

With less, rows would jump about.
"""


@dataclass(frozen=True, slots=True)
class HookRow:
    """The row of a hook at its point. A bar is full where the share is `bar_scale`."""

    binding: Binding
    cost: CallCost
    status: Status
    note: str
    history: CallHistory | None
    iteration: int
    bar_scale: float = MIN_BAR_SCALE
    rank: tuple[int, float] | None = None
    members: tuple[Binding, ...] = ()

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The hooks in this row: one, or those of a folded group."""
        return self.members or (self.binding,)


@dataclass(frozen=True, slots=True)
class HookColumn:
    """A column: what a row has there, and by what it sorts.

    Of numbers the largest come first. `value` is None where a row has nothing to sort by.
    """

    name: str
    title: str
    cell: Callable[[HookRow, int], Sequence[Part]]
    value: Callable[[HookRow], Any]
    is_number: bool = True
    width: int = 0


def _make_duration_format(name: str) -> Callable[[HookRow, int], Sequence[Part]]:
    """Return what writes a duration of the cost."""

    def write(row: HookRow, width: int) -> Sequence[Part]:
        ns = getattr(row.cost, name)
        if ns is None:
            return []
        return [(f"{format_aligned(ns):>{width}}", _number_style(row))]

    return write


def _number_style(row: HookRow) -> str:
    if row.cost.is_recent:
        return ""
    return "dim"


def _format_sign_cell(row: HookRow, width: int) -> Sequence[Part]:
    return [STATUS_SIGNS[row.status]]


def _format_hook_cell(row: HookRow, width: int) -> Sequence[Part]:
    return [(fit_name(row.binding.hook, width), "dim" if row.status == "off" else "strong")]


def _format_point_cell(row: HookRow, width: int) -> Sequence[Part]:
    return [(fit_name(row.binding.point, width), "dim" if row.status == "off" else "")]


def _format_every_cell(row: HookRow, width: int) -> Sequence[Part]:
    return [(f"{row.cost.every:>{width}}", "dim")]


def _format_calls_cell(row: HookRow, width: int) -> Sequence[Part]:
    if row.cost.count == 0:
        return []
    return [(f"{format_many(row.cost.count):>{width}}", "dim")]


def _format_share_cell(row: HookRow, width: int) -> Sequence[Part]:
    """Return the share in hundredths, and a bar where there is room."""
    share = row.cost.share
    if share is None:
        if row.cost.count:
            return [("·".rjust(SHARE_WIDTH), "faint")]
        return []
    if share >= MIN_COST_SHARE:
        style = "strong"
    else:
        style = _number_style(row)
    parts: list[Part] = [(f"{format_percent(share):>{SHARE_WIDTH - 2}} %", style)]
    room = width - SHARE_WIDTH - 1
    if room > 0:
        eighths = round(min(share / row.bar_scale, 1.0) * room * 8)
        parts.append((" " + "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8], "bar"))
    return parts


def _format_trend_cell(row: HookRow, width: int) -> Sequence[Part]:
    if row.history is None:
        return []
    return [(render_bars(row.history.compute_means(row.iteration + 1, width)), "heat2")]


def _format_rank_cell(row: HookRow, width: int) -> Sequence[Part]:
    if row.rank is None or row.rank[1] < MIN_RANK_RATIO:
        return []
    number, ratio = row.rank
    is_late = ratio >= 1.5 and (row.cost.mean or 0.0) > MIN_RANK_NS
    return [(f"{f'r{number} {format_rough(ratio)}×':>{width}}", "warn" if is_late else "dim")]


def _format_note_cell(row: HookRow, width: int) -> Sequence[Part]:
    if row.status == "on":
        style = "dim"
    else:
        style = STATUS_SIGNS[row.status][1]
    return [(cut(row.note, width), style)]


def _status_value(row: HookRow) -> int:
    return [*STATUS_SIGNS].index(row.status)


def _rank_value(row: HookRow) -> float | None:
    if row.rank is None:
        return None
    return row.rank[1]


HOOK_COLUMNS = (
    HookColumn("on", "ON", _format_sign_cell, _status_value, is_number=False),
    HookColumn("hook", "hook", _format_hook_cell, lambda row: row.binding.hook, is_number=False),
    HookColumn("when", "when", _format_point_cell, lambda row: row.binding.id, is_number=False),
    HookColumn("every", "every", _format_every_cell, lambda row: row.cost.every, is_number=False),
    HookColumn("calls", "calls", _format_calls_cell, lambda row: row.cost.count),
    HookColumn("mean", "mean", _make_duration_format("mean"), lambda row: row.cost.mean),
    HookColumn("p95", "p95", _make_duration_format("p95"), lambda row: row.cost.p95),
    HookColumn("max", "max", _make_duration_format("longest"), lambda row: row.cost.longest),
    HookColumn("device", "device", _make_duration_format("device"), lambda row: row.cost.device),
    HookColumn("share", "share", _format_share_cell, lambda row: row.cost.spent),
    HookColumn("trend", "trend", _format_trend_cell, lambda row: row.cost.slowdown),
    HookColumn("rank", "slowest", _format_rank_cell, _rank_value),
    HookColumn("note", "note", _format_note_cell, _status_value, is_number=False),
)
"""The columns as they stand.

By the share rows sort by the time spent: hooks outside of iterations have no share.
"""


def hook_rows(store: RunStore, choices: ViewChoices) -> list[HookRow]:
    """Return what is to be known of each hook, in the order of the plan.

    A folded group has one row at a point. Points to which the run does not come have no rows,
    unless empty points are shown.
    """
    plan = fold_groups(store.plan, choices.folded_groups)
    unreached = store.unreached
    if choices.empty_points:
        unreached = frozenset()
    whole_attempt = choices.whole_attempt
    rows = []
    for binding in plan.bindings:
        box = plan.collapsed_by_id.get(binding.id)
        hooks: tuple[Binding, ...] = (binding,)
        if box is not None:
            hooks = box.members
        if all(hook.id in unreached for hook in hooks):
            continue
        if box is None:
            row = _make_hook_row(store, plan, binding, whole_attempt=whole_attempt)
        else:
            row = _make_group_row(store, plan, binding, hooks, whole_attempt=whole_attempt)
        rows.append(row)
    bar_scale = max([MIN_BAR_SCALE, *(row.cost.share or 0.0 for row in rows)])
    return [replace(row, bar_scale=bar_scale) for row in rows]


def _make_hook_row(
    store: RunStore, plan: Plan, binding: Binding, *, whole_attempt: bool
) -> HookRow:
    """Return the row of a hook at its point."""
    state = store.state
    cost = compute_binding_cost(state, plan, store.pace, binding, whole_attempt=whole_attempt)
    cost = compute_background_cost(state, plan, binding, cost, whole_attempt=whole_attempt)
    status = hook_status(state, plan, binding, cost)
    note = hook_note(store, binding, status, cost)
    history = state.histories.of(binding)
    rank = None
    if store.has_several_ranks:
        rank = find_slowest_rank(state.ranks.of, binding, store.find_window_start(binding))
    return HookRow(binding, cost, status, note, history, state.it, rank=rank)


def _make_group_row(
    store: RunStore,
    plan: Plan,
    binding: Binding,
    members: tuple[Binding, ...],
    *,
    whole_attempt: bool,
) -> HookRow:
    """Return the row of a folded group at a point: what its hooks cost together."""
    state = store.state
    cost = group_cost(state, plan, store.pace, members, whole_attempt=whole_attempt)
    status, note = group_status(store, members)
    return HookRow(binding, cost, status, note, None, state.it, members=members)


def group_status(store: RunStore, members: Sequence[Binding]) -> tuple[Status, str]:
    """Return what is most important about a folded group's hooks, and their number, in words."""
    statuses = []
    for member in members:
        cost = compute_binding_cost(
            store.state, store.plan, store.pace, member, whole_attempt=False
        )
        statuses.append(hook_status(store.state, store.plan, member, cost))
    words = format_count(len(members), "hook")
    for status in GROUP_STATUSES:
        count = statuses.count(status)
        if count:
            return status, f"{words}, {count} {status}"
    return "on", words


def filter_rows(rows: Sequence[HookRow], plan: Plan, filter_text: str) -> list[HookRow]:
    """Return the rows of the hooks that a filter lets through."""
    matching = matching_bindings(plan, filter_text)
    kept = []
    for row in rows:
        if any(binding.id in matching for binding in row.bindings):
            kept.append(row)
    return kept


def hook_note(store: RunStore, binding: Binding, status: Status, cost: CallCost) -> str:
    """Return in a few words what is out of the ordinary about a hook now; empty if nothing is."""
    state = store.state
    switch = find_pending_switch(state, binding.hook)
    if switch:
        return f"{switch} requested"
    if status == "off":
        if (binding.hook, binding.point) in state.errors:
            return "failed, off"
        return f"off since {state.disabled[binding.hook]:,}"
    if status == "failed":
        return f"failed at {state.errors[binding.hook, binding.point]['it']:,}"
    if status == "throttled":
        return f"1 of {state.throttled[binding.hook]['every']:,} calls"
    if status == "slower":
        return cost.slowdown_text
    offload = state.first.beside.get(binding.id)
    if offload is not None:
        return describe_dropped_calls(offload)
    return cost.slowdown_text


def describe_dropped_calls(stats: OffloadStats) -> str:
    """Return an offloaded hook's calls that were dropped, which are lost, then those that wait."""
    parts = []
    if stats.dropped:
        parts.append(f"{stats.dropped:,} dropped")
    if stats.waiting:
        parts.append(f"{stats.waiting:,} queued")
    return ", ".join(parts) or "in background"


def choose_columns(
    rows: Sequence[HookRow], width: int, *, has_device: bool, has_ranks: bool
) -> list[HookColumn]:
    """Return the columns that have room, each as wide as it is drawn.

    The columns that are worth most get their room first.

    `rows` are those of all hooks, so that a filter moves no column. Names are shown in full before
    there are more figures; what is left then goes to the trend.
    """
    name_width = max([5, *(cell_len(row.binding.hook) for row in rows)])
    point_width = max([5, *(cell_len(row.binding.point) for row in rows)])
    note_width = max(cell_len(row.note) for row in rows)
    steps = [
        ("on", 2),
        ("hook", min(name_width, NAME_WIDTH)),
        ("mean", DURATION_WIDTH),
        ("share", SHARE_WIDTH),
        ("when", min(point_width, POINT_WIDTH)),
        ("note", min(note_width, NOTE_WIDTH)),
        ("when", min(point_width, FULL_NAME_WIDTH)),
        ("hook", min(name_width, FULL_NAME_WIDTH)),
        ("device", DURATION_WIDTH if has_device else 0),
        ("rank", RANK_WIDTH if has_ranks else 0),
        ("trend", TREND_WIDTH),
        ("p95", DURATION_WIDTH),
        ("share", SHARE_WIDTH + 1 + BAR_WIDTH),
        ("every", 7),
        ("note", note_width),
        ("calls", 6),
        ("max", DURATION_WIDTH),
        ("trend", FULL_TREND_WIDTH),
    ]
    widths: dict[str, int] = {}
    room = width
    for name, wish in steps:
        before = widths.get(name, -1)  # a column has a blank behind it
        gain = wish - before
        if name in widths:
            gain = min(gain, room)
        if wish > 0 and 0 < gain <= room:
            widths[name] = before + gain
            room -= gain
    return [
        replace(column, width=widths[column.name])
        for column in HOOK_COLUMNS
        if column.name in widths
    ]


def sort_rows(rows: Sequence[HookRow], column: HookColumn, *, is_reversed: bool) -> list[HookRow]:
    """Return the rows by a column: names upwards, numbers from the largest down.

    Rows without a value come last.
    """
    known = [row for row in rows if column.value(row) is not None]
    unknown = [row for row in rows if column.value(row) is None]
    known.sort(key=column.value, reverse=column.is_number != is_reversed)
    return [*known, *unknown]


def keep_order(rows: Sequence[HookRow], column: HookColumn, order: Sequence[int]) -> list[HookRow]:
    """Return sorted rows in the `order` of ids that they had.

    Rows that differ by much from the one above move.
    """
    places = {id_: place for place, id_ in enumerate(order)}
    kept = sorted(rows, key=lambda row: places.get(row.binding.id, len(places)))
    for end in range(1, len(kept)):
        at = end
        while at > 0 and _is_much_more(column.value(kept[at]), column.value(kept[at - 1])):
            kept[at - 1], kept[at] = kept[at], kept[at - 1]
            at -= 1
    return kept


def _is_much_more(value: float | None, above: float | None) -> bool:
    if value is None:
        return False
    return above is None or value > SWAP_RATIO * above


class HookTable(TextTable):
    """The hooks, a row each. The cursor stays on its hook when the rows change their order.

    It posts `HookHighlighted` when the user moves the cursor, and `HookOpened` for enter or a click
    at the cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        KeyBinding("j", "cursor_down", "down", show=False),
        KeyBinding("k", "cursor_up", "up", show=False),
    ]

    DEFAULT_CSS = """
    HookTable {
        height: 1fr; width: 1fr; overflow-x: hidden; scrollbar-gutter: stable;
        scrollbar-size-vertical: 1;
    }
    HookTable:focus { background-tint: $foreground 0%; }
    HookTable:focus > .datatable--header { background-tint: $foreground 0%; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(
            id=id, cursor_type="row", cursor_foreground_priority="renderable", cell_padding=0
        )
        self._store: RunStore | None = None
        self._choices = ViewChoices()
        self._filter_text = ""
        self._columns: list[HookColumn] = []
        self._rows: list[HookRow] = []
        self._texts: dict[tuple[int, str], Sequence[Part]] = {}
        self._headings: tuple[object, ...] = ()
        self._picked_id: int | None = None
        self._sort_name = "share"
        self._is_reversed = False
        self._message = ""

    def show_hooks(self, store: RunStore, choices: ViewChoices, filter_text: str = "") -> None:
        """Show the hooks of a run that a filter lets through."""
        self._store = store
        self._choices = choices
        self._filter_text = filter_text
        self._show_rows()

    def select_binding(self, binding_id: int | None) -> None:
        """Move the cursor to a hook; it stays where it is if the hook is not shown."""
        if not self._rows:
            self._picked_id = binding_id  # the rows follow when there is room for them
            return
        for place, row in enumerate(self._rows):
            if binding_id in [binding.id for binding in row.bindings]:
                self._picked_id = binding_id
                if self.cursor_row != place:
                    self.move_cursor(row=place)
                return

    @property
    def hook_at_cursor(self) -> Binding | None:
        """The hook at the cursor; None at a folded group, and where no hook is shown."""
        row = self._row_at_cursor
        if row is None or row.members:
            return None
        return row.binding

    @property
    def _row_at_cursor(self) -> HookRow | None:
        if 0 <= self.cursor_row < len(self._rows):
            return self._rows[self.cursor_row]
        return None

    @property
    def group_at_cursor(self) -> str:
        """The group that the hook at the cursor belongs to, or that is folded there.

        It is "" for none.
        """
        row = self._row_at_cursor
        if row is None or self._store is None:
            return ""
        if row.members:
            return group_name(row.binding.hook)
        return group_of(self._store.plan, row.binding.hook)

    @property
    def shown_rows(self) -> Sequence[HookRow]:
        """The rows in their present order."""
        return self._rows

    def text_of_row(self) -> str:
        """Return the row at the cursor as text."""
        if not self._rows:
            return ""
        row = self._rows[self.cursor_row]
        cells = [text_of(*column.cell(row, column.width)).plain.strip() for column in self._columns]
        return "  ".join(cell for cell in cells if cell)

    def action_toggle_fold(self) -> None:
        """Fold the group of the hook at the cursor, or unfold it."""
        if self.group_at_cursor:
            self.post_message(GroupToggled(self.group_at_cursor))

    def sort_by(self, name: str) -> None:
        """Sort by a column; again by the same one turns the order."""
        self._is_reversed = name == self._sort_name and not self._is_reversed
        self._sort_name = name
        self._show_rows(anew=True)

    def sort_by_next(self, step: int) -> None:
        """Sort by the column behind the present one, or before it."""
        names = [column.name for column in self._columns]
        if not names:
            return
        at = 0
        if self._sort_name in names:
            at = names.index(self._sort_name)
        self._is_reversed = False
        self._sort_name = names[(at + step) % len(names)]
        self._show_rows(anew=True)

    # Showing

    def _show_rows(self, *, anew: bool = False) -> None:
        """Show the rows; `anew`: in the order of their values, however little they differ."""
        store = self._store
        width = self.scrollable_content_region.width
        if store is None or width <= 0:
            return
        all_rows = hook_rows(store, self._choices)
        rows = filter_rows(all_rows, store.plan, self._filter_text)
        if not rows:
            self._show_empty_reason()
            return
        has_device = store.state.first.device.iteration() is not None
        columns = choose_columns(
            all_rows, width, has_device=has_device, has_ranks=store.has_several_ranks
        )
        column = next(column for column in HOOK_COLUMNS if column.name == self._sort_name)
        order = [row.binding.id for row in self._rows]
        is_live = not store.health.over and not store.is_behind
        if order and is_live and not anew and column.is_number and not self._is_reversed:
            rows = keep_order(rows, column, order)
        else:
            rows = sort_rows(rows, column, is_reversed=self._is_reversed)
        self._fill(rows, columns)
        self.select_binding(self._picked_id)
        if self._picked_id is None and self.hook_at_cursor is not None:
            # The binding below the cursor counts as picked before the user has moved the cursor.
            self._picked_id = self.hook_at_cursor.id

    def _fill(self, rows: list[HookRow], columns: list[HookColumn]) -> None:
        ink = INK_STYLES["strong"]  # that of the theme
        headings = (
            ink,
            self._sort_name,
            self._is_reversed,
            *((column.name, column.width) for column in columns),
        )
        ids = [row.binding.id for row in rows]
        if headings != self._headings or ids != [row.binding.id for row in self._rows]:
            self._headings = headings
            self._build(rows, columns)
            return
        self._rows = rows
        for row in rows:
            for column in columns:
                parts = column.cell(row, column.width)
                place = (row.binding.id, column.name)
                if self._texts[place] != parts:
                    self._texts[place] = parts
                    self.update_cell(f"{row.binding.id}", column.name, text_of(*parts))

    def _build(self, rows: list[HookRow], columns: list[HookColumn]) -> None:
        """Make the table anew; it stays scrolled as it was."""
        scroll_y = self.scroll_y
        self.clear(columns=True)
        self._message = ""
        self._rows = rows
        self._columns = columns
        self._texts = {}
        for column in columns:
            self.add_column(self._make_heading(column), width=column.width + 1, key=column.name)
        for row in rows:
            cells = []
            for column in columns:
                parts = column.cell(row, column.width)
                self._texts[row.binding.id, column.name] = parts
                cells.append(text_of(*parts))
            self.add_row(*cells, key=f"{row.binding.id}")
        self.scroll_to(y=scroll_y, animate=False)

    def _make_heading(self, column: HookColumn) -> Text:
        title = column.title
        if column.name == self._sort_name:
            goes_down = column.is_number != self._is_reversed
            title = f"{title}{'↓' if goes_down else '↑'}"
        if column.name == "share":
            title = f"{title:>{SHARE_WIDTH}}"
        elif column.is_number and column.name != "trend":
            title = f"{title:>{column.width}}"
        return text_of(
            (cut(title, column.width), "focus" if column.name == self._sort_name else "dim")
        )

    def _show_empty_reason(self) -> None:
        """Show in words why there are no rows."""
        message = "no hooks are known yet"
        if self._filter_text:
            message = "no hook matches the filter"
        self._rows = []
        self._headings = ()
        if message != self._message:
            self.clear(columns=True)
            self.add_column(text_of((message, "dim")))
            self._message = message

    # Actions

    def on_resize(self, event: Resize) -> None:
        self._show_rows()
        if self._rows:
            self.move_cursor(row=self.cursor_row)  # which scrolls to it
        self.post_message(HooksResized())

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell where the cursor is, if it was the user who has moved it there."""
        event.stop()
        row = self._row_at_cursor
        if row is None or self._picked_id in [binding.id for binding in row.bindings]:
            return
        self._picked_id = row.bindings[0].id
        self.post_message(HookHighlighted(self.hook_at_cursor))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        binding = self.hook_at_cursor
        if binding is not None:
            self.post_message(HookOpened(binding))
        elif self.group_at_cursor:
            self.post_message(GroupToggled(self.group_at_cursor))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        if event.column_key.value in {column.name for column in self._columns}:
            self.sort_by(event.column_key.value or "share")
