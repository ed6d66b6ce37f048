"""The flagship: killed at random moments and resumed each time, a run ends like the run that was left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.runner.checkpoint.manifest import damage
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, Trained, records
from tests.killers import when_killed
from tests.processes import Training
from tests.runner.same import assert_each_once, assert_same_end
from tests.runner.test_loader_runs import over

EVERYTHING = [  # beside what the toy pipeline has: clipping, an average, a schedule, accuracy
    'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]',
    'hooks.checkpoint.args={monitor={accuracy="max", loss="min"}, top=2, keep=2}',
    'hooks.seen={use="./watchers.py:logs_iter", points=["after_train_iter"], when="loss > 0.6", every=2}',
    'hooks.each={use="./killers.py:each", points=["after_train_iter"]}',
]
CHAINED = 'hooks.schedule={use="scheduler", args={chain=[{use="LinearLR", length="10%"}, {use="CosineAnnealingLR"}]}}'

SETUPS: dict[str, tuple[str, list[str]]] = {
    "epochs": ("max_epochs = {epochs}", []),
    "iterations": ("max_iters = {iters}", ["run.val_every=7", CHAINED]),
    "accumulated": ("max_epochs = {epochs}", ["run.accumulate=2", "optimizer.args.lr=0.3", CHAINED]),
    "by workers": ("max_iters = {iters}", ["run.val_every=7", "run.accumulate=2", over("Clouds", workers=2)]),
}
KINDS = {
    "a stream": [over("Numbers")],
    "a stream with a state, by workers": [over("NumbersWithPlace", workers=2)],
    "a stream that shuffles": [over("ShuffledInIter")],
    "a stream that shuffles, by workers": [over("ShuffledWithFirst", workers=2), "run.accumulate=2"],
    "a task with a state": ['task.use="./own_tasks.py:Remembers"'],
}
"""What further kinds of data and task are killed in `make test-long`."""
CASES = [
    *((*SETUPS[setup], 1, 2) for setup in SETUPS),
    *(pytest.param(*SETUPS[setup], seed, 20, marks=pytest.mark.long) for setup in SETUPS for seed in (2, 3)),
    *(pytest.param("max_epochs = {epochs}", KINDS[kind], 4, 20, marks=pytest.mark.long) for kind in KINDS),
]


@pytest.mark.parametrize(("length", "setup", "seed", "kills"), CASES)
def test_killed_at_random_and_resumed(
    trained: Trained, new_run: NewRun, tmp_path: Path, length: str, setup: list[str], seed: int, kills: int
) -> None:
    swap = ("max_epochs = 3", length.format(epochs=8 * kills, iters=45 * kills - 1))
    patience = kills * (4 if "epochs" in length else 2)  # validations without progress: fewer where there are fewer
    early_stop = f'hooks.early_stop.args={{monitor="loss", mode="min", patience={patience}, min_delta=0.02}}'
    overrides = [*EVERYTHING, early_stop, *setup]
    alone = trained(*overrides, swap=swap)
    if (length, setup) in SETUPS.values():
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
    assert_each_once(killed, "each", until=int(str(records(killed, "end")[-1]["it"])))
    print(f"killed {kills} times: {dict(when_killed(tmp_path / 'attempts'))}")
    named = [
        {name: path.name for name, path in CheckpointStore(run.checkpoints).names().items()} for run in (alone, killed)
    ]
    assert named[0] == named[1]
