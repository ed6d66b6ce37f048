"""The costs of hooks and of the phases of an iteration: number of calls, duration and share."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import median
from typing import Literal

from hookflow.events.records import Acknowledged
from hookflow.graph.collapse import collapse_groups
from hookflow.graph.offload import is_thinned
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.render.loop import Row
from hookflow.monitor.durations import (
    ITERATION_HISTORY,
    SLOWDOWN_FACTOR,
    WINDOW_SECONDS,
    CallTotals,
    compute_median_of_means,
)
from hookflow.monitor.ranks import RankState
from hookflow.monitor.state import RunState
from hookflow.monitor.throughput import Throughput
from hookflow.numbers import format_aligned, format_percent, format_rough
from hookflow.pipeline.groups import GROUP_PREFIX

MIN_COST_SHARE = 0.01
"""The share of the iterations from which on a hook that has become slower is marked."""

HISTORY_PARTS = 64
"""Parts of the run, of whose means the median is the past of a phase."""

MIN_RANK_NS = 1e6
"""The mean of a call, in ns, from which on a rank that takes longer than the others is marked."""

Status = Literal["on", "off", "failed", "throttled", "slower"]

STATUS_SIGNS: dict[Status, tuple[str, str]] = {
    "on": ("●", "good"),
    "off": ("⊘", "error"),
    "failed": ("✗", "error"),
    "throttled": ("▾", "warn"),
    "slower": ("▲", "warn"),
}
"""The sign of a hook, and the name of its style."""

POINT_UNITS = {
    "_val_iter": "bat",
    "_test_iter": "bat",
    "_predict_iter": "bat",
    "_val": "val",
    "_test": "test",
    "save": "save",
    "copy": "save",
}
"""Units in which the calls at a point are counted, by a part of the point's name."""


PASS_POINT = re.compile(r"(?:before|after)_(?P<split>val|test|predict)(?:_epoch|_iter)?")
"""The points of a pass over the data of a split."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """The cost of a hook at one point, or of a phase.

    None, or "", is what is not known, or makes no sense. Durations are in ns. `mean`, `median`,
    `p95`, `longest` and `share` are of one window: the last minute, or the whole attempt. Where
    there were no calls in the last minute (`is_recent` is false), the durations are of the attempt.
    `spent` is the time of all calls in the window, with the checks of a trigger that says no: these
    are no calls, and count in `share` alone beside it. `device` is the mean on an accelerator, of
    the last minute. `slowdown` is how many times as long as before a call takes, if it has become
    slower. `share` is that of the training iterations: None for what is called outside of them.
    """

    every: str = ""
    count: int = 0
    spent: float = 0.0
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    longest: float | None = None
    device: float | None = None
    share: float | None = None
    slowdown: float | None = None
    is_recent: bool = False

    @property
    def is_slower(self) -> bool:
        """Whether it has become slower, and that costs something."""
        return self.slowdown is not None and (self.share or 0.0) >= MIN_COST_SHARE

    @property
    def slowdown_text(self) -> str:
        """How much slower it has become; empty where it has not, or cannot be compared yet."""
        if self.slowdown is None:
            return ""
        return f"{format_rough(self.slowdown)}× slower"


def is_reached(state: RunState, plan: Plan, binding: Binding) -> bool:
    """Return whether the run comes to the point of a binding.

    Its record and its calls show that. A run without data for a validation or a test has none, no
    training predicts, and a run from scratch loads no checkpoint.
    """
    was_called = state.first.timing(binding.id).count > 0
    has_failed = (binding.hook, binding.point) in state.errors
    data = state.run.get("data")
    if was_called or has_failed or not data:
        return True
    point = plan.points[binding.point]
    while point.kind == "own":
        point = plan.points[point.follows]
    if point.name == "after_load_checkpoint":
        return bool(state.run["resumed_from"] or state.run["forked_from"])
    match = PASS_POINT.fullmatch(point.name)
    if match is None:
        return True
    split = match["split"]
    return any(name == split or name.startswith(f"{split}.") for name in data)


def find_unreached_bindings(state: RunState, plan: Plan) -> frozenset[int]:
    """Return the ids of the bindings to whose points the run does not come."""
    return frozenset(
        binding.id for binding in plan.bindings if not is_reached(state, plan, binding)
    )


def find_window_start(state: RunState, plan: Plan, binding: Binding) -> float:
    """Return when the last minute of a binding begins.

    Inside iterations it is that of the training.
    """
    if plan.points.in_iteration(binding.point):
        return state.first.trained - WINDOW_SECONDS
    return state.now - WINDOW_SECONDS


def compute_binding_cost(
    state: RunState, plan: Plan, pace: Throughput, binding: Binding, *, whole_attempt: bool
) -> CallCost:
    """Return the cost of a hook at its point, in the last minute or in the whole attempt."""
    timing = state.first.timing(binding.id)
    every = call_frequency(plan, binding)
    if not timing.count:
        return CallCost(every)
    recent = timing.totals(find_window_start(state, plan, binding))
    attempt = timing.totals()
    is_recent = recent.count > 0
    if whole_attempt:
        spent = timing.total
        iterations = float(state.iterating)
    else:
        spent = recent.total
        iterations = pace.whole
    shown = attempt
    if is_recent and not whole_attempt:
        shown = recent
    share = None
    if plan.points.in_iteration(binding.point) and iterations > 0:
        share = spent / iterations
    slowdown = None
    if timing.slowdown is not None:
        slowdown = timing.slowdown.ratio
    return CallCost(
        every,
        timing.count,
        spent,
        mean=shown.mean,
        median=shown.percentile(0.5),
        p95=shown.percentile(0.95),
        longest=shown.longest,
        device=state.first.device.call(binding.id),
        share=share,
        slowdown=slowdown,
        is_recent=is_recent,
    )


def compute_background_cost(
    state: RunState, plan: Plan, binding: Binding, cost: CallCost, *, whole_attempt: bool
) -> CallCost:
    """Return the cost of a hook.

    An offloaded one has the mean and the longest of its calls in background. Other percentiles of
    its calls are not recorded. The share stays that of the time that the training gave to the hook.
    """
    stats = state.first.beside.get(binding.id)
    if stats is None or stats.count == 0:
        return cost
    recent = stats.totals(find_window_start(state, plan, binding))
    is_recent = recent.count > 0
    shown = stats.totals()
    if is_recent and not whole_attempt:
        shown = recent
    return replace(
        cost,
        mean=shown.mean,
        median=None,
        p95=None,
        longest=shown.longest,
        is_recent=is_recent,
    )


def group_cost(
    state: RunState,
    plan: Plan,
    pace: Throughput,
    members: Sequence[Binding],
    *,
    whole_attempt: bool,
) -> CallCost:
    """Return what the hooks of a group cost together at a point.

    A duration is that of a call of any of them.
    """
    costs = [
        compute_binding_cost(state, plan, pace, member, whole_attempt=whole_attempt)
        for member in members
    ]
    known = [cost for cost in costs if cost.count]
    if not known:
        return CallCost()
    is_recent = any(cost.is_recent for cost in known)
    shown = CallTotals()
    for member in members:
        timing = state.first.timing(member.id)
        if is_recent and not whole_attempt:
            shown.merge(timing.totals(find_window_start(state, plan, member)))
        else:
            shown.merge(timing.totals())
    frequencies = {cost.every for cost in costs}
    shares = [cost.share for cost in known if cost.share is not None]
    return CallCost(
        every=costs[0].every if len(frequencies) == 1 else "",
        count=sum(cost.count for cost in known),
        spent=sum(cost.spent for cost in known),
        mean=shown.mean,
        median=shown.percentile(0.5),
        p95=shown.percentile(0.95),
        longest=shown.longest,
        share=sum(shares) if shares else None,
        is_recent=is_recent,
    )


def phase_cost(state: RunState, pace: Throughput, name: str, *, whole_attempt: bool) -> CallCost:
    """Return the cost of an iteration's phase, or of the iteration (`ITERATION_HISTORY`)."""
    minute = state.first.minute
    count = minute.sums["iters"]
    before = compute_median_of_means(
        state.histories.of(name).compute_means(state.it + 1, HISTORY_PARTS)
    )
    if not count or not before:
        return CallCost()
    is_iteration = name == ITERATION_HISTORY
    if is_iteration:
        device = state.first.device.iteration()
    else:
        device = state.first.device.phase(name)
    if whole_attempt:
        times = state.first.attempt
    else:
        times = minute
    iters = times.sums["iters"]
    whole = times.sums["ns"]
    if is_iteration:
        spent = whole
    else:
        spent = times.by_phase[name]
    # Spikes weigh nothing in a median.
    recent = minute.compute_median("ns" if is_iteration else name)
    slowdown = None
    if recent >= SLOWDOWN_FACTOR * before:
        slowdown = recent / before
    return CallCost(
        count=iters if is_iteration else 0,
        spent=spent,
        mean=spent / iters if iters else None,
        device=device,
        share=spent / whole if whole else None,
        slowdown=slowdown,
        is_recent=True,
    )


def row_cost(
    state: RunState, plan: Plan, pace: Throughput, row: Row, *, whole_attempt: bool
) -> CallCost:
    """Return the cost of a row of the loop; rounds other than the iteration have none."""
    if row.binding is not None:
        return compute_binding_cost(state, plan, pace, row.binding, whole_attempt=whole_attempt)
    if row.kind == "phase" or row.name == ITERATION_HISTORY:
        return phase_cost(state, pace, row.name, whole_attempt=whole_attempt)
    return CallCost()


def call_frequency(plan: Plan, binding: Binding) -> str:
    """Return how often a hook is called, in a few characters.

    Such texts are "1 it", "2 ep", "once", "each" time.
    """
    point = plan.points[binding.point]
    every = binding.trigger.every
    unit = point.unit
    if unit == "firing":
        unit = ""
        for part, short in POINT_UNITS.items():
            if part in point.name:
                unit = short
                break
    if every is None:
        if unit:
            return f"1 {unit}"
        if point.kind == "standard":
            return "once"
        return "each"
    match = re.fullmatch(r"([\d.]+)\s*(\D*)", str(every))
    if match is None:
        return str(every)
    return f"{match[1]} {match[2] or unit}"


def hook_status(state: RunState, plan: Plan, binding: Binding, cost: CallCost) -> Status:
    """Return what is to be known first of a hook at its point."""
    if binding.hook in state.disabled:
        return "off"
    if (binding.hook, binding.point) in state.errors:
        return "failed"
    if binding.hook in state.throttled and is_thinned(plan, binding):
        return "throttled"
    if cost.is_slower:
        return "slower"
    return "on"


def find_pending_switch(state: RunState, hook: str) -> str:
    """Return "off" or "on" where a command that switches a hook is not answered yet; else ""."""
    switch = ""
    for request in state.pending:
        if request.cmd in ("off", "on") and tuple(request.args) == (hook,):
            switch = request.cmd
    return switch


def list_settings(state: RunState, plan: Plan, hook: str) -> list[Acknowledged]:
    """Return the commands that have set arguments of a hook last."""
    made = [state.find_setting(hook, argument) for argument in plan.hook(hook).settable]
    return [each for each in made if each is not None]


def find_slowest_rank(
    ranks: dict[int, RankState], binding: Binding, begin: float
) -> tuple[int, float] | None:
    """Return the rank whose calls take longest.

    The second value is how many times as long as those of the others (a median) they take. The
    result is None where fewer than two ranks have called the hook since `begin`.
    """
    means: dict[int, float] = {}
    for number, rank in ranks.items():
        recent = rank.timing(binding.id).totals(begin)
        if recent.count:
            means[number] = recent.mean
    if len(means) < 2:
        return None
    slowest = max(means, key=lambda number: means[number])
    others = [mean for number, mean in means.items() if number != slowest]
    usual_mean = median(others)
    if usual_mean <= 0:
        return None
    return slowest, means[slowest] / usual_mean


def fold_groups(plan: Plan, folded: Collection[str]) -> Plan:
    """Return the plan with the members of each folded group as one binding.

    They are one where they stand together.
    """
    groups = [group for group in plan.groups if group.name in folded]
    if not groups:
        return plan
    return collapse_groups(plan, groups)


def group_of(plan: Plan, hook: str) -> str:
    """Return the first group that a hook belongs to; "" for a hook of none."""
    for group in plan.groups:
        if hook in group.members:
            return group.name
    return ""


def matching_bindings(plan: Plan, filter_text: str) -> set[int]:
    """Return the ids of the bindings that a filter matches.

    Each word of it is a part, or a glob of a whole name. The names are those of the hook, of its
    point and of its groups ("group:NAME"), and what the hook is made of.
    """
    groups: dict[str, list[str]] = {}
    for group in plan.groups:
        for member in group.members:
            groups.setdefault(member, []).append(f"{GROUP_PREFIX}{group.name}".lower())
    words = filter_text.lower().split()
    matching = set()
    for binding in plan.bindings:
        own_names = (
            binding.hook.lower(),
            binding.point.lower(),
            plan.hook(binding.hook).use.lower(),
        )
        names = (*own_names, *groups.get(binding.hook, ()))
        if all(_matches_any(names, word) for word in words):
            matching.add(binding.id)
    return matching


def _matches_any(names: tuple[str, ...], word: str) -> bool:
    return any(word in name or fnmatchcase(name, word) for name in names)


def format_costs(
    state: RunState, plan: Plan, write: Callable[[CallCost, bool], str]
) -> dict[int, str]:
    """Return for each hook that was called what it cost in the whole attempt, written by `write`.

    `write` gets the cost, and whether the run has times on a device.
    """
    pace = Throughput.of(state)
    has_device = state.first.device.iteration() is not None
    texts = {}
    for binding in plan.bindings:
        cost = compute_binding_cost(state, plan, pace, binding, whole_attempt=True)
        if cost.count > 0:
            texts[binding.id] = write(cost, has_device)
    return texts


def cost_columns(cost: CallCost, has_device: bool) -> str:
    """Return calls, median and share of the iterations.

    Where the run has times on a device, the mean there is returned, too.
    """
    columns = [f"{cost.count:>9,}", format_aligned(cost.median or 0.0)]
    if has_device:
        device = ""
        if cost.device:
            device = format_aligned(cost.device)
        columns.append(f"{device:>8}")
    if cost.share is None:
        share = "·"
    else:
        share = format_percent(cost.share)
    columns.append(f"{share:>5}")
    return " ".join(columns)
