"""Metrics of torchmetrics, by name."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError, Where
from hookflow.hooks.arguments import wrong_arguments
from hookflow.hooks.base import Hook, Slots
from hookflow.pipeline.registry import missing_package
from hookflow.pipeline.schema import Component
from hookflow.pipeline.use import refer
from hookflow.user_code import causes

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Metric(Component):
    """A metric: a class of torchmetrics by its name, or "package.module:Name", and its arguments."""


class Metrics(Hook):
    """Computes metrics of torchmetrics during validation and test, over all ranks, and adds them to the metrics.

    Each is given two of the task's outputs, batch by batch: what was predicted, and the target. It counts on the
    device; at the end of the pass torchmetrics brings the counts of all ranks together. What it then gives must be one
    number. Metrics that check their arguments wait for a GPU in each batch, unless `validate_args = false` is among
    theirs. Needs torchmetrics: pip install 'hookflow[metrics]'.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("after_val_iter", "after_test_iter"), ("outputs",))
    writes: ClassVar[Slots] = dict.fromkeys(("after_val_epoch", "after_test_epoch"), ("metrics.{metrics}",))

    def __init__(
        self,
        metrics: Annotated[
            dict[str, Metric],
            Field(
                min_length=1,
                description="the metrics by the names that they are to have, each as { use, args }",
                examples=[{"f1": {"use": "MulticlassF1Score", "args": {"num_classes": 10}}}],
            ),
        ],
        predicted: Annotated[str, Field(description="the output that is given as what was predicted")] = "logits",
        target: Annotated[str, Field(description="the output that is given as the target")] = "target",
    ) -> None:
        self.predicted = predicted
        self.target = target
        self.makes_metrics = tuple(metrics)
        self.metrics = made(metrics)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        if missing := missing_package("the hook metrics", "torchmetrics", "metrics"):
            raise UserError(missing)

    def before_val_epoch(self, run: Run) -> None:
        for metric in self.metrics.values():
            metric.to(run.device).reset()

    def after_val_iter(self, outputs: Mapping[str, Any]) -> None:
        for name in (self.predicted, self.target):
            if name not in outputs:
                there = ", ".join(f'"{output}"' for output in outputs)
                said = f'metrics needs the output "{name}" of the task, which gives {there}'
                raise UserError(Problem(said, hint='say which it is: predicted = "…", target = "…"'))
        for metric in self.metrics.values():
            metric.update(outputs[self.predicted], outputs[self.target])

    def after_val_epoch(self, metrics: MutableMapping[str, Any]) -> None:
        for name, metric in self.metrics.items():
            value = metric.compute()
            if getattr(value, "ndim", None) != 0:
                shown = f"a tensor of shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
                said = f'the metric "{name}" gives {shown}, and not one number'
                raise UserError(Problem(said, hint='many give one with average = "macro" among their args'))
            metrics[name] = value

    before_test_epoch = before_val_epoch
    after_test_iter = after_val_iter
    after_test_epoch = after_val_epoch


def made(metrics: Mapping[str, Metric | Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of torchmetrics by name. Raises UserError with all that cannot be made as is said."""
    import torchmetrics

    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, given in metrics.items():
        metric = Metric.model_validate(given)
        try:
            kind = refer(metric.use, Path(), None, _short_names(torchmetrics))
            if wrong := [*wrong_arguments(kind, metric.args, f'the metric "{name}"', lambda _: Where(""))]:
                raise UserError(replace(problem, where=None) for problem in wrong)
            found[name] = kind(**metric.args)
        except UserError as error:
            problems += error.problems
        except (TypeError, ValueError) as error:
            problems.append(Problem(f'the metric "{name}": {error}', hint="\n    ".join(causes(error))))
    if problems:
        raise UserError(problems)
    return found


def _short_names(torchmetrics: Any) -> dict[str, str]:
    """Return the metrics that go by their name alone: torchmetrics' own, and those for classes and numbers."""
    modules = torchmetrics.regression, torchmetrics.classification, torchmetrics
    return {
        name: f"{module.__name__}:{name}"
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, torchmetrics.Metric) and kind is not torchmetrics.Metric
    }
