"""Points that a pipeline declares for itself, fired by a hook of the same pipeline."""

from __future__ import annotations

import pytest

from tests.conftest import Trained, firings, messages, records

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


def test_they_fire_with_what_they_offer_and_their_pair_closes(trained: Trained) -> None:
    run_dir = trained(POINTS, densifies(), grows(), *SHORT)
    once = ["grow: in", "densified 12 at {}", "grow: out"]
    counts = firings(run_dir)
    assert [counts["grow", point] for point in ("before_grow", "after_densify", "after_grow")] == [2, 2, 2]
    assert messages(run_dir) == [line.format(k) for k in (0, 1) for line in once]


def test_triggers_hold_there_too(trained: Trained) -> None:
    points = '["around_grow", {at="after_densify", every=2}]'
    run_dir = trained(POINTS, densifies(), grows(points=points, when='"iter > 0"'), "run.max_epochs=1")
    assert [line for line in messages(run_dir) if str(line).startswith("dens")] == [
        "densified 12 at 1",
        "densified 12 at 3",
    ]
    assert messages(run_dir).count("grow: in") == messages(run_dir).count("grow: out") == 4


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
def test_what_cannot_be_fired(trained: Trained, args: dict[str, object], reason: str) -> None:
    hook = densifies(**args)
    (end,) = records(trained(POINTS, hook, *SHORT, code=2), "end")
    place = 'raised by the hook "densify" at after_optimizer_step\n    iteration 0, epoch 1'
    assert end["reason"] == f"--set {hook}: {reason}\n    {place}"
