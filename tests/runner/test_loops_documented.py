"""docs/loops.md says of the counters and of the points what the golden traces of real runs say."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from hookflow.graph.points import POINTS
from tests.conftest import TESTS
from tests.golden_files import FOLDER

PAGE = (TESTS.parent / "docs" / "loops.md").read_text("utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    table = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    result = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    return {point: cells.split(" | ") for point, cells in result}


def trace(name: str) -> list[tuple[str, str, str]]:
    lines = (FOLDER / f"trace_{name}.txt").read_text("utf-8")
    return re.findall(r"^(\w+) iter=(\d+) epoch=(\d+)", lines, re.MULTILINE)


@pytest.mark.parametrize("point", rows("The counters"))
def test_the_counters(point: str) -> None:
    seen = [f"{it}, {epoch}" for name, it, epoch in trace("epochs") if name == point]
    assert rows("The counters")[point] == [seen[0], seen[-1]]


def test_no_point_of_the_training_is_left_out() -> None:
    assert {point.name for point in POINTS if point.kind == "step" or "train" in point.name} <= rows(
        "The counters"
    ).keys()


@pytest.mark.parametrize(("name", "column"), [("epochs", 0), ("accumulate", 1)])
def test_how_often_they_fire(name: str, column: int) -> None:
    seen = Counter(point for point, it, _ in trace(name) if it == str(int(point == "after_train_iter")))
    told = {point: int(cells[column]) for point, cells in rows("Which points fire how often in an iteration").items()}
    assert told == {point: seen[point] for point in told}
