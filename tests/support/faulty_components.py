"""Networks, tasks and hooks whose mistakes are blamed on a line:
"./faulty_components.py:…" in the tests' pipelines.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hookflow import Hook

FILE = Path(__file__)


class WrongWidth(nn.Module):
    """Its second layer takes another width than the first gives."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs))  # type: ignore[no-any-return] # THE LINE OF THE LAYER


class RaisesItself(nn.Linear):
    """Raises in its own forward."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        raise ValueError("as told")  # THE LINE OF THE MODEL


class WrongTarget:
    """Its loss is given a target of another length."""

    def step(self, run: Any, batch: Any) -> dict[str, Any]:
        logits = run.model(batch[0])
        # THE LINE OF THE LOSS.
        return {"loss": cross_entropy(logits, batch[1][1:]), "logits": logits}


def line_of(text: str) -> int:
    lines = FILE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


class FailsAt(Hook):
    """Calls `run.fail` at a point of the third iteration, or of the first validation."""

    def __init__(self, point: str = "after_train_iter", checkpoint: bool = False) -> None:
        self.point, self.checkpoint = point, checkpoint

    def _visit(self, run: Any, point: str) -> None:
        if point == self.point and (run.iter >= 3 or point == "before_train"):
            run.fail("memory over 10 GB", checkpoint=self.checkpoint)

    def before_train(self, run: Any) -> None:
        self._visit(run, "before_train")

    def after_train_iter(self, run: Any) -> None:
        self._visit(run, "after_train_iter")

    def after_val(self, run: Any) -> None:
        self._visit(run, "after_val")

    def after_train(self, run: Any) -> None:
        self._visit(run, "after_train")

    def after_run(self, run: Any) -> None:
        self._visit(run, "after_run")


class PreparedInTraining(Hook):
    """Needs in a validation what it makes before the training."""

    def before_train(self) -> None:
        self.table = torch.ones(3)

    def after_val_epoch(self, metrics: dict[str, float]) -> None:
        metrics["weighted"] = float(self.table.sum())
