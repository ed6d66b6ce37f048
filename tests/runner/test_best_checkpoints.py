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


class LogsSometimes:
    """Logs the number "score" at the end of the epochs that have a value, and nothing at others."""

    def __init__(self, values: dict[str, float]) -> None:
        self._values = values

    def after_train_epoch(self, run: Any) -> None:
        value = self._values.get(str(run.epoch))
        if value is not None:
            run.log("score", value)


def logs_sometimes(values: dict[int, float]) -> str:
    table = ", ".join(f'"{epoch}"={value}' for epoch, value in values.items())
    return (
        f'hooks.scores={{use="{__file__}:LogsSometimes", args={{values={{{table}}}}},'
        ' before=["checkpoint?", "early_stop?"]}'
    )


def is_logged_at(values: dict[int, float]) -> dict[str, int]:
    """Return the best checkpoints, two at most: those of the epochs, of 5 iterations each,
    with the largest values.
    """
    epochs = sorted(values, key=lambda epoch: -values[epoch])[:2]
    return {name: 5 * epoch for name, epoch in zip(("best", "best-2"), epochs, strict=False)}


@pytest.mark.parametrize("cut_at", [None, 8, 13])
@pytest.mark.parametrize(
    "values", [{1: 0.5, 3: 0.4}, {1: 0.4, 4: 0.5}, {1: 0.1}], ids=["falls", "rises", "once"]
)
def test_an_epoch_that_logs_no_number_is_not_among_the_best(
    new_run: NewRun, train_here: Train, tmp_path: Path, values: dict[int, float], cut_at: int | None
) -> None:
    overrides = [
        "run.max_epochs=5",
        "hooks.early_stop.enabled=false",
        'hooks.checkpoint.after=["ema"]',
        'hooks.checkpoint.args={monitor="score", mode="max", stage="train", top=2, keep=1}',
        logs_sometimes(values),
    ]
    if cut_at is not None:
        overrides += strikes(tmp_path, signal.SIGTERM, ("after_backward", cut_at), times=2)
    run_dir = new_run(*overrides)
    if cut_at is not None:
        assert train_here(run_dir) == 143
    assert train_here(run_dir, resume=cut_at is not None) == 0
    assert its_of_best(run_dir) == {**is_logged_at(values), "last": 25}


def test_early_stop_judges_a_number_of_the_training_once(trained: Trained) -> None:
    """It is better each time, so it never stalls for two judgements in a row."""
    stop = 'hooks.early_stop.args={monitor="score", mode="max", stage="train", patience=2}'
    run_dir = trained("run.max_epochs=9", stop, logs_sometimes({1: 0.1, 4: 0.2, 8: 0.3}))
    assert records(run_dir, "end")[-1]["it"] == 45
