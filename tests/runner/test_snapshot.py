"""A resumed run holds what the run held that was left alone: every mutable state of the runner, walked through."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hookflow.events.rundir import RunDir
from hookflow.graph.plan import Plan
from hookflow.runner.checkpoint.snapshot import Snapshot
from hookflow.runner.loop.trainer import Trainer
from tests import photographs
from tests.conftest import NewRun, Train, Trained, messages, records, strikes
from tests.runner.same import assert_same, assert_same_end
from tests.runner.test_resume import with_checkpoints

OFTEN = 'hooks.checkpoint.points=[{at="after_train_iter", every=1}]'
THIRD = (
    'task.use="./photographs.py:StepsEveryThird"',
    "hooks.accuracy.enabled=false",
    "hooks.early_stop.enabled=false",
    "hooks.checkpoint.args={}",
)
SKIPS = 'hooks.skips={use="./photographs.py:SkipsOne", args={at=6}}'
FAILS = 'hooks.fails={use="./photographs.py:FailsOnce", args={at=3}, on_error="disable"}'
TRIGGERS = (
    'hooks.some={use="./watchers.py:slow", points=["after_train_iter"], every=4, when="loss > 0.1"}',
    'hooks.late={use="./watchers.py:slow", points=["before_train_iter"], from="1ep", every="20%"}',
    'hooks.vals={use="./watchers.py:slow", points=["after_val"], every=2}',
    'hooks.logs={use="./undeclared.py:logs", points=["after_train_iter"], every=6}',
    'hooks.seen={use="./watchers.py:slow", points=["after_train_iter"], when="mine > 2"}',
)

INSIDE = (
    'hooks.probes={use="./module_watchers.py:halves", points=["forward"], modules=["head"], every=2}',
    'hooks.once={use="./module_watchers.py:halves_once", points=["forward"], modules=["type:Linear"], from=2}',
    'hooks.halves={use="./module_watchers.py:halves", points=["forward"], modules=["body.0"], stages=["train", "val"]}',
)

THROTTLED = (
    'hooks.thin={use="./watchers.py:slow", points=["after_train_iter"], budget="1%", over_budget="throttle"}',
    'hooks.thinned={use="./module_watchers.py:halves", points=["forward"], modules=["head"], every=2, budget="1%", '
    'over_budget="throttle"}',
)

SETUPS = {
    "epochs": [OFTEN, FAILS, *TRIGGERS],
    "throttled": [OFTEN, *THROTTLED],
    "iterations": [OFTEN, "run.val_every=4", *TRIGGERS],
    "accumulated": [OFTEN, "run.max_epochs=5", "run.accumulate=2"],
    "float16": [OFTEN, 'run.precision="fp16"'],
    "skipped where not finite": [OFTEN, 'run.on_nan="skip"'],
    "steps itself": [OFTEN, SKIPS, *THIRD],
    "hooks inside the network": [OFTEN, "run.val_every=1", *INSIDE],
    "a frozen module": [OFTEN, 'hooks.freezes={use="./photographs.py:Freezes", args={at=2}}'],
    "a loader with a place": [OFTEN, 'data.train={use="./loaders.py:stateful_loader"}'],
}


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Trainer.__init__

    def remember(trainer: Trainer, *args: Any) -> None:
        make(trainer, *args)
        photographs.TRAINERS.append(trainer)

    monkeypatch.setattr(Trainer, "__init__", remember)


@pytest.mark.parametrize("name", SETUPS)
def test_everything_mutable_is_in_the_checkpoint_or_follows_from_it(
    new_run: NewRun, train_here: Train, tmp_path: Path, name: str
) -> None:
    swap = ("max_epochs = 3", "max_iters = 15" if name == "iterations" else "max_epochs = 3")

    def photographed(file: str, at: int) -> RunDir:
        args = f'{{file="{tmp_path / file}", at=9}}'
        takes = f'hooks.photographs={{use="tests.photographs:Photographs", args={args}}}'
        return new_run(*SETUPS[name], takes, *strikes(tmp_path, 15, ("after_forward", at)), swap=swap)

    alone, resumed = photographed("alone", 99), photographed("resumed", 6)
    assert train_here(alone) == 0
    assert train_here(resumed) == 143
    assert train_here(resumed, resume=True) == 0
    one, other = (json.loads((tmp_path / file).read_text()) for file in ("alone", "resumed"))
    assert {"Scalars", "Update", "RunState"} <= kinds(one), "it is a photograph of all, not of a name"
    assert_same(one, other)
    assert_same_end(alone, resumed)


def kinds(photograph: Any) -> set[str]:
    if isinstance(photograph, dict):
        return {str(photograph.get(""))}.union(*map(kinds, photograph.values()))
    return set().union(*map(kinds, photograph)) if isinstance(photograph, list) else set()


@pytest.mark.parametrize("hooks", [[], [SKIPS]], ids=["gradients", "a skip"])
def test_what_waits_for_its_step_is_there_after_a_resume(resumes_alike: NewRun, hooks: list[str]) -> None:
    """Gradients of the iterations 6 and 7, or a skip asked for in 7; the step is taken in 8 or 9."""
    resumes_alike(OFTEN, *hooks, *THIRD, point="after_train_iter", at=7)


def test_hooks_that_were_switched_off_or_removed_stay_so(trained: Trained, train_here: Train, tmp_path: Path) -> None:
    run_dir = trained(OFTEN, INSIDE[1], FAILS, *strikes(tmp_path, 15, ("after_forward", 6)), code=143)
    assert train_here(run_dir, resume=True) == 0
    assert 'the hook "once" remains removed from its modules, as before the resume' in messages(run_dir)
    assert len(records(run_dir, "error")) == 1
    assert any('the hook "fails" stays switched off' in text for text in messages(run_dir))


A_LIST, WITH_A_PLACE = (f'data.test={{use="./loaders.py:{name}"}}' for name in ("a_list", "stateful_loader"))


@pytest.mark.parametrize(
    ("then", "now"),
    [([A_LIST], [WITH_A_PLACE]), ([WITH_A_PLACE], [A_LIST]), ([A_LIST], [A_LIST, "run.limit_test=1"])],
    ids=["gets a place", "loses its place", "cut short"],
)
def test_the_data_of_a_test_may_be_others(new_run: NewRun, train_here: Train, then: list[str], now: list[str]) -> None:
    other = with_checkpoints(new_run, train_here, ["run.test=true", *then], ["run.test=true", "run.max_epochs=2", *now])
    assert train_here(other, resume=True) == 0
    assert records(other, "end")[0]["it"] == 10


def test_each_trigger_has_a_name_of_its_own(new_run: NewRun) -> None:
    """Also those of an around and of a method that fire at one point."""
    run_dir = new_run('hooks.all={use="./watchers.py:Everywhere", modules=["head"], parameters=["head.weight"]}')
    plan = Plan.from_json(json.loads(run_dir.plan.read_text()))
    snapshot = cast("Snapshot", SimpleNamespace(plan=plan))
    names = [Snapshot._key(snapshot, binding.id) for binding in plan.bindings if binding.half != "exit"]
    assert len({*names}) == len(names) > 30
