"""Hooks that leave the training its time.

Offloaded hooks fire beside the training, and throttled ones less often than they are due. A slot,
an edge or another hook can prevent either.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hookflow.errors import Problem, Where
from hookflow.graph.plan import Binding, BindingKey, DeclaredBinding, Edge, Nodes, Plan, WhenFull
from hookflow.graph.points import Points
from hookflow.graph.slots import SLOT_DOCS, SlotParts, find_owner, root

Offload = bool | Literal["auto", "process"]

COPIED_SLOTS = frozenset({"batch", "outputs", "metrics", "model", "grads", "scalars"})
"""Slots that a firing beside the training receives as copies, or needs no copy of."""

OWNED_SLOTS = frozenset(SLOT_DOCS) - {"scalars", "hook"}
"""Slots that the training thread alone writes, since it reads them at any time."""

OFFERED_ATTRIBUTES = frozenset(
    {
        *("iter", "epoch", "batch_idx", "batch_size", "batch_weight", "max_iters", "max_epochs"),
        *("iters_per_epoch", "epoch_lengths", "stage", "split"),
        *(
            "metrics",
            "train_seconds",
            "device",
            "precision",
            "rank",
            "world",
            "dir",
            "is_temporary",
            "is_predicting",
        ),
        *("model", "models"),
        *("log", "log_image", "log_figure", "log_text", "log_histogram", "say"),
    }
)
"""The attributes of the run that an offloaded hook has."""

MAIN_THREAD_POINTS = frozenset(
    {
        *("before_run", "after_run", "on_exception", "on_log", "before_train", "after_train"),
        *(
            "after_load_checkpoint",
            "before_save_checkpoint",
            "after_copy_checkpoint",
            "after_save_checkpoint",
        ),
    }
)
"""Points at which an offloaded hook fires in the training thread, after its firings before.

These points come once, or offer the state itself.
"""


def find_awaited_hooks(plan: Plan, binding: Binding) -> list[str]:
    """Return the offloaded hooks that a binding waits for.

    A stated edge puts them before it, or one is its own hook.
    """
    if binding.beside:
        return []
    hooks: dict[str, None] = {}
    for edge in plan.edges_at(binding.point):
        if edge.then_id == binding.id and edge.kind != "flow":
            hooks[edge.first] = None
    hooks[binding.hook] = None
    return [hook for hook in hooks if plan.hook(hook).queue]


SETTLED_POINTS = ("before_val", "before_save_checkpoint", "after_run")
"""Points before which the run waits for every offloaded hook."""


class ThreadSpan(NamedTuple):
    """The rows beside which a hook may be at work in its thread.

    If it `joins`, the last one waits for it.
    """

    first: int
    last: int
    joins: bool
    hook: str


def iter_threads(plan: Plan, rows: Sequence[Binding]) -> Iterator[ThreadSpan]:
    """Yield for each offloaded hook the rows from its first firing to the one that waits for it.

    The row that waits comes after the hook's last firing.
    """
    for hook in plan.hooks:
        if not hook.queue:
            continue
        fires = []
        for row, binding in enumerate(rows):
            if binding.hook == hook.name and binding.beside:
                fires.append(row)
        if not fires:
            continue
        waiting = _find_waiting_row(plan, rows, hook.name, fires[-1] + 1)
        if waiting is None:
            yield ThreadSpan(fires[0], len(rows) - 1, False, hook.name)
        else:
            yield ThreadSpan(fires[0], waiting, True, hook.name)


def _find_waiting_row(plan: Plan, rows: Sequence[Binding], hook: str, begin: int) -> int | None:
    """Return the first row from `begin` on that waits for an offloaded hook; None if none does."""
    for row in range(begin, len(rows)):
        if rows[row].point in SETTLED_POINTS or hook in find_awaited_hooks(plan, rows[row]):
            return row
    return None


@dataclass(frozen=True, slots=True)
class OffloadRequest:
    """The keys of a hook about its thread, where they stand, and what in its source is in the way.

    `at` are the bindings that are to be offloaded, by point and half.
    """

    offload: Offload
    at: Collection[BindingKey]
    queue: int
    when_full: WhenFull
    timeout: float
    where: Where
    obstacle: str = ""


def find_obstacles(
    points: Points,
    bindings: Sequence[DeclaredBinding],
    hook: str,
    requested: Sequence[DeclaredBinding],
) -> Iterator[str]:
    """Yield what keeps the `requested` bindings of a hook in the training thread.

    `bindings` are those of all hooks.
    """
    if not requested:
        yield "it fires at no point of the loop"
    for binding in requested:
        point = points[binding.point]
        if binding.point in MAIN_THREAD_POINTS:
            yield (
                f"at {binding.point}, which comes once or offers the state itself, it fires in the"
                " training thread"
            )
        elif binding.half != "whole":
            yield f"it is half of an around at {binding.point}"
        elif point.kind not in ("standard", "step", "own"):
            yield f"at {binding.point} it is called in the middle of PyTorch's own work"
        for slot in binding.reads:
            if root(slot) not in COPIED_SLOTS and find_owner(slot) != hook:
                yield f"it reads {slot} at {binding.point}, of which no copy is made"
        for slot in binding.writes:
            if root(slot) in OWNED_SLOTS:
                yield f"it writes {slot} at {binding.point}"
    yield from _find_readers(bindings, hook, requested)


def _find_readers(
    bindings: Sequence[DeclaredBinding], hook: str, writing: Sequence[DeclaredBinding]
) -> Iterator[str]:
    """Yield who of all `bindings` reads what a hook writes in some of its own."""
    written: dict[str, None] = {}
    for binding in writing:
        written |= dict.fromkeys(binding.writes)
    for other in bindings:
        if other.hook == hook:
            continue
        parts = SlotParts((*written, *other.reads))
        shared = parts.of(written) & parts.of(other.reads)
        if shared:
            yield f'"{other.hook}" reads {min(shared)} at {other.point}, which it writes'


def is_thinned(plan: Plan, binding: Binding) -> bool:
    """Return whether a binding skips firings while its hook is over its budget.

    It does where it costs iterations their time. The second half of an around follows the first.
    """
    if binding.half == "exit" or not plan.points.in_iteration(binding.point):
        return False
    return bool(plan.hook(binding.hook).throttle)


@dataclass(frozen=True, slots=True)
class ThrottleRequest:
    """A request that a hook keeps its budget by firing less often.

    It has the place in the file, and what is in the way.

    `stateful` says whether its state is saved.
    """

    where: Where
    stateful: bool
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class ThrottleFindings:
    """Notes on the throttled hooks of a plan: those that may skip no firing, warnings and notes."""

    problems: list[Problem]
    warnings: list[Problem]
    notes: list[Problem]


def check_throttling(
    plan: Plan, requests: Mapping[str, ThrottleRequest], nodes: Nodes
) -> ThrottleFindings:
    """Return what is wrong with the throttled hooks of a plan.

    A warning names who comes after such a hook, a note one that saves a state: both depend on how
    often it fires.
    """
    findings = ThrottleFindings([], [], [])
    for name, request in requests.items():
        obstacle = next(_iter_reasons_to_fire(plan, name, nodes), request.obstacle)
        if obstacle:
            message = f'hook "{name}" cannot fire less often: {obstacle}'
            findings.problems.append(Problem(message, request.where, 'over_budget = "warn"'))
            continue
        if request.stateful:
            message = (
                f'"{name}" saves a state; with over_budget = "throttle" that depends on the speed'
                " of the machine"
            )
            findings.notes.append(Problem(message, request.where))
        for edge in _edges_from_thinned(plan, name):
            message = (
                f'"{edge.then}" comes after "{name}" ({edge.where}), and fires without it where'
                " that is skipped"
            )
            findings.warnings.append(Problem(message, request.where))
    return findings


def _edges_from_thinned(plan: Plan, hook: str) -> Collection[Edge]:
    """Return the stated edges that lead from firings which may be skipped.

    Only the last one to each other hook is returned.
    """
    edges: dict[str, Edge] = {}
    for edge in plan.edges:
        is_stated = edge.kind in ("file", "class")
        if edge.first == hook and is_stated and is_thinned(plan, plan.bindings[edge.first_id]):
            edges[edge.then] = edge
    return edges.values()


def _iter_reasons_to_fire(plan: Plan, hook: str, nodes: Nodes) -> Iterator[str]:
    """Yield why a hook must fire whenever it is due."""
    bindings = [binding for binding in plan.bindings if binding.hook == hook]
    for binding in bindings:
        if plan.points[binding.point].kind == "comm":
            yield f"at {binding.point} it takes the place of PyTorch's own work"
        for slot in binding.writes:
            if root(slot) in OWNED_SLOTS:
                yield (
                    f"it writes {slot} at {binding.point}, which would depend on the speed of the"
                    " machine"
                )
    if not any(is_thinned(plan, binding) for binding in bindings):
        yield "it fires at no point of an iteration"
    yield from _find_readers(plan.bindings, hook, bindings)
    for other in nodes.values():
        if any(spec.hook == hook for spec in other.requires):
            yield f'"{other.hook.name}" requires it'
