"""The header of every page: is the training fine, how far is it, and where does the time go?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.strip import Strip

from hookflow.events.records import PHASES
from hookflow.monitor.hook_costs import MIN_COST_SHARE
from hookflow.monitor.progress_bars import format_work_name
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.series import Series
from hookflow.monitor.state import RunState
from hookflow.monitor.style import CONDITION_STYLES, Part, bar, count_cells, join_ends, row
from hookflow.monitor.throughput import Throughput, find_bottleneck, find_costliest_hooks
from hookflow.monitor.widgets.strip_view import StripView
from hookflow.numbers import (
    format_age,
    format_count,
    format_many,
    format_percent,
    format_span,
    format_speed,
    number,
    out_of,
)
from hookflow.text import cut

PHASE_FILLS = {
    "data": "░",
    "forward": "█",
    "backward": "▓",
    "optimizer": "▒",
    "hooks": "▚",
    "other": "╌",
}
"""The character of each phase in a bar."""

TREND_PARTS = 8
"""The newest eighth of a curve is compared with the one before it."""

WIDE, NORMAL = 100, 72
"""Cells of a header in which everything has its words, and in which the short words still fit.

Where there is less, the time left stands on the second row.
"""

MAX_NAME_WIDTH, MAX_METRIC_WIDTH = 14, 12
"""Cells of the names of the run and of the monitored metric where there is little room."""

MIN_BAR_WIDTH, MAX_BAR_WIDTH = 8, 30
"""Cells of the bar of progress."""


@dataclass(frozen=True, slots=True)
class HeaderItem:
    """A part of a row.

    Where parts have no room together, the one with the least `weight` goes first.
    """

    weight: int
    part: Part


def fit_items(items: Sequence[HeaderItem], width: int) -> list[Part]:
    """Return as many items as have room, apart by two cells.

    A blank is left at the end, before the next part.
    """
    kept = [item for item in items if count_cells(item.part) > 0]
    while len(kept) > 1 and _width_of_items(kept) > width - 1:
        kept.remove(min(kept, key=lambda item: item.weight))
    parts: list[Part] = []
    for item in kept:
        if parts:
            parts.append("  ")
        parts.append(item.part)
    return parts


def _width_of_items(items: Sequence[HeaderItem]) -> int:
    """Return the cells of items with two blanks between them."""
    gaps = 2 * (len(items) - 1)
    return gaps + sum(count_cells(item.part) for item in items)


def find_trend_sign(series: Series) -> str:
    """Return whether the newest values of a curve are below those before, above, or the same."""
    means = [mean for _, mean in series]
    count = max(len(means) // TREND_PARTS, 1)
    if len(means) < 2 * count + 1:
        return ""
    newest = sum(means[-count:]) / count
    before = sum(means[-2 * count : -count]) / count
    spread_of_values = series.high - series.low
    if not math.isfinite(newest - before) or spread_of_values <= 0.0:
        return ""
    change = (newest - before) / spread_of_values
    if change < -0.01:
        return "▼"
    if change > 0.01:
        return "▲"
    return "▬"


class RunHeader(StripView):
    """Three rows: the judgement, the progress, the phases of the iteration.

    There are two where there is little room.
    """

    DEFAULT_CSS = "RunHeader { dock: top; height: 3; }"

    def __init__(self, store: Callable[[], RunStore], explains_trouble: Callable[[], bool]) -> None:
        """Show the run of `store`.

        Where the page `explains_trouble` itself, the header does not say it again.
        """
        super().__init__()
        self._get_store = store
        self._explains_trouble = explains_trouble

    def draw(self, width: int, height: int) -> Sequence[Strip]:
        store = self._get_store()
        says_trouble = not self._explains_trouble()
        first = render_judgement(store, width)
        if height >= 3:
            return [
                first,
                render_progress(store, width),
                phase_row(store, width, says_trouble=says_trouble),
            ]
        has_sentence = store.health.bad and store.health.sentence and says_trouble
        if has_sentence:
            second = phase_row(store, width)
        else:
            second = render_progress(store, width)
        return [first, second][:height]


def render_judgement(store: RunStore, width: int) -> Strip:
    """Return name, status, loss, the monitored metric, the time left, warnings.

    Figures have a fixed width, so that what is behind them stays where it is.
    """
    state = store.state
    health = store.health
    condition = f"{health.glyph} {health.condition.upper()}"
    name = HeaderItem(7, (cut(store.name, MAX_NAME_WIDTH), "strong"))
    if width >= WIDE:
        name = HeaderItem(9, (cut(store.name, width), "strong"))
    items = [
        name,
        HeaderItem(4, (f"#{store.short_id}", "dim")),
        HeaderItem(10, (condition, CONDITION_STYLES.get(health.condition, "warn"))),
        HeaderItem(9, _loss(store, width)),
        HeaderItem(9, _monitored(store, width)),
        HeaderItem(8, _time_left(store) if width >= NORMAL else ""),
        HeaderItem(3, (format_span(state.elapsed), "")),
        HeaderItem(9, _render_pending_request(store)),
    ]
    if store.plan.shuffle is not None:
        items.insert(2, HeaderItem(7, (f"SHUFFLED {store.plan.shuffle}", "warn")))
    if store.has_several_ranks:
        items.append(HeaderItem(6, (f"{state.ranks.world} ranks", "")))
    right = _render_warnings(store, width)
    left = fit_items(items, width - 1 - count_cells(*right))
    return join_ends(width, [" ", *left], right)


def _loss(store: RunStore, width: int) -> Part:
    state = store.state
    if state.not_finite:
        since = ""
        if width >= WIDE:
            since = f" since it {state.not_finite_since}"
        return (f"▲ {state.not_finite}{since}", "alarm")
    series = state.scalars.get("loss")
    if series is None:
        return ""
    return (f"loss {number(series.last):<6} {find_trend_sign(series):1}", "train")


def _monitored(store: RunStore, width: int) -> Part:
    """Return the newest value of the first monitored metric, and its best."""
    metrics = store.state.metrics
    for name in store.state.monitored:
        values = metrics.by_name.get(name)
        if not values:
            continue
        if width >= WIDE:
            shown_name = name
        else:
            shown_name = cut(name, MAX_METRIC_WIDTH)
        text = f"{shown_name} {number(values[-1][1]):<6}"
        best = metrics.best.get(name)
        if best is not None:
            text += _best(number(best.value), best.it, width)
        return (text, "good")
    return ""


def _best(value: str, iteration: int, width: int) -> str:
    """Return the best value.

    It has its iteration where there is room, and is as short as can be where there is little.
    """
    if width >= WIDE:
        return f" (best {value} @{iteration})"
    if width >= NORMAL:
        return f" best {value}"
    return f" ★{value}"


def _time_left(store: RunStore) -> Part:
    if store.state.end is not None or store.health.over:
        return ""
    left = ""
    if store.health.condition in ("running", "paused"):  # else the pace says nothing of now
        left = store.pace.left
    return (f"ETA {left or '–'}", "strong")


def _render_pending_request(store: RunStore) -> Part:
    """Return what was asked of the run and is not answered yet."""
    pending = store.state.pending
    if not pending or store.is_replay:
        return ""
    request = pending[-1]
    return (f"◉ {request.text} requested {format_age(store.clock - request.at)} ago …", "command")


def _render_warnings(store: RunStore, width: int) -> list[Part]:
    """Return the numbers of warnings and errors.

    The moment that is shown is there, too, unless it is the present.
    """
    journal = store.state.journal
    is_wide = width >= WIDE
    warnings = f"▲{journal.warnings}"
    errors = f"✗{journal.errors}"
    if is_wide:
        warnings = format_count(journal.warnings, "warning")
        errors = f"✗{format_count(journal.errors, 'error')}"
    parts: list[Part] = [(f"{warnings} ", "warn" if journal.warnings else "faint")]
    if journal.errors:
        parts.append((f"{errors} ", "error"))
    is_special = store.is_replay or store.is_frozen
    if is_special or is_wide:  # else the status says it
        parts.append((f" {store.badge} ", "badge" if is_special else "strong"))
    return parts


def _render_remarks(store: RunStore, width: int) -> list[Part]:
    """Return why the scores of the run say less than they seem to."""
    state = store.state
    ending = " "
    if width >= WIDE:
        ending = " DATA "
    parts: list[Part] = []
    for word, applies in (("LIMITED", state.limited), ("SYNTHETIC", state.synthetic)):
        if applies:
            parts += [(f" {word}{ending}", "alarm"), " "]
    return parts


def render_progress(store: RunStore, width: int) -> Strip:
    """Return iterations and epochs done, rates, device and memory."""
    state = store.state
    run = store.state.run
    if not run:
        return _render_start(store, width)
    items = []
    if width < NORMAL:
        items.append(HeaderItem(9, _time_left(store)))
    items += [
        HeaderItem(6, (_epoch(store), "")),
        *_list_work_items(state),
        *_list_speed_items(store.pace),
        HeaderItem(3, (f"{run.get('device', '')} {run.get('precision', '')}".strip(), "dim")),
        *_list_machine_items(store),
    ]
    left = _render_iterations(store, width)
    right = _render_remarks(store, width)
    left += fit_items(items, width - count_cells(*left, *right))
    return join_ends(width, left, right)


def _render_start(store: RunStore, width: int) -> Strip:
    """Return what a run has done that has not described itself yet: its newest event."""
    condition = store.health.condition
    entries = [*store.state.journal]
    text = "importing torch, building the model and the data"
    if entries:
        text = entries[-1].text
    says_condition = text.startswith(f"{condition} ")  # as that of the end does
    if says_condition:
        return row(width, f" {text}")
    return row(width, (f" {condition}: ", "dim"), text)


def _format_iterations(store: RunStore) -> str:
    """Return the iterations done and planned, as wide as they become."""
    state = store.state
    total = state.total_iters or None
    return out_of(state.it, total).rjust(len(out_of(total, total)) if total else 1)


def _render_iterations(store: RunStore, width: int) -> list[Part]:
    """Return the iterations done, and where their whole number is known, a bar and the share."""
    word = "iteration"
    if width < NORMAL:  # the time left has no room else
        word = "it"
    parts: list[Part] = [(f" {word} {_format_iterations(store)} ", "strong")]
    total = store.state.total_iters
    if total:
        share = store.state.it / total
        # The bar depends on the width alone, so it does not change while the run goes on.
        bar_width = min(max(width // 7, MIN_BAR_WIDTH), MAX_BAR_WIDTH)
        parts += [*bar(bar_width, share), (f" {100 * share:3.0f} %", "strong")]
    return [*parts, "  "]


def _list_work_items(state: RunState) -> list[HeaderItem]:
    """Return how far the evaluation under way is, and the works of hooks."""
    items = []
    is_evaluating = state.stage in STAGE_NAMES and state.end is None
    if is_evaluating and state.batches:
        text = f"{STAGE_NAMES[state.stage]} {out_of(state.batch, state.batches)}"
        items.append(HeaderItem(7, (text, "val")))
    for work in state.works.values():
        text = f"{format_work_name(work)} {out_of(work['done'], work['total'] or None)}"
        items.append(HeaderItem(7, (text, "hooks")))
    return items


def _list_speed_items(pace: Throughput) -> list[HeaderItem]:
    items = []
    if pace.iters_per_s:
        items.append(HeaderItem(8, (f"{format_speed(pace.iters_per_s):>9}", "")))
    if pace.samples_per_s:
        items.append(HeaderItem(5, (f"{format_many(pace.samples_per_s):>5} samples/s", "")))
    return items


STAGE_NAMES = {"val": "validation", "test": "test"}


def _epoch(store: RunStore) -> str:
    last = store.state.run.get("max_epochs", 0)
    return f"epoch {out_of(store.state.epoch, last or None)}"


def _list_machine_items(store: RunStore) -> list[HeaderItem]:
    machine = store.machine
    if machine is None:
        return []
    items = []
    for gpu in machine.gpus[:1]:
        if gpu.busy is not None:
            items.append(HeaderItem(4, (f"GPU {gpu.busy} %", "")))
        if gpu.used is not None and gpu.total is not None:
            items.append(
                HeaderItem(4, (f"mem {gpu.used / 2**30:.0f}/{gpu.total / 2**30:.0f} GB", ""))
            )
    if not machine.gpus:
        items.append(HeaderItem(2, (f"CPU {machine.cpu:.0f} %", "dim")))
        items.append(HeaderItem(2, (f"RAM {machine.ram:.0f} %", "dim")))
    return items


def phase_row(store: RunStore, width: int, *, says_trouble: bool = True) -> Strip:
    """Return the shares of the phases, the hook that costs most, and what the training waits for.

    The sentence of a run that is in trouble takes their place, unless it stands elsewhere
    (`says_trouble` is false).
    """
    health = store.health
    pace = store.pace
    is_urgent = health.bad or health.condition == "reading" or not pace.iters_per_s
    if health.sentence and is_urgent and says_trouble:
        return row(
            width, (f" {cut(health.sentence, width - 2)} ", "alarm" if health.bad else "strong")
        )
    if not pace.iters_per_s:
        words = "no training iteration yet"
        if store.state.iterating:
            words = "no training iteration in the last 60 s"
        return row(width, (f" {words}", "dim"))
    unit = "%"
    if width >= WIDE:
        unit = " %"
    items = []
    for weight, phase in zip((8, 7, 6, 5, 9, 1), PHASES, strict=True):
        text = f"{PHASE_FILLS[phase]} {phase} {format_percent(pace.phases[phase]):>4}{unit}"
        items.append(HeaderItem(weight, (text, phase)))
    costly = find_costliest_hooks(store.state, store.plan, pace)
    if costly and costly[0][1] >= MIN_COST_SHARE:
        hook, used = costly[0]
        items.append(HeaderItem(4, (f"costliest: {hook} {format_percent(used)} %", "hooks")))
    word = find_bottleneck(store.state, pace)
    right: list[Part] = [(f"{word} ", "strong")] if word else []
    left = fit_items(items, width - 1 - count_cells(*right))
    return join_ends(width, [" ", *left], right)
