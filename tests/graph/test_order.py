"""Plans: the order at a point, from strong to weak, refusals and reasons; their file,
points and triggers.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from hookflow.errors import Problem, UserError, Where
from hookflow.graph.order import compile_plan
from hookflow.graph.plan import Node, Plan, Trigger
from hookflow.graph.points import DEFAULT_POINTS, STANDARD_POINTS, Point, Points
from hookflow.graph.render.text import as_text
from hookflow.graph.schedule import Measure, Totals, is_window_empty, measure
from hookflow.graph.why import (
    SlotHandover,
    explain_neighbours,
    find_ambiguities,
    find_precedence,
    loop_order,
)
from hookflow.pipeline.amounts import read_amount
from hookflow.pipeline.by_epoch import EpochLengths
from tests.support.hook_nodes import AROUND, POINT, node, order, plan

VAL = (("after_val", "whole"),)
BOTH = (*AROUND, *VAL)


def refused(*nodes: Node, disabled: tuple[str, ...] = ()) -> UserError:
    with pytest.raises(UserError) as caught:
        plan(*nodes, disabled=disabled)
    return caught.value


def test_arounds_nest_even_if_the_closing_point_is_declared_first() -> None:
    halves = (("before_prune", "enter"), ("after_prune", "exit"))
    for declared in (("before_prune", "after_prune"), ("after_prune", "before_prune")):
        points = Points(
            Point(name, 3, ("run",), "firing", "", "own", "after_train_iter") for name in declared
        )
        nodes = {name: node(name, points=halves) for name in "abc"}  # type: ignore[arg-type]
        compiled = compile_plan("p", nodes, (), points)
        assert [order(compiled, point) for point, _ in halves] == [["a", "b", "c"], ["c", "b", "a"]]


def test_two_arounds_do_not_close_at_one_point() -> None:
    own = Point(
        "before_copy_checkpoint", 3, ("run",), "firing", "", "own", "before_save_checkpoint"
    )
    points = Points([own])
    assert [
        pair for pair, closing in points.pairs.items() if closing == "after_copy_checkpoint"
    ] == ["save_checkpoint"]
    save = (("before_save_checkpoint", "enter"), ("after_copy_checkpoint", "exit"))
    nodes = {
        "inner": node("inner", ["outer"], points=save),  # type: ignore[arg-type]
        "outer": node("outer", points=save),  # type: ignore[arg-type]
        "own": node("own", points=(("before_copy_checkpoint", "whole"),)),
    }
    compiled = compile_plan("p", nodes, (), points)
    assert order(compiled, "before_save_checkpoint") == ["outer", "inner"]
    assert order(compiled, "after_copy_checkpoint") == ["inner", "outer"]
    assert order(compiled, "before_copy_checkpoint") == ["own"]


def edges(compiled: Plan, point: str = POINT) -> list[tuple[str, str, str]]:
    return [
        (edge.first, edge.then, edge.where or " ".join(edge.slots))
        for edge in compiled.edges_at(point)
    ]


class TestEdges:
    def test_of_flows_stand_behind_the_others_and_name_the_slots(self) -> None:
        compiled = plan(
            node("w", points=AROUND, writes=["lr"]),
            node("r", ["x"], points=VAL, reads=["lr"]),
            node("x", points=AROUND),
        )
        assert edges(compiled, "after_val") == [
            ("x", "r", "p.toml:1"),
            ("x", "w", '"w" was entered before "x"'),
            ("w", "r", "lr"),
        ]

    def test_what_is_stated_where_they_are_entered_is_not_said_again_of_how_they_are_left(
        self,
    ) -> None:
        hooks = [
            node("a", points=AROUND),
            node("b", ["a"], points=AROUND),
            node("q", ["b"], ["a"], points=VAL),
        ]
        assert edges(plan(*hooks), "before_val") == [("a", "b", "p.toml:1")]
        hooks[1] = node("b", points=AROUND)
        assert edges(plan(*hooks), "before_val") == [
            ("a", "b", '"b" is left before "a" at after_val')
        ]

    def test_a_flow_gives_way_to_a_chain_of_stated_edges(self) -> None:
        compiled = plan(
            node("write", writes=["lr"], after=["middle"]),
            node("middle", after=["read"]),
            node("read", reads=["lr"]),
        )
        (given,) = compiled.dropped_edges
        assert (given.edge.first, given.edge.then, given.edge.slots) == ("write", "read", ("lr",))
        assert [(edge.first, edge.then) for edge in given.against] == [
            ("read", "middle"),
            ("middle", "write"),
        ]


def test_hooks_that_are_off_or_optional_may_be_missing() -> None:
    assert plan(
        node("a", ["off", "c?"], ambiguous_with=["b", "off", "c?"]), node("b"), disabled=["off"]
    )


class TestCycles:
    def test_at_several_points_are_reported_once(self) -> None:
        points = [(point, "whole") for point in ("before_train", "after_train", "after_run")]
        for count, more in ((1, ""), (2, " and 1 more"), (3, " and 2 more")):
            a, b = node("a", ["b"], points=points[:count]), node("b", ["a"], points=points)  # type: ignore[arg-type]
            assert [problem.message for problem in refused(a, b).problems] == [
                f"ordering cycle: a → b → a at before_train{more}"
            ]

    def test_of_the_two_points_of_an_around_name_the_halves(self) -> None:
        (problem,) = refused(
            *(
                node(name, after, points=BOTH)
                for name, after in zip("abc", ["", "a", "b"], strict=True)
            )
        ).problems
        assert (
            problem.message
            == "ordering cycle: a (leaving around_val) → b → c (leaving around_val) → a (leaving"
            " around_val) at after_val"
        )
        assert sorted(problem.hint.split("\n    ")) == [
            '"a" (entering around_val) before "b" (entering around_val) at before_val: p.toml:1',
            '"a" (leaving around_val) before "b" at after_val: p.toml:1',
            '"b" (entering around_val) before "c" (entering around_val) at before_val: p.toml:1',
            '"b" before "c" (leaving around_val) at after_val: p.toml:1',
            (
                'an edge may be that of one method alone: points = [{ at = "after_val", after ='
                ' ["…"] }, …]'
            ),
            "what is entered first is left last",
        ]

    def test_are_all_reported_at_once_and_of_a_tangle_a_dozen(self) -> None:
        assert (
            len(refused(*(node(name, set("abcdef") - {name}) for name in "abcdef")).problems) == 12
        )
        after = {"a": "b", "b": "a", "c": "d", "d": "ce", "e": "c"}
        error = refused(*(node(name, others) for name, others in after.items()))
        names = [
            problem.message.split(": ")[1].partition(" at ")[0].split(" → ")[:-1]
            for problem in error.problems
        ]
        assert sorted("".join(sorted(cycle)) for cycle in names) == ["ab", "cd", "cde"]


class TestVeryManyFlows:
    def test_are_refused_before_they_take_hours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hookflow.graph.dataflow.MAX_PAIRS", 100)
        crowd = [
            node(f"{verb[0]}{k}", **{verb: ["x"]})
            for verb in ("reads", "writes")
            for k in range(11)
        ]
        assert "more than 100 pairs" in str(refused(*crowd))

    def test_that_gave_way_are_counted(self) -> None:
        """Readers of one slot write the other, and all of them are in a circle."""
        hooks = [node(f"a{k}", reads=["x"], writes=["y"]) for k in range(15)]
        compiled = plan(*hooks, *(node(f"b{k}", reads=["y"], writes=["x"]) for k in range(15)))
        assert compiled.edges == ()
        unexplained = [overruled for overruled in compiled.dropped_edges if not overruled.against]
        assert (len(compiled.dropped_edges), len(unexplained)) == (450, 350)
        assert f"at {POINT}, 350 more flows gave way to others" in " ".join(
            as_text(compiled).split()
        )
        assert Plan.from_json(json.dumps(compiled.to_json())) == compiled


def test_a_shuffle_hangs_on_names_and_not_on_the_file() -> None:
    hooks = [node(name) for name in "abcdef"]
    assert len({tuple(order(plan(*hooks, shuffle=seed))) for seed in range(20)}) > 10
    assert plan(*hooks[::-1], shuffle=3).bindings == plan(*hooks, shuffle=3).bindings


def test_neighbours_and_precedence_have_the_edges_and_the_flow_that_gave_way() -> None:
    compiled = plan(node("a"), node("b", ["a"]), node("c", phase="late"), node("d", phase="late"))
    links = [*explain_neighbours(compiled, POINT)]
    assert [(link.first.hook, link.reason) for link in links] == [
        ("a", "edge"),
        ("b", "phase"),
        ("c", "file"),
    ]
    assert [link.path for link in links] == [compiled.edges, (), ()]
    compiled = plan(
        node("write", writes=["lr"], after=["read"]), node("read", reads=["lr"]), node("a")
    )
    (answer,) = find_precedence(compiled, "read", "write")
    assert [given.edge.slots for given in answer.dropped] == [("lr",)]
    assert find_precedence(compiled, "read", "a")[0].dropped == ()


def test_either_of_two_hooks_allows_either_order_and_of_thousands_few_are_enumerated() -> None:
    allowed = {"a": ["b"], "b": [], "c": ["a"]}
    compiled = plan(
        *(node(name, writes=["x"], ambiguous_with=others) for name, others in allowed.items())
    )
    assert [(pair.first.hook, pair.then.hook) for pair in find_ambiguities(compiled)] == [
        ("b", "c")
    ]
    compiled = plan(*(node(f"h{k}", writes=["model"]) for k in range(2000)))
    assert len(list(islice(find_ambiguities(compiled), 5))) == 5


def at(name: str, *points: str, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> Node:
    return node(name, points=[(point, "whole") for point in points], reads=reads, writes=writes)


class TestHooksThatShareNoPoint:
    @pytest.mark.parametrize(
        ("points_of_a", "points_of_b", "first", "round_"),
        [
            ("before_run", "after_run", "a", ""),
            ("after_val", "after_train_iter", "b", "epoch"),
            ("before_train after_train_iter", "after_val after_run", "a", ""),
            ("before_val_iter", "after_val_iter", "a", "validation batch"),
            ("before_train_iter after_val_iter", "after_train_iter", "", ""),  # by turns
            ("before_train on_exception", "after_train", "", ""),
        ],
    )
    def test_the_loop_comes_to_one_first(
        self, points_of_a: str, points_of_b: str, first: str, round_: str
    ) -> None:
        compiled = plan(at("a", *points_of_a.split()), at("b", *points_of_b.split()))
        for names in ("ab", "ba"):
            result = loop_order(compiled, *names, False)
            assert (result.first, result.round) == (first, round_)
            assert len(result.places) == len(compiled.bindings)

    @pytest.mark.parametrize(
        ("writes", "reads", "handed"),
        [
            ("x", "x", "x"),
            ("x y", "y z", "y"),
            ("x", "y", ""),
            ("x", "x.a", "x.a"),
            ("x.a x.b", "x", "x.a x.b"),
        ],
    )
    def test_one_hands_slots_on_to_the_other(self, writes: str, reads: str, handed: str) -> None:
        compiled = plan(
            at("a", "after_train_iter", writes=writes.split()),
            at("b", "after_val", reads=reads.split()),
        )
        expected = (SlotHandover("a", "b", tuple(handed.split()), ""),) if handed else ()
        for names in ("ab", "ba"):
            assert loop_order(compiled, *names, False).handovers == expected

    def test_what_comes_later_is_that_of_the_round_before(self) -> None:
        """The metrics are of the epoch before, too, but it is not `b` that writes them."""
        compiled = plan(
            at("a", "after_forward", reads=["x", "metrics"], writes=["y"]),
            at("b", "after_backward", reads=["y"], writes=["x"]),
        )
        assert loop_order(compiled, "a", "b", False).handovers == (
            SlotHandover("a", "b", ("y",), ""),
            SlotHandover("b", "a", ("x",), "iteration"),
        )


def test_as_a_string_it_is_a_line_for_each_point_with_the_triggers() -> None:
    both = (("before_run", "whole"), ("after_train_epoch", "whole"))
    a = node("a", points=both[1:])  # type: ignore[arg-type]
    trigger = Trigger.parse(every="2", since="1ep", until="9ep", when="n > 3")
    compiled = plan(
        replace(a, bound=(replace(a.bound[0], trigger=trigger),)),
        node("b", points=both),  # type: ignore[arg-type]
    )
    assert (
        str(compiled)
        == "before_run         b\nafter_train_epoch  a (every 2 from 1ep until 9ep when n > 3) → b"
    )
    assert str(plan()) == ""


def test_its_own_points_warnings_and_notes_are_read_back() -> None:
    points = [
        Point(name, 1, ("run",), "it", "", "own", to)
        for name, to in (("x", "after_run"), ("y", "x"))
    ]
    compiled = compile_plan("p", {"a": node("a", points=[("y", "whole")])}, points=Points(points))
    assert Plan.from_json(json.dumps(compiled.to_json())) == compiled
    assert compiled.own == tuple(points)
    here, nowhere = Problem("here", Where("p.toml", 3), "change it"), Problem("nowhere")
    compiled = replace(plan(node("a")), warnings=(here, nowhere), notes=(nowhere, here))
    assert Plan.from_json(json.dumps(compiled.to_json())) == compiled


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"own": [{"name": "after_x", "follows": "nowhere"}]}, "its point after_x"),
        (
            {"own": [{"name": "x", "follows": "y"}, {"name": "y", "follows": "after_run"}]},
            "its point x",
        ),
        ({"own": [{"name": "after_val", "follows": "after_run"}]}, "its point after_val"),
        ({"hooks": []}, "its binding 0"),
        ({"bindings": [{"point": "after_x"}]}, "its binding 0"),
        ({"bindings": [{"id": 1}]}, "its binding 0"),
        ({"edges": [{"first": "x"}]}, "no bindings for the edge from x to b"),
        ({"edges": [{"first_id": 9}]}, "no bindings for the edge from a to b"),
        ({"edges": [{"point": "after_val"}]}, "no bindings for the edge from a to b"),
        ({"bindings": [{"phase": "soon"}]}, r"bindings\.0\.phase"),
        ({"hooks": [{"phase": "soon"}]}, r"hooks\.0\.phase"),
    ],
)
def test_a_plan_that_does_not_hold_together_is_none(change: dict[str, Any], expected: str) -> None:
    """A run directory is data: its readers lean on what a plan says."""
    written = json.loads(
        json.dumps(plan(node("a", writes=["lr"]), node("b", reads=["lr"])).to_json())
    )
    assert Plan.from_json(written).edges
    point = {"depth": 1, "offers": ["run"], "unit": "it", "about": "", "kind": "own"}
    whole = {"own": [point], **{key: written[key] for key in ("hooks", "bindings", "edges")}}
    for key, items in change.items():
        written[key] = [whole[key][0] | item for item in items] if items else []
    with pytest.raises(ValueError, match=expected):
        Plan.from_json(json.dumps(written))


def own(name: str, follows: str) -> Point:
    return Point(name, 3, ("run",), "firing", "", "own", follows)


def mine() -> Points:
    return Points(
        [
            own("a", "after_train_iter"),
            own("b", "a"),
            own("c", "after_train_iter"),
            own("before_tuning", "after_backward"),
            own("after_tuning", "before_tuning"),
            own("before_alone", "after_run"),
        ]
    )


def test_own_points_are_listed_behind_those_they_follow_and_arounds_left_at_their_after() -> None:
    names = [point.name for point in mine()]
    assert [name for name in names if name in DEFAULT_POINTS] == [
        point.name for point in STANDARD_POINTS
    ]
    for first, *behind in (
        ("after_train_iter", "a", "c", "b", "after_train_epoch"),
        ("after_backward", "before_tuning", "after_tuning", "before_optimizer_step"),
        ("after_run", "before_alone"),
    ):
        start = names.index(first)
        assert names[start : start + len(behind) + 1] == [first, *behind]
    points = mine()
    assert points.pairs["val"] == "after_val"
    assert points.pairs["save_checkpoint"] == "after_copy_checkpoint"
    assert points.pairs["tuning"] == "after_tuning"
    assert {"load_checkpoint", "alone", "forward"}.isdisjoint(points.pairs), (
        "these have no before, or no after"
    )
    assert points.names == (
        *(point.name for point in points),
        *(f"around_{pair}" for pair in points.pairs),
    )
    assert "around_val" not in points
    inside = ("after_train_iter", "forward", "b", "after_tuning", "after_val_iter", "before_alone")
    assert list(map(points.in_iteration, inside)) == [True] * 4 + [False] * 2, (
        "own ones where those are they follow"
    )


@pytest.mark.parametrize(
    ("name", "ahead", "nested", "picks", "of_batches"),
    [
        ("before_run", True, False, "", False),
        ("before_train_iter", True, False, "", True),
        ("after_train_iter", False, False, "", True),
        ("after_train_epoch", False, False, "", False),
        ("after_val_iter", False, False, "", True),
        ("forward", True, True, "modules", True),
        ("parameter_grad", True, True, "parameters", True),
        ("state_dict_post", False, True, "modules", False),
        ("on_log", False, True, "", False),
    ],
)
def test_what_a_point_is_by_its_kind(
    name: str, ahead: bool, nested: bool, picks: str, of_batches: bool
) -> None:
    point = mine()[name]
    assert (point.ahead, point.nested, point.picks, point.of_batches) == (
        ahead,
        nested,
        picks,
        of_batches,
    )


@pytest.mark.parametrize(
    ("since", "until", "before_one", "after_one"),
    [
        ("5", "3", True, True),
        ("3", "5", False, False),
        ("3", "3", True, False),  # before an iteration, `until` is that iteration itself
        ("2ep", "3it", False, False),  # which is the later one the data decide
        ("50%", "25%", True, True),
        ("3", None, False, False),
    ],
)
def test_an_inverted_window_is_empty(
    since: str | None, until: str | None, before_one: bool, after_one: bool
) -> None:
    trigger = Trigger.parse(since=since, until=until)
    assert is_window_empty(trigger, DEFAULT_POINTS["before_train_iter"]) is before_one
    assert is_window_empty(trigger, DEFAULT_POINTS["after_train_iter"]) is after_one


@pytest.mark.parametrize(
    ("written", "point", "totals", "measured"),
    [
        ("25%", "after_train_iter", Totals(iters=202), Measure("it", 101, 2)),
        (
            "25%",
            "after_train_epoch",
            Totals(iters=202, epochs=2, epoch_lengths=EpochLengths.constant(101)),
            Measure("it", 101, 2),
        ),
        ("50%", "after_train_iter", Totals(epochs=3), Measure("ep", 3, 2)),
        ("50%", "after_train_iter", Totals(), Measure("ep", 0, 1)),
        (
            "2ep",
            "after_train_iter",
            Totals(iters=50, epoch_lengths=EpochLengths.constant(5)),
            Measure("it", 10, 1),
        ),
        ("2ep", "after_train_iter", Totals(epochs=3), Measure("ep", 2, 1)),
        (
            "3",
            "after_train_epoch",
            Totals(iters=50, epoch_lengths=EpochLengths.constant(5)),
            Measure("ep", 3, 1),
        ),
        (
            "3",
            "after_val_iter",
            Totals(iters=50, epoch_lengths=EpochLengths.constant(5)),
            Measure("firing", 3, 1),
        ),
        ("90s", "after_train_iter", Totals(iters=50), Measure("s", 90, 1)),
    ],
)
def test_an_amount_counts_what_its_point_does(
    written: str, point: str, totals: Totals, measured: Measure
) -> None:
    assert measure(read_amount(written), DEFAULT_POINTS[point], totals) == measured


def test_which_multiple_a_count_has_entered_and_when_one_is_reached_and_passed() -> None:
    every = Measure("it", 5, 2)
    assert [every.multiple(count) for count in (0, 2, 3, 5, 7, 8)] == [0, 0, 1, 2, 2, 3]
    assert [Measure("s", 3, 2).multiple(seconds) for seconds in (1.25, 1.5, 3.0)] == [0, 1, 2]
    assert (
        Measure("it", 3, 1).compute_reached_count(),
        Measure("it", 3, 1).compute_passed_count(),
        Measure("it", 3, 2).compute_reached_count(),
    ) == (3, 4, 2)
    assert (
        Measure("s", 3, 2).compute_reached_count(),
        Measure("s", 3, 2).compute_passed_count(),
    ) == (1.5, 1.5)
