"""docs/guarantees.md and docs/faults.md: each promise, fault and fuzzer names a test that there is."""

from __future__ import annotations

import re

import pytest

from tests.conftest import TESTS


@pytest.mark.parametrize(("page", "least"), [("guarantees.md", 31), ("faults.md", 23 + 8)])
def test_every_row_names_a_test_that_there_is(page: str, least: int) -> None:
    text = (TESTS.parent / "docs" / page).read_text("utf-8")
    named = re.compile(r"`tests/([\w/]+\.py)::(test_\w+)`")
    rows = re.findall(r"^\| (?!promise|fault|what is fed|---).*$", text.partition("## Soak")[0], re.MULTILINE)
    assert len(rows) >= least
    assert not [row for row in rows if not named.search(row)]
    missing = [name for file, name in named.findall(text) if f"def {name}(" not in (TESTS / file).read_text("utf-8")]
    assert not missing
