"""Where the order matters and nobody has stated it.

Two hooks at one point that touch a slot, at least one of them writing, and that nothing but the file's order puts one
before the other: another file, or a shuffle, and the run ends differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hookflow.graph.closure import closure
from hookflow.graph.links import stated
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
                yield Ambiguity(point, first, then, _slots(plan.points[point], first, then))


def _clashing(plan: Plan, point: str) -> Iterator[tuple[Binding, Binding]]:
    """Yield the pairs of one point that clash over a slot, with no way of edges and no phase between them.

    Sets of rows are whole numbers, a bit a row, as in `hookflow.graph.closure`.
    """
    bound = plan.at(point)
    readers: dict[str, int] = {}
    writers: dict[str, int] = {}
    alike: dict[tuple[str, bool], int] = {}
    for row, binding in enumerate(bound):
        for slots, users in ((binding.reads, readers), (binding.writes, writers)):
            for slot in slots:
                users[slot] = users.get(slot, 0) | 1 << row
        alike[_place(binding)] = alike.get(_place(binding), 0) | 1 << row
    if not writers:
        return
    ancestors = _ancestors(plan, point)
    for row, then in enumerate(bound):
        clash = 0
        for slot in then.reads:
            clash |= writers.get(slot, 0)
        for slot in then.writes:
            clash |= readers.get(slot, 0) | (0 if commutes(slot, plan.points[point]) else writers[slot])
        above = clash & (1 << row) - 1 & alike[_place(then)] & ~ancestors[row]
        while above:
            lowest = above & -above
            above ^= lowest
            yield bound[lowest.bit_length() - 1], then


def _place(binding: Binding) -> tuple[str, bool]:
    """Return what must be the same for the file's order to decide; see `hookflow.graph.links.unstated`."""
    return binding.phase, binding.half == "exit"


def _ancestors(plan: Plan, point: str) -> list[int]:
    """Return, for each row of a point, the rows that edges put before it."""
    row_of = {binding.id: row for row, binding in enumerate(plan.at(point))}
    before: list[list[int]] = [[] for _ in row_of]
    for link in stated(plan, point):
        before[row_of[link.then.id]].append(row_of[link.first.id])
    return closure(before, range(len(before)))


def _slots(point: Point, first: Binding, then: Binding) -> tuple[str, ...]:
    """Return the slots that one of them writes and the other one reads, or both write."""
    read = {*first.writes} & {*then.reads} | {*then.writes} & {*first.reads}
    written = {slot for slot in {*first.writes} & {*then.writes} if not commutes(slot, point)}
    return tuple(sorted(read | written))
