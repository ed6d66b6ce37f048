"""docs/faults.md: each fault and each fuzzer names a test that there is."""

from __future__ import annotations

import re

from tests.conftest import TESTS


def test_every_fault_names_its_test() -> None:
    page = (TESTS.parent / "docs" / "faults.md").read_text("utf-8")
    faults, fuzzers = page.partition("## Soak")[0].split("## Fuzzers")
    rows = [[row for row in part.splitlines() if row.startswith("| ")][2:] for part in (faults, fuzzers)]
    assert [*map(len, rows)] == [23, 8]
    named = re.findall(r"`tests/([\w/]+\.py)::(\w+)`", page)
    assert len(named) == 23 + 8 + 1, "and the soak"
    missing = [name for file, name in named if f"def {name}(" not in (TESTS / file).read_text("utf-8")]
    assert not missing
