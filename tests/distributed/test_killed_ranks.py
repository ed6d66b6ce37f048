"""Two ranks of which one is killed at a random moment, again and again, end like two that were left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.runner.checkpoint.manifest import damage
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import records
from tests.distributed.conftest import NewClouds
from tests.distributed.several import carry_out, reason, records_of
from tests.killers import when_killed
from tests.runner.same import assert_each_once, assert_same_end

EVERYTHING = [  # beside what the pipeline has: clipping, an average, accuracy
    'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]',
    'hooks.checkpoint.args={monitor={accuracy="max", loss="min"}, top=2, keep=2}',
    'hooks.schedule={use="scheduler", args={chain=[{use="LinearLR", length="10%"}, {use="CosineAnnealingLR"}]}}',
    'hooks.seen={use="./clouds.py:far", points=["after_train_iter"], when="loss > 0.6", every=2}',
    'hooks.each={use="../killers.py:each", points=["after_train_iter"]}',
]
SETUPS = {
    "ddp": ["run.accumulate=2", 'model.use="./clouds.py:Normed"', "data.train.loader.drop_last=true"],
    "fsdp": ['distributed.strategy="fsdp"', "data.train.loader.workers=1"],
}
LONG = [pytest.param(setup, 2, 20, marks=pytest.mark.long) for setup in SETUPS]


@pytest.mark.parametrize(("setup", "seed", "kills"), [("ddp", 1, 2), *LONG])
def test_a_rank_killed_at_random(
    new_clouds: NewClouds, ranks_trained: NewClouds, tmp_path: Path, setup: str, seed: int, kills: int
) -> None:
    early_stop = f'{{use="early_stop", args={{monitor="loss", mode="min", patience={2 * kills}, min_delta=0.1}}}}'
    overrides = [*EVERYTHING, *SETUPS[setup], f"run.max_epochs={8 * kills}", f"hooks.early_stop={early_stop}"]
    alone = ranks_trained(*overrides)
    assert "has not improved" in reason(alone), "early stopping, too, is put to the test"
    lots = tmp_path / "lots"
    lots.mkdir()
    args = f'{{folder="{lots}", seed={seed}, kills={kills}}}'
    killed = new_clouds(*overrides, f'hooks.killer={{use="../killers.py:RankKiller", args={args}}}')
    for attempt in range(kills + 1):
        (lots / "attempt").write_text(str(attempt))
        codes = carry_out(killed, 2, resume=attempt > 0)
        assert (-9 in codes) == (attempt < kills), codes
        assert not [path for path in CheckpointStore(killed.checkpoints).all() if damage(path)], "whole or absent"
    assert codes == [0, 0]
    assert_same_end(alone, killed)
    assert_each_once(killed, "each", until=int(str(records(killed, "end")[-1]["it"])))
    print(f"killed {kills} times: {dict(when_killed(lots))}")


def test_the_log_of_another_rank_is_written_before_the_checkpoint(new_clouds: NewClouds) -> None:
    """And what a killed process has left is cleared away by one of the ranks."""
    run_dir = new_clouds(
        'hooks.each={use="../killers.py:each", points=["after_train_iter"], ranks="all"}',
        'hooks.killer.use="../killers.py:KillsRankOneAtTheCheckpoint"',
        'hooks.checkpoint.points=[{at="after_train_iter", every=3}]',
    )
    nobody = 4194305  # a pid more than any system has
    for number in range(1000):
        (run_dir.checkpoints / f".it{number:08d}.{nobody}").mkdir(parents=True)
    assert -9 in carry_out(run_dir, 2)
    logged = [record["v"]["each"] for record in records_of(run_dir, "scalars", 1) if "each" in record["v"]]
    assert logged == [1, 2, 3]
    assert not [*run_dir.checkpoints.glob(f".it*.{nobody}")]
