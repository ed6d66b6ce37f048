"""Metrics of a validation: `accuracy`, `confusion_matrix`, and any of torchmetrics."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.arguments import find_class
from hookflow.hooks.base import Hook, Slots
from hookflow.hooks.builtin.scores import (
    CLASS_DIM,
    Activation,
    ClassDim,
    ClassDimension,
    compute_probabilities,
    find_activation,
    find_num_labels,
    find_range_problem,
    is_class_metric,
    make_precise,
    read_logits_and_target,
    update_metric,
)
from hookflow.hooks.tensors import on_device, read_output, sum_dtype
from hookflow.pipeline.components import Component
from hookflow.pipeline.registry import missing_package
from hookflow.user_code import describe_causes

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run

CountedData = Literal["train", "val", "test"]
"""The data on which `accuracy` can count."""

SHARE_TOLERANCE = 0.02
"""By how much the shares of the classes of an example may miss 1: those in bf16 are rounded."""


class AnswerCounts:
    """The counts of right answers, answers and wrong targets, on the device.

    A target is wrong whose shares do not sum to 1.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.right: Any = 0
        self.answers: Any = 0
        self.wrong_shares: Any = 0
        self.has_shares = False

    def add(self, logits: Tensor, target: Tensor, topk: int) -> None:
        """Count the answers of a batch, logits (N, classes, …), to a target.

        The target is classes (N, …) or shares (N, classes, …).
        """
        answers = logits.topk(topk, dim=1).indices
        if target.is_floating_point():
            self._add_shares(answers, target)
            return
        is_class = (target >= 0) & (target < logits.shape[1])
        is_right = (answers == target.unsqueeze(1)).any(dim=1) & is_class
        self.right = self.right + is_right.sum()
        self.answers = self.answers + is_class.sum()

    def _add_shares(self, answers: Tensor, shares: Tensor) -> None:
        """Count an answer as its share of the target.

        Shares of one class are then counted as that class is.
        """
        self.has_shares = True
        shares = shares.to(sum_dtype(shares.device))
        sums = shares.sum(dim=1)
        is_wrong = ((sums - 1).abs() > SHARE_TOLERANCE) | (shares < 0).any(dim=1)
        self.right = self.right + shares.gather(1, answers).sum()
        self.answers = self.answers + sums.numel()
        self.wrong_shares = self.wrong_shares + is_wrong.sum()

    def over_ranks(self, run: Run) -> Tensor:
        """Return the right answers, the answers and the wrong shares of all ranks: (3,).

        All ranks must call it.
        """
        import torch

        here = (self.right, self.answers, self.wrong_shares)
        return run.sum(torch.stack([on_device(count, run.device) for count in here]))

    def state_dict(self) -> dict[str, Any]:
        return {
            "trained": [self.right, self.answers],
            "wrong_shares": self.wrong_shares,
            "has_shares": self.has_shares,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.right, self.answers = state.get("trained", (0, 0))
        self.wrong_shares = state.get("wrong_shares", 0)
        self.has_shares = state.get("has_shares", False)


@dataclass(eq=False)
class Accuracy(Hook):
    """Computes the accuracy of validations and tests over all ranks, as a metric.

    Needs a task whose outputs hold `logits` (N, classes, …) and `target` (N, …), as
    Classification's do. Targets that are no class, such as -100, are left out; without any other
    the accuracy is NaN. A target may also be the shares of the classes (N, classes, …), as `mixup`
    makes them: then an answer counts as the share of its class.

    Counts on the device, so that nothing waits; only the end of the pass reads the total. With
    "train" among its `stages` it counts the batches of the training, too, with the weights as they
    were then, and logs `train/accuracy` after each epoch.
    """

    phase = "early"
    reads: ClassVar[Slots] = dict.fromkeys(
        ("after_forward", "after_val_iter", "after_test_iter"), ("outputs",)
    )
    writes: ClassVar[Slots] = {
        "after_train_epoch": ("scalars.train/{metric}",),
        **dict.fromkeys(("after_val_epoch", "after_test_epoch"), ("metrics.{metric}",)),
    }

    topk: Annotated[
        int, Field(ge=1, description="how many of the highest-scored classes count as an answer")
    ] = 1
    stages: Annotated[
        tuple[CountedData, ...], Field(min_length=1, description="the data on which it counts")
    ] = (
        "val",
        "test",
    )
    class_dim: Annotated[ClassDim | None, Field(description=CLASS_DIM)] = None

    def __post_init__(self) -> None:
        self.metric = self.slot_keys({"topk": self.topk})["metric"]
        self.classes = ClassDimension("accuracy", self.class_dim)
        self.trained = AnswerCounts()
        self.evaluated = AnswerCounts()
        """The counts of the epoch, and of the pass."""

    @classmethod
    def points_for(cls, args: Mapping[str, Any]) -> tuple[str, ...]:
        stages = args.get("stages", ("val", "test"))
        if not isinstance(stages, list | tuple):
            return ()
        points: list[str] = []
        middle = {"train": "after_forward", "val": "after_val_iter", "test": "after_test_iter"}
        for stage, point in middle.items():
            if stage in stages:
                points += (f"before_{stage}_epoch", point, f"after_{stage}_epoch")
        return tuple(points)

    @classmethod
    def slot_keys(cls, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"metric": "accuracy" if args["topk"] == 1 else f"accuracy_top{args['topk']}"}

    def before_train_epoch(self) -> None:
        self.trained.clear()

    def after_forward(self, outputs: dict[str, Any]) -> None:
        self._count(self.trained, outputs)

    def after_train_epoch(self, run: Run) -> None:
        totals = self.trained.over_ranks(run)
        if self.trained.has_shares:
            _check_shares(float(totals[2]))
        run.log(f"train/{self.metric}", totals[0] / totals[1])

    def before_val_epoch(self) -> None:
        self.evaluated.clear()

    def after_val_iter(self, outputs: dict[str, Any]) -> None:
        self._count(self.evaluated, outputs)

    def after_val_epoch(self, run: Run, metrics: MutableMapping[str, float]) -> None:
        right, answers, wrong_shares = self.evaluated.over_ranks(run).tolist()
        _check_shares(wrong_shares)
        if answers:
            metrics[self.metric] = right / answers
        else:
            metrics[self.metric] = nan
            run.say(
                f"{self.metric} is NaN: no target of {run.split} is a class of the logits", "warn"
            )

    before_test_epoch = before_val_epoch
    after_test_iter = after_val_iter
    after_test_epoch = after_val_epoch

    def _count(self, counts: AnswerCounts, outputs: dict[str, Any]) -> None:
        logits, target = read_logits_and_target(outputs, self.classes, "accuracy")
        if self.topk > logits.shape[1]:
            message = (
                f"accuracy counts the {self.topk} highest-scored classes, and the logits have"
                f" {logits.shape[1]}"
            )
            raise UserError(Problem(message, hint="lower topk"))
        counts.add(logits, target, self.topk)

    def state_dict(self) -> dict[str, Any]:
        if "train" in self.stages:
            return self.trained.state_dict()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained.load_state_dict(state)


def _check_shares(targets: float) -> None:
    if targets:
        message = (
            "accuracy takes a floating-point target for shares of classes, and those of"
            f" {targets:.0f} do not sum"
        )
        hint = "for several labels an example there are the Multilabel metrics of the hook metrics"
        raise UserError(Problem(f"{message} to 1", hint=hint))


MAX_TEXT_CLASSES = 20
"""Classes up to which the text is the whole matrix; of more it lists what is confused most."""

CELL_PIXELS = 8
"""Pixels that a cell of a small matrix is wide; one of many classes gets at least one."""


@dataclass(eq=False)
class ConfusionMatrix(Hook):
    """Logs the confusion matrix of validations and tests as text and as an image.

    It counts over all ranks. Text and image are called `val/confusion_matrix` or
    `test/confusion_matrix`; of a set with a name, `val/ood/confusion_matrix`. A row is a class,
    a column what it is taken for. In the image each row is divided by its sum: white is all
    examples of the class. Needs a task whose outputs hold `logits` (N, classes, …) and `target`
    (N, …), as Classification's do; targets that are no class, such as -100, are left out. Shares of
    classes are refused. Counts on the device, so that nothing waits; only the end of the pass reads
    the counts.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("after_val_iter", "after_test_iter"), ("outputs",))

    classes: Annotated[
        list[str] | None, Field(description="the names of the classes; numbers if left out")
    ] = None
    class_dim: Annotated[ClassDim | None, Field(description=CLASS_DIM)] = None

    def __post_init__(self) -> None:
        self.dimension = ClassDimension("confusion_matrix", self.class_dim)
        self.counts: Any = None

    def before_val_epoch(self) -> None:
        self.counts = None

    def after_val_iter(self, outputs: dict[str, Any]) -> None:
        logits, target = read_logits_and_target(outputs, self.dimension, "confusion_matrix")
        if target.is_floating_point():
            message = (
                f"confusion_matrix counts classes, and the target is {target.dtype}"
                f" {(*target.shape,)}"
            )
            raise UserError(Problem(message, hint="a matrix of shares of classes is not defined"))
        result = count_confusions(logits.argmax(dim=1), target, logits.shape[1])
        if self.counts is None:
            self.counts = result
        else:
            self.counts = self.counts + result

    def after_val_epoch(self, run: Run) -> None:
        name = f"{run.split.replace('.', '/')}/confusion_matrix"
        if self.counts is None:
            message = (
                f"confusion_matrix has nothing to count: every batch of {run.split} was skipped"
            )
            raise UserError(Problem(message))
        total = run.sum(self.counts)
        if run.rank:
            return
        names = self.classes or [str(k) for k in range(len(total))]
        if len(names) != len(total):
            message = (
                f"confusion_matrix has names of {len(names)} classes, and the task's logits have"
                f" {len(total)}"
            )
            raise UserError(Problem(message))
        run.log_text(name, format_matrix(total.tolist(), names))
        run.log_image(name, draw_matrix(total), "rows: the class; columns: what it is taken for")

    before_test_epoch = before_val_epoch
    after_test_iter = after_val_iter
    after_test_epoch = after_val_epoch


def count_confusions(predicted: Tensor, target: Tensor, classes: int) -> Tensor:
    """Return how often each class (row) is predicted as each (column).

    The counts are int64 (classes, classes), and nothing waits for the device.
    """
    import torch

    predicted = predicted.flatten()  # small integers would overflow
    target = target.flatten().long()
    counted = (target >= 0) & (target < classes)
    cell = target.clamp(0, classes - 1) * classes + predicted
    result = torch.zeros(classes * classes, dtype=torch.int64, device=target.device)
    return result.scatter_add_(0, cell, counted.long()).reshape(classes, classes)


def format_matrix(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return the matrix as a table; of many classes the pairs that are confused most."""
    if len(names) > MAX_TEXT_CLASSES:
        wrong = []
        for i, row in enumerate(matrix):
            for j, n in enumerate(row):
                if n and i != j:
                    wrong.append((n, i, j))
        worst = sorted(wrong, key=lambda result: -result[0])[:MAX_TEXT_CLASSES]
        return "\n".join(f"{n:6d} × {names[i]} taken for {names[j]}" for n, i, j in worst)
    rows = [
        ["", *names],
        *([name, *map(str, row)] for name, row in zip(names, matrix, strict=True)),
    ]
    width = max(len(cell) for row in rows for cell in row)
    return "\n".join(" ".join(f"{cell:>{width}}" for cell in row) for row in rows)


def draw_matrix(matrix: Tensor) -> Tensor:
    """Return the matrix as an image, float (height, width) in 0…1: each row divided by its sum."""
    shares = matrix.double() / matrix.sum(dim=1, keepdim=True).clamp(min=1)
    cell = max(CELL_PIXELS * MAX_TEXT_CLASSES // len(matrix), 1)
    return shares.repeat_interleave(cell, 0).repeat_interleave(cell, 1)


class Metric(Component):
    """A metric of torchmetrics.

    `use` is a class of it by its name, or "package.module:Name".
    """


class ScoreChecks:
    """Counts what a metric was given in a pass that makes its value wrong.

    The counts are on the device.
    """

    def __init__(self, name: str, metric: Any, predicted: str) -> None:
        self.activation = find_activation(metric)
        self.takes_classes = is_class_metric(metric)
        self._name = name
        self._predicted = predicted
        self._labels = find_num_labels(metric)
        self._ignored = getattr(metric, "ignore_index", None)
        self.clear()

    def clear(self) -> None:
        self._nans: Any = 0
        self._beyond: Any = 0
        self._no_labels: Any = 0

    def add(self, scores: Tensor, target: Tensor) -> None:
        """Look at what the metric is given of a batch."""
        if self.activation is not None and scores.is_floating_point():
            self._nans = self._nans + scores.isnan().sum()
            self._beyond = self._beyond + ((scores < 0) | (scores > 1)).sum()
        if self._labels is not None and not target.is_floating_point():
            is_no_label = (target < 0) | (target >= self._labels)
            if self._ignored is not None:
                is_no_label = is_no_label & (target != self._ignored)
            self._no_labels = self._no_labels + is_no_label.sum()

    def over_ranks(self, run: Run) -> bool:
        """Return whether the metric has a value, which it has not where a score was NaN.

        All ranks must call it. Raises UserError where what it was given makes its value wrong.
        """
        import torch

        here = (self._nans, self._beyond, self._no_labels)
        totals = run.sum(torch.stack([on_device(count, run.device) for count in here]))
        nans, beyond, no_labels = totals.tolist()
        called = f'the metric "{self._name}"'
        if beyond:
            message = (
                f'{called} is given the output "{self._predicted}" as probabilities, and'
                f" {beyond:.0f} of them"
            )
            raise UserError(
                Problem(
                    f"{message} are not from 0 to 1", hint='say what they are: scores = "logits"'
                )
            )
        if no_labels:
            message = f"{called} takes targets from 0 to {(self._labels or 1) - 1}"
            hint = "ignore_index = -100 among its args leaves out targets of -100"
            raise UserError(Problem(f"{message}, and is given {no_labels:.0f} others", hint=hint))
        return not nans


@dataclass(eq=False)
class Metrics(Hook):
    """Computes metrics of torchmetrics in validations and tests, over all ranks.

    Each is given two of the task's outputs, batch by batch: what was predicted, and the target. It
    counts on the device; at the end of the pass torchmetrics brings the counts of all ranks
    together. The result must be one number.

    Metrics of one logit a label (Binary…, Multilabel…), and those of thresholds (MulticlassAUROC,
    say), need probabilities. torchmetrics takes a batch for logits when one of them is not from 0
    to 1. The value would depend on the size of the batches, so `scores` says what they are. A
    target that is no class is refused unless it is the `ignore_index` of the metric; where a score
    is NaN, so is the metric.

    Metrics that check their arguments wait for a GPU in each batch, unless `validate_args = false`
    is among theirs. Needs torchmetrics: pip install 'hookflow[metrics]'.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("after_val_iter", "after_test_iter"), ("outputs",))
    writes: ClassVar[Slots] = dict.fromkeys(
        ("after_val_epoch", "after_test_epoch"), ("metrics.{metrics}",)
    )

    metrics: Annotated[
        dict[str, Metric],
        Field(
            min_length=1,
            description="the metrics by the names that they are to have, each as { use, args }",
            examples=[{"f1": {"use": "MulticlassF1Score", "args": {"num_classes": 10}}}],
        ),
    ]
    predicted: Annotated[
        str, Field(description="the output that is given as what was predicted")
    ] = "logits"
    target: Annotated[str, Field(description="the output that is given as the target")] = "target"
    scores: Annotated[
        Literal["logits", "probabilities"] | None,
        Field(
            description=(
                "what floating-point predictions are; needed where the output is not called logits"
            )
        ),
    ] = None
    class_dim: Annotated[ClassDim | None, Field(description=CLASS_DIM)] = None

    def __post_init__(self) -> None:
        self.made = make_metrics(self.metrics)
        self.checks = {
            name: ScoreChecks(name, metric, self.predicted) for name, metric in self.made.items()
        }
        self.classes = ClassDimension("metrics", self.class_dim)
        self.are_logits = (self.scores or self.predicted) == "logits"
        undecided = []
        for name, check in self.checks.items():
            if check.activation is not None:
                undecided.append(name)
        if undecided and self.scores is None and self.predicted != "logits":
            message = (
                f'nothing says whether the output "{self.predicted}" is logits or probabilities'
            )
            hint = 'say it: scores = "logits", or scores = "probabilities"'
            raise UserError(
                Problem(f'{message}, which the metric "{undecided[0]}" must know', hint=hint)
            )

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        missing = missing_package("the hook metrics", "torchmetrics", "metrics")
        if missing:
            raise UserError(missing)

    def before_val_epoch(self, run: Run) -> None:
        for name, metric in self.made.items():
            metric.to(run.device).reset()
            self.checks[name].clear()

    def after_val_iter(self, outputs: Mapping[str, Any]) -> None:
        hint = 'say which it is: predicted = "…", target = "…"'
        predicted, target = (
            read_output(outputs, name, "metrics", hint) for name in (self.predicted, self.target)
        )
        if not hasattr(predicted, "is_floating_point") or not hasattr(target, "is_floating_point"):
            for metric in self.made.values():  # texts, say
                metric.update(predicted, target)
            return
        predicted = make_precise(predicted)
        target = make_precise(target)
        scores: dict[tuple[bool, Activation | None], Tensor] = {}
        for name, metric in self.made.items():
            check = self.checks[name]
            kind = check.takes_classes, check.activation
            if kind not in scores:
                scores[kind] = self._make_scores(predicted, target, *kind)
            check.add(scores[kind], target)
            update_metric(metric, scores[kind], target)

    def _make_scores(
        self, predicted: Tensor, target: Tensor, of_classes: bool, activation: Activation | None
    ) -> Tensor:
        """Return what was predicted as a metric takes it.

        Classes are in the second dimension, and logits become probabilities.
        """
        if not predicted.is_floating_point():
            return predicted
        if of_classes:
            predicted = predicted.movedim(self.classes.find(predicted, target), 1)
        if activation is None or not self.are_logits:
            return predicted
        return compute_probabilities(predicted, activation)

    def after_val_epoch(self, run: Run, metrics: MutableMapping[str, Any]) -> None:
        for name, metric in self.made.items():
            has_value = self.checks[name].over_ranks(run)
            value = metric.compute()
            if getattr(value, "ndim", None) != 0:
                if hasattr(value, "shape"):
                    shown = f"a tensor of shape {tuple(value.shape)}"
                else:
                    shown = type(value).__name__
                message = f'the metric "{name}" gives {shown}, and not one number'
                raise UserError(
                    Problem(message, hint='many give one with average = "macro" among their args')
                )
            if has_value:
                metrics[name] = value
            else:
                metrics[name] = nan

    before_test_epoch = before_val_epoch
    after_test_iter = after_val_iter
    after_test_epoch = after_val_epoch


def make_metrics(metrics: Mapping[str, Metric | Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of torchmetrics by name.

    Raises UserError with all metrics that cannot be constructed.
    """
    import torchmetrics

    modules = torchmetrics.regression, torchmetrics.classification, torchmetrics
    result: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, stated in metrics.items():
        metric = Metric.model_validate(stated)
        called = f'the metric "{name}"'
        try:
            result[name] = find_class(metric, torchmetrics.Metric, modules, called)(**metric.args)
            problem = find_range_problem(result[name], called)
            if problem:
                problems.append(problem)
        except UserError as error:
            problems += error.problems
        except (TypeError, ValueError) as error:
            problems.append(
                Problem(f"{called}: {error}", hint="\n    ".join(describe_causes(error)))
            )
    if problems:
        raise UserError(problems)
    return result
