"""Random graphs against a plain oracle: who fires when, what is refused, what `why` says, what is
ambiguous.

The last two are held against all orders of the tables: what is told as decided no order of them
turns, and what is told as the file's alone some order does.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest

from hookflow.errors import UserError
from hookflow.graph.plan import PHASES, Binding, Plan
from hookflow.graph.why import find_ambiguities, find_precedence
from tests.graph.oracle import CLOSING, OPENING, Described, Oracle, Pair, Place, common, within
from tests.support.described_hooks import drawn, place
from tests.support.hook_nodes import AROUND, Half, node, plan


def compiled(hooks: list[Described], shuffle: int | None = None) -> Plan:
    def points(hook: Described) -> Iterator[tuple[str, Half]]:
        for method in hook.methods:
            yield from AROUND if method == "around_val" else [(method, "whole")]

    return plan(
        *(
            node(
                hook.name,
                hook.after,
                hook.before,
                hook.phase,
                tuple(points(hook)),
                reads=hook.reads,
                writes=hook.writes,
                near=hook.near,
            )
            for hook in hooks
        ),
        shuffle=shuffle,
    )


def ends(found: Plan, *edges: tuple[int | None, int | None]) -> set[Pair]:
    return {(place(found.bindings[first]), place(found.bindings[then])) for first, then in edges}  # type: ignore[index]


def check_plan(hooks: list[Described]) -> Plan | None:
    """Hold a plan against the oracle; return it, unless it is refused as it should be."""
    oracle = Oracle(hooks)
    if oracle.refused:
        for seed in (None, 1):
            with pytest.raises(UserError, match="ordering cycle"):
                compiled(hooks, seed)
        return None
    found = compiled(hooks)
    assert Plan.from_json(json.dumps(found.to_json())) == found, hooks
    for point in (OPENING, CLOSING):
        assert [place(binding) for binding in found.at(point)] == oracle.order[point], hooks
    assert {place(b): PHASES.index(b.phase) for b in found.bindings} == oracle.phases, hooks
    kinds = {
        kind: [e for e in found.edges if e.kind == kind] for kind in ("file", "flow", "nesting")
    }
    assert ends(found, *((e.first_id, e.then_id) for e in kinds["file"])) == oracle.stated, hooks
    assert ends(found, *((e.first_id, e.then_id) for e in kinds["flow"])) == oracle.kept, hooks
    gone = ends(
        found, *((given.edge.first_id, given.edge.then_id) for given in found.dropped_edges)
    )
    assert gone == oracle.contradicted | oracle.circular, hooks
    sure = ends(
        found,
        *((e.first_id, e.then_id) for e in kinds["nesting"] if not e.loose and e.first != e.then),
    )
    phases = {(item, two) for item, two in sure if oracle.phases[item] != oracle.phases[two]}
    assert sure - phases <= oracle.implied, hooks
    for seed in range(3):
        shuffled = compiled(hooks, seed)  # what can be satisfied is never refused
        assert {place(b): b.phase for b in shuffled.bindings} == {
            place(b): b.phase for b in found.bindings
        }, hooks
        at = {place(binding): binding.id for binding in shuffled.bindings}
        assert all(at[first] < at[then] for first, then in oracle.implied), hooks
    return found


def turned(hooks: list[Described]) -> dict[frozenset[Place], bool]:
    """Return of each two places of a point whether some order of the tables,
    and of each one's points, turns them.
    """
    seen: dict[frozenset[Place], set[Pair]] = {}
    other = [replace(hook, methods=hook.methods[::-1]) for hook in hooks]
    for listed in (*permutations(hooks), *permutations(other)):
        found = compiled(list(listed))
        for point in (OPENING, CLOSING):
            bound = [place(binding) for binding in found.at(point)]
            for k, first in enumerate(bound):
                for then in bound[k + 1 :]:
                    seen.setdefault(frozenset((first, then)), set()).add((first, then))
    return {pair: len(orders) > 1 for pair, orders in seen.items()}


def check_explanations(hooks: list[Described], found: Plan) -> None:
    """Hold what is said of a plan against every order of its tables."""
    turns = turned(hooks)
    implied = Oracle(hooks).implied
    reasons: dict[tuple[int, int], str] = {}
    for a in hooks:
        for b in hooks:
            for answer in find_precedence(found, a.name, b.name) if a.name < b.name else ():
                pair = place(answer.first), place(answer.then)
                reasons[answer.first.id, answer.then.id] = answer.reason
                loose = any(edge.loose for edge in answer.path)
                if answer.first.phase == answer.then.phase or answer.reason != "edge":
                    assert (answer.reason == "edge" and not loose) == (pair in implied), (
                        answer,
                        hooks,
                    )
                assert (answer.reason == "file" or loose) == turns[frozenset(pair)], (answer, hooks)
                steps = ends(found, *((edge.first_id, edge.then_id) for edge in answer.path))
                assert len(steps) == len(answer.path)
                if answer.path:
                    assert (answer.path[0].first_id, answer.path[-1].then_id) == (
                        answer.first.id,
                        answer.then.id,
                    )

    def undecided(first: Binding, then: Binding) -> bool:
        own = ((item.half, PHASES.index(found.hook(item.hook).phase)) for item in (first, then))
        upper, lower = (4 - phase if half == "exit" else phase for half, phase in own)
        return reasons[first.id, then.id] == "phase" and (
            first.phase == then.phase or upper >= lower
        )

    expected = set()
    for first in found.bindings:
        for then in found.at(first.point):
            clash = common(first.writes, then.reads) | common(then.writes, first.reads)
            clash |= common(first.writes, then.writes) - {"control"}
            clash = {slot for slot in clash if not within(slot, clash - {slot})}
            apart = (
                first.id < then.id
                and first.hook != then.hook
                and {first.half, then.half} != {"exit"}
            )
            if (
                clash
                and apart
                and (turns[frozenset((place(first), place(then)))] or undecided(first, then))
            ):
                expected.add((first.id, then.id, tuple(sorted(clash))))
    assert {
        (item.first.id, item.then.id, item.slots) for item in find_ambiguities(found)
    } == expected, hooks


def fuzz(count: int, seed: int) -> None:
    lots = random.Random(seed)
    refused = 0
    for _ in range(count):
        refused += check_plan(drawn(lots, 6)) is None
    assert 0.02 * count < refused < 0.6 * count, "neither all nor nothing"
    for _ in range(count // 4):
        hooks = drawn(lots, 4)
        if found := check_plan(hooks):
            check_explanations(hooks, found)


def test_a_hundred_graphs_agree_with_the_oracle() -> None:
    fuzz(100, seed=1)


@pytest.mark.long
def test_three_thousand_graphs_agree_with_the_oracle() -> None:
    fuzz(3000, seed=2)
