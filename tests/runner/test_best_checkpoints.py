"""The best checkpoints are those of the best validations, whatever else is saved and when."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import parse_iteration
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, Train, Trained, records, strikes
from tests.runner.same import assert_same


class KeepsWeights:
    """Gives the metric `given` by iteration, and keeps the weights that were validated."""

    phase = "early"
    writes = ("metrics.given",)

    def __init__(self, folder: str, values: dict[str, float]) -> None:
        self._folder = Path(folder)
        self._values = values

    def before_val(self, run: Any) -> None:
        if not run.is_temporary:
            torch.save(run.model.state_dict(), self._folder / f"{run.iter}.pt")

    def after_val(self, run: Any, metrics: Any) -> None:
        metrics["given"] = self._values[str(run.iter)]


def keeps(folder: Path, values: dict[int, float]) -> str:
    table = ", ".join(f'"{it}"={value}' for it, value in values.items())
    return (
        f'hooks.keeps={{use="{__file__}:KeepsWeights",'
        f' args={{folder="{folder}", values={{{table}}}}}}}'
    )


def its_of_best(run_dir: RunDir) -> dict[str, int]:
    names = CheckpointStore(run_dir.checkpoints).names()
    return {name: parse_iteration(path) for name, path in names.items()}


BY_EPOCH = {5: 0.3, 10: 0.9, 15: 0.6, 20: 0.7, 25: 0.2}
EVERY_SECOND = {2: 1.0, 4: 7.0, 6: 3.0, 8: 6.0, 10: 2.0, 12: 5.0, 14: 4.0, 15: 0.0}


@pytest.mark.parametrize(
    ("overrides", "values", "expected"),
    [
        # It saves, and removes, at other iterations than it validates.
        (
            (
                'run.val_every="2it"',
                'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]',
                'hooks.checkpoint.args={monitor="given", mode="max", keep=1}',
            ),
            EVERY_SECOND,
            {"best": 4, "last": 15},
        ),
        # What comes later is better: the last ones are the best, not the first.
        (
            (
                "run.max_epochs=5",
                'hooks.checkpoint.args={monitor="given", mode="max", top=3, keep=1}',
            ),
            {5: 0.1, 10: 0.2, 15: 0.3, 20: 0.4, 25: 0.5},
            {"best": 25, "best-2": 20, "best-3": 15, "last": 25},
        ),
        # All are kept, and the best have their names.
        (
            (
                "run.max_epochs=5",
                'hooks.checkpoint.args={monitor="given", mode="min", top=2, keep="all"}',
            ),
            BY_EPOCH,
            {"best": 25, "best-2": 5, "last": 25},
        ),
    ],
)
def test_the_best_have_the_weights_that_were_validated(
    trained: Trained,
    tmp_path: Path,
    overrides: tuple[str, ...],
    values: dict[int, float],
    expected: dict[str, int],
) -> None:
    """The average, by which a validation is, is left out: the weights are those of the training."""
    run_dir = trained("hooks.ema.enabled=false", *overrides, keeps(tmp_path, values))
    assert its_of_best(run_dir) == expected
    assert [record["it"] for record in records(run_dir, "metrics")] == [*values]
    for name, it in expected.items():
        if it in values:
            saved = torch.load(run_dir.checkpoints / name / "model.pt", weights_only=True)
            assert_same(saved, torch.load(tmp_path / f"{it}.pt", weights_only=True))


@pytest.mark.parametrize("at", [11, 14, 16, 21])
def test_a_resume_remembers_the_best(
    new_run: NewRun, train_here: Train, tmp_path: Path, at: int
) -> None:
    """The best is before the cut, and what follows is better than the newest, but not than it."""
    run_dir = new_run(
        "run.max_epochs=5",
        'hooks.checkpoint.args={monitor="given", mode="max", top=2, keep=1}',
        keeps(tmp_path, BY_EPOCH),
        *strikes(tmp_path, signal.SIGTERM, ("after_backward", at), times=2),
    )
    assert train_here(run_dir) == 143
    assert train_here(run_dir, resume=True) == 0
    assert its_of_best(run_dir) == {"best": 10, "best-2": 20, "last": 25}
