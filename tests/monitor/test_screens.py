"""The screens and the graph: golden files, no size at which drawing fails, numbers that fit, and what rows cost."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hookflow.events.records import PHASES
from hookflow.graph.plan import Edge, GivenWay, Trigger
from hookflow.graph.points import POINTS, Point
from hookflow.graph.render.loop import label, rows
from hookflow.monitor.charts import Axis, Scale, ticks
from hookflow.monitor.costs import Cost, Spans, Traced, cost, written
from hookflow.monitor.durations import Histories, History, usual
from hookflow.monitor.health import Health, Pace
from hookflow.monitor.layout import screen, visible
from hookflow.monitor.panels.hooks import anatomy_lines
from hookflow.monitor.state import RunState
from hookflow.monitor.style import row
from hookflow.monitor.view import Scene, View
from hookflow.numbers import aligned, counted, number, speed
from hookflow.text import fit_name
from tests.golden_files import check_golden
from tests.monitor.conftest import At
from tests.monitor.fake_run import end, plan, record

SIZES = ((120, 40), (80, 24), (60, 15))


def drawn(scene: Scene, width: int, height: int) -> str:
    scene.visible = visible(
        width, height - (scene.timeline is not None), several=scene.several, hidden=scene.view.panels.hidden
    )
    rows = screen(scene, width, height)
    assert len(rows) == height
    assert {strip.cell_length for strip in rows} == {width}
    return "\n".join(strip.text.rstrip() for strip in rows) + "\n"


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_before_the_first_record(scene: At, width: int, height: int) -> None:
    shown = scene(0)
    shown.machine = None
    text = "downloading cifar-10: 42 of 170 MB"
    shown.state.apply(record("message", 1.79e9, 0, 0, level="info", source="hookflow", text=text))
    check_golden(f"monitor/starting-{width}x{height}.txt", drawn(shown, width, height))


MICROS = 27_400.0
TRACED = [
    Traced(
        it,
        MICROS,
        [
            Spans("data", "data", 0, [(0.0, 1_900.0)]),
            Spans("forward", "forward", 0, [(1_900.0, 8_300.0)]),
            Spans("timer @ before_train_iter", "hook", 1, [(1_910.0, 9.0)]),
            Spans("probe @ forward", "hook", 1, [(2_000.0 + 250 * k, 60.0) for k in range(32)]),
            Spans("backward", "backward", 0, [(10_200.0, 12_500.0)]),
            Spans("optimizer", "optimizer", 0, [(22_700.0, 3_700.0)]),
            Spans("clip @ before_optimizer_step", "hook", 1, [(22_701.0, 900.0)]),
            Spans("ema @ after_optimizer_step", "hook", 0, [(26_400.0, 640.0)]),
            Spans("log @ after_train_iter", "hook", 0, [(27_100.0, 180.0)]),
            Spans("validation", "outside", 0, [(27_400.0, 752_000.0)]),
        ],
    )
    for it in range(580, 590)
]
"""Ten traced iterations, each followed by a validation."""

STACK = [
    f'File "/work/net/blocks.py", line {line}, in {name}' for line, name in ((31, "wait"), (207, "sync"), (88, "ema"))
]
STALLED, LARGE = {"still": 42.0, "inside": 4}, {"zoomed": True, "log": True}
MIDDLE = SIZES[1:2]
SCREENS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[tuple[int, int], ...]]] = {
    "running": ({}, {}, (*SIZES, (200, 60))),
    "stalled": (STALLED, {}, SIZES),
    "finished": ({"upto": None}, {}, SIZES[:1]),
    "hook": ({}, {"page": "hook", "hook": 1}, SIZES),
    "event": ({}, {"page": "event", "event": "error"}, SIZES),
    "validation": ({}, {"page": "event", "event": "metrics"}, MIDDLE),
    "graph": ({}, {"page": "graph"}, (*SIZES, (200, 60))),
    "graph-idle": ({}, {"page": "graph", "idle": True, "whole": True}, MIDDLE),
    "help": ({}, {"page": "help"}, SIZES),
    "leave": ({}, {"asking": "quit"}, MIDDLE),
    "stop": ({}, {"asking": "stop"}, MIDDLE),
    "rewind": ({}, {"asking": "rewind", "offered": ["it00000098", "ep0004.pt"]}, MIDDLE),
    "trace": ({"trace": TRACED}, {"page": "trace"}, (*SIZES, (200, 60))),
    "no-trace": ({}, {"page": "trace"}, MIDDLE),
    "stalled-stack": ({**STALLED, "stacks": {0: STACK}, "looked": 1.79e9}, {}, SIZES),
    "now": ({**STALLED, "stacks": {0: STACK}, "looked": 1.79e9}, {"page": "now"}, SIZES[:2]),
    "now-over": ({"upto": None}, {"page": "now"}, MIDDLE),
    "stop-stalled": (STALLED, {"asking": "stop"}, MIDDLE),
    **{f"zoom-{panel}": ({}, {"focus": panel, **LARGE}, MIDDLE) for panel in range(4)},
}
"""By golden file: what the scene is made of, the choices of the view (the event by its kind), and the sizes."""


@pytest.mark.parametrize("name", SCREENS)
def test_the_screens(scene: At, name: str) -> None:
    made, choices, sizes = SCREENS[name]
    more = {key: made[key] for key in ("trace", "kept", "stacks", "looked") if key in made}
    shown = replace(scene(**{key: value for key, value in made.items() if key not in more}), **more)
    kinds = {entry.kind: entry.number for entry in shown.state.journal}
    shown.view = View(**{**choices, "event": kinds.get(choices.get("event"))})
    for width, height in sizes:
        check_golden(f"monitor/{name}-{width}x{height}.txt", drawn(shown, width, height))


def test_what_is_cut_has_an_ellipsis_and_a_name_keeps_its_end() -> None:
    assert [row(8, "loss 0.5", blanks).text for blanks in ("", "  ", " 7")] == ["loss 0.5", "loss 0.5", "loss 0.…"]
    assert fit_name("norm_of_layer_12", 12) == "norm_of…r_12"
    assert {len(fit_name("norm_of_layer_12", width)) for width in range(1, 17)} == {*range(1, 17)}


WIDTHS, HEIGHTS = (1, 2, 7, 12, 20, 33, 59, 75, 76, 99, 100, 150, 300), (1, 2, 3, 4, 6, 11, 20, 30, 31, 90)


def draw_at_any_size(scene: Scene) -> None:
    for place, height in enumerate(HEIGHTS):
        for width in WIDTHS[place % 2 :: 2]:
            drawn(scene, width, height)


CHOICES: list[dict[str, Any]] = [{"zoomed": True}, {"asking": "quit"}, {"asking": "stop"}]
CHOICES += [{"page": page} for page in ("main", "graph", "hook", "event", "help", "output", "gallery", "trace", "now")]


@pytest.mark.parametrize("choices", CHOICES)
def test_no_terminal_is_too_small_and_none_too_large(scene: At, choices: dict[str, Any]) -> None:
    shown = scene()
    shown.view = View(focus=1, **choices)
    draw_at_any_size(shown)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_state_is_named_at_every_size(scene: At, width: int, height: int) -> None:
    shown = scene()
    shown.health = Health("lost", "the process is gone")
    assert "? LOST" in drawn(shown, width, height)
    assert "SYNTHETIC" in drawn(shown, width, height).splitlines()[0]
    assert "SYNTHETIC" not in drawn(scene(synthetic=False), width, height)
    shown = scene(1)
    shown.state.apply(record("frame", shown.state.now, 0, 0, bi=0, bn=0))
    assert "0/0" not in drawn(shown, width, height), "before the first batch there are none to count"


@pytest.mark.parametrize("size", SIZES)
def test_a_loss_that_is_no_number_is_shown_as_such_and_leaves_no_state_green(scene: At, size: tuple[int, int]) -> None:
    def log(it: int, loss: float | str) -> None:
        shown.state.apply({"k": "scalars", "t": shown.state.now, "it": it, "ep": 6, "v": {"loss": loss}})

    shown = scene(synthetic=False)
    assert "NaN" not in drawn(shown, *size)
    log(600, "nan")
    assert "● RUNNING  ▲ loss NaN" in drawn(shown, *size).splitlines()[0]
    assert "✓ FINISHED  ▲ loss NaN" in drawn(replace(shown, health=Health("finished")), *size).splitlines()[0]
    assert size == SIZES[-1] or "NaN" in "".join(drawn(shown, *size).splitlines()[1:])
    shown.view.focus, shown.view.zoomed = 1, True
    assert re.search("⠤⠤( train)? NaN", drawn(shown, *size))
    log(601, 0.5)
    assert "NaN" not in drawn(shown, *size).splitlines()[0]


def test_a_number_is_shown_whole_or_not_at_all(scene: At) -> None:
    shown = scene(96)
    for width in range(40, 130):
        shown.state.batch, shown.state.batches = 97, 100
        line = drawn(shown, width, 15).splitlines()[1]
        assert re.search(r"ETA +\d+(–\d+)? s$", line), "the time left is always there"
        assert "97/100" in line or not re.search(r"iter|97", line)


def test_after_a_stall_the_last_minute_of_training_is_still_known(scene: At) -> None:
    shown = scene()
    for _ in range(70):
        shown.state.apply(record("frame", shown.state.now + 2, 588, 6))
    shown.state.apply(end(shown.state.now, 588, 6, status="stopped"))  # type: ignore[arg-type]
    shown = replace(shown, health=Health("stopped"))
    for size in SIZES:
        assert "no training iteration yet" not in drawn(shown, *size)
    assert "compute-bound, hooks 3.4 % (ema 2.4 %)" in drawn(shown, 120, 40)


def test_the_hook_that_costs_most_is_first_and_one_that_became_slower_is_marked(scene: At) -> None:
    shown = scene()
    assert shown.point == "after_train_iter"
    clip = next(binding.id for binding in shown.plan.bindings if binding.hook == "clip")
    slow = {str(clip): [100, 10**10, 10**8, 10**8, [100, 100]]}
    shown.state.apply(record("frame", shown.state.now, 590, 6, hooks=slow))
    shown = replace(shown)
    assert "why clip @ after_backward" in drawn(shown, 120, 40)
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


def test_the_page_of_a_hook_has_its_traceback_flows_what_gave_way_and_a_moved_phase(scene: At) -> None:
    shown = scene()
    shown.view.page, shown.view.point, shown.view.hook = "hook", "after_val_epoch", 1
    for size in SIZES:
        assert "self.canvas.write(image)" in drawn(shown, *size)
    shown, point = scene(), "after_train_iter"
    schedule, log = (b.id for b in shown.plan.at(point) if b.hook in ("schedule", "log"))
    flow = Edge(point, "schedule", "log", "flow", "", ("lr",), schedule, log)
    gave = Edge(point, "log", "schedule", "flow", "", ("outputs",), log, schedule)
    bindings = tuple(replace(b, phase="last") if b.id == log else b for b in shown.plan.bindings)
    given_way = (GivenWay(gave, (flow,)),)
    shown.plan = replace(shown.plan, edges=(*shown.plan.edges, flow), given_way=given_way, bindings=bindings)
    shown.view.page, shown.view.point, shown.view.hook = "hook", point, 4
    text = drawn(shown, 100, 40)
    expected = (
        "log @ after_train_iter",
        "last   an edge moves it from late",
        "log → schedule   writes outputs, which gave way",
    )
    assert [words for words in expected if words not in text] == []
    assert re.search(r"after +schedule +writes lr", text)


def test_checkpoints_on_the_axis_never_touch_and_wide_characters_keep_the_columns(scene: At) -> None:
    shown = scene()
    (saved, *_) = shown.state.checkpoints
    shown.state.checkpoints = [{**saved, "it": it} for it in range(0, 588, 7)]
    text = drawn(shown, 120, 40)
    assert "◆─" in text
    assert "◆◆" not in text
    shown = scene()
    for length in range(12, 24):
        shown.state.journal.add(shown.state.now, "warn", "数据加载器太慢了", "数据" * length)
    for width in (60, 61, 80, 81, 120, 121):
        drawn(shown, width, 40)


def test_the_head_names_the_seed_of_a_shuffle_and_says_that_there_is_more_of_a_reason(scene: At) -> None:
    shown = scene()
    shown.plan = replace(shown.plan, shuffle=7)
    assert all("SHUFFLED 7" in drawn(shown, width, 24) for width in (120, 80))
    shown = scene()
    shown.health = Health("failed", "failed: " + "a long reason " * 20)
    assert drawn(shown, 80, 24).splitlines()[2].endswith("a long reason…")


def test_a_throttled_hook_is_marked_and_its_page_says_how_often_it_fires(scene: At) -> None:
    shown, point = scene(), "after_train_iter"
    hooks = tuple(replace(h, throttle="1%") if h.name == "log" else h for h in shown.plan.hooks)
    shown.plan, shown.view.point, shown.view.hook = replace(shown.plan, hooks=hooks), point, 4
    assert "▾" not in drawn(shown, 120, 40)
    why = "it took 2 % of the iterations"
    shown.state.apply(record("throttle", shown.state.now, 300, 3, hook="log", every=4, why=why))
    text = drawn(shown, 120, 40)
    assert re.search(r"log .*▾", text)
    assert "fires 1 of 4 times" in text
    shown.view.page = "hook"
    wanted = "fires 1 of 4 times that it is due, since iteration 300; its budget is 1%"
    assert wanted in " ".join(drawn(shown, 120, 40).replace("│", " ").split())


def test_the_page_of_a_checkpoint(scene: At) -> None:
    shown = scene()
    shown.view.page = "event"
    saved = shown.state.checkpoints[-1]
    shown.view.event = next(entry.number for entry in shown.state.journal if entry.detail == saved["path"])
    shown.kept = {"ep0004.pt": ["model.pt", "model_ema.pt"]}
    for width, height in SIZES:
        check_golden(f"monitor/checkpoint-{width}x{height}.txt", drawn(shown, width, height))
    shown.kept = {"ep0004.pt": ["__0_0.distcp", "__1_0.distcp"]}
    shards = drawn(shown, 120, 40)
    assert "__0_0.distcp, __1_0.distcp" in shards and 'weights = "<path>"   under' in shards
    shown.kept = {}
    gone = drawn(shown, 120, 40)
    assert "not on the disk any more" in gone and "hookflow" not in gone.partition("metrics")[2]


def test_the_metrics_of_a_checkpoint_are_those_of_the_validation_before_it(scene: At) -> None:
    state = scene(0).state
    for it, accuracy in ((10, 0.5), (20, 0.6), (30, 0.7)):
        state.apply(record("metrics", 1.79e9, it, 0, split="val", v={"accuracy": accuracy}, seconds=0.1))
    state.apply(record("checkpoint", 1.79e9, 25, 0, path="c/it25", names=[], bytes=1, ms=1.0))
    assert state.metrics.newest_by(state.checkpoints[0]["it"]) == ({"accuracy": 0.6}, 20)


def test_two_or_three_values_are_seen(scene: At) -> None:
    shown = scene(0)
    for it in (1, 2, 3):
        shown.state.apply(record("scalars", 1.79e9, it, 0, v={"loss": 1.0 / it}))
        shown.state.apply(record("frame", 1.79e9, it, 0))
        text = drawn(shown, 120, 40)
        assert text.count("•") == it
    assert "it 3" in text


@pytest.mark.parametrize("total", [0, 128, 784, 100_000])
def test_the_axis_ends_where_the_run_is_and_holds_still_for_a_while(total: int) -> None:
    for it in range(1, 3000, 7):
        span = Axis.of([it // 10, it], it, total)
        assert it <= span.last <= max(1.1 * it, it + 1), "at most a tenth of it is empty"
        assert span.last <= max(it, total) or not total
        assert span.place(it) <= 1
    assert len({Axis.of([1, it], it, 100_000).last for it in range(1000, 2000)}) < 20


def test_what_begins_late_fills_the_axis_too() -> None:
    assert Axis.of([32, 64], 64, 128) == Axis(30, 65)
    assert Axis.of([32, 64, 120], 120, 640) == Axis(30, 120)
    assert Axis.of([32, 64, 200], 200, 640) == Axis(0, 200)
    assert Axis.of([32], 32, 128) == Axis(0, 32), "one value is drawn at its place in the run"
    assert Axis.of([], 0, 0) == Axis.of([0], 0, 128) == Axis(0, 1), "before the first value"


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([1.3, 1.4015, 1.503], ["1.300", "1.401", "1.503"]),
        ([1200.0, 1300.5, 1401.0], ["1200", "1300", "1401"]),
        ([12345.1, 12345.2, 12345.3], ["12345.1", "12345.2", "12345.3"]),
        ([0.0, 1.5e-4, 3e-4], ["0.00000", "0.00015", "0.00030"]),
        ([0.0, 1e-7, 2e-7], ["0", "1e-07", "2e-07"]),
        ([-3.2, -1.0, 2.0], ["-3.20", "-1.00", "2.00"]),
        ([0.02, 0.02, 0.02], ["0.02000", "0.02000", "0.02000"]),
    ],
)
def test_ticks_of_one_axis_have_as_many_decimals(values: list[float], written: list[str]) -> None:
    assert ticks(values, 7) == written


def test_numbers_are_short_and_of_one_width() -> None:
    values = (0.0, 0.0012345, 1.24e-5, 0.39876, 2.2104, 16956.4, 1234567.0, math.nan, math.inf)
    written = ["0", "0.00123", "1.2e-05", "0.3988", "2.210", "16956", "1234567", "NaN", "inf"]
    assert [number(value) for value in values] == written
    assert [counted(count, "edge") for count in (0, 1, 2, 1000)] == ["0 edges", "1 edge", "2 edges", "1,000 edges"]
    assert [counted(2, thing) for thing in ("batch", "epoch")] == ["2 batches", "2 epochs"]
    assert [aligned(ns) for ns in (0, 420, 36.84e6, 999.6e6, 279e6)] == [
        " 0.00 µs", " 0.42 µs", " 36.8 ms", " 1.00 s ", "  279 ms",
    ]  # fmt: skip
    assert {len(aligned(10.0**exponent)) for exponent in range(-3, 300)} == {8}
    assert math.isfinite(float(aligned(1e300).split()[0]))
    assert [speed(each) for each in (0.0, 0.033, 0.96, 12.0)] == ["0.0 it/s", "30.3 s/it", "1.0 it/s", "12.0 it/s"]


MAX = sys.float_info.max


@pytest.mark.parametrize(
    "values", [[0.0], [3.0, 3.0], [-(2.0**63)], [2.0**63], [MAX], [-MAX], [-MAX, MAX], [5e-324], [-5e-324, 5e-324]]
)
@pytest.mark.parametrize("log", [False, True])
def test_a_scale_holds_values_of_any_size(values: list[float], log: bool) -> None:
    scale = Scale.of(values, log)
    assert scale.low < scale.high
    for value in values:
        assert 0 <= scale.place(value) <= 1
        assert math.isfinite(scale.at(scale.place(value)))


def means(history: History, last: float, count: int) -> list[float | None]:
    return [mean and round(mean, 3) for mean in history.means(last, count)]


def test_a_history_keeps_every_firing_in_its_place_in_few_buckets() -> None:
    history = History()
    for it in range(7, 70_000, 7):
        history.add(it, 7, 7 * (10 if it < 35_000 else 30))
    assert len(history._fired) <= History.LIMIT + 1
    assert history._fired[-1] == pytest.approx(69_993)
    assert history._spent[-1] == pytest.approx(sum(7 * (10 if it < 35_000 else 30) for it in range(7, 70_000, 7)))
    assert means(history, 69_993, 4) == pytest.approx([10.0, 10.0, 30.0, 30.0], rel=0.02)
    assert usual(history.means(40_000, 8)) == 10.0, "a short peak weighs nothing"
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


def of_forward(taken: Callable[[int], int], seconds: float = 1.0, whole: bool = False, frames: int = 1) -> Cost:
    """Return what the forward pass of 200 iterations costs, each of which takes so long, and so many frames."""
    state = RunState()
    for it in range(1, 201):
        for k in range(frames - 1):
            phases = {"forward": taken(it) * (k == 0)}
            state.apply(record("frame", (it - 1 + (k + 1) / frames) * seconds, it - 1, 0, phases=phases))
        times = {"phases": {"forward": taken(it) * (frames == 1)}, "iters": [1, 50_000, 0, 0, [0]]}
        state.apply(record("frame", it * seconds, it, 0, **times))
    forward = next(row for row in rows(plan()) if row.name == "forward")
    return cost(state, plan(), Pace.of(state), forward, whole=whole)


def test_a_phase_has_its_share_of_the_same_stretch_as_its_time_and_a_spike_makes_it_no_slower() -> None:
    spiky = of_forward(lambda it: 40_000 if it > 150 and it % 10 == 0 else 1000, 0.25)
    assert spiky.ratio == pytest.approx(1.0, rel=0.05)
    for whole, share in ((False, 0.1), (True, 0.3)):
        assert of_forward(lambda it: 25_000 if it <= 100 else 5000, whole=whole).share == pytest.approx(share)
    slow = of_forward(lambda it: 20_000, 5.0, frames=4)
    assert slow.ratio == 1.0 and slow.ns == pytest.approx(20_000, rel=0.1), "an iteration may take several frames"


def test_the_rows_are_the_loop_with_every_binding_in_its_order_and_unit() -> None:
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
    known = {(binding.hook, binding.point): binding for binding in plan().bindings}
    texts = {name: written(plan(), known[name]) for name in known}
    assert texts["log", "after_train_iter"] == "10 it" and texts["checkpoint", "after_train_epoch"] == "2 ep"
    assert texts["seed", "before_run"] == "once" and texts["accuracy", "after_val_iter"] == "1 bat"
    assert written(plan(), replace(known["log", "after_train_iter"], trigger=Trigger(every="10%"))) == "10 %"


def now_at(scene: Any, **seen: Any) -> str:
    """Return the row where the run is."""
    shown = replace(scene, **seen)
    return next(line for line in drawn(shown, 120, 60).splitlines()[3:] if "●" in line or "‖" in line)


def test_the_mark_is_in_the_round_at_hand_or_at_the_hook_that_hangs(scene: At) -> None:
    at = scene()
    assert "↻ validation 14 of 20" in now_at(at)
    at.state.apply(record("frame", at.state.now, 590, 6), plan=at.plan)
    assert "↻ batch 1 of 32" in now_at(at)
    ema = next(binding.id for binding in at.plan.bindings if binding.hook == "ema")
    assert "↻ batch" in now_at(at, inside={0: (ema, 0.1)}), "the mark does not jump about"
    assert " ema " in now_at(at, inside={0: (ema, 40.0)})
    assert "●" not in "".join(drawn(scene(None), 120, 60).splitlines()[3:]), "a run that has ended is nowhere"


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


@pytest.mark.parametrize(
    ("wrote", "last"),
    [(("after_val_epoch", "metrics.ood/accuracy"), "accuracy @ after_val_epoch"), (("after_test", "metrics"), "")],
)
def test_a_slot_is_written_by_who_fires_before_in_the_loop(scene: At, wrote: tuple[str, str], last: str) -> None:
    at = scene()
    ids = {(binding.point, binding.hook): binding.id for binding in at.plan.bindings}
    ids["after_test", "accuracy"] = ids["after_val", "early_stop"]  # the last one
    reader, writer = ids["after_train_iter", "log"], ids[wrote[0], "accuracy"]
    bindings = [replace(b, reads=("metrics",)) if b.id == reader else b for b in at.plan.bindings]
    bindings[writer] = replace(bindings[writer], hook="accuracy", point=wrote[0], writes=(wrote[1],))
    at.plan = replace(at.plan, bindings=tuple(bindings))
    at.view.page, at.view.point, at.view.hook = "graph", "after_train_iter", 4
    line = next(line for line in drawn(at, 120, 60).splitlines() if "reads " in line)
    assert re.search(rf"reads   metrics{f'   written by {last}' if last else ''} +│", line)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_an_early_end_leaves_the_legend_of_the_phases(scene: At, width: int) -> None:
    early = Health("finished", "stopped early: accuracy has not improved on 0.9102 for 2 validations")
    _, legend = anatomy_lines(replace(scene(), health=early), width)
    assert re.search("█ (fwd|forward) .*stopped early: acc", legend.text)
