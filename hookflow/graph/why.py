"""Why one hook fires before another: the edges between them, their phases, the loop, or the order of the file.

And the pairs of hooks that nothing orders, and orders in which some of them are turned.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from hookflow.graph.edges import closure, digraph
from hookflow.graph.order import Places
from hookflow.graph.plan import PHASES, Binding, Edge, GivenWay, Half, Plan
from hookflow.graph.points import Point
from hookflow.graph.slots import Lifetimes, Parts, commutes, widest
from hookflow.numbers import counted

Reason = Literal["edge", "phase", "file"]
"""The reason of the order of two hooks: an edge, their phases, or nothing but their order in the file (or the
shuffle)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """At `point`, `first` fires before `then`.

    `path` are the edges that lead from the one to the other, where edges are the `reason`; `overruled` the weaker
    edges between the two that gave way.
    """

    point: str
    first: Binding
    then: Binding
    reason: Reason
    path: tuple[Edge, ...] = ()
    overruled: tuple[GivenWay, ...] = ()


def rows_of(plan: Plan, point: str) -> list[tuple[int, int]]:
    """Return the edges of a point by the places of their ends in its order."""
    row = {binding.id: row for row, binding in enumerate(plan.at(point))}
    return [(row[edge.first_id], row[edge.then_id]) for edge in plan.edges_at(point)]


def neighbours(plan: Plan, point: str) -> Iterator[Answer]:
    """Yield why each binding of a point is followed by the next one: by an edge, or by what else decides."""
    by_ends = {(edge.first_id, edge.then_id): edge for edge in plan.edges_at(point)}
    decided = Decided(plan, point)
    for first, then in pairwise(plan.at(point)):
        if edge := by_ends.get((first.id, then.id)):
            yield Answer(point, first, then, "edge", (edge,))
        else:
            yield Answer(point, first, then, decided.reason(first, then))


class Decided:
    """The decided order of the hooks of a point, apart from the file.

    Second halves of arounds come after the plain methods of their phase. So who must wait for one comes after who need
    not: the file's order does not turn that, either. Sets of rows are whole numbers, a bit a row, as in
    `hookflow.graph.edges`.
    """

    def __init__(self, plan: Plan, point: str) -> None:
        bound = plan.at(point)
        self.allowed = {frozenset((hook.name, other)) for hook in plan.hooks for other in hook.ambiguous_with}
        """The pairs of hooks that may fire in either order, by `ambiguous_with`."""
        self._row = row = {binding.id: row for row, binding in enumerate(bound)}
        before: list[list[int]] = [[] for _ in bound]
        for edge in plan.edges_at(point):
            if not edge.loose:
                before[row[edge.then_id]].append(row[edge.first_id])
        self.ancestors = closure(before, range(len(bound)))
        """For each row those that edges put before it; loose ones do not count."""
        self._own = [PHASES.index(plan.hook(binding.hook).phase) for binding in bound]
        exits: dict[str, int] = {}
        for k, binding in enumerate(bound):
            if binding.half == "exit":  # that of an early around is late
                self._own[k] = len(PHASES) - 1 - self._own[k]
                exits[binding.phase] = exits.get(binding.phase, 0) | 1 << k
        self._waits = [0] * len(bound)  # for which second halves of its phase each row waits, itself included
        self._later = [0] * len(bound)  # which of them surely come before another one for which it waits
        for k, binding in enumerate(bound) if exits else ():
            awaited = self.ancestors[k] & exits.get(binding.phase, 0)
            leaves = binding.half == "exit"
            self._waits[k] = awaited | leaves << k
            self._later[k] = awaited if leaves else 0
            for first in before[k]:
                self._later[k] |= self._later[first]

    def is_open(self, first: Binding, then: Binding) -> bool:
        """Say whether nothing is stated of the order of two hooks; that in which arounds are left is never open."""
        upper, lower = self._row[first.id], self._row[then.id]
        if first.hook == then.hook or first.half == then.half == "exit" or self.ancestors[lower] >> upper & 1:
            return False
        stated = frozenset((first.hook, then.hook)) in self.allowed
        return not stated and (first.phase == then.phase or self._own[upper] >= self._own[lower])

    def reason(self, first: Binding, then: Binding) -> Reason:
        """Return what puts one before the other: of one phase, `then` may wait for more second halves."""
        upper, lower = self._row[first.id], self._row[then.id]
        if self.ancestors[lower] >> upper & 1:
            return "edge"
        waits_for_more = bool(self._waits[lower]) and not self._waits[upper] & ~self._later[lower]
        return "phase" if first.phase != then.phase or waits_for_more else "file"


def precedence(plan: Plan, a: str, b: str) -> list[Answer]:
    """Return an answer for each pair of bindings of two hooks at one point, in the order of a run."""
    answers = []
    for point in plan.order:
        both = [binding for binding in plan.at(point) if binding.hook in (a, b)]
        pairs = [(first, then) for first, then in combinations(both, 2) if {first.hook, then.hook} == {a, b}]
        if not pairs:
            continue
        decided = Decided(plan, point)
        here = (item for item in plan.given_way if item.edge.point == point)
        overruled = tuple(item for item in here if {item.edge.first, item.edge.then} == {a, b})
        for first, then in pairs:
            reason = decided.reason(first, then)
            loose = reason == "file" and first.half == then.half == "exit"
            path = _path(plan, first, then, loose) if loose or reason == "edge" else ()
            answers.append(Answer(point, first, then, "edge" if path else reason, path, overruled))
    return answers


def _path(plan: Plan, first: Binding, then: Binding, loose: bool) -> tuple[Edge, ...]:
    """Return the edges of a shortest way down the order, if need be `loose` ones; none when there is no way."""
    import networkx as nx

    edges = {(edge.first_id, edge.then_id): edge for edge in plan.edges_at(first.point) if edge.loose <= loose}
    try:
        return tuple(edges[step] for step in pairwise(nx.shortest_path(digraph(edges), first.id, then.id)))
    except (nx.NetworkXNoPath, nx.NodeNotFound):
        return ()


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """`first` fires before `then` at `point`, and only the file (or the shuffle) says so; both touch `slots`."""

    point: str
    first: Binding
    then: Binding
    slots: tuple[str, ...]


def ambiguities(plan: Plan) -> Iterator[Ambiguity]:
    """Yield each ambiguous pair that no `ambiguous_with` allows, in firing order."""
    for point in plan.order:
        for first, then in _clashing(plan, point):
            yield Ambiguity(point, first, then, clash(plan.points[point], first, then))


COUNTED = 1000
"""How many ambiguities are looked for; where thousands of hooks write one slot, so are the pairs."""


def in_number(ambiguous: Sequence[Ambiguity]) -> str:
    """Return how many pairs of hooks are ambiguous, in words; empty where none is."""
    pairs = len({(each.first.hook, each.then.hook) for each in ambiguous})
    return "at least " * (len(ambiguous) == COUNTED) + counted(pairs, "ambiguous pair") if pairs else ""


def ways_to_state(first: str, then: str) -> tuple[str, str, str]:
    """Return how a file says in which order two hooks must fire, either way, or that it does not matter."""
    return (
        f'{first} first, as now: after = ["{first}"] in [hooks.{then}]',
        f'{then} first: after = ["{then}"] in [hooks.{first}]',
        f'either: ambiguous_with = ["{first}"] in [hooks.{then}]',
    )


def _clashing(plan: Plan, point: str) -> Iterator[tuple[Binding, Binding]]:
    """Yield the pairs of one point that clash over a slot and that nothing orders, but for arounds as they are left."""
    bound = plan.at(point)
    parts = Parts(slot for binding in bound for slot in (*binding.reads, *binding.writes))
    decided = Decided(plan, point)
    readers: defaultdict[str, set[int]] = defaultdict(set)
    writers: defaultdict[str, set[int]] = defaultdict(set)
    for row, then in enumerate(bound):
        reads, writes = parts.of(then.reads), parts.of(then.writes)
        kept = {slot for slot in writes if not commutes(slot, plan.points[point])}
        touching = set().union(*(readers[slot] for slot in writes), *(writers[slot] for slot in reads | kept))
        for upper in sorted(touching):
            first = bound[upper]
            if decided.is_open(first, then):
                yield first, then
        for slots, users in ((reads, readers), (writes, writers)):
            for slot in slots:
                users[slot].add(row)


def clash(point: Point, first: Binding, then: Binding) -> tuple[str, ...]:
    """Return the slots that one of them writes and the other one reads, or both write."""
    parts = Parts((*first.reads, *first.writes, *then.reads, *then.writes))
    writes, also_writes = parts.of(first.writes), parts.of(then.writes)
    read = writes & parts.of(then.reads) | also_writes & parts.of(first.reads)
    return widest(read | {slot for slot in writes & also_writes if not commutes(slot, point)})


@dataclass(frozen=True, slots=True)
class Apart:
    """`first` fires before `then` in each `round` of the loop (once a run, where that is empty).

    Both are empty where the loop comes to the one and the other by turns, or to one of them at any time. `rows` are
    their points in the order of the loop, each with its hook, the round that it is in, and its trigger. `handed` are
    the slots that one hook writes and the other reads, with both, and whether that is what the round before has left.
    """

    first: str
    then: str
    round: str
    rows: tuple[tuple[str, str, str, str], ...]
    handed: tuple[tuple[str, str, tuple[str, ...], str], ...]


def apart(plan: Plan, a: str, b: str, validates_in_epoch: bool) -> Apart:
    """Return what the loop decides between two hooks."""
    lifetimes = Lifetimes(plan, validates_in_epoch)
    loop = lifetimes.loop
    both = [binding for binding in plan.bindings if binding.hook in (a, b)]
    bound = [(binding.point, binding.hook) for binding in both]
    fires = {b: str(b.trigger) or "when it is fired" * (plan.points[b.point].kind == "own") for b in both}
    rows = tuple(dict.fromkeys((b.point, b.hook, ("", *loop.within[b.point])[-1], fires[b]) for b in both))
    places = {name: [loop.place[point] for point, hook in bound if hook == name] for name in (a, b)}
    first, then = sorted((a, b), key=places.__getitem__)
    certain = min(places[first], default=-1) >= 0 and max(places[first]) < min(places[then])
    common = loop.common(*(point for point, _ in bound)) if certain else ""
    handed = []
    for writer, reader in ((a, b), (b, a)):
        writes = [slot for binding in plan.bindings if binding.hook == writer for slot in binding.writes]
        reads = [slot for binding in plan.bindings if binding.hook == reader for slot in binding.reads]
        parts = Parts((*writes, *reads))
        if slots := widest(parts.of(writes) & parts.of(reads)):
            late = {item.slot: item.round for item in lifetimes.stale() if item.reader.hook == reader}
            left = next((late[slot] for slot in reads if slot in late and parts.of([slot]) & parts.of(slots)), "")
            handed.append((writer, reader, slots, left))
    return Apart(first if certain else "", then if certain else "", common, rows, tuple(handed))


Key = tuple[str, Half]
"""A binding of a point, whatever its place: the hook, and which half of an around it is."""


@dataclass(frozen=True, slots=True)
class Pair:
    """`first` fires before `then` at `point`."""

    point: str
    first: Key
    then: Key

    @property
    def turned(self) -> "Pair":
        return Pair(self.point, self.then, self.first)

    @property
    def hooks(self) -> tuple[str, str]:
        return self.first[0], self.then[0]


def unordered(plan: Plan) -> Iterator[Pair]:
    """Yield each pair of two hooks that nothing orders, but for arounds as they are left."""
    for point in plan.order:
        decided = Decided(plan, point)
        for first, then in combinations(plan.at(point), 2):
            if decided.is_open(first, then):
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
