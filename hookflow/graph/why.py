"""Why one hook fires before another.

The reasons are the edges between them, their phases, the loop, or the order of the file.

And the pairs of hooks that touch the same slot and that nothing orders.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from hookflow.graph.lifetimes import SlotLifetimes
from hookflow.graph.plan import Binding, DroppedEdge, Edge, Plan, Reason
from hookflow.graph.points import Point
from hookflow.graph.slots import SlotParts, is_commuting, select_widest_slots
from hookflow.numbers import format_count

if TYPE_CHECKING:
    from hookflow.graph.decisions import PointDecisions


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """At `point`, `first` fires before `then`.

    `path` are the edges that lead from the one to the other, where edges are the `reason`;
    `dropped` the flows between the two that gave way.
    """

    point: str
    first: Binding
    then: Binding
    reason: Reason
    path: tuple[Edge, ...] = ()
    dropped: tuple[DroppedEdge, ...] = ()


def list_drawn_edges(plan: Plan, point: str) -> list[tuple[int, int]]:
    """Return the edges of a point that do not follow from others.

    They are by the places of their ends in the order of the point.
    """
    row = {binding.id: row for row, binding in enumerate(plan.at(point))}
    return [
        (row[edge.first_id], row[edge.then_id]) for edge in plan.edges_at(point) if not edge.implied
    ]


def explain_neighbours(plan: Plan, point: str) -> Iterator[OrderAnswer]:
    """Yield why each binding of a point is followed by the next one, as the plan records it."""
    edges = {(edge.first_id, edge.then_id): edge for edge in plan.edges_at(point)}
    for first, then in pairwise(plan.at(point)):
        edge = edges.get((first.id, then.id))
        if edge is None:
            yield OrderAnswer(point, first, then, then.placed_by)
        else:
            yield OrderAnswer(point, first, then, "edge", (edge,))


def read_decisions(plan: Plan, point: str) -> "PointDecisions":
    """Return what decides the order of any two bindings of a point."""
    from hookflow.graph.decisions import PointDecisions  # networkx is imported on demand

    return PointDecisions(plan.at(point), plan.edges_at(point), plan.hooks_by_name)


def find_precedence(plan: Plan, a: str, b: str) -> list[OrderAnswer]:
    """Return an answer for each pair of bindings of two hooks at one point.

    The answers are in the order of a run.
    """
    answers = []
    for point in plan.order:
        pairs = _list_pairs(plan, point, {a, b})
        if not pairs:
            continue
        decisions = read_decisions(plan, point)
        dropped = _find_dropped_edges(plan, point, {a, b})
        for first, then in pairs:
            reason = decisions.reason(first, then)
            path: tuple[Edge, ...] = ()
            if reason == "edge":
                path = _find_shortest_path(plan, first, then, loose=False)
            elif reason == "file" and first.half == then.half == "exit":
                path = _find_shortest_path(plan, first, then, loose=True)
            if path:
                reason = "edge"
            answers.append(OrderAnswer(point, first, then, reason, path, dropped))
    return answers


def _list_pairs(plan: Plan, point: str, hooks: set[str]) -> list[tuple[Binding, Binding]]:
    """Return the pairs of bindings of two hooks at a point.

    For one hook these are the pairs of its several methods.
    """
    there = [binding for binding in plan.at(point) if binding.hook in hooks]
    return [
        (first, then) for first, then in combinations(there, 2) if {first.hook, then.hook} == hooks
    ]


def _find_dropped_edges(plan: Plan, point: str, hooks: set[str]) -> tuple[DroppedEdge, ...]:
    here = [dropped for dropped in plan.dropped_edges if dropped.edge.point == point]
    return tuple(dropped for dropped in here if {dropped.edge.first, dropped.edge.then} == hooks)


def _find_shortest_path(
    plan: Plan, first: Binding, then: Binding, *, loose: bool
) -> tuple[Edge, ...]:
    """Return the edges of a shortest way down the order.

    Loose edges are taken if need be. There are none if there is no way.
    """
    import networkx as nx

    edges = {}
    for edge in plan.edges_at(first.point):
        if loose or not edge.loose:
            edges[edge.first_id, edge.then_id] = edge
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((first.id, then.id))
    graph.add_edges_from(edges)
    if not nx.has_path(graph, first.id, then.id):
        return ()
    path = nx.shortest_path(graph, first.id, then.id)
    return tuple(edges[step] for step in pairwise(path))


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """`first` fires before `then` at `point`, and only the file (or the shuffle) says so.

    Both touch `slots`.
    """

    point: str
    first: Binding
    then: Binding
    slots: tuple[str, ...]


MAX_AMBIGUITIES = 1000
"""How many ambiguities are looked for.

Where thousands of hooks write one slot, there are as many.
"""


def find_ambiguities(plan: Plan) -> Iterator[Ambiguity]:
    """Yield each ambiguous pair that no `ambiguous_with` allows, in firing order."""
    for point in plan.order:
        decisions = read_decisions(plan, point)
        for first, then in _find_clashing_pairs(plan, point):
            if decisions.is_open(first, then):
                yield Ambiguity(
                    point, first, then, find_clashing_slots(plan.points[point], first, then)
                )


def _find_clashing_pairs(plan: Plan, point: str) -> Iterator[tuple[Binding, Binding]]:
    """Yield the pairs of bindings of a point of which one writes what the other touches.

    They are in the order of firing.
    """
    bound = plan.at(point)
    parts = SlotParts(slot for binding in bound for slot in (*binding.reads, *binding.writes))
    readers: defaultdict[str, set[int]] = defaultdict(set)  # by slot, the rows above
    writers: defaultdict[str, set[int]] = defaultdict(set)
    for row, then in enumerate(bound):
        reads = parts.of(then.reads)
        writes = parts.of(then.writes)
        touching: set[int] = set()
        for slot in writes:
            touching |= readers[slot]
            if not is_commuting(slot, plan.points[point]):
                touching |= writers[slot]
        for slot in reads:
            touching |= writers[slot]
        for upper in sorted(touching):
            yield bound[upper], then
        for slot in reads:
            readers[slot].add(row)
        for slot in writes:
            writers[slot].add(row)


def find_clashing_slots(point: Point, first: Binding, then: Binding) -> tuple[str, ...]:
    """Return the slots that one of them writes and the other one reads, or both write."""
    parts = SlotParts((*first.reads, *first.writes, *then.reads, *then.writes))
    first_writes = parts.of(first.writes)
    then_writes = parts.of(then.writes)
    slots = first_writes & parts.of(then.reads)
    slots |= then_writes & parts.of(first.reads)
    for slot in first_writes & then_writes:
        if not is_commuting(slot, point):
            slots.add(slot)
    return select_widest_slots(slots)


def count_pairs(ambiguous: Sequence[Ambiguity]) -> str:
    """Return how many pairs of hooks are ambiguous, in words; empty where none is."""
    if not ambiguous:
        return ""
    pairs = {(each.first.hook, each.then.hook) for each in ambiguous}
    words = format_count(len(pairs), "ambiguous pair")
    if len(ambiguous) == MAX_AMBIGUITIES:
        return f"at least {words}"
    return words


def make_order_statements(first: str, then: str) -> tuple[str, str, str]:
    """Return how a file states the order of two hooks, either way, or that it does not matter."""
    return (
        f'{first} first, as now: after = ["{first}"] in [hooks.{then}]',
        f'{then} first: after = ["{then}"] in [hooks.{first}]',
        f'either: ambiguous_with = ["{first}"] in [hooks.{then}]',
    )


@dataclass(frozen=True, slots=True)
class LoopPlace:
    """A point where a hook fires, its round of the loop, and the trigger of the hook."""

    point: str
    hook: str
    round: str
    trigger: str


@dataclass(frozen=True, slots=True)
class SlotHandover:
    """The slots that one hook writes and another reads.

    `stale_round` is the round before whose value is read.
    """

    writer: str
    reader: str
    slots: tuple[str, ...]
    stale_round: str


@dataclass(frozen=True, slots=True)
class LoopOrder:
    """`first` fires before `then` in each `round` of the loop (once a run, where that is empty).

    Both are empty where the loop comes to the one and the other by turns, or to one of them at any
    time. `places` are in the order of the loop.
    """

    first: str
    then: str
    round: str
    places: tuple[LoopPlace, ...]
    handovers: tuple[SlotHandover, ...]


def loop_order(plan: Plan, a: str, b: str, validates_in_epoch: bool) -> LoopOrder:
    """Return what the loop decides between two hooks that share no point."""
    lifetimes = SlotLifetimes(plan, validates_in_epoch)
    loop = lifetimes.loop
    bound = [binding for binding in plan.bindings if binding.hook in (a, b)]
    places: dict[LoopPlace, None] = {}
    rows: dict[str, list[int]] = {a: [], b: []}
    for binding in bound:
        rounds = ("", *loop.within[binding.point])
        trigger = str(binding.trigger)
        if not trigger and plan.points[binding.point].kind == "own":
            trigger = "when it is fired"
        places[LoopPlace(binding.point, binding.hook, rounds[-1], trigger)] = None
        rows[binding.hook].append(loop.place[binding.point])

    first = ""
    then = ""
    common = ""
    upper, lower = sorted((a, b), key=rows.__getitem__)
    if rows[upper] and min(rows[upper]) >= 0 and max(rows[upper]) < min(rows[lower]):
        first = upper
        then = lower
        common = loop.common(*(binding.point for binding in bound))
    handovers = (_find_handover(plan, lifetimes, a, b), _find_handover(plan, lifetimes, b, a))
    return LoopOrder(
        first, then, common, tuple(places), tuple(each for each in handovers if each is not None)
    )


def _find_handover(
    plan: Plan, lifetimes: SlotLifetimes, writer: str, reader: str
) -> SlotHandover | None:
    """Return what one hook hands on to another; None if that is nothing."""
    writes: list[str] = []
    reads: list[str] = []
    for binding in plan.bindings:
        if binding.hook == writer:
            writes += binding.writes
        if binding.hook == reader:
            reads += binding.reads
    parts = SlotParts((*writes, *reads))
    slots = select_widest_slots(parts.of(writes) & parts.of(reads))
    if not slots:
        return None
    stale_rounds = {}
    for stale in lifetimes.find_stale_reads():
        if stale.reader.hook == reader:
            stale_rounds[stale.slot] = stale.round
    shared = parts.of(slots)
    for slot in reads:
        if slot in stale_rounds and parts.of([slot]) & shared:
            return SlotHandover(writer, reader, slots, stale_rounds[slot])
    return SlotHandover(writer, reader, slots, "")
