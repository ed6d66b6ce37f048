"""The page Hooks: by cost and by order, the hook at the cursor, its page,
and what keys and the mouse do there.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.coordinate import Coordinate
from textual.pilot import Pilot

from hookflow.events.packing import bin_of
from hookflow.events.records import PHASES
from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Binding, DroppedEdge, Edge, Plan, PlannedGroup
from hookflow.graph.points import Point
from hookflow.graph.render.loop import make_rows as loop_rows
from hookflow.monitor import run_store
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.dashboard import ViewChoices
from hookflow.monitor.hook_costs import compute_binding_cost, find_unreached_bindings
from hookflow.monitor.hook_facts import all_facts, describe_reason, list_reason_facts
from hookflow.monitor.run_store import RunStore
from hookflow.monitor.screens.hook_details import HookDetailsScreen
from hookflow.monitor.screens.hook_page import HookPage
from hookflow.monitor.screens.hooks import HooksScreen
from hookflow.monitor.widgets.hook_order import HookOrderView, OrderRow, row_figures, row_of_run
from hookflow.monitor.widgets.hook_reason import HookReason
from hookflow.monitor.widgets.hook_table import (
    HOOK_COLUMNS,
    HookTable,
    filter_rows,
    hook_rows,
    keep_order,
    sort_rows,
)
from hookflow.service.runs import read_recorded_plan
from tests.conftest import NewRun
from tests.monitor.fake_run import BEGAN, append, make, make_ranks, plan, record
from tests.monitor.shown import (
    LOW,
    NORMAL,
    WIDE,
    Size,
    check_screens,
    press,
    screen_text,
    settle,
    shown,
    visit,
)

SIZES = (LOW, NORMAL, WIDE, (200, 60))


def binding_of(hook: str, point: str) -> Binding:
    return next(each for each in plan().bindings if (each.hook, each.point) == (hook, point))


EMA = binding_of("ema", "after_train_iter")
CLIP = binding_of("clip", "after_backward")
LOG = binding_of("log", "after_train_iter")


def use_plan(run: RunDir, other: Plan) -> RunDir:
    """Let a run have another plan."""
    run.plan.write_text(json.dumps(other.to_json()), "utf-8")
    return run


def store_of(run: RunDir) -> RunStore:
    """Return what is known of a run."""
    store = RunStore(run)
    store.poll()
    while store.is_behind:
        store.poll()
    return store


def table_of(app: MonitorApp) -> HookTable:
    return app.screen.query_one(HookTable)


def order_of(app: MonitorApp) -> HookOrderView:
    return app.screen.query_one(HookOrderView)


def reason_of(app: MonitorApp) -> str:
    return f"{app.screen.query_one(HookReason).render()}"


def on_page(
    do: Callable[[MonitorApp, Pilot[Any]], Any], *keys: str
) -> Callable[[MonitorApp, Pilot[Any]], Any]:
    """Return a visit that goes to the page first, and presses keys there."""

    async def visit_page(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "2", *keys)
        await do(app, pilot)

    return visit_page


def one_iteration() -> dict[str, Any]:
    """Return what a frame of one iteration has beside its hooks."""
    return {"iters": [1, 28 * 10**6, 0, 0, [0]], "phases": dict.fromkeys(PHASES, 10**6)}


def row_with(text: str, screen: str) -> str:
    return next(line for line in screen.splitlines() if text in line)


# By cost


def test_the_page_by_cost(whole: RunDir) -> None:
    check_screens("page-hooks", whole, "2")


def test_mean_and_share_are_those_of_the_log(whole: RunDir) -> None:
    frames = [
        json.loads(line) for line in whole.events.read_text().splitlines() if '"frame"' in line
    ]
    entries = [frame["hooks"][f"{EMA.id}"] for frame in frames if f"{EMA.id}" in frame["hooks"]]
    calls, ns = sum(entry[0] for entry in entries), sum(entry[1] for entry in entries)
    iterations = sum(frame["iters"][1] for frame in frames)
    store = store_of(whole)
    cost = compute_binding_cost(store.state, store.plan, store.pace, EMA, whole_attempt=True)
    assert (cost.count, cost.mean, cost.longest) == (
        calls,
        ns / calls,
        max(entry[2] for entry in entries),
    )
    assert cost.share == pytest.approx(ns / iterations)
    outside = compute_binding_cost(
        store.state, store.plan, store.pace, plan().bindings[-1], whole_attempt=True
    )
    assert outside.share is None and outside.mean is not None
    assert cost.slowdown_text == "", "a hook that is as quick as before has no word about it"


@pytest.mark.parametrize("size", SIZES)
def test_every_size_has_hook_point_mean_and_share(whole: RunDir, size: Size) -> None:
    text = shown(whole, "2", size=size)
    row = row_with("clip ", text)
    for word in ("clip", "after_backward", "213 µs", "0.7 %"):
        assert word in row
    heading = row_with("ON hook", text)
    assert "device" not in heading, "there is none"
    assert "slowest" not in heading, "there is one rank"


def test_a_long_name_is_whole_before_there_are_more_figures(whole: RunDir) -> None:
    name = "gradient_statistics_of_every_block"
    hooks = tuple(
        replace(each, name=name) if each.name == "clip" else each for each in plan().hooks
    )
    bindings = tuple(
        replace(each, hook=name) if each.hook == "clip" else each for each in plan().bindings
    )
    use_plan(whole, replace(plan(), hooks=hooks, bindings=bindings))
    assert name in row_with("after_backward", shown(whole, "2", size=WIDE))
    assert "gradient_" in row_with("after_backward", shown(whole, "2", size=NORMAL))


def test_a_click_at_a_heading_sorts_and_again_reverses(whole: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        table = table_of(app)
        assert not table.shown_rows[0].binding.point.startswith("before"), (
            "what took most time is first"
        )
        column = next(
            place for place, each in enumerate(table.ordered_columns) if each.key.value == "hook"
        )
        x = sum(each.get_render_width(table) for each in table.ordered_columns[:column])
        for expected in (False, True):
            await pilot.click(HookTable, offset=(x + 1, 0))
            await settle(app, pilot)
            names = [row.binding.hook for row in table.shown_rows]
            assert names == sorted(names, reverse=expected)
        await press(app, pilot, "right_square_bracket")
        ids = [row.binding.id for row in table.shown_rows]
        assert ids == sorted(ids), "the next column is that of the points, in the order of the loop"

    visit(whole, on_page(do))


def test_rows_change_places_only_where_they_differ_by_much(whole: RunDir) -> None:
    store = store_of(whole)
    column = next(each for each in HOOK_COLUMNS if each.name == "share")
    rows = hook_rows(store, ViewChoices())
    first, second, *_ = sort_rows(rows, column, is_reversed=False)
    for factor, goes_ahead in ((1.1, False), (1.5, True)):
        dearer = replace(second, cost=replace(second.cost, spent=factor * first.cost.spent))
        kept = keep_order([dearer, first], column, [first.binding.id, second.binding.id])
        assert (kept[0] is dearer) == goes_ahead


def test_a_click_selects_a_row_and_the_cursor_stays_on_its_hook(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        table = table_of(app)
        place = next(at for at, row in enumerate(table.shown_rows) if row.binding == LOG)
        await pilot.click(HookTable, offset=(4, place + 1))
        await settle(app, pilot)
        assert app.choices.binding_id == LOG.id
        slow = {f"{LOG.id}": [10, 10**10, 10**9, 10**9, [100, 10]]}
        state = app.store.state
        append(going, [record("frame", state.now, state.it, state.ep, hooks=slow)])
        await settle(app, pilot)
        app.store.poll()
        await settle(app, pilot)
        assert table.shown_rows[0].binding == LOG, "it costs most now"
        assert table.hook_at_cursor == LOG and app.choices.binding_id == LOG.id

    visit(going, on_page(do))


def test_a_hook_that_has_become_slower_is_marked_and_says_by_how_much(going: RunDir) -> None:
    store = store_of(going)
    now, it = store.state.now, store.state.it
    for second in range(40):
        ns = 1_000_000 if second < 25 else 4_000_000
        whole = {"iters": [30, 30 * 28 * 10**6, 0, 0, [0]], "phases": dict.fromkeys(PHASES, 10**6)}
        hooks = {f"{CLIP.id}": [30, 30 * ns, ns, ns, [90, 30]]}
        append(
            going,
            [record("frame", now + second + 1, it + 30 * (second + 1), 6, hooks=hooks, **whole)],
        )
    store = store_of(going)
    (row,) = (row for row in filter_rows(hook_rows(store, ViewChoices()), store.plan, "clip"))
    assert row.status == "slower"
    assert row.cost.slowdown is not None and row.cost.slowdown > 3
    assert row.note.endswith("× slower")
    text = shown(going, "2", size=NORMAL)
    assert row_with(" clip ", text).strip("│").startswith("▲")


def test_what_is_wrong_with_a_hook_is_a_sign_a_note_and_a_sentence(going: RunDir) -> None:
    hooks = tuple(
        replace(each, throttle="1%") if each.name == "log" else each for each in plan().hooks
    )
    use_plan(going, replace(plan(), hooks=hooks))
    state = store_of(going).state
    throttle = record(
        "throttle", state.now, state.it, state.ep, hook="log", every=4, why="it took 3 %"
    )
    append(
        going,
        [
            throttle,
            record("error", state.now, state.it, state.ep, hook="clip", point="after_backward"),
        ],
    )
    rows = {row.binding.id: row for row in hook_rows(store_of(going), ViewChoices())}
    assert (rows[LOG.id].status, rows[LOG.id].note) == ("throttled", "1 of 4 calls")
    assert (rows[CLIP.id].status, rows[CLIP.id].note) == ("failed", f"failed at {state.it}")
    visual = next(row for row in rows.values() if row.binding.hook == "visual")
    assert (visual.status, visual.note) == ("off", "failed, off"), "its error has switched it off"
    facts = {fact.name: fact.text for fact in all_facts(store_of(going), LOG)}
    assert "1 of 4" in facts["throttled"] and f"iteration {state.it}; " in facts["throttled"]


def test_an_offloaded_hook_has_its_time_its_queue_and_its_drops(going: RunDir) -> None:
    state = store_of(going).state
    beside = {f"{LOG.id}": [4, 8_000_000, 5_000_000, 3, 1]}
    append(going, [record("frame", state.now, state.it, state.ep, beside=beside)])
    store = store_of(going)
    rows = {row.binding.id: row for row in hook_rows(store, ViewChoices())}
    assert rows[LOG.id].note == "1 dropped, 3 queued"
    cost, inline = (
        rows[LOG.id].cost,
        compute_binding_cost(store.state, store.plan, store.pace, LOG, whole_attempt=False),
    )
    assert (cost.mean, cost.p95, cost.longest) == (2_000_000, None, 5_000_000), (
        "those of the calls in background"
    )
    assert (cost.share, cost.count) == (inline.share, inline.count), "what the training gives to it"
    facts = {fact.name: fact.text for fact in all_facts(store_of(going), LOG)}
    for words in ("mean 2.00 ms", "max 5.00 ms", "3 waiting", "1 dropped"):
        assert words in facts["background"]


def test_a_background_call_that_is_long_ago_is_no_call_of_the_last_minute(going: RunDir) -> None:
    state = store_of(going).state
    early = {f"{LOG.id}": [1, 9_000_000, 9_000_000, 0, 0]}
    late = {f"{LOG.id}": [2, 4_000_000, 3_000_000, 0, 0]}
    append(going, [record("frame", state.now, state.it, state.ep, beside=early)])
    append(
        going,
        [record("frame", state.now + 100, state.it + 1, state.ep, beside=late, **one_iteration())],
    )
    store = store_of(going)
    for whole_attempt, mean, longest in (
        (False, 2_000_000, 3_000_000),
        (True, 13_000_000 / 3, 9_000_000),
    ):
        rows = hook_rows(store, ViewChoices(whole_attempt=whole_attempt))
        (row,) = (row for row in rows if row.binding == LOG)
        assert (row.cost.mean, row.cost.longest) == (mean, longest)
        assert row.note == "in background"
    figures = [
        row_figures(store, OrderRow(each), whole_attempt=True) for each in loop_rows(store.plan)
    ]
    assert 13_000_000 / 3 in [each.cost.mean for each in figures], "the same by order"


def test_mean_p95_and_max_of_a_group_are_of_the_calls_of_the_last_minute(going: RunDir) -> None:
    """One hook of the group has been slow an hour ago, with many calls;
    the other has the more calls now.
    """
    grouped(going)
    schedule = binding_of("schedule", "after_train_iter")
    state = store_of(going).state
    now = state.now + 3600
    old = {f"{EMA.id}": [5000, 5000 * 40_000_000, 40_000_000, 40_000_000, [200, 5000]]}
    append(
        going,
        [record("frame", state.now + 1, state.it + 1, state.ep, hooks=old, **one_iteration())],
    )
    new = {f"{EMA.id}": [1, 1_000_000, 1_000_000, 1_000_000, [bin_of(1_000_000), 1]]}
    new[f"{schedule.id}"] = [99, 99 * 2_000_000, 2_000_000, 2_000_000, [bin_of(2_000_000), 99]]
    append(going, [record("frame", now, state.it + 2, state.ep, hooks=new, **one_iteration())])
    rows = hook_rows(store_of(going), ViewChoices(folded_groups={"average"}))
    (row,) = (row for row in rows if row.members)
    assert row.cost.mean == pytest.approx((1_000_000 + 99 * 2_000_000) / 100)
    assert row.cost.longest == 2_000_000
    assert row.cost.p95 is not None and 1_900_000 < row.cost.p95 <= 2_000_000


def test_the_slowest_rank_is_named_where_there_are_several(tmp_path: Path) -> None:
    run = make_ranks(tmp_path / "runs", 2, upto=60)
    state = store_of(run).state
    slow = {f"{CLIP.id}": [100, 10**10, 10**8, 10**8, [100, 100]]}
    append(run, [record("frame", state.now, state.it, state.ep, hooks=slow)], rank=1)
    text = shown(run, "2", size=WIDE)
    assert "slowest" in row_with("ON hook", text)
    assert "r1 " in row_with(" clip ", text)
    assert "r1 " not in row_with(" nan_guard ", text), "both take as long"


def test_times_on_a_device_have_a_column(going: RunDir) -> None:
    state = store_of(going).state
    device = {
        "iters": 10,
        "ns": 10**8,
        "launch_bound": 0,
        "phases": {},
        "hooks": {f"{CLIP.id}": [10, 7_000_000]},
    }
    append(going, [record("frame", state.now, state.it, state.ep, device=device)])
    text = shown(going, "2", size=WIDE)
    assert "device" in row_with("ON hook", text)
    assert "700 µs" in row_with(" clip ", text)


def test_v_switches_the_window_and_says_which(whole: RunDir) -> None:
    assert "last 60 s" in shown(whole, "2")
    assert "whole attempt" in shown(whole, "2", "v")


def test_an_empty_page_says_why(tmp_path: Path) -> None:
    run = make(tmp_path / "runs", upto=1)
    run.plan.unlink()
    for keys in (("2",), ("2", "o")):
        assert "no hooks are known yet" in shown(run, *keys)
    for keys in (("2",), ("2", "o")):
        assert "no hook matches the filter" in shown(
            make(tmp_path / "more" / keys[-1]), *keys, "slash", *"zzz"
        )


# By order


def test_the_page_by_order(whole: RunDir) -> None:
    check_screens("page-hooks-order", whole, "2", "o")


def test_the_rows_by_order_are_all_bindings_and_both_views_have_one_cursor(whole: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        picked = table_of(app).hook_at_cursor
        await press(app, pilot, "o")
        order = order_of(app)
        bound = [row.loop.binding for row in order.shown_rows if row.loop.binding is not None]
        assert bound == list(plan().bindings)
        assert order.hook_at_cursor == picked and order.has_focus
        await press(app, pilot, "down", "down")
        below = order.hook_at_cursor
        assert below is not None and below != picked
        assert below.hook in reason_of(app)
        await press(app, pilot, "o")
        assert table_of(app).hook_at_cursor == below
        await press(app, pilot, "1", "2")
        assert app.choices.binding_id == below.id

    visit(whole, on_page(do, "down"))


def test_rounds_and_points_fold_and_stay_folded(whole: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        order = order_of(app)
        assert order.hook_at_cursor == EMA
        await press(app, pilot, "left")
        row = order.row_at_cursor
        assert row is not None and (row.loop.name, row.num_folded) == ("after_train_iter", 5)
        assert order.hook_at_cursor is None
        await press(app, pilot, "left")
        row = order.row_at_cursor
        assert row is not None and (row.loop.name, row.num_folded) == ("iteration", 7)
        count = len(order.shown_rows)
        await press(app, pilot, "o", "o")
        assert len(order_of(app).shown_rows) == count, "what is folded stays folded"
        row = order.row_at_cursor
        assert row is not None and row.loop.name == "iteration"
        await press(app, pilot, "right")
        assert len(order.shown_rows) > count
        await press(app, pilot, "f")
        assert len(order.shown_rows) == count
        await press(app, pilot, "enter")
        assert len(order.shown_rows) > count, "enter unfolds, too"

    visit(whole, on_page(do, "o"))


def test_empty_points_are_hidden_until_they_are_asked_for(whole: RunDir) -> None:
    assert "before_test" not in shown(whole, "2", "o", size=(80, 90))
    text = shown(whole, "2", "o", "H", size=(80, 90))
    assert "before_test" in text


def test_hooks_have_no_rows_at_points_to_which_the_run_does_not_come(tmp_path: Path) -> None:
    """The run trains without a validation and a test;
    an own point behind one of the validation is none of the run.
    """
    own = Point("after_scores", 3, ("run",), "firing", "scores are there", "own", "after_val_epoch")
    bindings = list(plan().bindings)
    for point in ("after_scores", "before_test", "after_load_checkpoint", "on_exception"):
        bindings.append(replace(bindings[0], hook="visual", point=point, id=len(bindings)))
    run = make(tmp_path / "runs", upto=2)
    use_plan(run, replace(plan(), bindings=tuple(bindings), own=(own,)))
    records = [json.loads(line) for line in run.events.read_text("utf-8").splitlines()]
    del records[0]["data"]["val"]
    run.events.write_text("".join(f"{json.dumps(each)}\n" for each in records), "utf-8")
    store = store_of(run)
    val_points = {binding.point for binding in bindings if "_val" in binding.point}
    hidden = {*val_points, "after_scores", "before_test", "after_load_checkpoint"}
    with_row = {row.binding.point for row in hook_rows(store, ViewChoices())}
    assert with_row == {binding.point for binding in bindings} - hidden
    everything = hook_rows(store, ViewChoices(empty_points=True))
    assert len(everything) == len(bindings)

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        order = order_of(app)
        names = {each.loop.name for each in order.shown_rows}
        assert names & hidden == set()
        assert "validation" not in names and "iteration" in names
        count = len([each for each in order.shown_rows if each.loop.binding is not None])
        assert f"{count} rows" in screen_text(app)
        await press(app, pilot, "H")
        assert hidden <= {each.loop.name for each in order.shown_rows}

    visit(run, on_page(do, "o"))


def test_a_hook_that_was_called_has_its_row_whatever_the_record_says(whole: RunDir) -> None:
    store = store_of(whole)
    assert find_unreached_bindings(store.state, store.plan) == frozenset()
    del store.state.run["data"]["val"]
    assert find_unreached_bindings(store.state, store.plan) == frozenset(), "each was called"


def test_a_click_selects_a_row_of_the_loop_and_a_second_one_opens_it(whole: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        order = order_of(app)
        place = next(at for at, row in enumerate(order.shown_rows) if row.loop.binding == CLIP)
        await pilot.click(HookOrderView, offset=(20, place + 1))
        await settle(app, pilot)
        assert order.hook_at_cursor == CLIP and app.choices.binding_id == CLIP.id
        await pilot.click(HookOrderView, offset=(20, place + 1))
        await settle(app, pilot)
        assert isinstance(app.screen, HookDetailsScreen)

    visit(whole, on_page(do, "o", "home"))


@pytest.mark.parametrize("size", [LOW, NORMAL])
def test_the_cursor_is_always_on_a_row_that_is_seen(whole: RunDir, size: Size) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        for keys in (["end"], ["home"], ["pagedown"], ["pageup"], ["down"] * 12):
            await press(app, pilot, *keys)
            row = order_of(app).row_at_cursor
            assert row is not None
            assert "▸" in screen_text(app)

    visit(whole, on_page(do, "o"), size=size)


def test_the_mark_is_in_the_round_at_hand_or_at_the_hook_that_hangs(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        store = app.store
        rows = order_of(app).shown_rows

        def place() -> str:
            at = row_of_run(store, rows)
            assert at is not None
            return (
                rows[at].loop.name if rows[at].loop.binding is None else rows[at].loop.binding.hook
            )

        assert place() == "validation"
        assert "validation 14 of 20" in screen_text(app)
        state = store.state
        append(going, [record("frame", state.now, 590, 6)])
        store.poll()
        assert place() == "iteration"
        store.process = replace(store.process, inside={0: (EMA.id, 0.1)})
        assert place() == "iteration", "the mark does not jump about"
        store.process = replace(store.process, inside={0: (EMA.id, 40.0)})
        assert place() == "ema"

    visit(going, on_page(do, "o"))


def test_a_run_that_has_ended_is_nowhere_and_phases_have_their_times(whole: RunDir) -> None:
    text = shown(whole, "2", "o")
    body = text[text.index("the loop") :]
    assert "●" not in body
    assert "13.1 ms" in row_with("▓ backward", body)


# The hook at the cursor


def test_the_culprit_of_a_failed_run_is_at_the_cursor_until_the_user_moves_it(
    going: RunDir,
) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert table_of(app).hook_at_cursor == EMA, "the costliest"
        append(going, [record("error", BEGAN, 588, 6, hook="early_stop", point="after_val")])
        app.store.poll()
        await settle(app, pilot)
        hook = table_of(app).hook_at_cursor
        assert hook is not None and hook.hook == "early_stop"
        assert "✗ failed at iteration 588" in reason_of(app)
        await press(app, pilot, "home")
        moved = table_of(app).hook_at_cursor
        await press(app, pilot, "o")
        assert order_of(app).hook_at_cursor == moved

    visit(going, on_page(do))


@pytest.mark.parametrize("view", [(), ("o",)])
def test_ctrl_o_switches_the_hook_at_the_cursor_and_shows_it_at_once(
    going: RunDir, view: tuple[str, ...]
) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "ctrl+o")
        assert "off requested" in screen_text(app)
        assert [request.args for request in app.store.state.pending] == [["ema"]]

    visit(going, on_page(do, *view), size=WIDE)


def grouped(run: RunDir) -> RunDir:
    """Return the run with a group of two hooks that stand one behind the other,
    and a third elsewhere.
    """
    group = PlannedGroup(
        "average", ("ema", "schedule", "clip"), ("clip", "ema", "schedule"), "cifar.toml:70"
    )
    return use_plan(run, replace(plan(), groups=(group,)))


def hooks_shown(app: MonitorApp) -> list[str]:
    """Return the hooks, and the folded groups, that have a row in the view that is shown."""
    if not app.choices.by_order:
        return [row.binding.hook for row in table_of(app).shown_rows]
    return [
        each.loop.binding.hook for each in order_of(app).shown_rows if each.loop.binding is not None
    ]


def test_a_folded_group_costs_what_its_hooks_cost_together(going: RunDir) -> None:
    store = store_of(grouped(going))
    single = {row.binding.id: row.cost for row in hook_rows(store, ViewChoices())}
    choices = ViewChoices(folded_groups={"average"})
    (row,) = (row for row in hook_rows(store, choices) if row.members)
    first, second = (single[member.id] for member in row.members)
    assert [member.hook for member in row.members] == ["ema", "schedule"]
    assert row.cost.count == first.count + second.count
    assert row.cost.spent == pytest.approx(first.spent + second.spent)
    assert row.cost.share == pytest.approx(first.share + second.share)
    assert row.cost.mean == pytest.approx(
        (first.mean * first.count + second.mean * second.count) / row.cost.count
    )


@pytest.mark.parametrize("view", [(), ("o",)])
def test_f_folds_the_group_of_the_hook_at_the_cursor_and_unfolds_it(
    going: RunDir, view: tuple[str, ...]
) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "f")
        assert "group:average" in screen_text(app)
        assert "group:average" in hooks_shown(app)
        assert "schedule" not in hooks_shown(app)
        assert app.choices.folded_groups == {"average"}
        assert app.page is not None and app.page.hook_at_cursor is None, (
            "no key acts on one of several hooks"
        )
        await press(app, pilot, "f")
        assert app.choices.folded_groups == set()
        assert "schedule" in hooks_shown(app)

    visit(grouped(going), on_page(do, *view), size=WIDE)


@pytest.mark.parametrize("page", ["1", "2"])
@pytest.mark.parametrize("view", [(), ("o",)])
def test_the_cursor_stays_at_a_folded_group(
    going: RunDir, page: str, view: tuple[str, ...]
) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "f", "down")
        assert isinstance(app.page, HookPage)
        assert app.page.hook_at_cursor is not None, "a hook is chosen"
        await press(app, pilot, "up")
        assert app.page.hook_at_cursor is None
        assert app.page.hook_view.group_at_cursor == "average"
        await settle(app, pilot)
        assert app.page.hook_view.group_at_cursor == "average", "nothing moves the cursor"
        assert "group:average" in app.page.text_of_row()
        await press(app, pilot, "f")
        assert app.choices.folded_groups == set()

    async def go(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, page, *view)
        await do(app, pilot)

    visit(grouped(going), go, size=WIDE)


def test_a_filter_knows_groups(going: RunDir) -> None:
    store = store_of(grouped(going))
    rows = filter_rows(hook_rows(store, ViewChoices()), store.plan, "group:average")
    assert {row.binding.hook for row in rows} == {"ema", "schedule", "clip"}


def test_a_filter_moves_no_heading(going: RunDir) -> None:
    def heading(*keys: str) -> str:
        (line,) = (
            line
            for line in shown(going, "2", *keys).splitlines()
            if "when" in line and "share" in line
        )
        return line

    assert heading("slash", *"clip") == heading()


@pytest.mark.parametrize("view", [(), ("o",)])
def test_a_hook_that_the_filter_hides_is_not_acted_on(going: RunDir, view: tuple[str, ...]) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "slash", *"clip", "enter")
        await press(app, pilot, "ctrl+o")
        assert [request.args for request in app.store.state.pending] == [["clip"]], "ema is hidden"
        await press(app, pilot, "enter")
        assert "clip @ after_backward" in screen_text(app)
        await press(app, pilot, "escape", "escape")
        assert "nan_guard" in screen_text(app), "esc clears the filter first"
        assert isinstance(app.screen, HooksScreen)

    visit(going, on_page(do, *view))


def test_no_hook_is_switched_off_where_none_is_at_the_cursor(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "left", "ctrl+o")
        assert not app.store.state.pending, "the cursor is at a point that is folded"
        await press(app, pilot, "5", "ctrl+o")
        assert not app.store.state.pending, "no hook is on this page"

    visit(going, on_page(do, "o"))


def test_a_filter_is_words_or_globs(whole: RunDir) -> None:
    store = store_of(whole)
    choices = ViewChoices()

    def hooks(text: str) -> set[str]:
        return {
            row.binding.hook for row in filter_rows(hook_rows(store, choices), store.plan, text)
        }

    assert hooks("EMA") == {"ema"}
    assert hooks("after_val e*") == {"ema", "early_stop"}
    assert hooks("visual.py") == {"visual"}
    assert hooks("zzz") == set()


def test_the_reasons_are_edges_with_their_places_data_flow_and_phases() -> None:
    point = "after_train_iter"
    ids = {binding.hook: binding.id for binding in plan().at(point)}
    bindings = [
        replace(each, writes=("lr",)) if each.id == ids["schedule"] else each
        for each in plan().bindings
    ]
    bindings = [
        replace(b, reads=("lr",), phase="last") if b.id == ids["log"] else b for b in bindings
    ]
    flow = Edge(point, "schedule", "log", "flow", "", ("lr",), ids["schedule"], ids["log"])
    gave = Edge(point, "log", "schedule", "flow", "", ("outputs",), ids["log"], ids["schedule"])
    changed = replace(
        plan(),
        bindings=tuple(bindings),
        edges=(*plan().edges, flow),
        dropped_edges=(DroppedEdge(gave, "contradicted", (flow,)),),
    )
    log = changed.bindings[ids["log"]]
    facts = [(fact.name, fact.text) for fact in list_reason_facts(changed, log)]
    expected = [
        ("after", "ema   cifar.toml:52"),
        ("after", "schedule   writes lr"),
        ("before", "nothing here waits for it"),
        ("reads", "lr   written by schedule"),
        ("phase", "last   an edge moves it from late"),
        ("called", "every 10"),
        ("no edge", "log → schedule   writes outputs, dropped: a stated order contradicts it"),
    ]
    assert [fact for fact in expected if fact not in facts] == []
    assert "after schedule, timer" not in describe_reason(changed, log)
    early_stop = binding_of("early_stop", "after_val")
    assert ("after", "ema   of an earlier phase") in [
        (f.name, f.text) for f in list_reason_facts(plan(), early_stop)
    ]
    assert "first here" in describe_reason(plan(), CLIP)


@pytest.mark.parametrize(
    ("wrote", "last"),
    [
        (("after_val_epoch", "metrics.ood/accuracy"), "accuracy @ after_val_epoch"),
        (("after_test", "metrics"), ""),
    ],
)
def test_a_slot_is_written_by_who_is_called_before_in_the_loop(
    wrote: tuple[str, str], last: str
) -> None:
    ids = {(binding.point, binding.hook): binding.id for binding in plan().bindings}
    ids["after_test", "accuracy"] = ids["after_val", "early_stop"]  # the last one
    writer = ids[wrote[0], "accuracy"]
    bindings = [
        replace(each, reads=("metrics",)) if each.id == LOG.id else each for each in plan().bindings
    ]
    bindings[writer] = replace(
        bindings[writer], hook="accuracy", point=wrote[0], writes=(wrote[1],)
    )
    changed = replace(plan(), bindings=tuple(bindings))
    reads = [
        fact.text for fact in list_reason_facts(changed, bindings[LOG.id]) if fact.name == "reads"
    ]
    assert reads == [f"metrics   written by {last}" if last else "metrics"]


def test_the_hook_in_full_has_its_traceback_and_goes_to_the_next(whole: RunDir) -> None:
    check_screens("page-hook", whole, "2", "slash", *"clip", "enter", "enter")

    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "slash", *"visual", "enter", "enter")
        assert "self.canvas.write(image)" in screen_text(app)
        assert "▸" in screen_text(app), "the frame to look at first"
        before = app.choices.binding_id
        assert before is not None
        await press(app, pilot, "right_square_bracket")
        assert app.choices.binding_id == before + 1
        await press(app, pilot, "left_square_bracket", "left_square_bracket")
        assert app.choices.binding_id == before - 1
        await press(app, pilot, "escape")
        assert isinstance(app.screen, HooksScreen)

    visit(whole, on_page(do))


def test_y_copies_the_row_at_the_cursor(whole: RunDir) -> None:
    for keys in ((), ("o",)):

        async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
            copied: list[str] = []
            app.copy = copied.append  # type: ignore[method-assign]
            await press(app, pilot, "y")
            (text,) = copied
            assert "ema" in text and "668 µs" in text and "\n" not in text

        visit(whole, on_page(do, *keys))


@pytest.mark.parametrize("size", [(20, 6), (33, 12), (250, 70)])
def test_no_terminal_is_too_small_and_none_too_large(going: RunDir, size: Size) -> None:
    for keys in (("2",), ("2", "o", "H"), ("2", "enter")):
        assert shown(going, *keys, size=size)


def test_cells_are_updated_where_rows_and_columns_stay(going: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        table = table_of(app)
        keys_before = [*table.rows]
        place = next(at for at, row in enumerate(table.shown_rows) if row.binding == LOG)
        column = next(
            at for at, each in enumerate(table.ordered_columns) if each.key.value == "calls"
        )
        calls = table.get_cell_at(Coordinate(place, column)).plain
        state = app.store.state
        more = {f"{LOG.id}": [10, 10 * 180_000, 180_000, 180_000, [90, 10]]}
        append(going, [record("frame", state.now, state.it + 1, state.ep, hooks=more)])
        app.store.poll()
        await settle(app, pilot)
        assert [*table.rows] == keys_before and all(
            a is b for a, b in zip(table.rows, keys_before, strict=True)
        )
        assert table.get_cell_at(Coordinate(place, column)).plain.strip() == f"{int(calls) + 10}"

    visit(going, on_page(do))


def test_another_theme_has_other_inks(whole: RunDir) -> None:
    async def do(app: MonitorApp, pilot: Pilot[Any]) -> None:
        cell = table_of(app).get_cell_at(Coordinate(0, 1)).spans[0].style
        await press(app, pilot, "T")
        other = table_of(app).get_cell_at(Coordinate(0, 1)).spans[0].style
        await press(app, pilot, "T", "T")
        assert cell != other
        assert table_of(app).get_cell_at(Coordinate(0, 1)).spans[0].style == cell

    visit(whole, on_page(do))


@pytest.mark.parametrize("keys", [("2",), ("2", "o"), ("2", "enter")])
def test_no_color_has_signs_in_the_place_of_colours(
    whole: RunDir, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "ema" in shown(whole, *keys)


def test_what_the_run_does_not_come_to_is_found_once_a_look(
    whole: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(whole)
    looks = []

    def count_looks(*given: object) -> frozenset[int]:
        looks.append(given)
        return frozenset()

    monkeypatch.setattr(run_store, "find_unreached_bindings", count_looks)
    store.refresh()
    assert store.unreached == store.unreached == frozenset()
    assert len(looks) == 1
    store.refresh()
    assert store.unreached == frozenset()
    assert len(looks) == 2


def test_the_mean_is_of_the_same_calls_as_p95_without_the_checks_of_a_trigger(
    new_run: NewRun,
) -> None:
    run = new_run()
    plan = read_recorded_plan(run)
    clip = next(binding for binding in plan.bindings if binding.hook == "clip")
    figures = [10, 15_000, 1_000, 1_000, [bin_of(1_000), 10]]
    frame = record(
        "frame",
        iters=[10, 150_000, 0, 0, [0]],
        hooks={str(clip.id): figures},
        checks={str(clip.id): 5_000},
    )
    append(run, [record("run"), frame])
    store = store_of(run)
    cost = compute_binding_cost(store.state, plan, store.pace, clip, whole_attempt=True)
    assert (cost.count, cost.mean, cost.longest) == (10, 1_000, 1_000)
    assert cost.p95 is not None
    assert bin_of(round(cost.p95)) == bin_of(1_000)
    assert (cost.spent, cost.share) == (15_000, 0.1)
