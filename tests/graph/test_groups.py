"""Groups of hooks: an edge to one is an edge to each member; their mistakes;
and their boxes in drawings.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from hookflow.errors import UserError
from hookflow.graph.collapse import collapse_groups, find_repeats
from hookflow.graph.plan import Half, Node, Plan, PlannedGroup, Trigger
from hookflow.graph.render.html import as_html
from hookflow.graph.render.svg import as_svg
from hookflow.graph.render.text import as_dot, as_mermaid, as_text
from tests.graph.oracle import Described, Oracle
from tests.support.described_hooks import drawn, place
from tests.support.hook_groups import grouped
from tests.support.hook_nodes import AROUND, node, order


def refused(*nodes: Node, **entries: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        grouped(nodes, **entries)
    return str(caught.value)


def as_nodes(hooks: Iterable[Described]) -> list[Node]:
    result = []
    for hook in hooks:
        points: list[tuple[str, Half]] = []
        for method in hook.methods:
            points += AROUND if method == "around_val" else [(method, "whole")]
        slots: dict[str, Any] = {"reads": hook.reads, "writes": hook.writes, "near": hook.near}
        result.append(node(hook.name, hook.after, hook.before, hook.phase, tuple(points), **slots))
    return result


def test_an_edge_to_a_group_equals_edges_to_each_member() -> None:
    num_refused = 0
    for seed in range(300):
        lots = random.Random(seed)
        hooks = drawn(lots, 7)
        names = [hook.name for hook in hooks]
        members = lots.sample(names, lots.randint(1, len(names) - 1))
        stating = lots.choice([name for name in names if name not in members])
        side = lots.choice(["after", "before"])
        by_group, by_member = [], []
        for hook in hooks:
            if hook.name != stating:
                by_group.append(hook)
                by_member.append(hook)
                continue
            stated = getattr(hook, side)
            by_group.append(replace(hook, **{side: (*stated, "group:some")}))
            by_member.append(replace(hook, **{side: (*stated, *members)}))
        oracle = Oracle(by_member)
        if oracle.refused:
            num_refused += 1
            with pytest.raises(UserError, match="ordering cycle"):
                grouped(as_nodes(by_group), some=members)
            continue
        found = grouped(as_nodes(by_group), some=members)
        for point, expected in oracle.order.items():
            assert [place(binding) for binding in found.at(point)] == expected, hooks
        plain = grouped(as_nodes(by_member))
        without_group = {replace(edge, group="") for edge in found.edges}
        assert without_group == set(plain.edges), hooks
        assert found.bindings == plain.bindings
        assert Plan.from_json(json.dumps(found.to_json())) == found
    assert 10 < num_refused < 250


def test_globs_names_and_optional_names_choose_members_and_what_is_off_is_none() -> None:
    nodes = [
        node("last", after=["group:metrics"]),
        node("f1_b"),
        node("acc"),
        node("f1_a"),
        node("other"),
    ]
    found = grouped(nodes, disabled=["f1_off"], metrics=["f1*", "acc", "auc?", "q*?"])
    (group,) = found.groups
    assert group == PlannedGroup(
        "metrics", ("f1*", "acc", "auc?", "q*?"), ("f1_b", "acc", "f1_a"), group.where
    )
    assert {(edge.first, edge.then, edge.group) for edge in found.edges} == {
        (member, "last", "metrics") for member in group.members
    }
    assert order(found) == ["f1_b", "acc", "f1_a", "last", "other"]
    assert found.edges[0].source == "p.toml:1, group:metrics"


def test_either_order_can_be_allowed_with_each_member() -> None:
    found = grouped([node("a", ambiguous_with=["group:m"]), node("b"), node("c")], m=["b", "c"])
    assert found.hook("a").ambiguous_with == ("b", "c")


A, B = node("alpha"), node("beta")


@pytest.mark.parametrize(
    ("nodes", "entries", "words"),
    [
        (
            [A, B],
            {"m": ["alhpa"]},
            ['p.toml groups.m.hooks.0: group "m" has a hook "alhpa"', 'did you mean "alpha"?'],
        ),
        (
            [A, B],
            {"m": ["alpha", "g*"]},
            ['groups.m.hooks.1: group "m": the glob "g*" matches no hook', '"g*?"'],
        ),
        ([A, B], {"m": ["alpha"], "n": ["group:m"]}, ["groups.n.hooks.0", "names another group"]),
        ([A, B], {"alpha": ["beta"]}, ["groups.alpha", 'both called "alpha"']),
        (
            [A, node("b", after=["group:metric"])],
            {"metrics": ["alpha"]},
            ["p.toml:1", 'did you mean "metrics"?'],
        ),
        ([A, node("b", after=["group:m"])], {}, ['the group "m"', "no groups"]),
        (
            [A, node("b", before=["group:m"])],
            {"m": ["*"]},
            ['hook "b"', 'group "m", of which it is a member'],
        ),
        ([A, node("b", requires=["group:m"])], {"m": ["alpha"]}, ["cannot be required"]),
        ([A, node("b", after=["group:m"], kind="class")], {}, ["stated by p.toml:1"]),
        (
            [node("alpha", after=["b"]), node("b", after=["group:m"])],
            {"m": ["alpha"]},
            [
                "ordering cycle: alpha → b → alpha",
                '"alpha" before "b": p.toml:1 (group:m)',
                '"b" before "alpha"',
            ],
        ),
    ],
)
def test_a_mistake_is_refused_at_its_place(
    nodes: list[Node], entries: dict[str, list[str]], words: list[str]
) -> None:
    message = refused(*nodes, **entries)
    assert all(word in message for word in words), message


def test_a_group_that_may_be_missing_has_no_edges() -> None:
    assert grouped([A, node("b", after=["group:m?"])]).edges == ()


def test_one_warning_of_an_edge_to_a_group_that_meets_nobody_and_none_if_it_meets_one() -> None:
    far = node("far", points=[("after_run", "whole")])
    further = node("further", points=[("after_run", "whole")])
    met = grouped([far, B, node("b", after=["group:m"])], m=["far", "beta"])
    assert met.warnings == ()
    (warning,) = grouped(
        [far, further, node("b", after=["group:m"])], m=["far*", "further"]
    ).warnings
    assert '"b" and "group:m" can never matter' in warning.message


def test_what_fires_in_a_row_becomes_a_box_and_what_fires_in_between_parts_it() -> None:
    nodes = [
        node("a"),
        node("b", reads=["x"]),
        node("between"),
        node("c", ["between"], writes=["y"]),
        node("d"),
    ]
    found = grouped([*nodes, node("end", after=["group:g"])], g=["a", "b", "c", "d"])
    assert order(found) == ["a", "b", "between", "c", "d", "end"]
    boxes = collapse_groups(found, found.groups)
    assert order(boxes) == ["group:g", "between", "group:g", "end"]
    ids = [binding.id for binding in boxes.bindings]
    assert ids == [0, 2, 3, 5]
    assert {(edge.first_id, edge.then_id) for edge in boxes.edges} == {(0, 5), (2, 3), (3, 5)}
    assert [box.hook for box in boxes.collapsed] == ["group:g"] * 2
    assert [[member.hook for member in box.members] for box in boxes.collapsed] == [
        ["a", "b"],
        ["c", "d"],
    ]
    assert (boxes.bindings[0].reads, boxes.bindings[2].writes) == (("x",), ("y",))


def test_arounds_and_a_single_member_stay_as_they_are() -> None:
    found = grouped([node("a", points=AROUND), node("b"), node("c", points=AROUND)], g=["*"])
    assert collapse_groups(found, found.groups) == found


def test_a_box_keeps_a_common_phase_and_trigger() -> None:
    late = [node(name, phase="late") for name in "ab"]
    every = [
        replace(each, bound=(replace(each.bound[0], trigger=Trigger.parse(every="2")),))
        for each in late
    ]
    for nodes, trigger in ((every, Trigger.parse(every="2")), ([late[0], every[1]], Trigger())):
        found = grouped(nodes, g=["a", "b"])
        (binding,) = collapse_groups(found, found.groups).bindings
        assert (binding.phase, binding.trigger) == ("late", trigger)


@pytest.mark.parametrize("draw", [as_text, as_mermaid, as_dot, as_svg, as_html])
def test_every_drawing_shows_a_box_with_its_members(draw: Any) -> None:
    found = grouped([node("acc"), node("f1"), node("end", after=["group:m"])], m=["acc", "f1"])
    drawing = draw(collapse_groups(found, found.groups))
    assert "group:m" in drawing
    assert "2 hooks: acc, f1" in drawing


def at_both(name: str, *points: str, **stated: Any) -> Node:
    return node(name, points=[(point, "whole") for point in points], **stated)


VAL_AND_TEST = ("after_val_iter", "after_val", "after_test_iter", "after_test")


def test_a_test_that_repeats_the_validation_is_found_with_the_hooks_it_lacks() -> None:
    both = at_both("b", *VAL_AND_TEST)
    extra = at_both("extra", "after_val")
    repeats = find_repeats(grouped([at_both("a", *VAL_AND_TEST), extra, both]))
    assert [(repeat.point, repeat.original, repeat.without) for repeat in repeats] == [
        ("after_test_iter", "after_val_iter", ()),
        ("after_test", "after_val", ("extra",)),
    ]


@pytest.mark.parametrize(
    "nodes",
    [
        [at_both("a", *VAL_AND_TEST), at_both("own", "after_test")],
        [at_both("a", *VAL_AND_TEST), at_both("own", "before_test")],
        [at_both("a", "after_val", "after_test")],
        [at_both("a", "after_val"), at_both("b", "after_val")],
    ],
    ids=["another hook", "another point", "one line", "no test"],
)
def test_a_test_of_its_own_is_drawn(nodes: list[Node]) -> None:
    assert find_repeats(grouped(nodes)) == []


def test_a_test_in_another_order_is_drawn() -> None:
    found = grouped([at_both("a", *VAL_AND_TEST), at_both("b", *VAL_AND_TEST)])
    turned = [*found.at("after_test")][::-1]
    others = [binding for binding in found.bindings if binding.point != "after_test"]
    assert len(find_repeats(found)) == 2
    assert find_repeats(replace(found, bindings=(*others, *turned))) == []
