"""The command line as a user meets it: real processes, the shipped pipeline, files that stay."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hookflow.events.rundir import all_runs
from tests.conftest import TESTS, TOY, hookflow, hookflow_begun, hookflow_here, records, wait_for
from tests.support.limits import LIMIT
from tests.support.processes import Spawned
from tests.support.run_results import only_run
from tests.support.terminal import Terminal

ROOT = Path(__file__).parents[2]
CIFAR = ROOT / "pipelines" / "cifar.toml"
SMOKE = [
    f"--set={key}"
    for key in (
        "run.max_epochs=1",
        "model.args.widths=[8,8,8]",
        "data.train.args.limit=512",
        "data.val.args.limit=256",
        "data.test.args.limit=256",
    )
]
REAL = ROOT.parent / "shared" / "data" / "cifar10"
IMPATIENT = (
    "from hookflow.monitor import health; health.PATIENCE = 1; from hookflow.cli.app import main;"
    " main()"
)
SLOW = '--set=hooks.slow={use="./common_hooks.py:slow", points=["after_backward"]}'


def test_the_shipped_pipeline_on_drawn_pictures_says_so_everywhere(tmp_path: Path) -> None:
    no_download = [f"--set=data.{split}.args.download=false" for split in ("train", "val", "test")]
    done = hookflow("run", str(CIFAR), "--test", *SMOKE, *no_download, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any("SYNTHETIC" in line and "train: " in line for line in lines)
    assert any("SYNTHETIC" in line for line in lines[-8:]), "the summary says so, too"
    assert re.search(r"test +epoch 1/1  iter 2/2  .*accuracy 0\.\d+", done.stdout)
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout), (
        "plain lines hold no control characters"
    )
    run = only_run(tmp_path)
    assert records(run, "run")[0]["data"]["train"]["synthetic"]  # type: ignore[index]
    assert (run.checkpoints / "last" / "model.pt").exists()
    listed = hookflow_here("runs", cwd=tmp_path)
    assert run.id in listed.stdout
    assert "SYNTHETIC" in listed.stdout


@pytest.mark.long
@pytest.mark.skipif(not (REAL / "unpack.py").exists(), reason="no real images beside this checkout")
def test_the_shipped_pipeline_learns_on_real_pictures(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    subprocess.run(
        [sys.executable, REAL / "unpack.py", "--exact", tmp_path / "data"],
        check=True,
        capture_output=True,
    )
    limits = [
        "--set=data.train.args.limit=4096",
        "--set=data.val.args.limit=1000",
        "--set=run.max_epochs=3",
    ]
    root = f"--set=data.train.args.root={tmp_path / 'data'}"
    done = hookflow(
        "run", str(CIFAR), root, *limits, "--set=model.args.widths=[16,16,16]", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SYNTHETIC" not in done.stdout
    accuracy = records(only_run(tmp_path), "metrics")[-1]["v"]["accuracy"]  # type: ignore[index]
    assert accuracy > 0.2, "twice what guessing gives"


def test_ctrl_c_finishes_the_iteration_saves_and_exits_with_130(tmp_path: Path) -> None:
    with hookflow_begun("run", str(TOY), "--set=run.max_epochs=500", SLOW, cwd=tmp_path) as child:
        wait_for(
            lambda: (
                bool(all_runs(tmp_path / "runs")) and len(records(only_run(tmp_path), "epoch")) > 0
            )
        )
        child.send_signal(signal.SIGINT)
        printed, _ = child.communicate(timeout=LIMIT)
    assert child.returncode == 130
    assert " end        interrupted after " in printed
    assert f"hookflow run --resume {only_run(tmp_path).id}" in printed
    run = only_run(tmp_path)
    (end,) = records(run, "end")
    assert records(run, "checkpoint")[-1]["it"] == end["it"]

    more = f"--set=run.max_epochs={end['ep'] + 2}"  # type: ignore[operator]
    without = ("--without=slow", "--allow-changed-hooks")
    resumed = hookflow("run", "--resume", run.id, more, *without, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    epoch = -(-end["it"] // 5)  # type: ignore[operator]  # of five iterations each
    assert f"iteration {end['it']}, epoch {epoch}\n" in resumed.stdout
    assert records(run, "end")[-1]["status"] == "finished"


def test_a_hang_is_told_and_so_is_what_ctrl_c_does(tmp_path: Path) -> None:
    sleepy = f'--set=hooks.sleepy={{use="{TESTS}/distributed/actors.py:Hangs"}}'
    command = [sys.executable, "-c", IMPATIENT, "run", str(TOY), "--ui=plain", sleepy]
    with Spawned(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, bufsize=1) as child:
        assert child.stdout is not None
        lines = iter(child.stdout)
        stalled = next(line for line in lines if " stalled " in line and "sleepy" in line)
        assert re.search(r' stalled    \d+ s inside "sleepy" at after_train_iter$', stalled)
        child.send_signal(signal.SIGINT)
        told: list[str] = []
        # Or the two become one.
        while not all(any(word in line for line in told) for word in (" Ctrl-C ", " hears")):
            told.append(next(lines))
        (pressed,) = (line for line in told if " Ctrl-C " in line)
        assert (
            "finishing the iteration, saving a checkpoint; Ctrl-C again ends at once without saving"
            in pressed
        )
        child.send_signal(signal.SIGINT)
        assert any(line.endswith(" Ctrl-C     ending at once, without saving\n") for line in lines)
    assert child.returncode == 130


def test_what_killed_the_training_is_told_everywhere(tmp_path: Path) -> None:
    dies = '--set=hooks.dies={use="./process_hooks.py:Dies", args={by=9, at=13, saved=true}}'
    done = hookflow("run", str(TOY), "--ui=plain", dies, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGKILL
    reason = "killed by SIGKILL; the kernel's out-of-memory killer does that"
    assert re.search(rf" end        failed after 0:00:\d\d, 13 iterations: {reason}", done.stdout)
    run = only_run(tmp_path)
    assert f"epoch 3/3, iteration 13/15\n  failed: {reason}" in done.stdout
    assert f": hookflow run --resume {run.id}\n" in done.stdout
    page = " ".join(hookflow_here("show", run.id, cwd=tmp_path).stdout.split())
    assert f"failed: {reason}" in page
    assert "iteration 13 of 15" in page
    assert re.search(r"✗ failed +3/3 +13 ", hookflow_here("runs", cwd=tmp_path).stdout)
    watched = hookflow_here("watch", run.id, "--ui=plain", cwd=tmp_path)
    assert (watched.returncode, reason in watched.stdout) == (137, True)


def test_a_hook_that_ends_the_process_is_told(tmp_path: Path) -> None:
    done = hookflow(
        "run",
        str(TOY),
        "--ui=none",
        '--set=hooks.dies={use="./process_hooks.py:Dies"}',
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (3, ""), "none prints nothing but a failure"
    assert "failed: exited with code 3 " in done.stderr
    assert records(only_run(tmp_path), "end")[0]["it"] == 7


def test_killing_the_viewer_harms_no_run(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    waits = (
        f'--set=hooks.waits={{use="{TOY.parent}/common_hooks.py:WaitsFor",'
        f' args={{file="{go_on}"}}}}'
    )
    with hookflow_begun("run", str(TOY), waits, cwd=tmp_path, stdout=subprocess.DEVNULL) as viewer:
        wait_for(
            lambda: bool(all_runs(tmp_path / "runs")) and bool(records(only_run(tmp_path), "frame"))
        )
        viewer.kill()
    run = only_run(tmp_path)
    go_on.touch()
    wait_for(lambda: bool(records(run, "end")))
    assert records(run, "end")[0]["status"] == "finished"
    wait_for(lambda: run.life() == "gone")


def test_a_reader_that_goes_away_ends_no_run(tmp_path: Path) -> None:
    with hookflow_begun("run", str(TOY), cwd=tmp_path) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == ""
    assert child.returncode == 0
    assert records(only_run(tmp_path), "end")[0]["status"] == "finished"


def test_no_two_processes_train_in_one_directory(tmp_path: Path) -> None:
    (go_on := tmp_path / "go on").touch()
    waits = (
        f'--set=hooks.waits={{use="{TOY.parent}/common_hooks.py:WaitsFor",'
        f' args={{file="{go_on}"}}}}'
    )
    done = hookflow("run", str(TOY), "--ui=json", waits, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (
        0,
        only_run(tmp_path).events.read_text(),
    ), "the log, line by line"
    go_on.unlink()
    both = [
        hookflow_begun("run", "--resume", "--ui=none", "--set=run.max_epochs=6", cwd=tmp_path)
        for _ in range(2)
    ]
    wait_for(lambda: any(child.poll() is not None for child in both), "the refusal of the second")
    go_on.touch()
    said = [child.communicate(timeout=LIMIT)[1] for child in both]
    assert sorted(child.returncode for child in both) == [0, 2]
    assert "is already running" in "".join(said)
    assert len(records(only_run(tmp_path), "run")) == 2, "the first attempt and one that resumed it"


def test_the_dashboard_in_a_real_terminal(tmp_path: Path) -> None:
    command = (
        sys.executable,
        "-m",
        "hookflow",
        "run",
        str(TOY),
        "--set=run.max_epochs=50000",
        SLOW,
    )
    terminal = Terminal(*command, cwd=tmp_path)
    try:
        terminal.wait_for("RUNNING")
        terminal.wait_for("SYNTHETIC")
        terminal.press("q")
        terminal.wait_for("the training goes on")  # the footer has "detach", too
        terminal.press("d")
        assert terminal.finish() == 0
        assert terminal.mode == terminal.cooked
        run = only_run(tmp_path)
        assert run.life() == "alive", "the run goes on"
        assert f"hookflow watch {run.id}" in terminal.output.decode()
    finally:
        terminal.close()
        os.kill(only_run(tmp_path).describe()["pid"], signal.SIGTERM)
        wait_for(lambda: only_run(tmp_path).life() == "gone")
