"""Very many flow edges are kept as one, and all that a plan says is as if they stood one by one."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from itertools import combinations

import pytest

from hookflow.cli.graph import only_hook, only_points
from hookflow.errors import UserError
from hookflow.graph import edges, order
from hookflow.graph.plan import Edge, Node, Plan
from hookflow.graph.render.text import as_text
from hookflow.graph.why import Decided, ambiguities, neighbours, precedence
from tests.graph.oracle import Described
from tests.graph.test_fuzz import compiled, drawn
from tests.hook_nodes import AROUND, POINT, node, plan


def crowd(writers: int, readers: int) -> list[Node]:
    """Return hooks that read a slot, listed ahead of those that write it."""
    return [
        *(node(f"r{k}", reads=["x"]) for k in range(readers)),
        *(node(f"w{k}", writes=["x"]) for k in range(writers)),
    ]


def test_a_thousand_writers_and_a_thousand_readers_are_no_million_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def counted(kind: type) -> None:
        real = kind.__init__

        def making(self: object, *args: object, **more: object) -> None:
            made.append(self)
            real(self, *args, **more)

        monkeypatch.setattr(kind, "__init__", making)

    counted(edges.Statement)
    counted(Edge)
    found = plan(*crowd(1000, 1000))
    (bundle,) = found.bundles
    assert (len(made), found.edges, found.edge_count, bundle.slots) == (0, (), 1_000_000, ("x",))
    assert [binding.hook[0] for binding in found.at(POINT)] == ["w"] * 1000 + ["r"] * 1000
    (answer,) = precedence(found, "r7", "w9")
    assert [(edge.first, edge.then, edge.kind, edge.slots) for edge in answer.path] == [("w9", "r7", "flow", ("x",))]
    assert [link.reason for link in neighbours(found, POINT)].count("edge") == 1
    assert len(made) < 3000, "an edge for each hook that is passed, none for each pair"
    made.clear()
    assert len(only_hook(found, "r7").bindings) == 1001
    assert len(made) < 3000, "those of the hook alone"


def test_what_is_stated_within_a_crowd_is_obeyed_and_the_rest_stays_one() -> None:
    hooks = [*crowd(120, 120), node("odd", ["r0"], writes=["x"]), node("even", reads=["x"], after=["w5"])]
    found = plan(*hooks)
    assert len(found.bundles) < 30
    assert not [
        bundle
        for bundle in found.bundles
        for pair in bundle.pairs({b.id: b for b in found.bindings})
        if [one.hook for one in pair] in (["w5", "even"], ["odd", "r0"])
    ], "one is stated, one contradicted"
    assert sum(map(len, found.bundles)) > 120 * 120
    assert [(given.edge.first, given.edge.then) for given in found.given_way] == [("odd", "r0")]
    assert len([*found.every_edge()]) == found.edge_count == 121 * 121 - 1 + 1
    assert Plan.from_json(json.dumps(found.to_json())) == found


def test_flows_that_contradict_one_another_are_taken_out_of_a_crowd_and_the_rest_stays_one() -> None:
    """Two stated edges between writers and readers of a slot tie these four together; nobody else is in a circle."""
    tied = {"w0": ["r0"], "w1": ["r1"]}
    hooks = [*crowd(0, 200), *(node(f"w{k}", tied.get(f"w{k}", ()), writes=["x"]) for k in range(200))]
    found = plan(*hooks)
    assert {(given.edge.first, given.edge.then) for given in found.given_way} == {
        (first, then) for first in ("w0", "w1") for then in ("r0", "r1")
    }
    assert all(given.against for given in found.given_way)
    assert sum(map(len, found.bundles)) > 198 * 198
    assert found.edge_count == 200 * 200 - 4 + 2
    for name in tied:
        order = [binding.hook for binding in found.at(POINT)]
        assert order.index(name) > order.index(tied[name][0])


def test_very_many_flows_that_gave_way_are_kept_as_one_and_counted() -> None:
    """Readers of one slot write the other, and all of them are in a circle."""
    hooks = [node(f"a{k}", reads=["x"], writes=["y"]) for k in range(150)]
    hooks += [node(f"b{k}", reads=["y"], writes=["x"]) for k in range(150)]
    found = plan(*hooks)
    assert (found.edges, found.bundles) == ((), ())
    assert found.given_way_more == {POINT: 2 * 150 * 150}
    assert f"at {POINT}, 45,000 more flows gave way to others" in " ".join(as_text(found).split())
    assert Plan.from_json(json.dumps(found.to_json())) == found


def test_many_stated_edges_within_a_crowd_part_it_into_few_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400 writers and 400 readers each tenth writer comes after a reader of its own."""
    hooks = [*crowd(0, 400), *(node(f"w{k}", [f"r{k}"] * (k % 10 == 0), writes=["x"]) for k in range(400))]
    found = plan(*hooks)
    lost = len(found.given_way) + found.given_way_more[POINT]
    assert lost == 40 * 40, "each of the forty hands on to each of their forty readers, and waits for it"
    assert found.edge_count == 400 * 400 - lost + 40
    assert len(found.bundles) < 200
    assert len(found.edges) < 4_000
    ends = {(edge.first, edge.then) for edge in found.every_edge()}
    assert len(ends) == found.edge_count
    assert {("w0", "r1"), ("w1", "r0"), ("w11", "r11"), ("r0", "w0")} <= ends
    assert not {("w0", "r0"), ("w0", "r10")} & ends


def test_what_would_take_hours_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "MOST", 100)
    monkeypatch.setattr(order, "MOST", 100)
    monkeypatch.setattr(edges, "MOST", 100)
    names = [f"s{k}" for k in range(30)]
    with pytest.raises(UserError, match="shared in 930 ways, which are too many"):
        plan(*(node(f"h{k}", reads=["x", name], writes=["x", name]) for k, name in enumerate(names)))
    arounds = [node(f"a{k}", points=AROUND, reads=["x"] * (k % 2), writes=["x"] * (1 - k % 2)) for k in range(40)]
    with pytest.raises(UserError, match="more than 100 pairs of arounds are ordered"):
        plan(*arounds)
    with pytest.raises(UserError, match="147 edges between hooks that share slots are too many to be looked at"):
        plan(
            *(
                node(f"{verb[0]}{slot}{k}", **{verb: [slot]})
                for slot in "xyz"
                for verb in ("reads", "writes")
                for k in range(7)
            )
        )


def test_a_part_of_a_plan_has_the_edges_of_its_bundles() -> None:
    found = plan(*crowd(101, 101))
    assert found.bundles and only_points(found, [POINT]) == found
    for name, kept in (("r3", {(f"w{k}", "r3") for k in range(101)}), ("w3", {("w3", f"r{k}") for k in range(101)})):
        alone = only_hook(found, name)
        assert {(edge.first, edge.then) for edge in alone.every_edge()} == kept
        assert len(alone.bindings) == 102


def test_the_shortest_way_may_lead_through_a_crowd() -> None:
    few = node("a", reads=["y"]), node("b", writes=["y"])  # whose flow is kept as it is
    found = plan(*crowd(101, 101), node("z", ["r0"]), node("v", ["w3"], writes=["x"]), *few)
    assert (len(found.bundles), [edge.first for edge in found.edges if edge.kind == "flow"]) == (1, ["b"])
    (answer,) = precedence(found, "w3", "z")
    assert [(edge.first, edge.then) for edge in answer.path] == [("w3", "r0"), ("r0", "z")]


def test_one_writer_and_its_readers_are_a_crowd_at_each_of_their_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "MANY", 1)
    points = (("before_val", "whole"), ("after_val", "whole"))
    readers = [node(name, points=points, reads=["x"]) for name in "abc"]
    around = node("y", points=AROUND)  # the two points are one graph
    found = plan(*readers, node("w", points=points, writes=["x"]), around)
    assert [(one.point, one.first_ids, one.then_ids) for one in found.bundles] == [
        ("before_val", (0,), (1, 2, 3)),
        ("after_val", (5,), (6, 7, 8)),
    ]
    assert [binding.hook for binding in found.at("after_val")] == [*"wabcy"]


def facts(found: Plan) -> dict[str, object]:
    """Return all that a plan says of order."""
    names = [hook.name for hook in found.hooks]
    alone = replace(found, given_way=(), given_way_more={})  # very many are not shown one by one
    asked = [answer for a, b in combinations(names, 2) for answer in precedence(found, a, b)]
    return {
        "bindings": found.bindings,
        "edges": {(edge.point, edge.first_id, edge.then_id): edge for edge in found.every_edge()},
        "count": found.edge_count,
        "given_way": len(found.given_way) + sum(found.given_way_more.values()),
        "links": {(e.first_id, e.then_id) for point in found.order for e in found.every_edge(point)},
        "neighbours": [*(link for point in found.order for link in neighbours(found, point))],
        "ancestors": [Decided(found, point).ancestors for point in found.order],
        "answers": [(answer.first, answer.then, answer.reason, len(answer.path)) for answer in asked],
        "ambiguities": [*ambiguities(found)],
        "words": sorted(re.findall(r"\w+", as_text(alone))),  # the edges of a hook may be told in another order
    }


def both_ways(hooks: list[Described], shuffle: int | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compile hooks with every flow kept as one, and with none; return how many bundles there were."""
    found = []
    for most in (1, 10_000):
        monkeypatch.setattr(edges, "MANY", most)
        try:
            found.append(compiled(hooks, shuffle))
        except UserError:
            found.append(None)
    bundled, single = found
    if bundled is None or single is None:
        assert bundled is single is None
        return 0
    assert not single.bundles
    assert facts(bundled) == facts(single), hooks
    return len(bundled.bundles)


def check_random(count: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lots = random.Random(seed)
    bundles = [both_ways(drawn(lots, 6), lots.choice((None, 1)), monkeypatch) for _ in range(count)]
    assert sum(map(bool, bundles)) > count / 4, "neither all nor nothing"


def test_random_graphs_are_the_same_with_bundles_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    check_random(120, 3, monkeypatch)


@pytest.mark.long
def test_three_thousand_random_graphs_are_the_same_with_bundles_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    check_random(3000, 4, monkeypatch)


def test_a_flow_beside_others_that_contradict_one_another_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = [
        Described(name, ("after_val",), "normal", (), (), {}, reads, writes)
        for name, reads, writes in (("a", ("x",), ("y",)), ("b", ("y",), ("x",)), ("c", ("x",), ()), ("d", ("x",), ()))
    ]
    assert both_ways(hooks, None, monkeypatch) == 1, "of b, which c and d wait for"
