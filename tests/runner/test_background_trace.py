"""A trace has when offloaded hooks ran and what the training waited for,
as the hooks themselves have seen it.
"""

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hookflow.events.rundir import RunDir
from hookflow.monitor.iteration_trace import read_trace
from hookflow.service.iteration_times import read_traced_times
from tests.cli.conftest import invoke
from tests.conftest import Trained, reason
from tests.support.overrides import commander

CLOCKS = 0.005
"""Seconds by which the clock of a trace and that of a hook may differ:
one is adjusted while the run goes on.
"""

FIRST, LAST = 4, 8
"""The iterations that are traced."""

Times = dict[int, list[float]]


class Sleeps:
    """Sleeps for 50 ms, and writes of each firing the iteration, and when it began and ended."""

    def __init__(self, file: str) -> None:
        self.file = file

    def after_train_iter(self, run: Any) -> None:
        began = time.time()
        time.sleep(0.05)
        write_times(self.file, run.iter, began, time.time())


class NotesTime:
    """Writes of each firing the iteration, and when it was."""

    def __init__(self, file: str) -> None:
        self.file = file

    def after_train_iter(self, run: Any) -> None:
        write_times(self.file, run.iter, time.time())


def write_times(file: str, it: int, *times: float) -> None:
    with Path(file).open("a") as written:
        written.write(" ".join(map(repr, (it, *times))) + "\n")


def traces(run: Any) -> None:
    """Trace the iterations from FIRST on, as the hook of a rerun does."""
    if run.iter == FIRST - 1:
        run.trace(FIRST, LAST - FIRST + 1)


class Traces:
    """Asks at a point of an iteration for a trace of two iterations from `first` on."""

    def __init__(self, it: int, first: int) -> None:
        self.it, self.first = it, first

    def before_train_iter(self, run: Any) -> None:
        self._trace(run)

    def after_train_iter(self, run: Any) -> None:
        self._trace(run)

    def after_train_epoch(self, run: Any) -> None:
        self._trace(run)

    def _trace(self, run: Any) -> None:
        if run.iter == self.it:
            run.trace(self.first, 2)


def times_in(file: Path) -> Times:
    """Return what a hook has written: the times of each iteration, in seconds since 1970."""
    times = {}
    for line in file.read_text().splitlines():
        it, *seconds = line.split()
        times[int(it)] = [float(each) for each in seconds]
    return times


def events_of(run: RunDir) -> tuple[float, list[dict[str, Any]]]:
    (path,) = run.traces.iterdir()
    trace = json.loads(path.read_text())
    return trace["otherData"]["began"], [
        event for event in trace["traceEvents"] if event["ph"] == "X"
    ]


@pytest.fixture(params=["true", '"process"'])
def traced(request: pytest.FixtureRequest, trained: Trained, tmp_path: Path) -> RunDir:
    """A run with a hook in background that one in the training waits for,
    and one that nobody waits for.
    """
    sleeps = (
        'hooks.%s={use="tests.runner.test_background_trace:Sleeps", args={file="%s"},'
        " offload=%s,"
        " queue=99}"
    )
    note = (
        'hooks.note={use="tests.runner.test_background_trace:NotesTime", args={file="%s"},'
        ' after=["awaited"]}'
    )
    return trained(
        sleeps % ("awaited", tmp_path / "awaited", request.param),
        sleeps % ("queued", tmp_path / "queued", request.param),
        note % (tmp_path / "note"),
        commander(tmp_path / "sent", (FIRST - 1, f"trace {LAST - FIRST + 1}")),
    )


def test_a_lane_has_the_times_that_the_hook_has_noted(traced: RunDir, tmp_path: Path) -> None:
    began, events = events_of(traced)
    for hook in ("awaited", "queued"):
        noted = times_in(tmp_path / hook)
        lane = {
            event["args"]["iteration"]: event
            for event in events
            if event["name"] == hook and event["tid"] >= 2
        }
        assert {*range(FIRST, LAST + 1)} <= {*lane}
        for it, event in lane.items():
            if it not in noted:  # it had not begun when the trace was written
                continue
            first = began + event["ts"] / 1e6
            last = first + event["dur"] / 1e6
            assert event["cat"] == "after_train_iter"
            assert began + event["args"]["queued"] / 1e6 <= first
            assert first <= noted[it][0] + CLOCKS
            if it <= LAST - 2:  # which has ended while the trace went on
                assert noted[it][1] <= last + CLOCKS
                assert event["dur"] >= 50_000
        for it, then in pairwise(sorted(lane)):
            assert lane[it]["ts"] + lane[it]["dur"] <= lane[then]["ts"] + 0.01, (
                "a thread has one firing at a time"
            )


def test_the_training_waits_until_the_firing_is_over(traced: RunDir, tmp_path: Path) -> None:
    began, events = events_of(traced)
    awaited, note = times_in(tmp_path / "awaited"), times_in(tmp_path / "note")
    waits = [event for event in events if event["cat"] == "wait" and event["tid"] == 0]
    by_iteration = {
        event["args"]["iteration"]: event for event in waits if event["name"] == "awaited"
    }
    assert by_iteration, (
        "a busy machine may come to the hook that waits when there is nothing to wait for"
    )
    assert {*by_iteration} <= {*range(FIRST, LAST + 1)}
    for it, wait in by_iteration.items():
        first = began + wait["ts"] / 1e6
        last = first + wait["dur"] / 1e6
        assert first <= awaited[it][1] + CLOCKS
        assert awaited[it][1] - CLOCKS <= last <= note[it][0] + CLOCKS


def test_the_critical_chain_goes_through_the_hook_that_is_waited_for(traced: RunDir) -> None:
    (path,) = traced.traces.iterdir()
    iterations = read_trace(path)
    assert not isinstance(iterations, str)
    for traced_iteration in iterations:
        assert traced_iteration.has_lanes
        rows = {row.label: row for row in traced_iteration.rows}
        if "wait for awaited" not in rows:
            continue
        on_chain = sum(duration for _, duration in rows["awaited in background"].chain)
        assert on_chain >= 50_000
        assert rows["forward"].chain, "before the firing was queued the training is on it"
        assert not rows["wait for awaited"].chain
    times = read_traced_times(traced, FIRST)
    assert times is not None
    lane = next(span for span in times.spans if span.name == "awaited in background")
    assert lane.chain is not None
    drawn = invoke("graph", str(traced.path), "--gantt", str(FIRST), columns=120)
    assert "● awaited in background" in drawn
    assert "wait for awaited" in drawn
    assert "critical chain" in drawn


def test_a_trace_that_a_hook_asks_for_has_the_lanes_too(trained: Trained, tmp_path: Path) -> None:
    """`hookflow rerun --trace` had none: what was waited for seemed to be the training's own."""
    run_dir = trained(
        'hooks.sleeps={use="tests.runner.test_background_trace:Sleeps", offload=true, queue=1,'
        f' args={{file="{tmp_path / "sleeps"}"}}}}',
        'hooks.traces={use="tests.runner.test_background_trace:traces", phase="last",'
        ' points=["after_train_iter"]}',
    )
    _, events = events_of(run_dir)
    lanes = [event for event in events if event["name"] == "sleeps" and event["tid"] >= 2]
    assert {*range(FIRST, LAST)} <= {event["args"]["iteration"] for event in lanes}
    assert any(event["cat"] == "wait" for event in events)
    times = read_traced_times(run_dir)
    assert times is not None and any(span.chain for span in times.spans if "back" in span.name)


@pytest.mark.parametrize(
    ("point", "first"),
    [
        ("before_train_iter", 5),
        ("before_train_iter", 6),
        ("after_train_iter", 4),
        ("after_train_iter", 5),
        ("after_train_iter", 7),
    ],
)
def test_a_trace_has_the_iterations_that_it_is_asked_for(
    trained: Trained, tmp_path: Path, point: str, first: int
) -> None:
    """The hook asks when four iterations are done: `after_train_iter` belongs to the fourth. Each
    event has the number of the iteration in which the hook itself has slept.
    """
    run_dir = trained(
        'hooks.sleeps={use="tests.runner.test_background_trace:Sleeps", after=["traces"],'
        f' args={{file="{tmp_path / "sleeps"}"}}}}',
        'hooks.traces={use="tests.runner.test_background_trace:Traces",'
        f' args={{it=4, first={first}}}, points=["{point}"]}}',
    )
    began, events = events_of(run_dir)
    traced = [event["args"]["iteration"] for event in events if event["name"] == "iteration"]
    assert traced == [first, first + 1]
    noted = times_in(tmp_path / "sleeps")
    sleeps = [event for event in events if event["name"] == "sleeps"]
    assert [event["args"]["iteration"] for event in sleeps] == traced
    for event in sleeps:
        begins, _ = noted[event["args"]["iteration"]]
        assert abs(began + event["ts"] / 1e6 - begins) < 0.03, "a call sleeps longer than that"


@pytest.mark.parametrize(
    ("point", "it", "first"), [("before_train_iter", 4, 4), ("after_train_iter", 4, 3)]
)
def test_an_iteration_that_is_over_is_not_traced(
    trained: Trained, point: str, it: int, first: int
) -> None:
    run_dir = trained(
        'hooks.traces={use="tests.runner.test_background_trace:Traces",'
        f' args={{it={it}, first={first}}}, points=["{point}"]}}',
        code=2,
    )
    assert f"iteration {first} is over" in reason(run_dir)
