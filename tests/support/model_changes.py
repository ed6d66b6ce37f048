"""Hooks that the tests put into pipelines to change the network after the optimizers were built."""

from typing import Any

import torch
from torch import nn

from tests.support.toy import Net


class HalfFrozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body[0].weight.requires_grad_(False)


class Surgeon:
    """Replaces the head of the toy net at one point,
    and adds its parameters to the optimizer if it `adds` them.
    """

    writes = ("model", "optimizer")

    def __init__(
        self, point: str = "before_run", *, adds: bool = True, at: int = 0, **settings: float
    ) -> None:
        self.point, self.adds, self.at = point, adds, at
        self.settings = settings

    def _operate(self, point: str, run: Any) -> None:
        if point == self.point and run.iter == self.at:
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(5 + run.rank)
                run.model.head = nn.Linear(8, 3).to(run.device)
            if self.adds:
                run.add_param_group(run.model.head.parameters(), **self.settings)

    def before_run(self, run: Any) -> None:
        self._operate("before_run", run)

    def before_train_iter(self, run: Any) -> None:
        self._operate("before_train_iter", run)

    def after_forward(self, run: Any) -> None:
        self._operate("after_forward", run)


class Thaws:
    """Unfreezes a weight as the training begins, or later with a group of its own for it."""

    writes = ("model", "optimizer")

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def before_train(self, run: Any) -> None:
        if self.at == 0:
            run.model.body[0].weight.requires_grad_(True)

    def before_train_epoch(self, run: Any) -> None:
        if self.at == run.epoch > 0:
            run.model.body[0].weight.requires_grad_(True)
            run.add_param_group([run.model.body[0].weight], lr=0.05)
