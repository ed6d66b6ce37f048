"""Where the order matters and nobody has stated it.

Two hooks at one point that touch a slot, at least one of them writing, and that nothing but the file's order puts one
before the other: another file, or a shuffle, and the run ends differently. It is the same where an edge to a third hook
has moved one of them into another phase, and where one of them is a second half, which comes last in its phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hookflow.graph.keyed import Parts, widest
from hookflow.graph.links import Decided
from hookflow.graph.plan import Binding, Plan
from hookflow.graph.points import Point
from hookflow.graph.slots import commutes


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """`first` fires before `then` at `point`, and only the file (or the shuffle) says so; both touch `slots`."""

    point: str
    first: Binding
    then: Binding
    slots: tuple[str, ...]


def ambiguities(plan: Plan) -> Iterator[Ambiguity]:
    """Yield each ambiguous pair that the pipeline does not allow by `ambiguous_with`, point by point in firing order.

    It is lazy: where thousands of hooks write one slot, so are the pairs.
    """
    allowed = {frozenset((hook.name, other)) for hook in plan.hooks for other in hook.ambiguous_with}
    for point in dict.fromkeys(binding.point for binding in plan.bindings):
        for first, then in _clashing(plan, point):
            if first.hook != then.hook and frozenset((first.hook, then.hook)) not in allowed:
                yield Ambiguity(point, first, then, clash(plan.points[point], first, then))


def ways_to_state(first: str, then: str) -> tuple[str, str, str]:
    """Return how a file says in which order two hooks must fire, either way, or that it does not matter.

    Which is right nobody but its author knows: that `first` fires first today may be the mistake.
    """
    return (
        f'{first} first, as now: after = ["{first}"] in [hooks.{then}]',
        f'{then} first: after = ["{then}"] in [hooks.{first}]',
        f'either: ambiguous_with = ["{first}"] in [hooks.{then}]',
    )


def _clashing(plan: Plan, point: str) -> Iterator[tuple[Binding, Binding]]:
    """Yield the pairs of one point that clash over a slot, and that nothing that was said of them orders.

    How two arounds are left follows from how they are entered, so that is asked where they are entered. Sets of rows
    are whole numbers, a bit a row, as in `hookflow.graph.closure`.
    """
    bound = plan.at(point)
    parts = Parts(slot for binding in bound for slot in (*binding.reads, *binding.writes))
    readers: dict[str, int] = {}
    writers: dict[str, int] = {}
    exits = 0
    for row, binding in enumerate(bound):
        for slots, users in ((binding.reads, readers), (binding.writes, writers)):
            for slot in parts.of(slots):
                users[slot] = users.get(slot, 0) | 1 << row
        exits |= (binding.half == "exit") << row
    if not writers:
        return
    decided = Decided(plan, point)
    for row, then in enumerate(bound):
        touching = 0
        for slot in parts.of(then.reads):
            touching |= writers.get(slot, 0)
        for slot in parts.of(then.writes):
            touching |= readers.get(slot, 0) | (0 if commutes(slot, plan.points[point]) else writers[slot])
        above = touching & (1 << row) - 1 & ~decided.ancestors[row]
        above &= ~exits if then.half == "exit" else -1
        while above:
            lowest = above & -above
            above ^= lowest
            first = lowest.bit_length() - 1
            if decided.is_open(bound[first], then):
                yield bound[first], then


def clash(point: Point, first: Binding, then: Binding) -> tuple[str, ...]:
    """Return the slots that one of them writes and the other one reads, or both write."""
    parts = Parts((*first.reads, *first.writes, *then.reads, *then.writes))
    writes, also_writes = parts.of(first.writes), parts.of(then.writes)
    read = writes & parts.of(then.reads) | also_writes & parts.of(first.reads)
    return widest(read | {slot for slot in writes & also_writes if not commutes(slot, point)})
