"""The order of hooks: edges are obeyed, then phases, then the file's order; what cannot be is told."""

from __future__ import annotations

import pytest

from hookflow.errors import UserError, Where
from hookflow.graph.plan import EdgeKind
from tests.hook_nodes import AROUND, POINT, node, order, plan


def test_the_files_order_decides_where_nothing_else_does() -> None:
    assert order(plan(node("b"), node("a"), node("c"))) == ["b", "a", "c"]


def test_an_edge_is_stronger_than_the_files_order() -> None:
    assert order(plan(node("a", after=["c"]), node("b"), node("c"))) == ["b", "c", "a"]
    assert order(plan(node("a"), node("b"), node("c", before=["a"]))) == ["b", "c", "a"]


def test_a_phase_is_stronger_than_the_files_order_and_weaker_than_an_edge() -> None:
    assert order(plan(node("a", phase="late"), node("b"), node("c", phase="first"))) == ["c", "b", "a"]
    assert order(plan(node("a", phase="late"), node("b", after=["a"], phase="first"))) == ["a", "b"]


def test_an_optional_edge_may_name_nobody() -> None:
    assert order(plan(node("a", after=["ema?"]))) == ["a"]


def test_an_edge_to_a_hook_that_is_switched_off_is_dropped() -> None:
    assert order(plan(node("a", after=["ema"]), disabled=["ema"])) == ["a"]


def test_unknown_names_are_all_told_at_once_with_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        plan(node("ema"), node("a", after=["emma"]), node("b", before=["nobody"]), node("c", requires=["em"]))
    text = str(caught.value)
    assert 'did you mean "ema"?' in text
    assert 'write "nobody?" if it may be missing' in text
    assert 'requires the hook "em"' in text


def test_where_a_wish_is_of_the_class_is_said() -> None:
    for kind, stated in (("class", True), ("file", False)):
        with pytest.raises(UserError) as caught:
            plan(node("a", after=["nobody"], kind=kind))
        assert ("(stated by p.toml:1" in str(caught.value)) is stated


def test_what_is_required_is_switched_off_or_is_not_there() -> None:
    for disabled, said in ((["ema"], "is switched off"), ([], "is not in this pipeline")):
        with pytest.raises(UserError, match=f'requires the hook "ema", which {said}'):
            plan(node("a", requires=["ema"]), disabled=disabled)


def test_a_hook_may_be_ambiguous_with_one_that_is_off_or_optional_and_with_no_unknown_one() -> None:
    assert plan(node("a", ambiguous_with=["b", "ema", "c?"]), node("b"), disabled=["ema"])
    with pytest.raises(UserError, match='ambiguous with "nobody", which is not in this pipeline'):
        plan(node("a", ambiguous_with=["nobody"]))


def test_a_cycle_names_every_hook_and_edge() -> None:
    with pytest.raises(UserError) as caught:
        plan(node("a", after=["c"]), node("b", after=["a"]), node("c", after=["b"]), node("d"))
    text = str(caught.value)
    assert all(step in text for step in ('"a" before "b"', '"b" before "c"', '"c" before "a"'))
    assert '"d"' not in text


def test_a_cycle_at_several_points_is_told_once() -> None:
    points = [(point, "whole") for point in ("before_train", "after_train", "after_run")]
    for count, more in ((1, ""), (2, " and 1 more"), (3, " and 2 more")):
        with pytest.raises(UserError) as caught:
            plan(node("a", ["b"], points=points[:count]), node("b", ["a"], points=points))
        (problem,) = caught.value.problems
        assert problem.message == f"ordering cycle: a → b → a at before_train{more}"


def test_a_cycle_is_where_its_first_edge_is_stated() -> None:
    with pytest.raises(UserError) as caught:
        plan(node("a", ["b"]), node("b", near={POINT: (["a"], [])}))
    (problem,) = caught.value.problems
    assert problem.where == Where("p.toml", 2)


@pytest.mark.parametrize(("kinds", "told"), [("ff", 0), ("fc", 1), ("cf", 1), ("cc", 1)])
def test_of_a_cycle_that_a_class_is_part_of_it_is_told_how_the_file_overrules_it(kinds: str, told: int) -> None:
    kind_of: dict[str, EdgeKind] = {"f": "file", "c": "class"}
    of_a, of_b = (kind_of[kind] for kind in kinds)
    with pytest.raises(UserError) as caught:
        plan(node("a", ["b"], kind=of_a), node("b", ["a"], kind=of_b))
    assert str(caught.value).count("the file can overrule: after = [] or before = [] in the hook's table") == told


def test_of_a_tangle_a_dozen_cycles_are_told() -> None:
    with pytest.raises(UserError) as caught:
        plan(*(node(name, set("abcdef") - {name}) for name in "abcdef"))
    assert len(caught.value.problems) == 12


def test_a_hook_cannot_stand_before_itself() -> None:
    with pytest.raises(UserError, match="before or after itself"):
        plan(node("a", after=["a"]))


def test_what_is_entered_first_is_left_last() -> None:
    compiled = plan(
        node("a", points=AROUND),
        node("b", points=AROUND),
        node("c", points=AROUND, before=["a"]),
        node("plain", points=(("before_val", "whole"), ("after_val", "whole"))),
    )
    assert order(compiled, "before_val") == ["b", "c", "a", "plain"]
    assert order(compiled, "after_val") == ["plain", "a", "c", "b"]
