"""Two ranks of which one is killed at a random moment, again and again, end like two that were left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.events.log import Tail
from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.checkpoint.manifest import damage
from hookflow.runner.checkpoint.store import CheckpointStore
from hookflow.runner.process.launch import prepare
from tests.conftest import records
from tests.distributed.several import carry_out
from tests.killers import when_killed
from tests.runner.same import assert_each_once, assert_same_end

HERE = Path(__file__).parent
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


@pytest.mark.parametrize(("setup", "seed", "kills"), [("ddp", 1, 3), *LONG])
def test_a_rank_killed_at_random(tmp_path: Path, setup: str, seed: int, kills: int) -> None:
    early_stop = f'{{use="early_stop", args={{monitor="loss", mode="min", patience={2 * kills}, min_delta=0.1}}}}'
    overrides = [*EVERYTHING, *SETUPS[setup], f"run.max_epochs={8 * kills}", f"hooks.early_stop={early_stop}"]
    alone = new_run(tmp_path, *overrides)
    assert carry_out(alone, 2) == [0, 0]
    assert "has not improved" in str(records(alone, "end")[0]["reason"]), "early stopping, too, is put to the test"
    lots = tmp_path / "lots"
    lots.mkdir()
    args = f'{{folder="{lots}", seed={seed}, kills={kills}}}'
    killed = new_run(tmp_path, *overrides, f'hooks.killer={{use="../killers.py:RankKiller", args={args}}}')
    for attempt in range(kills + 1):
        (lots / "attempt").write_text(str(attempt))
        codes = carry_out(killed, 2, resume=attempt > 0)
        assert (-9 in codes) == (attempt < kills), codes
        store = CheckpointStore(killed.checkpoints)
        assert not [path for path in store.all() if damage(path)], "whole or absent"
    assert codes == [0, 0]
    assert_same_end(alone, killed)
    assert_each_once(killed, "each", until=int(str(records(killed, "end")[-1]["it"])))
    print(f"killed {kills} times: {dict(when_killed(lots))}")


def test_the_log_of_another_rank_is_written_before_the_checkpoint(tmp_path: Path) -> None:
    run_dir = new_run(
        tmp_path,
        'hooks.each={use="../killers.py:each", points=["after_train_iter"], ranks="all"}',
        'hooks.killer.use="../killers.py:KillsRankOneAtTheCheckpoint"',
        'hooks.checkpoint.points=[{at="after_train_iter", every=3}]',
    )
    assert -9 in carry_out(run_dir, 2)
    logged = [record for record in Tail(run_dir.events_of(1)).read_all() if record["k"] == "scalars"]
    assert [record["v"]["each"] for record in logged if "each" in record["v"]] == [1, 2, 3]


def test_what_was_left_is_cleared_away_by_one(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path, "run.max_epochs=1")
    nobody = 4194305  # a pid more than any system has
    for number in range(1000):
        (run_dir.checkpoints / f".it{number:08d}.{nobody}").mkdir(parents=True)
        (run_dir.checkpoints / f".it{number:08d}.{nobody}" / "model.pt").touch()
    assert carry_out(run_dir, 2) == [0, 0]
    assert not [*run_dir.checkpoints.glob(".it*")]


def new_run(folder: Path, *overrides: str) -> RunDir:
    loaded = load(HERE / "clouds.toml", overrides)
    run_dir = RunDir.create(folder, "clouds")
    prepare(loaded, compile_pipeline(loaded), run_dir, HERE)
    return run_dir
