"""docs/hooks.md: every built-in hook is on it, and every example can be pasted into a pipeline and trains."""

from __future__ import annotations

import re

import pytest

from hookflow.hooks.compile import compile_pipeline
from hookflow.hooks.registry import BUILT_IN
from hookflow.pipeline.load import parse
from tests.conftest import TESTS, TOY, Trained, records

DOCS = TESTS.parent / "docs"
PAGE = (DOCS / "hooks.md").read_text("utf-8")
EXAMPLES = {
    name: text for text, name in re.findall(r"^```toml\n(\[hooks\.(\w+)\]\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
}
NEED_MORE = {"images", "resize", "tta", "whiten", "comm_hook", "batch_size_finder"}
"""Hooks that need images or several ranks: they train in tests of their own, and are only checked here."""

LONG_ENOUGH = {"lr_finder": "run.max_epochs=21"}
"""Hooks that one epoch of these data is too short for."""


def pipeline_with(name: str) -> str:
    """Return a pipeline with an example and nothing else but the accuracy, and a net that has what examples name."""
    head = TOY.read_text().partition("[hooks.")[0].replace("./toy.py:Net", "./toy.py:Documented")
    accuracy = "" if name == "accuracy" else '[hooks.accuracy]\nuse = "accuracy"\n\n'
    return f"{head}{accuracy}{EXAMPLES[name]}"


def test_every_hook_is_there_once() -> None:
    assert [*EXAMPLES] == re.findall(r"^## `(\w+)`$", PAGE, re.MULTILINE) == [*BUILT_IN]


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_example_can_be_pasted_and_trains(name: str, trained: Trained) -> None:
    plan = compile_pipeline(parse(pipeline_with(name), TOY))
    assert plan.hook(name).use == name
    if name not in NEED_MORE:
        run_dir = trained(LONG_ENOUGH.get(name, "run.max_epochs=1"), swap=(TOY.read_text(), pipeline_with(name)))
        assert not records(run_dir, "error")
