"""Confusion matrix: which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from hookflow.errors import Problem, UserError
from hookflow.hooks.base import Hook, Slots

if TYPE_CHECKING:
    from torch import Tensor

    from hookflow.hooks.run import Run


WIDEST = 20
"""Classes up to which the text is the whole matrix; of more it lists what is confused most."""

CELL = 8
"""Pixels that a cell of a small matrix is wide; one of many classes gets at least one."""


class ConfusionMatrix(Hook):
    """Computes the confusion matrix in validation and test, over all ranks, and logs it as text and image.

    Both are called `val/confusion_matrix` or `test/confusion_matrix`. A row is a class, a column what it is taken for.
    In the image each row is divided by its sum: white is all examples of the class. Needs a task whose outputs hold
    `logits` (N, classes, …) and `target` (N, …), as Classification's do; targets that are no class, such as -100, are
    left out. Counts on the device, so that nothing waits; only the end of the pass reads the counts.
    """

    reads: ClassVar[Slots] = dict.fromkeys(("after_val_iter", "after_test_iter"), ("outputs",))

    def __init__(
        self,
        classes: Annotated[list[str] | None, Field(description="the names of the classes; numbers if left out")] = None,
    ) -> None:
        self.classes = classes
        self.counts: Any = None

    def before_val_epoch(self) -> None:
        self.counts = None

    def after_val_iter(self, outputs: dict[str, Any]) -> None:
        if "logits" not in outputs or "target" not in outputs:
            given = ", ".join(outputs)
            said = f'confusion_matrix needs the outputs "logits" and "target" of the task, which gives {given}'
            hint = "return them beside the loss, as hookflow.zoo.tasks:Classification does"
            raise UserError(Problem(said, hint=hint))
        logits, target = outputs["logits"], outputs["target"]
        found = counts(logits.argmax(dim=1), target, logits.shape[1])
        self.counts = found if self.counts is None else self.counts + found

    def after_val_epoch(self, run: Run) -> None:
        self._show(run, "val/confusion_matrix")

    before_test_epoch = before_val_epoch
    after_test_iter = after_val_iter

    def after_test_epoch(self, run: Run) -> None:
        self._show(run, "test/confusion_matrix")

    def _show(self, run: Run, name: str) -> None:
        total = run.sum(self.counts)
        if run.rank:
            return
        names = self.classes or [str(k) for k in range(len(total))]
        if len(names) != len(total):
            given = f"the names of {len(names)} classes"
            said = f"confusion_matrix is given {given}, and the task's logits have {len(total)}"
            raise UserError(Problem(said))
        run.log_text(name, text(total.tolist(), names))
        run.log_image(name, image(total), "rows: the class; columns: what it is taken for")


def counts(predicted: Tensor, target: Tensor, classes: int) -> Tensor:
    """Return how often each class (row) is predicted as each (column), int64 (classes, classes), without waiting."""
    import torch

    predicted, target = predicted.flatten(), target.flatten()
    counted = (target >= 0) & (target < classes)
    cell = target.clamp(0, classes - 1) * classes + predicted
    found = torch.zeros(classes * classes, dtype=torch.int64, device=target.device)
    return found.scatter_add_(0, cell, counted.long()).reshape(classes, classes)


def text(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Return the matrix as a table; of many classes the pairs that are confused most."""
    if len(names) > WIDEST:
        wrong = [(n, i, j) for i, row in enumerate(matrix) for j, n in enumerate(row) if n and i != j]
        worst = sorted(wrong, key=lambda found: -found[0])[:WIDEST]
        return "\n".join(f"{n:6d} × {names[i]} taken for {names[j]}" for n, i, j in worst)
    width = max(len(str(cell)) for cell in (*names, *(n for row in matrix for n in row)))
    head = " ".join(f"{name:>{width}}" for name in names)
    rows = [
        f"{name:>{width}} " + " ".join(f"{n:{width}d}" for n in row) for name, row in zip(names, matrix, strict=True)
    ]
    return "\n".join([f"{'':{width}} {head}", *rows])


def image(matrix: Tensor) -> Tensor:
    """Return the matrix as an image, float (height, width) in 0…1: each row divided by its sum."""
    shares = matrix.double() / matrix.sum(dim=1, keepdim=True).clamp(min=1)
    cell = max(CELL * WIDEST // len(matrix), 1)
    return shares.repeat_interleave(cell, 0).repeat_interleave(cell, 1)
