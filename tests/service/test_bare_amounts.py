"""A number without a unit: it means one thing for a hook, or is refused with the units."""

import pytest

from hookflow.errors import UserError
from hookflow.pipeline.load import parse
from hookflow.service.pipelines import valid_plan
from tests.conftest import TOY


def problems_of(*overrides: str) -> list[str]:
    loaded = parse(TOY.read_text(), TOY, overrides)
    try:
        valid_plan(loaded)
    except UserError as error:
        return [f"{problem.message} {problem.hint}" for problem in error.problems]
    return []


@pytest.mark.parametrize("key", ["every", "from", "until"])
def test_number_at_points_that_count_different_things_is_refused(key: str) -> None:
    (text,) = problems_of(f"hooks.checkpoint.{key}=2")
    assert "epochs at after_train_epoch" in text
    assert "firings at after_val" in text
    assert f'{key} = "2ep"' in text


@pytest.mark.parametrize(
    "override",
    [
        'hooks.checkpoint.every="2ep"',
        "hooks.checkpoint.every=1",
        "hooks.checkpoint.points=[\"after_val\"]', 'hooks.checkpoint.every=2",
        'hooks.checkpoint.points=[{at="after_train_epoch", every=2}, "after_val"]',
        "hooks.log.points=null', 'hooks.log.every=50",
    ],
)
def test_number_with_one_meaning_is_taken(override: str) -> None:
    assert problems_of(*override.split("', '")) == []
