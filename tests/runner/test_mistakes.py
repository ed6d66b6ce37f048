"""A mistake that is found only while the run is being built: told once, and nothing else."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir, all_runs
from hookflow.monitor import feed, plain
from hookflow.runner.process import launch
from tests.conftest import TOY, hookflow, records
from tests.limits import LIMIT
from tests.monitor.test_terminal import Terminal

LINE = TOY.read_text().splitlines().index("args = { lr = 0.1, momentum = 0.9 }") + 1


@pytest.fixture
def mistaken(tmp_path: Path) -> Path:
    pipeline = tmp_path / "mine.toml"
    pipeline.write_text(TOY.read_text().replace('"./', f'"{TOY.parent}/').replace("lr = 0.1", "lrr = 0.1"))
    return pipeline


def test_plain_lines_tell_the_mistake_and_nothing_else(mistaken: Path, tmp_path: Path) -> None:
    done = hookflow("run", str(mistaken), "--ui=plain", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{mistaken}:{LINE}:10: ")
    assert done.stderr.count("lrr") == done.stderr.count("takes no argument") + 1, "the line itself, and what is wrong"
    assert len(all_runs(tmp_path / "runs")) == 1, "the run directory stays"
    again = hookflow("run", "--resume", "--ui=plain", cwd=tmp_path)
    assert again.returncode == 2
    assert "takes no argument" not in again.stdout
    assert again.stderr == done.stderr


def test_the_mistakes_of_all_sections_are_told_at_once(tmp_path: Path) -> None:
    text = TOY.read_text().replace('"./', f'"{TOY.parent}/')
    task = '[task]\nuse = "hookflow.zoo.tasks:Classification"\nargs = { label_smoothing = 2 }'
    wrong = {
        "lr = 0.1": 'lrr = 0.1, nesterov = "yes"',
        "split = 1": "splitt = 1",
        'toy.py:Net"': 'toy.py:Net"\nargs = { width = "wide" }',
        "[optimizer]": f"{task}\n\n[optimizer]",
    }
    for right, instead in wrong.items():
        text = text.replace(right, instead)
    (tmp_path / "mine.toml").write_text(text)
    done = hookflow("run", "mine.toml", "--ui=plain", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    told = [line for line in done.stderr.splitlines() if line.startswith("mine.toml:")]
    assert [line.split(" ", 1)[1] for line in told] == [
        'model: "width" must be an integer, not the string "wide"',
        'task: "label_smoothing" must be at most 1.0, not 2',
        'optimizer takes no argument "lrr"',
        'optimizer: "nesterov" must be true or false, not the string "yes"',
        'data.val takes no argument "splitt"',
    ]
    assert [int(line.split(":")[1]) for line in told] == sorted(int(line.split(":")[1]) for line in told)


def test_a_run_that_had_begun_is_summed_up(tmp_path: Path) -> None:
    monitor = "--set=hooks.early_stop.args={monitor='acuracy', mode='max'}"
    done = hookflow("run", str(TOY), "--ui=plain", monitor, "--set=run.threads=1", cwd=tmp_path)
    assert done.returncode == 2
    assert " end        failed after " in done.stdout
    assert "look again" in done.stdout
    assert done.stderr.count('did you mean "accuracy"?') == 1


BAD = f'--set=hooks.bad={{use="{TOY.parent}/watchers.py:Raises", args={{at=3}}}}', "--set=run.threads=1"


def test_a_run_that_is_to_say_nothing_does_not_fail_in_silence(tmp_path: Path) -> None:
    done = hookflow("run", str(TOY), "--ui=none", *BAD, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert '  failed: hook "bad" at after_backward, iteration 3: RuntimeError: as told\n' in done.stderr
    assert "look again: hookflow watch " in done.stderr


def test_a_failing_hook_is_shown_whole(tmp_path: Path) -> None:
    done = hookflow("run", str(TOY), "--ui=plain", *BAD, cwd=tmp_path)
    assert done.returncode == 1
    where = 'hook "bad" at after_backward, iteration 3, ends the run: RuntimeError: as told'
    for said in ("Traceback", "raise RuntimeError(self.message)", where):
        assert said in done.stdout, said
    assert done.stdout.count("Traceback (most recent call last)") == 1
    (run,) = all_runs(tmp_path / "runs")
    assert str(records(run, "error")[0]["traceback"]) in run.output.read_text()


def test_the_dashboard_leaves_by_itself(mistaken: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hookflow", "run", str(mistaken), "--ui=tui"]
    terminal = Terminal(*command, cwd=tmp_path)
    try:
        assert terminal.finish() == 2
        assert terminal.mode == terminal.cooked
        printed = terminal.output.decode()
        assert printed.count('did you mean "lr"?') == 1
        assert f"{mistaken}:{LINE}:10: " in printed.replace("\r\n", "\n")
    finally:
        terminal.close()


def test_an_old_mistake_does_not_end_the_dashboard_of_a_new_attempt(mistaken: Path, tmp_path: Path) -> None:
    hookflow("run", str(mistaken), "--ui=none", cwd=tmp_path)
    slow = f'--set=hooks.slow={{use="{TOY.parent}/watchers.py:slow", points=["after_backward"]}}'
    right = "--set=optimizer.args={lr=0.1}"
    command = [sys.executable, "-m", "hookflow", "run", "--resume", "--ui=tui", slow, right, "--set=run.max_epochs=500"]
    terminal = Terminal(*command, cwd=tmp_path)
    try:
        terminal.wait_for("RUNNING")
        (run,) = all_runs(tmp_path / "runs")
        terminal.press("q")
        terminal.wait_for("the training goes on")  # the footer has "detach", too
        terminal.press("d")
        assert terminal.finish() == 0
    finally:
        terminal.close()
        (run,) = all_runs(tmp_path / "runs")
        if run.life() == "alive":
            os.kill(run.describe()["pid"], signal.SIGKILL)


def test_a_file_named_like_a_module_of_the_standard_library_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "toy.toml").write_text((TOY.parents[1] / "pipelines" / "hello.toml").read_text())
    command = [sys.executable, "-P", "-m", "hookflow", "run", "toy.toml", "--ui", "plain"]  # as the installed command
    command += ["--set", f'hooks.draws={{use="{TOY.parent}/offloaded.py:Draws", offload="process"}}']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the wrong json" not in done.stdout + done.stderr


def test_a_training_that_dies_before_it_says_who_it_is_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir.create(tmp_path / "runs", "toy")
    run.sign(id=run.id)
    assert run.life() == "not started"
    monkeypatch.setattr(launch.sys, "executable", "/bin/false")
    launch.start(run).wait()
    assert run.life() == "gone"
    assert plain.follow(run, io.StringIO()) == feed.LOST
