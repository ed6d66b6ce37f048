"""The inputs of metrics: logits beside their targets, and scores as torchmetrics takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from hookflow.errors import Problem, UserError
from hookflow.hooks.tensors import read_output

if TYPE_CHECKING:
    from torch import Tensor

ClassDim = Literal["second", "last"]
"""The dimension of the classes in logits: the one behind the examples, or the last."""

CLASS_DIMENSIONS: dict[ClassDim, int] = {"second": 1, "last": -1}

Activation = Literal["sigmoid", "softmax"]
"""The function that makes probabilities of logits."""

CLASS_DIM = "the dimension of the classes in the logits; the second if left out"

OUTPUTS_HINT = (
    "return logits (N, classes) and target (N) beside the loss, as"
    " hookflow.zoo.tasks:Classification does"
)


ONE_LOGIT = "of one logit an example, the hook metrics computes BinaryAccuracy and others"

LAST_DIMENSION_HINT = (
    "where the target is what the logits at its place predict, and not the token before, class_dim"
    ' = "last"'
)


class ClassDimension:
    """The dimension of the classes in the logits of a task: what is stated, else the second.

    Without that dimension, the logits have the shape of the target. Where the last one fits, too,
    nothing is guessed, unless a batch before has shown that it is the second. That it is the last
    must be stated: logits of tokens may predict the next token, and a target that is not shifted by
    one would be another question.
    """

    def __init__(self, hook: str, stated: ClassDim | None) -> None:
        self._hook = hook
        if stated is None:
            self._dim = None
        else:
            self._dim = CLASS_DIMENSIONS[stated]

    def find(self, logits: Tensor, target: Tensor) -> int:
        """Return the dimension, 1 or -1. Raises UserError where the logits do not fit the target.

        The target is classes (N, …), or shares of classes in the shape of the logits.
        """
        if logits.ndim < 2:
            raise self._make_shape_error(logits, target, "needs a logit for each class", ONE_LOGIT)
        dim = self._dim
        if logits.ndim == 2:
            dim = 1
        if dim is None:
            dim = self._dim = self._find_second_dimension(logits, target)
        if not _is_fitting(logits, target, dim):
            hint = (
                f"{OUTPUTS_HINT}; for several labels an example there are the Multilabel metrics of"
                " the hook metrics"
            )
            raise self._make_shape_error(
                logits, target, "needs logits (N, classes, …) and classes (N, …)", hint
            )
        if logits.shape[dim] < 2:
            raise self._make_shape_error(logits, target, "needs a logit for each class", ONE_LOGIT)
        return dim

    def _find_second_dimension(self, logits: Tensor, target: Tensor) -> int:
        """Return the second dimension.

        Raises UserError where the classes are in the last one, or may be.
        """
        if not _is_fitting(logits, target, -1):
            return 1
        if _is_fitting(logits, target, 1):
            hint = 'say it: class_dim = "second", or class_dim = "last"'
            raise self._make_shape_error(logits, target, "cannot tell where the classes are", hint)
        raise self._make_shape_error(
            logits, target, "looks for the classes in the second dimension", LAST_DIMENSION_HINT
        )

    def _make_shape_error(self, logits: Tensor, target: Tensor, why: str, hint: str) -> UserError:
        shapes = (
            f"logits of shape {(*logits.shape,)} and a target of {target.dtype} {(*target.shape,)}"
        )
        message = f"{self._hook} {why}, and is given {shapes}"
        return UserError(Problem(message, hint=hint))


def _is_fitting(logits: Tensor, target: Tensor, dim: int) -> bool:
    """Say whether logits with the classes in a dimension have a place for each target."""
    if target.is_floating_point():  # shares
        return logits.shape == target.shape
    places = [*logits.shape]
    del places[dim]
    return places == [*target.shape]


def read_logits_and_target(
    outputs: Mapping[str, Any], classes: ClassDimension, hook: str
) -> tuple[Tensor, Tensor]:
    """Return logits (N, classes, …) and their target.

    The target is classes (N, …), int64, or shares of classes in the shape of the logits. Raises
    UserError where the outputs are something else.
    """
    logits = read_output(outputs, "logits", hook, OUTPUTS_HINT)
    target = read_output(outputs, "target", hook, OUTPUTS_HINT)
    for name, value in (("logits", logits), ("target", target)):
        if not hasattr(value, "is_floating_point"):
            message = f'{hook} needs the output "{name}" as a tensor, not a {type(value).__name__}'
            raise UserError(Problem(message))
    dim = classes.find(logits, target)
    if target.is_floating_point():
        return logits.movedim(dim, 1), target.movedim(dim, 1)
    # Classes of a small integer type may overflow where metrics compute with them.
    return logits.movedim(dim, 1), target.long()


def find_activation(metric: Any) -> Activation | None:
    """Return what a metric applies to a batch's scores that are not all from 0 to 1.

    The metric is one of torchmetrics. None where it does not look at their range.
    """
    import torchmetrics.classification as of_classes

    if _is_of_torchmetrics(metric, "Binary", "Multilabel"):
        return "sigmoid"
    softened = (
        of_classes.MulticlassPrecisionRecallCurve,
        of_classes.MulticlassCalibrationError,
        of_classes.MulticlassHingeLoss,
    )
    if isinstance(metric, softened):
        return "softmax"
    return None


def find_num_labels(metric: Any) -> int | None:
    """Return how many values a target of a metric of torchmetrics may have, from 0 on.

    It is None where the target is no class.
    """
    if _is_of_torchmetrics(metric, "Binary", "Multilabel"):
        return 2
    if is_class_metric(metric):
        number = getattr(metric, "num_classes", None)
        if isinstance(number, int):
            return number
    return None


def is_class_metric(metric: Any) -> bool:
    """Say whether a metric of torchmetrics compares classes (N, …) with scores (N, classes, …)."""
    return _is_of_torchmetrics(metric, "Multiclass")


def _is_of_torchmetrics(metric: Any, *kinds: str) -> bool:
    own = (
        base
        for base in type(metric).__mro__
        if (base.__module__ or "").startswith("torchmetrics.classification.")
    )
    return any(base.__name__.startswith(kinds) for base in own)


def make_precise(values: Tensor) -> Tensor:
    """Return floating-point numbers in float32 or better.

    Sums of 16 bits are too coarse, and no gloo gathers them.
    """
    import torch

    if not values.is_floating_point():
        return values
    return values.to(torch.promote_types(values.dtype, torch.float32))


def compute_probabilities(logits: Tensor, activation: Activation) -> Tensor:
    """Return the probabilities of logits (N, …) or (N, classes, …)."""
    if activation == "sigmoid":
        return logits.sigmoid()
    return logits.softmax(dim=1)


def update_metric(metric: Any, scores: Tensor, target: Tensor) -> None:
    """Update a metric of torchmetrics with a batch."""
    if type(metric).__name__ != "MultilabelRankingLoss":
        metric.update(scores, target)
        return
    # This metric counts a batch as one example where no example in it has both labels that hold and
    # labels that do not, so the examples are given one by one.
    for row, row_target in zip(scores.split(1), target.split(1), strict=True):
        metric.update(row, row_target)


def find_range_problem(metric: Any, called: str) -> Problem | None:
    """Return that a metric takes the range of the images from each batch.

    Its value then depends on their size.
    """
    ranged = type(metric).__name__ in (
        "StructuralSimilarityIndexMeasure",
        "MultiScaleStructuralSimilarityIndexMeasure",
    )
    if not ranged or metric.data_range is not None:
        return None
    message = (
        f"{called} takes the range of the values from each batch, and so hangs on the size of the"
        " batches"
    )
    return Problem(message, hint="state it among its args: data_range = 1.0 for values from 0 to 1")
