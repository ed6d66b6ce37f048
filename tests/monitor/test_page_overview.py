"""The first page at every size: is the training fine, what do the hooks cost, why did it fail?"""

import asyncio
import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Static

from hookflow.events.now import NO_BINDING
from hookflow.events.rundir import RunDir
from hookflow.monitor import health
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.health import Health
from hookflow.monitor.process_watch import ProcessView
from hookflow.monitor.screens.hooks import HooksScreen
from hookflow.monitor.screens.overview import OverviewScreen
from hookflow.monitor.style import count_cells
from hookflow.monitor.widgets.hook_order import HookOrderView
from hookflow.monitor.widgets.hook_table import HookTable
from hookflow.monitor.widgets.rank_table import RankTable
from hookflow.monitor.widgets.run_header import HeaderItem, RunHeader, fit_items
from hookflow.monitor.widgets.stack_view import frame_text
from hookflow.monitor.widgets.traceback_view import (
    TracebackView,
    fit_marked_lines,
    without_heading,
)
from hookflow.user_code import HOOKFLOW_FOLDER
from tests.monitor.conftest import read
from tests.monitor.fake_run import append, make, make_ranks, record
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

TRACEBACK = """Traceback (most recent call last):
  File "/env/lib/site-packages/hookflow/runner/loop.py", line 210, in train
    self.dispatch(point)
  File "/home/me/visual.py", line 31, in after_val_epoch
    self.canvas.write(image)
OSError: no space left
"""


@pytest.fixture
def failed(tmp_path: Path) -> RunDir:
    """A run that a hook has ended."""
    run = make(tmp_path / "failed", upto=80)
    where = {
        "hook": "visual",
        "point": "after_val_epoch",
        "type": "OSError",
        "text": "no space left",
    }
    error = record("error", it=500, ep=5, traceback=TRACEBACK, at="/home/me/visual.py:31", **where)
    append(run, [error], [record("end", it=500, ep=5, status="failed", exit=1, reason="OSError")])
    return run


@pytest.mark.parametrize("size", [LOW, NORMAL, WIDE])
def test_the_header_says_whether_the_training_is_fine(going: RunDir, size: Size) -> None:
    text = shown(going, size=size)
    for words in ("RUNNING", "loss 0.", "▼", "accuracy 0.", "ETA", "SYNTHETIC", " it"):
        assert words in text, words
    best = {LOW: "★0.9078", NORMAL: "best 0.9078", WIDE: "(best 0.9078 @490)"}
    assert best[size] in text
    assert ("2 warnings" if size == WIDE else "▲2") in text
    assert ("1 error" if size == WIDE else "✗1") in text
    assert "7 Runs" in text
    if size == LOW:
        assert re.search(r"ETA [^…]+ SYNTHETIC", text), "the time left is whole"


def test_a_finished_run_needs_no_time_left(whole: RunDir) -> None:
    text = shown(whole, size=NORMAL)
    assert "FINISHED" in text
    assert "ETA" not in text


@pytest.mark.parametrize("size", [LOW, NORMAL, WIDE])
def test_a_failed_run_shows_the_culprits_frame_and_its_hook(failed: RunDir, size: Size) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await settle(app, pilot)
        assert isinstance(app.page, OverviewScreen)
        binding = app.page.hook_at_cursor
        assert binding is not None
        assert binding.hook == "visual"
        table = app.page.query_one(HookTable)
        first = table.scroll_offset.y
        assert first <= table.cursor_row < first + table.size.height - table.header_height, (
            "the cursor is in sight"
        )

    visit(failed, look, size=size)
    text = shown(failed, size=size)
    assert "▸   self.canvas.write(image)" in text
    assert "/env/lib" not in text


NOTES = """raised by the hook "visual" at after_val_epoch
a word of the user's own
iteration 500, epoch 5
"""


@pytest.mark.parametrize("size", [LOW, NORMAL, WIDE])
def test_the_error_that_ended_the_run_is_said_once(tmp_path: Path, size: Size) -> None:
    run = make(tmp_path / "failed", upto=80)
    where = {
        "hook": "visual",
        "point": "after_val_epoch",
        "type": "OSError",
        "text": "no space left",
    }
    error = record(
        "error", it=500, ep=5, traceback=TRACEBACK + NOTES, at="/home/me/visual.py:31", **where
    )
    append(run, [error], [record("end", it=500, ep=5, status="failed", exit=1, reason="OSError")])

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "H", "H")  # without the log, which has it, too
        lines = screen_text(app).splitlines()
        assert sum("no space left" in line for line in lines) == 1
        assert sum("after_val_epoch, iteration 500" in line for line in lines) == 1
        assert "iteration 500, epoch 5" not in screen_text(app)
        await press(app, pilot, "5")
        assert "failed" in screen_text(app), "the other pages have it in the header"

    visit(run, look, size=size)
    assert without_heading(error).endswith("self.canvas.write(image)\na word of the user's own")


def test_an_error_with_another_text_keeps_its_traceback() -> None:
    error = record("error", type="Bad", text="worse", traceback="Traceback\nme.errors.Bad: worse\n")
    assert without_heading(error) == "Traceback", "Python names the module of a class"
    error["text"] = "shortened …"
    assert without_heading(error) == "Traceback\nme.errors.Bad: worse"


def test_frames_of_the_users_own_files_have_a_sign_in_a_stack() -> None:
    own = frame_text("wait (/home/me/my_hooks.py:19)").plain
    package = frame_text("call (/env/lib/python3.11/site-packages/torch/nn/module.py:7)").plain
    ours = frame_text(f"train ({HOOKFLOW_FOLDER}/runner/loop/loop.py:252)").plain
    assert own == "▸ wait (/home/me/my_hooks.py:19)"
    assert package == "  call (…/torch/nn/module.py:7)"
    assert ours == "  train (…/hookflow/runner/loop/loop.py:252)"
    assert frame_text("its stack is not known").plain == "  its stack is not known"


def test_the_cursor_is_at_the_hook_in_which_a_run_hangs(going: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        log = next(binding for binding in app.store.plan.bindings if binding.hook == "log")
        app.store.health = Health("stalled")
        app.store.process = replace(app.store.process, inside={0: (log.id, 40.0)})
        assert app.find_picked_binding() == log
        app.choices.binding_id = 0
        assert app.find_picked_binding() == app.store.plan.bindings[0], (
            "the user has chosen another one"
        )

    visit(going, look)


def test_the_header_says_since_when_the_loss_is_not_finite(going: RunDir) -> None:
    state = read(going).state
    values = [{"loss": "nan"}, {"loss": 0.3}, {"loss": "nan"}, {"loss": "nan"}]
    for step, logged in enumerate(values, start=1):
        append(going, [record("scalars", state.now, state.it + 10 * step, state.ep, v=logged)])
    assert f"▲ loss NaN since it {state.it + 30} " in shown(going, size=WIDE)
    assert "▲ loss NaN " in shown(going, size=LOW)


def test_parts_of_the_header_have_room_or_are_left_out() -> None:
    items = [HeaderItem(weight, ("x" * (3 + weight), "")) for weight in range(6)]
    for width in range(9, 60):
        parts = fit_items(items, width)
        assert count_cells(*parts) < width, (
            "no ellipsis, and a blank before what stands at the right"
        )
        left_out = [item.weight for item in items if item.part not in parts]
        assert left_out == [*range(len(left_out))], "those of least weight"
    assert count_cells(*fit_items(items, 44)) == 43, "all of them"


@pytest.mark.parametrize("width", [80, 48, 46, 30, 20])
def test_marks_stand_below_what_they_mark(width: int) -> None:
    source = "    total = first.sum() + (first @ second).sum()"
    marks = "                           ~~~~~~^~~~~~~~"
    traceback = f'  File "a.py", line 3, in f\n{source}\n{marks}\nOSError: no'
    place, shown_source, shown_marks, error = fit_marked_lines(traceback, width).splitlines()
    begin, end = shown_marks.index("~"), len(shown_marks)
    assert shown_source[begin:end] == "first @ second"
    assert len(shown_source) <= width
    assert (shown_source == source) == (len(source) <= width)
    assert (place, error) == ('  File "a.py", line 3, in f', "OSError: no")


MISTAKE = """cifar.toml:13:1: this makes a Paced, which is not sharded across 2 ranks
    13 | use = "./parts.py:Paced"
       | ^^^
    let it take rank and world and give its rank's share"""


@pytest.mark.parametrize("size", [LOW, NORMAL, WIDE])
def test_a_refused_run_shows_the_whole_mistake(tmp_path: Path, size: Size) -> None:
    run = make(tmp_path / "refused", upto=0)
    append(run, [record("end", it=0, ep=0, status="failed", exit=2, reason=MISTAKE)])

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        view = app.screen.query_one(TracebackView)
        heading, *rest = MISTAKE.splitlines()
        assert str(view.query_one("#raised", Static).visual) == f"✗ {heading}"
        assert str(view.query_one("#frames-before", Static).visual).splitlines() == rest
        assert view.query_one(VerticalScroll).size.height > 0
        assert "no metric has been logged yet" not in screen_text(app)

    visit(run, look, size=size)


@pytest.mark.parametrize("size", [LOW, NORMAL, WIDE])
def test_the_header_of_a_refused_run_says_once_that_it_was_refused(
    tmp_path: Path, size: Size
) -> None:
    run = make(tmp_path / "refused", upto=0)
    append(run, [record("end", it=0, ep=0, status="failed", exit=2, reason=MISTAKE)])

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        rows = screen_text(app).splitlines()
        assert "REFUSED" in rows[0]
        assert rows[1].split()[:2] == ["refused", "after"]

    visit(run, look, size=size)


WAITING_STACK = (
    "poll (python3.11/multiprocessing/connection.py:257)",
    "__next__ (torch/utils/data/dataloader.py:733)",
    "epoch (hookflow/runner/data/loader.py:156)",
    "iterate (hookflow/runner/iteration/iteration.py:93)",
)


@pytest.mark.parametrize("size", [LOW, NORMAL, WIDE])
@pytest.mark.parametrize("keys", [(), ("w",)], ids=["overview", "stacks"])
def test_what_a_stalled_run_waits_for_is_said_once(
    going: RunDir, monkeypatch: pytest.MonkeyPatch, size: Size, keys: tuple[str, ...]
) -> None:
    monkeypatch.setattr(health, "_compute_patience", lambda state, life: -math.inf)
    monkeypatch.setattr(MonitorApp, "_read_sensors_if_due", lambda app: None)
    monkeypatch.setattr(MonitorApp, "read_stacks", lambda app: None)

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        app.store.process = ProcessView(
            "alive", inside={0: (NO_BINDING, 40.0)}, stacks={0: WAITING_STACK}
        )
        await press(app, pilot, *keys)
        assert app.store.health.condition == "stalled"
        text = screen_text(app)
        assert "STALLED" in text
        assert "__next__" in text
        assert text.count("no progress for") == 1
        assert text.count("waiting for data") == 1
        assert "not inside a hook" not in text
        assert "no training iteration yet" not in text
        await press(app, pilot, "3")
        assert "waiting for data" in screen_text(app), "the other pages have it in the header"

    visit(going, look, size=size)


def test_several_ranks_have_rows_and_the_one_that_holds_up_the_others_is_named(
    tmp_path: Path,
) -> None:
    run = make_ranks(tmp_path / "runs", 2, upto=60, late={1: 0.2})
    assert "2 ranks: ▲ rank 1 keeps the others waiting" in shown(run, size=NORMAL)
    text = shown(run)
    assert "2 ranks: ▲ rank 1 keeps the others waiting" in text
    assert "excl. waits" in text


def test_one_rank_has_no_row(whole: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert app.page is not None
        assert not app.page.query_one("#ranks-box").display
        assert not app.page.query_one(RankTable).is_on_screen

    visit(whole, look)


def test_a_run_without_a_record_says_that_it_starts(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "cifar" / "20260921-141320-a3f9")
    run.path.mkdir(parents=True)
    run.sign(id=run.id, name="cifar", created=time.time())
    run.sign_process()
    text = shown(run)
    assert "importing torch" in text
    assert "no metric has been logged yet" in text
    assert "no hooks are known yet" in text


def test_the_help_begins_with_the_keys_of_the_page(whole: RunDir) -> None:
    lines = shown(whole, "question_mark", size=NORMAL).splitlines()
    page = next(
        number for number, line in enumerate(lines) if "keys of this page: overview" in line
    )
    assert page < len(lines) / 2
    assert any("the hooks by cost, or by order" in line for line in lines[page:])


def test_escape_clears_the_filter_and_then_leaves(whole: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "2", "slash", "e", "m", "a", "enter")
        assert app.page is not None
        assert app.page.filter_text == "ema"
        await press(app, pilot, "escape")
        assert app.page.page_name == "hooks"
        assert app.page.filter_text == ""
        await press(app, pilot, "escape")
        assert app.page.page_name == "overview"

    visit(whole, look)


@pytest.mark.parametrize("keys", [("2", "end"), ("2", "o", "end")])
def test_the_cursor_stays_in_sight_in_a_smaller_terminal(
    whole: RunDir, keys: tuple[str, ...]
) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, *keys)
        await pilot.resize_terminal(*LOW)
        await settle(app, pilot)
        assert isinstance(app.page, HooksScreen)
        assert app.page.hook_at_cursor is not None
        view = app.page.hook_view
        at = view.cursor if isinstance(view, HookOrderView) else view.cursor_row
        first = view.scroll_offset.y
        assert first <= at < first + view.size.height - 1, "below the heading, above the end"

    visit(whole, look)


def test_the_page(whole: RunDir) -> None:
    check_screens("page-overview", whole)


def test_a_page_that_loses_its_widgets_shows_nothing_more(
    going: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the app ends each widget goes in a task of its own,
    and the app may still come to look at the run.
    """
    looked = []

    async def look_meanwhile(header: RunHeader) -> None:
        page = header.screen
        assert isinstance(page, OverviewScreen)
        while page.query("#first-curve"):
            await asyncio.sleep(0)
        page.update_run(now=True)
        looked.append(page)

    monkeypatch.setattr(RunHeader, "on_unmount", look_meanwhile, raising=False)

    async def leave(app: MonitorApp, pilot: Pilot[Any]) -> None:
        assert app.page is not None

    visit(going, leave)
    assert looked


DIAGNOSIS = [
    "the loss is NaN in iteration 28 (epoch 3, batch 6).",
    "Parameters that are not finite: conv1.weight, norm1.bias, ….",
    "First module with an output that is not finite: conv1 (Conv2d).",
    "To avoid it: lower the learning rate.",
]


@pytest.mark.parametrize("size", [LOW, NORMAL, WIDE])
def test_what_is_found_of_a_loss_that_is_nan_has_a_line_each_and_is_scrolled(
    tmp_path: Path, size: Size
) -> None:
    run = make(tmp_path / "nan", upto=80)
    text = " ".join(DIAGNOSIS)
    told = {
        "type": "NonFiniteLossError",
        "text": text,
        "traceback": f"NonFiniteLossError: {text}",
        "at": "",
    }
    error = record("error", it=28, ep=3, hook="", point="", **told)
    append(
        run,
        [error],
        [record("end", it=500, ep=5, status="failed", exit=1, reason="NonFiniteLossError")],
    )

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        view = app.screen.query_one(TracebackView)
        raised = str(view.query_one("#raised", Static).visual)
        assert raised.splitlines() == [f"✗ NonFiniteLossError: {DIAGNOSIS[0]}"]
        assert str(view.query_one("#frames-before", Static).visual).splitlines() == DIAGNOSIS[1:]
        scroll = view.query_one(VerticalScroll)
        assert scroll.scroll_offset.y == 0
        assert scroll.size.height > 0, "what does not fit can be scrolled to"

    visit(run, look, size=size)
