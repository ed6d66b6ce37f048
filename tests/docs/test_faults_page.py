"""docs/faults.md: each fault names a test that there is."""

from __future__ import annotations

import re

from tests.conftest import TESTS


def test_every_fault_names_its_test() -> None:
    page = (TESTS.parent / "docs" / "faults.md").read_text("utf-8")
    rows = [row for row in page.partition("## Soak")[0].splitlines() if row.startswith("| ")][2:]
    assert len(rows) == 20
    named = re.findall(r"`tests/([\w/]+\.py)::(\w+)`", page)
    assert len(named) == len(rows) + 1
    missing = [name for file, name in named if f"def {name}(" not in (TESTS / file).read_text("utf-8")]
    assert not missing
