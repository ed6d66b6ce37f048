"""Orders of the same hooks.

The module finds the pairs that nothing orders, and the orders in which some of them change places.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from hookflow.graph.plan import Binding, Half, Plan, WantedPlaces
from hookflow.graph.why import read_decisions

BindingKey = tuple[str, Half]
"""A binding of a point, whatever its place: the hook, and which half of an around it is."""


@dataclass(frozen=True, slots=True)
class OrderedPair:
    """`first` fires before `then` at `point`."""

    point: str
    first: BindingKey
    then: BindingKey

    @property
    def reversed(self) -> "OrderedPair":
        return OrderedPair(self.point, self.then, self.first)

    @property
    def hooks(self) -> tuple[str, str]:
        return self.first[0], self.then[0]

    def is_among(self, pairs: Collection["OrderedPair"]) -> bool:
        """Say whether the pair is one of these, in either order."""
        return self in pairs or self.reversed in pairs


def find_unordered(plan: Plan) -> Iterator[OrderedPair]:
    """Yield each pair of two hooks that nothing orders, but for arounds as they are left."""
    for point in plan.order:
        decisions = read_decisions(plan, point)
        for first, then in combinations(plan.at(point), 2):
            if decisions.is_open(first, then):
                yield make_pair(point, first, then)


def make_pair(point: str, first: Binding, then: Binding) -> OrderedPair:
    return OrderedPair(point, make_binding_key(first), make_binding_key(then))


def make_binding_key(binding: Binding) -> BindingKey:
    return binding.hook, binding.half


def find_common_points(plan: Plan, hook: str, other: str) -> set[str]:
    """Return the points at which two hooks both fire, but for those where arounds are left."""
    return _list_points(plan, hook) & _list_points(plan, other)


def _list_points(plan: Plan, hook: str) -> set[str]:
    return {
        binding.point
        for binding in plan.bindings
        if binding.hook == hook and binding.half != "exit"
    }


def order_key(plan: Plan) -> tuple[tuple[str, BindingKey], ...]:
    """Return every binding in order: the identity of an order of the same hooks."""
    return tuple((binding.point, make_binding_key(binding)) for binding in plan.bindings)


def find_turned(plan: Plan, other: Plan) -> list[OrderedPair]:
    """Return the pairs of `plan` that fire the other way round in `other`.

    The order in which arounds are left does not count.
    """
    result = []
    for point in plan.order:
        row = _number_rows(other, point)
        for first, then in combinations(_keys_at(plan, point), 2):
            are_left = first[1] == then[1] == "exit"
            if row[first] > row[then] and not are_left:
                result.append(OrderedPair(point, first, then))
    return result


def find_neighbours(plan: Plan, pairs: Collection[OrderedPair]) -> list[OrderedPair]:
    """Return pairs of direct neighbours, in their order.

    No two of the pairs share a binding.
    """
    result = []
    for point in plan.order:
        there = _keys_at(plan, point)
        row = 0
        while row + 1 < len(there):
            pair = OrderedPair(point, there[row], there[row + 1])
            if pair.is_among(pairs):
                result.append(pair)
                row += 1
            row += 1
    return result


def apply_swaps(plan: Plan, swaps: Iterable[OrderedPair]) -> WantedPlaces:
    """Return the order of a plan after neighbours have changed places, one pair after the other."""
    order = _keys_by_point(plan)
    for swap in swaps:
        there = order[swap.point]
        row = there.index(swap.first)
        there[row : row + 2] = [swap.then, swap.first]
    return _number_places(order)


def order_pairs_adjacent(
    plan: Plan, pairs: Iterable[OrderedPair], free: Collection[OrderedPair]
) -> WantedPlaces:
    """Return an order in which a pair of each point is adjacent, if there is one.

    `free` are the pairs that may fire either way. Bindings that must follow the first of a pair
    move behind the second; all else between them, ahead of the first.
    """
    wanted: dict[str, OrderedPair] = {}
    for pair in pairs:
        wanted.setdefault(pair.point, pair)
    order = _keys_by_point(plan)
    for point, pair in wanted.items():
        there = order[point]
        begin, end = sorted((there.index(pair.first), there.index(pair.then)))
        ahead: list[BindingKey] = []
        behind = [there[begin]]
        for item in there[begin + 1 : end]:
            if all(OrderedPair(point, other, item).is_among(free) for other in behind):
                ahead.append(item)
            else:
                behind.append(item)
        there[begin : end + 1] = [*ahead, there[begin], there[end], *behind[1:]]
    return _number_places(order)


def find_swaps(plan: Plan, other: Plan) -> list[OrderedPair]:
    """Return the neighbours that change places, one pair after another.

    They lead from one plan's order to another's.
    """
    swaps = []
    for point in plan.order:
        there = _keys_at(plan, point)
        row = _number_rows(other, point)
        for start in range(1, len(there)):
            k = start
            while k > 0 and row[there[k - 1]] > row[there[k]]:
                swaps.append(OrderedPair(point, there[k - 1], there[k]))
                there[k - 1 : k + 1] = [there[k], there[k - 1]]
                k -= 1
    return swaps


def _keys_at(plan: Plan, point: str) -> list[BindingKey]:
    return [make_binding_key(binding) for binding in plan.at(point)]


def _keys_by_point(plan: Plan) -> dict[str, list[BindingKey]]:
    return {point: _keys_at(plan, point) for point in plan.order}


def _number_rows(plan: Plan, point: str) -> dict[BindingKey, int]:
    return {key: row for row, key in enumerate(_keys_at(plan, point))}


def _number_places(order: Mapping[str, Sequence[BindingKey]]) -> WantedPlaces:
    """Return the place of each binding at its point."""
    places: dict[tuple[str, str, Half], int] = {}
    for point, keys in order.items():
        for place, (hook, half) in enumerate(keys):
            places[point, hook, half] = place
    return places
