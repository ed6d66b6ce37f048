"""The pages of the runs of a folder and of those beside one another: golden screens, their keys, other runs opened."""

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hookflow.cli.control import _living_runs
from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.compare import Side
from hookflow.monitor.health import Health
from hookflow.monitor.index import Index
from hookflow.monitor.keys import press
from hookflow.monitor.panels.runs import ORDERS, listing
from hookflow.monitor.terminal import Outcome
from hookflow.monitor.view import Notice, RunsChoices, Scene, View
from tests.cli.conftest import invoke
from tests.golden_files import check_golden
from tests.limits import LIMIT
from tests.monitor.conftest import At
from tests.monitor.fake_run import BEGAN, Training, append, end, make_several
from tests.monitor.test_keys import write
from tests.monitor.test_screens import draw_at_any_size, drawn

SIZES = ((120, 40), (80, 24), (60, 15), (200, 60))


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunDir]:
    """Runs of a folder: one that finished, one that a hook ended, one that was killed, one that failed."""
    monkeypatch.chdir(tmp_path)
    runs = make_several(Path("runs"), 4)
    for number, run in enumerate(runs[1::2]):
        lines = run.events.read_text().splitlines(keepends=True)
        run.events.write_text("".join(lines[: 150 + 60 * number]))
    append(runs[1], [end(t=BEGAN + 3700, it=300, ep=3, reason="accuracy has not improved on 0.9102 for 2 validations")])
    append(runs[3], [end(t=BEGAN + 10900, it=400, ep=4, status="failed", exit=1, reason="ValueError: too bad")])
    runs[0].notes.write_text(json.dumps({"tags": ["base"], "note": "before the new schedule"}))
    first, second, *_ = runs
    (first.path / "environment.json").write_text('{"git": {"commit": "aaaa", "dirty": ["a.py"]}, "cpus": 2}')
    (second.path / "environment.json").write_text('{"git": {"commit": "bbbb", "dirty": []}, "cpus": 2}')
    return runs


@pytest.fixture
def shown(scene: At, several: list[RunDir]) -> Scene:
    """The page of the runs, opened from the dashboard of the oldest."""
    rows = Index(Path("runs")).refresh()
    view = View(page="runs", runs=RunsChoices(at=rows[1].path))
    at = replace(scene(), rows=rows, view=view, health=Health("finished"), clock=BEGAN + 86400)
    at.path = several[0].path.relative_to(Path.cwd())
    return at


def beside(shown: Scene, runs: Sequence[RunDir]) -> Scene:
    sides = [Side(run) for run in runs]
    for side in sides:
        side.live.read_all()
    return replace(shown, compared=sides, view=View(page="compare"))


def ids(scene: Scene) -> list[str]:
    return [row.id[-4:] for row in listing(scene).rows]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_pages_of_the_runs_and_of_a_pair(shown: Scene, width: int, height: int, several: list[RunDir]) -> None:
    shown.view.runs.picked = [shown.rows[3].path, shown.rows[1].path]
    check_golden(f"monitor/runs-{width}x{height}.txt", drawn(shown, width, height))
    at = beside(shown, several[:2])
    check_golden(f"monitor/compare-{width}x{height}.txt", drawn(at, width, height))
    assert press("g", at) == ""
    check_golden(f"monitor/compare-graph-{width}x{height}.txt", drawn(at, width, height))
    press("down", at), press("g", at)
    assert at.view.page == "compare" and not at.view.scroll


@pytest.mark.parametrize("count", range(4))
def test_they_are_drawn_at_any_size_and_of_any_number(shown: Scene, several: list[RunDir], count: int) -> None:
    shown.view.runs.picked = [row.path for row in shown.rows[:count]]
    for each in (shown, beside(shown, several[:count]), *[replace(shown, rows=[])] * (not count)):
        draw_at_any_size(each)


def test_keys_move_pick_and_sort(shown: Scene) -> None:
    assert press("end", shown) == press("space", shown) == press("up", shown) == press("space", shown) == ""
    assert shown.view.runs.picked == [shown.rows[3].path, shown.rows[2].path]
    assert shown.view.runs.at == shown.rows[3].path, "the cursor goes on, and stays at the end"
    press("space", shown)
    assert shown.view.runs.picked == [shown.rows[2].path], "it is put back"
    press("home", shown)
    assert press("enter", shown) == "open"
    assert shown.view.runs.at == shown.rows[0].path
    seen = []
    for _ in ORDERS:
        seen.append(ids(shown))
        press("o", shown)
    assert seen[0] == ids(shown) == ["0003", "0002", "0001", "0000"]
    assert seen[1][0] == "0000", "the best value first"
    assert seen[2] == ["0003", "0001", "0000", "0002"], "by status"
    press("O", shown)
    assert ids(shown) == seen[-1]


def test_rows_that_take_the_place_of_others_in_memory_are_listed(shown: Scene) -> None:
    """The identity of a list is that of another one once it is gone: a cache by it may show runs that are no more."""
    every = [*shown.rows]
    shown.rows = every[:1]
    assert ids(shown) == [every[0].id[-4:]]
    for _ in range(100):  # one of these has the place of the one before
        shown.rows = None  # type: ignore[assignment]
        shown.rows = every[1:2]
        assert ids(shown) == [every[1].id[-4:]]
        shown.rows = None  # type: ignore[assignment]
        shown.rows = every[:1]
        assert ids(shown) == [every[0].id[-4:]]


def test_a_filter_is_a_word_or_a_condition(shown: Scene) -> None:
    press("slash", shown)
    write(shown, "too bad")
    assert ids(shown) == ["0003"]
    press("ctrl+u", shown)
    write(shown, "optimizer.args.lr >= 0.05")
    assert ids(shown) == ["0001", "0000"]
    press("enter", shown)
    assert shown.view.prompt is None
    press("slash", shown)
    write(shown, " and width > 1")
    assert 'no run has the key "width"' in drawn(shown, 120, 40)
    assert len(ids(shown)) == 4
    press("escape", shown)
    assert ids(shown) == ["0001", "0000"], "esc undoes what was typed"
    shown.view.runs.wanted = "nothing like it"
    assert "no run is meant" in drawn(shown, 80, 24)
    assert press("space", shown) == press("enter", shown) == ""


def test_refused_runs_are_counted_and_listed_only_where_they_are_wanted(shown: Scene) -> None:
    newest = shown.rows[0]
    refused = replace(newest, path="cifar/refused", values={**newest.values, "id": "x-0009", "status": "refused"})
    at = replace(shown, rows=[refused, *shown.rows])
    assert ids(at) == ["0003", "0002", "0001", "0000"]
    assert "1 refused" in drawn(at, 120, 40)
    at.view.runs.wanted = "refused"
    assert ids(at) == ["0009"]


def test_two_at_least_are_compared(shown: Scene) -> None:
    shown.view.runs.at = "cifar/20260921-141320-0000"
    assert press("c", shown) == Notice("space picks the runs to compare"), "the run at the cursor is the one watched"
    shown.view.runs.picked.clear()
    press("home", shown)
    press("c", shown)
    assert shown.view.page == "compare"
    assert shown.view.runs.picked == [shown.rows[0].path, "cifar/20260921-141320-0000"]
    press("escape", shown)
    assert shown.view.page == "runs"
    assert press("escape", shown) == "" and shown.view.page == "main"


def test_brackets_turn_to_the_next_metric(shown: Scene, several: list[RunDir]) -> None:
    side_by_side = beside(shown, several[:2])
    assert "accuracy: A B" in drawn(side_by_side, 80, 24)
    press("right_square_bracket", side_by_side)
    assert "loss: A B" in drawn(side_by_side, 80, 24)
    press("left_square_bracket", side_by_side)
    press("left_square_bracket", side_by_side)
    assert "lr: A B" in drawn(side_by_side, 80, 24)


async def until(pilot: Pilot[Any], condition: Callable[[], object]) -> None:
    while not condition():
        await pilot.pause(0.05)


def test_another_run_is_opened_and_left_without_a_question(several: list[RunDir], going: RunDir) -> None:
    async def session() -> Outcome | None:
        app = MonitorApp(going)
        async with asyncio.timeout(LIMIT), app.run_test(size=(120, 40)) as pilot:
            await pilot.press("r")
            await until(pilot, lambda: app._folder.rows)
            assert len(app._folder.rows) == 5
            await pilot.press("end", "space", "up", "space", "c")
            await until(pilot, lambda: app._folder.sides and all(side.state.it for side in app._folder.sides.values()))
            assert app._view.page == "compare"
            await pilot.press("escape", "end", "enter")
            assert (app.run_dir.id, app._view.page) == (several[0].id, "main")
            assert app._view.runs.picked, "the choices stay"
            await until(pilot, lambda: app.state.end)
            await pilot.press("q")
        return app.return_value

    assert asyncio.run(session()) is Outcome.DETACHED, "the run that was begun with goes on"


def test_watch_begins_with_the_list_where_several_train(several: list[RunDir]) -> None:
    assert _living_runs(Path("runs")) == []
    living: list[RunDir] = []
    for number in range(2):
        run = RunDir(Path("runs") / "cifar" / f"20260922-00000{number}-ffff")
        run.path.mkdir()
        run.sign(id=run.id)
        run.sign_process()
        training = Training(time.time()).records()
        append(run, *(next(training) for _ in range(5)))
        living.insert(0, run)
        assert _living_runs(Path("runs")) == living


@pytest.mark.parametrize(
    ("arguments", "place"), [((), 1), (("cifar",), 1), (("--replay",), 3), (("20260921-141620-0003",), 3)]
)
def test_watch_shows_the_run_that_trains_and_not_a_newer_one_that_is_over(
    several: list[RunDir], monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], place: int
) -> None:
    shown: list[str] = []

    def show(run: RunDir, *_: object, **how: object) -> int:
        shown.append(run.id)
        return 0

    def open_app(app: MonitorApp) -> None:
        show(app.run_dir)

    trains = several[1]
    lines = trains.events.read_text().splitlines(keepends=True)
    trains.events.write_text("".join(line for line in lines if '"k":"end"' not in line))
    trains.sign_process()
    monkeypatch.setattr("hookflow.monitor.plain.follow", show)
    monkeypatch.setattr(MonitorApp, "run", open_app)
    monkeypatch.setattr("hookflow.cli.control.check_terminal", lambda: None)
    invoke("watch", *arguments, "--ui", "plain")
    assert shown == [several[place].id]


def test_a_run_is_noted_deleted_and_resumed_by_keys(several: list[RunDir], monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []

    def resume(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        begun.append(command)
        return subprocess.CompletedProcess(command, 0, "", "nothing is left to do\n    to train on: …\n")

    monkeypatch.setattr(subprocess, "run", resume)

    async def session() -> None:
        app = MonitorApp(several[0])

        async with asyncio.timeout(LIMIT), app.run_test(size=(120, 40)) as pilot:
            await pilot.press("r")
            await until(pilot, lambda: app._folder.rows)
            await pilot.press("end", "D")
            assert "is watched" in app.notice[0]
            await pilot.press("home", "n", *"#good a note", "enter")
            await until(pilot, lambda: app._folder.rows[0].values["note"])
            assert several[3].noted() == (["good"], "a note")
            await pilot.press("R", "y")
            await until(pilot, lambda: app.notice[0] == f"{several[3].id}: nothing is left to do")
            assert begun[0][-4:] == ["run", "--resume", str(several[3].path), "--detach"]
            await pilot.press("D", "escape", "D", "n")
            assert several[3].path.exists(), "nothing is deleted without a yes"
            await pilot.press("D", "y")
            await until(pilot, lambda: len(app._folder.rows) == 3)
        assert not several[3].path.exists()

    asyncio.run(session())


def test_a_run_that_goes_on_is_not_deleted(shown: Scene) -> None:
    shown.rows = [replace(row, values={**row.values, "status": "running"}) for row in shown.rows]
    for key in ("D", "R"):
        assert press(key, shown) == Notice("the run goes on: stop it first")
    shown.readonly = True
    for key in ("D", "R", "n"):
        assert press(key, shown) == Notice("opened with --readonly: nothing is changed")


def test_the_best_value_is_beside_that_of_the_first_that_was_picked(shown: Scene) -> None:
    assert "Δ to A" not in drawn(shown, 200, 60)
    shown.view.runs.picked = [shown.rows[3].path]
    assert "Δ to A" in drawn(shown, 200, 60)
