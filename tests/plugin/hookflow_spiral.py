"""Which of two spirals a point lies on: a hook, a model, data and a task,
offered by entry points.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from hookflow import Hook


class Spirals(TensorDataset):
    """Points of two spirals, float32 (2), each with 0 or 1 for the spiral that it lies on."""

    def __init__(
        self, points: Annotated[int, Field(ge=2, description="points of both spirals")] = 128
    ) -> None:
        along = torch.linspace(0.2, 1, points // 2)
        spiral = torch.stack((along * (9 * along).cos(), along * (9 * along).sin()), 1)
        super().__init__(
            torch.cat((spiral, -spiral)), torch.arange(2).repeat_interleave(points // 2)
        )


class SpiralNet(nn.Sequential):
    """Two layers, from a point to one logit."""

    def __init__(self, width: Annotated[int, Field(ge=1, description="hidden units")] = 16) -> None:
        super().__init__(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))


class WhichSpiral:
    """Binary cross-entropy between the logit and the spiral."""

    def step(self, run, batch):
        points, spiral = batch
        return {
            "loss": functional.binary_cross_entropy_with_logits(
                run.model(points)[:, 0], spiral.float()
            )
        }


class CountPoints(Hook):
    """Counts the points that the training has seen."""

    reads = ("batch",)

    def __init__(
        self, of: Annotated[int, Field(ge=0, le=1, description="the spiral whose points count")] = 0
    ) -> None:
        self.of = of
        self.seen = 0

    def after_train_iter(self, run, batch: tuple[Tensor, Tensor]) -> None:
        self.seen += int((batch[1] == self.of).sum())
        run.log("points_seen", self.seen)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]
