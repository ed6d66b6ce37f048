"""Hooks that leave the training its time: offloaded ones fire beside it, throttled ones less often than they are due.

A slot, an edge or another hook can prevent either.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Binding, Half, Nodes, Plan, PlannedHook, WhenFull
from hookflow.graph.slots import SLOTS, Parts, owner_of, root

Offload = bool | Literal["auto", "process"]

COPIED = frozenset({"batch", "outputs", "metrics", "model", "grads", "scalars"})
"""Slots that a firing beside the training receives as copies, or needs no copy of."""

OWNED = frozenset(SLOTS) - {"scalars", "hook"}
"""Slots that the training thread alone writes, since it reads them at any time."""

OFFERED = frozenset(
    {
        *("iter", "epoch", "batch_idx", "batch_size", "batch_weight", "max_iters", "max_epochs"),
        *("iters_per_epoch", "stage", "split"),
        *("metrics", "train_seconds", "device", "precision", "rank", "world", "dir", "is_temporary", "is_predicting"),
        *("model", "models"),
        *("log", "log_image", "log_figure", "log_text", "log_histogram", "say"),
    }
)
"""The attributes of the run that an offloaded hook has."""

APART = frozenset(
    {
        *("before_run", "after_run", "on_exception", "on_log", "before_train", "after_train"),
        *("after_load_checkpoint", "before_save_checkpoint", "after_copy_checkpoint", "after_save_checkpoint"),
    }
)
"""Points that come once, or that offer the state itself: an offloaded hook fires there in the training thread, after
its firings before."""


def awaited(plan: Plan, binding: Binding) -> list[str]:
    """Return the offloaded hooks that a binding waits for: those that a stated edge puts before it, and its own."""
    if binding.beside:
        return []
    before = [edge.first for edge in plan.edges_at(binding.point) if edge.then_id == binding.id and edge.kind != "flow"]
    return [hook for hook in dict.fromkeys([*before, binding.hook]) if plan.hook(hook).queue]


SETTLED = ("before_val", "before_save_checkpoint", "after_run")
"""Points before which the run waits for every offloaded hook."""


class Thread(NamedTuple):
    """The rows beside which a hook may be at work in its thread. If it `joins`, the last one waits for it."""

    first: int
    last: int
    joins: bool
    hook: str


def threads(plan: Plan, rows: Sequence[Binding]) -> Iterator[Thread]:
    """Yield for each offloaded hook the rows from its first firing to the one, after its last, that waits for it."""
    for hook in (hook.name for hook in plan.hooks if hook.queue):
        fires = [k for k, binding in enumerate(rows) if binding.hook == hook and binding.beside]
        if fires:
            after = range(fires[-1] + 1, len(rows))
            waits = (k for k in after if hook in awaited(plan, rows[k]) or rows[k].point in SETTLED)
            last = next(waits, None)
            yield Thread(fires[0], len(rows) - 1 if last is None else last, last is not None, hook)


@dataclass(frozen=True, slots=True)
class Wish:
    """The keys of a hook about its thread, where they stand, and what in its source is in the way.

    `at` are the bindings that are to be offloaded, by point and half.
    """

    offload: Offload
    at: Collection[tuple[str, Half]]
    queue: int
    when_full: WhenFull
    timeout: float
    where: Where
    obstacle: str = ""


def with_offloading(plan: Plan, wishes: Mapping[str, Wish]) -> tuple[Plan, list[Problem]]:
    """Return the plan with its offloaded hooks, and a problem for each that is stated to be one and cannot be.

    A note says why a hook of `offload = "auto"` stays in the training thread.
    """
    hooks: list[PlannedHook] = []
    problems: list[Problem] = []
    notes: list[Problem] = []
    beside: set[int] = set()
    for hook in plan.hooks:
        wish = wishes[hook.name]
        mine = [each for each in plan.bindings if each.hook == hook.name and (each.point, each.half) in wish.at]
        obstacle = next(obstacles(plan, hook.name, mine), wish.obstacle) if wish.offload else ""
        if wish.offload and not obstacle:
            in_process = wish.offload == "process"
            hook = replace(
                hook, queue=wish.queue, when_full=wish.when_full, timeout=wish.timeout, in_process=in_process
            )
            beside.update(binding.id for binding in mine)
        elif wish.offload == "auto":
            message = f'hook "{hook.name}" (offload = "auto") fires in the training thread: {obstacle}'
            notes.append(Problem(message, wish.where))
            hook = replace(hook, obstacle=obstacle)
        elif obstacle:
            problems.append(Problem(f'hook "{hook.name}" cannot be offloaded: {obstacle}', wish.where))
        elif wish.timeout:
            message = f'hook "{hook.name}" has a timeout, which is for a hook with offload = true'
            problems.append(Problem(message, wish.where))
        hooks.append(hook)
    bindings = tuple(replace(each, beside=True) if each.id in beside else each for each in plan.bindings)
    return replace(plan, hooks=tuple(hooks), bindings=bindings, notes=(*plan.notes, *notes)), problems


def obstacles(plan: Plan, hook: str, bindings: Sequence[Binding]) -> Iterator[str]:
    """Yield what keeps these bindings of a hook in the training thread."""
    if not bindings:
        yield "it fires at no point of the loop"
    for binding in bindings:
        point = plan.points[binding.point]
        if binding.point in APART:
            yield f"at {binding.point}, which comes once or offers the state itself, it fires in the training thread"
        elif binding.half != "whole":
            yield f"it is half of an around at {binding.point}"
        elif point.kind not in ("standard", "step", "own"):
            yield f"at {binding.point} it is called in the middle of PyTorch's own work"
        for slot in binding.reads:
            if root(slot) not in COPIED and owner_of(slot) != hook:
                yield f"it reads {slot} at {binding.point}, of which no copy is made"
        for slot in binding.writes:
            if root(slot) in OWNED:
                yield f"it writes {slot} at {binding.point}"
    yield from read_by_others(plan, hook, bindings)


def read_by_others(plan: Plan, hook: str, bindings: Sequence[Binding]) -> Iterator[str]:
    """Yield who reads what a hook writes in these of its bindings."""
    written = {slot for binding in bindings for slot in binding.writes}
    for other in plan.bindings:
        parts = Parts((*written, *other.reads))
        if other.hook != hook and (shared := parts.of(written) & parts.of(other.reads)):
            yield f'"{other.hook}" reads {min(shared)} at {other.point}, which it writes'


def is_thinned(plan: Plan, binding: Binding) -> bool:
    """Return whether a binding skips firings while its hook is over its budget: where it costs iterations their time.

    The second half of an around follows the first.
    """
    costs = binding.half != "exit" and plan.points.in_iteration(binding.point)
    return costs and bool(plan.hook(binding.hook).throttle)


@dataclass(frozen=True, slots=True)
class Limit:
    """The budget that a hook is to keep by firing less often, where the file says so, and what is in the way.

    `stateful` says whether its state is saved.
    """

    budget: str
    where: Where
    stateful: bool
    obstacle: str = ""


def with_throttling(plan: Plan, limits: Mapping[str, Limit], nodes: Nodes) -> tuple[Plan, list[Problem]]:
    """Return the plan with its throttled hooks, and a problem for each hook that may skip no firing.

    A warning names who comes after such a hook, a note one that saves a state: both depend on how often it fires.
    """
    hooks = [replace(h, throttle=limits[h.name].budget) if h.name in limits else h for h in plan.hooks]
    plan = replace(plan, hooks=tuple(hooks))
    problems: list[Problem] = []
    warnings: list[Problem] = []
    notes: list[Problem] = []
    for name, limit in limits.items():
        if obstacle := next(_reasons_to_fire(plan, name, nodes), limit.obstacle):
            message = f'hook "{name}" cannot fire less often: {obstacle}'
            problems.append(Problem(message, limit.where, 'over_budget = "warn"'))
            continue
        if limit.stateful:
            message = f'"{name}" saves a state; with over_budget = "throttle" that depends on the speed of the machine'
            notes.append(Problem(message, limit.where))
        edges = [edge for edge in plan.edges if edge.first == name and edge.kind in ("file", "class")]
        for edge in {edge.then: edge for edge in edges if is_thinned(plan, plan.bindings[edge.first_id])}.values():
            message = f'"{edge.then}" comes after "{name}" ({edge.where}), and fires without it where that is skipped'
            warnings.append(Problem(message, limit.where))
    return replace(plan, warnings=(*plan.warnings, *warnings), notes=(*plan.notes, *notes)), problems


def _reasons_to_fire(plan: Plan, hook: str, nodes: Nodes) -> Iterator[str]:
    """Yield why a hook must fire whenever it is due."""
    bindings = [binding for binding in plan.bindings if binding.hook == hook]
    for binding in bindings:
        if plan.points[binding.point].kind == "comm":
            yield f"at {binding.point} it takes the place of PyTorch's own work"
        for slot in binding.writes:
            if root(slot) in OWNED:
                yield f"it writes {slot} at {binding.point}, which would depend on the speed of the machine"
    if not any(is_thinned(plan, binding) for binding in bindings):
        yield "it fires at no point of an iteration"
    yield from read_by_others(plan, hook, bindings)
    for other in nodes.values():
        if any(spec.hook == hook for spec in other.requires):
            yield f'"{other.hook.name}" requires it'
