"""Hooks over two ranks: what they do is what they do in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hookflow.events.rundir import RunDir
from tests.conftest import records
from tests.distributed.clouds import Clouds, Normed
from tests.distributed.conftest import NewClouds
from tests.distributed.several import carry_out, printed
from tests.runner.same import curve, final_state

HERE = Path(__file__).parent
NORMED = 'model.use="./clouds.py:Normed"', "data.train.args.examples=44"  # a norm needs two of them on each rank


def test_weights_and_metrics_are_those_of_one_process(new_clouds: NewClouds, train_here: Any) -> None:
    """Of the last batch the ranks have unequal shares."""
    f1 = 'f1={use="MulticlassF1Score", args={num_classes=3}}'
    hooks = (
        'hooks.freeze={use="freeze", args={params=["body.*"], begin="2it", end="1ep"}}',
        'hooks.swa={use="swa", args={begin="1ep", every="2it", lr=0.02, anneal="3it"}}',
        'hooks.schedule={use="param_schedule", args={weight_decay=[[0, 0.01], ["100%", 0.1]]}}',
        f'hooks.metrics={{use="metrics", args={{metrics={{{f1}}}}}}}',
        'hooks.accumulation={use="accumulation_schedule", args={batches=[["1ep", 2]]}}',
        "hooks.ema.enabled=false",
    )
    alone, together = new_clouds(*hooks), new_clouds(*hooks)
    assert train_here(alone) == 0
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    assert curve(together) == pytest.approx(curve(alone), rel=1e-4, abs=1e-5)
    assert any(name == "f1" for *_, name in curve(together))
    for part in ("model", "model_swa"):
        torch.testing.assert_close(final_state(alone)[part], final_state(together)[part], rtol=1e-4, atol=1e-5)


def test_statistics_are_those_of_all_ranks(new_clouds: NewClouds, train_here: Any) -> None:
    """While it trains, and of the weights that are judged."""
    hooks = (
        *NORMED,
        'hooks.sync={use="sync_buffers"}',
        'hooks.says={use="./clouds.py:statistics", points=["after_train_iter"]}',
        'hooks.precise={use="precise_bn"}',
        "hooks.ema.enabled=false",
    )
    alone, together = new_clouds(*hooks, "run.max_epochs=1"), new_clouds(*hooks, "run.max_epochs=1")
    assert train_here(alone) == 0
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    first = [next(kept for kept in said(run_dir)) for run_dir in (alone, together)]
    assert first[1] == pytest.approx(first[0], abs=1e-5)
    state: Any = final_state(together)["model"]
    net = Normed()
    net.load_state_dict(state)
    with torch.no_grad():
        given = net.body[:3](Clouds(44, seed=0).inputs)  # an epoch has every example; its seed is that of the run
    torch.testing.assert_close(state["body.3.running_mean"], given.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["body.3.running_var"], given.var(0), rtol=1e-4, atol=1e-5)


def said(run_dir: RunDir) -> list[list[float]]:
    texts = [str(record["text"]) for record in records(run_dir, "message")]
    return [json.loads(text.removeprefix("statistics ")) for text in texts if text.startswith("statistics ")]


SURGEON = 'hooks.surgeon={use="./../surgeons.py:Surgeon"}', "hooks.ema.enabled=false"


@pytest.mark.parametrize("task", [(), ('task.use="./clouds.py:OwnSteps"',)], ids=["DDP", "DDP at the step"])
def test_parameters_that_a_hook_adds_are_those_of_rank_0(new_clouds: NewClouds, train_here: Any, task: Any) -> None:
    """The hook draws other weights on each rank."""
    alone, together = new_clouds(*SURGEON, *task), new_clouds(*SURGEON, *task)
    assert train_here(alone) == 0
    assert carry_out(together, 2) == [0, 0], printed(together, 0)
    torch.testing.assert_close(final_state(alone)["model"], final_state(together)["model"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["hooks.surgeon.args={point='before_train_iter', at=2}"], "DDP takes no parameters after the first forward"),
        (['distributed.strategy="fsdp"'], "FSDP takes no parameters after the start"),
    ],
)
def test_parameters_that_come_too_late_are_refused(new_clouds: NewClouds, overrides: list[str], reason: str) -> None:
    run_dir = new_clouds(*SURGEON, *overrides)
    assert carry_out(run_dir, 2) == [2, 2], printed(run_dir, 0)
    assert reason in str(records(run_dir, "end")[0]["reason"])
