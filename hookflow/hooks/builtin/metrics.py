"""Metrics of a validation: `accuracy`, `confusion_matrix`, and any of torchmetrics."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.arguments import find_class
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.tensors import output
from hookflow.pipeline.components import Component
from hookflow.pipeline.registry import missing_package
from hookflow.user_code import causes

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run

Stage = Literal["train", "val", "test"]


@dataclass(eq=False)
class Accuracy(Hook):
    """Counts right answers during validation and test, over all ranks, and adds them to the metrics.

    Needs a task whose outputs hold `logits` (N, classes) and `target` (N), as Classification's do. Counts on the
    device, so that nothing waits; only the end of the pass reads the total. With "train" among its `stages` it counts
    the batches of the training, too, with the weights as they were then, and logs `train/accuracy` after each epoch.
    """

    phase = "early"
    reads: ClassVar[Slots] = dict.fromkeys(("after_forward", "after_val_iter", "after_test_iter"), ("outputs",))
    writes: ClassVar[Slots] = {
        "after_train_epoch": ("scalars.train/{metric}",),
        **dict.fromkeys(("after_val_epoch", "after_test_epoch"), ("metrics.{metric}",)),
    }

    topk: Annotated[int, Field(ge=1, description="how many of the highest-scored classes count as an answer")] = 1
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, description="the data on which it counts")] = (
        "val",
        "test",
    )

    def __post_init__(self) -> None:
        self.metric = self.slot_keys({"topk": self.topk})["metric"]
        self.makes_metrics = (self.metric,)
        self.trained: list[Any] = [0, 0]
        self.evaluated: list[Any] = [0, 0]
        """The right answers, and the answers, of the epoch and of the pass."""

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        stages = args.get("stages", ("val", "test"))
        middle = {"train": "after_forward", "val": "after_val_iter", "test": "after_test_iter"}
        wanted = [stage for stage in middle if stage in stages] if isinstance(stages, list | tuple) else []
        return tuple(p for stage in wanted for p in (f"before_{stage}_epoch", middle[stage], f"after_{stage}_epoch"))

    @classmethod
    def slot_keys(cls, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"metric": "accuracy" if args["topk"] == 1 else f"accuracy_top{args['topk']}"}

    def before_train_epoch(self) -> None:
        self.trained = [0, 0]

    def after_forward(self, outputs: dict[str, Any]) -> None:
        self._count(self.trained, outputs)

    def after_train_epoch(self, run: Run) -> None:
        right, seen = map(run.sum, self.trained)
        run.log(f"train/{self.metric}", right / seen.clamp(min=1))

    def before_val_epoch(self) -> None:
        self.evaluated = [0, 0]

    def after_val_iter(self, outputs: dict[str, Any]) -> None:
        self._count(self.evaluated, outputs)

    def after_val_epoch(self, run: Run, metrics: MutableMapping[str, float]) -> None:
        right, seen = (float(run.sum(float(count))) for count in self.evaluated)
        metrics[self.metric] = right / max(seen, 1)

    before_test_epoch = before_val_epoch
    after_test_iter = after_val_iter
    after_test_epoch = after_val_epoch

    def _count(self, counts: list[Any], outputs: dict[str, Any]) -> None:
        logits, target = _logits_and_target("accuracy", outputs)
        answers = logits.topk(self.topk, dim=1).indices
        counts[0] = counts[0] + (answers == target[:, None]).any(dim=1).sum()
        counts[1] += len(target)

    def state_dict(self) -> dict[str, Any]:
        return {"trained": list(self.trained)} if "train" in self.stages else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained = list(state.get("trained", (0, 0)))


def _logits_and_target(hook: str, outputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    hint = "return logits (N, classes) and target (N) beside the loss, as hookflow.zoo.tasks:Classification does"
    return output(outputs, "logits", hook, hint), output(outputs, "target", hook, hint)


WIDEST = 20
"""Classes up to which the text is the whole matrix; of more it lists what is confused most."""

CELL = 8
"""Pixels that a cell of a small matrix is wide; one of many classes gets at least one."""


@dataclass(eq=False)
class ConfusionMatrix(Hook):
    """Computes the confusion matrix in validation and test, over all ranks, and logs it as text and image.

    Both are called `val/confusion_matrix` or `test/confusion_matrix`; of a set with a name, `val/ood/confusion_matrix`.
    A row is a class, a column what it is taken for.
    In the image each row is divided by its sum: white is all examples of the class. Needs a task whose outputs hold
    `logits` (N, classes, …) and `target` (N, …), as Classification's do; targets that are no class, such as -100, are
    left out. Counts on the device, so that nothing waits; only the end of the pass reads the counts.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("after_val_iter", "after_test_iter"), ("outputs",))

    classes: Annotated[list[str] | None, Field(description="the names of the classes; numbers if left out")] = None

    def __post_init__(self) -> None:
        self.counts: Any = None

    def before_val_epoch(self) -> None:
        self.counts = None

    def after_val_iter(self, outputs: dict[str, Any]) -> None:
        logits, target = _logits_and_target("confusion_matrix", outputs)
        result = counts(logits.argmax(dim=1), target, logits.shape[1])
        self.counts = result if self.counts is None else self.counts + result

    def after_val_epoch(self, run: Run) -> None:
        name = f"{run.split.replace('.', '/')}/confusion_matrix"
        total = run.sum(self.counts)
        if run.rank:
            return
        names = self.classes or [str(k) for k in range(len(total))]
        if len(names) != len(total):
            message = f"confusion_matrix has names of {len(names)} classes, and the task's logits have {len(total)}"
            raise UserError(Problem(message))
        run.log_text(name, text(total.tolist(), names))
        run.log_image(name, image(total), "rows: the class; columns: what it is taken for")

    before_test_epoch = before_val_epoch
    after_test_iter = after_val_iter
    after_test_epoch = after_val_epoch


def counts(predicted: Tensor, target: Tensor, classes: int) -> Tensor:
    """Return how often each class (row) is predicted as each (column), int64 (classes, classes), without waiting."""
    import torch

    predicted, target = predicted.flatten(), target.flatten()
    counted = (target >= 0) & (target < classes)
    cell = target.clamp(0, classes - 1) * classes + predicted
    result = torch.zeros(classes * classes, dtype=torch.int64, device=target.device)
    return result.scatter_add_(0, cell, counted.long()).reshape(classes, classes)


def text(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return the matrix as a table; of many classes the pairs that are confused most."""
    if len(names) > WIDEST:
        wrong = [(n, i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if n and i != j]
        worst = sorted(wrong, key=lambda result: -result[0])[:WIDEST]
        return "\n".join(f"{n:6d} × {names[i]} taken for {names[j]}" for n, i, j in worst)
    rows = [["", *names], *([name, *map(str, row)] for name, row in zip(names, matrix, strict=True))]
    width = max(len(cell) for row in rows for cell in row)
    return "\n".join(" ".join(f"{cell:>{width}}" for cell in row) for row in rows)


def image(matrix: Tensor) -> Tensor:
    """Return the matrix as an image, float (height, width) in 0…1: each row divided by its sum."""
    shares = matrix.double() / matrix.sum(dim=1, keepdim=True).clamp(min=1)
    cell = max(CELL * WIDEST // len(matrix), 1)
    return shares.repeat_interleave(cell, 0).repeat_interleave(cell, 1)


def latest(run: Run, metric: str) -> float | None:
    """Return a metric of the latest validation; None where it is of a set that was not validated on then.

    Raises UserError with the nearest name when there is no such metric.
    """
    name, slash, _ = metric.partition("/")
    if not slash or f"val.{name}" not in run.data or metric in run.metrics:
        return run.metric(metric)
    return run.metric(metric) if any(other.startswith(f"{name}/") for other in run.metrics) else None


class Metric(Component):
    """A metric: a class of torchmetrics by its name, or "package.module:Name", and its arguments."""


@dataclass(eq=False)
class Metrics(Hook):
    """Computes metrics of torchmetrics during validation and test, over all ranks, and adds them to the metrics.

    Each is given two of the task's outputs, batch by batch: what was predicted, and the target. It counts on the
    device; at the end of the pass torchmetrics brings the counts of all ranks together. The result must be one number.
    Metrics that check their arguments wait for a GPU in each batch, unless `validate_args = false` is among theirs.
    Needs torchmetrics: pip install 'hookflow[metrics]'.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("after_val_iter", "after_test_iter"), ("outputs",))
    writes: ClassVar[Slots] = dict.fromkeys(("after_val_epoch", "after_test_epoch"), ("metrics.{metrics}",))

    metrics: Annotated[
        dict[str, Metric],
        Field(
            min_length=1,
            description="the metrics by the names that they are to have, each as { use, args }",
            examples=[{"f1": {"use": "MulticlassF1Score", "args": {"num_classes": 10}}}],
        ),
    ]
    predicted: Annotated[str, Field(description="the output that is given as what was predicted")] = "logits"
    target: Annotated[str, Field(description="the output that is given as the target")] = "target"

    def __post_init__(self) -> None:
        self.makes_metrics = tuple(self.metrics)
        self.made = made(self.metrics)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if missing := missing_package("the hook metrics", "torchmetrics", "metrics"):
            raise UserError(missing)

    def before_val_epoch(self, run: Run) -> None:
        for metric in self.made.values():
            metric.to(run.device).reset()

    def after_val_iter(self, outputs: Mapping[str, Any]) -> None:
        hint = 'say which it is: predicted = "…", target = "…"'
        predicted, target = (output(outputs, name, "metrics", hint) for name in (self.predicted, self.target))
        for metric in self.made.values():
            metric.update(predicted, target)

    def after_val_epoch(self, metrics: MutableMapping[str, Any]) -> None:
        for name, metric in self.made.items():
            value = metric.compute()
            if getattr(value, "ndim", None) != 0:
                shown = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
                message = f'the metric "{name}" gives {shown}, and not one number'
                raise UserError(Problem(message, hint='many give one with average = "macro" among their args'))
            metrics[name] = value

    before_test_epoch = before_val_epoch
    after_test_iter = after_val_iter
    after_test_epoch = after_val_epoch


def made(metrics: Mapping[str, Metric | Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of torchmetrics by name. Raises UserError with all metrics that cannot be constructed."""
    import torchmetrics

    modules = torchmetrics.regression, torchmetrics.classification, torchmetrics
    result: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, stated in metrics.items():
        metric, called = Metric.model_validate(stated), f'the metric "{name}"'
        try:
            result[name] = find_class(metric, torchmetrics.Metric, modules, called)(**metric.args)
        except UserError as error:
            problems += error.problems
        except (TypeError, ValueError) as error:
            problems.append(Problem(f"{called}: {error}", hint="\n    ".join(causes(error))))
    if problems:
        raise UserError(problems)
    return result
