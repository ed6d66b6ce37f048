"""Pairs of hooks that nothing orders, and orders in which some of them are turned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from hookflow.graph.order import Places
from hookflow.graph.plan import Binding, Half, Plan
from hookflow.graph.why import Decided

Key = tuple[str, Half]
"""A binding of a point, whatever its place: the hook, and which half of an around it is."""


@dataclass(frozen=True, slots=True)
class Pair:
    """`first` fires before `then` at `point`."""

    point: str
    first: Key
    then: Key

    @property
    def turned(self) -> Pair:
        return Pair(self.point, self.then, self.first)

    @property
    def hooks(self) -> tuple[str, str]:
        return self.first[0], self.then[0]


def unordered(plan: Plan) -> Iterator[Pair]:
    """Yield each pair of two hooks that nothing orders, but for arounds as they are left."""
    allowed = {frozenset((hook.name, other)) for hook in plan.hooks for other in hook.ambiguous_with}
    for point in plan.order:
        decided = Decided(plan, point)
        for first, then in combinations(plan.at(point), 2):
            if first.hook == then.hook or first.half == then.half == "exit":
                continue
            if decided.is_open(first, then) and frozenset((first.hook, then.hook)) not in allowed:
                yield pair_of(point, first, then)


def pair_of(point: str, first: Binding, then: Binding) -> Pair:
    return Pair(point, key(first), key(then))


def key(binding: Binding) -> Key:
    return binding.hook, binding.half


def meeting_points(plan: Plan, hook: str, other: str) -> set[str]:
    """Return the points at which two hooks both fire, but for those where arounds are left."""
    at = [{b.point for b in plan.bindings if b.hook == name and b.half != "exit"} for name in (hook, other)]
    return at[0] & at[1]


def keys(plan: Plan) -> tuple[tuple[str, Key], ...]:
    """Return every binding in order: the identity of an order of the same hooks."""
    return tuple((binding.point, key(binding)) for binding in plan.bindings)


def turned(plan: Plan, other: Plan) -> list[Pair]:
    """Return the pairs of `plan` that fire the other way round in `other`, but for how arounds are left."""
    result = []
    for point in plan.order:
        row = {key(binding): row for row, binding in enumerate(other.at(point))}
        for first, then in combinations(map(key, plan.at(point)), 2):
            if row[first] > row[then] and not first[1] == then[1] == "exit":
                result.append(Pair(point, first, then))
    return result


def neighbouring(plan: Plan, pairs: Collection[Pair]) -> list[Pair]:
    """Return pairs that stand one right behind the other, as they stand there; no two of them share a binding."""
    result = []
    for point in plan.order:
        there = [*map(key, plan.at(point))]
        row = 0
        while row + 1 < len(there):
            pair = Pair(point, there[row], there[row + 1])
            if pair in pairs or pair.turned in pairs:
                result.append(pair)
                row += 1
            row += 1
    return result


def swapped(plan: Plan, swaps: Iterable[Pair]) -> Places:
    """Return the order of a plan after neighbours have changed places, one pair after the other."""
    order = {point: [*map(key, plan.at(point))] for point in plan.order}
    for swap in swaps:
        there = order[swap.point]
        row = there.index(swap.first)
        there[row : row + 2] = [swap.then, swap.first]
    return _places(order.items())


def brought_together(plan: Plan, pairs: Iterable[Pair], free: Collection[Pair]) -> Places:
    """Return an order in which a pair of each point stands one right behind the other, if that can be.

    `free` are the pairs that may fire either way. Bindings that must follow the first of a pair move behind the second;
    all else between them, ahead of the first.
    """
    wanted = {pair.point: pair for pair in reversed(list(pairs))}
    order = {point: [*map(key, plan.at(point))] for point in plan.order}
    for point, pair in wanted.items():
        there = order[point]
        begin, end = sorted((there.index(pair.first), there.index(pair.then)))
        ahead: list[Key] = []
        behind = [there[begin]]
        for item in there[begin + 1 : end]:
            between = [Pair(point, other, item) for other in behind]
            follows = any(pair not in free and pair.turned not in free for pair in between)
            (behind if follows else ahead).append(item)
        there[begin : end + 1] = [*ahead, there[begin], there[end], *behind[1:]]
    return _places(order.items())


def swaps_between(plan: Plan, other: Plan) -> list[Pair]:
    """Return which neighbours change places, one pair after the other, from one plan's order to another's."""
    swaps = []
    for point in plan.order:
        there = [*map(key, plan.at(point))]
        row = {key(binding): row for row, binding in enumerate(other.at(point))}
        for k in range(1, len(there)):
            while k > 0 and row[there[k - 1]] > row[there[k]]:
                swaps.append(Pair(point, there[k - 1], there[k]))
                there[k - 1 : k + 1] = [there[k], there[k - 1]]
                k -= 1
    return swaps


def _places(order: Iterable[tuple[str, Sequence[Key]]]) -> Places:
    return {(point, *item): place for point, there in order for place, item in enumerate(there)}
