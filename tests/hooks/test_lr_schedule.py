"""The learning-rate schedule: how long the warm-up is, in whatever it is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hookflow.errors import UserError, Where
from hookflow.hooks.arguments import wrong_arguments
from hookflow.hooks.builtin.schedules import LRSchedule


def rates(schedule: LRSchedule, *iters: int) -> list[float]:
    """Return the rates of these iterations of a run of 40 iterations in five epochs, where 1 is the whole rate."""
    group = {"initial_lr": 1.0}
    optimizers = {"optimizer": SimpleNamespace(param_groups=[group])}
    found = []
    for it in iters:
        run: Any = SimpleNamespace(iter=it, max_iters=40, iters_per_epoch=8, optimizers=optimizers)
        schedule.before_train_iter(run)
        found.append(group["lr"])
    return found


@pytest.mark.parametrize("warmup", [0.2, "20%", 8, "8it", "1ep"])
def test_a_warm_up_is_an_amount_or_a_share_of_the_run(warmup: float | str) -> None:
    assert not list(wrong_arguments(LRSchedule, {"warmup": warmup}, "lr_schedule", lambda _: Where("")))
    assert rates(LRSchedule(shape="linear", warmup=warmup, start=0.5), 0, 4, 8, 24) == pytest.approx(
        [0.5, 0.75, 1.0, 0.5]
    )


@pytest.mark.parametrize("warmup", [0, 0.0])
def test_without_a_warm_up_the_first_rate_is_the_whole(warmup: float) -> None:
    assert rates(LRSchedule(shape="linear", warmup=warmup), 0, 20) == [1, 0.5]


@pytest.mark.parametrize("warmup", [1.5, -1, "30s", "soon", True])
def test_what_is_no_warm_up_is_refused_before_the_run(warmup: float | str) -> None:
    (problem,) = wrong_arguments(LRSchedule, {"warmup": warmup}, "lr_schedule", lambda _: Where(""))
    assert "warmup" in problem.message


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    with pytest.raises(UserError, match="the warm-up takes 5ep, and the run has only 40 iterations"):
        rates(LRSchedule(warmup="5ep"), 0)


def test_an_exponential_way_down_has_the_same_factor_in_equal_times() -> None:
    assert rates(LRSchedule(shape="exponential", end=0.01), 0, 10, 20, 40) == pytest.approx([1, 0.1**0.5, 0.1, 0.01])
    with pytest.raises(ValueError, match="never ends at 0"):
        LRSchedule.check_arguments({"shape": "exponential"})


def test_it_sets_the_groups_that_it_names_and_no_others() -> None:
    named = [{"initial_lr": 1.0, "lr": 1.0, "name": name} for name in ("position", "colour")]
    groups = [*named, {"initial_lr": 1.0, "lr": 1.0}]
    run: Any = SimpleNamespace(iter=20, max_iters=40, optimizers={"optimizer": SimpleNamespace(param_groups=groups)})
    LRSchedule(shape="linear", groups=["colour"]).before_train_iter(run)
    assert [group["lr"] for group in groups] == [1, 0.5, 1]
    with pytest.raises(UserError) as caught:
        LRSchedule(groups=["color"]).before_train_iter(run)
    assert str(caught.value) == 'no parameter group is called "color"\n    did you mean "colour"?'
