"""The page Runs: the run that is watched has a sign, the cursor begins at it, columns are whole."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.screens.runs import WATCHED_MARK, RunsScreen
from tests.monitor.fake_run import make_several
from tests.monitor.shown import LOW, NORMAL, WIDE, Size, press, settle, visit
from tests.support.limits import LIMIT


async def open_runs(app: MonitorApp, pilot: Pilot[Any], count: int) -> RunsScreen:
    """Open the page, and wait until so many runs are listed."""
    await press(app, pilot, "7")
    page = app.screen
    assert isinstance(page, RunsScreen)
    deadline = time.monotonic() + LIMIT
    while page.table.row_count < count:
        assert time.monotonic() < deadline, "the runs were never listed"
        await pilot.pause(0.01)
    await pilot.pause()
    return page


def test_the_cursor_begins_at_the_run_that_is_watched_and_a_sign_stands_before_it(
    whole: RunDir,
) -> None:
    newer = whole.path.with_name("20991231-235959-bbbb")
    shutil.copytree(whole.path, newer)

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        page = await open_runs(app, pilot, 2)
        marks = {
            str(row.value).rpartition("/")[2]: page.table.get_cell(row, "").plain
            for row in page.table.rows
        }
        assert marks == {whole.path.name: WATCHED_MARK, newer.name: " "}
        assert f"#{whole.path.name[-4:]}" in page.text_of_row()
        await press(app, pilot, "p")
        assert page.table.get_cell(f"{whole.path.parent.name}/{whole.path.name}", "").plain == "A"

    visit(whole, look)


@pytest.mark.parametrize("size", [LOW, NORMAL, WIDE])
def test_a_column_that_has_no_room_is_left_out(tmp_path: Path, size: Size) -> None:
    runs = make_several(tmp_path / "runs", 3)
    runs[0].note([], "a note that is so long that it has no room beside the other columns at all")

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        page = await open_runs(app, pilot, len(runs))
        table = page.table

        def columns() -> dict[str, int]:
            widths = {}
            for column in table.ordered_columns:
                widths[str(column.key.value)] = column.get_render_width(table)
            return widths

        shown = columns()
        assert [*shown][:3] == ["", "run", "status"]
        assert sum(shown.values()) <= table.size.width
        assert ("lr" in shown, "note" in shown) == (size == WIDE, False)
        assert runs[-1].path.name[-4:] in page.text_of_row()
        assert "0.0333" in page.text_of_row(), "the columns without room are copied, too"
        await pilot.resize_terminal(240, 40)
        await settle(app, pilot)
        assert "note" in columns()

    visit(runs[-1], look, size=size)
