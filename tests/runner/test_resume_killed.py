"""The flagship: killed at random moments and resumed each time, a run ends like the run that was left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hookflow.runner.checkpoint import CheckpointStore
from hookflow.runner.manifest import damage
from tests.conftest import NewRun, records
from tests.processes import Training
from tests.runner.same import assert_same_end

Train = Callable[..., int]
EVERYTHING = [
    'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]',
    'hooks.checkpoint.args={monitor={accuracy="max", loss="min"}, top=2, keep=2}',
    'hooks.seen={use="./watchers.py:logs_iter", points=["after_train_iter"], when="loss > 0.6", every=2}',
]


@pytest.mark.parametrize("length", ["epochs", "iterations"])
@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 3), pytest.param(2, 20, marks=pytest.mark.long), pytest.param(3, 20, marks=pytest.mark.long)],
)
def test_killed_at_random_and_resumed(
    new_run: NewRun, train_here: Train, tmp_path: Path, length: str, seed: int, kills: int
) -> None:
    lasts = f"max_epochs = {6 * kills}" if length == "epochs" else f"max_iters = {30 * kills - 1}"
    swap = ("max_epochs = 3", lasts)
    unit = ["run.val_every=7"] if length == "iterations" else []
    early_stop = f'hooks.early_stop.args={{monitor="loss", mode="min", patience={2 * kills}, min_delta=0.02}}'
    overrides = [*EVERYTHING, early_stop, *unit]
    alone = new_run(*overrides, swap=swap)
    assert train_here(alone) == 0
    assert "has not improved" in str(records(alone, "end")[0]["reason"]), "early stopping, too, is put to the test"
    (tmp_path / "attempts").mkdir()
    args = f'{{folder="{tmp_path / "attempts"}", seed={seed}, kills={kills}}}'
    killed = new_run(*overrides, f'hooks.killer={{use="./killers.py:Killer", args={args}}}', swap=swap)
    codes = [Training(killed).wait()]
    while codes[-1] == -9:
        store = CheckpointStore(killed.checkpoints)
        assert not [path for path in store.all() if damage(path)], "whole or absent"
        codes.append(Training(killed, resume=True).wait())
    assert codes[-1] == 0
    assert len(codes) == kills + 1, "it was over before it had been killed so often"
    assert_same_end(alone, killed)
    named = [
        {name: path.name for name, path in CheckpointStore(run.checkpoints).names().items()} for run in (alone, killed)
    ]
    assert named[0] == named[1]
