"""The progress of work within hooks: recorded while it lasts, and shown as bars and lines."""

import io
from typing import Any

import pytest

from hookflow.events.rundir import RunDir
from hookflow.monitor import plain
from hookflow.monitor.progress_bars import make_progress_bars
from hookflow.monitor.state import RunState
from tests.conftest import Trained, records


class Exports:
    """Does two pieces of work after each epoch, and raises in the second epoch."""

    def after_train_epoch(self, run: Any) -> None:
        with run.progress("shards", total=3) as bar:
            bar.advance()
            run._log.flush()  # as the recorder's thread does now and then
            if run.epoch == 2:
                raise RuntimeError("no room")
            bar.advance(2)
        with run.progress("checks") as checks:
            checks.advance(7)


@pytest.fixture
def exported(trained: Trained) -> RunDir:
    return trained(
        f'hooks.exports={{use="{__file__}:Exports", on_error="ignore"}}', "run.max_epochs=2"
    )


def test_it_is_recorded_when_it_begins_moves_and_ends_also_by_an_error(exported: RunDir) -> None:
    whole = [("shards", 0, 3, False), ("shards", 1, 3, False), ("shards", 3, 3, True)]
    count = [("checks", 0, 0, False), ("checks", 7, 0, True)]
    broken = [("shards", 0, 3, False), ("shards", 1, 3, False), ("shards", 1, 3, True)]
    recorded = records(exported, "progress")
    assert [(r["name"], r["done"], r["total"], r["over"]) for r in recorded] == [
        *whole,
        *count,
        *broken,
    ]
    assert {record["hook"] for record in recorded} == {"exports"}


def test_a_bar_is_there_while_it_lasts(exported: RunDir) -> None:
    state, bars = RunState(), []
    for record in records(exported):
        state.apply(record)  # type: ignore[arg-type]
        if record["k"] == "progress":
            bars.append(
                [
                    (bar.done, bar.whole)
                    for bar in make_progress_bars(state)
                    if bar.name.startswith("exports: ")
                ]
            )
    assert bars == [[(0, 3)], [(1, 3)], [], [(0, 0)], [], [(0, 3)], [(1, 3)], []]


def test_plain_lines_say_how_it_ended(exported: RunDir) -> None:
    out = io.StringIO()
    plain.print_run(exported, out)
    lines = [
        line.split(" progress ", 1)[1].split()
        for line in out.getvalue().splitlines()
        if " progress " in line
    ]
    assert [line[:3] for line in lines] == [
        ["exports:", "shards", "3/3"],
        ["exports:", "checks", "7"],
        ["exports:", "shards", "1/3"],
    ]


class Wrong:
    def before_train(self, run: Any) -> None:
        run.progress("shards", total=-1)


def test_a_total_below_zero_is_refused(trained: Trained) -> None:
    run_dir = trained(f'hooks.wrong={{use="{__file__}:Wrong"}}', code=1)
    assert "a total is 0 or more" in str(records(run_dir, "error")[0]["text"])
