"""What the system does not let anybody read or write is told by its name, with exit code 2 and no traceback."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hookflow.cli.app import main
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.runner.checkpoint.manifest import list_checkpoints
from tests.cli.test_hostile_runs import trained  # noqa: F401
from tests.conftest import TOY
from tests.permissions import permissions_hold

Command = Callable[..., tuple[int, str]]

OF_A_RUN = [
    ("watch", "RUN", "--ui", "plain"),
    ("watch", "RUN", "--ui", "json"),
    ("checkpoints", "RUN"),
    ("show", "RUN"),
    ("export", "RUN"),
    ("graph", "RUN"),
    ("diff", "RUN", str(TOY)),
    ("stop", "RUN"),
    ("run", "--resume", "RUN", "--set", "run.max_epochs=9"),
]


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:  # noqa: F811
    shutil.copytree(trained, tmp_path / "runs", symlinks=True)
    monkeypatch.chdir(tmp_path)
    return RunDir(next((tmp_path / "runs").glob("*/*")))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line where the permissions of files hold, and return the exit code and what it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["hookflow", *arguments])
        with permissions_hold(), pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), "".join(capsys.readouterr())

    return run


@pytest.mark.parametrize("arguments", OF_A_RUN, ids=[" ".join(one[:4]) for one in OF_A_RUN])
@pytest.mark.parametrize("of", ["directory", "event log"])
def test_a_run_that_cannot_be_read(run: RunDir, command: Command, arguments: tuple[str, ...], of: str) -> None:
    refused = run.path if of == "directory" else run.events
    refused.chmod(0)
    code, text = command(*(str(run.path) if one == "RUN" else one for one in arguments))
    refused.chmod(0o700)
    assert code == 2
    assert "Permission denied" in text
    assert run.id in text
    assert "Traceback" not in text


def test_one_that_cannot_be_read_hides_no_other(run: RunDir, command: Command) -> None:
    other = RunDir(shutil.copytree(run.path, run.path.with_name("20260101-000000-aaaa"), symlinks=True))
    run.events.chmod(0)
    code, text = command("runs")
    run.events.chmod(0o600)
    assert code == 0
    assert f"{run.id} is unreadable: its event log cannot be read: Permission denied" in text
    (row,) = (line for line in text.splitlines() if line.startswith(other.id))
    assert "finished" in row


def test_checkpoints_that_cannot_be_read_are_not_taken_for_none(run: RunDir, command: Command) -> None:
    run.checkpoints.chmod(0)
    code, text = command("checkpoints", str(run.path))
    with permissions_hold(), pytest.raises(PermissionError):
        list_checkpoints(run.checkpoints)
    run.checkpoints.chmod(0o700)
    assert (code, "checkpoints: Permission denied" in text) == (2, True), text


@pytest.mark.parametrize("name", ["plan.json", "pipeline.toml", "run.json"])
def test_a_run_is_not_resumed_that_does_not_say_what_it_was(run: RunDir, command: Command, name: str) -> None:
    (run.path / name).chmod(0)
    code, text = command("run", "--resume", str(run.path), "--set", "run.max_epochs=9", "--ui", "none")
    (run.path / name).chmod(0o600)
    assert code == 2
    assert name in text
    assert "Traceback" not in text


def test_nor_where_its_directory_cannot_be_written(run: RunDir, command: Command) -> None:
    run.lock.unlink(missing_ok=True)
    run.path.chmod(0o500)
    code, text = command("run", "--resume", str(run.path), "--set", "run.max_epochs=9", "--ui", "none")
    run.path.chmod(0o700)
    assert code == 2
    assert "Permission denied" in text


def test_what_run_json_lacks_is_told(run: RunDir) -> None:
    run.identity.write_text("{}")
    with pytest.raises(UserError, match=r"run\.json: it cannot be read, or does not say"):
        run.base()
