"""The page Trace: traced iterations as waterfalls, and the totals of phases and hooks."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir, run_argument
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.iteration_trace import (
    describe_progress,
    read_trace,
    total_by_hook,
    total_by_phase,
)
from hookflow.monitor.screens.trace import TotalsTable, TraceScreen
from hookflow.monitor.state import RunState
from hookflow.monitor.style import INK_STYLES
from hookflow.monitor.widgets.waterfall import Waterfall
from tests.monitor.fake_run import BEGAN, append
from tests.monitor.shown import LOW, check_screens, press, screen_text, shown, visit

MICROS = 27_400.0
SPANS: Sequence[tuple[str, str, float, float]] = [
    # name, category, begin, duration
    ("data", "phase", 0.0, 1_900.0),
    ("forward", "phase", 1_900.0, 8_300.0),
    ("timer", "before_train_iter", 1_910.0, 9.0),
    *(("probe", "forward", 2_000.0 + 250 * number, 60.0) for number in range(32)),
    ("backward", "phase", 10_200.0, 12_500.0),
    ("optimizer", "phase", 22_700.0, 3_700.0),
    ("clip", "before_optimizer_step", 22_701.0, 900.0),
    ("ema", "after_optimizer_step", 26_400.0, 640.0),
    ("log", "after_train_iter", 27_100.0, 180.0),
    ("validation", "outside", 27_400.0, 752_000.0),
]
"""What happens in each traced iteration, in microseconds."""


def write_trace(
    run: RunDir, count: int = 10, *, name: str = "it00000580", first: int = 580, t: float = BEGAN
) -> None:
    """Write a trace of some iterations, and the record of it.

    Each iteration takes 100 µs more than the one before.
    """
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "args": {"name": "rank 0"}}]
    for number in range(count):
        it, start = first + number, number * 1e6
        whole = ("iteration", "iteration", 0.0, MICROS + 100 * number)
        for label, place, begin, micros in (whole, *SPANS):
            when = {"ts": start + begin, "dur": micros}
            events.append(
                {"ph": "X", "name": label, "cat": place, **when, "args": {"iteration": it}}
            )
    path = f"traces/{name}.json"
    run.traces.mkdir(exist_ok=True)
    (run.path / path).write_text(json.dumps({"traceEvents": events}))
    append(
        run,
        [
            {
                "k": "trace",
                "t": t,
                "it": first + count,
                "ep": 5,
                "path": path,
                "first": first,
                "iters": count,
            }
        ],
    )


LANE_SPANS: Sequence[tuple[str, str, float, float]] = [
    *SPANS[:-2],
    ("report", "after_train_iter", 27_100.0, 20_100.0),
    ("wait for embed", "wait", 27_120.0, 20_000.0),
]
"""The same in an iteration whose last hook waits for another one, in background."""

LANE_FIRINGS: Sequence[tuple[str, int, float, float, float]] = [
    # name, iteration, queued, begin, duration; in microseconds
    ("embed", 580, 10_300.0, 10_320.0, 36_800.0),
    ("render", 579, -9_000.0, -8_990.0, 20_000.0),
    ("render", 580, 1_950.0, 11_010.0, 30_000.0),
]


@pytest.fixture
def with_lanes(whole: RunDir) -> RunDir:
    """A finished run with a traced iteration, beside which two hooks are at work:
    one is waited for.
    """
    events: list[dict[str, Any]] = []
    for name, category, begin, micros in (("iteration", "iteration", 0.0, 48_000.0), *LANE_SPANS):
        shown_name = name.removeprefix("wait for ")
        when = {"ts": begin, "dur": micros}
        events.append(
            {"ph": "X", "name": shown_name, "cat": category, **when, "args": {"iteration": 580}}
        )
    for name, it, queued, begin, micros in LANE_FIRINGS:
        track = 2 if name == "embed" else 3
        when = {"tid": track, "ts": begin, "dur": micros}
        events.append(
            {
                "ph": "X",
                "name": name,
                "cat": "p",
                **when,
                "args": {"iteration": it, "queued": queued},
            }
        )
    path = "traces/it00000580.json"
    whole.traces.mkdir(exist_ok=True)
    (whole.path / path).write_text(json.dumps({"traceEvents": events}))
    append(
        whole,
        [{"k": "trace", "t": BEGAN, "it": 581, "ep": 5, "path": path, "first": 580, "iters": 1}],
    )
    return whole


@pytest.fixture
def traced(whole: RunDir) -> RunDir:
    """A finished run with ten traced iterations."""
    write_trace(whole)
    return whole


def test_hooks_in_background_have_rows_and_the_critical_chain_is_marked(with_lanes: RunDir) -> None:
    check_screens("page-trace-lanes", with_lanes, "6")


def test_rows_of_hooks_in_background_have_what_lies_in_the_iteration(with_lanes: RunDir) -> None:
    (only,) = iterations(with_lanes)
    rows = {row.label: row for row in only.rows}
    embed, render = rows["embed in background"], rows["render in background, since 579"]
    assert (embed.queued, embed.parts) == ([(10_300, 20)], [(10_320, 36_800)])
    assert render.parts == [(0, 11_010), (11_010, 30_000)]
    assert render.queued == [(1_950, 9_060)]
    assert embed.chain == [(10_300, 36_820)]
    assert render.chain == []
    assert rows["optimizer"].chain == []
    assert rows["backward"].chain == [(10_200, 100)]
    assert rows["report @ after_train_iter"].chain == [(47_120, 80)]
    totals = {total.name: total.micros for total in total_by_hook([only], 0)}
    assert totals["embed"] == 20_000, "what the training has waited for it"
    assert "render" not in totals
    phases = {total.name: total.micros for total in total_by_phase([only], 0)}
    assert sum(phases.values()) == pytest.approx(48_000)


def iterations(run: RunDir) -> Any:
    return read_trace(run.path / "traces/it00000580.json")


def test_the_page(traced: RunDir) -> None:
    check_screens("page-trace", traced, "6")


def test_spans_of_one_name_within_the_same_span_are_one_row(traced: RunDir) -> None:
    first = iterations(traced)[0]
    rows = {row.label: row for row in first.rows}
    assert [*rows][:4] == ["data", "forward", "timer @ before_train_iter", "probe @ forward"]
    probe = rows["probe @ forward"]
    assert (len(probe.parts), probe.depth, probe.kind) == (32, 1, "hook")
    assert probe.total == pytest.approx(32 * 60)
    assert rows["ema @ after_optimizer_step"].depth == 0
    assert rows["validation"].kind == "outside"
    assert rows["forward"].own == pytest.approx(8_300 - 9 - 32 * 60)


def test_phases_are_without_hooks_and_sum_to_the_iteration(traced: RunDir) -> None:
    totals = total_by_phase(iterations(traced), 3)
    by_name = {total.name: total for total in totals}
    hooks = 9 + 32 * 60 + 900 + 640 + 180
    assert by_name["hooks"].micros == pytest.approx(hooks)
    assert by_name["forward"].micros == pytest.approx(8_300 - 9 - 32 * 60)
    assert by_name["optimizer"].micros == pytest.approx(3_700 - 900)
    assert sum(total.micros for total in totals) == pytest.approx(MICROS + 300)
    assert sum(total.share for total in totals) == pytest.approx(1.0)
    assert by_name["data"].share == pytest.approx(1_900 / (MICROS + 450))
    assert [total.mean for total in totals] == sorted(
        (total.mean for total in totals), reverse=True
    )


def test_hooks_are_sorted_by_what_they_took(traced: RunDir) -> None:
    totals = total_by_hook(iterations(traced), 0)
    assert [total.name for total in totals] == ["probe", "clip", "ema", "log", "timer"]
    assert totals[0].mean == pytest.approx(32 * 60)


def test_keys_go_to_other_iterations(traced: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        def title() -> str:
            return str(app.screen.query_one(Waterfall).border_title)

        await press(app, pilot, "6")
        assert title().startswith("iteration 580 ")
        await press(app, pilot, "right_square_bracket")
        assert title().startswith("iteration 581 ")
        await press(app, pilot, "end", "right_square_bracket")
        assert title().startswith("iteration 589 ")
        assert "10/10" in screen_text(app)
        await press(app, pilot, "left_square_bracket")
        assert title().startswith("iteration 588 ")
        await press(app, pilot, "home", "left_square_bracket")
        assert title().startswith("iteration 580 ")
        assert "probe @ forward ×32" in screen_text(app)

    visit(traced, look)


def test_totals_are_below_the_waterfall_where_there_is_room(traced: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "6")
        assert app.screen.query_one("#by-hook", TotalsTable).row_count == 5
        assert "mean of 10 iterations" in screen_text(app)

    visit(traced, look)
    assert "mean of" not in shown(traced, "6", size=(60, 15))
    assert "forward" in shown(traced, "6", size=(60, 15))


def test_a_page_without_a_trace_says_how_to_get_one(going: RunDir) -> None:
    assert "no iteration is traced yet: ctrl+t" in shown(going, "6")


def test_a_run_that_has_ended_is_traced_by_a_rerun(whole: RunDir) -> None:
    text = shown(whole, "6", "right_square_bracket")
    command = f"hookflow rerun {run_argument(whole)} --at N --trace"
    assert command in " ".join(text.split())
    assert "ctrl+t" not in text


def test_a_file_that_is_no_trace_is_named(whole: RunDir) -> None:
    write_trace(whole, name="it00000701")
    (whole.traces / "it00000701.json").write_text("[]")
    assert "it00000701.json is no trace of hookflow" in shown(whole, "6")
    (whole.traces / "it00000701.json").unlink()
    assert "it00000701.json cannot be read" in shown(whole, "6")


def test_it_says_how_far_a_trace_is_until_it_has_come(going: RunDir) -> None:
    now = time.time() + 100
    sent = {"id": "1", "cmd": "trace", "args": ["2"], "t": now, "by": "me"}
    going.commands.write_text(json.dumps(sent) + "\n")

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "6")
        assert "a trace is requested" in screen_text(app)
        answer = {
            "id": "1",
            "cmd": "trace",
            "args": ["2"],
            "ok": True,
            "note": "iterations 601 to 602",
            "sent": now,
        }
        append(going, [{**answer, "k": "ack", "it": 600, "ep": 6, "t": now + 1}])
        app.store.poll()
        await press(app, pilot)
        app.show_changes()
        await pilot.pause()
        assert "tracing iterations 601 to 602: 600 done" in screen_text(app)
        write_trace(going, 2, first=601, t=now + 2)
        app.store.poll()
        app.show_changes()
        await pilot.pause()
        assert "tracing" not in screen_text(app)
        assert isinstance(app.screen, TraceScreen)
        assert str(app.screen.query_one(Waterfall).border_title).startswith("iteration 601 ")

    visit(going, look)


def test_no_progress_is_told_of_a_run_without_requests() -> None:
    assert describe_progress(RunState(), is_over=False) == ""


def test_a_low_page_says_which_iteration_it_shows(traced: RunDir) -> None:
    assert "it 580  27.40 ms" in shown(traced, "6", size=LOW)
    assert "it 581  27.50 ms" in shown(traced, "6", "right_square_bracket", size=LOW)
    assert "it 580  27" not in shown(traced, "6")


def test_the_bar_at_the_cursor_has_its_colour(traced: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "6")
        table = app.screen.query_one("#by-phase", TotalsTable)
        assert table.cursor_row == 0
        strip = table.render_line(1)
        assert "backward" in strip.text
        (bar,) = [segment.style for segment in strip if "▓" in segment.text]
        assert bar is not None
        assert bar.color == INK_STYLES["backward"].color

    visit(traced, look)
