"""What `hookflow check` foretells is what a run does:
every trigger at every point, in both loops.
"""

import json
from dataclasses import replace

import pytest

from hookflow.graph.plan import Binding, Plan, Trigger
from hookflow.graph.points import Point
from hookflow.graph.schedule import Length, compute_forecasts
from hookflow.pipeline.values import Interval
from tests.conftest import Trained, firings

EVERY = ("", "3", "7it", "1ep", "33.3%", "99it")
WINDOWS = (
    {},
    {"from": "5it"},
    {"until": "5it"},
    {"from": "1ep", "until": "2ep"},
    {"from": "30%", "until": "75%"},
    {"until": "2"},
)
POINTS = (
    "before_run", "before_train", "before_train_epoch", "before_train_iter", "after_forward",
    "before_optimizer_step",
    "after_optimizer_step", "after_train_iter", "after_train_epoch", "before_val",
    "after_val_epoch", "around_val",
    "around_train_epoch", "after_train", "before_test", "after_test_epoch", "after_run",
)  # fmt: skip


def everything() -> list[str]:
    """Return overrides for a hook each of every trigger, at every point of POINTS."""
    hooks = []
    for point in POINTS:
        for e, every in enumerate(EVERY):
            for w, window in enumerate(WINDOWS):
                given = {**({"every": every} if every else {}), **window}
                keys = "".join(
                    f", {k}={v if v.isdecimal() else json.dumps(v)}" for k, v in given.items()
                )
                use = "./common_hooks.py:Everywhere"
                hooks.append(
                    f'hooks.{point}-{e}-{w}={{use="{use}", points=[{{at="{point}"{keys}}}]}}'
                )
    return hooks


@pytest.mark.parametrize(
    ("run", "val_every", "length"),
    [
        ("max_epochs = 3", "4it", Length(3, None, Interval(4, "it"), tests=True)),
        ("max_iters = 18", "2ep", Length(None, 18, Interval(2, "ep"), tests=True)),
    ],
)
def test_it_comes_as_foretold(trained: Trained, run: str, val_every: str, length: Length) -> None:
    """`test_triggers` has the loops that validate in their own unit."""
    run_dir = trained(
        *everything(), f'run.val_every="{val_every}"', "run.test=true", swap=("max_epochs = 3", run)
    )
    plan = Plan.from_json(json.loads(run_dir.plan.read_text()))
    counts = firings(run_dir)
    foretold, without = (
        compute_forecasts(plan, replace(length, iters_per_epoch=5)),
        compute_forecasts(plan, length),
    )
    ours = [binding for binding in plan.bindings if "-" in binding.hook]
    assert len(ours) == len(EVERY) * len(WINDOWS) * (len(POINTS) + 2), "an around_X has two"
    for binding in ours:
        told, less, times = (
            foretold[binding.id],
            without[binding.id],
            counts[binding.hook, binding.point],
        )
        assert (told.times, told.first == "never") == (
            times,
            times == 0,
        ), f"{binding.hook} {binding.trigger}"
        assert less.times in (
            None,
            times,
        ), "what can be said without the number of batches stays true"


OWN = Point("mine_of_val", 3, ("run",), "firing", "", "own", "after_train_iter")
EPOCHS, ITERS, HUNDRED = Length(3, None), Length(None, 5), Length(None, 100)
THIRD = "every 33.3%"
SECOND = "every 2 iterations, first at iteration 2"
IN_FIRST = "every 2 iterations, first at iteration 1"
NO_VAL = Length(3, None, validates=False)
BY_ITERS = Length(None, 18, Interval(4, "it"))  # at 4, 8, 12, 16 and 18 iterations
CUT = Length(None, 12, iters_per_epoch=5)


@pytest.mark.parametrize(
    ("point", "trigger", "length", "message"),
    [
        (
            "after_train_iter",
            Trigger.parse(every="33.3%"),
            HUNDRED,
            f"{THIRD}, first at iteration 34: 3 times",
        ),
        ("before_train_iter", Trigger.parse(every="50%"), EPOCHS, "every 50%"),
        (
            "before_train_iter",
            Trigger.parse(every="50%"),
            ITERS,
            "every 50%, first at iteration 1: 2 times",
        ),
        (
            "after_train_iter",
            Trigger.parse(every="5", when="loss > 1"),
            ITERS,
            "at iteration 5, where loss > 1",
        ),
        (
            "after_train_iter",
            Trigger.parse("2", when="loss > 1"),
            ITERS,
            f"{SECOND}: at most 2 times, where loss > 1",
        ),
        ("forward", Trigger.parse(every="2"), EPOCHS, IN_FIRST),
        ("forward", Trigger(), ITERS, "every iteration: 5 times, at each module"),
        ("after_train_iter", Trigger.parse(every=" 1.0 h "), ITERS, "every 1.0 h"),
        ("mine_of_val", Trigger.parse(every="3"), ITERS, "every 3 firings"),
        ("before_run", Trigger(), ITERS, "once"),
        (
            "after_train_iter",
            Trigger.parse(every="10m", until="1.5h"),
            ITERS,
            "every 10m until 1.5h",
        ),
        ("after_save_checkpoint", Trigger(), ITERS, "every firing"),
        ("after_train_iter", Trigger(), Length(None, 1), "at iteration 1"),
        (
            "after_train_iter",
            Trigger.parse(since="4"),
            ITERS,
            "every iteration, first at iteration 4: 2 times",
        ),
        ("after_train_iter", Trigger.parse(until="2"), ITERS, "every iteration: 2 times"),
        ("after_train_iter", Trigger.parse(until="2"), EPOCHS, "every iteration until 2"),
        (
            "after_train_iter",
            Trigger.parse(since="1s", until="9s"),
            ITERS,
            "every iteration from 1s until 9s",
        ),
        ("before_train_iter", Trigger.parse(every="2", until="2"), ITERS, "at iteration 1"),
        (
            "before_train_iter",
            Trigger.parse(every="2"),
            ITERS,
            "every 2 iterations, first at iteration 1: 3 times",
        ),
        ("parameter_grad", Trigger(), ITERS, "every iteration: 5 times, at each parameter"),
        ("after_train_epoch", Trigger.parse(every="10it"), EPOCHS, "every 10it"),
        ("after_train_epoch", Trigger(), ITERS, "every epoch"),
        ("before_train_epoch", Trigger(), CUT, "every epoch: 3 times"),
        ("after_train_epoch", Trigger(), CUT, "every epoch: 2 times"),
        ("before_train_epoch", Trigger.parse(since="6it"), CUT, "at epoch 3"),
        ("after_train_epoch", Trigger.parse(since="6it"), CUT, "at epoch 2"),
        ("before_train", Trigger.parse(since="1it"), ITERS, "never"),
        ("after_train", Trigger.parse(since="5it"), ITERS, "once"),
        ("before_test_epoch", Trigger(), Length(3, None, tests=True), "once"),
        ("before_test_iter", Trigger(), ITERS, "never"),
        ("before_val_iter", Trigger(), NO_VAL, "never"),
        (
            "before_val",
            Trigger.parse(every="2"),
            EPOCHS,
            "every 2 validations, first at validation 1: 2 times",
        ),
        (
            "before_val",
            Trigger.parse(every="1"),
            EPOCHS,
            "every validation, first at validation 1: 3 times",
        ),
        ("after_val", Trigger(), Length(None, 18, Interval(2, "ep")), "every validation"),
        (
            "after_val",
            Trigger(),
            Length(None, 18, Interval(2, "ep"), iters_per_epoch=5),
            "every validation: 2 times",
        ),
        ("after_val", Trigger(), Length(3, None, Interval(4, "it")), "every validation"),
        ("after_val", Trigger(), BY_ITERS, "every validation: 5 times"),
        ("after_val", Trigger.parse(since="17it"), BY_ITERS, "at validation 5"),
        (
            "after_val",
            Trigger.parse(every="2it"),
            BY_ITERS,
            "every 2it, first at validation 1: 5 times",
        ),
        (
            "after_val",
            Trigger.parse(every="6it"),
            BY_ITERS,
            "every 6it, first at validation 2: 3 times",
        ),
        ("mine_of_val", Trigger(), NO_VAL, "every firing"),
    ],
)
def test_what_it_says_of_every_kind_of_point(
    point: str, trigger: Trigger, length: Length, message: str
) -> None:
    binding = Binding("h", point, point, "whole", (), trigger, "normal", id=0)
    assert compute_forecasts(Plan("p", (), (binding,), (), own=(OWN,)), length)[0].text == message


def test_an_around_is_asked_where_it_is_entered() -> None:
    trigger = Trigger.parse(every="2")
    halves = [
        Binding("h", "before_val", "around_val", "enter", (), trigger, "normal", id=0),
        Binding("h", "after_val", "around_val", "exit", (), trigger, "normal", id=1),
    ]
    assert [
        item.text for item in compute_forecasts(Plan("p", (), tuple(halves), ()), EPOCHS).values()
    ] == [
        "every 2 validations, first at validation 1: 2 times",
        "every 2 validations, first at validation 1: 2 times",
    ]


@pytest.mark.parametrize(
    ("stages", "trigger", "message"),
    [
        (("val",), Trigger(), "in val, at each module"),
        (("test",), Trigger(), "in test, at each module"),
        (("val", "test"), Trigger(), "in val and test, at each module"),
        (("val",), Trigger.parse(since="5", until="3"), "never"),
        (("train", "val"), Trigger(), "every iteration: 9 times, at each module"),
    ],
)
def test_of_a_stage_without_training_it_says_that_it_comes_and_not_how_often(
    stages: tuple[str, ...], trigger: Trigger, message: str
) -> None:
    evaluated = Binding(
        "h", "forward", "forward", "whole", (), trigger, "normal", stages=stages, id=0
    )
    once = Binding("h", "after_run", "after_run", "whole", (), Trigger(), "normal", id=1)
    plan = Plan("p", (), (evaluated, once), ())
    result = compute_forecasts(plan, Length(None, 9, tests=True))
    assert [item.text for item in result.values()] == [message, "once"]
    assert (result[0].first == "never") == (result[0].times == 0) == (message == "never")
    without = compute_forecasts(plan, Length(None, 9, validates=False))
    assert (without[0].text == "never") == ("train" not in stages)
