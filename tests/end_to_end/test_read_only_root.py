"""A container: the root file system is read-only, there is no home folder,
and one folder can be written.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TOY
from tests.support.limits import LIMIT

MOUNTED = """
set -eu
mount --bind "$1" "$1"
mount -o remount,bind,ro /
shift
exec "$@"
"""
"""A shell script that mounts a folder anew, and all else of the root file system read-only,
and executes a command.
"""


def hookflow_in_container(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where only `folder`, and memory, can be written."""
    script = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNTED, "sh", str(folder)]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(
        [*script, sys.executable, "-m", "hookflow", *arguments],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    script = (
        f"mount --bind {folder} {folder} && mount -o remount,bind,ro / && touch {folder}/x && test"
        " -w /dev/shm"
    )
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def test_a_run_is_trained_resumed_and_shown_where_one_folder_can_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "written"
    folder.mkdir()
    if not can_mount(folder):
        pytest.skip("this machine mounts nothing for a user")
    runs = f"run.dir='{folder / 'runs'}'"
    options = ("--ui", "plain", "--set", runs)
    begun = hookflow_in_container(folder, "run", str(TOY), *options, "--set", "run.max_epochs=1")
    assert begun.returncode == 0, begun.stderr
    (run,) = (folder / "runs").glob("*/*/")
    goes_on = hookflow_in_container(
        folder, "run", "--resume", str(run), "--ui", "plain", "--set", "run.max_epochs=2"
    )
    assert goes_on.returncode == 0, goes_on.stderr
    for command in (
        ["show", str(run)],
        ["runs", "--dir", str(folder / "runs")],
        ["run", str(TOY), "--dry-run"],
    ):
        done = hookflow_in_container(folder, *command)
        assert (done.returncode, done.stderr) == (0, ""), command
    elsewhere = hookflow_in_container(
        folder, "run", str(TOY), "--ui", "plain", "--set", "run.dir='/absent/runs'"
    )
    assert elsewhere.returncode == 2
    assert "/absent/runs: Read-only file system" in elsewhere.stderr
