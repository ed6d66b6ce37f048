"""The training process: what a hook, or a stranger, may do to it without harm to the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from tests.conftest import NewRun, Train, records
from tests.processes import Started, Training

ONE_EPOCH = "run.max_epochs=1"


def disturber(name: str, **args: object) -> str:
    provided = ", ".join(f"{key}={value!r}" for key, value in args.items())
    return f'hooks.disturber={{use="./disturbers.py:{name}", args={{{provided}}}}}'


@pytest.fixture
def here() -> Iterator[Path]:
    """Go back to the folder that the test was started in."""
    before = Path.cwd()
    yield before
    os.chdir(before)


def warnings(run_dir: RunDir) -> list[str]:
    return [str(record["text"]) for record in records(run_dir, "message") if record["level"] == "warn"]


def test_truncating_now_bin_does_not_kill_the_run(new_run: NewRun) -> None:
    run_dir = new_run(ONE_EPOCH, disturber("Truncates"))
    assert Training(run_dir).wait() == 0
    assert records(run_dir, "end")[0]["status"] == "finished"


def test_a_hook_may_change_the_working_directory(
    new_run: NewRun, train_here: Train, tmp_path: Path, here: Path
) -> None:
    run_dir = new_run(ONE_EPOCH, disturber("Moves", to=str(tmp_path)))
    relative = RunDir(Path(os.path.relpath(run_dir.path)))
    assert train_here(relative) == 0, records(run_dir, "end")
    assert (run_dir.checkpoints / "last").is_symlink()


def test_a_thread_that_never_ends_is_named_and_left(new_run: NewRun) -> None:
    run_dir = new_run(ONE_EPOCH, disturber("LeavesThread"))
    assert Started(run_dir).wait() == 0
    (warning,) = warnings(run_dir)
    assert '"uploader"' in warning
    assert "wait_forever" in warning
    assert "disturbers.py:" in warning
    assert records(run_dir, "end")[0]["status"] == "finished"
    assert warning in run_dir.output.read_text()


def test_threads_that_end_by_themselves_are_not_worth_a_word(new_run: NewRun) -> None:
    pool = disturber("LeavesPool").replace("disturber=", "pool=")
    run_dir = new_run(ONE_EPOCH, disturber("LeavesThread", seconds=0.2), pool)
    assert Started(run_dir).wait() == 0
    assert warnings(run_dir) == []
