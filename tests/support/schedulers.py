"""Schedulers of PyTorch of each kind, and functions of a step."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)
from torch.optim.swa_utils import SWALR

ITERS, PER_EPOCH = 40, 8


def decay(step: int, rate: float = 0.9) -> float:
    return rate**step


class Decay:
    """A decay that counts its calls: a function with a state."""

    def __init__(self, rate: float) -> None:
        self.rate, self.calls = rate, 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return self.rate**self.calls


class InTurns(SequentialLR):
    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(
            optimizer, [ConstantLR(optimizer, 0.5), ExponentialLR(optimizer, 0.7)], [3]
        )


class Together(ChainedScheduler):
    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__([LinearLR(optimizer, 0.2), ExponentialLR(optimizer, 0.8)])


class Own(LRScheduler):
    def get_lr(self) -> list[float]:
        return [base / (2 + self.last_epoch) for base in self.base_lrs]


EACH: dict[type, tuple[type, dict[str, Any]]] = {
    LRScheduler: (Own, {}),
    StepLR: (StepLR, {"step_size": 2}),
    MultiStepLR: (MultiStepLR, {"milestones": [2, 5]}),
    ConstantLR: (ConstantLR, {"total_iters": 3}),
    LinearLR: (LinearLR, {"total_iters": 5}),
    ExponentialLR: (ExponentialLR, {"gamma": 0.9}),
    SequentialLR: (InTurns, {}),
    PolynomialLR: (PolynomialLR, {"total_iters": 9, "power": 2.0}),
    CosineAnnealingLR: (CosineAnnealingLR, {"T_max": 8}),
    ChainedScheduler: (Together, {}),
    CyclicLR: (CyclicLR, {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 3}),
    CosineAnnealingWarmRestarts: (CosineAnnealingWarmRestarts, {"T_0": 3, "T_mult": 2}),
    OneCycleLR: (OneCycleLR, {"max_lr": 0.3, "total_steps": ITERS}),
    SWALR: (SWALR, {"swa_lr": 0.02, "anneal_epochs": 4}),
}
"""What stands for each kind of scheduler but the plateau, and those of functions,
which TOML does not have.
"""
