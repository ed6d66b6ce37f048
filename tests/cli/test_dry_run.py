"""`hookflow run FILE --dry-run`: everything once, a short report, nothing kept."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hookflow.events.rundir import RunDir
from tests.conftest import TOY, hookflow, hookflow_here, records, wait_for
from tests.toy import Net

ONE = "--set=run.threads=1"
NEVER = '--set=hooks.late={use="./watchers.py:slow", points=["after_val"], from="9ep"}'


def dry(*options: str, cwd: Path, code: int = 0) -> CompletedProcess[str]:
    done = hookflow_here("run", str(TOY), "--dry-run", ONE, *options, cwd=cwd)
    assert done.returncode == code, done.stderr
    assert [*cwd.iterdir()] == []
    return done


def test_it_says_what_the_run_would_train_and_keeps_nothing(tmp_path: Path) -> None:
    done = hookflow("run", str(TOY), "--dry-run", ONE, "--test", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    first, *facts, last = done.stdout.splitlines()
    assert first.startswith(f"{TOY}: dry run passed in ")
    assert last.startswith("  checkpoint written and read back, ")
    assert facts == [
        "  model      Net, 83 parameters, on cpu (1 thread) in fp32",
        "  layers     body.0  Linear       8×4, 8  40  160 B",
        "             body.1  BatchNorm1d  8, 8    16  64 B",
        "             head    Linear       3×8, 3  27  108 B",
        "             83 trainable parameters, 332 B of weights",
        "  train      SYNTHETIC points, 5 batches of 8",
        "  val        SYNTHETIC points, 2 batches of 8",
        "  test       SYNTHETIC points, 2 batches of 8",
        "  length     3 epochs of 5 iterations: 15 iterations",
        "  fired      22 of 22 bindings, at 18 points",
    ]
    assert [*tmp_path.iterdir()] == []


def test_it_says_what_is_frozen_and_how_many_examples_a_step_takes(tmp_path: Path) -> None:
    net = f"--set=model.use='{__file__}:Frozen'"
    printed = hookflow("run", str(TOY), "--dry-run", ONE, net, "--set=run.accumulate=3", cwd=tmp_path).stdout
    assert "  layers     body.0  Linear       8×4, 8  40  160 B  32 frozen\n" in printed
    assert "             head    Linear       3×8, 3  27  108 B  frozen\n" in printed
    assert "             24 trainable parameters, 332 B of weights\n" in printed
    words = "examples of an optimizer step: 8 × accumulate 3 = 24; the last of an epoch has 16"
    assert f"  step       {words}\n" in printed


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head.requires_grad_(False)
        self.body[0].weight.requires_grad_(False)


def test_warnings_of_the_pipeline_are_printed_where_no_run_is_shown(tmp_path: Path) -> None:
    detached = hookflow("run", str(TOY), "--detach", ONE, NEVER, "--set", "run.max_epochs=1", cwd=tmp_path)
    [run_dir] = (tmp_path / "runs" / "toy").iterdir()
    (tmp_path / "empty").mkdir()
    for done in (detached, dry(NEVER, cwd=tmp_path / "empty")):
        assert "warning: --set " in done.stderr
        assert done.stderr.count('hook "late" never fires') == 1
    wait_for(lambda: records(RunDir(run_dir), "end"))


def test_every_hook_fires_whatever_its_trigger_and_the_rest_is_told_with_the_reason(tmp_path: Path) -> None:
    hooks = (
        'hooks.seldom={use="./watchers.py:slow", points=["after_train_iter"], every="90%", when="loss > 100"}',
        'hooks.late={use="./watchers.py:slow", points=["after_val"], from="2ep"}',
        'hooks.own={use="./watchers.py:slow", points=["after_grow"]}',
        'hooks.export={use="export", args={out_dir="out"}}',
        'points.after_grow={follows="after_optimizer_step"}',
        'hooks.predicts={use="./watchers.py:slow", points=["after_predict_iter"]}',
        'hooks.rescue={use="checkpoint", points=["on_exception"]}',
        'hooks.inside={use="./watchers.py:slow", points=["forward"], modules=["head"], stages=["test"], every=3}',
        'hooks.bad={use="operator:truediv", args=[1, 0], points=["after_val"], on_error="ignore"}',
        'hooks.judged={use="./watchers.py:slow", points=["forward"], modules=["head"], stages=["val"], every=3}',
    )
    out = dry(*(f"--set={hook}" for hook in hooks), cwd=tmp_path).stdout
    silent = [line.removeprefix("  not fired ").strip() for line in out.splitlines() if ": " in line and " at " in line]
    assert silent == [
        "run.test is off: inside at forward, ema at before_test, accuracy at before_test_epoch, "
        "accuracy at after_test_iter, accuracy at after_test_epoch, ema at after_test",
        "nobody has fired this point in the first iteration: own at after_grow",
        "raised ZeroDivisionError: division by zero: bad at after_val",
        "it is a point of hookflow predict: predicts at after_predict_iter",
        "nothing has raised: rescue at on_exception",
    ]


def test_the_run_has_its_own_length_in_it(tmp_path: Path) -> None:
    """A chain of schedules that needs the whole run finds it."""
    chain = '{use="LinearLR", length="1ep"}, {use="CosineAnnealingLR"}'
    schedule = f'--set=hooks.schedule={{use="scheduler", args={{chain=[{chain}]}}}}'
    by_iters = dry(schedule, "--set=run.max_iters=100", "--set=run.val_every='50it'", cwd=tmp_path)
    assert "length     100 iterations" in by_iters.stdout
    assert "3 epochs of 3 iterations: 9 iterations" in dry(schedule, "--set=run.accumulate=2", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("change", "code", "printed"),
    [
        ('hooks.early_stop.args.monitor="top_accuracy"', 2, 'reads the metric "top_accuracy", which'),
        ("model.args.width=true", 2, "model"),
        ('hooks.bad={use="./watchers.py:Fails", args={place="after_val"}}', 1, "Traceback"),
    ],
)
def test_what_is_wrong_is_told_as_in_a_run(tmp_path: Path, change: str, code: int, printed: str) -> None:
    done = dry("--set", change, cwd=tmp_path, code=code)
    assert printed in done.stderr
    assert "passed" not in done.stdout


def test_it_goes_with_nothing_that_starts_a_run(tmp_path: Path) -> None:
    wrong = dry("--detach", "--resume", "--nproc=2", "--in-process", cwd=tmp_path, code=2).stderr
    for option in ("--detach", "--resume", "--nproc", "--in-process"):
        assert f"{option}: cannot be given here" in wrong
