"""The page of the system, and the table of ranks."""

from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from textual.pilot import Pilot

from hookflow.events.rundir import RunDir
from hookflow.monitor.app import MonitorApp
from hookflow.monitor.ranks import RankGroup
from hookflow.monitor.screens.system import LayerTable, SystemScreen
from hookflow.monitor.widgets.rank_table import COLUMN_HEADINGS, RankRows, RankTable, assess_ranks
from hookflow.numbers import format_age
from tests.monitor.conftest import state_at
from tests.monitor.fake_run import append, end, make_ranks, record
from tests.monitor.shown import press, screen_text, settle, shown, visit

LATE = {2: 0.2}


def cells_of(ranks: RankGroup, number: int, bar_width: int = 24) -> dict[str, str]:
    cells = RankRows(ranks, bar_width).cells(number)
    return {column: cell.plain for column, cell in zip(COLUMN_HEADINGS, cells, strict=True)}


def test_the_key_opens_the_system_and_closes_it(whole: RunDir) -> None:
    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "i")
        assert isinstance(app.screen, SystemScreen)
        text = screen_text(app)
        for fact in ("ResNet9, 6.6M parameters", "torch 2.13.0, python 3.11.7", "cuda:0, bf16"):
            assert fact in text
        assert "SYNTHETIC cifar10" in text
        assert "the run is over" in text
        layers = app.screen.query_one(LayerTable)
        assert [cell.plain for cell in layers.get_row_at(0)][-1] == "frozen"
        assert layers.row_count == 2
        assert "excl. waits" not in text, "there is one rank alone"
        await press(app, pilot, "i")
        assert not isinstance(app.screen, SystemScreen)

    visit(whole, look)


def test_a_replay_has_no_machine(whole: RunDir) -> None:
    assert "a replay has no machine" in shown(whole, "i", replay=1.0)


def test_a_run_that_has_not_begun_has_no_facts(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "cifar" / "20260921-141320-a3f9")
    run.path.mkdir(parents=True)
    run.sign(id=run.id, name="cifar")
    assert "the run has not begun" in shown(run, "i")


def test_the_straggler_is_named_and_the_others_wait() -> None:
    ranks = state_at(world=4, late=LATE).ranks
    verdict, style = assess_ranks(ranks)
    assert verdict.startswith("▲ rank 2 keeps the others waiting")
    assert style == "warn"
    late, waits = cells_of(ranks, 2), cells_of(ranks, 0)
    assert late["sign"] == "▲"
    assert late["remark"].startswith("+5.7 ms data")
    assert "·" not in late["phases"]
    assert "·" in waits["phases"]
    assert len(late["phases"]) == len(waits["phases"]) == 24
    assert float(late["own"]) > float(waits["own"])
    assert waits["where"] == "gpu01 cuda:0"


def test_balanced_ranks_are_called_so() -> None:
    assert assess_ranks(state_at(world=2).ranks)[0] == "balanced"
    assert assess_ranks(state_at(1, world=2).ranks)[0] == "not yet compared"


def test_what_is_wrong_with_a_rank_is_named() -> None:
    lost = state_at(world=4)
    for second in range(1, 104):  # rank 3 is on another machine than rank 0
        t = lost.now + 1
        for rank in (0, 1, 2):
            lost.apply(record("frame", t, it=600 + second), rank)
    assert assess_ranks(lost.ranks)[0] == f"? nothing from rank 3 for {format_age(103)}"
    assert cells_of(lost.ranks, 3)["sign"] == "?"
    lost.apply(record("error", lost.now, text="bad label"), 1)
    assert assess_ranks(lost.ranks)[0] == "✗ rank 1 failed: ValueError: bad label"
    assert cells_of(lost.ranks, 1)["remark"] == "ValueError"
    ended = state_at(world=3)
    for rank in (0, 1):
        ended.apply(end(ended.now, 600, 6), rank)
    assert assess_ranks(ended.ranks)[0] == "? no end record from rank 2"
    assert cells_of(ended.ranks, 2)["remark"] == "no end record"


def test_a_rank_that_has_not_written_yet_has_a_row() -> None:
    ranks = state_at(20, world=2).ranks
    del ranks.of[1]
    assert cells_of(ranks, 1)["remark"] == "not heard of yet"


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 15)])
def test_the_table_has_a_row_for_each_rank_and_updates_its_cells(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    run = make_ranks(tmp_path / "runs", 4, upto=92, late=LATE)

    async def look(app: MonitorApp, pilot: Pilot[Any]) -> None:
        await press(app, pilot, "i")
        table = app.screen.query_one(RankTable)
        assert table.row_count == 4
        before: Text = table.get_cell("3", "it")
        newest = app.state.now
        append(run, [record("frame", newest + 1, 600, 6)], rank=3)
        app.store.poll()
        await settle(app, pilot)
        after: Text = table.get_cell("3", "it")
        assert (before.plain.strip(), after.plain.strip()) == ("551", "600")

    visit(run, look, size=size)
