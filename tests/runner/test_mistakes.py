"""Mistakes that are found while the run is being built, and those against the contract of tasks."""

import inspect
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir, all_runs
from hookflow.monitor import feed, plain
from hookflow.runner.model.task import single_numbers
from hookflow.runner.process import launch
from tests.conftest import TESTS, TOY, Trained, hookflow, messages, reason, records
from tests.support.common_hooks import BadTask
from tests.support.limits import LIMIT
from tests.support.own_tasks import StepOnly
from tests.support.terminal import Terminal

LINE = TOY.read_text().splitlines().index("args = { lr = 0.1, momentum = 0.9 }") + 1


class Misspelt(StepOnly):
    def evalute(self, run: Any, batch: Any) -> dict[str, Any]:
        raise AssertionError("nobody calls this")


class OneArgument:
    def step(self, batch: Any) -> dict[str, Any]:
        raise AssertionError("nobody calls this")


class HalfAState(StepOnly):
    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def mistaken(tmp_path: Path) -> Path:
    pipeline = tmp_path / "mine.toml"
    pipeline.write_text(
        TOY.read_text().replace('"./', f'"{TOY.parent}/').replace("lr = 0.1", "lr = -0.1")
    )
    return pipeline


def test_plain_lines_tell_the_mistake_and_nothing_else(mistaken: Path, tmp_path: Path) -> None:
    done = hookflow("run", str(mistaken), "--ui=plain", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{mistaken}:{LINE}:1: ")
    assert done.stderr.count("lr = -0.1") == done.stderr.count("learning rate: -0.1") == 1, (
        "what is wrong, and the line"
    )
    assert len(all_runs(tmp_path / "runs")) == 1, "the run directory stays"
    again = hookflow("run", "--resume", "--ui=plain", cwd=tmp_path, code=2)
    assert "learning rate" not in again.stdout
    assert again.stderr == done.stderr


def test_the_mistakes_of_all_sections_are_told_at_once(tmp_path: Path) -> None:
    text = TOY.read_text().replace('"./', f'"{TOY.parent}/')
    task = '[task]\nuse = "hookflow.zoo.tasks:Classification"\nargs = { label_smoothing = 2 }'
    wrong = {
        "lr = 0.1": 'lr = "fast", nesterov = "yes"',
        "split = 1": 'split = "one"',
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
        'optimizer: "lr" must be a number, not the string "fast"',
        'optimizer: "nesterov" must be true or false, not the string "yes"',
        'data.val: "split" must be an integer, not the string "one"',
    ]
    assert [int(line.split(":")[1]) for line in told] == sorted(
        int(line.split(":")[1]) for line in told
    )


def test_a_run_that_had_begun_is_summed_up(tmp_path: Path) -> None:
    monitor = "--set=hooks.early_stop.args={monitor='acuracy', mode='max'}"
    done = hookflow(
        "run", str(TOY), "--ui=plain", monitor, "--set=run.threads=1", cwd=tmp_path, code=2
    )
    assert " end        refused after " in done.stdout
    assert "look again" in done.stdout
    assert done.stderr.count('did you mean "accuracy"?') == 1


BAD = (
    f'--set=hooks.bad={{use="{TOY.parent}/common_hooks.py:Raises", args={{at=3}}}}',
    "--set=run.threads=1",
)


def test_a_run_that_is_to_say_nothing_does_not_fail_in_silence(tmp_path: Path) -> None:
    done = hookflow("run", str(TOY), "--ui=none", *BAD, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        '  failed: hook "bad" at after_backward, iteration 4: RuntimeError: as told\n'
        in done.stderr
    )
    assert "look again: hookflow watch " in done.stderr


def test_a_failing_hook_is_shown_whole(tmp_path: Path) -> None:
    done = hookflow("run", str(TOY), "--ui=plain", *BAD, cwd=tmp_path, code=1)
    where = 'hook "bad" at after_backward, iteration 4, ends the run: RuntimeError: as told'
    for said in ("Traceback", "raise RuntimeError(self.message)", where):
        assert said in done.stdout, said
    assert done.stdout.count("Traceback (most recent call last)") == 1
    (run,) = all_runs(tmp_path / "runs")
    assert str(records(run, "error")[0]["traceback"]) in run.output.read_text()


def test_a_mistake_ends_the_dashboard_and_not_that_of_a_new_attempt(
    mistaken: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "hookflow", "run", "--ui=tui"]
    terminal = Terminal(*command, str(mistaken), cwd=tmp_path)
    try:
        assert terminal.finish() == 2
        assert terminal.mode == terminal.cooked
        # Once the dashboard has left the screen.
        printed = terminal.output.decode().rpartition("\x1b[?1049l")[2]
        assert printed.count("Invalid learning rate: -0.1") == 1
        assert f"{mistaken}:{LINE}:1: " in printed.replace("\r\n", "\n")
    finally:
        terminal.close()
    slow = (
        f'--set=hooks.slow={{use="{TOY.parent}/common_hooks.py:slow", points=["after_backward"]}}'
    )
    terminal = Terminal(
        *command,
        "--resume",
        slow,
        "--set=optimizer.args={lr=0.1}",
        "--set=run.max_epochs=500",
        cwd=tmp_path,
    )
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


def test_a_file_named_like_a_module_of_the_standard_library_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "toy.toml").write_text((TESTS.parent / "pipelines" / "hello.toml").read_text())
    # As the installed command.
    command = [sys.executable, "-P", "-m", "hookflow", "run", "toy.toml", "--ui", "plain"]
    command += ["--set=run.max_epochs=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the wrong json" not in done.stdout + done.stderr


def test_a_training_that_dies_before_it_says_who_it_is_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.create(tmp_path / "runs", "toy")
    run.sign(id=run.id)
    assert run.life() == "not started"
    monkeypatch.setattr(launch.sys, "executable", "/bin/false")
    launch.start(run).wait()
    assert run.life() == "gone"
    assert plain.print_run(run, io.StringIO()) == feed.EXIT_LOST


@pytest.mark.parametrize(
    ("kind", "method", "message"),
    [
        ("tuple", "step", "a tuple"),
        ("no loss", "step", 'a dict without "loss" (it has losses)'),
        ("number", "step", "a loss that is a float, expected a tensor"),
        ("a loss each", "step", "a loss of shape (8,)"),
        ("no gradient", "step", "does not require a gradient"),
        ("tuple", "evaluate", "a tuple"),
        ("a loss each", "evaluate", "a loss of shape (8,)"),
    ],
)
def test_a_task_that_breaks_its_contract(
    trained: Trained, kind: str, method: str, message: str
) -> None:
    for sanity, it in [("true", 0), ("false", 5)] if method == "evaluate" else [("true", 0)]:
        task = (
            f'task={{use="./common_hooks.py:BadTask", args={{kind="{kind}", method="{method}"}}}}'
        )
        (end,) = records(trained(task, f"run.sanity={sanity}", code=2), "end")
        line = inspect.getsourcelines(getattr(BadTask, method))[1]
        assert f"common_hooks.py:{line}: the task's {method} " in str(end["reason"])
        assert message in str(end["reason"])
        assert end["it"] == it


def test_an_evaluation_needs_no_gradient(trained: Trained) -> None:
    detached = (
        'task={use="./common_hooks.py:BadTask", args={kind="no gradient", method="evaluate"}}'
    )
    off = [f"hooks.{name}.enabled=false" for name in ("accuracy", "early_stop", "checkpoint")]
    trained(detached, *off)


def test_a_value_that_a_constructor_refuses_says_where(trained: Trained) -> None:
    (error,) = records(trained("model.args.width=-1", code=1), "error")
    assert "linear.py" in str(error["traceback"])


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_numbers_of_16_bits_can_be_summed(half: torch.dtype) -> None:
    total: Any = 0.0
    for _ in range(1000):
        total = total + single_numbers({"mae": torch.tensor(1.0, dtype=half)})["mae"] * 500
    assert float(total) == 500_000
    kept = {"steps": torch.tensor(3), "exact": torch.tensor(0.1, dtype=torch.float64)}
    assert {value.dtype for value in single_numbers(kept).values()} == {torch.int64, torch.float64}


ONE_EPOCH = "run.max_epochs=1"


def task(name: str, args: str = "") -> str:
    return f'task={{use="./own_tasks.py:{name}"{args}}}'


def metrics(run_dir: RunDir) -> dict[str, float]:
    return records(run_dir, "metrics")[-1]["v"]  # type: ignore[return-value]


def test_a_function_or_a_step_alone_is_a_task(trained: Trained) -> None:
    """It trains like the class that does the same.

    A function takes arguments of the file, a class makes metrics.
    """
    tasks = [], [task("step")], [task("StepOnly")], [task("step", ", args={weight=0.0}")]
    shipped, function, step, weighted = (metrics(trained(ONE_EPOCH, *each)) for each in tasks)
    assert shipped["loss"] == function["loss"] == step["loss"] > weighted["loss"] == 0
    assert function.keys() >= {"loss", "confidence", "accuracy"}
    assert 1 / 3 < function["confidence"] < 1
    assert step["double"] == 2 * step["loss"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            'model={use="builtins:dict"}',
            "model must be a torch.nn.modules.module.Module, and this makes a dict",
        ),
        ('optimizer={use="builtins:dict"}', "optimizer must be a torch.optim.optimizer.Optimizer"),
        ('optimizer={use="torch.optim:LBFGS"}', "the step of LBFGS needs a closure"),
        ('task={use="builtins:dict"}', "a task needs a method step(run, batch); dict has none"),
        (
            'task={use="tests.runner.test_mistakes:Misspelt"}',
            'has a method evalute; did you mean "evaluate"?',
        ),
        (
            'task={use="tests.runner.test_mistakes:HalfAState"}',
            "the task HalfAState defines state_dict() and no load_state_dict()",
        ),
        (
            'task={use="tests.runner.test_mistakes:OneArgument"}',
            "the task's step must take the run and the batch: step(run, batch)",
        ),
        (
            task("step", ", args={wieght=2.0}"),
            'task takes no argument "wieght"; did you mean "weight"?',
        ),
    ],
)
def test_what_is_made_must_be_what_it_is_for(trained: Trained, override: str, message: str) -> None:
    assert message in reason(trained(override, code=2)).replace("\n    ", "; ")


def test_a_task_fires_points_of_the_pipeline(trained: Trained) -> None:
    point = 'points={after_densify={follows="before_train_iter", offers=["count"]}}'
    told = 'hooks.told={use="./common_hooks.py:tells", points=["after_densify"]}'
    assert messages(trained(ONE_EPOCH, task("Densifies"), point, told)) == ["told"] * 5
