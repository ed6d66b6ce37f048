"""Points that a pipeline declares for itself, fired by a hook of the same pipeline."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from tests.conftest import NewRun, records

Train = Callable[..., int]
POINTS = (
    'points={before_grow={follows="after_optimizer_step"}, '
    'after_densify={follows="before_grow", offers=["count"]}, after_grow={follows="after_densify"}}'
)
SHORT = ("run.max_epochs=1", "data.train.args={examples=16}")


def densifies(**args: object) -> str:
    written = ", ".join(f"{name}={value}" for name, value in args.items())
    return f'hooks.densify={{use="./watchers.py:Densifies", args={{{written}}}}}'


def grows(**keys: str) -> str:
    written = "".join(f", {key}={value}" for key, value in keys.items())
    return f'hooks.grow={{use="./watchers.py:Grows"{written}}}'


def said(run_dir: RunDir) -> list[object]:
    return [record["text"] for record in records(run_dir, "message")]


def test_they_fire_with_what_they_offer_and_their_pair_closes(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run(POINTS, densifies(), grows(), *SHORT)
    assert train_here(run_dir) == 0
    once = ["grow: in", "densified 12 at {}", "grow: out"]
    assert said(run_dir) == [line.format(k) for k in (0, 1) for line in once]


def test_every_firing_is_counted(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run(POINTS, densifies(), grows(), *SHORT)
    assert train_here(run_dir) == 0
    import json

    plan = Plan.from_json(json.loads(run_dir.plan.read_text()))
    counts: dict[str, int] = {}
    for frame in records(run_dir, "frame"):
        for id_, (n, *_) in frame["hooks"].items():  # type: ignore[attr-defined]
            counts[plan.bindings[int(id_)].point] = counts.get(plan.bindings[int(id_)].point, 0) + n
    assert {p: counts[p] for p in ("before_grow", "after_densify", "after_grow")} == {
        "before_grow": 2,
        "after_densify": 2,
        "after_grow": 2,
    }


def test_triggers_hold_there_too(new_run: NewRun, train_here: Train) -> None:
    points = '["around_grow", {at="after_densify", every=2}]'
    run_dir = new_run(POINTS, densifies(), grows(points=points, when='"iter > 0"'), "run.max_epochs=1")
    assert train_here(run_dir) == 0
    assert [line for line in said(run_dir) if str(line).startswith("dens")] == [
        "densified 12 at 1",
        "densified 12 at 3",
    ]
    assert said(run_dir).count("grow: in") == said(run_dir).count("grow: out") == 4


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (
            {"point": '"after_densfy"'},
            'this pipeline has no point "after_densfy" of its own\n    did you mean "after_densify"?',
        ),
        (
            {"point": '"sometime"'},
            'this pipeline has no point "sometime" of its own\n    declare it: [points.sometime]',
        ),
        ({"point": '"after_val"'}, "after_val cannot be fired by a hook: the run itself fires it"),
        ({"offered": "[]"}, "after_densify offers 1 beside the run: count; it has been fired with 0"),
        ({"offered": "[1, 2]"}, "after_densify offers 1 beside the run: count; it has been fired with 2"),
        ({"point": '"before_grow"'}, "before_grow offers 0 beside the run; it has been fired with 1"),
    ],
)
def test_what_cannot_be_fired(new_run: NewRun, train_here: Train, args: dict[str, object], reason: str) -> None:
    hook = densifies(**args)
    run_dir = new_run(POINTS, hook, *SHORT)
    assert train_here(run_dir) == 2
    (end,) = records(run_dir, "end")
    place = 'raised by the hook "densify" at after_optimizer_step\n    iteration 0, epoch 1'
    assert end["reason"] == f"--set {hook}: {reason}\n    {place}"
