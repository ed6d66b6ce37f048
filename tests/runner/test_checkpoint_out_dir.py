"""`out_dir` of the hook `checkpoint`: the checkpoints are elsewhere, and everything finds them in the run directory."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from hookflow.cli.evaluate import find_checkpoint
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import RUN, damage
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, Train, Trained, hookflow_here, records, run_here
from tests.runner.same import assert_same_end
from tests.runner.test_resume import strikes


def in_folder(folder: Path, name: str = "checkpoint") -> str:
    return f'hooks.{name}={{use="checkpoint", args={{monitor="accuracy", keep=2, out_dir="{folder}"}}}}'


def test_the_commands_find_them(trained: Trained, tmp_path: Path) -> None:
    run = trained(in_folder(tmp_path / "big"), "run.max_epochs=1")
    listed = hookflow_here("checkpoints", str(run.path), "--verify", cwd=tmp_path)
    assert listed.returncode == 0 and "best" in listed.stdout, listed.stdout
    for named in (f"{run.path}:best", str(run.checkpoints / "best"), str(run.checkpoints / "it00000005")):
        result, checkpoint = find_checkpoint(named, tmp_path / "runs")
        assert (result.path, checkpoint.resolve().name) == (run.path, "it00000005")
    there = tmp_path / "big/toy" / run.id
    result, _ = find_checkpoint(str(there / "best"), tmp_path / "runs")
    assert result.path.samefile(run.path)
    (there / RUN).unlink()
    with pytest.raises(UserError, match="is a checkpoint without its run"):
        find_checkpoint(str(there / "best"), tmp_path / "runs")


def test_two_folders_are_refused_before_the_training(trained: Trained, tmp_path: Path) -> None:
    run = trained(in_folder(tmp_path / "one"), in_folder(tmp_path / "two", "other"), code=2)
    assert "the checkpoints of a run are in one folder, and out_dir says" in str(records(run, "end")[-1]["reason"])


def test_a_run_that_has_checkpoints_keeps_them_where_they_are(tmp_path: Path) -> None:
    here = tmp_path / "checkpoints"
    (here / "it00000005").mkdir(parents=True)
    with pytest.raises(UserError, match="keep out_dir as it was in a run that is resumed"):
        CheckpointStore(here).keep_in(tmp_path, Path("a/big"))
    assert not here.is_symlink()


def test_an_empty_folder_and_a_link_to_one_give_way(tmp_path: Path) -> None:
    here, big, bigger = tmp_path / "checkpoints", Path("a/big"), Path("b/bigger")
    here.mkdir()
    (tmp_path / bigger).mkdir(parents=True)
    for place in (big, big, bigger):
        CheckpointStore(here).keep_in(tmp_path, place)
        assert here.resolve() == tmp_path / place
    path = CheckpointStore(here).save({"model": {}}, ["last"], {"it": 1, "ep": 0}).path
    CheckpointStore(here).keep_in(tmp_path, bigger)
    assert (tmp_path / bigger / path.name).exists()


@pytest.mark.parametrize(("new", "relative"), [("there/toy", True), ("there/other", False)])
def test_a_run_that_was_moved_is_resumed_to_the_bit(
    trained: Trained,
    new_run: NewRun,
    train_here: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new: str,
    relative: bool,
) -> None:
    """With a relative `out_dir` the folder of the checkpoints moves along."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    big = Path("big") if relative else tmp_path / "big"
    alone, broken = trained(), new_run(in_folder(big), *strikes(tmp_path, signal.SIGTERM, ("after_backward", 7)))
    assert train_here(broken) == 143
    assert broken.checkpoints.resolve() == big.absolute() / "toy" / broken.id
    moved = RunDir(tmp_path / new / broken.id)
    moved.path.parent.mkdir(parents=True)
    broken.path.rename(moved.path)
    if relative:
        home.rename(tmp_path / "home2")
        monkeypatch.chdir(tmp_path / "home2")
    done = run_here("--resume", str(moved.path), cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert_same_end(alone, moved)
    there = {path.name for path in alone.checkpoints.iterdir()} | {RUN}
    assert {path.name for path in moved.checkpoints.iterdir()} == there
    assert not any(damage(path) for path in CheckpointStore(moved.checkpoints).all())
    assert {str(record["path"]) for record in records(moved, "checkpoint")} >= {"checkpoints/it00000015"}
    result, _ = find_checkpoint(str(moved.checkpoints.resolve() / "best"), tmp_path / "runs")
    assert result.path.samefile(moved.path)


def test_a_copy_of_a_run_does_not_write_into_its_checkpoints(trained: Trained, tmp_path: Path) -> None:
    run = trained(in_folder(tmp_path / "big"), "run.max_epochs=1")
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copies" / "toy" / run.id, symlinks=True))
    done = run_here("--resume", str(copy.path), "--set", "run.max_epochs=2", cwd=tmp_path)
    assert done.returncode == 2
    assert f"has the checkpoints of runs/toy/{run.id}, of which this run is a copy" in done.stderr
    copy.checkpoints.unlink()
    shutil.copytree(run.checkpoints, copy.checkpoints, symlinks=True)
    sets = ("--set", "run.max_epochs=2", "--set", "hooks.checkpoint.args.out_dir=null", "--allow-changed-hooks")
    done = run_here("--resume", str(copy.path), *sets, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
