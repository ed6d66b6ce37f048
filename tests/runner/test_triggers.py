"""When a binding fires, worked out over whole runs of ten iterations an epoch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hookflow.graph import plan
from hookflow.graph.points import POINTS
from hookflow.runner.dispatch.triggers import Trigger


@dataclass
class Place:
    iter: int = 0
    epoch: int = 0
    max_iters: int = 40
    iters_per_epoch: int = 10
    now: float = 100.0

    def seconds(self) -> float:
        return self.now


def visits(point: str, trigger: plan.Trigger) -> list[int]:
    """Walk over four epochs; return the iterations done (or epochs, at epoch points) whenever the binding fires."""
    place = Place()
    binding = plan.Binding(0, "h", point, point, "whole", (), trigger, "normal")
    asked = Trigger(binding, POINTS[point], place)
    fired = []
    for _ in range(4):
        if point == "before_train_epoch" and asked():
            fired.append(place.epoch)
        for _ in range(10):
            if point == "before_train_iter" and asked():
                fired.append(place.iter)
            if (POINTS[point].kind in ("step", "module")) and asked():
                fired.append(place.iter)
            place.iter += 1
            if point == "after_train_iter" and asked():
                fired.append(place.iter)
        place.epoch += 1
        if point in ("after_train_epoch", "after_val") and asked():
            fired.append(place.epoch)
    return fired


@pytest.mark.parametrize(
    ("point", "trigger", "expected"),
    [
        ("after_train_iter", plan.Trigger(every="15"), [15, 30]),
        ("after_train_iter", plan.Trigger(every="15it"), [15, 30]),
        ("after_train_iter", plan.Trigger(every="2ep"), [20, 40]),
        ("after_train_iter", plan.Trigger(every="25%"), [10, 20, 30, 40]),
        ("after_train_iter", plan.Trigger(every="10", since="2ep"), [20, 30, 40]),
        ("after_train_iter", plan.Trigger(every="10", until="2ep"), [10, 20]),
        ("before_train_iter", plan.Trigger(every="15"), [0, 15, 30]),
        ("before_train_iter", plan.Trigger(every="10", until="2ep"), [0, 10]),
        *(
            (point, trigger, expected)
            for point in ("before_optimizer_step", "after_optimizer_step", "after_forward", "forward", "full_backward")
            for trigger, expected in (
                (plan.Trigger(every="15"), [0, 15, 30]),
                (plan.Trigger(every="10", until="2ep"), [0, 10]),
                (plan.Trigger(since="38"), [38, 39]),
                (plan.Trigger(until="2"), [0, 1]),
            )
        ),
        ("before_train_epoch", plan.Trigger(every="2"), [0, 2]),
        ("before_train_epoch", plan.Trigger(since="3"), [3]),
        ("after_train_epoch", plan.Trigger(every="2"), [2, 4]),
        ("after_train_epoch", plan.Trigger(every="25it"), [3]),
        ("after_train_epoch", plan.Trigger(every="50%"), [2, 4]),
        ("after_val", plan.Trigger(every="3"), [3]),
    ],
    ids=str,
)
def test_when_it_fires(point: str, trigger: plan.Trigger, expected: list[int]) -> None:
    assert visits(point, trigger) == expected


def test_what_it_remembers_is_all_it_needs() -> None:
    binding = plan.Binding(0, "h", "after_train_iter", "", "whole", (), plan.Trigger(every="7"), "normal")
    place = Place()
    straight, broken = Trigger(binding, POINTS[binding.point], place), Trigger(binding, POINTS[binding.point], place)
    for step in range(1, 40):
        place.iter = step
        assert straight() == broken()
        fresh = Trigger(binding, POINTS[binding.point], place)
        fresh.load_state_dict(broken.state_dict())
        broken = fresh


@pytest.mark.parametrize(
    ("point", "before", "after", "done", "next_"),
    [
        ("after_train_iter", "10", "50", 105, 150),
        ("after_train_iter", "50", "10", 105, 110),
        ("after_train_iter", "50", "10", 100, 110),
        ("before_train_iter", "50", "10", 100, 100),
        ("before_train_iter", "50", "10", 101, 110),
        ("after_train_iter", None, "10", 105, 110),
        ("after_train_iter", "10", None, 105, 106),
    ],
)
def test_another_every_counts_on_from_where_the_run_is(
    point: str, before: str | None, after: str | None, done: int, next_: int
) -> None:
    place = Place()
    first, resumed, new = (
        Trigger(plan.Binding(0, "h", point, "", "whole", (), plan.Trigger(every=every), "normal"), POINTS[point], place)
        for every in (before, after, after)
    )
    ahead = POINTS[point].ahead
    for place.iter in range(1 - ahead, done + 1 - ahead):
        first()
    place.iter = done
    resumed.load_state_dict(first.state_dict())
    new.begin_here()
    for trigger in (resumed, new):
        place.iter = done - ahead
        fired = []
        while not fired:
            place.iter += 1
            fired += [place.iter] if trigger() else []
        assert fired == [next_]


def test_seconds_are_counted_from_the_start() -> None:
    binding = plan.Binding(0, "h", "after_train_iter", "", "whole", (), plan.Trigger(every="1000s"), "normal")
    assert not Trigger(binding, POINTS[binding.point], Place())()


def test_seconds_are_counted_anew_after_a_resume() -> None:
    place = Place()
    binding = plan.Binding(0, "h", "after_train_iter", "", "whole", (), plan.Trigger(every="1m"), "normal")
    first = Trigger(binding, POINTS[binding.point], place)
    place.now += 61
    assert first()
    again = Trigger(binding, POINTS[binding.point], place)
    again.load_state_dict(first.state_dict())
    assert not again(), "a minute has not gone by since the process began"
    place.now += 61
    assert again()


@pytest.mark.parametrize(
    ("point", "trigger", "place", "fires"),
    [
        ("after_train_iter", plan.Trigger(every="1000000000"), Place(999_999_999, max_iters=10**10), False),
        ("after_train_iter", plan.Trigger(every="1000000000"), Place(1_000_000_000, max_iters=10**10), True),
        # the first multiple is entered after 3,330,000,000.333 iterations
        ("after_train_iter", plan.Trigger(every="33.3%"), Place(3_330_000_000, max_iters=10_000_000_001), False),
        ("after_train_iter", plan.Trigger(every="33.3%"), Place(3_330_000_001, max_iters=10_000_000_001), True),
    ],
    ids=str,
)
def test_no_rounding_makes_it_early(point: str, trigger: plan.Trigger, place: Place, fires: bool) -> None:
    binding = plan.Binding(0, "h", point, point, "whole", (), trigger, "normal")
    assert Trigger(binding, POINTS[point], place)() is fires


def test_minutes_are_seconds_to_the_last_bit() -> None:
    """4.1 times 60 is a little less than 246 in floats."""
    place = Place(now=0.0)
    binding = plan.Binding(0, "h", "after_train_iter", "", "whole", (), plan.Trigger(since="4.1m"), "normal")
    trigger = Trigger(binding, POINTS[binding.point], place)
    place.now = 245.99999999999997
    assert not trigger()
    place.now = 246.0
    assert trigger()


@pytest.mark.parametrize("trigger", [plan.Trigger(until="2ep"), plan.Trigger(until="50%"), plan.Trigger(every="10%")])
def test_nothing_is_done_where_the_length_is_not_known_yet(trigger: plan.Trigger) -> None:
    """`hookflow val` learns from the checkpoint how many iterations an epoch has: after `before_run`."""
    binding = plan.Binding(0, "h", "before_run", "", "whole", (), trigger, "normal")
    assert Trigger(binding, POINTS["before_run"], Place(max_iters=0, iters_per_epoch=0))()
