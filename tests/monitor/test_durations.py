"""Histories over the run, and what phases and hooks cost."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from hookflow.events.records import PHASES
from hookflow.graph.plan import Trigger
from hookflow.graph.points import DEFAULT_POINTS, Point
from hookflow.graph.render.loop import label, make_rows
from hookflow.monitor.durations import (
    MAX_BUCKETS,
    CallHistories,
    CallHistory,
    OffloadStats,
    compute_median_of_means,
)
from hookflow.monitor.hook_costs import CallCost, call_frequency, row_cost
from hookflow.monitor.state import RunState
from hookflow.monitor.throughput import Throughput
from tests.monitor.fake_run import plan, record


def means(history: CallHistory, last: float, count: int) -> list[float | None]:
    return [mean and round(mean, 3) for mean in history.compute_means(last, count)]


def test_a_history_keeps_every_call_in_its_place_in_few_buckets() -> None:
    history = CallHistory()
    for it in range(7, 70_000, 7):
        history.add(it, 7, 7 * (10 if it < 35_000 else 30))
    assert len(history._counts) <= MAX_BUCKETS + 1
    assert history._counts[-1] == pytest.approx(69_993)
    assert history._totals[-1] == pytest.approx(
        sum(7 * (10 if it < 35_000 else 30) for it in range(7, 70_000, 7))
    )
    assert means(history, 69_993, 4) == pytest.approx([10.0, 10.0, 30.0, 30.0], rel=0.02)
    assert compute_median_of_means(history.compute_means(40_000, 8)) == 10.0, (
        "a short peak weighs nothing"
    )
    seldom, often = CallHistory(), CallHistory()
    for epoch in range(1, 5):
        seldom.add(100 * epoch - 1, 1, 1000)
        often.add(100 * epoch - 1, 100, 500)
    assert means(seldom, 400, 8) == [None, 1000.0] * 4
    assert means(often, 400, 8) == [5.0] * 8
    often.add(400, 0, 99)
    assert often._totals[-1] == pytest.approx(2000), "the time of a trigger is no call"


def test_a_resumed_run_walks_a_stretch_again_and_its_hooks_are_known_by_name() -> None:
    first, histories = plan(), CallHistories()
    shuffled = replace(
        first,
        bindings=tuple(replace(b, id=len(first.bindings) - 1 - b.id) for b in first.bindings[::-1]),
    )
    ema = next(binding for binding in first.bindings if binding.hook == "ema")
    for it in range(1, 101):
        histories.add_frame(
            record("frame", 0.0, it, 0, hooks={f"{ema.id}": [1, 10, 10, 10, []]}), first
        )
    histories.begin_attempt(50)
    there = next(
        binding
        for binding in shuffled.bindings
        if (binding.hook, binding.point) == (ema.hook, ema.point)
    )
    for it in range(51, 81):
        histories.add_frame(
            record("frame", 0.0, it, 0, hooks={f"{there.id}": [1, 40, 40, 40, []]}), shuffled
        )
    assert means(histories.of(ema), 100, 4)[:3] == pytest.approx([10.0, 10.0, 40.0], rel=0.05)
    assert histories.of(there)._counts[-1] == 80


def of_forward(
    taken: Callable[[int], int], seconds: float = 1.0, whole: bool = False, frames: int = 1
) -> CallCost:
    """Return what the forward pass of 200 iterations costs, each of which takes so long,
    and so many frames.
    """
    state = RunState()
    for it in range(1, 201):
        for k in range(frames - 1):
            phases = {"forward": taken(it) * (k == 0)}
            state.apply(
                record("frame", (it - 1 + (k + 1) / frames) * seconds, it - 1, 0, phases=phases)
            )
        times = {"phases": {"forward": taken(it) * (frames == 1)}, "iters": [1, 50_000, 0, 0, [0]]}
        state.apply(record("frame", it * seconds, it, 0, **times))
    forward = next(row for row in make_rows(plan()) if row.name == "forward")
    return row_cost(state, plan(), Throughput.of(state), forward, whole_attempt=whole)


def test_a_phase_has_its_share_of_the_same_stretch_as_its_mean_and_a_spike_makes_it_no_slower() -> (
    None
):
    spiky = of_forward(lambda it: 40_000 if it > 150 and it % 10 == 0 else 1000, 0.25)
    assert spiky.slowdown is None
    for whole, mean in ((False, 5000), (True, 15_000)):
        cost = of_forward(lambda it: 25_000 if it <= 100 else 5000, whole=whole)
        assert cost.mean == pytest.approx(mean)
        assert cost.share == pytest.approx(mean / 50_000)
    slow = of_forward(lambda it: 2_000 if it <= 130 else 10_000)
    assert slow.slowdown == pytest.approx(5.0, rel=0.1)
    even = of_forward(lambda it: 20_000, 5.0, frames=4)
    assert even.slowdown is None and even.mean == pytest.approx(20_000, rel=0.1), (
        "an iteration may take several frames"
    )


def test_the_rows_are_the_loop_with_every_binding_in_its_order_and_unit() -> None:
    every = make_rows(plan())
    assert [row.binding for row in every if row.binding] == list(plan().bindings)
    names = [row.name for row in every if row.kind != "point"]
    assert names == ["epoch", "iteration", *PHASES[:4], "validation"], (
        "what nothing is bound to is folded"
    )
    assert {row.name for row in make_rows(plan(), idle=True)} >= {
        point.name for point in DEFAULT_POINTS
    } | {"test"}
    own = replace(
        plan(), own=(Point("after_look", 4, ("run",), "firing", "", "own", "after_train_iter"),)
    )
    inside = {row.name: row.within for row in make_rows(own, idle=True)}
    assert inside["after_look"] == inside["after_train_iter"] == ("epoch", "iteration")
    assert inside["after_val"] == ("epoch", "validation") and inside["after_test"] == ("test",)
    assert not inside["after_run"]
    only = make_rows(plan(), only={plan().bindings[-1].id})
    assert [label(row) for row in only] == ["↻ epoch", "┊↻ validation", "┊┊  after_val"]


@pytest.mark.parametrize(
    ("hook", "point", "every", "written"),
    [
        ("log", "after_train_iter", "10", "10 it"),
        ("log", "after_train_iter", "10%", "10 %"),
        ("checkpoint", "after_train_epoch", "2ep", "2 ep"),
        ("seed", "before_run", None, "once"),
        ("accuracy", "after_val_iter", None, "1 bat"),
        ("clip", "after_backward", None, "1 it"),
    ],
)
def test_how_often_a_hook_is_called_is_a_few_characters(
    hook: str, point: str, every: str | None, written: str
) -> None:
    binding = next(each for each in plan().bindings if (each.hook, each.point) == (hook, point))
    assert call_frequency(plan(), replace(binding, trigger=Trigger.parse(every=every))) == written


def test_the_stats_of_an_offloaded_hook_name_what_there_is() -> None:
    stats = OffloadStats()
    stats.add(1.0, [0, 0, 0, 2, 0])
    assert f"{stats}" == "0 calls, 2 waiting"
    stats.add(1.0, [4, 8_000_000, 5_000_000, 0, 1])
    assert f"{stats}" == "4 calls, mean 2.00 ms, max 5.00 ms, 1 dropped"
