"""Metrics of torchmetrics: what they find, and what is said of those that cannot be made."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from hookflow.errors import UserError
from hookflow.hooks.builtin.metrics import Metrics
from hookflow.hooks.compile import compile_pipeline
from hookflow.pipeline.load import parse
from tests.conftest import TESTS, TOY, NewRun, records
from tests.hooks.stand_ins import StandIn
from tests.toy import Net

MICRO = 'right={use="MulticlassAccuracy", args={num_classes=3, average="micro"}}'
F1 = 'f1={use="torchmetrics.classification:MulticlassF1Score", args={num_classes=3}}'
EACH: Any = {"each": {"use": "MulticlassAccuracy", "args": {"num_classes": 3, "average": None}}}


def test_a_run_has_them_among_its_metrics(new_run: NewRun, train_here: Any) -> None:
    metrics = f'hooks.metrics={{use="metrics", args={{metrics={{{MICRO}, {F1}}}}}}}'
    run_dir = new_run(
        metrics, 'hooks.checkpoint.args.monitor="f1"', "hooks.checkpoint.args.mode='max'", "run.test=true"
    )
    assert train_here(run_dir) == 0, records(run_dir, "error")
    found = records(run_dir, "metrics")
    assert [record["split"] for record in found] == ["val"] * 3 + ["test"]
    for record in found:
        values: Any = record["v"]
        assert values["right"] == pytest.approx(values["accuracy"])
        assert 0 < values["f1"] <= 1


def test_each_pass_begins_anew_and_counts_all_batches() -> None:
    hook = Metrics(metrics={"f1": {"use": "MulticlassF1Score", "args": {"num_classes": 2}}})  # type: ignore[dict-item]
    run: Any = StandIn(Net())
    batches = [([0, 0, 1], [0, 1, 1]), ([1, 0], [1, 0])]
    for _ in range(2):
        hook.before_val_epoch(run)
        for answers, target in batches:
            logits = torch.nn.functional.one_hot(torch.tensor(answers), 2).float()
            hook.after_val_iter({"logits": logits, "target": torch.tensor(target)})
        metrics: dict[str, Any] = {}
        hook.after_val_epoch(metrics)
        assert float(metrics["f1"]) == pytest.approx((2 * 2 / (2 * 2 + 1) + 2 * 2 / (2 * 2 + 1)) / 2)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"f1": {"use": "MulticlasF1Score"}}, 'did you mean "MulticlassF1Score"?'),
        (
            {"f1": {"use": "MulticlassF1Score", "args": {"classes": 3}}},
            'the metric "f1" needs the argument "num_classes"',
        ),
        ({"f1": {"use": "MulticlassF1Score", "args": {"num_classes": 3, "average": "all"}}}, 'the metric "f1": '),
    ],
)
def test_what_cannot_be_made_is_told_before_the_run(metrics: Any, said: str) -> None:
    with pytest.raises(UserError) as raised:
        Metrics(metrics)
    assert said in str(raised.value)


def test_what_is_not_one_number_or_not_there_is_told() -> None:
    hook, run = Metrics(EACH), StandIn(Net())
    hook.before_val_epoch(run)  # type: ignore[arg-type]
    with pytest.raises(UserError, match='metrics needs the output "target" of the task, which gives "logits"'):
        hook.after_val_iter({"logits": torch.zeros(2, 3)})
    hook.after_val_iter({"logits": torch.zeros(2, 3), "target": torch.tensor([0, 1])})
    with pytest.raises(UserError, match=r'the metric "each" gives a tensor of shape \(3,\), and not one number'):
        hook.after_val_epoch({})


@pytest.mark.parametrize(
    ("hook", "package", "extra"),
    [
        ('use = "metrics"\nargs = { metrics = { f1 = { use = "MulticlassF1Score" } } }', "torchmetrics", "metrics"),
        ('use = "export"\nargs = { formats = ["state_dict", "safetensors"] }', "safetensors", "safetensors"),
    ],
)
def test_a_missing_package_is_told_by_check_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, hook: str, package: str, extra: str
) -> None:
    loaded = parse(TOY.read_text() + f"\n[hooks.mine]\n{hook}\n", TOY)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"the package {package}, which is not installed") as raised:
        compile_pipeline(loaded, TESTS)
    (problem,) = raised.value.problems
    assert problem.where is not None and problem.where.line == len(TOY.read_text().splitlines()) + 4
    assert problem.hint == f"pip install 'hookflow[{extra}]'"
