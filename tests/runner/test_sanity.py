"""The sanity check finds mistakes in the validation before the training, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookflow.runner.loop.sanity import _copied, unchanged
from tests.conftest import Train, Trained, messages, reason, records, strike
from tests.runner.same import assert_same_end
from tests.sanity import Meter
from tests.toy import Net

TRACKS = ('task.use="tests.sanity:Tracks"', 'model.use="tests.sanity:Leaves"', 'hooks.counts.use="tests.sanity:Counts"')
VAL = 'data.val={use="./loaders.py:%s", args={examples=40}, loader={batch_size=8, workers=%d}}'


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param((), id="the toy pipeline"),
        pytest.param((VAL % ("Clouds", 0),), id="a loader"),
        pytest.param((VAL % ("Clouds", 2),), id="workers"),
        pytest.param(('data.val={use="tests.sanity:validates"}',), id="batches"),
        pytest.param((VAL % ("NumbersWithPlace", 0),), id="a stream that keeps its place"),
        pytest.param((VAL % ("Numbers", 2),), id="a stream with workers"),
        pytest.param(('data.val={use="./loaders.py:stateful_loader"}',), id="a stateful loader"),
        pytest.param((VAL % ("Clouds", 0), "run.limit_val=3"), id="limited"),
        pytest.param((*TRACKS,), id="a task and a network with states of their own"),
        pytest.param((*TRACKS, 'data.val={use="tests.sanity:validates"}'), id="both"),
        pytest.param(("run.accumulate=2", 'run.precision="bf16"'), id="bf16, accumulated"),
        pytest.param(('run.on_nan="skip"', "run.max_epochs=2", "run.val_every='4it'"), id="iterations"),
    ],
)
def test_the_run_is_the_same_to_the_bit_with_and_without(trained: Trained, setup: tuple[str, ...]) -> None:
    """Weights, optimizer, generators, hooks, triggers, data, and all numbers that were logged and measured."""
    without, with_ = (trained("run.max_epochs=2", *setup, f"run.sanity={sanity}") for sanity in ("false", "true"))
    assert_same_end(without, with_)
    told = [[record for record in records(run, "message") if record["level"] != "info"] for run in (without, with_)]
    assert len(told[0]) == len(told[1])
    kinds = [[(r["k"], r["it"]) for r in records(run) if r["k"] in ("metrics", "epoch")] for run in (without, with_)]
    assert kinds[0] == kinds[1]


PLATEAU = 'hooks.plateau={use="scheduler", args={chain=[{use="ReduceLROnPlateau"}], metric="accuracy1"}}'


@pytest.mark.parametrize(
    ("hook", "overrides"),
    [
        ("early_stop", ['hooks.early_stop.args.monitor="accuracy1"']),
        ("checkpoint", ['hooks.checkpoint.args.monitor="accuracy1"']),
        ("checkpoint", ['hooks.checkpoint.args.monitor={accuracy1="max"}']),
        ("plateau", [PLATEAU, "hooks.schedule.enabled=false"]),
        ("log", ['hooks.log.when="metrics.accuracy1 > 1"']),
        ("checkpoint", ['hooks.early_stop.args.monitor="mae"', 'hooks.checkpoint.args.monitor="accuracy1"']),
    ],
)
def test_a_metric_that_is_not_there_costs_no_iteration(trained: Trained, hook: str, overrides: list[str]) -> None:
    run_dir = trained(*overrides, code=2)
    assert records(run_dir, "end")[0]["it"] == 0
    assert f'hook "{hook}" reads the metric "accuracy1", which the validation does not give' in reason(run_dir)
    assert ('hook "early_stop" reads the metric "mae"' in reason(run_dir)) == (
        len(overrides) == 2 and hook != "plateau"
    )
    assert 'did you mean "accuracy"?' in reason(run_dir)
    assert "--set" in reason(run_dir), "the place where it was written"


@pytest.mark.parametrize(("monitors", "code"), [('"accuracy"', 0), ('["loss"]', 0), ("3", 0), ('["los"]', 2)])
def test_a_hook_of_ones_own_may_say_what_it_reads(trained: Trained, monitors: str, code: int) -> None:
    trained(f'hooks.reads={{use="tests.sanity:Reads", args={{monitors={monitors}}}}}', code=code)


@pytest.mark.parametrize(
    ("hook", "unsure"),
    [
        pytest.param('use="tests.sanity:Counts"', True, id="under a name that is computed"),
        pytest.param('use="tests.sanity:Counts", writes=["metrics.calls"]', False, id="declared in the file"),
        pytest.param('use="tests.sanity:Sets"', False, id="in an argument"),
        pytest.param('use="tests.sanity:SetsOfTheRun"', False, id="in run.metrics"),
        pytest.param('use="tests.sanity:sets", points=["after_val_epoch"]', False, id="by a function"),
    ],
)
def test_a_metric_of_a_hook_is_known_by_its_declaration_or_its_source(
    trained: Trained, hook: str, unsure: bool
) -> None:
    run_dir = trained(f"hooks.counts={{{hook}}}", 'hooks.early_stop.args={monitor="calls", mode="max"}')
    told = [text for text in messages(run_dir) if '"calls"' in text]
    assert len(told) == unsure
    assert all('unless the hook "counts" makes it; declare it: writes = ["metrics.calls"] in' in text for text in told)


def test_the_error_says_how_a_hook_declares_a_metric(trained: Trained) -> None:
    assert 'a hook that makes it declares writes = ["metrics.calls"]' in reason(
        trained('hooks.early_stop.args={monitor="calls", mode="max"}', code=2)
    )


def test_an_evaluation_that_raises_costs_no_iteration(trained: Trained) -> None:
    run_dir = trained('task.use="tests.sanity:Raises"', code=1)
    (end,) = records(run_dir, "end")
    message = "in the sanity check over the validation: 'logits'"
    assert (end["it"], end["reason"]) == (0, f"KeyError: {message}")
    (error,) = records(run_dir, "error")
    assert (error["type"], error["text"]) == ("KeyError", message)
    assert "run.sanity = false leaves the sanity check out" in str(error["traceback"])


def test_a_hook_that_prepares_the_validation_makes_an_error_a_warning(trained: Trained) -> None:
    counts = 'hooks.counts.use="tests.sanity:Counts"'
    run_dir = trained('task.use="tests.sanity:Raises"', counts, code=1)
    assert records(run_dir, "end")[0]["it"] == 5, "the validation itself raises, too"
    assert any("the hooks counts were not called in it" in text for text in messages(run_dir))


def test_a_task_that_cannot_be_copied_is_trained_without(trained: Trained) -> None:
    run_dir = trained('task.use="tests.sanity:Locked"', "run.max_epochs=1")
    assert any("is left out: the task cannot be copied (cannot pickle" in text for text in messages(run_dir))


def test_the_networks_of_a_task_are_not_copied() -> None:
    task = SimpleNamespace(teacher=Net(), metric=Meter(), net=None)
    parts: Any = SimpleNamespace(task=task, model=Net(), models={})
    copied = _copied(parts)
    assert copied.teacher is task.teacher
    assert copied.metric is not task.metric


def test_it_takes_two_batches_and_a_resumed_run_has_none(trained: Trained, train_here: Train, tmp_path: Path) -> None:
    """Else the tests above would hold for nothing."""
    calls = tmp_path / "calls"
    counts = f'task={{use="./own_tasks.py:Counting", args={{file="{calls}"}}}}'
    off = ("hooks.early_stop.enabled=false", "hooks.accuracy.enabled=false", "hooks.checkpoint.args={}")
    trained(counts, *off, "run.sanity=false")
    assert calls.read_text().startswith("t")
    calls.unlink()
    run_dir = trained(counts, *off, strike(tmp_path, 2, "after_backward"), code=143)
    begun = calls.read_text()
    assert begun.startswith("vvt")
    assert train_here(run_dir, resume=True) == 0
    assert calls.read_text()[len(begun)] == "t"


def test_the_network_is_restored_on_its_device() -> None:
    """On the device "meta" any copy to the host raises."""
    net = nn.BatchNorm1d(3, device="meta")
    with unchanged(net, torch.device("meta")):
        net(torch.ones(2, 3, device="meta"))
    assert net.running_mean is not None and net.running_mean.is_meta
