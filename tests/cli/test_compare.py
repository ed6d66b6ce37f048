"""`hookflow compare`: what differs between pipelines and runs, and what came of them."""

import json
from pathlib import Path

import pytest

from hookflow.events.rundir import RunDir
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import load
from hookflow.runner.process.launch import prepare
from tests.cli.conftest import SMALL, invoke, refused
from tests.golden_files import check_golden
from tests.monitor.fake_run import make_several

START = SMALL.replace("max_iters = 10", "max_epochs = 8")
PRINT = '[hooks.print]\nuse = "builtins:print"\n'
COUNT = '[hooks.count]\nuse = "builtins:print"\n'
EMA = '[hooks.ema]\nuse = "ema"\nargs = { decay = 0.97 }\n'
OLD = f"""\
{START}{EMA}{PRINT}points = ["before_train", "after_val"]
{COUNT}points = [{{ at = "before_train", every = 5 }}]
after = ["print"]
"""
NEW = f"""\
{SMALL.replace("max_iters = 10", "max_iters = 500")}\
[hooks.speed]
use = "throughput"
args = {{ window = 5 }}
{PRINT}points = ["before_train", "after_run"]
after = ["count"]
{COUNT}points = [{{ at = "before_train", every = 10, from = "1ep" }}]
"""


@pytest.fixture(autouse=True)
def pipelines(here: Path) -> None:
    """Two pipelines in the current folder."""
    (here / "old.toml").write_text(OLD)
    (here / "new.toml").write_text(NEW)


def diff(*arguments: str, exit_code: int = 1) -> str:
    return invoke("compare", *arguments, code=exit_code)


def record(file: str, shuffle: int | None = None) -> RunDir:
    """Prepare a run of a pipeline, as `hookflow run` does before it starts it."""
    loaded = load(Path(file))
    run = RunDir.create(Path("runs"), loaded.pipeline.run.name)
    prepare(loaded, compile_pipeline(loaded, shuffle=shuffle), run, Path())
    return run


def test_everything_that_differs_is_shown_and_nothing_twice() -> None:
    check_golden("diff.txt", diff("old.toml", "new.toml"))


def test_what_amounts_to_the_same_is_no_difference() -> None:
    Path("same.toml").write_text("# a comment moves every line\n" + OLD.replace("8\n", "0x8\n"))
    assert diff("old.toml", "same.toml", exit_code=0) == "old.toml and same.toml amount to the same\n"
    same = json.loads(diff("old.toml", "same.toml", "--format", "json", exit_code=0))
    assert [name for name, value in same["differences"][0].items() if value] == ["with"]
    Path("less.toml").write_text(OLD.replace(EMA, ""))
    shown = json.loads(diff("old.toml", "less.toml", "--format", "json"))
    (difference,) = shown["differences"]
    names = [name for name, value in difference.items() if value]
    assert names == ["with", "hooks_removed"], "the order of the others is the same"


def test_a_run_is_what_it_was_started_with() -> None:
    run = record("old.toml")
    Path("old.toml").write_text(NEW)
    assert diff(run.id, "old.toml").startswith(f"- {run.id}\n+ old.toml\n\nkeys\n  run.max_epochs")
    Path("old.toml").write_text(OLD)
    assert diff("p", "old.toml", exit_code=0) == f"{run.id} and old.toml amount to the same\n"


def test_a_shuffle_is_a_difference_of_its_own() -> None:
    Path("free.toml").write_text(OLD.replace('after = ["print"]\n', ""))
    seed = next(seed for seed in range(20) if compile_pipeline(load(Path("free.toml")), shuffle=seed)
                .at("before_train")[0].hook != "ema")  # fmt: skip
    plain, shuffled = record("free.toml"), record("free.toml", seed)
    shown = diff(str(plain.path), str(shuffled.path))
    assert f"keys\n  --shuffle  nothing → {seed}\n\norder\n  before_train\n    - ema → " in shown
    why = invoke("why", "ema", "print", shuffled.id, "--point", "before_train")
    assert f"nothing says so but the shuffle with seed {seed}\n" in why


def test_what_is_neither_a_pipeline_nor_a_run() -> None:
    wrong = refused("compare", "odl.toml", "new.toml")
    assert "there is no such file" in wrong
    assert 'did you mean "old.toml"?' in wrong
    wrong = refused("compare", "old.toml", "nope")
    assert 'there is no file "nope", and there are no runs in runs' in wrong
    assert "name their folder (--dir)" in wrong
    run = record("old.toml")
    assert 'no run "q"' in refused("compare", "q", "new.toml")
    run.plan.write_text("{}")
    assert "cannot be read" in refused("compare", run.id, "new.toml")


def test_runs_are_compared_by_what_came_of_them_too(here: Path) -> None:
    first, second, third = make_several(here / "runs", 3)
    (first.path / "environment.json").write_text('{"git": {"commit": "aaaa", "dirty": ["a.py"]}, "cpus": 2}')
    (second.path / "environment.json").write_text('{"git": {"commit": "bbbb", "dirty": []}, "cpus": 2}')
    check_golden("compare-runs.txt", diff(first.id, second.id))
    facts = json.loads(diff(first.id, second.id, third.id, "--format", "json"))
    assert [difference["with"] for difference in facts["differences"]] == [second.id, third.id]
    assert facts["environment"]["git.commit"] == ["aaaa", "bbbb", None]
    assert facts["metrics"]["accuracy"]["last"] == facts["metrics"]["accuracy"]["best"]
    assert len(facts["ns_per_iteration"]["ema @ after_train_iter"]) == 3


def test_as_many_are_compared_as_there_are_letters() -> None:
    assert "compares 2 to 8 pipelines or runs, and there are 1" in refused("compare", "old.toml")
    assert "and there are 9" in refused("compare", *["old.toml"] * 9)
