"""The hooks by order: the loop as a tree that folds, with the edges between the hooks of a point.

Rounds, phases and points stand as a run walks through them, each with what it costs.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.binding import Binding as KeyBinding
from textual.binding import BindingType
from textual.events import Click, Resize
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hookflow.graph.plan import Binding, Plan
from hookflow.graph.render.loop import PERMANENT_ROUNDS, PHASE_MARKS, Row, label, make_rows
from hookflow.monitor.charts import render_bars
from hookflow.monitor.dashboard import ViewChoices
from hookflow.monitor.durations import ITERATION_HISTORY
from hookflow.monitor.hook_costs import (
    MIN_COST_SHARE,
    STATUS_SIGNS,
    CallCost,
    Status,
    compute_background_cost,
    fold_groups,
    group_cost,
    group_of,
    hook_status,
    matching_bindings,
    row_cost,
)
from hookflow.monitor.ranks import NO_PLAN
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.style import CONDITION_STYLES, STYLES, Part, row
from hookflow.monitor.widgets.hook_messages import (
    GroupToggled,
    HookHighlighted,
    HookOpened,
    HooksResized,
)
from hookflow.monitor.widgets.hook_table import group_status, hook_note
from hookflow.numbers import format_aligned, format_count, format_many, format_percent, out_of
from hookflow.pipeline.groups import GROUP_PREFIX
from hookflow.text import cut, fit, fit_name

STAGE_ROUNDS = {"train": "iteration", "val": "validation", "test": "test"}
"""By the stage of a run the round in which it is."""

STAGE_POINTS = {"start": "before_train", "save": "before_save_checkpoint"}
"""By the stage of a run the point at which it is, where it is in no round."""

LONG_CALL = 1.0
"""Seconds inside a hook from which on the run is at its row: else the mark would jump about."""

MIN_LOOP_WIDTH, MIN_HOOK_WIDTH = 14, 12
"""Cells that the names of rounds and points, and those of hooks, have at least."""

MIN_TREND_WIDTH, MAX_TREND_WIDTH = 8, 40
NOTE_WIDTH = 15


@dataclass(frozen=True, slots=True)
class OrderRow:
    """A row of the tree: that of the loop, and how many hooks are folded away in it.

    The number is 0 where it is not folded.

    `members` are those of a folded `group`.
    """

    loop: Row
    num_folded: int = 0
    group: str = ""
    members: tuple[Binding, ...] = ()

    @property
    def key(self) -> str:
        """The key of the row: the hook's id, or the name of what it is."""
        if self.loop.binding is not None and self.group:
            return f"group {self.group} {self.loop.binding.id}"
        if self.loop.binding is not None and not self.num_folded:
            return f"hook {self.loop.binding.id}"
        return f"{self.loop.kind} {self.loop.name}"


def fold_rows(loop_rows: Sequence[Row], folded: set[str]) -> list[OrderRow]:
    """Return the rows without those of the rounds and points that are folded.

    Each folded one has one row.
    """
    hidden: dict[str, int] = {}  # by the folded round or point: the hooks in it
    for each in loop_rows:
        fold = _fold_of(each, folded)
        if fold and each.binding is not None:
            hidden[fold] = hidden.get(fold, 0) + 1
    result = []
    seen = set()
    for each in loop_rows:
        fold = _fold_of(each, folded)
        if not fold:
            if each.kind == "round" and each.name in folded:
                result.append(OrderRow(each, hidden.get(each.name, 0)))
            else:
                result.append(OrderRow(each))
        elif fold == each.name and each.kind == "point" and fold not in seen:
            seen.add(fold)
            result.append(OrderRow(Row("point", each.name, each.within), hidden.get(fold, 0)))
    return result


def mark_groups(shown: Sequence[OrderRow], plan: Plan) -> list[OrderRow]:
    """Return the rows; those that stand for several hooks of a folded group say so."""
    result = []
    for each in shown:
        box = None
        if each.loop.binding is not None and not each.num_folded:
            box = plan.collapsed_by_id.get(each.loop.binding.id)
        if box is None:
            result.append(each)
        else:
            result.append(OrderRow(each.loop, len(box.members), box.group, box.members))
    return result


def select_reached_rows(
    loop_rows: Sequence[Row], plan: Plan, unreached: Collection[int]
) -> list[Row]:
    """Return the rows without those of `unreached` bindings.

    Rounds in which nothing is left are left out, too.
    """
    kept = []
    for each in loop_rows:
        if each.binding is not None:
            box = plan.collapsed_by_id.get(each.binding.id)
            members = (each.binding,) if box is None else box.members
            if all(member.id in unreached for member in members):
                continue
        kept.append(each)
    occupied = {name for each in kept for name in each.within if each.kind == "point"}
    return [
        each
        for each in kept
        if each.kind != "round" or each.name in PERMANENT_ROUNDS or each.name in occupied
    ]


def _fold_of(each: Row, folded: set[str]) -> str:
    """Return the outermost folded round or point that hides a row; "" where none does."""
    for name in each.within:
        if name in folded:
            return name
    if each.kind == "point" and each.name in folded:
        return each.name
    return ""


@dataclass(frozen=True, slots=True)
class OrderLayout:
    """The cells that the parts of a row take; 0 for what has no room."""

    loop: int
    lanes: int
    hook: int
    rail: int
    every: int
    calls: int
    mean: int
    p95: int
    device: int
    share: int
    trend: int
    note: int


@dataclass(frozen=True, slots=True)
class RowFigures:
    """The cost of a row, the sign of its hook, and what is unusual about it.

    The sign is "on" for what is no hook.
    """

    cost: CallCost
    status: Status
    note: str


def row_figures(store: RunStore, each: OrderRow, *, whole_attempt: bool) -> RowFigures:
    """Return the figures of a row, of the last minute or of the whole attempt."""
    if each.group:
        cost = group_cost(
            store.state, store.plan, store.pace, each.members, whole_attempt=whole_attempt
        )
        return RowFigures(cost, *group_status(store, each.members))
    cost = row_cost(store.state, store.plan, store.pace, each.loop, whole_attempt=whole_attempt)
    binding = each.loop.binding
    if binding is None or each.num_folded:
        return RowFigures(cost, "slower" if cost.slowdown_text else "on", cost.slowdown_text)
    status = hook_status(store.state, store.plan, binding, cost)
    note = hook_note(store, binding, status, cost)
    cost = compute_background_cost(
        store.state, store.plan, binding, cost, whole_attempt=whole_attempt
    )
    return RowFigures(cost, status, note)


def compute_layout(
    shown: Sequence[OrderRow],
    names: Mapping[str, str],
    width: int,
    *,
    note_width: int,
    has_device: bool,
) -> OrderLayout:
    """Return how wide the parts are.

    The names, the mean and the share come first, then the others by their worth.
    """
    loop = max((cell_len(_loop_label(each, names)) for each in shown), default=MIN_LOOP_WIDTH)
    lanes = max((len(each.loop.lanes) for each in shown), default=0)
    rail = max((len(each.loop.rail) for each in shown), default=0)
    hook = max((cell_len(_hook_name(each)) for each in shown), default=4)
    room = width - 6  # signs, and blanks behind the names
    if lanes:
        room -= lanes + 1
    if rail:
        room -= rail + 1
    widths = {"mean": 8, "share": 7}
    room -= sum(each + 1 for each in widths.values())
    hook = min(hook, max(room - loop, MIN_HOOK_WIDTH))
    loop = min(loop, max(room - hook, MIN_LOOP_WIDTH))
    room -= loop + hook
    wanted = [
        ("device", 8 if has_device else 0),
        ("note", min(note_width, NOTE_WIDTH)),
        ("trend", MIN_TREND_WIDTH),
        ("every", 7),
        ("p95", 8),
        ("calls", 6),
    ]
    for name, wide in wanted:
        if 0 < wide < room:
            widths[name] = wide
            room -= wide + 1
    if "trend" in widths:
        more = min(room, MAX_TREND_WIDTH - MIN_TREND_WIDTH)
        widths["trend"] += max(more, 0)
    optional = ("every", "calls", "mean", "p95", "device", "share", "trend", "note")
    return OrderLayout(
        loop=loop,
        lanes=lanes,
        hook=hook,
        rail=rail,
        **{name: widths.get(name, 0) for name in optional},
    )


def _loop_label(each: OrderRow, names: Mapping[str, str]) -> str:
    return label(each.loop, names.get(each.loop.name, ""))


def _hook_name(each: OrderRow) -> str:
    if each.group:
        return f"▸ {GROUP_PREFIX}{each.group}"
    if each.num_folded:
        return f"▸ {format_count(each.num_folded, 'hook')}"
    if each.loop.binding is not None:
        return each.loop.binding.hook
    return ""


def round_names(store: RunStore) -> dict[str, str]:
    """Return the rounds whose progress is known, by their names, with how far they are."""
    state = store.state
    names = {}
    if state.run:
        names["epoch"] = _format_progress("epoch", state.epoch, state.run.get("max_epochs", 0))
    current = STAGE_ROUNDS.get(state.stage)
    if current is not None and state.batches and state.end is None:
        if state.stage == "train":
            word = "batch"
        else:
            word = current
        names[current] = _format_progress(word, state.batch, state.batches)
    return names


def _format_progress(word: str, count: int, whole: int) -> str:
    done = out_of(count, whole).replace("/", " of ")
    return f"{word} {done}"


def row_of_run(store: RunStore, shown: Sequence[OrderRow]) -> int | None:
    """Return the row at which the run is now.

    It is the hook that it is in for long, else its round, and None after its end.
    """
    state = store.state
    if store.health.over or state.end is not None:
        return None
    binding_id, seconds = store.inside.get(0, (-1, 0.0))
    if seconds >= LONG_CALL:
        for place, each in enumerate(shown):
            if each.loop.binding is not None and each.loop.binding.id == binding_id:
                return place
    if state.stage == "paused":
        stage = "train"
    else:
        stage = state.stage
    name = STAGE_ROUNDS.get(stage) or STAGE_POINTS.get(stage)
    for place, each in enumerate(shown):
        if each.loop.name == name:
            return place
    return None


class HookOrderView(ScrollView, can_focus=True):
    """The loop, a row for each round, phase and hook.

    The cursor stays on its row, and what is folded stays folded. The view posts `HookHighlighted`
    when the user moves the cursor, and `HookOpened` for enter or a click at the cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        KeyBinding("up,k", "move(-1)", "up", show=False),
        KeyBinding("down,j", "move(1)", "down", show=False),
        KeyBinding("pageup", "move_page(-1)", "page up", show=False),
        KeyBinding("pagedown", "move_page(1)", "page down", show=False),
        KeyBinding("home", "move_to_end(-1)", "first", show=False),
        KeyBinding("end", "move_to_end(1)", "last", show=False),
        KeyBinding("left", "fold", "fold", show=False),
        KeyBinding("right", "unfold", "unfold", show=False),
        KeyBinding("enter", "open", "open", show=False),
    ]

    DEFAULT_CSS = """
    HookOrderView {
        height: 1fr; width: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
    }
    """

    cursor: reactive[int] = reactive(0)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id)
        self._store: RunStore | None = None
        self._choices = ViewChoices()
        self._filter_text = ""
        self._folded: set[str] = set()
        self._loop_rows: list[Row] = []
        self._made_from: object = None
        self._drawn_plan = NO_PLAN
        self._shown: list[OrderRow] = []
        self._key = ""
        self._selected_id: int | None = None
        self._head = Strip([])
        self._strips: list[Strip] = []
        self._message = ""

    def show_hooks(self, store: RunStore, choices: ViewChoices, filter_text: str = "") -> None:
        """Show the hooks of a run that a filter lets through."""
        self._store = store
        self._choices = choices
        self._filter_text = filter_text
        self._show_rows()

    def select_binding(self, binding_id: int | None) -> None:
        """Move the cursor to a hook, unless it has been there since: it may be on a round now.

        It stays where it is if the hook is not shown.
        """
        key = f"hook {binding_id}"
        if not self._shown:
            self._key = key  # the rows follow when there is room for them
            self._selected_id = binding_id
        if binding_id == self._selected_id:
            return
        for place, each in enumerate(self._shown):
            if each.key == key:
                self._selected_id = binding_id
                self._go_to(place)
                return

    @property
    def hook_at_cursor(self) -> Binding | None:
        """The hook at the cursor; None at a round, a phase, or what is folded."""
        each = self.row_at_cursor
        if each is None or each.num_folded:
            return None
        return each.loop.binding

    @property
    def row_at_cursor(self) -> OrderRow | None:
        if 0 <= self.cursor < len(self._shown):
            return self._shown[self.cursor]
        return None

    @property
    def shown_rows(self) -> Sequence[OrderRow]:
        """The rows from the first to the last, also those that are scrolled away."""
        return self._shown

    def text_of_row(self) -> str:
        """Return the row at the cursor as text."""
        if not self._strips:
            return ""
        return " ".join(self._strips[self.cursor].text.split())

    # Showing

    def _show_rows(self) -> None:
        store = self._store
        width = self.scrollable_content_region.width
        if store is None or width <= 0:
            return
        self._read_loop(store.plan, store.unreached, max(width // 24, 2))
        has_points = any(each.kind == "point" for each in self._loop_rows)
        shown = []
        if has_points:
            shown = fold_rows(self._loop_rows, self._folded)
        self._shown = mark_groups(shown, self._drawn_plan)
        self.virtual_size = Size(width, len(self._shown) + 1)
        self._find_cursor()
        before = (self._head, self._strips)
        self._head, self._strips = self._draw(store, width)
        self._message = ""
        if not self._shown:
            self._message = (
                "no hook matches the filter" if self._filter_text else "no hooks are known yet"
            )
        if len(before[1]) != len(self._strips) or before[0] != self._head:
            self.refresh()
            return
        for place, (old, new) in enumerate(zip(before[1], self._strips, strict=True)):
            if old != new:
                self._refresh_row(place)

    def _read_loop(self, plan: Plan, unreached: frozenset[int], num_lanes: int) -> None:
        """Make the rows of the loop, if the plan or what is shown of it has changed."""
        folded_groups = frozenset(self._choices.folded_groups)
        made_from = (
            plan,
            unreached,
            folded_groups,
            self._choices.empty_points,
            self._filter_text,
            num_lanes,
        )
        if made_from == self._made_from:
            return
        self._made_from = made_from
        only = None
        if self._filter_text:
            only = matching_bindings(plan, self._filter_text)
        self._drawn_plan = fold_groups(plan, folded_groups)
        for box in self._drawn_plan.collapsed:
            if only is not None and any(member.id in only for member in box.members):
                only.add(box.id)
        loop_rows = make_rows(
            self._drawn_plan, idle=self._choices.empty_points, only=only, lanes=num_lanes
        )
        if unreached and not self._choices.empty_points:
            loop_rows = select_reached_rows(loop_rows, self._drawn_plan, unreached)
        self._loop_rows = loop_rows

    def _find_cursor(self) -> None:
        """Keep the cursor on its row, wherever that is now.

        Where it is hidden, the cursor goes to a hook that is shown.
        """
        keys = [each.key for each in self._shown]
        if self._key in keys:
            place = keys.index(self._key)
        else:
            place = min(self.cursor, max(len(keys) - 1, 0))
            hooks = [at for at, each in enumerate(self._shown) if each.loop.binding is not None]
            if hooks:
                place = min(hooks, key=lambda at: abs(at - place))
            if self._key:
                self.call_after_refresh(self._tell)
        if place != self.cursor or self._key not in keys:
            self._go_to(place)

    def _tell(self) -> None:
        """Tell the page what the cursor has come to."""
        binding = self.hook_at_cursor
        if binding is not None:
            self._selected_id = binding.id
        self.post_message(HookHighlighted(binding))

    def _draw(self, store: RunStore, width: int) -> tuple[Strip, list[Strip]]:
        """Return the heading and a strip for each row."""
        names = round_names(store)
        has_device = store.state.first.device.iteration() is not None
        whole_attempt = self._choices.whole_attempt
        figures = [row_figures(store, each, whole_attempt=whole_attempt) for each in self._shown]
        note_width = max((cell_len(each.note) for each in figures), default=0)
        layout = compute_layout(
            self._shown, names, width, note_width=note_width, has_device=has_device
        )
        now = row_of_run(store, self._shown)
        strips = []
        for place, each in enumerate(self._shown):
            sign: Part = "  "
            if place == now:
                sign = ("● ", CONDITION_STYLES.get(store.health.condition, "warn"))
            strips.append(row(width, sign, *_row_parts(store, layout, names, each, figures[place])))
        return self._draw_head(layout, width), strips

    def _draw_head(self, layout: OrderLayout, width: int) -> Strip:
        parts = [f"  {fit('the loop', layout.loop)} "]
        if layout.lanes:
            parts.append(" " * (layout.lanes + 1))
        parts.append(f"{fit('  hook', layout.hook + 2)} ")
        if layout.rail:
            parts.append(" " * (layout.rail + 1))
        for name in ("every", "calls", "mean", "p95", "device", "share"):
            wide = getattr(layout, name)
            if wide:
                if name == "share":
                    title = "share %"
                else:
                    title = name
                parts.append(f"{title:>{wide}} ")
        if layout.trend:
            parts.append(f"{'trend':<{layout.trend}} ")
        if layout.note:
            parts.append("note")
        return row(width, ("".join(parts), "dim"))

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == 0:
            return self._head.adjust_cell_length(width, STYLES[""])
        place = y - 1 + self.scroll_offset.y
        if not self._shown:
            return row(width, (self._message if y == 1 else "", "dim"))
        if place >= len(self._strips):
            return row(width)
        strip = self._strips[place].adjust_cell_length(width, STYLES[""])
        if place == self.cursor:
            strip = _with_cursor(strip, has_focus=self.has_focus)
        return strip.apply_offsets(0, y)

    def _refresh_row(self, place: int) -> None:
        y = place + 1 - self.scroll_offset.y
        if 1 <= y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def watch_cursor(self, before: int, now: int) -> None:
        self._refresh_row(before)
        self._refresh_row(now)

    def on_resize(self, event: Resize) -> None:
        self._show_rows()
        self.call_after_refresh(self._go_to, self.cursor)  # there may be fewer rows in sight
        self.post_message(HooksResized())

    # Actions

    def _go_to(self, place: int) -> None:
        """Move the cursor to a row, and scroll so that it is seen."""
        if not self._shown:
            return
        self.cursor = min(max(place, 0), len(self._shown) - 1)
        self._key = self._shown[self.cursor].key
        room = max(self.scrollable_content_region.height - 1, 1)  # the heading stays
        if self.cursor < self.scroll_offset.y:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= self.scroll_offset.y + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False, force=True)

    def _move_to(self, place: int) -> None:
        """Move the cursor, as the user wants it."""
        before = self._key
        self._go_to(place)
        if self._key != before:
            self._tell()

    def action_move(self, step: int) -> None:
        self._move_to(self.cursor + step)

    def action_move_page(self, direction: int) -> None:
        self._move_to(self.cursor + direction * max(self.size.height - 2, 1))

    def action_move_to_end(self, direction: int) -> None:
        self._move_to(0 if direction < 0 else len(self._shown) - 1)

    def action_fold(self) -> None:
        """Fold the point or the round at the cursor; where that is folded, the round around it."""
        name = self._find_foldable_at_cursor()
        if name:
            self._set_fold(name, is_folded=True)

    def action_unfold(self) -> None:
        each = self.row_at_cursor
        if each is not None and each.group:
            self.post_message(GroupToggled(each.group))
        elif each is not None and each.loop.name in self._folded:
            self._set_fold(each.loop.name, is_folded=False)

    @property
    def group_at_cursor(self) -> str:
        """The group that the hook at the cursor belongs to, or that is folded there.

        It is "" for none.
        """
        each = self.row_at_cursor
        if each is None or self._store is None:
            return ""
        if each.group or each.loop.binding is None:
            return each.group
        return group_of(self._store.plan, each.loop.binding.hook)

    def action_toggle_fold(self) -> None:
        """Fold what the cursor is in, or unfold what is folded there: a group, a point, a round."""
        each = self.row_at_cursor
        if self.group_at_cursor:
            self.post_message(GroupToggled(self.group_at_cursor))
        elif each is not None and each.loop.name in self._folded:
            self.action_unfold()
        else:
            self.action_fold()

    def _find_foldable_at_cursor(self) -> str:
        """Return the innermost round or point around the cursor that is not folded yet.

        It is "" where there is none.
        """
        each = self.row_at_cursor
        if each is None:
            return ""
        loop = each.loop
        if loop.kind == "round" and loop.name not in self._folded:
            return loop.name
        num_here = sum(
            other.kind == "point" and other.name == loop.name for other in self._loop_rows
        )
        if loop.kind == "point" and num_here > 1 and loop.name not in self._folded:
            return loop.name
        if loop.within:
            return loop.within[-1]
        return ""

    def _set_fold(self, name: str, *, is_folded: bool) -> None:
        if is_folded:
            self._folded.add(name)
        else:
            self._folded.discard(name)
        self._show_rows()
        for place, each in enumerate(self._shown):
            if each.loop.name == name:
                self._go_to(place)
                break
        self._tell()

    def action_open(self) -> None:
        each = self.row_at_cursor
        binding = self.hook_at_cursor
        if binding is not None:
            self.post_message(HookOpened(binding))
        elif each is not None:
            self.action_toggle_fold()

    def on_click(self, event: Click) -> None:
        """Select the row under the mouse; a second click opens it."""
        place = event.y - 1 + self.scroll_offset.y
        if event.y < 1 or place >= len(self._shown):
            return
        if place == self.cursor:
            self.action_open()
        else:
            self._move_to(place)


def _with_cursor(strip: Strip, *, has_focus: bool) -> Strip:
    """Return the row of the cursor; its second cell has a sign, for terminals without colours."""
    if has_focus:
        mark = row(1, ("▸", "focus"))
        strip = Strip.join([strip.crop(0, 1), mark, strip.crop(2)])
    return Strip(Segment.apply_style(strip, post_style=STYLES["cursor"]), strip.cell_length)


def _row_parts(
    store: RunStore,
    layout: OrderLayout,
    names: Mapping[str, str],
    each: OrderRow,
    figures: RowFigures,
) -> list[Part]:
    """Return a row without the sign before it."""
    loop = each.loop
    cost = figures.cost
    sign, sign_style = STATUS_SIGNS[figures.status]
    parts: list[Part] = [*_loop_parts(each, names, layout.loop), " "]
    if layout.lanes:
        parts.append((f"{loop.lanes:>{layout.lanes}} ", "edge"))
    if loop.binding is not None and not each.num_folded:
        parts.append((sign, sign_style) if figures.status != "on" else " ")
        parts.append(
            (f" {fit_name(loop.binding.hook, layout.hook)} ", "strong" if cost.is_recent else "")
        )
    else:
        parts.append((f"  {fit(_hook_name(each), layout.hook)} ", "dim"))
    if layout.rail:
        parts.append((f"{loop.rail:<{layout.rail}} ", "edge"))
    parts += _figure_parts(cost, layout)
    if layout.trend:
        parts += [_render_trend(store, each, layout.trend), " "]
    if layout.note:
        parts.append(
            (cut(figures.note, layout.note), sign_style if figures.status != "on" else "dim")
        )
    return parts


def _loop_parts(each: OrderRow, names: Mapping[str, str], width: int) -> list[Part]:
    """Return the name of a round, phase or point, behind a stroke for each round around it."""
    loop = each.loop
    text = fit_name(_loop_label(each, names), width)
    depth = len(loop.within)
    strokes: Part = (text[:depth], "faint")
    if loop.kind == "phase":
        return [strokes, " ", (PHASE_MARKS[loop.name], loop.name), text[depth + 2 :]]
    return [strokes, (text[depth:], "strong" if loop.kind == "round" else "")]


def _figure_parts(cost: CallCost, layout: OrderLayout) -> Iterator[Part]:
    style = "dim"
    if cost.is_recent:
        style = ""
    if layout.every:
        yield (f"{cost.every:>{layout.every}} ", "dim")
    if layout.calls:
        calls = ""
        if cost.count:
            calls = format_many(cost.count)
        yield (f"{calls:>{layout.calls}} ", "dim")
    for ns, width in (
        (cost.mean, layout.mean),
        (cost.p95, layout.p95),
        (cost.device, layout.device),
    ):
        if width:
            if ns is None:
                text = ""
            else:
                text = format_aligned(ns)
            yield (f"{text:>{width}} ", style)
    if cost.share is None:
        share = ""
    else:
        share = format_percent(cost.share)
    is_costly = cost.share is not None and cost.share >= MIN_COST_SHARE
    yield (f"{share:>{layout.share}} ", "strong" if is_costly else style)


def _render_trend(store: RunStore, each: OrderRow, width: int) -> Part:
    loop = each.loop
    has_trend = loop.binding is not None or loop.kind == "phase" or loop.name == ITERATION_HISTORY
    if not has_trend or each.num_folded:
        return " " * width
    history = store.state.histories.of(loop.binding or loop.name)
    return (
        render_bars(history.compute_means(store.state.it + 1, width)),
        "heat2" if loop.binding is not None else "train",
    )
