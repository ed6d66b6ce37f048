"""The graph: where the run is, what rows cost, how they change, and why a hook fires where it does."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hookflow.events.records import PHASES
from hookflow.graph.plan import Edge, Trigger
from hookflow.graph.points import POINTS, Point
from hookflow.graph.render.loop import label, rows
from hookflow.monitor.costs import Cost, cost, written
from hookflow.monitor.durations import Histories, History, usual
from hookflow.monitor.health import Pace
from hookflow.monitor.state import RunState
from hookflow.numbers import duration
from tests.monitor.conftest import At
from tests.monitor.fake_run import plan, record
from tests.monitor.test_screens import drawn


def means(history: History, last: float, count: int) -> list[float | None]:
    return [mean and round(mean, 3) for mean in history.means(last, count)]


def test_a_history_keeps_every_firing_in_a_bounded_number_of_buckets() -> None:
    history = History()
    for it in range(7, 70_000, 7):
        history.add(it, 7, 7 * (10 if it < 35_000 else 30))
    assert len(history._fired) <= History.LIMIT + 1
    assert history._fired[-1] == pytest.approx(69_993)
    assert history._spent[-1] == pytest.approx(sum(7 * (10 if it < 35_000 else 30) for it in range(7, 70_000, 7)))
    assert means(history, 69_993, 4) == pytest.approx([10.0, 10.0, 30.0, 30.0], rel=0.02)
    assert usual(history.means(40_000, 8)) == 10.0, "a short peak weighs nothing"


def test_what_fires_seldom_keeps_its_place_and_a_long_frame_is_spread_over_its_iterations() -> None:
    seldom, often = History(), History()
    for epoch in range(1, 5):
        seldom.add(100 * epoch - 1, 1, 1000)
        often.add(100 * epoch - 1, 100, 500)
    assert means(seldom, 400, 8) == [None, 1000.0] * 4
    assert means(often, 400, 8) == [5.0] * 8
    often.add(400, 0, 99)
    assert often._spent[-1] == pytest.approx(2000), "the time of a trigger is no firing"


def test_a_resumed_run_walks_a_stretch_again_and_its_hooks_are_known_by_name() -> None:
    first, histories = plan(), Histories()
    shuffled = replace(
        first, bindings=tuple(replace(b, id=len(first.bindings) - 1 - b.id) for b in first.bindings[::-1])
    )
    ema = next(binding for binding in first.bindings if binding.hook == "ema")
    for it in range(1, 101):
        histories.frame(record("frame", 0.0, it, 0, hooks={f"{ema.id}": [1, 10, 10, 10, []]}), first)
    histories.again(50)
    there = next(binding for binding in shuffled.bindings if (binding.hook, binding.point) == (ema.hook, ema.point))
    for it in range(51, 81):
        histories.frame(record("frame", 0.0, it, 0, hooks={f"{there.id}": [1, 40, 40, 40, []]}), shuffled)
    assert means(histories.of(ema), 100, 4)[:3] == pytest.approx([10.0, 10.0, 40.0], rel=0.05)
    assert histories.of(there)._fired[-1] == 80


def of_forward(taken: Callable[[int], int], seconds: float = 1.0, whole: bool = False) -> Cost:
    """Return what the forward pass of 200 iterations costs, each of which takes so long."""
    state = RunState()
    for it in range(1, 201):
        times = {"phases": {"forward": taken(it)}, "iters": [1, 50_000, 0, 0, [0]]}
        state.apply(record("frame", it * seconds, it, 0, **times))
    forward = next(row for row in rows(plan()) if row.name == "forward")
    return cost(state, plan(), Pace.of(state), forward, whole=whole)


def test_a_phase_has_its_share_of_the_same_stretch_as_its_time_and_a_spike_makes_it_no_slower() -> None:
    spiky = of_forward(lambda it: 40_000 if it > 150 and it % 10 == 0 else 1000, 0.25)
    assert spiky.ratio == pytest.approx(1.0, rel=0.05)
    for whole, share in ((False, 0.1), (True, 0.3)):
        assert of_forward(lambda it: 25_000 if it <= 100 else 5000, whole=whole).share == pytest.approx(share)


def test_the_rows_are_the_loop_with_every_binding_once_in_its_order() -> None:
    every = rows(plan())
    assert [row.binding for row in every if row.binding] == list(plan().bindings)
    names = [row.name for row in every if row.kind != "point"]
    assert names == ["epoch", "iteration", *PHASES[:4], "validation"], "what nothing is bound to is folded"
    assert {row.name for row in rows(plan(), idle=True)} >= {point.name for point in POINTS} | {"test"}
    own = replace(plan(), own=(Point("after_look", 4, ("run",), "firing", "", "own", "after_train_iter"),))
    inside = {row.name: row.within for row in rows(own, idle=True)}
    assert inside["after_look"] == inside["after_train_iter"] == ("epoch", "iteration")
    assert (
        inside["after_val"] == ("epoch", "validation") and inside["after_test"] == ("test",) and not inside["after_run"]
    )
    only = rows(plan(), only={plan().bindings[-1].id})
    assert [label(row) for row in only] == ["↻ epoch", "┊↻ validation", "┊┊  after_val"]


def test_how_often_a_binding_fires_is_written_in_the_unit_of_its_point() -> None:
    known = {(binding.hook, binding.point): binding for binding in plan().bindings}
    texts = {name: written(plan(), known[name]) for name in known}
    assert texts["log", "after_train_iter"] == "10 it" and texts["checkpoint", "after_train_epoch"] == "2 ep"
    assert texts["seed", "before_run"] == "once" and texts["accuracy", "after_val_iter"] == "1 bat"
    assert written(plan(), replace(known["log", "after_train_iter"], trigger=Trigger(every="10%"))) == "10 %"


def test_a_duration_has_three_digits_and_a_fixed_width() -> None:
    assert [duration(ns) for ns in (0, 420, 36.84e6, 999.6e6, 279e6)] == [
        " 0.00 µs", " 0.42 µs", " 36.8 ms", " 1.00 s ", "  279 ms",
    ]  # fmt: skip
    assert {len(duration(10.0**exponent)) for exponent in range(-3, 300)} == {8}
    assert math.isfinite(float(duration(1e300).split()[0]))


def now_at(scene: Any, **seen: Any) -> str:
    """Return the row where the run is."""
    shown = replace(scene, **seen)
    return next(line for line in drawn(shown, 120, 60).splitlines()[3:] if "●" in line or "‖" in line)


def test_the_mark_is_in_the_round_at_hand_or_at_the_hook_that_hangs(scene: At) -> None:
    at = scene()
    assert "↻ validation 14 of 20" in now_at(at)
    at.state.apply(record("frame", at.state.now, 590, 6), plan=at.plan)
    assert "↻ iteration 1 of 32" in now_at(at)
    ema = next(binding.id for binding in at.plan.bindings if binding.hook == "ema")
    assert "↻ iteration" in now_at(at, inside={0: (ema, 0.1)}), "the mark does not jump about"
    assert " ema " in now_at(at, inside={0: (ema, 40.0)})
    assert "●" not in "".join(drawn(scene(None), 120, 60).splitlines()[3:]), "a run that has ended is nowhere"


def test_a_hook_that_has_become_slower_is_marked_with_its_past(scene: At) -> None:
    at = scene()
    clip = next(binding.id for binding in at.plan.bindings if binding.hook == "clip")
    for second in range(40):
        ns = 1_000_000 if second < 25 else 4_000_000
        whole = {"iters": [30, 30 * 28 * 10**6, 0, 0, [0]], "phases": dict.fromkeys(PHASES, 10**6)}
        hooks = {f"{clip}": [30, 30 * ns, ns, ns, [90, 30]]}
        at.state.apply(record("frame", at.state.now + 1, at.state.it + 30, 6, hooks=hooks, **whole), plan=at.plan)
    lines = drawn(replace(at), 120, 40).splitlines()
    line = next(line for line in lines if line.startswith("┃") and " clip " in line)
    assert re.search(r" ×1\d\.\d ", line) and line.rstrip(" ┃").endswith("▲")


def test_the_reasons_are_edges_with_their_places_data_flow_and_phases(scene: At) -> None:
    at, point = scene(), "after_train_iter"
    ids = {binding.hook: binding.id for binding in at.plan.at(point)}
    bindings = [replace(b, writes=("lr",)) if b.id == ids["schedule"] else b for b in at.plan.bindings]
    bindings = [replace(b, reads=("lr",), phase="last") if b.id == ids["log"] else b for b in bindings]
    flow = Edge(point, "schedule", "log", "flow", "", ("lr",), ids["schedule"], ids["log"])
    at.plan = replace(at.plan, bindings=tuple(bindings), edges=(*at.plan.edges, flow))
    at.view.page, at.view.point, at.view.hook = "graph", point, 4
    text = drawn(at, 120, 60)
    reasons = {"after   ema   cifar.toml:52", "after   schedule   writes lr", "before  nothing here waits for it"}
    reasons |= {"reads   lr   written by schedule", "phase   last   an edge moves it from late", "fires   every 10"}
    for reason in reasons:
        assert reason in text, reason
    at.view.point, at.view.hook = "after_val", 1
    assert "after   ema, of an earlier phase" in drawn(at, 120, 60)
