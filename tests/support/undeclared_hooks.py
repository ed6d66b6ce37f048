"""Hooks that declare nothing, as people write them, with mistakes in their order:
"./undeclared_hooks.py:…".
"""

from typing import Any

import torch

from hookflow.zoo.tasks import Classification


class SwappedAverage:
    """Keeps an average of the weights and puts it in their place for the validation."""

    def __init__(self) -> None:
        self.average: dict[str, torch.Tensor] = {}
        self.trained: dict[str, torch.Tensor] = {}

    def after_optimizer_step(self, run: Any) -> None:
        for name, tensor in run.model.state_dict().items():
            self.average[name] = 0.5 * self.average.get(name, tensor) + 0.5 * tensor

    def before_val(self, run: Any) -> None:
        self.trained = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
        run.model.load_state_dict(self.average)

    def after_val(self, run: Any) -> None:
        run.model.load_state_dict(self.trained)


class Saver:
    def after_val(self, run: Any) -> None:
        torch.save(run.model.state_dict(), run.dir / "weights.pt")


class Plateau:
    """Halves the rates after each validation, and counts that."""

    def __init__(self) -> None:
        self.halved = 0

    def after_val(self, run: Any) -> None:
        self.halved += 1
        for group in run.optimizer.param_groups:
            group["lr"] /= 2


class SaverOfStates:
    def after_val(self, run: Any) -> None:
        states = {"halved": run.hooks["plateau"].halved, "optimizer": run.optimizer.state_dict()}
        torch.save(states, run.dir / "states.pt")


class Score:
    def after_val_epoch(self, metrics: dict[str, Any]) -> None:
        metrics["score"] = -metrics["loss"]


class FillsQueue:
    def before_train(self, run: Any) -> None:
        run.task.queue = []

    def after_train_iter(self, run: Any) -> None:
        assert isinstance(run.task, Classification)
        run.task.queue.append(run.iter)


class CountsQueue:
    def after_train_iter(self, run: Any) -> None:
        self.count = len(run.task.queue)


class Judge:
    def after_val_epoch(self, metrics: dict[str, Any]) -> None:
        assert metrics["score"] < 10
