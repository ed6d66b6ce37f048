"""A run that goes on with other hooks than those of its checkpoint is told of each; allowed, it does go on."""

from __future__ import annotations

import re

import pytest

from hookflow.runner.checkpoint.resume_rules import (
    UNREADABLE,
    May,
    changes_between,
    changes_since,
    recorded,
)
from tests.conftest import TOY, NewRun, Train, messages, records
from tests.runner.test_resume import with_checkpoints


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("hooks.clip.enabled=false", 'the hook "clip" is gone, and what it knew with it'),
        ('hooks.more={use="./watchers.py:slow", points=["after_train"]}', 'the hook "more" is new: it starts anew'),
        ("hooks.ema.args.decay=0.5", "hooks.ema.args.decay was 0.9, and is 0.5"),
        ("hooks.accuracy.points=['after_val_epoch', 'after_val_iter']", 'the hook "accuracy" fires no more at'),
        ("hooks.clip.phase='last'", 'hooks.clip.phase was not set, and is "last"'),
        ("hooks.throughput.before=['ema']", "at before_train the order was ema → throughput, and is throughput → ema"),
    ],
)
def test_each_change_is_told_and_may_be_allowed(new_run: NewRun, train_here: Train, change: str, expected: str) -> None:
    other = with_checkpoints(new_run, train_here, [], ["run.max_epochs=2", change])
    assert train_here(other, resume=True) == 2
    reason = str(records(other, "refused")[-1]["reason"])
    assert "since the checkpoint it00000005: " in reason and expected in reason
    assert reason.endswith("--allow-changed-hooks")
    assert train_here(other, resume=True, allow_changed_hooks=True) == 0
    assert any(expected in text for text in messages(other))
    assert records(other, "end")[-1]["it"] == 10


@pytest.mark.parametrize(
    ("change", "may", "expected"),
    [
        ('hooks.log.points=[{at="after_train_iter", every=3, after=["throughput"]}]', May.YES, ["hooks.log.points"]),
        (
            'hooks.log.points=["after_train_epoch"]',
            May.ALLOWED,
            ["hooks.log.points", "fires no more at", "fires at after_train_epoch"],
        ),
        ('run.dir="müll"', May.YES, ['and is "müll"']),
    ],
)
def test_what_may_change_by_itself(new_run: NewRun, change: str, may: May, expected: list[str]) -> None:
    then, now = (recorded(run.path) for run in (new_run(), new_run(change)))
    changes = changes_between((then[0].pipeline, then[1]), (now[0].pipeline, now[1]))
    assert {one.may for one in changes} == {may}
    assert [any(words in one.text for one in changes) for words in expected] == [True] * len(expected)


def test_what_is_recorded_is_read_as_it_stands(new_run: NewRun) -> None:
    """Without the hooks that a file gets by default today, and without asking the environment of today."""
    run_dir = new_run()
    text = (
        TOY.read_text()
        .partition("[hooks.checkpoint]")[0]
        .replace("[run]", '[run]\ndir = "${env:HOOKFLOW_NO_SUCH_VARIABLE}"')
    )
    run_dir.pipeline.write_text(text)
    pipeline = recorded(run_dir.path)[0].pipeline
    assert list(pipeline.hooks) == re.findall(r"^\[hooks\.(\w+)]", text, re.MULTILINE)
    assert str(pipeline.run.dir) == "${env:HOOKFLOW_NO_SUCH_VARIABLE}"


def test_hooks_that_cannot_be_read_any_more_must_be_allowed(new_run: NewRun) -> None:
    run_dir = new_run()
    loaded, plan = recorded(run_dir.path)
    assert changes_since(run_dir.path, loaded.pipeline, plan) == []
    run_dir.plan.write_text('{"hooks": []}')
    (change,) = changes_since(run_dir.path, loaded.pipeline, plan)
    assert (change.may, change.text) == (May.ALLOWED, UNREADABLE)


@pytest.mark.parametrize(("then", "now"), [("raise", "skip"), ("skip", "ignore")])
def test_what_is_no_hook_may_change(new_run: NewRun, train_here: Train, then: str, now: str) -> None:
    changed = ["run.max_epochs=2", "run.val_every=2", f'run.on_nan="{now}"']
    other = with_checkpoints(new_run, train_here, [f'run.on_nan="{then}"'], changed)
    assert train_here(other, resume=True) == 0
    assert not any("not bit-identical" in text for text in messages(other))
