"""Functions, partials, callable objects and classes as hooks, with arguments by name or in a list."""

from __future__ import annotations

import json

import pytest

from hookflow.errors import UserError
from tests.conftest import NewRun, Trained, records

SHORT = ("run.max_epochs=1", "data.train.args={examples=8}")


def table(name: str, args: str = "", points: str = '"after_train"') -> str:
    given = f", args={args}" if args else ""
    at = f", points=[{points}]" if points else ""
    return f'{{use="./callables.py:{name}"{given}{at}}}'


CALLABLES = [
    (table("tell", '["hello", 3]'), ["hello 3!"]),
    (table("skips", '["x"]'), ["x:1"]),
    (table("skips", '["x", "="]'), ["x=1"]),
    (table("named", '["ha"]'), ["ha at 1"]),
    (table("named", '{prefix="ha", times=2}'), ["haha at 1"]),
    (table("twice"), ["twice 2!"]),
    (table("teller", "", '"before_train", "after_train"'), ["call 0", "call 1"]),
    (table("teller", '{prefix="now"}', '"before_train"'), ["now 0"]),
    (table("Counter", "[7]", '"before_train", "after_train"'), ["call 8", "call 9"]),
    (table("Counter", "{start=1}", '"before_run"'), ["call 2"]),
    (table("Listed", '["l", [1, 2]]', ""), ["l [1, 2] False False", "in", "out", "after"]),
    (table("Listed", '["l", [], true]', '"before_train"'), ["l [] True False"]),
    (table("last", '["p"]'), ["p False!"]),
    (table("last", '["p", "."]', '"after_val"'), ["p True."]),
    (table("typed", '["a/b", [1, 2], [3]]'), ["b (1, 2) [3]"]),
    (table("SaysName", "", ""), ["mine15"]),
    (table("HasName", '{name="its own"}', ""), ["its own"]),
    (table("HasSlots", "", ""), ["no name"]),
]


def test_whatever_can_be_called_is_a_hook(trained: Trained) -> None:
    run_dir = trained(*(f"hooks.mine{k}={text}" for k, (text, _) in enumerate(CALLABLES)), *SHORT)
    said: dict[object, list[object]] = {}
    for record in records(run_dir, "message"):
        said.setdefault(record["source"], []).append(record["text"])
    assert said == {f"mine{k}": expected for k, (_, expected) in enumerate(CALLABLES)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table("tell", '["a"]'), 'asks for "count", which after_train does not offer'),
        (table("tell", '["a", "b"]'), '"count" must be an integer, not the string "b"'),
        (table("tell", '["a", 1, 2, "b", "c"]'), "takes 3 arguments, and is given 5\n    it takes prefix, count"),
        (table("twice", '["a", 1, 2]'), "takes 1 argument, and is given 3"),
        (table("teller", '{prefx="b"}'), 'takes no argument "prefx"\n    did you mean "prefix"?'),
        (table("teller", "{prefix=3}"), '"prefix" must be a string, not 3'),
        (table("Counter", "[7]", ""), "does not say where it belongs"),
        (table("Counter", "{strat=7}"), 'did you mean "start"?'),
        (table("tell", '{prefix="a", count=1, run="b"}'), '"run" is what the point offers, so it cannot be given here'),
        (table("wordy", '["a"]'), '"run" is what the point offers, so it cannot be given here'),
        (table("last", '["a", "b", "c"]', '"after_val"'), "takes 2 arguments, and is given 3"),
        (table("Listed", '["a"]'), 'needs the argument "numbers"'),
        (table("Listed", '["a", ["b"]]'), "must be an integer"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(new_run: NewRun, text: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        new_run(f"hooks.mine={text}", *SHORT)
    assert said in str(raised.value)


def test_a_partial_is_described_by_its_function(new_run: NewRun) -> None:
    plan = json.loads(new_run(f"hooks.mine={table('twice')}", *SHORT).plan.read_text())
    assert [h["about"] for h in plan["hooks"] if h["name"] == "mine"] == ["Say what it is given."]
