"""What hookflow prints to goes away, at any time or before it starts: no run ends for that,
and nothing is raised.
"""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TOY, hookflow_begun, records, wait_for
from tests.support.limits import LIMIT
from tests.support.run_results import only_run
from tests.support.terminal import Terminal

HOOKFLOW = shlex.join([sys.executable, "-m", "hookflow"])
RUN = f"run {TOY} --set run.threads=1"
COMMANDS = [
    f"{RUN} --ui plain",
    f"{RUN} --ui json",
    f"{RUN} --detach",
    f"{RUN} --dry-run",
    f"check {TOY}",
    f"graph {TOY}",
    f"why ema log {TOY}",
    "watch latest --ui plain",
    "watch latest --ui json",
    "show latest",
    "runs",
    "checkpoints latest",
    "checkpoints latest --verify",
    "val latest",
    "compare latest latest",
    "export latest",
    "explain hooks",
    "explain points",
    "explain schema",
    "--help",
]
WAYS = (">&-", "<&- >&- 2>&-", ">/dev/full", "| true", "| head -c 1 >/dev/null", "2>&1 | true")


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("way", [pytest.param(">&-", marks=pytest.mark.long), "<&- >&- 2>&-"])
def test_a_run_whose_streams_are_closed_from_the_start(tmp_path: Path, way: str) -> None:
    done = shell(f"{HOOKFLOW} {RUN} {way}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = only_run(tmp_path)
    assert records(run, "end")[0]["status"] == "finished"
    assert run.output.read_text() == "", "no file of the run is taken for a stream"


@pytest.mark.parametrize(
    ("options", "full"),
    [("--in-process", ["stderr"]), ("--ui=plain", ["stdout"]), ("--ui=none", ["stdout", "stderr"])],
)
def test_what_went_wrong_is_recorded_where_none_can_print(
    tmp_path: Path, options: str, full: list[str]
) -> None:
    closes = '--set=hooks.closes={use="./process_hooks.py:ClosesOutput"}'
    with Path("/dev/full").open("w") as nowhere, (tmp_path / "printed").open("w") as printed:
        streams = {name: nowhere if name in full else printed for name in ("stdout", "stderr")}
        code = hookflow_begun("run", str(TOY), closes, options, cwd=tmp_path, **streams).wait(LIMIT)
    assert (code, "Traceback" in (tmp_path / "printed").read_text()) == (1, False)
    run = only_run(tmp_path)
    (error,), (end,) = records(run, "error"), records(run, "end")
    assert (error["hook"], error["text"], end["reason"]) == (
        "closes",
        "of mine",
        "ValueError: of mine",
    )


def test_a_terminal_that_is_gone_ends_the_dashboard_and_not_the_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    waits = f'--set=hooks.waits={{use="./process_hooks.py:Waits", args={{mark="{mark}"}}}}'
    terminal = Terminal(sys.executable, "-m", "hookflow", "run", str(TOY), waits, cwd=tmp_path)
    wait_for(mark.exists)
    terminal.wait_for("Overview")
    terminal.hang_up()
    assert terminal.child.wait(60) == 128 + signal.SIGHUP
    assert only_run(tmp_path).life() == "alive"
    mark.unlink()
    wait_for(lambda: bool(records(only_run(tmp_path), "end")))
    assert records(only_run(tmp_path), "end")[0]["status"] == "finished"


@pytest.mark.long
def test_every_command_whose_output_goes_nowhere(tmp_path: Path) -> None:
    assert shell(f"{HOOKFLOW} {RUN} --ui none", tmp_path).returncode == 0
    first = only_run(tmp_path).id
    for command in COMMANDS:
        for way in WAYS:
            done = shell(
                f"set -o pipefail; {HOOKFLOW} {command.replace('latest', first)} {way}", tmp_path
            )
            assert done.returncode in (0, 1, 2), (command, way, done)
            assert "Traceback" not in done.stderr, (command, way, done)
            assert "Exception ignored" not in done.stderr, (command, way, done)


@pytest.mark.long
def test_a_reader_that_goes_away_at_any_line(tmp_path: Path) -> None:
    for lines in range(1, 25):
        folder = tmp_path / str(lines)
        folder.mkdir()
        done = shell(f"{HOOKFLOW} {RUN} --ui plain | head -{lines}", folder)
        assert done.stderr == ""
        run = only_run(folder)
        assert records(run, "end")[0]["status"] == "finished", (
            "the viewer waits for it, and so does the pipe"
        )
