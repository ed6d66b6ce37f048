"""`hookflow run FILE --dry-run`: everything once, a short report, nothing kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from tests.conftest import TOY, hookflow, records, wait_for

ONE = ("--set", "run.threads=1")


def dry(*options: str, cwd: Path) -> tuple[int, str, str]:
    done = hookflow("run", str(TOY), "--dry-run", *ONE, *options, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def test_it_says_what_the_run_would_train_and_keeps_nothing(tmp_path: Path) -> None:
    code, out, err = dry("--test", cwd=tmp_path)
    assert (code, err) == (0, "")
    first, *facts, last = out.splitlines()
    assert first.startswith(f"{TOY}: dry run passed in ")
    assert last.startswith("  checkpoint written and read back, ")
    assert facts == [
        "  model      Net, 83 parameters, on cpu (1 thread) in fp32",
        "  train      SYNTHETIC points, 5 batches of 8",
        "  val        SYNTHETIC points, 2 batches of 8",
        "  test       SYNTHETIC points, 2 batches of 8",
        "  length     3 epochs of 5 iterations: 15 iterations",
        "  fired      22 of 22 bindings, at 18 points",
    ]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("option", ["--dry-run", "--detach"])
def test_warnings_of_the_pipeline_are_printed_where_no_run_is_shown(tmp_path: Path, option: str) -> None:
    never = 'hooks.late={use="./watchers.py:slow", points=["after_val"], from="9ep"}'
    done = hookflow("run", str(TOY), option, *ONE, "--set", never, "--set", "run.max_epochs=1", cwd=tmp_path)
    assert done.returncode == 0
    assert "warning: --set " in done.stderr
    assert done.stderr.count('hook "late" never fires') == 1
    if option == "--detach":
        [run_dir] = (tmp_path / "runs" / "toy").iterdir()
        wait_for(lambda: records(RunDir(run_dir), "end"))


def test_every_hook_fires_whatever_its_trigger_and_the_rest_is_told_with_the_reason(tmp_path: Path) -> None:
    hooks = (
        'hooks.seldom={use="./watchers.py:slow", points=["after_train_iter"], every="90%", when="loss > 100"}',
        'hooks.late={use="./watchers.py:slow", points=["after_val"], from="2ep"}',
        'hooks.own={use="./watchers.py:slow", points=["after_grow"]}',
        'hooks.export={use="export", args={out_dir="out"}}',
        'points.after_grow={follows="after_optimizer_step"}',
        'hooks.rescue={use="checkpoint", points=["on_exception"]}',
        'hooks.inside={use="./watchers.py:slow", points=["forward"], modules=["head"], stages=["test"], every=3}',
        'hooks.judged={use="./watchers.py:slow", points=["forward"], modules=["head"], stages=["val"], every=3}',
    )
    code, out, _ = dry(*(part for hook in hooks for part in ("--set", hook)), cwd=tmp_path)
    assert code == 0
    silent = [line.removeprefix("  not fired ").strip() for line in out.splitlines() if ": " in line and " at " in line]
    assert silent == [
        "run.test is off: inside at forward, ema at before_test, accuracy at before_test_epoch, "
        "accuracy at after_test_iter, accuracy at after_test_epoch, ema at after_test",
        "nobody has fired this point in the first iteration: own at after_grow",
        "nothing has raised: rescue at on_exception",
    ]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("length", [("run.max_iters=100", "run.val_every='50it'"), ("run.accumulate=2",)])
def test_the_run_has_its_own_length_in_it(tmp_path: Path, length: tuple[str, ...]) -> None:
    """A chain of schedules that needs the whole run finds it."""
    chain = '{use="LinearLR", length="1ep"}, {use="CosineAnnealingLR"}'
    schedule = f'hooks.schedule={{use="scheduler", args={{chain=[{chain}]}}}}'
    code, out, err = dry("--set", schedule, *(part for key in length for part in ("--set", key)), cwd=tmp_path)
    assert code == 0, err
    assert ("length     100 iterations" in out) == (len(length) == 2)
    assert ("3 epochs of 3 iterations: 9 iterations" in out) == (len(length) == 1)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ('hooks.early_stop.args.monitor="top_accuracy"', 2, 'reads the metric "top_accuracy", which'),
        ("model.args.width=true", 2, "model"),
        ('hooks.bad={use="./watchers.py:Fails", args={place="after_val"}}', 1, "Traceback"),
    ],
)
def test_what_is_wrong_is_told_as_in_a_run(tmp_path: Path, change: str, code: int, said: str) -> None:
    found, out, err = dry("--set", change, cwd=tmp_path)
    assert found == code, err
    assert said in err
    assert "passed" not in out
    assert [*tmp_path.iterdir()] == []


def test_a_hook_that_raises_and_may_is_told(tmp_path: Path) -> None:
    bad = 'hooks.bad={use="./watchers.py:Fails", args={place="after_val"}, on_error="ignore"}'
    code, out, _ = dry("--set", bad, cwd=tmp_path)
    assert code == 0
    assert "raised " in out
    assert "bad at after_val" in out


@pytest.mark.parametrize("option", [["--detach"], ["--resume"], ["--nproc", "2"], ["--in-process"]])
def test_it_goes_with_nothing_that_starts_a_run(tmp_path: Path, option: list[str]) -> None:
    code, _, err = dry(*option, cwd=tmp_path)
    assert code == 2
    assert f"{option[0]}: cannot be given here" in err
