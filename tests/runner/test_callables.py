"""Functions, partials, callable objects and classes as hooks, with arguments by name or in a list."""

from __future__ import annotations

import json

import pytest

from hookflow.errors import UserError
from tests.conftest import NewRun, Trained, messages

SHORT = ("run.max_epochs=1", "data.train.args={examples=8}")


def hook(name: str, args: str = "", points: str = '"after_train"') -> str:
    given = f", args={args}" if args else ""
    at = f", points=[{points}]" if points else ""
    return f'hooks.mine={{use="./callables.py:{name}"{given}{at}}}'


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (hook("tell", '["hello", 3]'), ["hello 3!"]),
        (hook("tell", '["hello", 3]', '"before_run", "after_run"'), ["hello 3!"] * 2),
        (hook("tell", '{prefix="by", count=1, suffix="name"}'), ["by 1name"]),
        (hook("skips", '["x"]'), ["x:1"]),
        (hook("skips", '{prefix="x"}'), ["x:1"]),
        (hook("skips", '["x", "="]'), ["x=1"]),
        (hook("named", '["ha"]'), ["ha at 1"]),
        (hook("named", '{prefix="ha", times=2}'), ["haha at 1"]),
        (hook("metrics_first", "", '"after_val"'), ["loss is there"]),
        (hook("metrics_first", '{name="x"}', '"after_val"'), ["x is not there"]),
        (hook("twice"), ["twice 2!"]),
        (hook("quietly", '["hush", 1]'), ["hush 1."]),
        (hook("quietly", '{prefix="hush", count=1}'), ["hush 1."]),
        (hook("teller", "", '"before_train", "after_train"'), ["call 0", "call 1"]),
        (hook("teller", '{prefix="now"}', '"before_train"'), ["now 0"]),
        (hook("Counter", "[7]", '"before_train", "after_train"'), ["call 8", "call 9"]),
        (hook("Counter", "{start=1}", '"before_run"'), ["call 2"]),
        (hook("Listed", '["l", [1, 2]]', ""), ["l [1, 2] False False", "in", "out", "after"]),
        (hook("Listed", '["l", [], true]', '"before_train"'), ["l [] True False"]),
        (hook("last", '["p"]'), ["p False!"]),
        (hook("last", '["p", "."]', '"after_val"'), ["p True."]),
        (hook("last", '{prefix="p"}', '"after_val"'), ["p True!"]),
        (hook("typed", '["a/b", "slow", [1, 2], [3]]'), ["b SLOW (1, 2) [3]"]),
        (hook("typed", '{out="a/b", kind="slow"}'), ["b SLOW (0, 0) []"]),
        (hook("Typed", '["a/b", "slow", [1, 2], [3]]', ""), ["b SLOW (1, 2) [3]"]),
        (hook("Typed", '{out="a/b", kind="slow", some=[3]}', ""), ["b SLOW (0, 0) [3]"]),
        (hook("SaysName", "", ""), ["mine"]),
        (hook("HasName", '{name="its own"}', ""), ["its own"]),
        (hook("HasSlots", "", ""), ["no name"]),
    ],
)
def test_whatever_can_be_called_is_a_hook(trained: Trained, override: str, said: list[str]) -> None:
    run_dir = trained(override, *SHORT)
    assert messages(run_dir) == said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (hook("tell", '["a"]'), 'asks for "count", which after_train does not offer'),
        (hook("tell", '["a", "b"]'), '"count" must be an integer, not the string "b"'),
        (
            hook("tell", '["a", 1, 2, "b", "c"]'),
            "takes 3 arguments, and is given 5\n    it takes prefix, count, suffix",
        ),
        (hook("twice", '["a", 1, 2]'), "takes 1 argument, and is given 3"),
        (hook("quietly", '["a", "b"]'), '"count" must be an integer, not the string "b"'),
        (hook("teller", '{prefx="b"}'), 'takes no argument "prefx"\n    did you mean "prefix"?'),
        (hook("teller", "{prefix=3}"), '"prefix" must be a string, not 3'),
        (hook("Counter", "[7]", ""), "does not say where it belongs"),
        (hook("Counter", "{strat=7}"), 'did you mean "start"?'),
        (hook("tell", '{prefix="a", count=1, run="b"}'), '"run" is what the point offers, so it cannot be given here'),
        (hook("wordy", '["a"]'), '"run" is what the point offers, so it cannot be given here'),
        (hook("last", '["a", "b", "c"]', '"after_val"'), "takes 2 arguments, and is given 3"),
        (hook("typed", '["a", "fast"]'), '"kind" cannot be'),
        (hook("Listed", '["a"]'), 'needs the argument "numbers"'),
        (hook("Listed", '["a", ["b"]]'), "must be an integer"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(new_run: NewRun, override: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        new_run(override, *SHORT)
    assert said in str(raised.value)


def test_a_partial_is_described_by_its_function(new_run: NewRun) -> None:
    plan = json.loads(new_run(hook("twice"), *SHORT).plan.read_text())
    assert [h["about"] for h in plan["hooks"] if h["name"] == "mine"] == ["Say what it is given."]
