"""The writer for trackio, on a module of the same public signatures in the place of the package."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookflow.events.rundir import RunDir
from hookflow.pipeline import registry
from hookflow.pipeline.load import missing_components, parse
from hookflow.service.runs import scalars
from tests.conftest import TESTS, TOY, NewRun, Train, Trained, strikes

LOGS = 'hooks.logs={use="./logging_hooks.py:Logs"}'
Row = tuple[int, str, Any]


@pytest.fixture(params=["trackio"])
def tracker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The module that stands for a package, without any run."""
    monkeypatch.syspath_prepend(TESTS / "support" / "trackers")
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    module = __import__(request.param)
    yield module
    sys.modules.pop(request.param, None)


def rows(tracker: ModuleType) -> list[Row]:
    """Return what the one run has been given, in its order: step, name, value."""
    (run,) = tracker.RUNS.values()
    return [(step, name, value) for step, metrics in run.rows for name, value in metrics.items()]


def numbers(tracker: ModuleType) -> list[Row]:
    return sorted(row for row in rows(tracker) if isinstance(row[2], float))


def logged(run_dir: RunDir) -> list[Row]:
    return sorted((row.iter, row.name, row.value) for row in scalars(run_dir))


def writer(tracker: ModuleType) -> str:
    return f'writers.there={{use="{tracker.__name__}"}}'


def test_it_has_all_that_was_logged_and_the_pipeline(tracker: ModuleType, trained: Trained) -> None:
    run_dir = trained(writer(tracker), LOGS, "run.max_epochs=1")
    assert numbers(tracker) == logged(run_dir)
    third = {name: value for step, name, value in rows(tracker) if step == 3}
    assert third["val/sample"].caption == "at 3"
    assert (
        third["val/sample"].value
        == (run_dir.path / "images/val/sample/it00000003.png").read_bytes()
    )
    assert third["sample"].text == "iteration 3"
    (run,) = tracker.RUNS.values()
    assert run.name == run_dir.id
    assert third["weights"].np_histogram == ([1, 3], [0.0, 1.0, 2.0])
    assert run.config["optimizer.args.lr"] == "0.1"
    assert (run.project, run.finished) == ("toy", 1)


def test_a_resumed_run_goes_on_in_the_same_one(
    tracker: ModuleType, new_run: NewRun, train_here: Train, tmp_path: Path
) -> None:
    ends = strikes(tmp_path, signal.SIGTERM, ("after_train_iter", 7), times=2)
    run_dir = new_run(writer(tracker), *ends)
    assert train_here(run_dir) == 143
    assert train_here(run_dir, resume=True) == 0
    assert numbers(tracker) == logged(run_dir)


@pytest.mark.parametrize("name", ["trackio"])
def test_a_package_that_is_not_there_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    text = f'{TOY.read_text()}\n[writers.there]\nuse = "{name}"\n'
    (problem,) = missing_components(parse(text, TOY), TOY.parent)
    assert problem.hint == f"pip install 'hookflow[{name}]'"
