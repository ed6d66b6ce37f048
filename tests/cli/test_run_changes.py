"""What `hookflow run` changes of a pipeline from outside: hooks left out, another order; and what a resume keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookflow.cli.resume import Changes, resumed
from hookflow.cli.run import _compiled
from hookflow.errors import UserError
from hookflow.events.rundir import RunDir
from hookflow.runner.process.launch import new_run
from hookflow.service.runs import recorded_plan
from tests.cli.conftest import SMALL

HOOKS = "".join(f'[hooks.h{k}]\nuse = "builtins:print"\npoints = ["before_train"]\n' for k in range(6))


def new(file: str, changes: Changes) -> RunDir:
    return new_run(*_compiled(file, changes))


@pytest.fixture(autouse=True)
def pipeline(here: Path) -> None:
    """A pipeline of six hooks that nothing orders, in the current folder."""
    (here / "p.toml").write_text(SMALL + HOOKS)


def order(run: RunDir) -> list[str]:
    return [binding.hook for binding in recorded_plan(run).at("before_train")]


def test_a_run_is_shuffled_and_the_same_seed_is_the_same_order() -> None:
    first, again, plain = (new("p.toml", Changes(shuffle=seed)) for seed in (7, 7, None))
    assert recorded_plan(first).shuffle == 7
    assert order(first) == order(again) != order(plain)
    assert order(plain) == [f"h{k}" for k in range(6)]


def test_hooks_are_left_out() -> None:
    assert order(new("p.toml", Changes(without=("h0", "h3")))) == ["h1", "h2", "h4", "h5"]
    assert order(new("p.toml", Changes(only=("h4", "h2")))) == ["h2", "h4"]
    with pytest.raises(UserError, match='no hook "h9"'):
        new("p.toml", Changes(without=("h9",)))


def test_a_resumed_run_keeps_its_order_and_the_hooks_that_it_was_left() -> None:
    run = new("p.toml", Changes(shuffle=7, without=("h0",)))
    shuffled = order(run)
    assert order(resumed(run.id, Changes())) == shuffled
    longer = resumed("p.toml", Changes(overrides=("run.max_iters=20",)))
    assert (longer.id, order(longer.wanted()), recorded_plan(longer.wanted()).shuffle) == (run.id, shuffled, 7)
    assert "max_iters = 20" in longer.wanted().pipeline.read_text()
    assert recorded_plan(resumed(run.id, Changes(shuffle=0)).wanted()).shuffle == 0
