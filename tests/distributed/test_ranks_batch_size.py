"""Over ranks each weighs as its examples do, though they come in lists: the gradients are those of one process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hookflow.events.rundir import RunDir
from tests.distributed.several import carry_out, printed
from tests.distributed.test_ranks_train import records_of
from tests.runner.same import curve, final_state
from tests.runner.test_batch_size import BY_HAND, NewDetection, new_detection, reason

__all__ = ["new_detection"]

COUNTS = 'task.use="./detection.py:Counts"'
VAL = BY_HAND % ("val", "SaysItsOwn")


def assert_alike(one: RunDir, other: RunDir) -> None:
    first, second = curve(one), curve(other)
    assert first.keys() == second.keys()
    assert second == pytest.approx(first, rel=1e-4, abs=1e-6)
    weights, others = (final_state(run_dir)["model"] for run_dir in (one, other))
    torch.testing.assert_close(weights, others, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([], id="a loader"),
        pytest.param(["run.accumulate=2"], id="a loader, accumulated"),
        pytest.param(
            [BY_HAND % ("train", "own_loader"), VAL], id="a loader of its own, and a source that says its own"
        ),
        pytest.param([BY_HAND % ("train", "SaysBoth"), "run.accumulate=3"], id="a source that says both, accumulated"),
        pytest.param([BY_HAND % ("train", "Silent"), BY_HAND % ("val", "Silent"), COUNTS], id="a task"),
    ],
)
def test_lists_weigh_by_their_examples(
    new_detection: NewDetection, train_here: Callable[..., int], overrides: list[str]
) -> None:
    """The last batch of three examples is not shared evenly."""
    alone, together = new_detection(*overrides), new_detection(*overrides)
    assert train_here(alone) == 0
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    assert_alike(alone, together)
    if not any("accumulate" in override for override in overrides):
        told = [
            [r["text"] for r in records_of(together, rank, "message") if r["text"].startswith("size")]
            for rank in (0, 1)
        ]
        assert told == [[f"size {size}" for size in (5, 5, 5, 5, last)] * 2 for last in (2, 1)]


def test_over_ranks_it_must_be_known(new_detection: NewDetection) -> None:
    run_dir = new_detection(BY_HAND % ("train", "Silent"))
    assert carry_out(run_dir, 2) == [2, 2], printed(run_dir, 0)
    assert "nothing says how many examples a batch of the train data has" in reason(run_dir)
    assert "batch_size(index)" in reason(run_dir)
