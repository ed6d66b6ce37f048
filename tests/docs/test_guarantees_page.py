"""Each promise of `docs/guarantees.md` names a test that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"


def promises() -> list[list[str]]:
    """Return the rows of the page's tables that promise something with a test."""
    rows = [re.split(r" *(?<!\\)\| *", line.strip("| ")) for line in PAGE.read_text().splitlines() if line[:1] == "|"]
    return [cells for cells in rows if not cells[0].startswith(("promise", "---"))]


def names_in(file: Path) -> set[str]:
    found = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))
    return {node.name for node in found if node.name.startswith("test_")}


def test_each_promise_names_a_test_that_there_is() -> None:
    assert len(promises()) > 30
    for cells in promises():
        named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", cells[-1])
        assert named, f"no test for: {cells[0]}"
        for file, test in named:
            assert test in names_in(ROOT / file), f"{file} has no {test}"
