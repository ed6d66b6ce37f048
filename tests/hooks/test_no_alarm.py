"""What is shipped raises no alarm: no warning, no note, no ambiguous order."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.graph.plan import Plan
from hookflow.graph.why import ambiguities
from hookflow.hooks.registry import BUILT_IN
from hookflow.service.pipelines import read_pipeline, valid_plan
from tests.hooks.test_troubles import plan

ROOT = Path(__file__).parents[2]
SHIPPED = [*sorted((ROOT / "pipelines").glob("*.toml")), ROOT / "tests/gan.toml", ROOT / "tests/toy.toml"]

APART = ("early_stop", "lr_finder", "lr_schedule")
"""Built-in hooks that need an argument, a run of their own, or take the place of another one."""


def alarms(found: Plan) -> list[object]:
    return [*found.warnings, *found.notes, *ambiguities(found)]


@pytest.mark.parametrize("pipeline", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_pipelines(pipeline: Path) -> None:
    assert alarms(valid_plan(read_pipeline(pipeline))) == []


@pytest.mark.parametrize("backwards", [False, True])
def test_all_built_in_hooks_however_they_are_listed(backwards: bool) -> None:
    uses = [use for use in BUILT_IN if use not in APART]
    assert alarms(plan(*(uses[::-1] if backwards else uses))) == []
