"""Accuracy: the share of examples whose class was among the highest-scored."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from hookflow.hooks.run import Run


class Accuracy(Hook):
    """Counts right answers during validation and test, over all ranks, and adds them to the metrics.

    Needs a task whose outputs hold `logits` (N, classes) and `target` (N), as Classification's do. Counts on the
    device, so that nothing waits; only the end of the pass reads the total.
    """

    phase = "early"
    reads: ClassVar[Slots] = dict.fromkeys(("after_val_iter", "after_test_iter"), ("outputs",))
    writes: ClassVar[Slots] = dict.fromkeys(("after_val_epoch", "after_test_epoch"), ("metrics.{metric}",))

    def __init__(
        self,
        topk: Annotated[int, Field(ge=1, description="how many of the highest-scored classes count as an answer")] = 1,
    ) -> None:
        self.topk = topk
        self.metric = _metric(topk)
        self.makes_metrics = (self.metric,)
        self.right: Any = 0
        self.seen = 0

    @classmethod
    def slot_keys(cls, args: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"metric": _metric(args["topk"])}

    def before_val_epoch(self) -> None:
        self.right, self.seen = 0, 0

    def after_val_iter(self, outputs: dict[str, Any]) -> None:
        if "logits" not in outputs or "target" not in outputs:
            raise UserError(_missing(outputs))
        target = outputs["target"]
        answers = outputs["logits"].topk(self.topk, dim=1).indices
        self.right = self.right + (answers == target[:, None]).any(dim=1).sum()
        self.seen += len(target)

    def after_val_epoch(self, run: Run, metrics: MutableMapping[str, float]) -> None:
        right, seen = float(run.sum(float(self.right))), float(run.sum(self.seen))
        metrics[self.metric] = right / max(seen, 1)

    before_test_epoch = before_val_epoch
    after_test_iter = after_val_iter
    after_test_epoch = after_val_epoch


def _metric(topk: int) -> str:
    return "accuracy" if topk == 1 else f"accuracy_top{topk}"


def _missing(outputs: dict[str, Any]) -> Problem:
    given = ", ".join(f'"{name}"' for name in outputs) or "nothing"
    said = f'accuracy needs the outputs "logits" (N, classes) and "target" (N) of the task, which gives {given}'
    return Problem(said, hint="return them beside the loss, as hookflow.zoo.tasks:Classification does, or leave it out")
