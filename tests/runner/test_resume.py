"""A run that was killed and resumed ends like the run that was left alone: to the bit."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import MANIFEST, read_manifest, seal
from hookflow.runner.checkpoint.store import CheckpointStore
from tests.conftest import NewRun, Train, Trained, messages, records, strikes
from tests.processes import Training
from tests.runner.same import assert_same_end

EVERY_3 = 'hooks.checkpoint.points=[{at="after_train_iter", every=3}, "after_val"]'


def test_a_damaged_checkpoint_is_named_and_passed_over(trained: Trained, train_here: Train) -> None:
    run_dir = trained("run.max_epochs=4")
    newest, older = CheckpointStore(run_dir.checkpoints).all()[:2]
    damaged = newest / "model.pt"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert train_here(run_dir, resume=True) == 0
    assert any(f"{newest.name} cannot be used" in text for text in messages(run_dir))
    assert any(f"resumed from {older.name}" in text for text in messages(run_dir))
    assert newest not in CheckpointStore(run_dir.checkpoints).all()[1:], "it makes room for whole ones"


def test_without_any_checkpoint_it_starts_at_the_beginning(new_run: NewRun, train_here: Train) -> None:
    run_dir = new_run("run.max_epochs=1")
    assert train_here(run_dir, resume=True) == 0
    assert any("starting at the beginning" in text for text in messages(run_dir))
    assert records(run_dir, "end")[-1]["it"] == 5


def with_checkpoints(new_run: NewRun, train: Train, then: Sequence[str], now: Sequence[str]) -> RunDir:
    """Train a run for an epoch with overrides, and return one with other overrides that has its checkpoints."""
    run_dir, other = new_run("run.max_epochs=1", *then), new_run(*now)
    assert train(run_dir) == 0
    run_dir.checkpoints.rename(other.checkpoints)
    return other


def test_an_average_that_the_checkpoint_does_not_have_starts_from_its_weights(
    new_run: NewRun, train_here: Train
) -> None:
    run_dir = with_checkpoints(new_run, train_here, ["hooks.ema.enabled=false"], ["run.max_epochs=2"])
    assert train_here(run_dir, resume=True, allow_changed_hooks=True) == 0
    assert any('does not know the hook "ema"' in text for text in messages(run_dir))
    assert (run_dir.checkpoints / "last" / "model_ema.pt").exists()


def test_a_checkpoint_of_another_model_is_the_users_mistake(new_run: NewRun, train_here: Train) -> None:
    run_dir = with_checkpoints(new_run, train_here, [], ["model.args.width=16"])
    assert train_here(run_dir, resume=True) == 2
    reason = str(records(run_dir, "refused")[-1]["reason"])
    assert "does not fit this pipeline" in reason
    assert "head.weight" in reason


def test_a_checkpoint_without_an_optimizer_is_the_users_mistake(new_run: NewRun, train_here: Train) -> None:
    run_dir = with_checkpoints(new_run, train_here, [], [])
    newest = CheckpointStore(run_dir.checkpoints).all()[0]
    manifest = read_manifest(newest)
    del manifest["files"]["optimizer.pt"]
    (newest / MANIFEST).write_text(seal(manifest))
    assert train_here(run_dir, resume=True) == 2
    reason = str(records(run_dir, "refused")[-1]["reason"])
    assert "the checkpoint does not fit this pipeline: it has no optimizer" in reason


def test_hooks_that_are_gone_or_new(new_run: NewRun, train_here: Train) -> None:
    """One with a state is missed, and one without is not; a new one fires at the multiples to come."""
    run_dir = with_checkpoints(
        new_run,
        train_here,
        [],
        [
            "hooks.early_stop.enabled=false",
            "hooks.clip.enabled=false",
            'hooks.plain={use="./watchers.py:slow", points=["after_train"]}',
            'hooks.logs={use="./watchers.py:logs_iter", points=["after_train_iter"], every=4}',
        ],
    )
    assert train_here(run_dir, resume=True, allow_changed_hooks=True) == 0
    (missed,) = [text for text in messages(run_dir) if "that this pipeline does not have" in text]
    assert '"early_stop"' in missed, "and not the one without a state"
    assert not [text for text in messages(run_dir) if '"plain": it starts anew' in text]
    logged = [record["it"] for record in records(run_dir, "scalars") if "train/iter" in record["v"]]  # type: ignore[operator]
    assert logged == [8, 12]


def test_what_an_epoch_had_entered_is_entered_again_and_nothing_else(
    new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    """Every other epoch is entered: whether this one was is not asked again in the middle of it."""
    marks = tmp_path / "around"
    around = f'hooks.around={{use="./watchers.py:Around", args={{file="{marks}"}}, every=2}}'
    killed = new_run(EVERY_3, around, *strikes(tmp_path, 9, ("after_forward", 4), ("after_forward", 7)))
    assert Training(killed).wait() == -9
    assert Training(killed, resume=True).wait() == -9
    assert marks.read_text().split() == ["entered", "entered", "left"], "the first epoch, twice; not the second"
    assert Training(killed, resume=True).wait() == 0
    assert marks.read_text().split()[3:] == ["entered", "left"], "the third"


def test_a_modules_extra_state_goes_through_every_hook_that_keeps_weights(resumes_alike: NewRun) -> None:
    swa = 'hooks.swa={use="swa", args={begin="1ep", lr=0.02}}'
    export = 'hooks.export={use="export", args={formats=["state_dict"]}}'
    resumes_alike('model.use="./toy.py:Counts"', swa, export, point="after_train_iter", at=12)


LOST = "the task Forgets changes buffer, draws, target, steps while it trains, and no checkpoint holds that"


@pytest.mark.parametrize("task", ["Remembers", "Forgets"])
def test_a_tasks_own_state(new_run: NewRun, train_here: Train, tmp_path: Path, task: str) -> None:
    """What has one is resumed to the bit; what has none is named."""
    use = f'task.use="./own_tasks.py:{task}"'
    alone = new_run(use, EVERY_3)
    killed = new_run(use, EVERY_3, *strikes(tmp_path, signal.SIGKILL, ("after_train_iter", 11)))
    assert train_here(alone) == 0
    assert Training(killed).wait() == -signal.SIGKILL
    assert train_here(killed, resume=True) == 0
    for run_dir in (alone, killed):
        assert any(text.startswith(LOST) for text in messages(run_dir)) == (task == "Forgets")
    if task == "Remembers":
        assert_same_end(killed, alone)


def test_data_that_change_are_named(trained: Trained) -> None:
    run_dir = trained('data.train.use="./toy.py:Curriculum"', "data.train.loader={batch_size=8}", "run.max_epochs=1")
    assert any(text.startswith("data.train (Curriculum) changes harder while it trains") for text in messages(run_dir))


def test_a_task_that_has_a_state_only_now_is_reported(trained: Trained, train_here: Train, tmp_path: Path) -> None:
    run_dir = trained('task.use="./own_tasks.py:Forgets"', "run.max_epochs=1")
    text = run_dir.pipeline.read_text().replace("Forgets", "Remembers").replace("max_epochs = 1", "max_epochs = 2")
    run_dir.pipeline.write_text(text)
    assert train_here(run_dir, resume=True) == 0
    assert "the checkpoint has no state of the task: the task starts anew" in messages(run_dir)
