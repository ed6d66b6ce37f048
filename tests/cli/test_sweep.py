"""`hookflow sweep`: trials side by side, what fails, what goes on,
what a sampler and a pruner are told, Slurm.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from hookflow import runs as hookflow_runs
from hookflow.cli.sweep_groups import format_settings
from hookflow.events.rundir import RunDir
from hookflow.monitor.aggregate import MetricAggregate
from hookflow.numbers import number
from hookflow.pipeline.schema import SweepRange, SweepSection
from hookflow.sweep.executor import list_gpus
from hookflow.sweep.search import STUDY_NAME, SweepTrial, draw_value, judge, suggest
from hookflow.sweep.sweep import Sweep
from hookflow.sweep.trial_groups import group_trials
from hookflow.sweep.trial_server import wait_for_trial
from tests.cli.conftest import invoke, refused
from tests.conftest import TOY, hookflow, hookflow_begun, records, wait_for

HOOK = """\
import os
import signal
import time
from pathlib import Path

class Upset:
    def __init__(self, fail: bool | str = False, waits: bool = False) -> None:
        self.fail, self.waits = fail, waits

    def before_train(self, run):
        usual = signal.getsignal(signal.SIGINT)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *got: (Path("go").touch(), usual(*got)))
        Path(f"seen-{self.fail}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", ""))

    def after_train_epoch(self, run):
        if self.fail == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fail and not Path("mended").exists():
            raise ValueError("as it was meant to")
        while self.waits and run.epoch > 1 and not Path("go").exists():
            time.sleep(0.01)
"""
PIPELINE = f"""\
extends = "{TOY}"
[run]
threads = 1
max_epochs = 3
[hooks.upset]
use = "./upset.py:Upset"
[sweep]
metric = "accuracy"
"""
GRID = '[sweep.grid]\n"hooks.upset.args.fail" = [false, true]\n'


@pytest.fixture
def folder(here: Path) -> Path:
    (here / "upset.py").write_text(HOOK)
    return here


def written(folder: Path, lines: str) -> Path:
    (folder / "p.toml").write_text(PIPELINE + lines)
    return folder / "p.toml"


def sweeps(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("runs/toy/*/sweep.json"))


def states(sweep: Path) -> list[str]:
    return [json.loads(file.read_text())["state"] for file in sorted(sweep.glob("trials/*.json"))]


def run_dirs(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("runs/toy/*/run.json")}


def test_a_trial_that_fails_is_named_and_the_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    written(folder, "jobs = 2\n" + GRID)
    done = hookflow("sweep", "p.toml", cwd=folder)
    (sweep,) = sweeps(folder)
    assert done.returncode == 1, done
    assert states(sweep) == ["finished", "failed"]
    assert 'trial 1  failed  hooks.upset.args.fail=true\n    hook "upset" at' in done.stderr
    assert "ValueError: as it was meant to" in done.stderr
    assert re.search(
        r"trial 0  finished  accuracy 0\.\d+  hooks\.upset\.args\.fail=false", done.stdout
    )
    assert re.search(
        r"trial 0 +0\.\d+ +false +✓ finished.*\n.*trial 1 +- +true +✗ failed", done.stdout
    ), done.stdout
    assert f"hookflow sweep runs/toy/{sweep.name}" in done.stdout
    assert {(folder / f"seen-{fail}").read_text() for fail in (False, True)} == {"3", "5"}
    first = run_dirs(folder)
    listed = json.loads(invoke("runs", "--filter", f'"{sweep.name}" in tags', "--format", "json"))
    assert {row["id"] for row in listed} == first
    assert f"hookflow runs --filter '\"{sweep.name}\" in tags'" in refused("show", sweep.name)
    (folder / "mended").touch()
    again = hookflow("sweep", "p.toml", "--resume", cwd=folder, code=0)
    assert states(sweep) == ["finished", "finished"]
    assert "sweep" not in (folder / "runs/toy" / min(first) / "pipeline.toml").read_text()
    assert "trial 0  " not in again.stdout.partition("\n\n")[0]
    assert len(run_dirs(folder) - first) == 1
    (folder / "p.toml").write_text(
        (folder / "p.toml").read_text().replace("max_epochs = 3", "max_epochs = 4")
    )
    assert f"run.max_epochs has changed since the sweep {sweep.name}" in refused(
        "sweep", "p.toml", "--resume"
    )
    invoke("sweep", "p.toml", "--set=run.max_epochs=1", "--slurm", "array.sh")
    assert len(sweeps(folder)) == 2


def test_folds_are_trained_within_each_setting_and_a_resumed_sweep_keeps_their_number(
    folder: Path,
) -> None:
    file = written(folder, 'folds = 4\n[sweep.grid]\n"optimizer.args.lr" = [0.1, 0.2]\n')
    sweep = Sweep.create(file, ["sweep.folds=2", "optimizer.args.weight_decay=${fold}"])
    sweep.begin()
    settings = [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    assert [[*sweep.suggest(k).values()] for k in range(sweep.section.count)] == [
        [*setting] for setting in settings
    ]
    for k, points in enumerate(([0.5, 0.25], [0.75, 0.5], [0.99, 0.5])):
        sweep.keep(SweepTrial(k, sweep.suggest(k), "finished", "", max(points), "", points))
    done = hookflow("sweep", "p.toml", "--resume", cwd=folder, code=0)
    assert states(sweep.path) == ["finished"] * 4
    (run,) = hookflow_runs(folder / "runs")
    assert run.config["run"]["fold"] == 1
    assert run.config["optimizer"]["args"] == {"lr": 0.2, "momentum": 0.9, "weight_decay": 1}

    points = [[record["v"]["accuracy"] for record in records(RunDir(run.dir), "metrics")]]
    by_lr = {0.1: [[0.5, 0.25], [0.75, 0.5]], 0.2: [[0.99, 0.5], *points]}
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    means = []
    for lr, of_folds in by_lr.items():
        best = [max(values) for values in of_folds]
        last = [values[-1] for values in of_folds]
        aggregates = [
            f"{number(mean(values))} ± {stdev(values):.2g} (n = 2)" for values in (best, last)
        ]
        begin = rows.index([f"optimizer.args.lr={lr}"])
        assert rows[begin + 1] == ["fold", "best.accuracy", "last.accuracy"]
        assert rows[begin + 2] == ["0", number(best[0]), number(last[0])]
        assert rows[begin + 3] == ["1", number(best[1]), number(last[1])]
        assert rows[begin + 4] == ["mean ± sd", *aggregates]
        means.append((mean(best), [str(lr), *aggregates]))
    ranked = [row for _, row in sorted(means, reverse=True)]
    assert rows[-3:] == [["lr", "best.accuracy", "last.accuracy"], *ranked]


def test_a_resume_with_another_number_of_folds_is_refused(folder: Path) -> None:
    file = written(folder, "folds = 4\n")
    sweep = Sweep.create(file, ())
    assert [sweep.suggest(number) for number in range(sweep.section.count)] == [
        {"run.fold": k} for k in range(4)
    ]
    sweep.begin()
    written(folder, "folds = 5\n")
    assert "p.toml:9:1: sweep.folds " in refused("sweep", file, "--resume")
    assert "p.toml:9:1: sweep.folds " in refused("sweep", sweep.path)


def grid_of(rates: list[float], seeds: list[int]) -> str:
    return f'[sweep.grid]\n"optimizer.args.lr" = {rates}\n"run.seed" = {seeds}\n'


def test_a_grid_that_has_grown_trains_each_combination_once(folder: Path) -> None:
    sweep = Sweep.create(written(folder, grid_of([0.01, 0.1], [0, 1])), ())
    sweep.begin()
    for k in range(3):
        sweep.keep(SweepTrial(k, sweep.suggest(k), "finished", "", 0.5, "", [0.5]))
    written(folder, grid_of([0.001, 0.01, 0.1], [2, 0, 1]))
    grown = Sweep.open(sweep.path)
    settings = [(*grown.suggest(k).values(),) for k in range(grown.section.count)]
    assert settings[:3] == [(0.01, 0), (0.01, 1), (0.1, 0)]  # as they have begun
    every = {(rate, seed) for rate in (0.001, 0.01, 0.1) for seed in (0, 1, 2)}
    assert len(settings) == len(every)
    assert set(settings) == every
    # Which tasks of an array have begun meanwhile makes no difference to the others.
    grown.keep(SweepTrial(7, grown.suggest(7), "running"))
    grown.keep(SweepTrial(4, grown.suggest(4), "running"))
    assert [(*grown.suggest(k).values(),) for k in range(9)] == settings


def test_a_grid_that_lacks_a_trial_that_has_begun_is_refused(folder: Path) -> None:
    sweep = Sweep.create(written(folder, grid_of([0.01, 0.1], [0])), ())
    sweep.begin()
    sweep.keep(SweepTrial(1, sweep.suggest(1), "finished", "", 0.5, "", [0.5]))
    written(folder, grid_of([0.01, 0.2], [0]))
    text = refused("sweep", sweep.path)
    assert "optimizer.args.lr=0.1" in text
    assert "trial 1" in text
    assert "lr=0.1" in refused("sweep", "p.toml", "--resume")
    written(folder, grid_of([0.1], [0]))
    Sweep.open(sweep.path)


def test_the_newest_sweep_is_the_one_made_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(folder, GRID)
    for zone in ("UTC-9", "UTC"):  # the clock shows nine hours less for the later one
        with monkeypatch.context() as changed:
            changed.setenv("TZ", zone)
            time.tzset()
            sweep = Sweep.create(file, ())
            sweep.begin()
        time.tzset()
    assert Sweep.newest(file, ()).path == sweep.path


def test_the_best_trial_is_that_of_the_mode_of_the_sweep(folder: Path) -> None:
    lines = 'mode = "max"\n[sweep.grid]\n"optimizer.args.lr" = [0.5, 0.001]\n"run.seed" = [0]\n'
    file = written(folder, lines)
    file.write_text(file.read_text().replace('metric = "accuracy"', 'metric = "loss"'))
    done = hookflow("sweep", "p.toml", "--in-process", cwd=folder, code=0)
    largest = {}
    for run in hookflow_runs(folder / "runs"):
        losses = [record["v"]["loss"] for record in records(RunDir(run.dir), "metrics")]
        largest[run.config["optimizer"]["args"]["lr"]] = max(losses)
    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    heading = next(row for row in rows if row[0] == "id")
    table = [dict(zip(heading, row, strict=True)) for row in rows if len(row) == len(heading)]
    shown = [(row["lr"], row["best.loss"]) for row in table[1:]]
    ranked = sorted(largest.items(), key=lambda item: item[1], reverse=True)
    assert shown == [(str(lr), number(loss)) for lr, loss in ranked]


def test_trials_that_differ_in_their_seeds_are_a_group() -> None:
    trials = []
    for number_, (lr, seed, points) in enumerate(
        ((0.1, 0, [1.0, 3.0]), (0.2, 0, [2.0]), (0.1, 1, [6.0, 5.0]))
    ):
        values = {"optimizer.args.lr": lr, "run.seed": seed}
        trials.append(SweepTrial(number_, values, "finished", "", max(points), "", points))
    for state in ("failed", "pruned"):
        values = {"optimizer.args.lr": 0.1, "run.seed": len(trials)}
        trials.append(SweepTrial(len(trials), values, state, "", 9.0, "", [9.0]))
    first, second = group_trials(trials)
    assert first.values == {"optimizer.args.lr": 0.1}
    assert first.best == MetricAggregate(mean([3.0, 6.0]), stdev([3.0, 6.0]), 2)
    assert first.last == MetricAggregate(mean([3.0, 5.0]), stdev([3.0, 5.0]), 2)
    assert second.best == MetricAggregate(2.0, None, 1)
    lines = [re.split(r"  +", line) for line in format_settings([second, first], "accuracy", "max")]
    assert [row[0] for row in lines] == ["lr", "0.1", "0.2"]
    # A sweep that goes on may search one more key than it did at first.
    values = {"optimizer.args.lr": 0.3, "optimizer.args.nesterov": True, "run.seed": 0}
    later = SweepTrial(5, values, "finished", "", 1.0, "", [1.0])
    texts = format_settings(group_trials([*trials, later]), "accuracy", "max")
    rows = [re.split(r"  +", text)[:2] for text in texts]
    assert rows == [["lr", "nesterov"], ["0.1", "-"], ["0.2", "-"], ["0.3", "true"]]


def final_state(run_dir: RunDir) -> dict[str, bytes]:
    """Return the files of a run's last checkpoint that have its state."""
    checkpoint = (run_dir.checkpoints / "last").resolve()
    return {name: (checkpoint / name).read_bytes() for name in ("model.pt", "training.pt")}


def test_a_forked_trial_has_the_bits_of_one_in_a_process_of_its_own(folder: Path) -> None:
    written(folder, '[sweep.grid]\n"run.seed" = [3, 4]\n')
    short = ("sweep", "p.toml", "--set", "run.max_epochs=1")
    hookflow(*short, "--trial", "1", cwd=folder, code=0)
    hookflow(*short, "--in-process", cwd=folder, code=0)
    own, forked = [json.loads((sweep / "trials/0001.json").read_text()) for sweep in sweeps(folder)]
    assert own["state"] == forked["state"] == "finished"
    assert own["points"] == forked["points"]
    assert final_state(RunDir(Path(own["run"]))) == final_state(RunDir(Path(forked["run"])))


def test_forked_trials_that_fail_are_named_and_the_others_go_on(folder: Path) -> None:
    written(folder, 'jobs = 2\n[sweep.grid]\n"hooks.upset.args.fail" = ["killed", true, false]\n')
    done = hookflow("sweep", "p.toml", "--in-process", cwd=folder)
    assert done.returncode == 1, done
    (sweep,) = sweeps(folder)
    assert states(sweep) == ["failed", "failed", "finished"]
    assert "killed by SIGKILL" in json.loads((sweep / "trials/0000.json").read_text())["reason"]
    assert (
        "ValueError: as it was meant to"
        in json.loads((sweep / "trials/0001.json").read_text())["reason"]
    )


def test_trials_that_cannot_be_forked_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(folder, GRID)
    refusal = refused("sweep", file, "--in-process", "--set", "run.device=cuda")
    assert "--in-process" in refusal and 'run.device is "cuda"' in refusal
    assert "--in-process" in refused("sweep", file, "--in-process", "--slurm", "array.sh")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert 'run.device is "auto"' in refused(
        "sweep", file, "--in-process", "--set", "run.device=auto"
    )
    assert not sweeps(folder)

    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull, "wb") as output:  # noqa: PTH123
        socket.send_fds(ours, [b"[]"], [output.fileno()])
        ours.shutdown(socket.SHUT_WR)
        assert wait_for_trial(theirs) is None
        assert "CUDA is initialised" in json.loads(ours.recv(1000))["refused"]


def test_an_interrupted_sweep_goes_on(folder: Path) -> None:
    written(folder, '[sweep.grid]\n"hooks.upset.args.waits" = [true, false]\n')
    with hookflow_begun("sweep", "p.toml", "--in-process", cwd=folder) as begun:
        wait_for(lambda: (folder / "seen-False").exists(), "the first trial")
        begun.send_signal(signal.SIGINT)
        (run,) = run_dirs(folder)
        output, errors = begun.communicate()
    (sweep,) = sweeps(folder)
    assert begun.returncode == 130, errors
    assert states(sweep) == ["interrupted"]
    assert "not done: 2 trials" in output
    done = hookflow("sweep", sweep.name, cwd=folder, code=0)
    assert states(sweep) == ["finished"] * 2
    assert f"trial 0  resumes {run}" in done.stdout
    assert len(run_dirs(folder)) == 2


def test_a_sweep_whose_folder_is_removed_ends_its_trials(folder: Path) -> None:
    written(folder, '[sweep.grid]\n"hooks.upset.args.waits" = [true, false]\n')
    with hookflow_begun("sweep", "p.toml", cwd=folder) as begun:
        wait_for(lambda: (folder / "seen-False").exists(), "the first trial")
        (sweep,) = sweeps(folder)
        (run,) = run_dirs(folder)
        shutil.rmtree(sweep)
        _, errors = begun.communicate()
    assert begun.returncode == 2, errors
    assert "Traceback" not in errors
    assert sweep.name in errors
    (end,) = records(RunDir(folder / "runs" / "toy" / run), "end")
    assert end["status"] == "interrupted"


def test_an_array_of_slurm_has_a_task_for_each_trial(folder: Path) -> None:
    file = written(folder, "jobs = 4\n" + GRID)
    printed = invoke("sweep", file, "--slurm", "array.sh")
    (sweep,) = sweeps(folder)
    assert printed.startswith(f"{sweep.name}: 2 trials; ")
    assert printed.endswith(": sbatch array.sh\n")
    script = (folder / "array.sh").read_text()
    assert "#SBATCH --array=0-1%4\n" in script
    assert script.endswith(f'sweep {sweep} --trial "$SLURM_ARRAY_TASK_ID"\n')
    subprocess.run(["bash", "-n", "array.sh"], check=True)
    hookflow("sweep", str(sweep), "--trial", "0", cwd=folder, code=0)
    assert states(sweep) == ["finished"]
    assert f"hookflow runs --filter '\"{sweep.name}\" in tags'" in refused("show", sweep)
    assert "there is no trial 2" in refused("sweep", sweep, "--trial", "2")
    assert "there is no trial 2" in refused("sweep", file, "--trial", "2")
    assert "cannot be written" in refused("sweep", file, "--slurm", "missing/array.sh")
    assert sweeps(folder) == [sweep]
    refusal = refused("sweep", file, "--set", "run.dir=array.sh")
    assert "--set run.dir=array.sh: " in refusal


def test_what_no_trial_could_have_is_refused_before_the_first(folder: Path) -> None:
    def wrong(lines: str) -> str:
        return refused("sweep", written(folder, lines))

    text = wrong('[sweep.grid]\n"run.max_epoch" = [1]\n"run.seed" = [-1, 0]\n"run.dir" = ["x"]\n')
    assert 'did you mean "max_epochs"?' in text
    assert "p.toml:11:1: run.seed " in text
    assert '"run.dir"' in text
    assert not sweeps(folder)
    assert "say how many trials it has" in wrong('[sweep.random]\n"run.seed" = [1]\n')
    assert "leave trials out" in wrong('trials = 3\n[sweep.grid]\n"run.seed" = [1]\n')
    assert "p.toml:10:1: run.seed = 1 is listed twice" in wrong(
        '[sweep.grid]\n"run.seed" = [1, 2, 1]\n'
    )
    assert "grid, random and optuna" in wrong("")
    assert "is not below high" in wrong(
        'trials = 3\n[sweep.random]\n"run.seed" = { low = 3, high = 1 }\n'
    )
    wrong_key = written(folder, '[sweep.grid]\n"run.max_epoch" = [1]\n')
    for command in (("sweep",), ("check",), ("check", "--no-import")):
        said = refused(*command, wrong_key)
        assert "p.toml:10:1: [run] " in said and '"max_epoch"' in said
    (folder / "p.toml").write_text(PIPELINE.replace('"accuracy"', '"quality"') + GRID)
    text = refused("sweep", folder / "p.toml")
    assert (
        'p.toml:8:1: "quality" does not say' in text
        and 'write mode = "min" or mode = "max"' in text
    )
    assert 'gives "run.fold" its values' in wrong('folds = 2\n[sweep.grid]\n"run.fold" = [0]\n')
    optuna = 'folds = 2\ntrials = 2\n[sweep.optuna]\n"run.seed" = [0]\n'
    assert "folds go with grid and random" in wrong(optuna)
    assert "has to be below sweep.folds" in refused(
        "sweep", written(folder, "folds = 2\n"), "--set", "run.fold=2"
    )
    text = refused("check", written(folder, GRID), "--set", "hooks.upset.args.fail=${fold}")
    assert "${fold}: there are no folds" in text and "write folds = 5 in [sweep]" in text
    assert "has no table [sweep]" in refused("sweep", TOY) and "has no table" in refused(
        "sweep", TOY, "--resume"
    )
    assert "there is no sweep in" in refused("sweep", written(folder, GRID), "--resume")
    assert "  sweep      2 trials of hooks.upset.args.fail, by accuracy" in invoke(
        "check", "p.toml"
    )


def test_a_metric_that_no_validation_gives_is_named_while_the_trial_trains(folder: Path) -> None:
    written(folder, '[sweep.grid]\n"hooks.upset.args.waits" = [true]\n')
    file = folder / "p.toml"
    file.write_text(file.read_text().replace('"accuracy"', '"acc"'))
    with hookflow_begun("sweep", "p.toml", cwd=folder) as begun:
        lines = iter(begun.stdout.readline, "")
        assert 'metric "acc"' in next(x for x in lines if "acc" in x)
        begun.send_signal(signal.SIGINT)
        begun.communicate()
    assert begun.returncode == 130


def test_a_trial_without_a_finite_value_says_so(folder: Path) -> None:
    (folder / "score.py").write_text(
        "class Score:\n"
        "    def __init__(self, value: float) -> None:\n"
        "        self.value = value\n"
        "    def after_val(self, run):\n"
        "        run.metrics['score'] = self.value\n"
    )
    lines = 'mode = "min"\n[sweep.grid]\n"hooks.score.args.value" = [nan, 0.5]\n'
    file = written(folder, '[hooks.score]\nuse = "./score.py:Score"\n' + lines)
    text = file.read_text().replace('[sweep]\nmetric = "accuracy"\n', "")
    file.write_text(text.replace("mode =", '[sweep]\nmetric = "score"\nmode ='))
    done = hookflow("sweep", "p.toml", "--in-process", cwd=folder, code=1)
    assert states(sweeps(folder)[0]) == ["failed", "finished"]
    assert 'no validation has given a finite value of the metric "score"' in done.stderr
    assert "did you mean" not in done.stderr


def section(kind: str, **values: Any) -> SweepSection:
    return SweepSection.model_validate({"metric": "accuracy", "trials": 200, kind: values})


RANGES: dict[str, Any] = {
    "a": {"low": 1e-4, "high": 0.1, "log": True},
    "b": {"low": 2, "high": 5},
    "c": {"low": 0.0, "high": 1.0, "step": 0.25},
    "d": ["x", [1, 2], False],
    "e": {"low": 1, "high": 1000, "log": True},
}


def test_random_values_are_within_their_ranges_and_the_same_each_time(folder: Path) -> None:
    sweep = Sweep.create(
        written(folder, 'trials = 2\n[sweep.random]\n"run.seed" = { low = 0, high = 9 }\n'), ()
    )
    object.__setattr__(sweep, "section", section("random", **RANGES))
    drawn = [sweep.suggest(number) for number in range(200)]
    assert drawn == [sweep.suggest(number) for number in range(200)]
    assert all(1e-4 <= each["a"] <= 0.1 for each in drawn)
    assert 50 < sum(each["a"] < 1e-3 for each in drawn) < 90  # a third of the orders of magnitude
    assert {each["b"] for each in drawn} == {2, 3, 4, 5}
    assert {each["c"] for each in drawn} == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert all(each["d"] in RANGES["d"] for each in drawn)
    assert all(isinstance(each["e"], int) and 1 <= each["e"] <= 1000 for each in drawn)


def test_a_range_is_reached_to_its_ends_and_not_beyond() -> None:
    generator = random.Random(0)
    stepped = SweepRange(low=0.0, high=0.3, step=0.1)
    assert {draw_value(stepped, generator) for _ in range(200)} == {0.0, 0.1, 0.2, 0.3}
    offset = SweepRange(low=1, high=2, step=0.1)
    tenths = {round(1 + k / 10, 1) for k in range(11)}
    assert {draw_value(offset, generator) for _ in range(500)} == tenths
    # The digits are those of the width: a range near one has more than two values.
    for narrow in (
        SweepRange(low=0.9999, high=0.99999),
        SweepRange(low=1000.0, high=1000.5),
        SweepRange(low=-1.00005, high=-1.0),
        SweepRange(low=0.9999, high=0.99999, log=True),
    ):
        drawn = [draw_value(narrow, generator) for _ in range(1000)]
        assert len(set(drawn)) > 400
        assert narrow.low <= min(drawn) < max(drawn) <= narrow.high
        middle = (narrow.low + narrow.high) / 2
        assert 400 < sum(value < middle for value in drawn) < 600


def test_optuna_learns_from_the_trials_and_prunes() -> None:
    pytest.importorskip("optuna")
    searched = section("optuna", **RANGES).model_copy(update={"pruner": "median"})

    def value_of(values: dict[str, Any]) -> float:
        return -float(abs(values["b"] - 4)) - abs(values["c"] - 0.5)

    trials: list[SweepTrial] = []
    for k in range(40):
        values = suggest(searched, "max", trials, k)
        assert all(
            not isinstance(RANGES[key], list) or value in RANGES[key]
            for key, value in values.items()
        )
        value = value_of(values)
        trials.append(SweepTrial(k, values, "finished", "", value, "", [value - 1, value]))
    late = sum(trial.value for trial in trials[20:] if trial.value is not None)
    assert late > sum(trial.value for trial in trials[:20] if trial.value is not None)
    good, bad = (
        SweepTrial(40, trials[0].values, "running", "", None, "", [value]) for value in (5.0, -50.0)
    )
    assert judge(searched, "max", trials, bad).ends
    assert not judge(searched, "max", trials, good).ends
    assert judge(searched, "min", trials, good).ends


def list_lengths(pruner: str, *, at_once: int) -> list[int]:
    """Return how many validations each trial has before the pruner ends it, those of 12 good ones
    first, with so many bad trials side by side.
    """
    searched = section("optuna", a=RANGES["a"]).model_copy(update={"pruner": pruner})
    trials: list[SweepTrial] = []
    for first in [*range(12), *range(12, 36, at_once)]:
        width = 1 if first < 12 else at_once
        begun = [SweepTrial(first + k, {"a": 0.01}, "running") for k in range(width)]
        quality = 0.9 if first < 12 else 0.1
        ended: list[SweepTrial] = []
        for step in range(1, 31):
            for place, trial in enumerate(begun):
                if trial in ended:
                    continue
                longer = replace(trial, points=[quality] * step)
                verdict = judge(searched, "max", [*trials, *begun], longer)
                begun[place] = replace(longer, marks=verdict.marks)
                if verdict.ends:
                    begun[place] = replace(begun[place], state="pruned")
                    ended.append(begun[place])
        trials += [
            trial if trial in ended else replace(trial, state="finished", value=quality)
            for trial in begun
        ]
    return [len(trial.points) for trial in trials]


def list_lengths_of_optuna(pruner: Any) -> list[int]:
    """Return the same of optuna alone, one trial after the other."""
    import optuna

    def train(trial: Any) -> float:
        quality = 0.9 if trial.number < 12 else 0.1
        trial.suggest_float("a", 1e-4, 0.1)
        for step in range(1, 31):
            trial.report(quality, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return quality

    study = optuna.create_study(study_name=STUDY_NAME, pruner=pruner, direction="maximize")
    study.optimize(train, n_trials=36)
    return [len(trial.intermediate_values) for trial in study.trials]


def test_each_pruner_ends_the_trials_that_optuna_itself_would_end() -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners = {
        "median": optuna.pruners.MedianPruner(),
        "halving": optuna.pruners.SuccessiveHalvingPruner(),
        "hyperband": optuna.pruners.HyperbandPruner(),
    }
    for name, pruner in pruners.items():
        lengths = list_lengths(name, at_once=1)
        assert lengths == list_lengths_of_optuna(pruner), name
        assert min(lengths[12:]) == 1, name
    # A trial is in the same bracket at each look, whatever trains beside it.
    assert min(list_lengths("hyperband", at_once=3)[12:]) == 1


def test_what_may_be_searched_can_change_while_a_study_goes_on() -> None:
    pytest.importorskip("optuna")
    values: dict[str, Any] = {"a": 0.01, "b": 2, "d": False}
    trials = [SweepTrial(k, values, "finished", "", 1.0, "", [1.0]) for k in range(12)]
    changed = {"a": RANGES["a"], "b": {"low": 3, "high": 5}, "d": ["x", 0], "e": RANGES["e"]}
    suggested = suggest(section("optuna", **changed), "max", trials, 12)
    assert suggested.keys() == changed.keys()
    assert suggested["b"] in (3, 4, 5)


def test_a_pruned_trial_is_stopped(folder: Path) -> None:
    pytest.importorskip("optuna")
    lines = 'trials = 7\npruner = "median"\n[sweep.optuna]\n"optimizer.args.lr" = [0.1]\n'
    file = written(folder, lines)
    text = file.read_text().replace('upset.py:Upset"', 'upset.py:Upset"\nargs = { waits = true }')
    file.write_text(
        text.replace("max_epochs = 3", "max_epochs = 5000")
    )  # more than it trains until it reads the command
    sweep = Sweep.create(file, ())
    sweep.begin()
    for k in range(6):
        sweep.keep(SweepTrial(k, {"optimizer.args.lr": 0.1}, "finished", "", 2.0, "", [2.0] * 99))
    with hookflow_begun("sweep", str(sweep.path), cwd=folder) as begun:
        wait_for(lambda: [*folder.glob("runs/toy/*/commands.jsonl")], "the command to stop")
        (folder / "go").touch()
        output, errors = begun.communicate()
    assert begun.returncode == 0, errors
    assert re.search(r"trial 6  pruned  accuracy 0\.\d+  optimizer\.args\.lr=0\.1", output)
    assert sweep.trial(6).state == "pruned"


def test_the_gpus_are_those_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,MIG-x")
    assert list_gpus() == ["1", "MIG-x"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert list_gpus() == []
    assert SweepRange(low=1, high=2).integers
