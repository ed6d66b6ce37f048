"""The page Runs: the run that is watched has a sign, and the cursor begins at it."""

import shutil
import time
from typing import Any

from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.screens.runs import WATCHED_MARK, RunsScreen
from tests.monitor.shown import press, visit
from tests.support.limits import LIMIT


def test_the_cursor_begins_at_the_run_that_is_watched_and_a_sign_stands_before_it(
    whole: RunDir,
) -> None:
    newer = whole.path.with_name("20991231-235959-bbbb")
    shutil.copytree(whole.path, newer)

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "7")
        page = app.screen
        assert isinstance(page, RunsScreen)
        deadline = time.monotonic() + LIMIT
        while page.table.row_count < 2:
            assert time.monotonic() < deadline, "the runs were never listed"
            await pilot.pause(0.01)
        await pilot.pause()
        marks = {
            str(row.value).rpartition("/")[2]: page.table.get_cell(row, "").plain
            for row in page.table.rows
        }
        assert marks == {whole.path.name: WATCHED_MARK, newer.name: " "}
        assert f"#{whole.path.name[-4:]}" in page.text_of_row()
        await press(app, pilot, "p")
        assert page.table.get_cell(f"{whole.path.parent.name}/{whole.path.name}", "").plain == "A"

    visit(whole, look)
