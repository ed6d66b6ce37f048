"""The preparation of a run in a process of its own, which hands over the run, its locks,
or what was raised.
"""

import os
import pty
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import typer

from hookflow.cli.preparation import prepare_in_child
from hookflow.errors import Problem, UserError, Where
from hookflow.events.run_lock import is_locked, release
from hookflow.events.rundir import RunDir
from hookflow.runner.process.launch import claim, keep
from tests.conftest import TOY, wait_for
from tests.support.limits import LIMIT


def test_what_the_preparation_imports_stays_out_of_this_process(tmp_path: Path) -> None:
    module = "this_module_is_imported_by_hooks"
    (tmp_path / f"{module}.py").write_text("")
    run_dir = RunDir.create(tmp_path, "toy")

    def find() -> RunDir:
        sys.path.insert(0, str(tmp_path))
        __import__(module)
        run_dir.sign(starter={"pid": os.getpid()})
        return run_dir

    assert prepare_in_child(find).path == run_dir.path
    assert module not in sys.modules
    assert run_dir.describe()["starter"]["pid"] == os.getpid(), (
        "the run lives as long as this process, until it trains"
    )


def test_locks_that_are_kept_are_held_by_this_process(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path, "toy")

    def find() -> RunDir:
        keep(run_dir, claim(run_dir))
        return run_dir

    prepared = prepare_in_child(find)
    assert is_locked(run_dir.path)
    release(claim(prepared))
    assert not is_locked(run_dir.path)


@pytest.mark.parametrize(
    "error",
    [
        UserError(Problem("no such hook", Where("a.toml", 3, 2))),
        PermissionError(13, "denied", "a.toml"),
    ],
)
def test_a_mistake_is_raised_again(error: Exception) -> None:
    def find() -> RunDir:
        raise error

    with pytest.raises(type(error)) as raised:
        prepare_in_child(find)
    assert str(raised.value) == str(error)


def test_a_command_that_ends_in_the_preparation_ends(capfd: pytest.CaptureFixture[str]) -> None:
    def find() -> RunDir:
        raise typer.Exit(0)

    with pytest.raises(typer.Exit) as ended:
        prepare_in_child(find)
    assert ended.value.exit_code == 0
    assert capfd.readouterr().err == ""


def test_another_error_is_printed_once_and_ends_the_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def find() -> RunDir:
        raise RuntimeError("of hookflow itself")

    with pytest.raises(typer.Exit) as ended:
        prepare_in_child(find)
    assert ended.value.exit_code == 1
    assert capfd.readouterr().err.count("RuntimeError: of hookflow itself") == 1


def read_all(terminal: int) -> None:
    """Read what is written to a terminal: who writes waits for that."""
    with suppress(OSError):  # it is closed
        while os.read(terminal, 1 << 16):
            pass


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux says which files a process has in memory"
)
@pytest.mark.parametrize("ui", ["tui", "plain"])
def test_the_viewer_of_a_run_with_hooks_that_import_torch_has_no_torch(
    tmp_path: Path, ui: str
) -> None:
    mark = tmp_path / "mark"
    waits = f'--set=hooks.waits={{use="./process_hooks.py:Waits", args={{mark="{mark}"}}}}'
    command = [
        sys.executable,
        "-m",
        "hookflow",
        "run",
        str(TOY),
        waits,
        "--set=run.threads=1",
        f"--ui={ui}",
    ]
    terminal, end = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), end)
    viewer = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "TERM": "xterm"}, **streams)
    threading.Thread(target=read_all, args=(terminal,), daemon=True).start()
    try:
        wait_for(mark.exists)
        files = {Path(each.path).name for each in psutil.Process(viewer.pid).memory_maps()}
        assert not [name for name in files if "torch" in name]
    finally:
        mark.unlink(missing_ok=True)
        viewer.terminate()
        viewer.wait(LIMIT)
        os.close(terminal)
        os.close(end)
