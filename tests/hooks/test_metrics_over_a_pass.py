"""A metric over a pass is the metric of the whole pass at once,
for each size of the batches, or it is refused.
"""

import inspect
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torchmetrics
from torch import Tensor

import hookflow
from hookflow import Hook
from hookflow.errors import UserError
from hookflow.hooks.base import Slots
from hookflow.hooks.builtin.metrics import Accuracy, ConfusionMatrix, Metrics, count_confusions
from hookflow.hooks.builtin.scores import find_activation
from tests.hooks.stand_ins import StandIn
from tests.support.metric_cases import (
    at_once,
    hooks_for,
    rows_of,
    share_of_right,
)
from tests.support.precomputed_outputs import CLASSES, EXAMPLES, Returns, Scale, given

SIZES = (1, 4, 9, EXAMPLES)


TORCHMETRICS = [
    name
    for name in torchmetrics.classification.__all__
    if name.startswith(("Binary", "Multiclass", "Multilabel"))
    and "Fairness" not in name
    and "Group" not in name
]
"""Those that need the group of each example are left out."""


def arguments(use: str) -> dict[str, Any]:
    """Return the arguments that a metric of torchmetrics needs."""
    args: dict[str, Any] = {}
    if use.startswith("Multiclass"):
        args["num_classes"] = CLASSES
    if use.startswith("Multilabel"):
        args["num_labels"] = CLASSES
    if use.endswith("FBetaScore"):
        args["beta"] = 2.0
    needed = inspect.signature(getattr(torchmetrics.classification, use)).parameters
    bounds = ("min_recall", "min_precision", "min_sensitivity", "min_specificity")
    return args | {name: 0.5 for name in bounds if name in needed}


def trained_on(kind: str, size: int, hooks: dict[str, Any], runs: Path, **settings: Any) -> Any:
    """Return a run of one epoch whose training and validation data are of a kind,
    in batches of a size.
    """
    data = {"use": partial(given, kind), "loader": {"batch_size": size}}
    run = {
        "name": "given",
        "max_epochs": 1,
        "threads": 1,
        "device": "cpu",
        "default_hooks": False,
        **settings,
    }
    parts = {"model": {"use": Scale}, "optimizer": {"use": "torch.optim:SGD", "args": {"lr": 0.0}}}
    tables = {
        "run": run,
        **parts,
        "task": {"use": Returns},
        "data": {"train": data, "val": data},
        "hooks": hooks,
    }
    return hookflow.train(tables, "none", runs=runs)


@pytest.mark.parametrize(
    "kind", ["hard", "ignored", "shares", "maps", "tokens", "binary", "labels", "numbers"]
)
def test_a_metric_of_batches_is_that_of_the_whole_set(kind: str, tmp_path: Path) -> None:
    logits, _ = rows_of(kind)
    first = given(kind).tensors[0].flatten(1)[:, 0] if logits.ndim > 1 else logits
    expected = {**at_once(kind), "square": float(first.square().mean()), "loss": 0.0}
    for size in SIZES:
        run = trained_on(kind, size, hooks_for(kind), tmp_path)
        assert run.metrics["val"] == pytest.approx(expected, abs=2e-6), f"in batches of {size}"


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["hard", "ignored", "shares"])
def test_the_accuracy_of_training_batches_is_that_of_the_epoch(
    kind: str, accumulate: int, tmp_path: Path
) -> None:
    """Nothing is learnt, so that all batches see the same weights."""
    hooks = {"seen": {"use": "accuracy", "args": {"stages": ["train"]}}}
    for size in (4, 9):
        run = trained_on(kind, size, hooks, tmp_path, accumulate=accumulate)
        expected = share_of_right(*rows_of(kind))
        assert run.scalars("train/accuracy")["value"] == pytest.approx([expected])


@dataclass(eq=False)
class Mixed(Hook):
    """Keeps the outputs of an epoch."""

    reads: ClassVar[Slots] = {"after_forward": ("outputs",)}

    def before_train_epoch(self) -> None:
        self.outputs: list[tuple[Tensor, Tensor]] = []

    def after_forward(self, outputs: dict[str, Any]) -> None:
        self.outputs.append((outputs["logits"].detach(), outputs["target"]))


@pytest.mark.parametrize("use", ["mixup", "cutmix"])
def test_the_accuracy_of_mixed_batches_counts_each_target_by_its_share(
    use: str, tmp_path: Path
) -> None:
    mixed = Mixed()
    hooks = {
        "mix": {"use": use, "args": {"classes": CLASSES}},
        "seen": {"use": "accuracy", "args": {"stages": ["train"]}},
        "kept": {"use": mixed},
    }
    run = trained_on("hard", 4, hooks, tmp_path)
    logits, shares = (torch.cat(parts) for parts in zip(*mixed.outputs, strict=True))
    assert len(logits) == EXAMPLES
    assert run.scalars("train/accuracy")["value"] == pytest.approx([share_of_right(logits, shares)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["hard", "ignored", "maps", "tokens"])
def test_a_confusion_matrix_of_batches_is_that_of_the_whole_set(kind: str, size: int) -> None:
    expected = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
    for row, wanted in zip(*rows_of(kind), strict=True):
        if wanted >= 0:
            expected[int(wanted), int(row.argmax())] += 1
    hook = ConfusionMatrix(class_dim="last" if kind == "tokens" else None)
    hook.before_val_epoch()
    for logits, target in zip(*(tensor.split(size) for tensor in given(kind).tensors), strict=True):
        hook.after_val_iter({"logits": logits, "target": target})
    assert torch.equal(hook.counts, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_small_integers_count_as_large_ones(dtype: torch.dtype) -> None:
    target = torch.arange(100, dtype=dtype)
    assert torch.equal(
        count_confusions(torch.arange(100), target, 100), torch.eye(100, dtype=torch.int64)
    )


@pytest.mark.parametrize("use", TORCHMETRICS)
def test_scores_of_every_metric_of_classes_are_never_taken_for_something_else(use: str) -> None:
    """All metrics of torchmetrics that take a binary, a multiclass or a multilabel prediction."""
    kind = use.removeprefix("Binary").removeprefix("Multiclass").removeprefix("Multilabel")
    data = {"Binary": "binary", "Multiclass": "hard", "Multilabel": "labels"}[
        use.removesuffix(kind)
    ]
    logits, target = given(data).tensors
    logits = logits / 2  # more batches are from 0 to 1
    made = []
    for size in SIZES:
        hook = Metrics({"it": {"use": use, "args": arguments(use)}})  # type: ignore[dict-item]
        hook.before_val_epoch(StandIn())  # type: ignore[arg-type]
        for rows, wanted in zip(logits.split(size), target.split(size), strict=True):
            hook.after_val_iter({"logits": rows, "target": wanted})
        made.append(hook.made["it"].compute())
    by_hand = getattr(torchmetrics.classification, use)(**arguments(use))
    activation = find_activation(by_hand)
    if activation is not None:
        logits = logits.sigmoid() if activation == "sigmoid" else logits.softmax(1)
    by_hand.update(logits, target)
    for value in made:
        torch.testing.assert_close(value, by_hand.compute(), rtol=1e-5, atol=1e-6, equal_nan=True)


def ran(hook: Any, *batches: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a pass over these outputs."""
    run: Any = StandIn(split="val")
    metrics: dict[str, float] = {}
    hook.before_val_epoch(*([run] if isinstance(hook, Metrics) else []))
    for outputs in batches:
        hook.after_val_iter(outputs)
    hook.after_val_epoch(run, metrics)
    return metrics


ROWS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 2.0]])
MICRO: Any = {"m": {"use": "MulticlassAccuracy", "args": {"num_classes": 3, "average": "micro"}}}
BINARY: Any = {"m": {"use": "BinaryAccuracy"}}


@pytest.mark.parametrize(
    ("hook", "logits", "target"),
    [
        pytest.param(Accuracy(), ROWS[:, :1], torch.tensor([0, 1]), id="one logit an example"),
        pytest.param(Accuracy(), ROWS[:, 0], torch.tensor([0, 1]), id="a logit an example"),
        pytest.param(Accuracy(), ROWS, torch.tensor([[1, 0, 1], [0, 0, 1]]), id="labels"),
        pytest.param(
            Accuracy(), ROWS, torch.tensor([[1.0, 0, 1], [0, 0, 1]]), id="labels as floats"
        ),
        pytest.param(Accuracy(), ROWS, torch.tensor([0.0, 2.0]), id="classes as floats"),
        pytest.param(Accuracy(), ROWS, torch.tensor([0]), id="fewer targets"),
        pytest.param(
            Accuracy(topk=4), ROWS, torch.tensor([0, 1]), id="more than there are classes"
        ),
        pytest.param(
            Accuracy(), torch.zeros(2, 3, 3), torch.zeros(2, 3).long(), id="classes at either end"
        ),
        pytest.param(
            ConfusionMatrix(),
            torch.zeros(2, 3, 3),
            torch.zeros(2, 3).long(),
            id="a matrix of these",
        ),
        pytest.param(ConfusionMatrix(), ROWS, ROWS.softmax(1), id="a matrix of shares"),
        pytest.param(
            Metrics(MICRO),
            ROWS,
            torch.tensor([0, -100]),
            id="a target that is not said to be ignored",
        ),
        pytest.param(Metrics(MICRO), ROWS, torch.tensor([0, 3]), id="a target beyond the classes"),
        pytest.param(
            Metrics(MICRO),
            torch.zeros(2, 3, 3),
            torch.zeros(2, 3).long(),
            id="torchmetrics, at either end",
        ),
        pytest.param(
            Metrics(BINARY, scores="probabilities"),
            torch.tensor([0.5, 1.5]),
            torch.tensor([0, 1]),
            id="no probability",
        ),
    ],
)
def test_what_has_no_value_is_refused(hook: Any, logits: Tensor, target: Tensor) -> None:
    with pytest.raises(UserError):
        ran(hook, {"logits": logits, "target": target})


def test_where_both_dimensions_fit_the_argument_says_which() -> None:
    """The classes are 0 and 1 by columns, and all 0 by rows."""
    logits = torch.tensor([[[1.0, 3.0], [0.0, 9.0]]])
    outputs = {"logits": logits, "target": torch.tensor([[0, 0]])}
    assert ran(Accuracy(class_dim="second"), outputs) == {"accuracy": 0.5}
    assert ran(Accuracy(class_dim="last"), outputs) == {"accuracy": 0.0}
    two: Any = {"m": {"use": "MulticlassAccuracy", "args": {"num_classes": 2, "average": "micro"}}}
    assert ran(Metrics(two, class_dim="second"), outputs)["m"] == 0.5
    assert ran(Metrics(two, class_dim="last"), outputs)["m"] == 0.0


def test_the_first_batch_says_where_the_classes_are() -> None:
    """Also of a later batch that has as many places as there are classes."""
    first = {
        "logits": torch.eye(3).expand(2, 3, 3)[:, :, :2],
        "target": torch.tensor([[0, 1], [0, 2]]),
    }
    later = {
        "logits": torch.eye(3)[None] + torch.tensor([[0], [0], [5.0]]),
        "target": torch.tensor([[2, 2, 2]]),
    }
    assert ran(Accuracy(), first, later) == {"accuracy": pytest.approx(6 / 7)}


def test_classes_in_the_last_dimension_must_be_stated() -> None:
    """The labels of a causal model may not be shifted yet."""
    outputs = {
        "logits": torch.eye(4).expand(2, 4, 4)[:, :3],
        "target": torch.tensor([[0, 1, 2], [0, 1, 3]]),
    }
    with pytest.raises(UserError, match="second dimension"):
        ran(Accuracy(), outputs)
    assert ran(Accuracy(class_dim="last"), outputs) == {"accuracy": pytest.approx(5 / 6)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_are_summed_in_32(dtype: torch.dtype) -> None:
    predicted = (300 * torch.rand(400, generator=torch.Generator().manual_seed(5))).to(dtype)
    mse: Any = {"m": {"use": "MeanSquaredError"}}
    expected = float(predicted.double().square().mean())
    for size in (1, 64, 400):
        parts = predicted.split(size)
        outputs = [{"logits": part, "target": torch.zeros_like(part)} for part in parts]
        assert float(ran(Metrics(mse), *outputs)["m"]) == pytest.approx(expected, rel=1e-5)


def test_without_any_class_and_of_scores_that_are_nan_the_metric_is_nan() -> None:
    none = {"logits": ROWS, "target": torch.tensor([-100, -100])}
    assert math.isnan(ran(Accuracy(), none)["accuracy"])
    binary = {"logits": torch.tensor([0.5, math.nan]), "target": torch.tensor([0, 1])}
    other = {"logits": torch.tensor([0.5, 0.2]), "target": torch.tensor([0, 1])}
    assert math.isnan(ran(Metrics(BINARY), other, binary)["m"])
    again = Metrics(BINARY)
    ran(again, binary)
    assert ran(again, other)["m"] == 0.5, "the next pass begins anew"


def test_what_scores_are_must_be_said_before_the_run_where_their_name_does_not() -> None:
    with pytest.raises(UserError, match='output "scores" is logits or probabilities'):
        Metrics(BINARY, predicted="scores")
    outputs = {"scores": torch.tensor([0.4, 0.6]), "target": torch.tensor([0, 1])}
    assert ran(Metrics(BINARY, predicted="scores", scores="probabilities"), outputs)["m"] == 1.0
    assert ran(Metrics(BINARY, predicted="scores", scores="logits"), outputs)["m"] == 0.5
    ran(Metrics(MICRO, predicted="scores"), {"scores": ROWS, "target": torch.tensor([0, 1])})


def test_a_metric_that_takes_the_range_of_its_values_from_each_batch_is_refused() -> None:
    use = "torchmetrics.image:StructuralSimilarityIndexMeasure"
    with pytest.raises(UserError, match="hangs on the size of the batches"):
        Metrics({"ssim": {"use": use}})  # type: ignore[dict-item]
    Metrics({"ssim": {"use": use, "args": {"data_range": 1.0}}})  # type: ignore[dict-item]
