"""Where the time of an iteration goes, from means and from traces, against values by hand."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hookflow.errors import UserError
from hookflow.events.rundir import RunDir, run_argument
from hookflow.graph.plan import Plan
from hookflow.graph.render.timeline import draw_chain, draw_gantt
from hookflow.service.iteration_times import (
    AttemptTotals,
    IterationTimes,
    TimeSpan,
    mean_times,
    read_mean_times,
    read_traced_times,
    without_hooks,
)
from hookflow.service.runs import read_recorded_plan
from tests.cli.conftest import invoke, refused
from tests.conftest import NewRun, Trained
from tests.monitor.fake_run import append, record
from tests.support.hook_groups import grouped
from tests.support.hook_nodes import node


def frame(iterations: int, total: int, phases: dict[str, int], hooks: dict[str, int]) -> Any:
    counted = {binding: [iterations, duration, 0, 0, [0]] for binding, duration in hooks.items()}
    return record("frame", iters=[iterations, total, 0, 0, [0]], phases=phases, hooks=counted)


def plan() -> Plan:
    """Return a plan of five bindings, whose ids are in the order of the loop."""
    return grouped(
        [
            node("timer", points=[("before_train_iter", "whole"), ("after_train_iter", "whole")]),
            node("clip", points=[("before_optimizer_step", "whole")]),
            node("epoch", points=[("after_train_epoch", "whole"), ("after_val_iter", "whole")]),
        ]
    )


def id_of(found: Plan, hook: str, point: str) -> str:
    (binding,) = (binding for binding in found.at(point) if binding.hook == hook)
    return str(binding.id)


def labels_of(times: IterationTimes) -> list[tuple[str, float, float]]:
    return [(span.label, span.begin, span.total) for span in times.spans]


def test_means_are_of_the_last_attempt_in_the_order_of_the_loop() -> None:
    found = plan()
    before, after = (
        id_of(found, "timer", "before_train_iter"),
        id_of(found, "timer", "after_train_iter"),
    )
    clip, epoch = (
        id_of(found, "clip", "before_optimizer_step"),
        id_of(found, "epoch", "after_train_epoch"),
    )
    phases = {
        "data": 100,
        "forward": 300,
        "backward": 400,
        "optimizer": 80,
        "hooks": 999,
        "other": 7,
    }
    records = [
        record("run"),
        frame(50, 10**9, {"data": 10**9}, {}),
        record("run"),
        frame(1, 800, phases, {before: 10, after: 20, clip: 40, epoch: 600}),
        frame(3, 1200, {"data": 60, "forward": 340}, {before: 30}),
    ]
    times = mean_times(AttemptTotals.of_last(records), found)
    assert labels_of(times) == [
        ("data", 0, 40),
        ("timer at before_train_iter", 40, 10),
        ("forward", 50, 160),
        ("backward", 210, 100),
        ("clip at before_optimizer_step", 310, 10),
        ("optimizer", 320, 20),
        ("timer at after_train_iter", 340, 5),
        ("other", 345, 155),
    ]
    assert (times.total, times.num_iterations, times.has_part) == (500, 4, False)


def test_a_part_of_an_iteration_that_did_not_end_is_said() -> None:
    totals = AttemptTotals(2, 100, Counter({"data": 40, "forward": 70}))
    times = mean_times(totals, plan())
    assert times.has_part
    assert times.total == 55


def test_calls_in_an_iteration_that_did_not_end_are_in_no_mean() -> None:
    """Six iterations have ended, and the hooks of the seventh took 60 and 12 ns before it raised.
    A hook that fires twice in an iteration is not known to have fired in that one.
    """
    found = plan()
    before, after = (
        id_of(found, "timer", "before_train_iter"),
        id_of(found, "timer", "after_train_iter"),
    )
    clip = id_of(found, "clip", "before_optimizer_step")
    calls = {before: [7, 120, 60, 60, [0]], clip: [13, 60, 6, 6, [0]], after: [6, 30, 5, 5, [0]]}
    whole = record("frame", iters=[6, 600, 0, 0, [0]], phases={"forward": 300}, hooks=calls)
    times = mean_times(AttemptTotals.of_last([record("run"), whole]), found)
    spans = {label: total for label, _, total in labels_of(times)}
    assert spans["timer at before_train_iter"] == 10
    assert spans["clip at before_optimizer_step"] == 10
    assert spans["timer at after_train_iter"] == 5
    assert times.total == pytest.approx(100)
    assert times.has_part, "its phases are in the means"


def test_the_means_of_a_run_add_up_to_its_iterations(trained: Trained) -> None:
    run_dir = trained("run.max_epochs=1")
    iterations, total = 0, 0
    for line in run_dir.events.read_text().splitlines():
        written = json.loads(line)
        if written["k"] == "frame":
            iterations += written["iters"][0]
            total += written["iters"][1]
    times = read_mean_times(run_dir, read_recorded_plan(run_dir))
    assert times.num_iterations == iterations
    if not times.has_part:
        assert times.total == pytest.approx(total / iterations)
    assert sum(span.total for span in times.spans) == pytest.approx(times.total)
    begins = [span.begin for span in times.spans]
    assert begins == sorted(begins)
    chain = invoke("graph", str(run_dir.path), "--critical-chain")
    assert "clip at before_optimizer_step" in chain
    assert "100.0" not in chain
    assert "█" in invoke("graph", str(run_dir.path), "--gantt", "median", columns=100)


def event(
    name: str, category: str, it: int, ts: float, dur: float, pid: int = 0, tid: int = 0
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
    } | {"args": {"iteration": it}}


def traced(run: RunDir, name: str, began: float, *events: dict[str, Any]) -> None:
    run.traces.mkdir(exist_ok=True)
    (run.traces / name).write_text(
        json.dumps({"otherData": {"began": began}, "traceEvents": events})
    )


def test_the_median_iteration_of_the_newest_trace_is_drawn(new_run: NewRun) -> None:
    run_dir = new_run()
    traced(run_dir, "it9.json", 1.0, event("iteration", "iteration", 9, 0.0, 1.0))
    traced(
        run_dir,
        "it10.json",
        2.0,
        event("iteration", "iteration", 10, 0.0, 900.0),
        event("data", "phase", 10, 0.0, 900.0),
        event("iteration", "iteration", 11, 1000.0, 100.0),
        event("data", "phase", 11, 1000.0, 20.0),
        event("forward", "phase", 11, 1020.0, 60.0),
        event("seen", "forward", 11, 1030.0, 5.0),
        event("seen", "forward", 11, 1050.0, 10.0),
        event("log", "after_train_iter", 11, 1080.0, 20.0),
        event("forward", "phase", 11, 1020.0, 60.0, pid=1),
        event("forward", "phase", 11, 1020.0, 60.0, tid=1),
        event("iteration", "iteration", 12, 1100.0, 50.0),
    )
    times = read_traced_times(run_dir)
    assert times is not None
    assert (times.iteration, times.num_iterations, times.total) == (11, 3, 100_000)
    assert [(span.label, span.depth, span.parts) for span in times.spans] == [
        ("data", 0, [(0, 20_000)]),
        ("forward", 0, [(20_000, 60_000)]),
        ("seen at forward", 1, [(30_000, 5_000), (50_000, 10_000)]),
        ("log at after_train_iter", 0, [(80_000, 20_000)]),
    ]
    assert "iteration 11, the median of 3 traced iterations: 100 µs" in invoke(
        "graph", str(run_dir.path), "--gantt", "median"
    )


def test_a_damaged_trace_and_a_run_without_times_are_refused(
    new_run: NewRun, tmp_path: Path
) -> None:
    run_dir = new_run()
    assert read_traced_times(run_dir) is None
    assert "no iteration that has been timed" in refused(
        "graph", str(run_dir.path), "--gantt", "median"
    )
    traced(run_dir, "it1.json", 1.0, {"ph": "X"})
    with pytest.raises(UserError, match=r"it1\.json is no trace"):
        read_traced_times(run_dir)


@pytest.mark.parametrize(
    "option", ["--critical-chain", "--gantt=median", "--gantt=3", "--what-if=log"]
)
def test_a_pipeline_has_no_times(option: str) -> None:
    refusal = refused("graph", "pipelines/hello.toml", option)
    assert option.partition("=")[0] in refusal
    assert "only a run has times" in refusal


def test_a_traced_iteration_is_chosen_by_its_number(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = new_run()
    assert "hookflow ctl" in refused("graph", str(run_dir.path), "--gantt", "3")
    monkeypatch.setattr(RunDir, "life", lambda run: "gone")
    refusal = refused("graph", str(run_dir.path), "--gantt", "3")
    assert "no trace of iteration 3" in refusal
    again = f"hookflow rerun {run_argument(run_dir)} --at 3 --for 1 --trace"
    assert again in refusal, "a run that is over takes no command"
    for began in (1.0, 2.0):
        data = 10.0 * began
        iteration = [
            event("iteration", "iteration", 9, 0.0, 40.0),
            event("data", "phase", 9, 0.0, data),
        ]
        traced(run_dir, f"it9-{began}.json", began, *iteration)
    traced(run_dir, "it12.json", 3.0, event("iteration", "iteration", 12, 0.0, 50.0))
    times = read_traced_times(run_dir, 9)
    assert times is not None
    assert (times.iteration, times.total) == (9, 40_000)
    assert labels_of(times) == [("data", 0, 20_000)]
    assert "iteration 9: 40.0 µs" in invoke("graph", str(run_dir.path), "--gantt", "9")
    assert "traced are 9, 12" in refused("graph", str(run_dir.path), "--gantt", "10")
    assert "--gantt" in refused("graph", str(run_dir.path), "--gantt", "longest")


def test_an_iteration_without_a_hook_is_shorter_by_its_calls() -> None:
    found = plan()
    before, after = (
        int(id_of(found, "timer", point)) for point in ("before_train_iter", "after_train_iter")
    )
    clip = int(id_of(found, "clip", "before_optimizer_step"))
    totals = AttemptTotals(10, 2000, Counter({"data": 600, "optimizer": 400}))
    totals.hooks.update({before: 100, after: 300, clip: 200})
    rest = without_hooks(mean_times(totals, found), ["timer"])
    assert labels_of(rest) == [
        ("data", 0, 60),
        ("clip at before_optimizer_step", 60, 20),
        ("optimizer", 80, 40),
        ("other", 120, 40),
    ]
    assert rest.total == (2000 - 100 - 300) / 10


def test_what_if_prints_what_a_hook_takes_and_how_it_is_measured(new_run: NewRun) -> None:
    run_dir = new_run()
    found = read_recorded_plan(run_dir)
    clip = next(binding for binding in found.bindings if binding.hook == "clip")
    append(run_dir, [record("run"), frame(2, 4000, {"forward": 3000}, {str(clip.id): 1000})])
    shown = invoke("graph", str(run_dir.path), "--what-if", "clip")
    assert "mean of 2 iterations: 2.00 µs" in shown
    assert "without clip: 1.50 µs, 0.50 µs less (25.0 %)" in shown
    assert "clip at" not in shown
    assert f"hookflow rerun {run_argument(run_dir)} --at 1 --for 2 --without clip" in shown
    assert 'there is no hook "clipp"' in refused("graph", str(run_dir.path), "--what-if", "clipp")


def test_the_training_waits_for_a_hook_in_background(new_run: NewRun) -> None:
    """Its queue was full: 900 of 1000 ns were said to be "other", and --what-if to save nothing."""
    sleeps = "tests.runner.test_background_trace:Sleeps"
    run_dir = new_run(f'hooks.beside={{use="{sleeps}", args={{file="f"}}, offload=true}}')
    found = read_recorded_plan(run_dir)
    (beside,) = (binding for binding in found.bindings if binding.hook == "beside")
    assert beside.beside
    append(run_dir, [record("run"), frame(2, 2000, {"forward": 200}, {str(beside.id): 1800})])
    times = read_mean_times(run_dir, found)
    assert labels_of(times) == [("forward", 0, 100), (f"beside at {beside.point}", 100, 900)]
    shown = invoke("graph", str(run_dir.path), "--critical-chain", "--what-if", "beside")
    assert "beside the training: beside; what an iteration has of it" in shown
    assert "without beside: 0.10 µs, 0.90 µs less (90.0 %)" in shown


def test_what_fires_outside_of_training_too_is_no_part_of_the_chain(new_run: NewRun) -> None:
    hook = (
        'hooks.seen={use="builtins:print", points=[{at="forward", modules=["*"],'
        ' stages=["train","val"]}]}'
    )
    run_dir = new_run(hook)
    found = read_recorded_plan(run_dir)
    (seen,) = found.at("forward")
    append(run_dir, [record("run"), frame(1, 100, {"forward": 60}, {str(seen.id): 30})])
    totals = AttemptTotals(1, 100, Counter({"forward": 60}), Counter({seen.id: 30}))
    assert labels_of(mean_times(totals, found)) == [("forward", 0, 60), ("other", 60, 40)]


SPANS = [TimeSpan("a", parts=[(0, 50)]), TimeSpan("b", "p", 1, [(50, 1), (75, 25)])]


def test_bars_cover_their_part_of_the_width_and_short_ones_have_a_sign() -> None:
    first, second = draw_gantt(SPANS, 100, 60)
    bars = [line[len("  b at p ") : -16] for line in (first, second)]
    width = len(bars[0])
    assert bars[0] == "█" * (width // 2) + " " * (width - width // 2)
    assert bars[1].strip() == "▏" + " " * (round(width * 0.75) - width // 2 - 1) + "█" * (
        width - round(width * 0.75)
    )


def test_a_chain_has_begin_duration_and_share() -> None:
    _, first, second = draw_chain(SPANS, 100)
    assert first.split() == ["0.00", "µs", "0.05", "µs", "50.0", "a"]
    assert second.split() == ["0.05", "µs", "0.03", "µs", "26.0", "b", "at", "p"]
