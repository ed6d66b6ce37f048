"""Hooks that judge a run by its metrics: what counts as better, NaN included."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from hookflow.errors import UserError
from hookflow.hooks.builtin.checkpoint import Checkpoint
from hookflow.hooks.builtin.early_stop import EarlyStop
from hookflow.hooks.builtin.metrics import Accuracy

NAN = math.nan


class Judged:
    """As much of a run as the judges look at."""

    def __init__(self) -> None:
        self.metrics: Mapping[str, float] = {}
        self.saved: list[str] = []
        self.moved: dict[str, int] = {}
        self.iter = 0
        self.stopped = ""

    def metric(self, name: str) -> float:
        return self.metrics[name]

    def save_checkpoint(self, *names: str, moved: Mapping[str, int] | None = None, keep: int | None = None) -> None:
        self.saved += names
        self.moved |= moved or {}

    def stop(self, reason: str) -> None:
        self.stopped = reason


@pytest.mark.parametrize(
    ("mode", "values", "best_at"),
    [
        ("max", [1, 2, 2, 1, 3], [0, 1, 4]),
        ("min", [3, 2, 2, 4, 1], [0, 1, 4]),
        ("max", [NAN, 1, NAN, 2], [1, 3]),
        ("min", [NAN, NAN], []),
    ],
)
def test_the_best_checkpoint(mode: str, values: list[float], best_at: list[int]) -> None:
    run, hook, found = Judged(), Checkpoint("score", mode), []  # type: ignore[arg-type]
    for k, value in enumerate(values):
        run.metrics = {"score": value}
        hook.after_val(run)  # type: ignore[arg-type]
        if run.saved:
            found.append(k)
        run.saved.clear()
    assert found == best_at


@pytest.mark.parametrize("metric", ["loss", "mae"])
def test_of_a_loss_the_lowest_is_the_best_without_a_word(metric: str) -> None:
    run, keeps, stops = Judged(), Checkpoint(metric), EarlyStop(metric, patience=2)
    for value in (3.0, 2.0, 1.0):
        run.metrics, run.saved = {metric: value}, []
        keeps.after_val(run)  # type: ignore[arg-type]
        stops.after_val(run)  # type: ignore[arg-type]
        assert run.saved == ["best"]
    assert not run.stopped, "it was improving"


def test_the_best_by_several_metrics_have_ranks() -> None:
    run, hook = Judged(), Checkpoint({"score": "max", "val/loss": "min"}, top=2)
    asked = []
    for k, (score, loss) in enumerate([(1, 1), (3, 2), (2, 0.5), (0, 3), (3, 0.7)], 1):
        run.iter, run.saved, run.moved, run.metrics = k, [], {}, {"score": score, "val/loss": loss}
        hook.after_val(run)  # type: ignore[arg-type]
        asked.append((run.saved, run.moved))
    assert asked == [
        (["best-score", "best-val_loss"], {}),
        (["best-score", "best-val_loss-2"], {"best-score-2": 1}),
        (["best-score-2", "best-val_loss"], {"best-val_loss-2": 1}),
        ([], {}),
        (["best-score-2", "best-val_loss-2"], {}),
    ]
    again = Checkpoint({"score": "max", "val/loss": "min"}, top=2)
    again.load_state_dict(hook.state_dict())
    assert again.best == hook.best == {"score": [(3, 2), (3, 5)], "val/loss": [(0.5, 3), (0.7, 5)]}


@pytest.mark.parametrize(
    ("mode", "values", "stops_at"),
    [
        ("max", [1, 2, 2, 2], 3),
        ("min", [2, 1, 1.5, 0.5, 1, 1], 5),
        ("max", [NAN, 1, 2, 2, 2], 4),
        ("max", [NAN, NAN], 1),
        ("max", [1, 1.05, 1.09], 2),
    ],
)
def test_stopping_early(mode: str, values: list[float], stops_at: int) -> None:
    run, hook = Judged(), EarlyStop("score", mode, patience=2, min_delta=0.1)  # type: ignore[arg-type]
    stopped = []
    for value in values:
        run.metrics = {"score": value}
        hook.after_val(run)  # type: ignore[arg-type]
        stopped.append(bool(run.stopped))
    assert stopped.index(True) == stops_at


def test_accuracy_says_what_it_needs_of_the_task() -> None:
    with pytest.raises(UserError, match=r'needs the outputs "logits" .* and "target" .*, which gives "loss"'):
        Accuracy().after_val_iter({"loss": 1.0})
