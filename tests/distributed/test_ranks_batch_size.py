"""Over ranks each weighs as its examples do, though they come in lists: the gradients are those of one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import NewRun, reason
from tests.distributed.conftest import assert_alike
from tests.distributed.several import carry_out, messages_of, printed
from tests.runner.test_batch_size import BY_HAND, new_detection

__all__ = ["new_detection"]

COUNTS = 'task.use="./detection.py:Counts"'
OWN_LOADER = [BY_HAND % ("train", "own_loader"), BY_HAND % ("val", "SaysItsOwn")]


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([], id="a loader"),
        pytest.param(["run.accumulate=2"], id="a loader, accumulated"),
        pytest.param(OWN_LOADER, id="a loader of its own, and a source that says its own"),
        pytest.param([BY_HAND % ("train", "SaysBoth"), "run.accumulate=3"], id="a source that says both, accumulated"),
        pytest.param([BY_HAND % ("train", "Silent"), BY_HAND % ("val", "Silent"), COUNTS], id="a task"),
    ],
)
def test_lists_weigh_by_their_examples(
    new_detection: NewRun, train_here: Callable[..., int], overrides: list[str]
) -> None:
    """The last batch of three examples is not shared evenly."""
    alone, together = new_detection(*overrides), new_detection(*overrides)
    assert train_here(alone) == 0
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    assert_alike(alone, together, "model")
    if not any("accumulate" in override for override in overrides):
        for rank, last in enumerate((2, 1)):
            assert messages_of(together, rank, "size") == [f"size {size}" for size in (5, 5, 5, 5, last)] * 2


def test_over_ranks_it_must_be_known(new_detection: NewRun) -> None:
    run_dir = new_detection(BY_HAND % ("train", "Silent"))
    assert carry_out(run_dir, 2) == [2, 2], printed(run_dir, 0)
    assert "nothing says how many examples a batch of the train data has" in reason(run_dir)
    assert "batch_size(index)" in reason(run_dir)
