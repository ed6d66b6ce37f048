"""hookflow val and hookflow test: what a checkpoint holds is judged, and its run is left as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hookflow.cli.app import app
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from tests.conftest import NewRun, records
from tests.golden_files import check_golden

Train = Callable[..., int]


def refused(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def found(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*arguments, "--format", "json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout, parse_constant=refused)  # type: ignore[no-any-return]


def everything(run_dir: RunDir) -> dict[Path, bytes]:
    files = (
        path for path in run_dir.path.rglob("*") if path.is_file() and path != run_dir.now
    )  # that goes when it may
    return {path: path.read_bytes() for path in files}


@pytest.fixture
def trained(new_run: NewRun, train_here: Train) -> RunDir:
    run_dir = new_run("run.max_epochs=2", "run.test=true", 'hooks.told={use="builtins:print", points=["before_run"]}')
    assert train_here(run_dir) == 0
    return run_dir


def test_the_metrics_are_those_of_the_run_itself(trained: RunDir) -> None:
    before = everything(trained)
    recorded = {record["split"]: record["v"] for record in records(trained, "metrics")}
    root = ("--dir", str(trained.path.parent.parent))
    by_run = found("val", trained.id, *root)
    assert by_run["metrics"] == recorded["val"], "of the average, which the hook swaps in by itself"
    assert (by_run["split"], by_run["it"], by_run["ep"]) == ("val", 10, 2)
    assert found("test", f"{trained.id}:last", *root)["metrics"] == recorded["test"]
    folder = str(trained.checkpoints / "it00000010")
    assert found("test", folder)["metrics"] == recorded["test"]
    assert everything(trained) == before


def test_what_is_not_finite_is_null(new_run: NewRun, train_here: Train) -> None:
    hook = '{use="tests.callables:puts", args={value=nan}, points=["after_val_epoch"]}'
    run_dir = new_run("run.max_epochs=1", f"hooks.puts={hook}")
    assert train_here(run_dir) == 0
    assert found("val", str(run_dir.path))["metrics"]["put"] is None
    assert found("checkpoints", str(run_dir.path))
    hooks = {hook["name"]: hook for hook in found("graph", str(run_dir.path))["hooks"]}
    assert hooks["puts"]["args"] == {"value": None}, "the plan is read back"


def test_data_may_be_others(trained: RunDir) -> None:
    other = found("val", str(trained.path), "--set", "data.val.args.examples=8")
    assert other["data"]["examples"] == 8


def test_in_words(trained: RunDir) -> None:
    result = CliRunner().invoke(app, ["val", str(trained.path)], catch_exceptions=False)
    head, on, *metrics = result.stdout.splitlines()
    assert head == f"val of toy {trained.id}, it00000010 (iteration 10, epoch 2)"
    assert on == "on 16 examples of SYNTHETIC points"
    assert [line.split()[0] for line in metrics] == ["loss", "accuracy"]


@pytest.mark.parametrize("split", ["val", "test"])
def test_the_trace(new_run: NewRun, train_here: Train, tmp_path: Path, split: str) -> None:
    trace = tmp_path / "trace"
    tracer = f'hooks.tracer={{use="./watchers.py:Tracer", phase="last", args={{file="{trace}"}}}}'
    run_dir = new_run(tracer, "run.max_epochs=1", "data.test.args={examples=8, split=2}")
    assert train_here(run_dir) == 0
    trace.unlink()
    found(split, str(run_dir.path))
    check_golden(f"trace_{split}_only.txt", trace.read_text())


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("{id}:lst", 'has no checkpoint "lst"; did you mean "last"?'),
        ("{id}:it00000001", 'has no checkpoint "it00000001"'),
        ("{path}/checkpoints/lst", 'has no checkpoint "lst"; did you mean "last"?'),
        ("{name}y", 'no run "toyy"'),
    ],
)
def test_what_is_not_there(trained: RunDir, named: str, said: str) -> None:
    wanted = named.format(path=trained.path, id=trained.id, name=trained.path.parent.name)
    with pytest.raises(UserError) as told:
        found("val", wanted, "--dir", str(trained.path.parent.parent))
    assert said in str(told.value).replace("\n    ", "; ")


def test_without_such_data(new_run: NewRun, train_here: Train) -> None:
    text = '[data.test]\nuse = "./toy.py:Points"\nargs = { split = 2, examples = 16 }\n'
    run_dir = new_run("run.max_epochs=1", swap=(text, ""))
    assert train_here(run_dir) == 0
    with pytest.raises(UserError, match=r"the pipeline has no \[data.test\]"):
        found("test", str(run_dir.path))


def test_a_hook_that_raises(new_run: NewRun, train_here: Train) -> None:
    bad = 'hooks.bad={use="./watchers.py:Fails", args={place="after_test_iter"}}'
    run_dir = new_run("run.max_epochs=1", bad)
    assert train_here(run_dir) == 0
    assert CliRunner().invoke(app, ["test", str(run_dir.path)]).exit_code == 1
